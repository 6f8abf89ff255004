"""CherryPick (Alipourfard et al., NSDI 2017): find a cheap configuration by running few, with a Gaussian process for the rest."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput

Array = NDArray[np.float64]

NUM_STARTS = 3
MIN_RUNS = 6
STOP_SHARE = 0.1
"""It stops when the expected improvement is below this share of the best cost, after at least six runs, as its authors do."""
NOISE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search chose and what it paid for it, both in the unit of the costs."""

    chosen: int
    cost: float
    search_cost: float
    runs: tuple[int, ...]
    """In the order in which they were done."""


def matern(left: Array, right: Array, *, length: float) -> Array:
    """Matern 5/2 on rows."""
    distance = np.sqrt(np.maximum(((left[:, None] - right[None]) ** 2).sum(axis=2), 0.0)) * math.sqrt(5) / length
    return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance))


def posterior(known: Array, values: Array, asked: Array, *, length: float, noise: float = NOISE) -> tuple[Array, Array]:
    """Mean and standard deviation of the process at the asked rows; values have mean 0 and variance 1."""
    kernel = matern(known, known, length=length) + noise**2 * np.eye(len(known))
    cross = matern(asked, known, length=length)
    solved = np.linalg.solve(kernel, np.column_stack([values, cross.T]))
    mean = cross @ solved[:, 0]
    variance = 1.0 - np.einsum("ij,ji->i", cross, solved[:, 1:])
    return np.asarray(mean), np.asarray(np.sqrt(np.maximum(variance, 1e-12)))


def expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Of the smallest value (Mockus 1975)."""
    gain = best - mean
    z = gain / deviation
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return np.asarray(gain * below + deviation * density)


def cherrypick(features: Sequence[Sequence[float]], run: Callable[[int], float], *, max_runs: int | None = None,
               seed: int = 0) -> Found:  # fmt: skip
    """Search for the configuration with the least cost; `run` measures one and says its cost.

    Costs are searched as logarithms, features are brought to [0, 1]; the length of the kernel is the likeliest of a few.
    """
    rows = np.asarray(features, dtype=np.float64)
    if rows.ndim != 2 or not len(rows):
        raise InvalidInput("no configurations to search; give one row of features for each")
    low, span = rows.min(axis=0), np.ptp(rows, axis=0)
    rows = (rows - low) / np.where(span > 0, span, 1)
    limit = min(max_runs or len(rows), len(rows))
    order = np.random.default_rng(seed).permutation(len(rows))[: min(NUM_STARTS, limit)].tolist()
    costs = {index: run(index) for index in order}
    while len(costs) < limit:
        left = [index for index in range(len(rows)) if index not in costs]
        logs = np.log([costs[index] for index in costs])
        center, scale = logs.mean(), max(float(logs.std()), 1e-6)
        known, values = rows[list(costs)], (logs - center) / scale
        length = max((0.2, 0.5, 1.0, 2.0), key=lambda each: _likelihood(known, values, each))
        mean, deviation = posterior(known, values, rows[left], length=length)
        gains = expected_improvement(mean, deviation, float(values.min()))
        best = int(np.argmax(gains))
        # On logarithms a gain of x is a share of x of the best cost.
        if len(costs) >= min(MIN_RUNS, limit) and gains[best] * scale < STOP_SHARE:
            break
        costs[left[best]] = run(left[best])
    chosen = min(costs, key=lambda index: costs[index])
    return Found(chosen=chosen, cost=costs[chosen], search_cost=sum(costs.values()), runs=tuple(costs))


def _likelihood(known: Array, values: Array, length: float) -> float:
    kernel = matern(known, known, length=length) + NOISE**2 * np.eye(len(known))
    _, log_determinant = np.linalg.slogdet(kernel)
    return float(-0.5 * values @ np.linalg.solve(kernel, values) - 0.5 * log_determinant)
