"""The names that this module had before `resolve`; kept until the rooms above use them from there."""

from traincast.forecast.resolve import (
    Resolved,
    build_cluster,
    build_job,
    complete_plan,
    fill_in,
    load_source,
    resolve,
)
from traincast.spec import Question, WorkloadOptions

Request = Question

__all__ = [
    "Request",
    "Resolved",
    "WorkloadOptions",
    "build_cluster",
    "build_job",
    "complete_plan",
    "fill_in",
    "load_source",
    "resolve",
]
