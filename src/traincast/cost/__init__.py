"""Turns the tasks of a stage and a machine into seconds."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from traincast.facade import load_lazily
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


if TYPE_CHECKING:
    from traincast.cost._attention import AttentionLaw as AttentionLaw
    from traincast.cost._attention import AttentionShape as AttentionShape
    from traincast.cost._attention import mean_keys as mean_keys
    from traincast.cost._attention import time_attention as time_attention
    from traincast.cost._bounds import PowerLaw as PowerLaw
    from traincast.cost._bounds import is_systolic as is_systolic
    from traincast.cost._bounds import product_flop_per_s as product_flop_per_s
    from traincast.cost._bounds import soaked as soaked
    from traincast.cost._cached import Cached as Cached
    from traincast.cost._calibrated import Calibrated as Calibrated
    from traincast.cost._calibrated import choose_costs as choose_costs
    from traincast.cost._collectives import TRANSPORT_CONSTANTS as TRANSPORT_CONSTANTS
    from traincast.cost._collectives import LinkConstants as LinkConstants
    from traincast.cost._collectives import Pipelined as Pipelined
    from traincast.cost._collectives import find_route as find_route
    from traincast.cost._features import FAMILIES as FAMILIES
    from traincast.cost._features import Bounded as Bounded
    from traincast.cost._features import describe as describe
    from traincast.cost._interaction import BOUND as BOUND
    from traincast.cost._interaction import NEIGHBOURS as NEIGHBOURS
    from traincast.cost._interaction import NUM_ROUNDS as NUM_ROUNDS
    from traincast.cost._interaction import WEIGHTS as WEIGHTS
    from traincast.cost._interaction import Interacting as Interacting
    from traincast.cost._interaction import Network as Network
    from traincast.cost._interaction import load_network as load_network
    from traincast.cost._interaction import save_network as save_network
    from traincast.cost._interaction.ensemble import ENSEMBLE as ENSEMBLE
    from traincast.cost._interaction.ensemble import MEMBERS as MEMBERS
    from traincast.cost._interaction.ensemble import Atlas as Atlas
    from traincast.cost._interaction.ensemble import Blend as Blend
    from traincast.cost._interaction.ensemble import Correction as Correction
    from traincast.cost._interaction.ensemble import Ensemble as Ensemble
    from traincast.cost._interaction.ensemble import KindTable as KindTable
    from traincast.cost._interaction.ensemble import NodeNetwork as NodeNetwork
    from traincast.cost._interaction.ensemble import default_ensemble as default_ensemble
    from traincast.cost._interaction.ensemble import is_gpu as is_gpu
    from traincast.cost._interaction.ensemble import load_ensemble as load_ensemble
    from traincast.cost._interaction.ensemble import mean_factors as mean_factors
    from traincast.cost._interaction.ensemble import read_ensemble as read_ensemble
    from traincast.cost._interaction.ensemble import scale_estimates as scale_estimates
    from traincast.cost._interaction.features import NUM_FEATURES as NUM_FEATURES
    from traincast.cost._interaction.features import NUMERIC as NUMERIC
    from traincast.cost._interaction.features import SORTS as SORTS
    from traincast.cost._interaction.features import Array as Array
    from traincast.cost._interaction.features import Flow as Flow
    from traincast.cost._interaction.features import Neighbourhood as Neighbourhood
    from traincast.cost._interaction.features import Places as Places
    from traincast.cost._interaction.nodes import AROUND as AROUND
    from traincast.cost._interaction.nodes import BEHAVIOURS as BEHAVIOURS
    from traincast.cost._interaction.nodes import OWN as OWN
    from traincast.cost._interaction.nodes import Nodes as Nodes
    from traincast.cost._interaction.nodes import class_of as class_of
    from traincast.cost._interaction.nodes import classes_of as classes_of
    from traincast.cost._interaction.nodes import describe_nodes as describe_nodes
    from traincast.cost._known import COST_MODELS as COST_MODELS
    from traincast.cost._known import name_costs as name_costs
    from traincast.cost._laws import KERNELS as KERNELS
    from traincast.cost._laws import read_product as read_product
    from traincast.cost._learned import SLACK as SLACK
    from traincast.cost._learned import Learned as Learned
    from traincast.cost._learned import Similarity as Similarity
    from traincast.cost._learned import Voices as Voices
    from traincast.cost._learned import load_learned as load_learned
    from traincast.cost._learned import with_levels as with_levels
    from traincast.cost._notes import note_kernels as note_kernels
    from traincast.cost._offload import copy_bytes_per_s as copy_bytes_per_s
    from traincast.cost._offload import describe_host as describe_host
    from traincast.cost._pricing import Pricing as Pricing
    from traincast.cost._pricing import default_ops as default_ops
    from traincast.cost._pricing import mark_software as mark_software
    from traincast.cost._products import GroupLaw as GroupLaw
    from traincast.cost._products import ProductLaw as ProductLaw
    from traincast.cost._products import ProductShape as ProductShape
    from traincast.cost._products import Timed as Timed
    from traincast.cost._products import time_groups as time_groups
    from traincast.cost._products import time_products as time_products
    from traincast.cost._roofline import Roofline as Roofline
    from traincast.cost._routes import FABRIC_FROM_BYTES_PER_S as FABRIC_FROM_BYTES_PER_S
    from traincast.cost._routes import RDMA_FROM_BYTES_PER_S as RDMA_FROM_BYTES_PER_S
    from traincast.cost._routes import describe_links as describe_links
    from traincast.cost._routes import part_replicas as part_replicas
    from traincast.cost._routes import with_other_links as with_other_links
    from traincast.cost._silicon import ENERGY as ENERGY
    from traincast.cost._stack import TUNABLE as TUNABLE
    from traincast.cost._stack import pays_ring_steps as pays_ring_steps
    from traincast.cost._stack import price_collective as price_collective
    from traincast.cost._stack import price_op as price_op
    from traincast.cost._stack import read_constants as read_constants
    from traincast.cost._stack import replay as replay
    from traincast.cost._stack import with_constants as with_constants
    from traincast.cost._sync import UNBOUNDED_BYTES_PER_S as UNBOUNDED_BYTES_PER_S
    from traincast.cost._sync import Synced as Synced
    from traincast.cost._sync import SyncedStep as SyncedStep
    from traincast.cost._sync import clock_scale as clock_scale
    from traincast.cost._sync import fit_sync as fit_sync
    from traincast.cost._sync import num_hops as num_hops
    from traincast.cost._sync import price_collectives as price_collectives
    from traincast.cost._sync import wire_bytes as wire_bytes

__getattr__ = load_lazily(
    __name__,
    {
        "_attention": (
            "AttentionLaw",
            "AttentionShape",
            "mean_keys",
            "time_attention",
        ),
        "_bounds": (
            "PowerLaw",
            "is_systolic",
            "product_flop_per_s",
            "soaked",
        ),
        "_cached": ("Cached",),
        "_calibrated": (
            "Calibrated",
            "choose_costs",
        ),
        "_collectives": (
            "LinkConstants",
            "Pipelined",
            "TRANSPORT_CONSTANTS",
            "find_route",
        ),
        "_features": (
            "Bounded",
            "FAMILIES",
            "describe",
        ),
        "_interaction": (
            "BOUND",
            "Interacting",
            "NEIGHBOURS",
            "NUM_ROUNDS",
            "Network",
            "WEIGHTS",
            "load_network",
            "save_network",
        ),
        "_interaction.ensemble": (
            "Atlas",
            "Blend",
            "Correction",
            "ENSEMBLE",
            "Ensemble",
            "KindTable",
            "MEMBERS",
            "NodeNetwork",
            "default_ensemble",
            "is_gpu",
            "load_ensemble",
            "mean_factors",
            "read_ensemble",
            "scale_estimates",
        ),
        "_interaction.features": (
            "Array",
            "Flow",
            "NUMERIC",
            "NUM_FEATURES",
            "Neighbourhood",
            "Places",
            "SORTS",
        ),
        "_interaction.nodes": (
            "AROUND",
            "BEHAVIOURS",
            "Nodes",
            "OWN",
            "class_of",
            "classes_of",
            "describe_nodes",
        ),
        "_known": (
            "COST_MODELS",
            "name_costs",
        ),
        "_laws": ("KERNELS", "read_product"),
        "_learned": (
            "Learned",
            "SLACK",
            "Similarity",
            "Voices",
            "load_learned",
            "with_levels",
        ),
        "_notes": ("note_kernels",),
        "_offload": (
            "copy_bytes_per_s",
            "describe_host",
        ),
        "_pricing": (
            "Pricing",
            "default_ops",
            "mark_software",
        ),
        "_products": (
            "GroupLaw",
            "ProductLaw",
            "ProductShape",
            "Timed",
            "time_groups",
            "time_products",
        ),
        "_roofline": ("Roofline",),
        "_routes": (
            "FABRIC_FROM_BYTES_PER_S",
            "RDMA_FROM_BYTES_PER_S",
            "describe_links",
            "part_replicas",
            "with_other_links",
        ),
        "_silicon": ("ENERGY",),
        "_stack": (
            "TUNABLE",
            "pays_ring_steps",
            "price_collective",
            "price_op",
            "read_constants",
            "replay",
            "with_constants",
        ),
        "_sync": (
            "Synced",
            "SyncedStep",
            "UNBOUNDED_BYTES_PER_S",
            "clock_scale",
            "fit_sync",
            "num_hops",
            "price_collectives",
            "wire_bytes",
        ),
    },
)
