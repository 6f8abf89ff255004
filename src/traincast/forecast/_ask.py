"""A question to its forecast: resolved, forecast, and answered with everything that was assumed."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traincast.cost import CostModel
from traincast.forecast._plain import forecast
from traincast.forecast._resolve import Resolved, resolve
from traincast.spec import Calibration, Forecast, Question

if TYPE_CHECKING:
    from traincast.resources import GraphCorrection


def ask(
    question: Question,
    *,
    costs: CostModel | None = None,
    calibration: Calibration | None = None,
    draw: bool = False,
    activity: "GraphCorrection | None" = None,
) -> Forecast:
    """The forecast of a question, with its assumptions. The same for commands, requests, job files and rows of tables."""
    resolved = resolve(question)
    learned = resolved.calibration if calibration is None else calibration
    found = answer(resolved, costs=costs, calibration=learned, draw=draw, activity=activity)
    return replace(found, origin=Origin(question=question, resolved=resolved, calibration=learned))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a forecast answers, so that it can be told in full."""

    question: Question
    resolved: Resolved
    calibration: Calibration | None = None


def answer(
    resolved: Resolved,
    *,
    costs: CostModel | None = None,
    calibration: Calibration | None = None,
    draw: bool = False,
    activity: "GraphCorrection | None" = None,
) -> Forecast:
    """The forecast of a resolved question. `calibration`: instead of the one that it names."""
    calibration = resolved.calibration if calibration is None else calibration
    found = forecast(
        resolved.job, resolved.cluster, resolved.parallelism, costs=costs, calibration=calibration, draw=draw,
        activity=activity,
    )  # fmt: skip
    found = replace(found, assumptions=resolved.assumptions, settings=resolved.settings)
    if resolved.frugal is None or found.memory.fits:
        return found
    full = replace(resolved.parallelism, recompute="full")
    frugal = forecast(resolved.frugal, resolved.cluster, full, costs=costs).memory
    if not frugal.fits:
        return found
    said = "it fits only if layers are run again, which is left open"
    memory = replace(found.memory, frugal_probability=frugal.fit_probability)
    return replace(found, memory=memory, assumptions=(*found.assumptions, said))
