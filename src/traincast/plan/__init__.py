"""Tries many clusters and parallelisms: a job becomes ranked plans that keep a deadline, a budget and the memory."""

from collections.abc import Sequence

from traincast.errors import InvalidInput
from traincast.plan.nouns import Candidate, Figures, Limits, Miss, Plan, Search, Space, job_quantile_s, meet_probability
from traincast.plan.pose import pose_job, pose_request
from traincast.plan.search import Watch, search
from traincast.spec import Cluster, Job, Question

__all__ = [
    "Candidate",
    "Figures",
    "Limits",
    "Miss",
    "Plan",
    "Search",
    "Space",
    "job_quantile_s",
    "meet_probability",
    "plan",
    "search_plans",
]


def plan(
    job: Job | Question,
    clusters: Cluster | Sequence[Cluster],
    *,
    space: Space | None = None,
    limits: Limits | None = None,
    objective: str = "time",
    top: int = 10,
) -> list[Plan]:
    """The best plans for a job on one cluster or on any of several, best first; empty where none keeps the limits.

    `search_plans` takes the same and also says how many plans each limit ruled out, and which came nearest.
    """
    return list(search_plans(job, clusters, space=space, limits=limits, objective=objective, top=top).plans)


def search_plans(
    job: Job | Question,
    clusters: Cluster | Sequence[Cluster],
    *,
    space: Space | None = None,
    limits: Limits | None = None,
    objective: str = "time",
    top: int = 10,
    exhaustive: bool = False,
    watch: Watch | None = None,
    engine: str = "none",
    workers: int = 0,
) -> Search:
    """Every plan of the space answered: the best, the front of time, money and energy, and what ruled the others out."""
    listed = (clusters,) if isinstance(clusters, Cluster) else tuple(clusters)
    if not listed:
        raise InvalidInput("there is no cluster to plan for; give at least one")
    pose, space = pose_job(job, space) if isinstance(job, Job) else pose_request(job, space)
    return search(
        pose, listed, space, limits=limits, objective=objective, top=top, exhaustive=exhaustive, watch=watch,
        engine=engine, workers=workers,
    )  # fmt: skip
