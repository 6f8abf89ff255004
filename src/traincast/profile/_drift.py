"""Takes the drift of a shared machine out of measured times: what unrelated experiments, visited one after the other, have in
common is the machine's and not theirs.

A block's logarithm is that of its experiment, plus a drift that all blocks of the moment share, plus its own scatter:
y = Z a + d + e, with cov(d) a sum of two exponential kernels (seconds, minutes). The times of the experiments are the best
linear unbiased estimates under that covariance, whose constants are those of highest restricted likelihood (Patterson and
Thompson 1971). Without drift the constants say so and the estimates are plain means.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from traincast.noun import noun
from traincast.spec import Block, Measurement

Array = NDArray[np.float64]

FAST_S, SLOW_S = (3.0, 15.0), (60.0, 600.0)
"""How long a drift may last: a neighbour's burst, and a busy quarter of an hour."""
SHARES = (0.0, 0.15, 0.3, 0.5, 0.7)
"""Of the variance between blocks that either kind of drift may make."""
MAX_SHARE = 0.9
FAR_OFF = 3.0
"""Standard deviations from which on a block counts as a stray and weighs less."""
MOST_FOR_CONSTANTS, MOST_AT_ONCE = 200, 1000
"""Blocks that are enough to find the constants by, and that are solved together (a fraction of a second)."""


@noun
class Steadied:
    """The time of an experiment with the machine's drift taken out."""

    seconds: float
    noise: float | None
    """Relative standard error beside the other experiments; None where none was visited twice, so that nothing tells. How slow
    the machine was on the whole is in all of them and not in this."""


@noun
class Drift:
    """What a machine's blocks had in common, as shares of the variance between blocks of one experiment."""

    fast_share: float = 0.0
    fast_s: float = FAST_S[0]
    slow_share: float = 0.0
    slow_s: float = SLOW_S[0]

    @property
    def own_share(self) -> float:
        """Of a block's own scatter."""
        return 1 - self.fast_share - self.slow_share

    def correlation(self, times_s: Array) -> Array:
        """Between blocks that began at these times; their own scatter included."""
        apart_s = np.abs(times_s[:, None] - times_s[None, :])
        shared = self.fast_share * np.exp(-apart_s / self.fast_s) + self.slow_share * np.exp(-apart_s / self.slow_s)
        return shared + self.own_share * np.eye(len(times_s))


def observe(measurement: Measurement, block: Block) -> float:
    """What is compared and fitted: CPU time where one thread of a CPU computed, because it is several times more repeatable."""
    alone = (
        measurement.environment.settings.get("threads") == 1 and measurement.experiment.attrs.get("num_ranks", 1) == 1
    )
    cpu_s = block.cpu_seconds
    return cpu_s if alone and cpu_s is not None and cpu_s > 0 else block.seconds


def steady_seconds(
    measurements: Sequence[Measurement], *, seconds_of: Callable[[Measurement, Block], float | None] = observe
) -> dict[str, Steadied]:
    """Of each experiment by its key. Give all that one machine measured in one campaign: drift is seen between experiments.

    Blocks for which `seconds_of` knows nothing do not count. An experiment visited once is corrected too, by neighbours that
    were visited again at another time. Rounds must differ in their order: experiments that always follow each other cannot be
    told from the moments they share.
    """
    blocks = [(each, block) for each in measurements for block in each.blocks]
    rows = sorted(
        (_moment(block, number), each.experiment.key, math.log(seconds))
        for number, (each, block) in enumerate(blocks)
        if (seconds := seconds_of(each, block)) is not None and seconds > 0
    )
    keys = list(dict.fromkeys(key for _, key, _ in rows))
    # As few groups as can be solved at once; experiments that were first visited together stay together.
    num_groups = math.ceil(len(rows) / MOST_AT_ONCE)
    group_of = {key: number * num_groups // len(keys) for number, key in enumerate(keys)}
    found: dict[str, Steadied] = {}
    for group in range(num_groups):
        own = [row for row in rows if group_of[row[1]] == group]
        place = {key: number for number, key in enumerate(dict.fromkeys(key for _, key, _ in own))}
        levels, errors = steady_levels(
            np.array([value for _, _, value in own]),
            np.array([place[key] for _, key, _ in own], dtype=int),
            np.array([at for at, _, _ in own]),
        )
        found |= {
            key: Steadied(seconds=math.exp(levels[number]), noise=float(errors[number]) or None)
            for key, number in place.items()
        }
    return found


def _moment(block: Block, number: int) -> float:
    """When it began, in seconds. A block that does not know (imported tables may not) has a moment of its own, far from all."""
    try:
        return datetime.fromisoformat(block.started_at).timestamp()
    except ValueError:
        return -1e6 * (number + 1)


def steady_levels(
    logs: Array, owners: NDArray[np.int_], times_s: Array, drift: Drift | None = None
) -> tuple[Array, Array]:
    """The level of each owner and its standard error beside the others.

    `owners` number the experiments from 0, each with a block at least.
    """
    drift = drift if drift is not None else find_drift(logs, owners, times_s)
    correlation, logs = drift.correlation(times_s), _clip_strays(logs, owners)
    solved = _solve(correlation, logs, owners)
    for _ in range(2):
        own = drift.own_share * solved.weighted_left
        spread = 1.4826 * float(np.median(np.abs(own)))
        if spread <= 0:
            break
        scatter = np.maximum(1.0, np.abs(own) / (FAR_OFF * spread)) ** 2
        solved = _solve(correlation + np.diag(drift.own_share * (scatter - 1)), logs, owners)
    return solved.levels, solved.errors


def find_drift(logs: Array, owners: NDArray[np.int_], times_s: Array) -> Drift:
    """The constants of highest restricted likelihood on a grid; none where no experiment was visited twice."""
    again = np.flatnonzero(np.bincount(owners, minlength=1)[owners] >= 2)
    if not len(again):
        return Drift()
    if len(again) > MOST_FOR_CONSTANTS:
        # Those of some experiments, with all their blocks.
        again = again[np.argsort(owners[again], kind="stable")[:MOST_FOR_CONSTANTS]]
    _, chosen = np.unique(owners[again], return_inverse=True)
    clipped = _clip_strays(logs[again], chosen)
    best, found = -math.inf, Drift()
    for drift in _grid():
        likelihood = _solve(drift.correlation(times_s[again]), clipped, chosen).restricted_likelihood
        # Ties go to the first, which has the least drift.
        if likelihood > best + 1e-9:
            best, found = likelihood, drift
    return found


def _grid() -> Iterator[Drift]:
    yield Drift()
    for fast_s, slow_s, fast_share, slow_share in itertools.product(FAST_S, SLOW_S, SHARES, SHARES):
        if 0 < fast_share + slow_share <= MAX_SHARE:
            yield Drift(fast_share=fast_share, fast_s=fast_s, slow_share=slow_share, slow_s=slow_s)


def _clip_strays(logs: Array, owners: NDArray[np.int_]) -> Array:
    """A step that stood still would pass for scatter of all."""
    middles = np.array([np.median(logs[owners == owner]) for owner in range(owners.max() + 1)])
    off = logs - middles[owners]
    spread = 1.4826 * float(np.median(np.abs(off[off != 0]))) if np.any(off) else 0.0
    clipped: Array = middles[owners] + np.clip(off, -FAR_OFF * spread, FAR_OFF * spread)
    return clipped


@noun
class _Solved:
    levels: Array
    errors: Array
    """Standard errors of the levels less their mean."""
    weighted_left: Array
    """What the levels leave of each block, by the inverse of the correlation: times the own share, its own scatter."""
    restricted_likelihood: float
    """With the variance at its best, up to a constant."""


def _solve(correlation: Array, logs: Array, owners: NDArray[np.int_]) -> _Solved:
    """Generalised least squares of the blocks on their owners."""
    design = np.zeros((len(logs), owners.max() + 1))
    design[np.arange(len(logs)), owners] = 1.0
    factor = np.linalg.cholesky(correlation)
    white = np.linalg.solve(factor, np.column_stack([design, logs]))
    information = white[:, :-1].T @ white[:, :-1]
    covariance = np.linalg.inv(information)
    levels = covariance @ (white[:, :-1].T @ white[:, -1])
    left = white[:, -1] - white[:, :-1] @ levels
    free = len(logs) - design.shape[1]
    variance = float(left @ left) / free if free else 0.0
    likelihood = math.inf
    if variance > 0:
        log_determinants = 2 * np.log(np.diag(factor)).sum() + np.linalg.slogdet(information)[1]
        likelihood = float(-0.5 * (log_determinants + free * math.log(variance)))
    beside = np.diag(covariance) - 2 * covariance.mean(axis=0) + covariance.mean()
    return _Solved(
        levels=levels, errors=np.sqrt(np.maximum(beside, 0.0) * variance),
        weighted_left=np.linalg.solve(factor.T, left), restricted_likelihood=likelihood,
    )  # fmt: skip
