"""A lowered program to what the processes of one node hold in the memory of its host."""

from dataclasses import replace

from traincast.forecast._moments import STATE_BYTES, count_weights
from traincast.lower import lower
from traincast.memo import Remember, compute
from traincast.simulate import keeps_gradients, replay_tasks
from traincast.spec import HOST, Cluster, Collective, HostMemory, Job, Parallelism, Program, Stage

PINNED_ROUNDING = 1.44
"""Pinned blocks are rounded up to a power of two: 1 / ln 2 on average over sizes."""
STREAMED_BYTES = 2e9
"""Buffers of one rank through which state on drives streams: five of 1e8 elements in fp32."""


def hold_on_host(program: Program, job: Job, cluster: Cluster, *, remember: Remember = compute) -> HostMemory | None:
    """Of the fullest node; None where only the processes themselves are there."""
    plan, habits = program.parallelism, job.stack.memory
    most = max(group.devices_per_node for group in cluster.groups)
    ranks = min(most, plan.num_devices)
    parts = {
        **_offloaded(job, plan, remember=remember),
        "activations": PINNED_ROUNDING * max((_stowed(stage, plan) for stage in program.stages), default=0.0),
        "copy for a checkpoint": _staged(program, job, plan),
    }
    parts = {name: ranks * amount for name, amount in parts.items()}
    parts["gathered checkpoint"] = _gathered(job, plan)
    if not any(parts.values()):
        return None
    parts["processes"] = ranks * habits.process_bytes
    sizes = [group.host_memory_bytes for group in cluster.groups]
    known = [size for size in sizes if size is not None]
    return HostMemory(
        needed_bytes=sum(parts.values()),
        by_part={name: amount for name, amount in parts.items() if amount > 0},
        capacity_bytes=min(known) if len(known) == len(sizes) else None,
    )


def _offloaded(job: Job, plan: Parallelism, *, remember: Remember) -> dict[str, float]:
    """State, gradients and weights of one rank, as they would lie on the device of the stage that has most of them."""
    if not (plan.offload_optimizer or plan.offload_weights):
        return {}
    usual = replace(plan, offload_optimizer=False, offload_weights=False, offload_activations=False, offload_to="host")
    program = lower(job.graph, usual, compiled=job.compiled, remember=remember)
    held = [_resident(stage, remember=remember) for stage in program.stages]
    most = {role: max(one[role] for one in held) for role in held[0]}
    if plan.num_shards > 1 and plan.zero < 2:
        most["gradient"] /= plan.num_shards
    buffers = job.stack.memory.host_buffers
    found = {}
    if plan.offload_optimizer:
        found["optimizer state"] = buffers * most["optimizer_state"]
        found["gradients"] = buffers * most["gradient"]
    if plan.offload_weights:
        found["weights"] = buffers * most["parameter"]
    if plan.offload_to == "nvme":
        found = {"buffers of drives": min(STREAMED_BYTES, sum(found.values()))}
    return found


def _resident(stage: Stage, *, remember: Remember) -> dict[str, float]:
    one = remember(replay_tasks, stage.tasks, stage.repeats, stage.tensors, keeps_gradients(stage, 2))
    return {
        "optimizer_state": one.resident["optimizer_state"],
        "parameter": one.resident["parameter"],
        "gradient": one.trained_bytes,
    }


def _stowed(stage: Stage, plan: Parallelism) -> float:
    """Activations of all passes in flight that wait in host memory."""
    if not plan.offload_activations or plan.offload_to == "nvme":
        return 0.0
    return stage.num_in_flight * sum(
        task.num_bytes * count
        for task, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(task, Collective) and task.axis == HOST and task.kind == "copy_out" and task.phase == "forward"
    )


def _staged(program: Program, job: Job, plan: Parallelism) -> float:
    """An asynchronous checkpoint is copied to the host first: each rank its own shards."""
    if job.checkpoint_every_steps is None or not job.checkpoint_async:
        return 0.0
    return max(
        sum(t.num_bytes * t.copies for t in stage.tensors if t.role in ("parameter", "optimizer_state"))
        for stage in program.stages
    )


def _gathered(job: Job, plan: Parallelism) -> float:
    """A checkpoint of sharded weights that is not sharded comes together on the first host, weights and state."""
    apart = job.checkpoint_sharded or job.stack.memory.checkpoint == "shards"
    if job.checkpoint_every_steps is None or plan.zero < 3 or apart:
        return 0.0
    return STATE_BYTES * count_weights(job.graph) + job.graph.role_bytes("optimizer_state")
