"""Known names to devices, links, nodes, clusters, data sets and workloads, each with its source."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

__all__ = [
    "Dataset",
    "DeviceEntry",
    "LinkEntry",
    "NodeType",
    "Offer",
    "Workload",
    "cluster",
    "cluster_from",
    "dataset",
    "datasets",
    "device",
    "device_entry",
    "devices",
    "find_offer",
    "from_shape",
    "link",
    "link_entry",
    "links",
    "make_link",
    "node",
    "nodes",
    "read_cluster",
    "workload",
    "workloads",
]

if TYPE_CHECKING:
    from traincast.catalog._datasets import Dataset as Dataset
    from traincast.catalog._datasets import dataset as dataset
    from traincast.catalog._datasets import datasets as datasets
    from traincast.catalog._datasets import usual_dataset as usual_dataset
    from traincast.catalog._devices import DeviceEntry as DeviceEntry
    from traincast.catalog._devices import device as device
    from traincast.catalog._devices import device_entry as device_entry
    from traincast.catalog._devices import devices as devices
    from traincast.catalog._devices import usual_node_size as usual_node_size
    from traincast.catalog._kernels import kernel_rules as kernel_rules
    from traincast.catalog._links import LinkEntry as LinkEntry
    from traincast.catalog._links import link as link
    from traincast.catalog._links import link_entry as link_entry
    from traincast.catalog._links import links as links
    from traincast.catalog._links import make_link as make_link
    from traincast.catalog._models.recipe import BLOCK_SCALED as BLOCK_SCALED
    from traincast.catalog._models.recipe import FUSED_ATTENTIONS as FUSED_ATTENTIONS
    from traincast.catalog._models.recipe import PRECISIONS as PRECISIONS
    from traincast.catalog._models.recipe import precision_name as precision_name
    from traincast.catalog._models.styles import STYLES as STYLES
    from traincast.catalog._names import load_facts as load_facts
    from traincast.catalog._nodes import NodeType as NodeType
    from traincast.catalog._nodes import Offer as Offer
    from traincast.catalog._nodes import Quote as Quote
    from traincast.catalog._nodes import cluster as cluster
    from traincast.catalog._nodes import cluster_from as cluster_from
    from traincast.catalog._nodes import find_offer as find_offer
    from traincast.catalog._nodes import list_quotes as list_quotes
    from traincast.catalog._nodes import node as node
    from traincast.catalog._nodes import nodes as nodes
    from traincast.catalog._nodes import read_cluster as read_cluster
    from traincast.catalog._nodes import usual_threads as usual_threads
    from traincast.catalog._records import KINDS as KINDS
    from traincast.catalog._records import entry_names as entry_names
    from traincast.catalog._records import find_record as find_record
    from traincast.catalog._records import kind_of as kind_of
    from traincast.catalog._records import list_records as list_records
    from traincast.catalog._records import plural_kind as plural_kind
    from traincast.catalog._regions import find_region as find_region
    from traincast.catalog._regions import region as region
    from traincast.catalog._stacks import DOCUMENTS as DOCUMENTS
    from traincast.catalog._stacks import find_stack as find_stack
    from traincast.catalog._stacks import large_stack as large_stack
    from traincast.catalog._stacks import name_stack as name_stack
    from traincast.catalog._stacks import plain_stack as plain_stack
    from traincast.catalog._stacks import read_stack as read_stack
    from traincast.catalog._stacks import stack as stack
    from traincast.catalog._stacks import stack_names as stack_names
    from traincast.catalog._stacks import version_in as version_in
    from traincast.catalog._stacks import with_version as with_version
    from traincast.catalog._targets import target_of as target_of
    from traincast.catalog._workloads import Workload as Workload
    from traincast.catalog._workloads import from_shape as from_shape
    from traincast.catalog._workloads import has_varying_inputs as has_varying_inputs
    from traincast.catalog._workloads import name_style as name_style
    from traincast.catalog._workloads import named_shape as named_shape
    from traincast.catalog._workloads import style_of_task as style_of_task
    from traincast.catalog._workloads import usual_length as usual_length
    from traincast.catalog._workloads import workload as workload
    from traincast.catalog._workloads import workloads as workloads

__getattr__ = load_lazily(
    __name__,
    {
        "_datasets": (
            "Dataset",
            "dataset",
            "datasets",
            "usual_dataset",
        ),
        "_devices": (
            "DeviceEntry",
            "device",
            "device_entry",
            "devices",
            "usual_node_size",
        ),
        "_links": (
            "LinkEntry",
            "link",
            "link_entry",
            "links",
            "make_link",
        ),
        "_models.recipe": (
            "BLOCK_SCALED",
            "FUSED_ATTENTIONS",
            "PRECISIONS",
            "precision_name",
        ),
        "_models.styles": ("STYLES",),
        "_names": ("load_facts",),
        "_nodes": (
            "NodeType",
            "Offer",
            "Quote",
            "cluster",
            "cluster_from",
            "find_offer",
            "list_quotes",
            "node",
            "nodes",
            "read_cluster",
            "usual_threads",
        ),
        "_records": (
            "KINDS",
            "entry_names",
            "find_record",
            "kind_of",
            "list_records",
            "plural_kind",
        ),
        "_regions": (
            "find_region",
            "region",
        ),
        "_stacks": (
            "DOCUMENTS",
            "find_stack",
            "name_stack",
            "large_stack",
            "plain_stack",
            "read_stack",
            "stack",
            "stack_names",
            "version_in",
            "with_version",
        ),
        "_kernels": ("kernel_rules",),
        "_targets": ("target_of",),
        "_workloads": (
            "Workload",
            "from_shape",
            "has_varying_inputs",
            "name_style",
            "named_shape",
            "style_of_task",
            "usual_length",
            "workload",
            "workloads",
        ),
    },
)
