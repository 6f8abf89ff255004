"""Turns the tasks of a stage and a machine into seconds."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from traincast.memo import Remember
from traincast.spec import Cluster, Device, Estimate, Op, Stage

__all__ = ["CostModel", "OpModel", "PartwiseCostModel"]


class OpModel(Protocol):
    """Prices operations on one device, in the order in which they run. Those before an op count only by what they leave in the
    device's cache."""

    def estimate_ops(self, ops: Sequence[Op], device: Device) -> tuple[Estimate, ...]: ...


class CostModel(Protocol):
    """Prices a whole stage, so that a model of what tasks do to each other fits the same slot."""

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]: ...


@runtime_checkable
class PartwiseCostModel(Protocol):
    """A cost model that prices parts of a stage apart and can remember each of them."""

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]: ...

    def estimate_parts(self, stage: Stage, cluster: Cluster, *, remember: Remember) -> tuple[Estimate, ...]:
        """The same estimates."""
        ...
