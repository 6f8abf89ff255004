"""traincast forecasts the time, memory, resource use and cost of distributed training before it runs."""

import importlib
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincast import catalog
    from traincast.capture import capture
    from traincast.files import load_graph, save_graph
    from traincast.plan import forecast, plan
    from traincast.spec import Cluster, Device, Estimate, Forecast, Graph, Job, Link, NodeGroup, Parallelism

__version__ = "0.5.0"

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
    "plan",
    "save_graph",
]

_HOMES = {
    "capture": "traincast.capture",
    "forecast": "traincast.plan",
    "load_graph": "traincast.files",
    "plan": "traincast.plan",
    "save_graph": "traincast.files",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used, so that importing the package costs nothing."""
    if name == "catalog":
        return importlib.import_module("traincast.catalog")
    if name not in __all__:
        raise AttributeError(f"module 'traincast' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "traincast.spec")), name)


class _Facade(types.ModuleType):
    """The package, on which `capture` and `forecast` are the verbs and never the rooms of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        # The import system binds a room to the package when it is first loaded; that would hide the verb.
        if not (name in _HOMES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade
