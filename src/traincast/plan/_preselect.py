"""Many clusters to the few that are worth a whole search: each is tried with the plans that a practitioner would try first."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from traincast.errors import TraincastError
from traincast.forecast import Engine
from traincast.plan._nouns import OBJECTIVES, Figures, JobAt, Limits, Space, figures_of
from traincast.plan._vary import vary_request
from traincast.spec import Cluster, Parallelism, Question

MOST_SEARCHED = 3
"""Clusters that are searched for the objective; for each other objective there is one more."""
MOST_TRIED = 4
"""Samples of one pass that are tried at most, as a power of two."""
Watch = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    fixed = any(getattr(space, name) is not None for name in ("tensor", "pipeline", "context", "expert"))
    if len(clusters) <= MOST_SEARCHED or fixed:
        return Preselection(clusters=tuple(clusters))
    known: list[tuple[Cluster, Figures]] = []
    done: dict[str, Figures | None] = {}
    for number, cluster in enumerate(clusters):
        key = _hardware(cluster)
        if key not in done:
            done[key] = _try_plain(job_at, cluster, space, limits, engine)
        found = done[key]
        if found is not None:
            known.append((cluster, _at_price(found, cluster)))
        if watch is not None:
            watch(number + 1, len(clusters))
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


def _hardware(cluster: Cluster) -> str:
    """What of a cluster says how fast it is; machines that differ only in name and price are tried once."""
    return repr([dataclasses.replace(group, usd_per_hour=None) for group in cluster.groups])


def _at_price(figures: Figures, cluster: Cluster) -> Figures:
    rate = cluster.usd_per_hour
    return dataclasses.replace(figures, usd=None if rate is None else rate * figures.job_s / 3600)


def _try_plain(job_at: JobAt, cluster: Cluster, space: Space, limits: Limits, engine: Engine) -> Figures | None:
    """The best of a few plans; None: none of them fits."""
    best: Figures | None = None
    for plan, batch in _plain_plans(space, cluster):
        try:
            job = job_at(batch, plan)
            memory = engine.memory(engine.lower(job, cluster, plan), job, cluster)
            if memory.fit_probability < limits.confidence:
                continue
            found = figures_of(engine.forecast(job, cluster, plan), limits)
        except TraincastError:
            continue
        if best is None or found.job_s < best.job_s:
            best = found
    return best


def _plain_plans(space: Space, cluster: Cluster) -> Iterable[tuple[Parallelism, int]]:
    """Sharded replicas, and a node as one replica, with and without layers run again, as many samples at once as fit."""
    count, node = cluster.num_devices, cluster.devices_per_domain
    base = space.base or Parallelism()
    again = [how for how in space.recompute if how in ("none", "full")] or list(space.recompute[:1])
    zeros = [zero for zero in space.zero if zero in (2, 3)] or list(space.zero[-1:])
    for tensor in sorted({1, node} if count % node == 0 else {1}):
        data = count // tensor
        if space.global_batch % data:
            continue
        for recompute in again:
            for zero in zeros if data > 1 else (0,):
                for batch in space.batches or (MOST_TRIED, 1):
                    if (space.global_batch // data) % batch:
                        continue
                    yield dataclasses.replace(
                        base, data=data, tensor=tensor, zero=zero, recompute=recompute, sequence_parallel=tensor > 1,
                        micro_batches=space.global_batch // data // batch,
                    ), batch  # fmt: skip
