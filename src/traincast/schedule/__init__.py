"""Lets jobs compete for devices: traces in, schedules, metrics and comparisons out."""

from traincast.schedule.jobs import JobTable
from traincast.schedule.metrics import Metrics, measure_schedule
from traincast.schedule.policies import POLICIES, Ordered, Policy
from traincast.schedule.protocols import RoundPolicy
from traincast.schedule.simulator import simulate_cluster

__all__ = [
    "POLICIES",
    "JobTable",
    "Metrics",
    "Ordered",
    "Policy",
    "RoundPolicy",
    "measure_schedule",
    "simulate_cluster",
]
