"""Forecasts and searches to rows, and to frames of pandas or polars where one is installed."""

import importlib
from collections.abc import Sequence
from typing import Any

from traincast.errors import InvalidInput, MissingExtra
from traincast.plan import Plan, Search
from traincast.spec import Forecast

LIBRARIES = ("pandas", "polars")


def list_rows(results: Forecast | Search | Sequence[Forecast | Plan]) -> list[dict[str, Any]]:
    """One row of plain numbers for each forecast or plan; columns carry their units."""
    if isinstance(results, Forecast):
        return [_row(results)]
    if isinstance(results, Search):
        listed = [*results.plans, *(plan for plan in results.front if plan not in results.plans)]
        return [_plan_row(plan) for plan in listed]
    return [_plan_row(each) if isinstance(each, Plan) else _row(each) for each in results]


def make_frame(results: Forecast | Search | Sequence[Forecast | Plan], *, library: str | None = None) -> Any:
    """A data frame: of the named library, else of the first that is installed."""
    if library is not None and library not in LIBRARIES:
        raise InvalidInput(f"library = {library!r}; allowed: {', '.join(LIBRARIES)}")
    rows = list_rows(results)
    for name in (library,) if library else LIBRARIES:
        try:
            return importlib.import_module(name).DataFrame(rows)
        except ImportError:
            continue
    raise MissingExtra(library or "pandas", "frames", "a data frame")


def _row(answer: Forecast) -> dict[str, Any]:
    memory, usd = answer.memory, answer.usd
    return {
        "workload": answer.workload,
        "cluster": answer.cluster,
        "device": answer.device,
        "num_devices": answer.num_devices,
        "global_batch": answer.global_batch,
        "step_s": answer.step.seconds,
        "step_low_s": answer.step.low_s,
        "step_high_s": answer.step.high_s,
        "samples_per_s": answer.samples_per_s,
        "utilization": answer.utilization,
        "job_s": answer.job.total.seconds,
        "usd": None if usd is None else usd.value,
        "energy_joules": answer.energy_joules,
        "memory_bytes": memory.needed_bytes,
        "capacity_bytes": memory.capacity_bytes,
        "fit_probability": memory.fit_probability,
        "fits": memory.fits,
    }


def _plan_row(plan: Plan) -> dict[str, Any]:
    degrees = plan.parallelism
    names = ("data", "tensor", "pipeline", "context", "expert", "micro_batches", "zero", "recompute")
    return {
        **_row(plan.forecast),
        "batch": plan.batch,
        **{name: getattr(degrees, name) for name in names},
        "deadline_probability": plan.deadline_probability,
        "on_front": plan.on_front,
    }
