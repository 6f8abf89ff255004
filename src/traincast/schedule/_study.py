"""One policy by name under one setting, and the table of its jobs."""

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
from traincast.schedule._network import UniformTraffic
from traincast.schedule._placement import CONSOLIDATED, Placer
from traincast.schedule._policies import Quotas
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._slurm.policy import Slurm
from traincast.schedule._slurm.site import SlurmSite
from traincast.schedule._speeds import PerfModel, ScalingLaw
from traincast.spec import Fleet, NodePool, Schedule
from traincast.units import parse_bytes

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
