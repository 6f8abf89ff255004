"""Robust least squares on log time, with a level of its own for every device that the constants need not explain."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Constants = dict[str, float]

ROBUST = 0.1
"""Log errors beyond it count linearly: some rows are interpolations or noise."""
PRIOR_WEIGHT = 3.0
"""A prior weighs as much as this many rows of one robust width squared: enough where rows say nothing, little where they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is fitted: log seconds of rows by their constants."""

    predict: Callable[[Constants, NDArray[np.bool_]], Array]
    """Seconds of the chosen rows."""
    seconds: Array
    device: NDArray[np.str_]
    weight: Array
    priors: Mapping[str, tuple[float, float]]
    """Value and log_sigma of what is known beforehand."""
    limits: Mapping[str, float]
    """The most that a constant may be."""
    level_log_sigma: float = 0.07
    """Of a device's level beside the law."""


def solve(problem: Problem, start: Constants, free: Sequence[str], *, chosen: NDArray[np.bool_],
          max_calls: int = 60) -> Constants:  # fmt: skip
    """The constants that fit the chosen rows; constants that are not free stay as they start."""
    from scipy.optimize import least_squares

    names, device = list(free), problem.device[chosen]
    groups = np.unique(device)
    place = np.searchsorted(groups, device)
    measured, weight = np.log(problem.seconds[chosen]), problem.weight[chosen]

    def read(values: Array) -> Constants:
        return {**start, **{name: float(np.exp(value)) for name, value in zip(names, values, strict=False)}}

    def residuals(values: Array) -> Array:
        levels = values[len(names) :]
        error = (np.log(problem.predict(read(values), chosen)) - measured + levels[place]) * weight
        prior = [
            PRIOR_WEIGHT * (values[names.index(name)] - np.log(value)) / sigma
            for name, (value, sigma) in problem.priors.items()
            if name in names
        ]
        return np.concatenate([error, np.array(prior), PRIOR_WEIGHT * levels / problem.level_log_sigma])

    top = np.array([np.log(problem.limits[name]) if name in problem.limits else 30.0 for name in names])
    first = np.minimum(np.log([start[name] for name in names]), top - 1e-4)
    zeros = np.zeros(len(groups))
    found = least_squares(
        residuals, np.concatenate([first, zeros]), loss="soft_l1", f_scale=ROBUST, max_nfev=max_calls, x_scale=0.1,
        bounds=(np.concatenate([np.full(len(names), -40.0), zeros - 1.0]), np.concatenate([top, zeros + 1.0])),
    )  # fmt: skip
    return read(found.x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Errors of one group of rows."""

    num_rows: int
    mean: float
    median: float
    p90: float
    bias: float

    def __str__(self) -> str:
        return (
            f"n {self.num_rows:5}  mean {self.mean:6.1%}  median {self.median:6.1%}  p90 {self.p90:6.1%}"
            f"  bias {self.bias:+6.1%}"
        )


def score(predicted: Array, measured: Array) -> Scores:
    error = predicted / measured - 1.0
    size = np.abs(error)
    return Scores(
        num_rows=len(error), mean=float(size.mean()), median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)), bias=float(np.median(error)),
    )  # fmt: skip
