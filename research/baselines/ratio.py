"""Peak ratio: carry a step over from other devices by the square root of peak FLOP rate times memory bandwidth."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from research.baselines.work import catalogue_rate
from traincast.accuracy import Case, Measured

Speed = Callable[[Case], float | None]


def catalogue_speed(case: Case) -> float | None:
    """sqrt(peak x bandwidth), half precision or fp32/tf32 as the case asks."""
    from traincast import catalog
    from traincast.errors import UnknownName

    dtypes = ("fp16",) if case.dtype == "fp16_amp" else ("tf32", "fp32")
    rate = next((rate for rate in (catalogue_rate(case.gpu, dtype) for dtype in dtypes) if rate), None)
    try:
        bandwidth = catalog.device(case.gpu).memory_bytes_per_s
    except UnknownName:
        return None
    if rate is None:
        rate = catalogue_rate(case.gpu, "fp32")
    return math.sqrt(rate * bandwidth) if rate else None


def scale_by_peak_and_bandwidth(
    known: Sequence[Measured], asked: Sequence[Case], *, speed: Speed = catalogue_speed
) -> list[float | None]:
    """The median over other devices of the same model, precision class and number of devices."""
    norms: dict[tuple[str | None, bool, int | None], list[tuple[str, float]]] = {}
    for row in known:
        rate, batch = speed(row.case), row.case.micro_batch
        if rate and batch:
            norms.setdefault(_class_of(row.case), []).append((row.case.gpu, row.step_s / batch * rate))
    answers: list[float | None] = []
    for case in asked:
        others = [norm for gpu, norm in norms.get(_class_of(case), []) if gpu != case.gpu]
        rate = speed(case)
        known_enough = others and rate and case.micro_batch
        answers.append(float(np.median(others)) / (rate or 1.0) * (case.micro_batch or 0.0) if known_enough else None)
    return answers


def _class_of(case: Case) -> tuple[str | None, bool, int | None]:
    return case.model, case.dtype == "fp16_amp", case.n_gpus
