"""One trace under several policies, or under ever worse estimates: the comparisons of `traincast schedule`."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from traincast.cost import power
from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun
from traincast.schedule._estimators import EXACT, Estimator, Fixed, FromHistory, Noisy
from traincast.schedule._hazards import TYPICAL, FailureModel, Overheads
from traincast.schedule._jobs import JobTable
from traincast.schedule._known import REGISTRY, find_policy
from traincast.schedule._kueue import Kueue
from traincast.schedule._manifests import Queues
from traincast.schedule._metrics import Metrics, measure_schedule
from traincast.schedule._network import UniformTraffic
from traincast.schedule._placement import CONSOLIDATED, Placer
from traincast.schedule._policies import Quotas
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._slurm.policy import Slurm
from traincast.schedule._slurm.site import SlurmSite
from traincast.schedule._speeds import PerfModel, ScalingLaw
from traincast.spec import Fleet, NodePool, Schedule
from traincast.units import parse_bytes
from traincast.workers import deliver

_POOL = re.compile(r"(\d+)x(\d+)(?::([\w.+-]+))?(?:/(\d+)cpu)?(?:/([\d.]+[A-Za-z]+))?(?:@([\d.]+))?")


def parse_fleet(text: str, *, nodes_per_rack: int | None = None, uplink_bytes_per_s: float | None = None) -> Fleet:
    """'16x8' or '16x8:a100/96cpu/1TiB@2.5,8x4:t4': nodes x GPUs, device, CPUs and memory of a node, dollars per GPU-hour; the
    fastest type first.

    A device of the catalogue brings its power: its limit when busy, a share of it when idle.
    """
    pools = []
    for part in text.replace(" ", "").split(","):
        found = _POOL.fullmatch(part)
        if found is None:
            raise InvalidInput(
                f"cluster {part!r} is not NODESxGPUS[:device][/CPUScpu][/MEMORY][@dollars per GPU-hour], "
                "such as 16x8:a100@2.5 or 16x8:a100/96cpu/1TiB"
            )
        nodes, gpus, device, cpus, memory, price = found.groups()
        busy, idle = device_watts(device)
        pools.append(
            NodePool(
                device=device or "gpu",
                num_nodes=int(nodes),
                gpus_per_node=int(gpus),
                usd_per_gpu_hour=None if price is None else float(price),
                busy_watts=busy,
                idle_watts=idle,
                cpus_per_node=None if cpus is None else int(cpus),
                memory_bytes_per_node=None if memory is None else parse_bytes(memory),
            )
        )
    return Fleet(pools=tuple(pools), nodes_per_rack=nodes_per_rack, rack_uplink_bytes_per_s=uplink_bytes_per_s)


def device_watts(name: str | None) -> tuple[float | None, float | None]:
    """Power of a device of the catalogue when it is busy and when it is idle, if it is there and states one."""
    from traincast.catalog import device

    try:
        watts = None if name is None else device(name).power_watts
    except UnknownName:
        watts = None
    return (None, None) if watts is None else (power().draw(1.0) * watts, power().draw(0.0) * watts)


def policy_names() -> list[str]:
    return list(REGISTRY)


@noun
class Setting:
    """Everything about a run but the policy.

    Without an `estimator` a policy knows what it was made for: history for qssf, the truth for all others. `noise` makes
    whatever it knows wrong on purpose. `quotas` are GPUs that tenants own under the policy quota; without any, all own equal
    shares. `site` holds the rules of the policy slurm, `queues` those of kueue.
    """

    fleet: Fleet
    placer: Placer = CONSOLIDATED
    perf: PerfModel | None = None
    estimator: Estimator | None = None
    noise: Noisy | None = None
    overheads: Overheads = TYPICAL
    failures: FailureModel | None = None
    network: UniformTraffic | None = None
    until_s: float = math.inf
    kill_at_limit: bool = False
    record: bool = False
    quotas: tuple[tuple[str, float], ...] = ()
    site: SlurmSite | None = None
    queues: Queues | None = None

    def estimator_for(self, name: str) -> Estimator:
        base = self.estimator or (FromHistory() if name == "qssf" else EXACT)
        return base if self.noise is None else replace(self.noise, base=base)


_CONDITIONS = ("fleet", "placer", "overheads", "failures", "network", "until_s", "kill_at_limit", "record")


def run_policy(
    name: str,
    jobs: JobTable,
    setting: Setting,
    *,
    progress: Callable[[int], None] | None = None,
    notify: Callable[[str], None] | None = None,
) -> Schedule:
    """Simulate one policy by name, whatever its family."""
    policy: Any = find_policy(name, jobs, setting.fleet)
    perf = setting.perf
    if hasattr(policy, "allocate"):
        perf = perf or ScalingLaw(tuple(jobs.num_gpus.tolist()))
    elif name == "quota" and setting.quotas:
        policy = Quotas(owned=setting.quotas)
    elif name == "slurm" and setting.site is not None:
        policy = Slurm(setting.site)
    elif name == "kueue" and setting.queues is not None:
        policy = Kueue(setting.queues)
    same = {key: getattr(setting, key) for key in _CONDITIONS}
    return simulate_cluster(
        jobs, policy, perf=perf, estimator=setting.estimator_for(name), progress=progress, notify=notify, **same
    )


def parse_quotas(text: str, fleet: Fleet) -> tuple[tuple[str, float], ...]:
    """'vision=32,speech=16': GPUs that each tenant owns; others only borrow."""
    found: dict[str, float] = {}
    for part in text.split(","):
        tenant, _, gpus = part.strip().rpartition("=")
        if not tenant or not gpus.isdecimal():
            raise InvalidInput(f"quota {part!r} is not TENANT=GPUS, such as vision=32")
        found[tenant] = float(gpus)
    if sum(found.values()) > fleet.num_gpus:
        raise InvalidInput(f"quotas of {sum(found.values()):g} GPUs exceed the {fleet.num_gpus} of the fleet")
    return tuple(found.items())


def check_policies(names: Sequence[str]) -> list[str]:
    for name in names:
        REGISTRY.find(name)
    return list(names)


@noun
class SweepPoint:
    """One policy under one kind and size of error, averaged over seeds."""

    policy: str
    error: str
    sigma: float
    num_seeds: int
    mean_jct_s: float
    p99_jct_s: float
    makespan_s: float
    deadline_misses: float | None
    preemptions: float


ERRORS: dict[str, Callable[[float, int], Noisy]] = {
    "per job": lambda size, seed: Noisy(sigma=size, seed=seed),
    "per class": lambda size, seed: Noisy(class_sigma=size, seed=seed),
    "too long": lambda size, seed: Noisy(bias=math.exp(size), seed=seed),
    "too short": lambda size, seed: Noisy(bias=math.exp(-size), seed=seed),
}
"""Kinds of error by size: a log-normal spread per job or per class (workload, user or size), or one bias for all."""


Task = tuple[str, str, float, int]
"""A policy, a kind of error, its size and a seed."""


def sweep_tasks(policies: Sequence[str], sigmas: Sequence[float], kinds: Sequence[str], num_seeds: int) -> list[Task]:
    return [
        (policy, kind, sigma, seed)
        for policy in policies
        for kind in kinds
        for sigma in sigmas
        for seed in range(num_seeds if sigma > 0 and kind.startswith("per") else 1)
    ]


def run_task(task: Task, jobs: JobTable, setting: Setting) -> Metrics:
    policy, kind, sigma, seed = task
    return measure_schedule(run_policy(policy, jobs, replace(setting, noise=ERRORS[kind](sigma, seed), record=False)))


def sweep_errors(
    jobs: JobTable,
    setting: Setting,
    *,
    policies: Sequence[str],
    sigmas: Sequence[float] = (0.0, 0.1, 0.3, 0.6, 1.0, 1.5),
    kinds: Sequence[str] = tuple(ERRORS),
    num_seeds: int = 3,
    workers: int = 0,
    on_done: Callable[[int, int], None] | None = None,
) -> list[SweepPoint]:
    """How schedules degrade as the scheduler's estimates get worse while the truth stays the same.

    Runs are independent, and `workers` processes share them, with the same answer.
    """
    tasks = sweep_tasks(policies, sigmas, kinds, num_seeds)
    found: dict[Task, Metrics] = {}
    engine = "processes" if workers > 1 else "none"
    for at, metrics in deliver(run_task, tasks, shared=(jobs, setting), engine=engine, workers=workers):
        found[tasks[at]] = metrics
        if on_done is not None:
            on_done(len(found), len(tasks))
    return average_runs(tasks, [found[task] for task in tasks])


_AVERAGED = ("mean_jct_s", "p99_jct_s", "makespan_s", "preemptions")


def average_runs(tasks: Sequence[Task], results: Sequence[Metrics]) -> list[SweepPoint]:
    """Runs that differ by their seed alone are one point."""
    grouped: dict[tuple[str, str, float], list[Metrics]] = {}
    for (policy, kind, sigma, _), metrics in zip(tasks, results, strict=True):
        grouped.setdefault((policy, kind, sigma), []).append(metrics)
    points = []
    for (policy, kind, sigma), found in grouped.items():
        missed = [entry.deadline_misses for entry in found if entry.deadline_misses is not None]
        means = {name: float(np.mean([getattr(entry, name) for entry in found])) for name in _AVERAGED}
        misses = float(np.mean(missed)) if missed else None
        points.append(
            SweepPoint(policy=policy, error=kind, sigma=sigma, num_seeds=len(found), deadline_misses=misses, **means)
        )
    return points


def job_columns(schedule: Schedule, jobs: JobTable | None = None, beliefs: Fixed | None = None) -> dict[str, list[Any]]:
    """One row per job, for parquet or CSV; unknown is empty. Beside the true run time stand the user's limit and what the
    scheduler believed, with its 90 % interval where that is a forecast."""

    def known(column: Any) -> list[Any]:
        return [None if value != value else value for value in np.asarray(column).tolist()]

    count = len(schedule)
    unknown = np.full(count, math.nan)
    low, high = (unknown, unknown) if beliefs is None else beliefs.limits_s
    return {
        "policy": [schedule.policy] * count,
        "job_id": list(schedule.job_ids),
        "status": [schedule.status(job) for job in range(count)],
        "reason": [schedule.rejected.get(job) for job in range(count)],
        "submit_s": known(schedule.submit_s),
        "start_s": known(schedule.start_s),
        "end_s": known(schedule.end_s),
        "completion_s": known(np.asarray(schedule.end_s) - np.asarray(schedule.submit_s)),
        "run_s": known(schedule.run_s),
        "true_s": known(schedule.duration_s),
        "limit_s": known(unknown if jobs is None else jobs.limit_s),
        "believed_s": known(unknown if beliefs is None else beliefs.values_s),
        "believed_low_s": known(low),
        "believed_high_s": known(high),
        "num_gpus": known(schedule.num_gpus),
        "gpu_s": known(schedule.gpu_s),
        "lost_gpu_s": known(schedule.lost_gpu_s),
        "preemptions": known(schedule.preemptions),
        "failures": known(schedule.failures),
        "deadline_s": known(schedule.deadline_s),
        "tenant": list(schedule.tenants) if schedule.tenants else [None] * count,
    }


def event_columns(schedule: Schedule) -> dict[str, list[Any]]:
    """The event log in order of time: submit, start, stop (preempted, resized or failed), finish, reject."""
    events: list[tuple[float, int, str, str, float]] = []
    ends = np.asarray(schedule.end_s)
    for job, job_id in enumerate(schedule.job_ids):
        events.append((float(schedule.submit_s[job]), 0, "submit", job_id, float(schedule.num_gpus[job])))
        if job in schedule.rejected:
            events.append((float(schedule.submit_s[job]), 1, "reject", job_id, 0.0))
        elif not schedule.occupations and not math.isnan(schedule.start_s[job]):
            events.append((float(schedule.start_s[job]), 3, "start", job_id, float(schedule.num_gpus[job])))
        if not math.isnan(ends[job]):
            events.append((float(ends[job]), 2, "finish", job_id, 0.0))
    for held in schedule.occupations:
        job_id = schedule.job_ids[held.job]
        events.append((held.start_s, 3, "start", job_id, held.num_gpus))
        if held.end_s != ends[held.job]:
            events.append((held.end_s, 2, "stop", job_id, held.num_gpus))
    events.sort()
    return {
        "time_s": [event[0] for event in events],
        "event": [event[2] for event in events],
        "job_id": [event[3] for event in events],
        "num_gpus": [event[4] for event in events],
    }
