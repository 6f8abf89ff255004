"""A cluster that many jobs share: what is asked for, what a scheduler may see, and what became of every job."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from traincast.errors import InvalidInput
from traincast.noun import noun


class Numbers(Protocol):
    """A column of numbers: a list, a tuple or an array."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


FINISHED, UNFINISHED, REJECTED, KILLED = "finished", "unfinished", "rejected", "killed"


@noun
class Request:
    """One job as it is submitted: either its `duration_s` on what it asks for, or a `workload` to forecast.

    `limit_s` is the run time that its user asked for. `started_s` is when it really started, where a log says so; no
    scheduler sees it. A job with `ran_s` runs already when it is submitted: `duration_s` is what is left of it. `num_nodes`,
    `num_cpus` and `memory_bytes` are what it asks for in all, spread evenly over its GPUs; `exclusive` asks for whole nodes.
    `dependency` and `constraint` are written as Slurm writes them, and `array_limit` is how many tasks of its
    array may run at once.
    """

    job_id: str
    submit_s: float
    num_gpus: float
    duration_s: float | None = None
    workload: str | None = None
    steps: float | None = None
    batch_size: int | None = None
    gpu_type: str | None = None
    user: str | None = None
    tenant: str | None = None
    priority: float = 0.0
    deadline_s: float | None = None
    min_gpus: int | None = None
    max_gpus: int | None = None
    limit_s: float | None = None
    started_s: float | None = None
    ran_s: float | None = None
    partition: str | None = None
    qos: str | None = None
    num_nodes: int | None = None
    num_cpus: float | None = None
    memory_bytes: float | None = None
    exclusive: bool = False
    array_limit: int | None = None
    dependency: str | None = None
    constraint: str | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.submit_s) and self.submit_s >= 0):
            raise InvalidInput(f"job {self.job_id}: submit_s is {self.submit_s}; it must be a time of at least 0")
        if not (float(self.num_gpus).is_integer() and self.num_gpus >= 1):
            raise InvalidInput(f"job {self.job_id}: num_gpus is {self.num_gpus}; ask for a whole number")
        if self.duration_s is not None and not (math.isfinite(self.duration_s) and self.duration_s >= 0):
            raise InvalidInput(f"job {self.job_id}: duration_s is {self.duration_s}; it must be at least 0 and finite")
        if self.limit_s is not None and not self.limit_s > 0:
            raise InvalidInput(f"job {self.job_id}: limit_s is {self.limit_s}; a limit on the run time is above 0")
        if self.duration_s is None and self.workload is None:
            raise InvalidInput(f"job {self.job_id}: give either duration_s or a workload to forecast")


@noun
class NodePool:
    """Equal nodes of one device type; powers are per GPU and include its share of the host.

    `usd_per_gpu_hour` is what a GPU costs for every hour that it is there, used or not. CPUs and memory of a node limit what
    fits on it where both the pool and the job state them.
    """

    device: str = "gpu"
    num_nodes: int
    gpus_per_node: int
    usd_per_gpu_hour: float | None = None
    busy_watts: float | None = None
    idle_watts: float | None = None
    cpus_per_node: int | None = None
    memory_bytes_per_node: float | None = None

    def __post_init__(self) -> None:
        if self.num_nodes < 0 or self.gpus_per_node < 1:
            raise InvalidInput(
                f"pool of {self.device}: {self.num_nodes} nodes of {self.gpus_per_node} GPUs; "
                "use at least 0 nodes of at least 1 GPU"
            )

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node


@noun
class Fleet:
    """All pools of a shared cluster. Racks are runs of `nodes_per_rack` nodes; without it there is one rack."""

    pools: tuple[NodePool, ...]
    nodes_per_rack: int | None = None
    rack_uplink_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if not self.pools:
            raise InvalidInput("a fleet needs at least one pool of nodes")
        if self.nodes_per_rack is not None and self.nodes_per_rack < 1:
            raise InvalidInput(f"nodes_per_rack is {self.nodes_per_rack}; it must be at least 1")

    @property
    def num_gpus(self) -> int:
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def num_nodes(self) -> int:
        return sum(pool.num_nodes for pool in self.pools)


@noun
class JobOutcome:
    """What became of one job; times are None where the moment never came."""

    job_id: str
    status: str
    submit_s: float
    start_s: float | None
    end_s: float | None
    num_gpus: float
    num_preemptions: int
    num_failures: int
    run_s: float
    gpu_s: float
    lost_gpu_s: float
    reason: str | None = None

    @property
    def completion_s(self) -> float | None:
        """Submission to end, the JCT of the literature."""
        return None if self.end_s is None else self.end_s - self.submit_s


@noun
class Occupation:
    """A job holding the same GPUs from start to end; `nodes` pairs a node with the GPUs held there."""

    job: int
    start_s: float
    end_s: float
    num_gpus: float
    nodes: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """The answer of the simulator as columns, one entry per job in submission-table order.

    Unknown times are NaN in the columns and None in `outcome`. `occupations` is empty unless recording was asked for.
    """

    policy: str
    fleet: Fleet
    job_ids: Sequence[str]
    submit_s: Numbers
    num_gpus: Numbers
    duration_s: Numbers
    deadline_s: Numbers
    start_s: Numbers
    end_s: Numbers
    preemptions: Numbers
    failures: Numbers
    run_s: Numbers
    gpu_s: Numbers
    lost_gpu_s: Numbers
    rejected: Mapping[int, str] = field(default_factory=dict)
    killed: Collection[int] = ()
    tenants: Sequence[str | None] = ()
    pool_gpu_s: Numbers = ()
    occupations: Sequence[Occupation] = ()
    num_passes: int = 0
    until_s: float = math.nan
    """Where the run was cut off, if it was."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.job_ids)

    def status(self, job: int) -> str:
        if job in self.rejected:
            return REJECTED
        if job in self.killed:
            return KILLED
        return UNFINISHED if math.isnan(self.end_s[job]) else FINISHED

    def outcome(self, job: int) -> JobOutcome:
        def known(value: float) -> float | None:
            return None if math.isnan(value) else float(value)

        return JobOutcome(
            job_id=self.job_ids[job],
            status=self.status(job),
            submit_s=float(self.submit_s[job]),
            start_s=known(self.start_s[job]),
            end_s=known(self.end_s[job]),
            num_gpus=float(self.num_gpus[job]),
            num_preemptions=int(self.preemptions[job]),
            num_failures=int(self.failures[job]),
            run_s=float(self.run_s[job]),
            gpu_s=float(self.gpu_s[job]),
            lost_gpu_s=float(self.lost_gpu_s[job]),
            reason=self.rejected.get(job),
        )
