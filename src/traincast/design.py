"""Chooses which experiments are worth their price: rows of a feature matrix and a budget to a short list of rows."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from traincast.errors import InvalidInput
from traincast.noun import noun

RIDGE = 1e-3
"""Information assumed in every direction before anything is measured, on columns of unit scale."""

MAX_EXCHANGES = 200

Array = NDArray[np.float64]


@noun
class DesignChoice:
    """One row that a design would measure next, what it costs and what it adds."""

    row: int
    cost: float
    gain: float
    """Increase of the log-determinant of the information matrix."""


def d_optimal(
    features: ArrayLike,
    *,
    budget: float,
    costs: ArrayLike | None = None,
    ridge: float = RIDGE,
    forbidden: Iterable[int] = (),
    measured: Iterable[int] = (),
    exchange: bool = True,
    scaled: bool = True,
) -> list[int]:
    """Rows that shrink the uncertainty of a linear model most: they maximise log det(X'X + ridge) within the budget.

    `budget` is in the unit of `costs`; without costs it is a number of rows. Rows already `measured` count as known and
    are not chosen again. The best rows per cost come first, so a prefix is a good smaller design. Greedy choice, then
    exchanges (Fedorov 1972) until none improves. Columns are brought to unit scale unless `scaled` is False: then the
    ridge is the prior precision of coefficients that have a scale of their own.
    """
    problem = _Problem.of(
        features, budget=budget, costs=costs, ridge=ridge, forbidden=forbidden, measured=measured, scaled=scaled
    )
    # Greedy per cost alone can spend all on cheap rows; the better of both greedy rules is within a constant of
    # the best (Leskovec et al. 2007).
    plans = [_grow(problem, [], per_cost=True)]
    if problem.has_costs:
        plans.append(_grow(problem, [], per_cost=False))
    if exchange:
        plans = [_exchange(problem, rows) for rows in plans]
    best = max(plans, key=lambda rows: problem.value(rows))
    return _order(problem, best)


def a_optimal(
    features: ArrayLike,
    *,
    budget: float,
    costs: ArrayLike | None = None,
    ridge: float = RIDGE,
    forbidden: Iterable[int] = (),
    measured: Iterable[int] = (),
    targets: ArrayLike | None = None,
    scaled: bool = True,
) -> list[int]:
    """Rows that minimise the summed variance of the coefficients, or of the predictions for the rows of `targets`."""
    problem = _Problem.of(
        features, budget=budget, costs=costs, ridge=ridge, forbidden=forbidden, measured=measured, scaled=scaled
    )
    inverse = problem.start_inverse()
    leverages = _leverages(problem.rows, inverse)
    # Covariances of every row with what is to be forecast; many targets act like the few columns of a factor of theirs.
    covariances = problem.rows @ inverse
    if targets is not None:
        covariances = covariances @ _factor(_matrix(targets) / problem.scale)
    chosen: list[int] = []
    free = problem.free.copy()
    left = problem.budget
    while True:
        affordable = free & (problem.costs <= left * (1 + 1e-12))
        if not affordable.any():
            return chosen
        fall = (covariances**2).sum(axis=1) / (1 + leverages)
        row = int(np.argmax(np.where(affordable, fall / problem.costs, -np.inf)))
        chosen.append(row)
        free[row] = False
        left -= problem.costs[row]
        direction = inverse @ problem.rows[row]
        along = problem.rows @ direction / (1 + leverages[row])
        covariances = covariances - np.outer(along, covariances[row])
        leverages = np.maximum(leverages - along * (problem.rows @ direction), 0.0)
        inverse = _added(inverse, problem.rows[row])


def random_design(
    num_rows: int,
    *,
    budget: float,
    costs: ArrayLike | None = None,
    forbidden: Iterable[int] = (),
    measured: Iterable[int] = (),
    seed: int = 0,
) -> list[int]:
    """Rows in random order, as many as the budget pays for: what any design has to beat."""
    problem = _Problem.of(
        np.ones((num_rows, 1)), budget=budget, costs=costs, ridge=1.0, forbidden=forbidden, measured=measured
    )
    chosen: list[int] = []
    left = problem.budget
    for row in np.random.default_rng(seed).permutation(num_rows):
        if problem.free[row] and problem.costs[row] <= left * (1 + 1e-12):
            chosen.append(int(row))
            left -= problem.costs[row]
    return chosen


def k_medoids(
    points: ArrayLike,
    *,
    budget: float,
    costs: ArrayLike | None = None,
    forbidden: Iterable[int] = (),
    measured: Iterable[int] = (),
) -> list[int]:
    """Rows that the others lie near: each time the one after which the mean distance of all rows from the nearest chosen or
    measured one falls most for its cost (Kaufman and Rousseeuw 1990, the first half of their k-medoids).

    For few runs of whole workloads, where an extreme one tells more about itself than about the rest. Columns keep their scale.
    """
    problem = _Problem.of(
        points, budget=budget, costs=costs, ridge=1.0, forbidden=forbidden, measured=measured, scaled=False
    )
    apart = _distances(problem.rows)
    nearest = np.full(len(apart), apart.max())
    for row in _indices(measured, len(apart), "measured"):
        nearest = np.minimum(nearest, apart[:, row])
    chosen: list[int] = []
    free, left = problem.free.copy(), problem.budget
    while True:
        affordable = free & (problem.costs <= left * (1 + 1e-12))
        if not affordable.any():
            return chosen
        fall = np.maximum(nearest[:, None] - apart, 0.0).mean(axis=0)
        row = int(np.argmax(np.where(affordable, fall / problem.costs, -np.inf)))
        chosen.append(row)
        free[row] = False
        left -= problem.costs[row]
        nearest = np.minimum(nearest, apart[:, row])


def mean_distances(points: ArrayLike, rows: Sequence[int], *, measured: Iterable[int] = ()) -> list[float]:
    """Of all rows from the nearest measured or chosen one: before anything is chosen, then after each of `rows`. Without a
    measured row the first is the largest distance that there is."""
    apart = _distances(_matrix(points))
    nearest = np.full(len(apart), apart.max())
    for row in _indices(measured, len(apart), "measured"):
        nearest = np.minimum(nearest, apart[:, row])
    found = [float(nearest.mean())]
    for row in rows:
        nearest = np.minimum(nearest, apart[:, row])
        found.append(float(nearest.mean()))
    return found


def information(features: ArrayLike, rows: Iterable[int], *, ridge: float = RIDGE) -> float:
    """log det of the information matrix of these rows, on columns of unit scale."""
    matrix, _ = _scaled(features)
    return _log_det(_gram(matrix[list(rows)]) + ridge * np.eye(matrix.shape[1]))


def explain(features: ArrayLike, rows: Sequence[int], *, costs: ArrayLike | None = None, ridge: float = RIDGE,
            measured: Iterable[int] = ()) -> list[DesignChoice]:  # fmt: skip
    """What each row of a design costs and adds, in the order given."""
    problem = _Problem.of(features, budget=math.inf, costs=costs, ridge=ridge, forbidden=(), measured=measured)
    inverse = problem.start_inverse()
    choices = []
    for row in rows:
        vector = problem.rows[row]
        gain = math.log1p(float(vector @ inverse @ vector))
        choices.append(DesignChoice(row=int(row), cost=float(problem.costs[row]), gain=gain))
        inverse = _added(inverse, vector)
    return choices


def prediction_spread(features: ArrayLike, rows: Iterable[int], *, ridge: float = RIDGE) -> Array:
    """Standard deviation of the prediction of every row, in units of the noise of one measurement."""
    matrix, _ = _scaled(features)
    information_matrix = _gram(matrix[list(rows)]) + ridge * np.eye(matrix.shape[1])
    return np.sqrt(_leverages(matrix, _inverse(information_matrix)))


@noun
class _Problem:
    rows: Array
    scale: Array
    costs: Array
    budget: float
    ridge: float
    free: NDArray[np.bool_]
    start: Array
    has_costs: bool

    @classmethod
    def of(
        cls,
        features: ArrayLike,
        *,
        budget: float,
        costs: ArrayLike | None,
        ridge: float,
        forbidden: Iterable[int],
        measured: Iterable[int],
        scaled: bool = True,
    ) -> "_Problem":
        rows, scale = _scaled(features) if scaled else _unscaled(features)
        num_rows, num_columns = rows.shape
        prices = np.ones(num_rows) if costs is None else np.asarray(costs, dtype=np.float64)
        if prices.shape != (num_rows,):
            raise InvalidInput(f"{num_rows} rows of features but costs of shape {prices.shape}; give one cost per row")
        if not (np.isfinite(prices).all() and (prices > 0).all()):
            raise InvalidInput("every cost must be a finite number above 0")
        if math.isnan(budget) or budget < 0:
            raise InvalidInput(f"budget = {budget}; it must be at least 0")
        if not ridge > 0:
            raise InvalidInput(f"ridge = {ridge}; it must be above 0, or a design of few rows has no determinant")
        known, closed = _indices(measured, num_rows, "measured"), _indices(forbidden, num_rows, "forbidden")
        free = np.ones(num_rows, dtype=bool)
        free[known] = False
        free[closed] = False
        start = _gram(rows[known]) + ridge * np.eye(num_columns)
        return cls(
            rows=rows, scale=scale, costs=prices, budget=budget, ridge=ridge, free=free, start=start,
            has_costs=costs is not None,
        )  # fmt: skip

    def start_inverse(self) -> Array:
        return _inverse(self.start)

    def inverse(self, chosen: Sequence[int]) -> Array:
        return _inverse(self.start + _gram(self.rows[list(chosen)]))

    def value(self, chosen: Sequence[int]) -> float:
        return _log_det(self.start + _gram(self.rows[list(chosen)]))


def _grow(problem: _Problem, chosen: Sequence[int], *, per_cost: bool) -> list[int]:
    """Add the best affordable row until none is left."""
    rows = list(chosen)
    inverse = problem.inverse(rows)
    leverages = _leverages(problem.rows, inverse)
    free = problem.free.copy()
    free[rows] = False
    left = problem.budget - float(problem.costs[rows].sum())
    while True:
        affordable = free & (problem.costs <= left * (1 + 1e-12))
        if not affordable.any():
            return rows
        worth = np.log1p(leverages) / (problem.costs if per_cost else 1.0)
        row = int(np.argmax(np.where(affordable, worth, -np.inf)))
        rows.append(row)
        free[row] = False
        left -= float(problem.costs[row])
        direction = inverse @ problem.rows[row]
        leverages = leverages - (problem.rows @ direction) ** 2 / (1 + leverages[row])
        inverse = _added(inverse, problem.rows[row])


def _exchange(problem: _Problem, chosen: Sequence[int]) -> list[int]:
    """Swap a chosen row for a free one while the determinant grows and the budget holds, and fill what remains."""
    rows = list(chosen)
    for _ in range(MAX_EXCHANGES):
        if not rows:
            return rows
        inverse = problem.inverse(rows)
        leverages = _leverages(problem.rows, inverse)
        cross = problem.rows[rows] @ inverse @ problem.rows.T
        # det(M - x_i x_i' + x_j x_j') / det(M), Fedorov (1972).
        ratio = (1 - leverages[rows])[:, None] * (1 + leverages)[None, :] + cross**2
        spent = float(problem.costs[rows].sum())
        fits = spent - problem.costs[rows][:, None] + problem.costs[None, :] <= problem.budget * (1 + 1e-12)
        taken = ~problem.free
        taken[rows] = True
        ratio = np.where(fits & ~taken[None, :], ratio, -np.inf)
        best = int(np.argmax(ratio))
        out, enter = divmod(best, ratio.shape[1])
        if not ratio[out, enter] > 1 + 1e-9:
            return rows
        rows[out] = enter
        rows = _grow(problem, rows, per_cost=False)
    return rows


def _order(problem: _Problem, chosen: Sequence[int]) -> list[int]:
    """The same rows, the most informative per cost first."""
    places = np.array(sorted(chosen), dtype=np.intp)
    if not len(places):
        return []
    rows, costs = problem.rows[places], problem.costs[places]
    inverse = problem.start_inverse()
    leverages = _leverages(rows, inverse)
    waiting = np.ones(len(places), dtype=bool)
    ordered: list[int] = []
    while waiting.any():
        best = int(np.argmax(np.where(waiting, np.log1p(leverages) / costs, -np.inf)))
        waiting[best] = False
        ordered.append(int(places[best]))
        direction = inverse @ rows[best]
        leverages = np.maximum(leverages - (rows @ direction) ** 2 / (1 + leverages[best]), 0.0)
        inverse = _added(inverse, rows[best])
    return ordered


def _scaled(features: ArrayLike) -> tuple[Array, Array]:
    """Columns brought to a root mean square of one: a ridge then means the same for each of them."""
    matrix = _matrix(features)
    scale = np.sqrt(np.mean(matrix**2, axis=0)) if len(matrix) else np.ones(matrix.shape[1])
    scale = np.where(scale > 0, scale, 1.0)
    return matrix / scale, scale


def _unscaled(features: ArrayLike) -> tuple[Array, Array]:
    matrix = _matrix(features)
    return matrix, np.ones(matrix.shape[1])


def _matrix(features: ArrayLike) -> Array:
    matrix = np.asarray(features, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise InvalidInput(
            f"features have the shape {matrix.shape}; give one row per candidate and one column per feature"
        )
    if not np.isfinite(matrix).all():
        raise InvalidInput("features hold a value that is not finite")
    return matrix


def _indices(rows: Iterable[int], num_rows: int, name: str) -> list[int]:
    indices = [int(row) for row in rows]
    wrong = next((row for row in indices if not 0 <= row < num_rows), None)
    if wrong is not None:
        raise InvalidInput(f"{name} names row {wrong}; rows are 0..{num_rows - 1}")
    return indices


def _gram(matrix: Array) -> Array:
    return np.asarray(matrix.T @ matrix, dtype=np.float64)


def _distances(rows: Array) -> Array:
    squares = (rows**2).sum(axis=1)
    return np.asarray(np.sqrt(np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0.0)), dtype=np.float64)


def _leverages(rows: Array, inverse: Array) -> Array:
    return np.asarray(np.maximum(((rows @ inverse) * rows).sum(axis=1), 0.0), dtype=np.float64)


def _factor(targets: Array) -> Array:
    """L with L L' = T'T and no more columns than T has."""
    if len(targets) <= targets.shape[1]:
        return np.asarray(targets.T, dtype=np.float64)
    triangle = np.asarray(np.linalg.qr(targets, mode="r"), dtype=np.float64)
    return triangle.T


def _added(inverse: Array, row: Array) -> Array:
    """The inverse after one more row (Sherman and Morrison 1950)."""
    direction = inverse @ row
    return np.asarray(inverse - np.outer(direction, direction) / (1 + row @ direction), dtype=np.float64)


def _inverse(matrix: Array) -> Array:
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def _log_det(matrix: Array) -> float:
    return float(np.linalg.slogdet(matrix)[1])
