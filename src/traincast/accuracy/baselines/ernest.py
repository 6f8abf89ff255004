"""Ernest (Venkataraman et al., NSDI 2016): time = a + b size / machines + c log machines + d machines, all >= 0."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from traincast.accuracy.baselines.work import Rate, catalogue_rate, peak_of, transformer_flop
from traincast.accuracy.cases import Case, Measured

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


def _terms(case: Case, size: float) -> NDArray[np.float64]:
    machines = case.n_gpus or 1
    return np.array([1.0, size / machines, np.log(machines), machines])
