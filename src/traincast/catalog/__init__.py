"""Known names to devices, links, nodes, clusters, data sets and workloads, each with its source."""

# Imported eagerly although some modules share the name of the function they hold: a later import of such a module
# would otherwise put the module in the place of the function.
from traincast.catalog.datasets import Dataset, dataset, datasets
from traincast.catalog.devices import DeviceEntry, device, device_entry, devices
from traincast.catalog.links import LinkEntry, link, link_entry, links, make_link
from traincast.catalog.nodes import NodeType, Offer, cluster, cluster_from, find_offer, node, nodes, read_cluster
from traincast.catalog.workloads import Workload, from_shape, workload, workloads

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
