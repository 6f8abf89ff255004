"""The nouns: plain, frozen, complete when born; one set for Python, TOML, JSON and HTTP."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily

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
    "ConfigText",
    "Device",
    "Domain",
    "Environment",
    "Estimate",
    "Experiment",
    "Fleet",
    "Forecast",
    "Graph",
    "HostMemory",
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
    "Moment",
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
    from traincast.spec._calibration import MIX_KINDS as MIX_KINDS
    from traincast.spec._calibration import NOVELTIES as NOVELTIES
    from traincast.spec._calibration import Calibration as Calibration
    from traincast.spec._calibration import Choice as Choice
    from traincast.spec._calibration import DeviceLevel as DeviceLevel
    from traincast.spec._calibration import LearnedStacks as LearnedStacks
    from traincast.spec._calibration import MeasuredForecast as MeasuredForecast
    from traincast.spec._calibration import MeasuredNumbers as MeasuredNumbers
    from traincast.spec._calibration import MeasuredRun as MeasuredRun
    from traincast.spec._calibration import ProfileRatio as ProfileRatio
    from traincast.spec._calibration import RunCorrections as RunCorrections
    from traincast.spec._calibration import RunLabels as RunLabels
    from traincast.spec._calibration import Scale as Scale
    from traincast.spec._calibration import Scope as Scope
    from traincast.spec._calibration import Selection as Selection
    from traincast.spec._calibration import StackConstants as StackConstants
    from traincast.spec._display import make_with as make_with
    from traincast.spec._display import show_html as show_html
    from traincast.spec._fleet import Fleet as Fleet
    from traincast.spec._fleet import JobOutcome as JobOutcome
    from traincast.spec._fleet import NodePool as NodePool
    from traincast.spec._fleet import Occupation as Occupation
    from traincast.spec._fleet import Request as Request
    from traincast.spec._fleet import RunningJob as RunningJob
    from traincast.spec._fleet import Schedule as Schedule
    from traincast.spec._fleet import Snapshot as Snapshot
    from traincast.spec._graph import DYNAMIC as DYNAMIC
    from traincast.spec._graph import KINDS as KINDS
    from traincast.spec._graph import MODES as MODES
    from traincast.spec._graph import PHASES as PHASES
    from traincast.spec._graph import ROLES as ROLES
    from traincast.spec._graph import Attr as Attr
    from traincast.spec._graph import Graph as Graph
    from traincast.spec._graph import Op as Op
    from traincast.spec._graph import Repeat as Repeat
    from traincast.spec._graph import Scalable as Scalable
    from traincast.spec._graph import Tensor as Tensor
    from traincast.spec._graph import count_runs as count_runs
    from traincast.spec._graph import segments as segments
    from traincast.spec._hardware import Cluster as Cluster
    from traincast.spec._hardware import Device as Device
    from traincast.spec._hardware import Domain as Domain
    from traincast.spec._hardware import Link as Link
    from traincast.spec._hardware import NodeGroup as NodeGroup
    from traincast.spec._hardware import Region as Region
    from traincast.spec._job import Job as Job
    from traincast.spec._log_errors import LogErrors as LogErrors
    from traincast.spec._measurement import SUBJECTS as SUBJECTS
    from traincast.spec._measurement import Block as Block
    from traincast.spec._measurement import CollectiveRates as CollectiveRates
    from traincast.spec._measurement import Environment as Environment
    from traincast.spec._measurement import Experiment as Experiment
    from traincast.spec._measurement import MachineRates as MachineRates
    from traincast.spec._measurement import Measurement as Measurement
    from traincast.spec._measurement import Rates as Rates
    from traincast.spec._measurement import calls_of as calls_of
    from traincast.spec._measurement import collect as collect
    from traincast.spec._measurement import groups_of as groups_of
    from traincast.spec._parallel import AXES as AXES
    from traincast.spec._parallel import ORDERS as ORDERS
    from traincast.spec._parallel import RECOMPUTES as RECOMPUTES
    from traincast.spec._parallel import Parallelism as Parallelism
    from traincast.spec._parallel import implied_micro_batches as implied_micro_batches
    from traincast.spec._program import COLLECTIVES as COLLECTIVES
    from traincast.spec._program import HOST as HOST
    from traincast.spec._program import Collective as Collective
    from traincast.spec._program import Program as Program
    from traincast.spec._program import Stage as Stage
    from traincast.spec._program import Task as Task
    from traincast.spec._question import CLUSTER_FIELDS as CLUSTER_FIELDS
    from traincast.spec._question import JOB_FIELDS as JOB_FIELDS
    from traincast.spec._question import PLAN_FIELDS as PLAN_FIELDS
    from traincast.spec._question import QUESTION_FIELDS as QUESTION_FIELDS
    from traincast.spec._question import SAMPLED as SAMPLED
    from traincast.spec._question import SHAPE as SHAPE
    from traincast.spec._question import WORKLOAD_FIELDS as WORKLOAD_FIELDS
    from traincast.spec._question import ConfigText as ConfigText
    from traincast.spec._question import JobOptions as JobOptions
    from traincast.spec._question import Question as Question
    from traincast.spec._question import WorkloadOptions as WorkloadOptions
    from traincast.spec._regime import REGIMES as REGIMES
    from traincast.spec._regime import Lengths as Lengths
    from traincast.spec._regime import Pass as Pass
    from traincast.spec._regime import Regime as Regime
    from traincast.spec._regime import RegimeOptions as RegimeOptions
    from traincast.spec._regime import Rollout as Rollout
    from traincast.spec._regime import SampleSize as SampleSize
    from traincast.spec._resources import RESOURCES as RESOURCES
    from traincast.spec._resources import Activity as Activity
    from traincast.spec._resources import ResourceProfile as ResourceProfile
    from traincast.spec._result import COVERAGE as COVERAGE
    from traincast.spec._result import FIT_CONFIDENCE as FIT_CONFIDENCE
    from traincast.spec._result import GROUNDS as GROUNDS
    from traincast.spec._result import Estimate as Estimate
    from traincast.spec._result import Forecast as Forecast
    from traincast.spec._result import HostMemory as HostMemory
    from traincast.spec._result import JobTime as JobTime
    from traincast.spec._result import MemoryProfile as MemoryProfile
    from traincast.spec._result import Moment as Moment
    from traincast.spec._result import Narrowing as Narrowing
    from traincast.spec._result import Part as Part
    from traincast.spec._result import Phase as Phase
    from traincast.spec._result import Range as Range
    from traincast.spec._result import Span as Span
    from traincast.spec._result import Timeline as Timeline
    from traincast.spec._stack import PLAIN as PLAIN
    from traincast.spec._stack import LogFacts as LogFacts
    from traincast.spec._stack import MemoryHabits as MemoryHabits
    from traincast.spec._stack import PlanHabits as PlanHabits
    from traincast.spec._stack import RecipeHabits as RecipeHabits
    from traincast.spec._stack import Stack as Stack

__getattr__ = load_lazily(
    __name__,
    {
        "_regime": (
            "Rollout",
            "SampleSize",
            "RegimeOptions",
            "Regime",
            "REGIMES",
            "Pass",
            "Lengths",
        ),
        "_log_errors": ("LogErrors",),
        "_asked": ("Asked",),
        "_calibration": (
            "Calibration",
            "Choice",
            "LearnedStacks",
            "MIX_KINDS",
            "MeasuredForecast",
            "MeasuredNumbers",
            "MeasuredRun",
            "NOVELTIES",
            "ProfileRatio",
            "DeviceLevel",
            "RunCorrections",
            "RunLabels",
            "Scale",
            "Scope",
            "Selection",
            "StackConstants",
        ),
        "_display": (
            "make_with",
            "show_html",
        ),
        "_fleet": (
            "Fleet",
            "JobOutcome",
            "NodePool",
            "Occupation",
            "Request",
            "RunningJob",
            "Schedule",
            "Snapshot",
        ),
        "_graph": (
            "Attr",
            "Graph",
            "DYNAMIC",
            "KINDS",
            "MODES",
            "Op",
            "PHASES",
            "ROLES",
            "Repeat",
            "Scalable",
            "Tensor",
            "count_runs",
            "segments",
        ),
        "_hardware": (
            "Cluster",
            "Device",
            "Domain",
            "Link",
            "NodeGroup",
            "Region",
        ),
        "_job": ("Job",),
        "_measurement": (
            "Block",
            "CollectiveRates",
            "Environment",
            "Experiment",
            "MachineRates",
            "Measurement",
            "Rates",
            "SUBJECTS",
            "calls_of",
            "collect",
            "groups_of",
        ),
        "_parallel": (
            "AXES",
            "ORDERS",
            "Parallelism",
            "RECOMPUTES",
            "implied_micro_batches",
        ),
        "_program": (
            "COLLECTIVES",
            "Collective",
            "HOST",
            "Program",
            "Stage",
            "Task",
        ),
        "_question": (
            "ConfigText",
            "CLUSTER_FIELDS",
            "JOB_FIELDS",
            "JobOptions",
            "PLAN_FIELDS",
            "QUESTION_FIELDS",
            "Question",
            "SAMPLED",
            "SHAPE",
            "WORKLOAD_FIELDS",
            "WorkloadOptions",
        ),
        "_resources": (
            "Activity",
            "RESOURCES",
            "ResourceProfile",
        ),
        "_result": (
            "Narrowing",
            "Phase",
            "COVERAGE",
            "Estimate",
            "FIT_CONFIDENCE",
            "Forecast",
            "GROUNDS",
            "JobTime",
            "HostMemory",
            "MemoryProfile",
            "Moment",
            "Part",
            "Range",
            "Span",
            "Timeline",
        ),
        "_stack": (
            "LogFacts",
            "MemoryHabits",
            "PLAIN",
            "PlanHabits",
            "RecipeHabits",
            "Stack",
        ),
    },
)
