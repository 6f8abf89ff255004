"""The nouns: plain, frozen, complete when born; one set for Python, TOML, JSON and HTTP."""

from traincast.spec.graph import KINDS, MODES, PHASES, ROLES, Graph, Op, Repeat, Tensor
from traincast.spec.hardware import Cluster, Device, Link, NodeGroup
from traincast.spec.job import Job
from traincast.spec.measurement import (
    SUBJECTS,
    Block,
    Calibration,
    CollectiveRates,
    Environment,
    Experiment,
    Measurement,
    Rates,
)
from traincast.spec.parallel import AXES, ORDERS, RECOMPUTES, Parallelism
from traincast.spec.program import COLLECTIVES, HOST, Collective, Program, Stage, Task
from traincast.spec.resources import RESOURCES, Activity, ResourceProfile
from traincast.spec.result import (
    COVERAGE,
    GROUNDS,
    Estimate,
    Forecast,
    JobTime,
    MemoryProfile,
    Range,
    Span,
    Timeline,
)

__all__ = [
    "AXES",
    "COLLECTIVES",
    "COVERAGE",
    "GROUNDS",
    "HOST",
    "KINDS",
    "MODES",
    "ORDERS",
    "PHASES",
    "RECOMPUTES",
    "RESOURCES",
    "ROLES",
    "SUBJECTS",
    "Activity",
    "Block",
    "Calibration",
    "Cluster",
    "Collective",
    "CollectiveRates",
    "Device",
    "Environment",
    "Estimate",
    "Experiment",
    "Forecast",
    "Graph",
    "Job",
    "JobTime",
    "Link",
    "Measurement",
    "MemoryProfile",
    "NodeGroup",
    "Op",
    "Parallelism",
    "Program",
    "Range",
    "Rates",
    "Repeat",
    "ResourceProfile",
    "Span",
    "Stage",
    "Task",
    "Tensor",
    "Timeline",
]
