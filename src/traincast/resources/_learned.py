"""The twelve numbers of a rank, learned from measured runs: what a timeline cannot know of caches, samplers and sockets.

A Gaussian process over what a step is made of and where it runs. What it learns are ratios to what physics gives (time at
the best rates seen, bytes over the link), so that far from every run it falls back to physics. Part of its covariance is
shared by all settings and part belongs to one setting: a few runs in a new setting bend the shared part to it, which
is the transfer that Driple tunes its last layers for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.spec import RESOURCES, Graph, calls_of

Array = NDArray[np.float64]

KIND_GROUPS = (
    "matmul",
    "conv",
    "attention",
    "elementwise",
    "norm",
    "pool",
    "rnn",
    "embedding",
    "copy",
    "optimizer",
    "other",
)
WINDOW_S = 0.02
"""Of the sampler whose numbers are learned."""
LENGTHS: Mapping[str, float] = {"size": 4.0, "mix": 1.5, "setting": 2.0, "physics": 2.0}
"""How far, in standard deviations of each group's features over the training rows, one row speaks for another."""
SHARED, OWN, NOISE = 1.0, 0.35, 0.8
"""Standard deviations of the shared part, of the part of one setting, and of a measurement, over that of the targets.
The best of nine pairs (OWN 0.35, 0.7, 1.4; NOISE 0.12, 0.4, 0.8) for the transfer to 2xmixed and 2x100mbit of the corpus, which
the tables of docs/theory/resources.md therefore leave out of the transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank of a data-parallel step runs, by the figures that its activity depends on."""

    num_ranks: int
    bytes_per_s: float
    """Of the rank's own link."""
    narrowest_bytes_per_s: float
    speed: float
    """Of the rank's own processor, as a share of the fastest."""
    slowest: float

    @property
    def name(self) -> str:
        return f"{self.num_ranks} x {self.bytes_per_s:g} ({self.narrowest_bytes_per_s:g}) B/s, {self.speed:g} ({self.slowest:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one step of one rank is made of: FLOP, bytes and calls by kind of operator, and the bytes of its gradients."""

    flop: tuple[float, ...]
    num_bytes: tuple[float, ...]
    calls: tuple[float, ...]
    gradient_bytes: float
    batch_size: int


def count_work(graph: Graph) -> Work:
    amounts = np.zeros((3, len(KIND_GROUPS)))
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        group = KIND_GROUPS.index(op.kind if op.kind in KIND_GROUPS else "other")
        amounts[:, group] += np.array([op.flop or 0.0, op.num_bytes, calls_of(op)]) * count
    return Work(
        flop=tuple(amounts[0]), num_bytes=tuple(amounts[1]), calls=tuple(amounts[2]),
        gradient_bytes=graph.num_parameters * 4.0, batch_size=graph.batch_size,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured rank: its work, its place, the duration of its step, and the twelve numbers."""

    work: Work
    place: Place
    step_s: float
    twelve: Mapping[str, float]
    """Not a number where one was not measured; nothing is learned from that."""
    vector: tuple[float, ...] = ()
    """What a graph network made of the graph (traincast.embed), where it is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Seconds per FLOP, byte and call of each kind, per byte on the wire and per rank spoken to: never below zero."""

    values: tuple[float, ...]

    def compute_s(self, work: Work, place: Place) -> float:
        return float(np.dot(_amounts(work, place), self.values)) / place.speed


def _amounts(work: Work, place: Place) -> Array:
    wire_bytes = ring_bytes(work, place)
    others = float(place.num_ranks > 1)
    return np.array([*work.flop, *work.num_bytes, *work.calls, 1.0, wire_bytes, others, others * place.num_ranks])


def ring_bytes(work: Work, place: Place) -> float:
    """What one rank sends, and receives, in the all-reduce of one step (Patarasuk and Yuan 2009)."""
    return 2 * (place.num_ranks - 1) / place.num_ranks * work.gradient_bytes


def fit_rates(runs: Sequence[Run]) -> Rates:
    """By non-negative least squares on relative errors of the steps in which computing, not the link, decides."""
    table = np.array([_amounts(run.work, run.place) / run.place.speed for run in runs])
    seconds = np.array([run.step_s for run in runs])
    wire_s = np.array([ring_bytes(run.work, run.place) / run.place.narrowest_bytes_per_s for run in runs])
    usable = wire_s < 0.5 * seconds
    if not usable.any():
        # Where every run waits for its link, none tells what computing costs: at most all of the rest.
        usable[:] = True
    scaled = table[usable] / seconds[usable, None]
    scale = np.maximum(scaled.max(axis=0), 1e-300)
    weights = _nonnegative(scaled / scale, np.ones(int(usable.sum())))
    return Rates(values=tuple(float(value) for value in weights / scale))


def _nonnegative(matrix: Array, target: Array, *, rounds: int = 3000) -> Array:
    """Projected, accelerated gradient descent with a whisper of ridge: amounts of kinds that go together stay finite."""
    gram = matrix.T @ matrix + 1e-3 * np.eye(matrix.shape[1])
    linear = matrix.T @ target
    step = 1 / float(np.linalg.eigvalsh(gram)[-1])
    solution = ahead = np.zeros(matrix.shape[1])
    momentum = 1.0
    for _ in range(rounds):
        following = np.maximum(0.0, ahead - step * (gram @ ahead - linear))
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = following + (momentum - 1) / next_momentum * (following - solution)
        solution, momentum = following, next_momentum
    return np.asarray(solution)


TIMED = ("received", "sent")
"""Bursts that last as long as their bytes need, whatever the step; the others fill a share of the step."""
OUTPUTS = ("step", *(f"{resource}_share" for resource in RESOURCES), *(f"{resource}_peak" for resource in RESOURCES))
"""What the process learns: log of the step over physics, the share of it each resource bursts, log of each peak over physics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What physics gives for a run, before anything is learned."""

    step_s: float
    wire_s: float
    shares: Mapping[str, float]
    peaks: Mapping[str, float]


def expect(rates: Rates, work: Work, place: Place) -> Expected:
    own_s = rates.compute_s(work, place)
    slowest_s = own_s * place.speed / place.slowest
    wire_bytes = ring_bytes(work, place)
    wire_s = wire_bytes / place.narrowest_bytes_per_s
    # Buckets go out beside the backward pass, which is about half of the step; the rest of the wire time shows.
    step_s = max(slowest_s, 0.5 * slowest_s + wire_s)
    wire_rate = min(place.bytes_per_s, wire_bytes / min(step_s, max(wire_s, WINDOW_S)))
    share = min(1.0, max(wire_s, WINDOW_S) / step_s) if place.num_ranks > 1 else 0.0
    return Expected(
        step_s=step_s,
        wire_s=wire_s,
        shares={"gpu": min(1.0, own_s / step_s), "memory": 1.0, "received": share, "sent": share},
        peaks={"gpu": 1.0, "memory": 0.02 * place.num_ranks, "received": wire_rate, "sent": wire_rate},
    )


def compose(answers: Mapping[str, float], expected: Expected, place: Place) -> tuple[float, dict[str, float]]:
    """What was learned applied to what physics gives; idle and burst fill the step."""
    step_s = expected.step_s * math.exp(answers["step"])
    twelve = {}
    for resource in RESOURCES:
        silent = resource in ("received", "sent") and place.num_ranks == 1
        learned = answers[f"{resource}_share"]
        if resource in TIMED:
            share = expected.shares[resource] * math.exp(learned) * expected.step_s / step_s
        else:
            share = expected.shares[resource] + learned
        share = 0.0 if silent else min(1.0, max(0.0, share))
        twelve[f"{resource}_idle_s"] = (1 - share) * step_s
        twelve[f"{resource}_burst_s"] = share * step_s
        twelve[f"{resource}_peak"] = 0.0 if silent else expected.peaks[resource] * math.exp(answers[f"{resource}_peak"])
    return step_s, twelve


def describe(rates: Rates, work: Work, place: Place, vector: Sequence[float] = ()) -> dict[str, Array]:
    """The features of a run by group."""
    expected = expect(rates, work, place)
    flop, moved, calls = (np.array(amounts) for amounts in (work.flop, work.num_bytes, work.calls))
    sizes = [flop.sum(), moved.sum(), calls.sum(), work.gradient_bytes, moved.max(), work.batch_size]
    mix = [
        *np.sqrt(flop / max(flop.sum(), 1.0)),
        *np.sqrt(moved / max(moved.sum(), 1.0)),
        *np.sqrt(calls / max(calls.sum(), 1.0)),
    ]
    wire = [
        expected.wire_s / expected.step_s,
        math.log(expected.step_s / WINDOW_S),
        math.log1p(expected.wire_s / WINDOW_S),
    ]
    return {
        "size": np.log1p(np.array(sizes)),
        "mix": np.array([*mix, *vector]),
        "setting": np.array([
            place.num_ranks, math.log10(place.bytes_per_s), math.log10(place.narrowest_bytes_per_s),
            place.speed / place.slowest, float(place.num_ranks > 1),
        ]),
        "physics": np.array([*wire, expected.shares["gpu"], math.log(work.gradient_bytes + 1)]),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Learned:
    """Fitted to runs; `predict` gives the twelve numbers and the step of a run it has not seen."""

    rates: Rates
    groups: tuple[str, ...]
    means: Mapping[str, Array]
    scales: Mapping[str, Array]
    rows: Mapping[str, Array] = field(repr=False)
    places: tuple[str, ...]
    offsets: Array
    spreads: Array
    weights: Array = field(repr=False)

    def predict(self, work: Work, place: Place, vector: Sequence[float] = ()) -> tuple[float, dict[str, float]]:
        features = describe(self.rates, work, place, vector)
        asked = {name: ((features[name] - self.means[name]) / self.scales[name])[None, :] for name in self.groups}
        near = _covariance(asked, self.rows, (place.name,), self.places)
        answers = dict(zip(OUTPUTS, self.offsets + self.spreads * (near @ self.weights)[0], strict=True))
        return compose(answers, expect(self.rates, work, place), place)


def learn(runs: Sequence[Run], *, rates: Rates | None = None) -> Learned:
    """`rates`: of an earlier fit, where these runs are too few to tell them."""
    if not runs:
        raise InvalidInput("there is no run to learn from")
    rates = rates or fit_rates(runs)
    described = [describe(rates, run.work, run.place, run.vector) for run in runs]
    groups = tuple(described[0])
    tables = {name: np.array([features[name] for features in described]) for name in groups}
    means = {name: table.mean(axis=0) for name, table in tables.items()}
    scales = {
        name: np.maximum(table.std(axis=0), 1e-3) * LENGTHS[name] * math.sqrt(table.shape[1])
        for name, table in tables.items()
    }
    rows = {name: (table - means[name]) / scales[name] for name, table in tables.items()}
    places = tuple(run.place.name for run in runs)
    targets = np.array([aim_at(run, expect(rates, run.work, run.place)) for run in runs])
    targets[:, np.isnan(targets).all(axis=0)] = 0.0
    offsets = np.nanmedian(targets, axis=0)
    spreads = np.maximum(1.4826 * np.nanmedian(np.abs(targets - offsets), axis=0), 0.02)
    covariance = _covariance(rows, rows, places, places) + NOISE**2 * np.eye(len(runs))
    # A stray run (a neighbour woke up) must not bend the surface: what lies beyond four spreads counts as four.
    cut = np.nan_to_num(np.clip((targets - offsets) / spreads, -4.0, 4.0))
    weights = np.linalg.solve(covariance, cut)
    return Learned(rates, groups, means, scales, rows, places, offsets, spreads, weights)


def aim_at(run: Run, expected: Expected) -> list[float]:
    """The outputs that would give what was measured."""
    shares, peaks = [], []
    for resource in RESOURCES:
        burst_s, idle_s = run.twelve[f"{resource}_burst_s"], run.twelve[f"{resource}_idle_s"]
        whole_s = expected.shares[resource] * expected.step_s
        if resource not in TIMED:
            shares.append(burst_s / (burst_s + idle_s) - expected.shares[resource])
        else:
            shares.append(math.log(burst_s / whole_s) if burst_s > 0 and whole_s > 0 else 0.0)
        peak = run.twelve[f"{resource}_peak"]
        unknown = math.nan if math.isnan(peak) else 0.0
        peaks.append(
            math.log(peak / expected.peaks[resource]) if peak > 0 and expected.peaks[resource] > 0 else unknown
        )
    return [math.log(run.step_s / expected.step_s), *shares, *peaks]


def _covariance(
    left: Mapping[str, Array], right: Mapping[str, Array], places: Sequence[str], others: Sequence[str]
) -> Array:
    """Matern 3/2 over all groups, once for all settings and once more inside each."""
    squared = sum(
        (left[name] ** 2).sum(axis=1)[:, None]
        + (right[name] ** 2).sum(axis=1)[None, :]
        - 2 * left[name] @ right[name].T
        for name in left
    )
    distance = np.sqrt(3 * np.maximum(squared, 0.0))
    shape = (1 + distance) * np.exp(-distance)
    same = np.array(places)[:, None] == np.array(others)[None, :]
    return np.asarray((SHARED**2 + OWN**2 * same) * shape)
