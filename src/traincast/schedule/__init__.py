"""Lets jobs compete for devices: traces in, schedules, metrics and comparisons out."""

from traincast.schedule.estimators import Estimator
from traincast.schedule.hazards import FailureModel
from traincast.schedule.jobs import JobTable
from traincast.schedule.metrics import Metrics, measure_schedule
from traincast.schedule.network import NetworkModel
from traincast.schedule.placement import Placer
from traincast.schedule.policies import POLICIES, ByKey, ByScore, Ordered, Policy
from traincast.schedule.protocols import RoundPolicy
from traincast.schedule.simulator import simulate_cluster
from traincast.schedule.speeds import PerfModel

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
