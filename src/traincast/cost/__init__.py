"""Turns the tasks of a stage and a machine into seconds."""

from collections.abc import Sequence
from typing import Protocol

from traincast.spec import Cluster, Device, Estimate, Op, Stage

__all__ = ["CostModel", "OpModel"]


class OpModel(Protocol):
    """Prices operations on one device."""

    def estimate_ops(self, ops: Sequence[Op], device: Device) -> tuple[Estimate, ...]: ...


class CostModel(Protocol):
    """Prices a whole stage, so that a model of what tasks do to each other fits the same slot."""

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]: ...
