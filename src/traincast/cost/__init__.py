"""Turns the tasks of a stage and a machine into seconds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from traincast.facade import load_lazily
from traincast.memo import Remember
from traincast.spec import Cluster, Device, Estimate, Op, Stage

__all__ = ["CostModel", "OpModel", "PartwiseCostModel"]


class OpModel(Protocol):
    """Prices operations on one device, in the order in which they run."""

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


if TYPE_CHECKING:
    from traincast.cost._bounds import fastest_flop_per_s, is_systolic
    from traincast.cost._cached import Cached
    from traincast.cost._calibrated import Calibrated
    from traincast.cost._collectives import Pipelined
    from traincast.cost._interaction.classes import ClassFactors, infers_images, is_gpu
    from traincast.cost._interaction.nodes import Nodes, describe_nodes
    from traincast.cost._known import COST_MODELS, name_costs
    from traincast.cost._learned import load_learned, with_levels
    from traincast.cost._offload import copy_bytes_per_s, describe_host
    from traincast.cost._power import draw_share, power
    from traincast.cost._pricing import Pricing, default_ops, note_kernels
    from traincast.cost._roofline import Roofline
    from traincast.cost._routes import describe_links, find_route, part_replicas, with_other_links
    from traincast.cost._stack import TUNABLE, price_collective, price_op, read_constants, replay, with_constants

__getattr__ = load_lazily(__name__)
