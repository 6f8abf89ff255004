"""What the labels allow: how far measured steps are from what a quiet machine would show, so how well a perfect forecast scores.

Every step was measured in one block or several on a shared machine. Inside a block repeats scatter; between blocks the machine
drifts for tens of seconds, which shows as errors that unrelated workloads measured one after the other have in common. A label
made of several blocks, drift taken out, comes with its own standard error (`traincast.profile._drift`).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from research.corpus import CorpusStep
from traincast.errors import InvalidInput

Array = NDArray[np.float64]

NEIGHBOURS_S = 15.0
"""Blocks that began within this time of each other saw the same machine."""
MIN_REPEATS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviations of log labels."""

    num_blocks: int
    within: float
    """Of a block's median, from the medians of its two halves."""
    drift: float
    """What blocks of different architectures, measured one after the other, miss together."""
    num_pairs: int
    again: float | None
    """Of one block against another of the same experiment; None where too few were measured twice."""
    num_again: int
    often: float | None = None
    """Median standard error of the labels of steps visited often, drift taken out; None where there are none."""
    num_often: int = 0

    @property
    def sigma(self) -> float:
        """Of a label of one block."""
        return math.hypot(self.within, self.drift)


def perfect_error(steps: Sequence[CorpusStep], noise: Noise | None) -> float | None:
    """The mean of |forecast - measured| / measured where the forecast is what a quiet machine shows."""
    if noise is None or not steps:
        return None
    normal = _normal((np.arange(200) + 0.5) / 200)
    return float(np.mean([np.abs(np.exp(-sigma * normal) - 1).mean() for sigma in _sigmas(steps, noise)]))


def perfect_rmse_s(steps: Sequence[CorpusStep], noise: Noise | None) -> float | None:
    """Of a forecast of these labels that is what a quiet machine shows."""
    if noise is None or not steps:
        return None
    missed_s = [sigma * step.seconds for sigma, step in zip(_sigmas(steps, noise), steps, strict=True)]
    return float(np.sqrt(np.mean(np.square(missed_s))))


def _sigmas(steps: Sequence[CorpusStep], noise: Noise) -> list[float]:
    """Of the logarithm of each label: its own standard error where it was visited again, one block's otherwise."""
    return [noise.sigma if len(step.blocks) < 2 or step.noise is None else step.noise for step in steps]


def measure_noise(steps: Sequence[CorpusStep], forecast_s: Sequence[float]) -> Noise | None:
    """`forecast_s`: of each step by a model that saw nothing of its architecture; only what neighbours in time miss together
    counts, not how much it misses. None for steps without their repeats."""
    if len(steps) != len(forecast_s):
        raise InvalidInput(f"{len(steps)} steps and {len(forecast_s)} forecasts; give one for each")
    halves = [half for step in steps for block in step.blocks if (half := _halves(block.wall_s)) is not None]
    if not halves:
        return None
    again = [math.log(one.seconds / other.seconds) for step in steps for one, other in itertools.pairwise(step.blocks)]
    often = [step.noise for step in steps if step.visited_often and step.noise is not None]
    shared = _shared_errors(steps, np.log([step.seconds for step in steps]) - np.log(forecast_s))
    return Noise(
        num_blocks=sum(len(step.blocks) for step in steps),
        # Two halves differ by twice the variance of a half, which is twice that of the whole.
        within=_deviation(halves) / 2,
        drift=math.sqrt(max(float(np.mean(shared)), 0.0)) if shared else 0.0,
        num_pairs=len(shared),
        again=_deviation(again) / math.sqrt(2) if len(again) >= 20 else None,
        num_again=len(again),
        often=float(np.median(often)) if often else None,
        num_often=len(often),
    )


def _halves(wall_s: Sequence[float]) -> float | None:
    if len(wall_s) < MIN_REPEATS:
        return None
    middle = len(wall_s) // 2
    return math.log(float(np.median(wall_s[:middle])) / float(np.median(wall_s[middle:])))


def _shared_errors(steps: Sequence[CorpusStep], errors: Array) -> list[float]:
    """Products of the errors of neighbours in time; what a setting misses as a whole is taken out first."""
    settings = np.array([step.setting.name for step in steps])
    left = errors.copy()
    for name in set(settings.tolist()):
        left[settings == name] -= np.median(errors[settings == name])
    # One stray label (a step that stood still) would decide alone.
    left = np.clip(left, -0.5, 0.5)
    timed = sorted(
        (datetime.fromisoformat(step.blocks[0].started_at).timestamp(), place)
        for place, step in enumerate(steps)
        if len(step.blocks) == 1
    )
    return [
        float(left[one] * left[other])
        for (began, one), (then, other) in itertools.pairwise(timed)
        if then - began < NEIGHBOURS_S and steps[one].name != steps[other].name
    ]


def _deviation(values: Sequence[float]) -> float:
    """Of normal errors with as large a middle: strays do not count."""
    return 1.4826 * float(np.median(np.abs(values)))


def _normal(quantiles: Array) -> Array:
    from statistics import NormalDist

    return np.array([NormalDist().inv_cdf(value) for value in quantiles.tolist()])
