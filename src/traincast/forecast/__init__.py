"""The map of the product: a job, a cluster and a plan become a forecast."""

from typing import TYPE_CHECKING

from traincast.cost import CostModel
from traincast.forecast.device_memory import MEMORY_SPREAD, outside_bytes
from traincast.forecast.engine import Engine
from traincast.spec import Calibration, Cluster, Forecast, Job, Parallelism

if TYPE_CHECKING:
    from traincast.resources.correction import GraphCorrection

__all__ = ["MEMORY_SPREAD", "Engine", "forecast", "outside_bytes"]

MOST_KEPT = 20_000
"""Answers of single steps that plain forecasts remember between them."""
_ENGINE = Engine(most=MOST_KEPT)


def forecast(
    job: Job, cluster: Cluster, parallelism: Parallelism | None = None, *, costs: CostModel | None = None,
    calibration: Calibration | None = None, draw: bool = False, activity: "GraphCorrection | None" = None,
) -> Forecast:  # fmt: skip
    """How long a step and the whole job take, whether it fits, and what it costs.

    `costs` or `calibration`: what prices tasks instead of the models that ship with the package; a calibration may also be what
    runs of one's own have taught. `draw`: with every span of the step. `activity`: corrects the resource numbers by runs
    measured in this setting.
    """
    engine = _ENGINE if costs is None and calibration is None else _engine_for(costs, calibration)
    return engine.forecast(job, cluster, parallelism, draw=draw, activity=activity)


_last: list[tuple[Calibration, Engine]] = []


def _engine_for(costs: CostModel | None, calibration: Calibration | None) -> Engine:
    """Questions that follow each other with one calibration share an engine."""
    if costs is not None or calibration is None:
        return Engine(costs=costs, calibration=calibration)
    if not _last or _last[0][0] is not calibration:
        _last[:] = [(calibration, Engine(calibration=calibration, most=MOST_KEPT))]
    return _last[0][1]
