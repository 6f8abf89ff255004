"""The default cost model: an op model for what devices do, a collective model for what links do, a stack between them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from traincast.cost import OpModel
from traincast.cost.collectives import Pipelined, find_route
from traincast.cost.learned import WEIGHTS, load_learned
from traincast.cost.roofline import Roofline
from traincast.cost.stack import price_collective, price_op
from traincast.spec import Cluster, Collective, Device, Estimate, Op, Stack, Stage


class CollectiveModel(Protocol):
    def estimate(self, task: Collective, cluster: Cluster) -> Estimate: ...


def default_ops() -> OpModel:
    """The fitted operator models where they are installed, else the bound alone."""
    return load_learned() if WEIGHTS.is_file() else Roofline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """Prices each task by its sort. On mixed devices every op takes as long as on the slowest, which the others await."""

    ops: OpModel = field(default_factory=default_ops)
    collectives: CollectiveModel = field(default_factory=Pipelined)
    stack: Stack = field(default_factory=Stack)

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]:
        priced = iter(self._price_ops([task for task in stage.tasks if isinstance(task, Op)], cluster))
        return tuple(
            self._price_collective(task, cluster)
            if isinstance(task, Collective)
            else price_op(self.stack, task, next(priced))
            for task in stage.tasks
        )

    def _price_collective(self, task: Collective, cluster: Cluster) -> Estimate:
        crosses = find_route(task, cluster).num_nodes > 1
        return price_collective(self.stack, task, self.collectives.estimate(task, cluster), crosses_nodes=crosses)

    def _price_ops(self, ops: Sequence[Op], cluster: Cluster) -> tuple[Estimate, ...]:
        slowest: tuple[Estimate, ...] = ()
        worst_s = -1.0
        for device, speed in _distinct_devices(cluster):
            estimates = self.ops.estimate_ops(ops, device)
            if speed != 1.0:
                estimates = tuple(estimate.scaled(1 / speed) for estimate in estimates)
            total_s = sum(estimate.seconds for estimate in estimates)
            if total_s > worst_s:
                slowest, worst_s = estimates, total_s
        return slowest


def _distinct_devices(cluster: Cluster) -> list[tuple[Device, float]]:
    seen: dict[tuple[str, float], tuple[Device, float]] = {}
    for group in cluster.groups:
        seen.setdefault((group.device.name, group.speed), (group.device, group.speed))
    return list(seen.values())
