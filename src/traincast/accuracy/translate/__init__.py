"""A case becomes a question: a job, a cluster and a plan, with every assumption said out loud."""

from dataclasses import dataclass, replace

from traincast.accuracy.cases import Case
from traincast.accuracy.translate.machine import build_cluster
from traincast.accuracy.translate.plan import read_plan
from traincast.accuracy.translate.workload import build_job
from traincast.spec import Cluster, Graph, Job, Parallelism
from traincast.units import GIB, GIGA

__all__ = ["Question", "translate"]

FIRST_STAGE_STACKS = ("nanotron",)
"""Stacks whose logs report the memory of rank 0, which holds the first stage."""

BINARY_STACKS = ("nanotron",)
"""Stacks that log memory in GiB and call it GB (nanotron divides by 1024 cubed), which the table took for 10^9 bytes: only so
do the states that ZeRO shards away, the copies in DDP's buckets and the fullest runs that fitted come out right."""

ALLOCATED_STACKS = ("LitGPT",)
"""Stacks that log what tensors take (torch.cuda.max_memory_allocated); the others log what the allocator has reserved."""

METERED = "(lambda)"
"""In the framework's spelling, where the source read the device's own meter (nvidia-smi): context and workspaces count."""

RECIPE_STACKS = ("LitGPT",)
"""Sources whose rows are recipes published for a device, so each is known to run on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What `forecast` is asked, and what had to be assumed to ask it."""

    job: Job
    cluster: Cluster
    parallelism: Parallelism
    assumptions: tuple[str, ...] = ()
    watched_stage: int | None = None
    """The pipeline stage whose memory the source reports; None: the fullest."""
    memory_unit: float = 1.0
    """Bytes in what the table calls a byte of memory."""
    counts_reserved: bool = True
    """Whether the source counts what the caching allocator holds on top of tensors."""
    counts_device: bool = False
    """Whether the source read the device's own meter, which counts all that its process has taken."""


def translate(case: Case) -> Question:
    """Pose a case; what cannot be posed raises a TraincastError that says why."""
    assumptions: list[str] = []
    case = _count_devices(case, assumptions)
    plan = read_plan(case, assumptions)
    cluster = build_cluster(case, assumptions)
    job = build_job(case, plan, assumptions)
    updates = any(op.kind == "optimizer" for op in job.graph.ops)
    if case.framework in RECIPE_STACKS and updates and not _state_fits(job.graph, cluster, plan):
        assumptions.append("weights, gradients and optimizer state exceed the recipe's device; the state is off it")
        plan = replace(plan, offload_optimizer=True)
    return Question(
        job=job,
        cluster=cluster,
        parallelism=plan,
        assumptions=tuple(dict.fromkeys(assumptions)),
        watched_stage=0 if case.framework in FIRST_STAGE_STACKS else None,
        memory_unit=GIB / GIGA if case.framework in BINARY_STACKS else 1.0,
        counts_reserved=case.framework not in ALLOCATED_STACKS,
        counts_device=METERED in (case.framework or ""),
    )


def _count_devices(case: Case, assumptions: list[str]) -> Case:
    """Without a number of devices, the nodes or the plan say it."""
    if case.n_gpus is not None:
        return case
    degrees = (case.dp or 1) * (case.tp or 1) * (case.pp or 1) * (case.cp or 1)
    on_nodes = case.n_nodes * case.gpus_per_node if case.n_nodes and case.gpus_per_node else 1
    assumptions.append(f"the number of devices is not known; {max(degrees, on_nodes)} assumed")
    return replace(case, n_gpus=max(degrees, on_nodes))


def _state_fits(graph: Graph, cluster: Cluster, plan: Parallelism) -> bool:
    """Whether what an update needs at once fits, activations aside; sharded state is taken to."""
    roles = ("parameter", "gradient", "optimizer_state")
    capacity = min(group.device.memory_bytes for group in cluster.groups)
    return plan.zero > 0 or sum(graph.role_bytes(role) for role in roles) < capacity
