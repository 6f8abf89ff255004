"""A case becomes a question: a job, a cluster and a plan, with every assumption said out loud."""

from dataclasses import dataclass

from traincast.accuracy.cases import Case
from traincast.accuracy.translate.machine import build_cluster
from traincast.accuracy.translate.plan import read_plan
from traincast.accuracy.translate.workload import build_job
from traincast.spec import Cluster, Job, Parallelism
from traincast.units import GIB, GIGA

__all__ = ["Question", "translate"]

FIRST_STAGE_STACKS = ("nanotron",)
"""Stacks whose logs report the memory of rank 0, which holds the first stage."""

BINARY_STACKS = ("nanotron",)
"""Stacks that log memory in GiB and call it GB (nanotron divides by 1024 cubed), which the table took for 10^9 bytes: only so
do the states that ZeRO shards away, the copies in DDP's buckets and the fullest runs that fitted come out right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What `forecast` is asked, and what had to be assumed to ask it."""

    job: Job
    cluster: Cluster
    parallelism: Parallelism
    assumptions: tuple[str, ...] = ()
    watched_stage: int | None = None
    """The pipeline stage whose memory the source reports; None: the fullest."""
    memory_unit: float = 1.0
    """Bytes in what the table calls a byte of memory."""


def translate(case: Case) -> Question:
    """Pose a case; what cannot be posed raises a TraincastError that says why."""
    assumptions: list[str] = []
    plan = read_plan(case, assumptions)
    cluster = build_cluster(case, assumptions)
    job = build_job(case, plan, assumptions)
    return Question(
        job=job,
        cluster=cluster,
        parallelism=plan,
        assumptions=tuple(dict.fromkeys(assumptions)),
        watched_stage=0 if case.framework in FIRST_STAGE_STACKS else None,
        memory_unit=GIB / GIGA if case.framework in BINARY_STACKS else 1.0,
    )
