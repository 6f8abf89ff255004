"""Ernest (Venkataraman et al., NSDI 2016): time = a + b size / machines + c log machines + d machines, all >= 0."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.baselines.work import Rate, catalogue_rate, peak_of, transformer_flop
from traincast.accuracy import Case, Measured
from traincast.errors import InvalidInput

Size = Callable[[Case], float | None]
_MIN_ROWS = 5


def ernest(known: Sequence[Measured], asked: Sequence[Case], *, size: Size) -> list[float | None]:
    """Fit relative errors on the known rows and answer the asked ones."""
    usable = [row for row in known if size(row.case) is not None]
    if len(usable) < _MIN_ROWS:
        return [None] * len(asked)
    design = np.array([_terms(row.case, size(row.case) or 0.0) for row in usable])
    scale = np.abs(design).max(axis=0)
    scale[scale == 0] = 1
    steps_s = np.array([row.step_s for row in usable])
    weights = nonnegative_least_squares(design / scale / steps_s[:, None], np.ones(len(usable)))
    answers: list[float | None] = []
    for case in asked:
        amount = size(case)
        answers.append(None if amount is None else float(_terms(case, amount) / scale @ weights))
    return answers


def ernest_by_batch(known: Sequence[Measured], asked: Sequence[Case]) -> list[float | None]:
    """One model per job (cluster and workload), with the global batch as size, as its authors use it."""
    answers: list[float | None] = [None] * len(asked)
    for job in {job_of(case) for case in asked}:
        places = [index for index, case in enumerate(asked) if job_of(case) == job]
        own = [row for row in known if job_of(row.case) == job]
        for place, answer in zip(
            places, ernest(own, [asked[place] for place in places], size=lambda case: case.global_batch), strict=True
        ):
            answers[place] = answer
    return answers


def ernest_by_flop(
    known: Sequence[Measured], asked: Sequence[Case], *, rate: Rate = catalogue_rate
) -> list[float | None]:
    """One model for all, with the arithmetic at the device's peak as size."""

    def size(case: Case) -> float | None:
        flop, peak = transformer_flop(case), peak_of(case, rate)
        return None if flop is None or peak is None else flop / peak

    return ernest(known, asked, size=size)


def job_of(case: Case) -> tuple[str, str]:
    """Repeats of one cluster (sia_dgx, sia_dgx-ext) are the same cluster."""
    return (case.source or "").removesuffix("-ext"), case.model or ""


def nonnegative_least_squares(design: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The exact solution by trying every set of active columns: there are at most a handful."""
    num_columns = design.shape[1]
    best, least = np.zeros(num_columns), float(target @ target)
    for count in range(1, num_columns + 1):
        for chosen in itertools.combinations(range(num_columns), count):
            solution = np.linalg.lstsq(design[:, chosen], target, rcond=None)[0]
            if (solution < 0).any():
                continue
            rest = design[:, chosen] @ solution - target
            if float(rest @ rest) < least - 1e-12:
                least = float(rest @ rest)
                best = np.zeros(num_columns)
                best[list(chosen)] = solution
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One configuration of a job: its size and its machines."""

    size: float
    machines: int

    @property
    def terms(self) -> NDArray[np.float64]:
        return ernest_terms(self.size, self.machines)


def fit_ernest(runs: Sequence[Run], seconds: Sequence[float]) -> NDArray[np.float64]:
    """The four coefficients from measured runs of one job, by relative errors."""
    if not runs:
        raise InvalidInput("Ernest learns from runs of the job itself; give at least one")
    measured = np.asarray(seconds, dtype=np.float64)
    design = np.array([run.terms for run in runs]) / measured[:, None]
    scale = np.abs(design).max(axis=0)
    scale[scale == 0] = 1
    return np.asarray(nonnegative_least_squares(design / scale, np.ones(len(runs))) / scale)


def choose_runs(candidates: Sequence[Run], costs: Sequence[float], *, budget: float, keep: float = 0.3) -> list[int]:
    """Ernest's A-optimal design: shares in [0, 1] that minimise the trace of the inverse information within the budget.

    The convex problem of its section 4, solved by projected gradient steps instead of a solver package; runs with a share above
    `keep` are done, as its authors round.
    """
    rows = np.array([run.terms for run in candidates])
    rows = rows / np.abs(rows).max(axis=0).clip(1e-12)
    prices = np.asarray(costs, dtype=np.float64)
    if len(prices) != len(rows) or not (prices > 0).all() or not budget > 0:
        raise InvalidInput(
            f"{len(rows)} candidate runs with {len(prices)} costs and a budget of {budget}; costs are above 0"
        )
    shares = _within(np.full(len(rows), 0.5), prices, budget)
    step, value = 1.0, _trace(rows, shares)
    for _ in range(400):
        inverse = np.linalg.inv(_information(rows, shares))
        slope = -((rows @ inverse) ** 2).sum(axis=1)
        trial = _within(shares - step * slope / np.abs(slope).max(), prices, budget)
        reached = _trace(rows, trial)
        if reached < value:
            settled = value - reached < 1e-5 * value
            shares, step, value = trial, step * 1.5, reached
            if settled:
                break
        else:
            step /= 2
            if step < 1e-6:
                break
    return [index for index, share in enumerate(shares.tolist()) if share > keep]


def _information(rows: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    # The tiny ridge keeps jobs whose candidates cannot tell all four terms apart solvable.
    return np.asarray(rows.T @ (shares[:, None] * rows) + 1e-6 * np.eye(rows.shape[1]))


def _trace(rows: NDArray[np.float64], shares: NDArray[np.float64]) -> float:
    return float(np.trace(np.linalg.inv(_information(rows, shares))))


def _within(shares: NDArray[np.float64], costs: NDArray[np.float64], budget: float) -> NDArray[np.float64]:
    """The nearest shares in [0, 1] that the budget pays for."""
    inside = shares.clip(0, 1)
    if inside @ costs <= budget:
        return inside
    low, high = 0.0, float((shares / costs).max())
    for _ in range(60):
        middle = (low + high) / 2
        if (shares - middle * costs).clip(0, 1) @ costs > budget:
            low = middle
        else:
            high = middle
    return (shares - high * costs).clip(0, 1)


def ernest_terms(size: float, machines: int) -> NDArray[np.float64]:
    return np.array([1.0, size / machines, np.log(machines), machines])


def _terms(case: Case, size: float) -> NDArray[np.float64]:
    return ernest_terms(size, case.n_gpus or 1)
