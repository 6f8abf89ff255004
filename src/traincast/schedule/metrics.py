"""A schedule to the numbers people compare: waiting, completion, fairness, use, losses, money and energy."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from traincast.schedule.jobs import Floats
from traincast.spec.fleet import Schedule

SLOWDOWN_FLOOR_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """One line per policy. Unknown (no deadline, no price, no power) is None, never zero."""

    policy: str
    num_jobs: int
    finished: int
    unfinished: int
    rejected: int
    mean_jct_s: float
    p50_jct_s: float
    p90_jct_s: float
    p99_jct_s: float
    max_jct_s: float
    mean_wait_s: float
    p99_wait_s: float
    mean_slowdown: float
    p99_slowdown: float
    makespan_s: float
    utilization: float
    goodput: float
    fragmentation: float | None
    preemptions: int
    failures: int
    lost_gpu_hours: float
    gpu_hours: float
    mean_rho: float
    worst_rho: float
    jain: float
    deadlines: int
    deadline_misses: int | None
    cost_usd: float | None
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

    Slowdown is bounded (run times below 10 s count as 10 s). Rho compares the time in the system with the run time on an
    equal share of the fleet: 1 / (jobs in the system on average) of its GPUs, never more than asked.
    """
    end, submit = np.asarray(schedule.end_s), np.asarray(schedule.submit_s)
    gpus = np.asarray(schedule.num_gpus)
    run_s, gpu_s = np.asarray(schedule.run_s), np.asarray(schedule.gpu_s)
    done = ~np.isnan(end)
    jct = end[done] - submit[done]
    wait = jct - run_s[done]
    duration = np.asarray(schedule.duration_s)[done]
    duration = np.where(np.isnan(duration), run_s[done], duration)
    slowdown = np.maximum(jct / np.maximum(duration, SLOWDOWN_FLOOR_S), 1.0)
    first = float(submit.min()) if len(submit) else math.nan
    makespan = float(end[done].max()) - first if done.any() else math.nan
    total = schedule.fleet.num_gpus
    capacity = total * makespan
    lost = float(np.asarray(schedule.lost_gpu_s).sum())
    used = float(gpu_s.sum())
    in_system = float(jct.sum()) / makespan if done.any() and makespan > 0 else 1.0
    share = np.minimum(total / max(in_system, 1.0), gpus[done]) / gpus[done]
    rho = jct / np.maximum(duration / share, 1e-9)
    deadline = np.asarray(schedule.deadline_s)
    has_deadline = ~np.isnan(deadline)
    late = has_deadline & (np.isnan(end) | (end > deadline))
    return Metrics(
        policy=schedule.policy,
        num_jobs=len(schedule),
        finished=int(done.sum()),
        unfinished=len(schedule) - int(done.sum()) - len(schedule.rejected),
        rejected=len(schedule.rejected),
        mean_jct_s=float(jct.mean()) if len(jct) else math.nan,
        p50_jct_s=_percentile(jct, 50),
        p90_jct_s=_percentile(jct, 90),
        p99_jct_s=_percentile(jct, 99),
        max_jct_s=float(jct.max()) if len(jct) else math.nan,
        mean_wait_s=float(wait.mean()) if len(jct) else math.nan,
        p99_wait_s=_percentile(wait, 99),
        mean_slowdown=float(slowdown.mean()) if len(jct) else math.nan,
        p99_slowdown=_percentile(slowdown, 99),
        makespan_s=makespan,
        utilization=used / capacity if capacity else math.nan,
        goodput=(used - lost) / capacity if capacity else math.nan,
        fragmentation=fragmentation(schedule),
        preemptions=int(np.asarray(schedule.preemptions).sum()),
        failures=int(np.asarray(schedule.failures).sum()),
        lost_gpu_hours=lost / 3600,
        gpu_hours=used / 3600,
        mean_rho=float(rho.mean()) if len(rho) else math.nan,
        worst_rho=float(rho.max()) if len(rho) else math.nan,
        jain=float(rho.sum() ** 2 / (len(rho) * (rho**2).sum())) if len(rho) else math.nan,
        deadlines=int(has_deadline.sum()),
        deadline_misses=int(late.sum()) if has_deadline.any() else None,
        cost_usd=_cost_usd(schedule),
        energy_joules=_energy_joules(schedule, makespan),
    )


def _cost_usd(schedule: Schedule) -> float | None:
    prices = [pool.usd_per_gpu_hour for pool in schedule.fleet.pools]
    if any(price is None for price in prices) or len(schedule.pool_gpu_s) != len(prices):
        return None
    return sum(float(used) / 3600 * (price or 0.0) for used, price in zip(schedule.pool_gpu_s, prices, strict=True))


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


def fragmentation(schedule: Schedule) -> float | None:
    """The mean share of free GPUs that sit on partly used nodes while jobs wait; None without recorded places on nodes."""
    if not schedule.occupations or len(schedule.fleet.pools) != 1:
        return None
    width = schedule.fleet.pools[0].gpus_per_node
    num_nodes = schedule.fleet.pools[0].num_nodes
    events: list[tuple[float, int, float]] = []
    for held in schedule.occupations:
        for node, count in held.nodes:
            events.append((held.start_s, node, count))
            events.append((held.end_s, node, -count))
    if any(node >= num_nodes for _, node, _ in events):
        return None
    waits = sorted(
        [(float(at), 1) for at in schedule.submit_s]
        + [(float(at), -1) for at in schedule.start_s if not math.isnan(at)]
    )
    events.sort(key=lambda event: event[0])
    used = [0.0] * num_nodes
    broken = 0.0
    free = float(width * num_nodes)
    weighted = seconds = 0.0
    waiting = at_wait = 0
    previous = events[0][0]
    for time_s, node, change in events:
        while at_wait < len(waits) and waits[at_wait][0] <= previous:
            waiting += waits[at_wait][1]
            at_wait += 1
        if waiting > 0 and free > 0:
            weighted += (time_s - previous) * broken / free
            seconds += time_s - previous
        previous = time_s
        if 0 < used[node] < width:
            broken -= width - used[node]
        used[node] += change
        if used[node] > width + 1e-9:
            return None  # shares of time are of a type, not of a node
        free -= change
        if 1e-9 < used[node] < width:
            broken += width - used[node]
    return weighted / seconds if seconds else 0.0


def queue_curve(schedule: Schedule) -> tuple[Floats, Floats]:
    """Times and the number of submitted jobs that have not started for the first time."""
    submit, start = np.asarray(schedule.submit_s), np.asarray(schedule.start_s)
    began = start[~np.isnan(start)]
    known = np.array([job not in schedule.rejected for job in range(len(schedule))])
    times = np.concatenate([submit[known], began])
    steps = np.concatenate([np.ones(int(known.sum())), -np.ones(len(began))])
    order = np.lexsort((-steps, times))
    return times[order], np.cumsum(steps[order])


def use_curve(schedule: Schedule) -> tuple[Floats, Floats]:
    """Times and GPUs in use; exact where places were recorded, else without the gaps of preempted jobs."""
    if schedule.occupations:
        begins = np.array([held.start_s for held in schedule.occupations])
        ends = np.array([held.end_s for held in schedule.occupations])
        gpus = np.array([held.num_gpus for held in schedule.occupations])
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
