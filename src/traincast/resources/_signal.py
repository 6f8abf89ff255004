"""A level over time, sampled or piecewise constant, to idle time, burst time and burst peak. See docs/theory/resources.md."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import Activity

Array = NDArray[np.float64]

THRESHOLD = 0.1
"""A burst is above this share of the signal's highest level."""
PEAK_SHARE = 0.05
"""The peak is the level that this share of the burst time reaches or exceeds: one stray sample in a run is no peak."""
MIN_GAP_WINDOWS = 2.0
"""Gaps shorter than this many windows are bridged: whether a sampler sees them depends on its phase alone."""


@noun
class Signal:
    """Levels between consecutive edges; `window_s` is set when each level is a mean over a window of that length."""

    edges_s: Array
    levels: Array
    window_s: float | None = None

    def __post_init__(self) -> None:
        if len(self.levels) < 1 or len(self.edges_s) != len(self.levels) + 1:
            raise InvalidInput(
                f"a signal of {len(self.levels)} levels and {len(self.edges_s)} edges; "
                "it needs at least one level and one edge more than levels"
            )
        if not (np.all(np.diff(self.edges_s) > 0) and np.all(np.isfinite(self.edges_s))):
            raise InvalidInput("the edges of a signal must be finite and rise; sort the samples by time, drop repeats")
        if not (np.all(self.levels >= 0) and np.all(np.isfinite(self.levels))):
            raise InvalidInput("the levels of a signal must be finite and at least 0")
        if self.window_s is not None and not self.window_s > 0:
            raise InvalidInput(f"window_s = {self.window_s}; it must be above 0")

    @property
    def lengths_s(self) -> Array:
        return np.diff(self.edges_s)

    @property
    def duration_s(self) -> float:
        return float(self.edges_s[-1] - self.edges_s[0])

    @property
    def mean(self) -> float:
        return float(np.dot(self.levels, self.lengths_s)) / self.duration_s


def from_counter(times_s: Sequence[float], totals: Sequence[float]) -> Signal:
    """Readings of a counter that only grows (bytes sent, CPU seconds) as mean rates between the readings."""
    if len(times_s) != len(totals) or len(times_s) < 2:
        raise InvalidInput(
            f"{len(times_s)} times and {len(totals)} readings; give at least two of each, as many of both"
        )
    edges = np.asarray(times_s, dtype=np.float64)
    gaps = np.diff(edges)
    if not np.all(gaps > 0):
        raise InvalidInput("the times of a counter must rise; sort the readings by time and drop repeats")
    steps = np.diff(np.asarray(totals, dtype=np.float64))
    if np.any(steps < 0):
        raise InvalidInput("a counter must not fall; it was reset between two readings, so split the run there")
    return Signal(edges_s=edges, levels=steps / gaps, window_s=float(np.median(gaps)))


def from_gauge(times_s: Sequence[float], levels: Sequence[float]) -> Signal:
    """Readings of a meter that shows the level since the last reading (nvidia-smi); the first has no interval, so it
    is left out."""
    if len(times_s) != len(levels) or len(times_s) < 2:
        raise InvalidInput(
            f"{len(times_s)} times and {len(levels)} readings; give at least two of each, as many of both"
        )
    edges = np.asarray(times_s, dtype=np.float64)
    window_s = float(np.median(np.diff(edges)))
    return Signal(edges_s=edges, levels=np.asarray(levels, dtype=np.float64)[1:], window_s=window_s or None)


def from_pieces(
    pieces: Iterable[tuple[float, float, float]], *, duration_s: float, highest: float | None = None
) -> Signal:
    """(start, end, level) of pieces of work, which may overlap: their levels add up, to at most `highest`."""
    if not duration_s > 0:
        raise InvalidInput(f"duration_s = {duration_s}; a signal needs a duration above 0")
    table = np.array([piece for piece in pieces if piece[1] > piece[0]], dtype=np.float64).reshape(-1, 3)
    starts = np.clip(table[:, 0], 0.0, duration_s)
    ends = np.clip(table[:, 1], 0.0, duration_s)
    # As np.unique does, which would load numpy's masked arrays for it.
    edges = np.sort(np.concatenate([[0.0, duration_s], starts, ends]))
    edges = edges[np.concatenate([[True], edges[1:] != edges[:-1]])]
    changes = np.zeros(len(edges))
    np.add.at(changes, np.searchsorted(edges, starts), table[:, 2])
    np.add.at(changes, np.searchsorted(edges, ends), -table[:, 2])
    largest = float(np.max(table[:, 2], initial=0.0))
    levels = np.cumsum(changes)[:-1]
    # Adding and taking away the same levels leaves rounding behind, where the truth is nothing.
    levels[np.abs(levels) < 1e-9 * largest] = 0.0
    return Signal(edges_s=edges, levels=np.clip(levels, 0.0, highest))


def repeat(signal: Signal, times: int) -> Signal:
    """The signal over and over."""
    if times < 1:
        raise InvalidInput(f"a signal repeated {times} times; it must be at least 1")
    offsets = np.arange(times)[:, None] * signal.duration_s
    starts = (signal.edges_s[:-1][None, :] + offsets).ravel()
    return Signal(
        edges_s=np.append(starts, signal.edges_s[0] + times * signal.duration_s),
        levels=np.tile(signal.levels, times),
        window_s=signal.window_s,
    )


def sample(signal: Signal, *, window_s: float, offset_s: float = 0.0, times: int = 1) -> Signal:
    """What a sampler that reads every `window_s` sees: the mean level of each whole window. `times`: the signal repeats."""
    if not window_s > 0:
        raise InvalidInput(f"window_s = {window_s}; it must be above 0")
    whole_s = times * signal.duration_s
    # A window that ends at the last edge, up to rounding, is a whole one.
    num_windows = int(np.floor((whole_s - offset_s) / window_s + 1e-9))
    if num_windows < 1:
        raise InvalidInput(f"a window of {window_s} s does not fit into a signal of {whole_s} s; use a shorter one")
    edges = offset_s + window_s * np.arange(num_windows + 1)
    inside = np.append(0.0, np.cumsum(signal.levels * signal.lengths_s))
    rounds = np.minimum(np.floor(edges / signal.duration_s), times - 1)
    rest = np.interp(edges - rounds * signal.duration_s, signal.edges_s - signal.edges_s[0], inside)
    levels = np.maximum(np.diff(rounds * inside[-1] + rest), 0.0) / window_s
    # The differences of large areas leave rounding behind, where the truth is nothing.
    levels[levels < 1e-9 * float(np.max(levels))] = 0.0
    return Signal(edges_s=signal.edges_s[0] + edges, levels=levels, window_s=window_s)


def summarize(
    signal: Signal,
    *,
    num_cycles: float | None = None,
    floor: float = 0.0,
    threshold: float = THRESHOLD,
    min_gap_s: float | None = None,
    cyclic: bool = False,
) -> Activity:
    """Idle time, burst time and burst peak of one cycle.

    `num_cycles`: training steps in the signal; None: every burst with the idle time around it is a cycle. `floor`: what
    does not exceed this level is idle however low the rest is. `min_gap_s`: shorter gaps are bridged; by default
    two windows of a sampled signal, and none of an exact one. `cyclic`: the end is followed by the beginning.
    """
    if num_cycles is not None and not num_cycles > 0:
        raise InvalidInput(f"num_cycles = {num_cycles}; it must be above 0")
    levels, lengths = signal.levels, signal.lengths_s
    above = levels > burst_level(signal, floor=floor, threshold=threshold)
    gap_s = min_gap_s if min_gap_s is not None else MIN_GAP_WINDOWS * (signal.window_s or 0.0)
    if cyclic:
        levels, lengths, above = _turn(levels, lengths, above)
    above = _bridge(above, lengths, gap_s=gap_s, cyclic=cyclic)
    if cyclic:
        levels, lengths, above = _turn(levels, lengths, above)
    num_bursts = sum(value for value, _, _ in _stretches(above))
    cycles = num_cycles if num_cycles is not None else float(max(1, num_bursts))
    peak = _peak(levels[above], lengths[above])
    shares = _edge_shares(levels, above, peak, cyclic=cyclic) if signal.window_s is not None else above.astype(float)
    burst_s = float(np.dot(shares, lengths))
    return Activity(
        idle_s=max(0.0, signal.duration_s - burst_s) / cycles,
        burst_s=burst_s / cycles,
        peak=peak,
        mean=signal.mean,
        num_bursts=num_bursts / cycles,
    )


def burst_level(signal: Signal, *, floor: float = 0.0, threshold: float = THRESHOLD) -> float:
    """The level that a burst exceeds."""
    return max(floor, threshold * float(np.max(signal.levels)))


def find_bursts(signal: Signal, *, floor: float = 0.0) -> list[tuple[float, float]]:
    """(start, end) of each burst of a run, short gaps bridged, in whole windows."""
    above = signal.levels > burst_level(signal, floor=floor)
    gap_s = MIN_GAP_WINDOWS * (signal.window_s or 0.0)
    bridged = _bridge(above, signal.lengths_s, gap_s=gap_s, cyclic=False)
    return [
        (float(signal.edges_s[start]), float(signal.edges_s[stop]))
        for value, start, stop in _stretches(bridged)
        if value
    ]


def _stretches(above: NDArray[np.bool_]) -> list[tuple[bool, int, int]]:
    """(above, first, one after the last) of each run of equal values."""
    runs = []
    start = 0
    for value, members in itertools.groupby(above.tolist()):
        stop = start + sum(1 for _ in members)
        runs.append((value, start, stop))
        start = stop
    return runs


def _turn(levels: Array, lengths: Array, above: NDArray[np.bool_]) -> tuple[Array, Array, NDArray[np.bool_]]:
    """A cycle has no beginning: let it begin where a burst has just ended, so that no stretch crosses the end."""
    ends = np.flatnonzero(~above & np.roll(above, 1))
    if not len(ends):
        return levels, lengths, above
    return np.roll(levels, -ends[0]), np.roll(lengths, -ends[0]), np.roll(above, -ends[0])


def _bridge(above: NDArray[np.bool_], lengths: Array, *, gap_s: float, cyclic: bool) -> NDArray[np.bool_]:
    """Gaps shorter than `gap_s` between two bursts join them; what lies at the ends of a run that is cut off stays."""
    bridged = above.copy()
    if not above.any():
        return bridged
    for value, start, stop in _stretches(above):
        cut_off = not cyclic and (start == 0 or stop == len(above))
        # Windows are multiples of one length up to rounding; a gap of exactly the limit is kept.
        if not value and not cut_off and float(lengths[start:stop].sum()) < gap_s * (1 - 1e-9):
            bridged[start:stop] = True
    return bridged


def _peak(levels: Array, lengths: Array) -> float:
    if not len(levels):
        return 0.0
    order = np.argsort(-levels, kind="stable")
    covered = np.cumsum(lengths[order])
    place = int(np.searchsorted(covered, PEAK_SHARE * covered[-1] * (1 - 1e-9)))
    return float(levels[order[min(place, len(order) - 1)]])


def _edge_shares(levels: Array, above: NDArray[np.bool_], peak: float, *, cyclic: bool) -> Array:
    """The share of each window that belongs to a burst. A burst begins and ends inside a window, which its level tells:
    half the level of the window next to it means half a window."""
    shares = above.astype(np.float64)
    whole = bool(above.all())
    for value, start, stop in _stretches(above):
        if not value or whole:
            continue
        long = stop - start >= 3
        if start > 0:
            shares[start] = _share(levels[start], inner=levels[start + 1] if long else peak)
        if stop < len(above) or cyclic:
            shares[stop - 1] = _share(levels[stop - 1], inner=levels[stop - 2] if long else peak)
    return shares


def _share(level: float, *, inner: float) -> float:
    return min(1.0, float(level / inner)) if inner > 0 else 1.0
