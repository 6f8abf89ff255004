"""Jobs and resolved questions to their forecasts, which share an engine between them and say everything that was assumed."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from traincast.cost import CostModel
from traincast.errors import InvalidInput
from traincast.forecast._engine import Engine, Shown
from traincast.noun import noun
from traincast.resolve import Resolved
from traincast.spec import Calibration, Cluster, Forecast, Job, Parallelism, Question

if TYPE_CHECKING:
    from traincast.resources import TwelveNetwork

MOST_KEPT = 4_000
"""Answers of single steps that plain forecasts remember between them."""
_ENGINE = Engine(most=MOST_KEPT)


def forecast(
    job: Job, cluster: Cluster | str | None = None, parallelism: Parallelism | None = None, *,
    costs: CostModel | None = None, calibration: Calibration | None = None, draw: bool = False,
    work: bool = False, activity: "TwelveNetwork | None" = None, **said: Any,
) -> Forecast:  # fmt: skip
    """How long a step and the whole job take, whether it fits, and what it costs. Without a plan every device holds a replica.

    `costs` or `calibration`: what prices tasks instead of the models that ship with the package; a calibration may also be what
    runs of one's own have taught. `draw`: with every span of the step. `work`: with what keeps a rank busy, sort by sort.
    `activity`: corrects the resource numbers by runs measured in this setting.
    """
    if said or not isinstance(cluster, Cluster):
        raise InvalidInput(
            "a Job needs a Cluster, and takes no options of a question; give the name of a model instead"
        )
    engine = _ENGINE if costs is None and calibration is None else _engine_for(costs, calibration)
    return engine.forecast(job, cluster, parallelism, shown=Shown(spans=draw, work=work, activity=activity))


def plain_engine() -> Engine:
    """The engine that plain forecasts share."""
    return _ENGINE


_last: list[tuple[Calibration, Engine]] = []


def _engine_for(costs: CostModel | None, calibration: Calibration | None) -> Engine:
    """Questions that follow each other with one calibration share an engine."""
    if costs is not None or calibration is None:
        return Engine(costs=costs, calibration=calibration)
    if not _last or _last[0][0] is not calibration:
        _last[:] = [(calibration, Engine(calibration=calibration, most=MOST_KEPT))]
    return _last[0][1]


@noun
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
    work: bool = False,
    activity: "TwelveNetwork | None" = None,
) -> Forecast:
    """The forecast of a resolved question. `calibration`: instead of the one that it names."""
    calibration = resolved.calibration if calibration is None else calibration
    found = forecast(
        resolved.job, resolved.cluster, resolved.parallelism, costs=costs, calibration=calibration, draw=draw,
        work=work, activity=activity,
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
