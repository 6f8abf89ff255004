"""A schedule to the numbers people compare: waiting, completion, fairness, use, losses, money and energy."""

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from traincast.errors import UnknownName
from traincast.noun import noun
from traincast.schedule._jobs import Floats
from traincast.schedule._occupations import Occupations
from traincast.spec import Schedule

SLOWDOWN_FLOOR_S = 10.0


@noun
class Metrics:
    """One line per policy. Unknown (no deadline, no price, no power) is None, never zero."""

    policy: str
    num_jobs: int
    finished: int
    unfinished: int
    rejected: int
    killed: int
    mean_jct_s: float
    p50_jct_s: float
    p90_jct_s: float
    p99_jct_s: float
    max_jct_s: float
    mean_wait_s: float
    p50_wait_s: float
    p90_wait_s: float
    p99_wait_s: float
    mean_slowdown: float
    p99_slowdown: float
    makespan_s: float
    utilization: float
    goodput: float
    preemptions: int
    failures: int
    lost_gpu_hours: float
    gpu_hours: float
    deadlines: int
    deadline_misses: int | None
    cost_usd: float | None
    """The whole fleet from the first submission to the end of the last job, idle GPUs included."""
    energy_joules: float | None

    def as_dict(self) -> dict[str, Any]:
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(self).items()
        }


def _percentile(values: Floats, share: float) -> float:
    return float(np.percentile(values, share)) if len(values) else math.nan


def measure_schedule(schedule: Schedule) -> Metrics:
    """All metrics over the jobs that finished; the others are counted, not forgotten.

    Slowdown is bounded (run times below 10 s count as 10 s).
    """
    end = np.asarray(schedule.end_s)
    done = ~np.isnan(end)
    times = _Times.of(schedule, done)
    makespan = _span_s(schedule, end[done])
    lost = float(np.asarray(schedule.lost_gpu_s).sum())
    used = float(np.asarray(schedule.gpu_s).sum())
    capacity = schedule.fleet.num_gpus * makespan
    deadline = np.asarray(schedule.deadline_s)
    has_deadline = ~np.isnan(deadline)
    late = has_deadline & (np.isnan(end) | (end > deadline))
    killed = len(schedule.killed)
    return Metrics(
        policy=schedule.policy,
        num_jobs=len(schedule),
        finished=int(done.sum()) - killed,
        unfinished=len(schedule) - int(done.sum()) - len(schedule.rejected),
        rejected=len(schedule.rejected),
        killed=killed,
        max_jct_s=_percentile(times.jct_s, 100),
        **times.spread("jct"),
        **times.spread("wait"),
        mean_slowdown=_mean(times.slowdown),
        p99_slowdown=_percentile(times.slowdown, 99),
        makespan_s=makespan,
        utilization=used / capacity if capacity else math.nan,
        goodput=(used - lost) / capacity if capacity else math.nan,
        preemptions=int(np.asarray(schedule.preemptions).sum()),
        failures=int(np.asarray(schedule.failures).sum()),
        lost_gpu_hours=lost / 3600,
        gpu_hours=used / 3600,
        deadlines=int(has_deadline.sum()),
        deadline_misses=int(late.sum()) if has_deadline.any() else None,
        cost_usd=_owned_usd(schedule, makespan),
        energy_joules=_energy_joules(schedule, makespan),
    )


def price_window(schedule: Schedule, metrics: Metrics, span_s: float) -> Metrics:
    """The same with money and energy of the whole fleet over this span."""
    cost, energy = _owned_usd(schedule, span_s), _energy_joules(schedule, span_s)
    return replace(metrics, cost_usd=cost, energy_joules=energy)


@noun
class _Times:
    """Of the chosen jobs, all of which have ended."""

    jct_s: Floats
    wait_s: Floats
    duration_s: Floats
    slowdown: Floats

    @classmethod
    def of(cls, schedule: Schedule, chosen: Any) -> "_Times":
        run_s = np.asarray(schedule.run_s)[chosen]
        jct = np.asarray(schedule.end_s)[chosen] - np.asarray(schedule.submit_s)[chosen]
        duration = np.asarray(schedule.duration_s)[chosen]
        duration = np.where(np.isnan(duration), run_s, duration)
        slowdown = np.maximum(jct / np.maximum(duration, SLOWDOWN_FLOOR_S), 1.0)
        return cls(jct_s=jct, wait_s=jct - run_s, duration_s=duration, slowdown=slowdown)

    def spread(self, name: str) -> dict[str, float]:
        """The mean and the quantiles that are shown."""
        values = getattr(self, f"{name}_s")
        found = {f"p{share}_{name}_s": _percentile(values, share) for share in (50, 90, 99)}
        return {f"mean_{name}_s": _mean(values), **found}


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _span_s(schedule: Schedule, ends_s: Floats) -> float:
    """First submission to last end; for a run that was cut off, to where it was cut."""
    if not len(ends_s):
        return math.nan
    last = float(ends_s.max())
    if not math.isnan(schedule.until_s):
        last = max(last, schedule.until_s)
    return last - float(np.asarray(schedule.submit_s).min())


@noun
class GroupMetrics:
    """What one tenant, or jobs of one size, got under one policy."""

    policy: str
    by: str
    group: str
    num_jobs: int
    unfinished: int
    gpu_hours: float
    mean_wait_s: float
    p50_wait_s: float
    p90_wait_s: float
    p99_wait_s: float
    mean_slowdown: float


SIZE_CLASSES = ((1, "up to 1 GPU"), (4, "2-4"), (8, "5-8"), (16, "9-16"), (64, "17-64"), (math.inf, "above 64"))
GROUPINGS = ("tenant", "size")


def group_names(schedule: Schedule, by: str) -> list[str]:
    if by == "tenant":
        names = schedule.tenants or [None] * len(schedule)
        return [name or "(none)" for name in names]
    sizes = np.asarray(schedule.num_gpus).tolist()
    return [next(name for most, name in SIZE_CLASSES if gpus <= most) for gpus in sizes]


def measure_groups(schedule: Schedule, by: str) -> list[GroupMetrics]:
    """One entry per tenant (largest user first) or per class of sizes (smallest first)."""
    if by not in GROUPINGS:
        raise UnknownName("grouping", by, GROUPINGS)
    names = np.array(group_names(schedule, by), dtype=object)
    gpu_s, end = np.asarray(schedule.gpu_s), np.asarray(schedule.end_s)
    found = []
    for name in dict.fromkeys(names.tolist()):
        members = names == name
        times = _Times.of(schedule, members & ~np.isnan(end))
        found.append(
            GroupMetrics(
                policy=schedule.policy,
                by=by,
                group=str(name),
                num_jobs=int(members.sum()),
                unfinished=int((members & np.isnan(end)).sum()),
                gpu_hours=float(gpu_s[members].sum()) / 3600,
                mean_slowdown=_mean(times.slowdown),
                **times.spread("wait"),
            )
        )
    order = [name for _, name in SIZE_CLASSES]
    if by == "size":
        return sorted(found, key=lambda group: order.index(group.group))
    return sorted(found, key=lambda group: (-group.gpu_hours, group.group))


def _owned_usd(schedule: Schedule, span_s: float) -> float | None:
    """What the fleet costs while it serves these jobs, whether its GPUs are used or not."""
    prices = [pool.usd_per_gpu_hour for pool in schedule.fleet.pools]
    if any(price is None for price in prices) or math.isnan(span_s):
        return None
    return sum(pool.num_gpus * (pool.usd_per_gpu_hour or 0.0) for pool in schedule.fleet.pools) * span_s / 3600


def _energy_joules(schedule: Schedule, makespan_s: float) -> float | None:
    """Busy GPUs at their busy power, the rest of the fleet idling until the last job ends."""
    total = 0.0
    if len(schedule.pool_gpu_s) != len(schedule.fleet.pools) or math.isnan(makespan_s):
        return None
    for pool, used in zip(schedule.fleet.pools, schedule.pool_gpu_s, strict=True):
        if pool.busy_watts is None or pool.idle_watts is None:
            return None
        idle_s = max(pool.num_gpus * makespan_s - float(used), 0.0)
        total += float(used) * pool.busy_watts + idle_s * pool.idle_watts
    return total


def queue_curve(schedule: Schedule) -> tuple[Floats, Floats]:
    """Times and the number of submitted jobs that have not started for the first time."""
    submit, start = np.asarray(schedule.submit_s), np.asarray(schedule.start_s)
    began = start[~np.isnan(start)]
    known = np.ones(len(schedule), dtype=bool)
    known[list(schedule.rejected)] = False
    times = np.concatenate([submit[known], began])
    steps = np.concatenate([np.ones(int(known.sum())), -np.ones(len(began))])
    order = np.lexsort((-steps, times))
    return times[order], np.cumsum(steps[order])


def use_curve(schedule: Schedule) -> tuple[Floats, Floats]:
    """Times and GPUs in use; exact where places were recorded, else without the gaps of preempted jobs."""
    if len(schedule.occupations):
        held = Occupations.collect(schedule.occupations)
        begins, ends, gpus = held.start_s, held.end_s, held.counts
    else:
        end = np.asarray(schedule.end_s)
        done = ~np.isnan(end)
        ends = end[done]
        begins = ends - np.asarray(schedule.run_s)[done]
        gpus = np.asarray(schedule.num_gpus)[done]
    times = np.concatenate([begins, ends])
    steps = np.concatenate([gpus, -gpus])
    order = np.lexsort((steps, times))
    return times[order], np.cumsum(steps[order])
