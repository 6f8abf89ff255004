"""The nouns: plain, frozen, complete when born; one set for Python, TOML, JSON and HTTP."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

__all__ = [
    "AXES", "COVERAGE", "HOST", "KINDS", "MODES", "ORDERS", "PHASES", "RECOMPUTES",
    "RESOURCES", "ROLES", "SUBJECTS", "Activity", "Block", "Calibration", "Cluster", "Collective", "ConfigText",
    "Device", "Domain", "Environment", "Estimate", "Experiment", "Fleet", "Forecast", "Graph", "HostMemory", "Job",
    "JobTime", "Link", "LogErrors", "MachineRates", "MeasuredRun", "Measurement", "MemoryHabits", "MemoryProfile",
    "Moment", "NodeGroup", "NodePool", "Occupation", "Op", "Parallelism", "Part", "PlanHabits",
    "Program", "Question", "Range", "Rates", "RecipeHabits", "Repeat", "Request", "ResourceProfile", "RunLabels",
    "Schedule", "Span", "Stack", "Stage", "Task", "Tensor", "Timeline", "WorkloadOptions",
]  # fmt: skip

if TYPE_CHECKING:
    from traincast.spec._asked import Asked
    from traincast.spec._calibration import (
        MIX_KINDS,
        Calibration,
        DeviceLevel,
        MeasuredForecast,
        MeasuredNumbers,
        MeasuredRun,
        RunCorrections,
        RunLabels,
    )
    from traincast.spec._display import make_with
    from traincast.spec._fleet import Fleet, NodePool, Occupation, Request, Schedule
    from traincast.spec._graph import (
        DYNAMIC,
        KINDS,
        MATMULS,
        MODES,
        PHASES,
        ROLES,
        Attr,
        Graph,
        Op,
        Repeat,
        Scalable,
        Tensor,
        count_runs,
        segments,
    )
    from traincast.spec._hardware import (
        FABRIC_FROM_BYTES_PER_S,
        RDMA_FROM_BYTES_PER_S,
        Cluster,
        Device,
        Domain,
        Link,
        NodeGroup,
        Region,
    )
    from traincast.spec._job import METHODS, Job
    from traincast.spec._log_errors import LogErrors
    from traincast.spec._measurement import (
        SUBJECTS,
        Block,
        Environment,
        Experiment,
        MachineRates,
        Measurement,
        Rates,
        calls_of,
        collect,
        groups_of,
    )
    from traincast.spec._parallel import AXES, ORDERS, RECOMPUTES, Parallelism, implied_micro_batches
    from traincast.spec._program import HOST, Collective, Program, Stage, Task
    from traincast.spec._question import (
        CLUSTER_FIELDS,
        JOB_FIELDS,
        PLAN_FIELDS,
        QUESTION_FIELDS,
        SAMPLED,
        SHAPE,
        WORKLOAD_FIELDS,
        ConfigText,
        JobOptions,
        Notes,
        Question,
        WorkloadOptions,
    )
    from traincast.spec._regime import Lengths, Pass, Regime, RegimeOptions, Rollout, SampleSize
    from traincast.spec._resources import RESOURCES, Activity, ResourceProfile
    from traincast.spec._result import (
        COVERAGE,
        FIT_CONFIDENCE,
        GROUNDS,
        SAFE_CONFIDENCE,
        BusyTime,
        Estimate,
        Forecast,
        HostMemory,
        JobTime,
        MemoryProfile,
        Moment,
        Narrowing,
        Part,
        Phase,
        Range,
        Span,
        Timeline,
    )
    from traincast.spec._stack import PLAIN, MemoryHabits, PlanHabits, RecipeHabits, Stack, Words

__getattr__ = load_lazily(__name__)
