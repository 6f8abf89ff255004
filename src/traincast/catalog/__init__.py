"""Known names to devices, links, nodes, clusters, data sets and workloads, each with its source."""

# Imported eagerly although some modules share the name of the function they hold: a later import of such a module
# would otherwise put the module in the place of the function.
from traincast.catalog.datasets import Dataset, dataset, datasets
from traincast.catalog.devices import DeviceEntry, device, device_entry, devices
from traincast.catalog.links import LinkEntry, link, link_entry, links, make_link
from traincast.catalog.nodes import NodeType, Offer, cluster, cluster_from, find_offer, node, nodes, read_cluster

__all__ = [
    "Dataset",
    "DeviceEntry",
    "LinkEntry",
    "NodeType",
    "Offer",
    "cluster",
    "cluster_from",
    "dataset",
    "datasets",
    "device",
    "device_entry",
    "devices",
    "find_offer",
    "link",
    "link_entry",
    "links",
    "make_link",
    "node",
    "nodes",
    "read_cluster",
]


def __getattr__(name: str) -> object:
    if name not in ("from_shape", "workload", "workloads"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module("traincast.catalog.workloads")
    globals().update({each: getattr(module, each) for each in ("from_shape", "workload", "workloads")})
    return globals()[name]
