"""Many clusters to the few that are worth a whole search: each is tried with the plans that a practitioner would try first."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from traincast.catalog import Training
from traincast.errors import TraincastError
from traincast.forecast import Engine
from traincast.noun import noun
from traincast.plan._judge import Judge
from traincast.plan._nouns import OBJECTIVES, Figures, Limits, Space, figures_of
from traincast.plan._offers import hardware_of
from traincast.plan._search import weighed
from traincast.plan._usual import list_brief
from traincast.plan._vary import vary_request
from traincast.resolve import find_training
from traincast.spec import Cluster, Parallelism, Question

MOST_SEARCHED = 3
"""Clusters that are searched for the objective; for each other objective there is one more."""
MOST_TRIED = 4
"""Samples of one pass that are tried at most, as a power of two."""
Watch = Callable[[int, int, str], None]


@noun
class Preselection:
    """The clusters to search, and how many were set aside."""

    clusters: tuple[Cluster, ...]
    num_set_aside: int = 0


def preselect(
    request: Question, clusters: Sequence[Cluster], space: Space, *, limits: Limits, objective: str, engine: Engine,
    watch: Watch | None = None,
) -> Preselection:  # fmt: skip
    """The clusters on which a plain plan does best, by the objective and by the others. All of them where there are few, or where
    the space fixes axes, so that plain plans say little."""
    job_at, space = vary_request(request, space)
    fixed = any(getattr(space, name) not in (None, (1,)) for name in ("tensor", "pipeline", "context", "expert"))
    if len(clusters) <= MOST_SEARCHED or fixed:
        return Preselection(clusters=tuple(clusters))
    known: list[tuple[Cluster, Figures]] = []
    done: dict[str, Figures | None] = {}
    for number, cluster in enumerate(clusters):
        key = hardware_of(cluster)
        if key not in done:
            judge = Judge(engine=engine, cluster=cluster, job_at=job_at)
            done[key] = _try_plain(judge, space, limits, find_training(request))
        found = done[key]
        if found is not None:
            known.append((cluster, _at_price(found, cluster)))
        if watch is not None:
            watch(number + 1, len(clusters), "")
    wanted: list[Cluster] = []
    for name in OBJECTIVES:
        ranked = sorted(known, key=lambda item: (_breaks(item[1], limits), item[1].of(name)))
        wanted += [cluster for cluster, _ in ranked[: MOST_SEARCHED if name == objective else 1]]
    kept = tuple(cluster for cluster in clusters if cluster in wanted) or tuple(clusters)
    return Preselection(clusters=kept, num_set_aside=len(clusters) - len(kept))


def _breaks(figures: Figures, limits: Limits) -> bool:
    late = limits.deadline_s is not None and figures.job_s > limits.deadline_s
    dear = limits.budget_usd is not None and (figures.usd or 0.0) > limits.budget_usd
    return late or dear


def _at_price(figures: Figures, cluster: Cluster) -> Figures:
    rate = cluster.usd_per_hour
    return dataclasses.replace(figures, usd=None if rate is None else rate * figures.job_s / 3600)


def _try_plain(judge: Judge, space: Space, limits: Limits, training: Training) -> Figures | None:
    """The best of a few plans; None: none of them fits."""
    best: Figures | None = None
    for plan, batch in _plain_plans(space, judge, training):
        try:
            job = judge.job_at(batch, plan)
            if judge.memory(job, plan).fit_probability < limits.confidence:
                continue
            found = figures_of(judge.forecast(weighed(job), plan), limits)
        except TraincastError:
            continue
        if best is None or found.job_s < best.job_s:
            best = found
    return best


def _plain_plans(space: Space, judge: Judge, training: Training) -> Iterator[tuple[Parallelism, int]]:
    """What practitioners try first, with and without layers run again, many samples at once and one."""
    base = space.base or Parallelism()
    again = [how for how in space.recompute if how in ("none", "full")] or list(space.recompute[:1])
    graph = judge.job_at(min(space.batches or (1,)), Parallelism(recompute=again[0])).graph
    for values in list_brief(judge.cluster, graph, training):
        if values["zero"] not in space.zero and values["data"] > 1:
            continue
        for recompute, batch in itertools.product(again, space.batches or (MOST_TRIED, 1)):
            passes, rest = divmod(space.global_batch, values["data"] * batch)
            if not rest:
                yield dataclasses.replace(base, **values, recompute=recompute, micro_batches=passes), batch
