"""The nouns: plain, frozen, complete when born; one set for Python, TOML, JSON and HTTP."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily
from traincast.spec._calibration import Calibration, MeasuredRun, RunLabels
from traincast.spec._fleet import (
    Fleet,
    JobOutcome,
    NodePool,
    Occupation,
    Request,
    RunningJob,
    Schedule,
    Snapshot,
)
from traincast.spec._graph import KINDS, MODES, PHASES, ROLES, Graph, Op, Repeat, Tensor
from traincast.spec._hardware import Cluster, Device, Domain, Link, NodeGroup
from traincast.spec._job import Job
from traincast.spec._log_errors import LogErrors
from traincast.spec._measurement import (
    SUBJECTS,
    Block,
    CollectiveRates,
    Environment,
    Experiment,
    MachineRates,
    Measurement,
    Rates,
)
from traincast.spec._parallel import AXES, ORDERS, RECOMPUTES, Parallelism
from traincast.spec._program import COLLECTIVES, HOST, Collective, Program, Stage, Task
from traincast.spec._question import Question, WorkloadOptions
from traincast.spec._resources import RESOURCES, Activity, ResourceProfile
from traincast.spec._result import (
    COVERAGE,
    GROUNDS,
    Estimate,
    Forecast,
    JobTime,
    MemoryProfile,
    Narrowing,
    Part,
    Range,
    Span,
    Timeline,
)
from traincast.spec._stack import LogFacts, MemoryHabits, PlanHabits, RecipeHabits, Stack

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
    "Domain",
    "Environment",
    "Estimate",
    "Experiment",
    "Fleet",
    "Forecast",
    "Graph",
    "Job",
    "JobOutcome",
    "JobTime",
    "Link",
    "LogErrors",
    "LogFacts",
    "MachineRates",
    "MeasuredRun",
    "Measurement",
    "MemoryHabits",
    "MemoryProfile",
    "Narrowing",
    "NodeGroup",
    "NodePool",
    "Occupation",
    "Op",
    "Parallelism",
    "Part",
    "PlanHabits",
    "Program",
    "Question",
    "Range",
    "Rates",
    "RecipeHabits",
    "Repeat",
    "Request",
    "ResourceProfile",
    "RunLabels",
    "RunningJob",
    "Schedule",
    "Snapshot",
    "Span",
    "Stack",
    "Stage",
    "Task",
    "Tensor",
    "Timeline",
    "WorkloadOptions",
]

if TYPE_CHECKING:
    from traincast.spec._asked import Asked as Asked
    from traincast.spec._calibration import NOVELTIES as NOVELTIES
    from traincast.spec._calibration import Choice as Choice
    from traincast.spec._calibration import LearnedStacks as LearnedStacks
    from traincast.spec._calibration import MeasuredForecast as MeasuredForecast
    from traincast.spec._calibration import ProfileRatio as ProfileRatio
    from traincast.spec._calibration import RunCorrections as RunCorrections
    from traincast.spec._calibration import Scale as Scale
    from traincast.spec._calibration import Scope as Scope
    from traincast.spec._calibration import Selection as Selection
    from traincast.spec._calibration import StackConstants as StackConstants
    from traincast.spec._display import show_html as show_html
    from traincast.spec._graph import Attr as Attr
    from traincast.spec._graph import Scalable as Scalable
    from traincast.spec._graph import count_runs as count_runs
    from traincast.spec._graph import segments as segments
    from traincast.spec._measurement import calls_of as calls_of
    from traincast.spec._measurement import collect as collect
    from traincast.spec._measurement import groups_of as groups_of
    from traincast.spec._parallel import implied_micro_batches as implied_micro_batches
    from traincast.spec._question import CLUSTER_FIELDS as CLUSTER_FIELDS
    from traincast.spec._question import JOB_FIELDS as JOB_FIELDS
    from traincast.spec._question import PLAN_FIELDS as PLAN_FIELDS
    from traincast.spec._question import QUESTION_FIELDS as QUESTION_FIELDS
    from traincast.spec._question import SHAPE as SHAPE
    from traincast.spec._question import WORKLOAD_FIELDS as WORKLOAD_FIELDS
    from traincast.spec._question import JobOptions as JobOptions
    from traincast.spec._result import FIT_CONFIDENCE as FIT_CONFIDENCE
    from traincast.spec._stack import PLAIN as PLAIN

__getattr__ = load_lazily(
    __name__,
    {
        "_asked": ("Asked",),
        "_calibration": (
            "Choice",
            "LearnedStacks",
            "MeasuredForecast",
            "NOVELTIES",
            "ProfileRatio",
            "RunCorrections",
            "Scale",
            "Scope",
            "Selection",
            "StackConstants",
        ),
        "_display": ("show_html",),
        "_graph": (
            "Attr",
            "Scalable",
            "count_runs",
            "segments",
        ),
        "_measurement": (
            "calls_of",
            "collect",
            "groups_of",
        ),
        "_parallel": ("implied_micro_batches",),
        "_question": (
            "CLUSTER_FIELDS",
            "JOB_FIELDS",
            "JobOptions",
            "PLAN_FIELDS",
            "QUESTION_FIELDS",
            "SHAPE",
            "WORKLOAD_FIELDS",
        ),
        "_result": ("FIT_CONFIDENCE",),
        "_stack": ("PLAIN",),
    },
)
