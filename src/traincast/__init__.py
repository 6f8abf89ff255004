"""traincast forecasts the time, memory, resource use and cost of distributed training before it runs."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincast import catalog
    from traincast.capture import capture
    from traincast.files import load_graph, save_graph
    from traincast.forecast import forecast
    from traincast.spec import Cluster, Device, Estimate, Forecast, Graph, Job, Link, NodeGroup, Parallelism

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "Device",
    "Estimate",
    "Forecast",
    "Graph",
    "Job",
    "Link",
    "NodeGroup",
    "Parallelism",
    "capture",
    "catalog",
    "forecast",
    "load_graph",
    "save_graph",
]

_HOMES = {
    "capture": "traincast.capture",
    "forecast": "traincast.forecast",
    "load_graph": "traincast.files",
    "save_graph": "traincast.files",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used, so that importing the package costs nothing."""
    if name == "catalog":
        return importlib.import_module("traincast.catalog")
    if name not in __all__:
        raise AttributeError(f"module 'traincast' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "traincast.spec")), name)
