"""Constant utilisation: the share of the peak that known runs reached is what every other run will reach."""

from collections.abc import Sequence

import numpy as np

from research.baselines.work import Rate, catalogue_rate, peak_of, transformer_flop
from traincast.accuracy import Case, Measured


def constant_utilization(
    known: Sequence[Measured], asked: Sequence[Case], *, rate: Rate = catalogue_rate
) -> list[float | None]:
    """The median utilisation of the known rows, applied to the FLOP of the asked ones."""
    ideal_known = [(_ideal_s(row.case, rate), row.step_s) for row in known]
    reached = [ideal_s / step_s for ideal_s, step_s in ideal_known if ideal_s is not None]
    if not reached:
        return [None] * len(asked)
    utilization = float(np.median(reached))
    ideal_asked = [_ideal_s(case, rate) for case in asked]
    return [None if ideal_s is None else ideal_s / utilization for ideal_s in ideal_asked]


def _ideal_s(case: Case, rate: Rate) -> float | None:
    flop, peak = transformer_flop(case), peak_of(case, rate)
    return None if flop is None or peak is None else flop / peak / (case.n_gpus or 1)
