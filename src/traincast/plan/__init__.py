"""Tries many clusters and parallelisms: a job becomes ranked plans that keep a deadline, a budget and the memory."""

from collections.abc import Sequence

from traincast.cost import CostModel
from traincast.errors import InvalidInput
from traincast.plan.nouns import Candidate, Figures, Limits, Miss, Plan, Search, Space, job_quantile_s, meet_probability
from traincast.plan.search import Watch, search
from traincast.plan.vary import vary_job, vary_request
from traincast.spec import Calibration, Cluster, Job, Question

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
    costs: CostModel | None = None,
    calibration: Calibration | None = None,
) -> list[Plan]:
    """The best plans for a job on one cluster or on any of several, best first; empty where none keeps the limits.

    `search_plans` takes the same and also says how many plans each limit ruled out, and which came nearest.
    """
    found = search_plans(
        job, clusters, space=space, limits=limits, objective=objective, top=top, costs=costs, calibration=calibration
    )
    return list(found.plans)


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
    costs: CostModel | None = None,
    calibration: Calibration | None = None,
) -> Search:
    """Every plan of the space answered: the best, the front of time, money and energy, and what ruled the others out.

    `costs` or `calibration`: what prices tasks instead of the models that ship with the package.
    """
    listed = (clusters,) if isinstance(clusters, Cluster) else tuple(clusters)
    if not listed:
        raise InvalidInput("there is no cluster to plan for; give at least one")
    job_at, space = vary_job(job, space) if isinstance(job, Job) else vary_request(job, space)
    return search(
        job_at, listed, space, limits=limits, objective=objective, top=top, exhaustive=exhaustive, watch=watch,
        engine=engine, workers=workers, costs=costs, calibration=calibration,
    )  # fmt: skip
