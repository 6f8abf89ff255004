"""A job or a question on clusters to its best plans."""

from collections.abc import Sequence
from dataclasses import replace

from traincast.cost import CostModel
from traincast.errors import InvalidInput
from traincast.files import read_calibration
from traincast.forecast import Engine
from traincast.plan._nouns import Limits, Plan, Search, Space
from traincast.plan._search import Watch, search
from traincast.plan._vary import settle, vary_job, vary_request
from traincast.resolve import fill_in
from traincast.spec import Calibration, Cluster, Job, Question


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
    engine: Engine | None = None,
    costs: CostModel | None = None,
    calibration: Calibration | None = None,
) -> Search:
    """Every plan of the space answered: the best, the front of time, money and energy, and what ruled the others out.

    `costs` or `calibration`: what prices tasks instead of the models that ship with the package.
    """
    if isinstance(job, Question) and costs is None and calibration is None:
        calibration = read_calibration(fill_in(job).calibration)
    listed = (clusters,) if isinstance(clusters, Cluster) else tuple(clusters)
    if not listed:
        raise InvalidInput("there is no cluster to plan for; give at least one")
    notes: tuple[str, ...] = ()
    if isinstance(job, Job):
        job_at, space = vary_job(job, space)
    else:
        settled = settle(job, listed)
        listed, notes = settled.clusters, settled.notes
        most = max(cluster.num_devices for cluster in listed)
        job_at, space = vary_request(settled.request, space, num_devices=most)
    found = search(
        job_at, listed, space, limits=limits, objective=objective, top=top, exhaustive=exhaustive, watch=watch,
        engine=engine, costs=costs, calibration=calibration,
    )  # fmt: skip
    return replace(found, notes=(*notes, *found.notes))
