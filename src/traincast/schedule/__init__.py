"""Lets jobs compete for devices: traces in, schedules, metrics and comparisons out."""

from typing import TYPE_CHECKING

from traincast.facade import load_lazily
from traincast.schedule._estimators import Estimator
from traincast.schedule._hazards import FailureModel
from traincast.schedule._jobs import JobTable
from traincast.schedule._metrics import Metrics, measure_schedule
from traincast.schedule._network import NetworkModel
from traincast.schedule._placement import Placer
from traincast.schedule._policies import POLICIES, ByKey, ByScore, Ordered, Policy
from traincast.schedule._protocols import RoundPolicy
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._speeds import PerfModel

__all__ = [
    "POLICIES",
    "ByKey",
    "ByScore",
    "Estimator",
    "FailureModel",
    "JobTable",
    "Metrics",
    "NetworkModel",
    "Ordered",
    "PerfModel",
    "Placer",
    "Policy",
    "RoundPolicy",
    "measure_schedule",
    "simulate_cluster",
]

if TYPE_CHECKING:
    from traincast.schedule._compare import AS_IT_WAS as AS_IT_WAS
    from traincast.schedule._compare import Case as Case
    from traincast.schedule._compare import default_knowledge as default_knowledge
    from traincast.schedule._compare import know as know
    from traincast.schedule._compare import measure_distance as measure_distance
    from traincast.schedule._compare import nearest_replay as nearest_replay
    from traincast.schedule._compare import run_cases as run_cases
    from traincast.schedule._estimators import FromHistory as FromHistory
    from traincast.schedule._estimators import Limits as Limits
    from traincast.schedule._estimators import Noisy as Noisy
    from traincast.schedule._generate import Mix as Mix
    from traincast.schedule._generate import generate_jobs as generate_jobs
    from traincast.schedule._hazards import TYPICAL as TYPICAL
    from traincast.schedule._hazards import Overheads as Overheads
    from traincast.schedule._hazards import WeibullFailures as WeibullFailures
    from traincast.schedule._hazards import helios_checkpoint_s as helios_checkpoint_s
    from traincast.schedule._jobs import Floats as Floats
    from traincast.schedule._jobs import Ints as Ints
    from traincast.schedule._journal import SweepJournal as SweepJournal
    from traincast.schedule._known import check_options as check_options
    from traincast.schedule._known import traits_of as traits_of
    from traincast.schedule._metrics import GROUPINGS as GROUPINGS
    from traincast.schedule._metrics import group_names as group_names
    from traincast.schedule._metrics import measure_groups as measure_groups
    from traincast.schedule._metrics import queue_curve as queue_curve
    from traincast.schedule._metrics import use_curve as use_curve
    from traincast.schedule._network import UniformTraffic as UniformTraffic
    from traincast.schedule._occupations import Occupations as Occupations
    from traincast.schedule._oracle import forecast_speeds as forecast_speeds
    from traincast.schedule._placement import PLACERS as PLACERS
    from traincast.schedule._placement import AnyGpus as AnyGpus
    from traincast.schedule._placement import Consolidated as Consolidated
    from traincast.schedule._policies import LeastAttained as LeastAttained
    from traincast.schedule._policies import by_estimate as by_estimate
    from traincast.schedule._policies import by_remaining as by_remaining
    from traincast.schedule._policies import by_remaining_service as by_remaining_service
    from traincast.schedule._policies import by_submission as by_submission
    from traincast.schedule._protocols import CLEAN as CLEAN
    from traincast.schedule._protocols import Compat as Compat
    from traincast.schedule._queues.manifests import read_queues as read_queues
    from traincast.schedule._rounds import GAVEL as GAVEL
    from traincast.schedule._rounds import GAVEL_BLIND as GAVEL_BLIND
    from traincast.schedule._rounds import RandomTypeFifo as RandomTypeFifo
    from traincast.schedule._rounds import SharePolicy as SharePolicy
    from traincast.schedule._rounds import simulate_rounds as simulate_rounds
    from traincast.schedule._shares import SHARE_POLICIES as SHARE_POLICIES
    from traincast.schedule._shares import Blind as Blind
    from traincast.schedule._slurm.site import SlurmSite as SlurmSite
    from traincast.schedule._slurm.site import read_site as read_site
    from traincast.schedule._speeds import ScalingLaw as ScalingLaw
    from traincast.schedule._speeds import TypeSpeeds as TypeSpeeds
    from traincast.schedule._speeds import forecast_jobs as forecast_jobs
    from traincast.schedule._speeds import parse_type_speeds as parse_type_speeds
    from traincast.schedule._speeds import read_speeds as read_speeds
    from traincast.schedule._study import Setting as Setting
    from traincast.schedule._study import SweepPoint as SweepPoint
    from traincast.schedule._study import check_policies as check_policies
    from traincast.schedule._study import event_columns as event_columns
    from traincast.schedule._study import job_columns as job_columns
    from traincast.schedule._study import parse_fleet as parse_fleet
    from traincast.schedule._study import parse_quotas as parse_quotas
    from traincast.schedule._study import run_policy as run_policy
    from traincast.schedule._study import sweep_errors as sweep_errors
    from traincast.schedule._traces import FORMATS as FORMATS
    from traincast.schedule._traces import Trace as Trace
    from traincast.schedule._traces import read_trace as read_trace
    from traincast.schedule._traces import write_columns as write_columns
    from traincast.schedule._traces import write_trace as write_trace

__getattr__ = load_lazily(
    __name__,
    {
        "_compare": (
            "default_knowledge",
            "know",
            "run_cases",
            "AS_IT_WAS",
            "Case",
            "measure_distance",
            "nearest_replay",
        ),
        "_estimators": (
            "FromHistory",
            "Limits",
            "Noisy",
        ),
        "_generate": (
            "Mix",
            "generate_jobs",
        ),
        "_hazards": (
            "Overheads",
            "TYPICAL",
            "WeibullFailures",
            "helios_checkpoint_s",
        ),
        "_jobs": (
            "Floats",
            "Ints",
        ),
        "_known": ("check_options", "traits_of"),
        "_metrics": (
            "GROUPINGS",
            "group_names",
            "measure_groups",
            "queue_curve",
            "use_curve",
        ),
        "_network": ("UniformTraffic",),
        "_occupations": ("Occupations",),
        "_oracle": ("forecast_speeds",),
        "_placement": (
            "AnyGpus",
            "Consolidated",
            "PLACERS",
        ),
        "_policies": (
            "LeastAttained",
            "by_estimate",
            "by_remaining",
            "by_remaining_service",
            "by_submission",
        ),
        "_protocols": (
            "CLEAN",
            "Compat",
        ),
        "_queues.manifests": ("read_queues",),
        "_rounds": (
            "GAVEL",
            "GAVEL_BLIND",
            "RandomTypeFifo",
            "SharePolicy",
            "simulate_rounds",
        ),
        "_shares": (
            "Blind",
            "SHARE_POLICIES",
        ),
        "_slurm.site": (
            "SlurmSite",
            "read_site",
        ),
        "_speeds": (
            "ScalingLaw",
            "TypeSpeeds",
            "forecast_jobs",
            "parse_type_speeds",
            "read_speeds",
        ),
        "_journal": ("SweepJournal",),
        "_study": (
            "check_policies",
            "parse_quotas",
            "sweep_errors",
            "Setting",
            "SweepPoint",
            "event_columns",
            "job_columns",
            "parse_fleet",
            "run_policy",
        ),
        "_traces": (
            "FORMATS",
            "Trace",
            "read_trace",
            "write_columns",
            "write_trace",
        ),
    },
)
