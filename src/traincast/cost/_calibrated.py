"""Rates measured on one machine to the cost model of forecasts for it."""

import math
from collections.abc import Callable

from traincast.catalog import read_constant_table
from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import Cluster, Estimate, MachineRates, Op, Stage
from traincast.units import NORMAL_90

LEAST_LOG_SIGMA: float = read_constant_table(float, "calibrated")["least_log_sigma"]
Others = Callable[[Stage, Cluster], tuple[Estimate, ...]]
"""What prices the tasks that were not measured."""


@noun
class Calibrated:
    """A cost model for the machine of a calibration; collectives it does not know are left to another model."""

    rates: MachineRates
    others: Others | None = None

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]:
        scale = clock_scale(self.rates.step_wall_scale, cluster)
        others: tuple[Estimate, ...] | None = None
        estimates = []
        for index, task in enumerate(stage.tasks):
            if isinstance(task, Op):
                estimates.append(self._estimate_op(task).scaled(scale))
            else:
                if self.others is None:
                    raise InvalidInput(
                        f"calibration {self.rates.name!r} holds no {task.kind}; give another model for what it does not know"
                    )
                others = others or self.others(stage, cluster)
                estimates.append(others[index])
        return tuple(estimates)

    def _estimate_op(self, op: Op) -> Estimate:
        own = self.rates.rates_of(op)
        seconds = self.rates.op_seconds_in_step(op)
        compute_s = (op.flop or 0.0) / own.flop_per_s
        limit = "compute" if compute_s >= op.num_bytes / own.bytes_per_s else "memory"
        ground = "measured" if own.num_measurements else "transfer"
        return _with_interval(seconds, own.log_spread, limit=limit, ground=ground)


def clock_scale(wall_scale: float, cluster: Cluster) -> float:
    """Time by the clock over CPU time of a whole core, on the slowest node: a part of a core is throttled, a whole one never."""
    speed = slowest_speed(cluster)
    return wall_scale / speed if speed < 1 else 1 / speed


def slowest_speed(cluster: Cluster) -> float:
    """A synchronous step waits for the slowest node; a CPU share of a quarter is a speed of 0.25."""
    return min(group.speed for group in cluster.groups)


def _with_interval(seconds: float, log_spread: float, *, limit: str, ground: str) -> Estimate:
    factor = math.exp(NORMAL_90 * log_spread)
    return Estimate(seconds=seconds, low_s=seconds / factor, high_s=seconds * factor, limit=limit, ground=ground)
