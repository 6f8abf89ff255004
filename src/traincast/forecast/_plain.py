"""Plain forecasts, which share an engine between them: the function `forecast` of the package."""

from typing import TYPE_CHECKING, Any

from traincast.cost import CostModel
from traincast.errors import InvalidInput
from traincast.forecast._engine import Engine
from traincast.spec import Calibration, Cluster, Forecast, Job, Parallelism, Question

if TYPE_CHECKING:
    from traincast.resources import GraphCorrection

MOST_KEPT = 4_000
"""Answers of single steps that plain forecasts remember between them."""
_ENGINE = Engine(most=MOST_KEPT)


def forecast(
    job: Job | Question | str, cluster: Cluster | str | None = None, parallelism: Parallelism | None = None, *,
    costs: CostModel | None = None, calibration: Calibration | str | None = None, draw: bool = False,
    activity: "GraphCorrection | None" = None, **said: Any,
) -> Forecast:  # fmt: skip
    """How long a step and the whole job take, whether it fits, and what it costs.

    A job and a cluster are taken as they are; without a plan every device holds a replica. A model by its name or file asks as
    the command does: forecast("llama-3-8b", "8xh100", tokens="15B") fills in what is not said, and `said` is any option of
    `traincast forecast` by its name.

    `costs` or `calibration` (itself, or its name or file): what prices tasks instead of the models that ship with the package; a
    calibration may also be what runs of one's own have taught. `draw`: with every span of the step. `activity`: corrects the
    resource numbers by runs measured in this setting.
    """
    if isinstance(calibration, str):
        from traincast.files import load_calibration

        calibration = load_calibration(calibration)
    if isinstance(job, (str, Question)):
        from traincast.forecast._ask import ask
        from traincast.forecast._words import ask_in_words

        asked = job if isinstance(job, Question) else ask_in_words(job, cluster, parallelism, **said)
        return ask(asked, costs=costs, calibration=calibration, draw=draw, activity=activity)
    if said or not isinstance(cluster, Cluster):
        raise InvalidInput(
            "a Job needs a Cluster, and takes no options of a question; give the name of a model instead"
        )
    engine = _ENGINE if costs is None and calibration is None else _engine_for(costs, calibration)
    return engine.forecast(job, cluster, parallelism, draw=draw, activity=activity)


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
