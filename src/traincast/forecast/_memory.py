"""A lowered program to the memory of its fullest device, in the step and outside of it, of the device's own meter (nvidia-smi)
and of its host."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.catalog import read_constants
from traincast.lower import lower
from traincast.memo import Remember, compute
from traincast.noun import noun
from traincast.simulate import Overheads, keeps_gradients, replay_forward, replay_memory, replay_stages, replay_tasks
from traincast.spec import (
    HOST,
    Cluster,
    Collective,
    Forecast,
    Graph,
    HostMemory,
    Job,
    MemoryHabits,
    MemoryProfile,
    Moment,
    NodeGroup,
    Parallelism,
    Program,
    Stack,
    Stage,
)

if TYPE_CHECKING:
    from traincast.simulate import Surroundings

PEER_AXES = ("expert", "pipeline")
"""Axes on which a rank also sends to single peers."""


@noun
class ProcessConstants:
    """Of the document `process`, which says what each is."""

    context_bytes: float
    hole_share: float
    channels: Mapping[str, int]
    unknown_channels: int
    channel_bytes: float
    peer_bytes: float
    graph_kernel_bytes: float
    compiled_bytes: float
    host_bytes: float


PROCESS = read_constants(ProcessConstants, "process")


@noun
class DeviceMemory:
    """The fullest rank as others see it: three numbers for one moment, none of which is wrong."""

    live_bytes: float
    """Of tensors: what torch.cuda.max_memory_allocated reports."""
    reserved_bytes: float
    """What the caching allocator has taken for them: torch.cuda.max_memory_reserved."""
    used_bytes: float
    """What the device has given away, context and workspaces included: nvidia-smi."""


def surroundings_of(stack: Stack) -> "Surroundings":
    """What lies around the allocator under a stack."""
    from traincast.simulate import Surroundings

    return Surroundings.usual(lean="lean" in stack.memory.holds)


def outside_bytes(cluster: Cluster, plan: Parallelism, stack: Stack | None = None) -> float:
    """What of the smallest device the framework's allocator never gets to use."""
    return sum(list_outside(cluster, plan, stack).values())


def list_outside(cluster: Cluster, plan: Parallelism, stack: Stack | None = None) -> dict[str, float]:
    """The same part by part. Where a compiler plans memory, nothing is left in holes and communication has its buffers in the
    plan."""
    habits = (stack or Stack()).memory
    if "planned" in habits.holds:
        driven = all(PROCESS.channels.get(group.intra.transport) == 0 for group in cluster.groups)
        return {
            "driver and libraries": min(PROCESS.context_bytes, PROCESS.compiled_bytes)
            if driven
            else PROCESS.context_bytes
        }
    return {
        "driver and libraries": PROCESS.context_bytes,
        "communicators": communicator_bytes(cluster, plan, habits),
        "holes between blocks": PROCESS.hole_share * smallest_bytes(cluster),
    }


def communicator_bytes(cluster: Cluster, plan: Parallelism, habits: MemoryHabits) -> float:
    """Buffers of the process groups of all axes in use, and of the single peers that experts and stages send to."""
    reach, total = 1, 0.0
    for axis in ("tensor", "context", "expert", "data", "pipeline"):
        degree = getattr(plan, axis)
        if axis != "expert":
            # Experts lie on ranks of the data axis.
            reach *= degree
        if degree < 2:
            continue
        spans = reach > cluster.devices_per_node
        channels = max(_channels(group, spans=spans) for group in cluster.groups)
        total += channels * habits.communicators * PROCESS.channel_bytes
        if axis in PEER_AXES and channels:
            peers = degree - 1 if axis == "expert" else min(2, degree - 1)
            total += peers * PROCESS.peer_bytes
    return total


def _channels(group: NodeGroup, *, spans: bool) -> int:
    """Of a group inside a node, or of one that spans nodes: a ring through a network has no more channels than its adapters
    feed."""
    inside = PROCESS.channels.get(group.intra.transport, PROCESS.unknown_channels)
    if not spans:
        return inside
    outside = PROCESS.channels.get(group.inter.transport, PROCESS.unknown_channels)
    return min(outside, max(2, 2 * group.inter.num_ports)) if inside else 0


def overheads_of(stack: Stack, plan: Parallelism, *, usual: Overheads | None = None) -> Overheads:
    """What runs of a stack hold beside their tensors. `usual`: the constants of a stack without habits of its own."""
    habits, usual = stack.memory, usual or Overheads.usual()
    planned = "planned" in habits.holds
    return replace(
        usual,
        cache=0.0 if planned else usual.cache,
        queued_gathers=usual.queued_gathers if "queued_gathers" in habits.holds and not planned else 0.0,
        by_weight=planned,
        flat_gradients="flat_gradients" in habits.holds,
        bucket_bytes=habits.bucket_bytes if plan.zero or plan.data * plan.context > 1 or plan.sums_on_host else 0.0,
        gradient_shards=plan.num_shards if plan.zero >= 2 else 1,
        live_bytes=habits.live_bytes if plan.zero == 3 else 0.0,
        keeps_outputs="outputs" in habits.holds,
    )


def profile_stages(
    program: Program, cluster: Cluster, stack: Stack, *, usual: Overheads | None = None, captured: bool = False,
    remember: Remember = compute,
) -> list[MemoryProfile]:  # fmt: skip
    """The memory of every stage of a program on the smallest device. `usual`: as in `overheads_of`. `captured`: the host replays
    steps that it captured (CUDA graphs)."""
    plan = program.parallelism
    outside = list_outside(cluster, plan, stack)
    profiles = replay_stages(
        program.stages,
        capacity_bytes=smallest_bytes(cluster),
        micro_batches=plan.micro_batches,
        overhead_bytes=sum(outside.values()),
        overheads=replace(overheads_of(stack, plan, usual=usual), largest_batch=program.largest_batch),
        bucket_copies=plan.copies_gradients,
        replicated=plan.data > 1,
        remember=remember,
    )
    return [
        _name_outside(profile, outside, _graph_bytes(stage, plan, stack) if captured else 0.0)
        for stage, profile in zip(program.stages, profiles, strict=True)
    ]


def _name_outside(profile: MemoryProfile, outside: Mapping[str, float], graph_bytes: float) -> MemoryProfile:
    """With the parts of what lies outside the allocator, and what captured graphs add to it."""
    queued = profile.outside_bytes - sum(outside.values())
    parts = {**outside, "gathers that must fit": queued, "captured graphs": graph_bytes}
    return replace(
        profile,
        outside_bytes=profile.outside_bytes + graph_bytes,
        outside_parts={name: amount for name, amount in parts.items() if amount > 0},
    )


def _graph_bytes(stage: Stage, plan: Parallelism, stack: Stack) -> float:
    """Of a step that was captured, with every kernel of every pass."""
    counts = stage.counts()
    once = sum(count for task, count in zip(stage.tasks, counts, strict=True) if task.phase == "optimizer")
    return PROCESS.graph_kernel_bytes * (once + (sum(counts) - once) * plan.micro_batches)


def smallest_bytes(cluster: Cluster) -> float:
    return min(group.device.memory_bytes for group in cluster.groups)


def find_fullest(profiles: Sequence[MemoryProfile]) -> MemoryProfile:
    """The stage that comes nearest to filling its device, one whose state alone does not fit first, with the peaks of all."""
    worst = max(profiles, key=lambda one: (one.state_bytes > one.capacity_bytes, one.needed_bytes))
    return replace(worst, stage_peaks=tuple([profile.peak_bytes for profile in profiles]))


def trace_memory(answer: Forecast, job: Job, plan: Parallelism) -> tuple[int, MemoryProfile]:
    """(which stage is the fullest, its tensors op by op over one pass) of a job that was forecast."""
    peaks = answer.memory.stage_peaks
    index = peaks.index(max(peaks)) if peaks else 0
    stage = lower(job.graph, plan, compiled=job.compiled).stages[index]
    capacity = answer.memory.capacity_bytes
    return index, replay_memory(stage, capacity_bytes=capacity, micro_batches=plan.micro_batches, with_curve=True)


def watch_device(
    job: Job, cluster: Cluster, plan: Parallelism, *, around: "Surroundings | None" = None, watched: int | None = None,
    remember: Remember = compute,
) -> DeviceMemory:  # fmt: skip
    """Of the `watched` stage, else of that which comes nearest to filling the smallest device; its requests are replayed one by
    one. `around`: what lies around the allocator, where it is not as under the stack."""
    from traincast.simulate import device_bytes, reserved_bytes, searches_algorithms

    capacity = smallest_bytes(cluster)
    program = lower(job.graph, plan, compiled=job.compiled, remember=remember)
    profiles = profile_stages(program, cluster, job.stack, captured=job.cuda_graphs, remember=remember)
    pairs = list(zip(program.stages, profiles, strict=True))
    stage, profile = max(pairs, key=lambda pair: pair[1].needed_bytes) if watched is None else pairs[watched]
    overheads = overheads_of(job.stack, plan)
    reserved = reserved_bytes(
        stage, profile, accumulates=keeps_gradients(stage, plan.micro_batches, overheads),
        flat_update="flat_updates" in job.stack.memory.holds,
    )  # fmt: skip
    # The requests are those of the mean batch; the meter has seen the largest.
    reserved += profile.by_role.get("activation", 0.0) * (1 - 1 / program.largest_batch)
    around = around or surroundings_of(job.stack)
    used = device_bytes(
        reserved, capacity_bytes=capacity, searches=searches_algorithms(stage), around=around,
        communicators=profile.outside_parts.get("communicators", 0.0),
    )  # fmt: skip
    if "greedy" in job.stack.memory.holds:
        used = around.full * capacity
    live = profile.peak_bytes - profile.by_role.get("allocator", 0.0)
    return DeviceMemory(live_bytes=live, reserved_bytes=reserved, used_bytes=used)


EVALUATION, CHECKPOINT = "evaluation", "checkpoint"
ALWAYS = ("parameter", "optimizer_state", "buffer", "gradient buckets", "communication buffers", "workspace")
"""Roles of a step's peak that are there between steps too."""
STATE_BYTES = 4
"""Of a weight in a gathered state dict: shards are kept in fp32."""
GATHERED_UNITS = 2
"""Wide copies of a unit beside the narrow ones of a step."""


def list_moments(
    program: Program, profiles: Sequence[MemoryProfile], job: Job, *, remember: Remember = compute
) -> tuple[Moment, ...]:
    """Those that the job has, each of the stage where it is the largest."""
    plan = program.parallelism
    evaluates, saves = job.evaluation_every_steps is not None, job.checkpoint_every_steps is not None
    found: dict[str, Moment] = {}
    if not evaluates and not saves:
        return ()
    for stage, profile in zip(program.stages, profiles, strict=True):
        kept = dict(_kept(stage, profile, job, plan))
        if evaluates:
            _take_larger(found, _evaluate(stage, profile, kept, remember=remember))
        if saves:
            _take_larger(found, _save(profile, kept, job, plan))
    return tuple(found.values())


def _take_larger(found: dict[str, Moment], one: Moment) -> None:
    if one.name not in found or found[one.name].peak_bytes < one.peak_bytes:
        found[one.name] = one


def _kept(stage: Stage, profile: MemoryProfile, job: Job, plan: Parallelism) -> Iterator[tuple[str, float]]:
    """What no step gives back. Gradients are dropped between steps, but not those that add up in buffers of their own."""
    for role in ALWAYS:
        yield role, profile.by_role.get(role, 0.0)
    adds_up = keeps_gradients(stage, 1 if plan.pipeline == 1 else plan.micro_batches)
    if adds_up or "flat_gradients" in job.stack.memory.holds:
        yield "gradient", profile.by_role.get("gradient", 0.0)
    if job.cuda_graphs:
        # A captured graph has a pool of its own, which nothing else may use.
        yield "pool of captured graphs", profile.by_role.get("activation", 0.0)


def _evaluate(stage: Stage, profile: MemoryProfile, kept: dict[str, float], *, remember: Remember) -> Moment:
    """A forward pass of the same batch, of which nothing is kept."""
    more = {
        "activation": remember(replay_forward, stage.tasks, stage.repeats, stage.tensors),
        "gathered weights": profile.by_role.get("gathered weights", 0.0),
    }
    return _moment(EVALUATION, {**kept, **more}, profile)


def _save(profile: MemoryProfile, kept: dict[str, float], job: Job, plan: Parallelism) -> Moment:
    """Weights that are sharded come together on the device, unless every rank writes its own."""
    gathered, how = 0.0, "shards" if job.checkpoint_sharded else job.stack.memory.checkpoint
    if plan.zero == 3 and how != "shards":
        gathered = STATE_BYTES * count_weights(job.graph) / (plan.tensor * plan.pipeline)
    if how == "layers":
        gathered = min(gathered, GATHERED_UNITS * profile.by_role.get("gathered weights", 0.0))
    return _moment(CHECKPOINT, {**kept, "gathered state": gathered}, profile)


def _moment(name: str, parts: dict[str, float], profile: MemoryProfile) -> Moment:
    """With what the caching allocator holds on top, as in the step."""
    reserved = profile.by_role.get("allocator", 0.0)
    share = reserved / max(1.0, profile.peak_bytes - reserved - profile.by_role.get("workspace", 0.0))
    parts = {**parts, "allocator": share * sum(parts.values())}
    by_role = {role: amount for role, amount in parts.items() if amount > 0}
    return Moment(name=name, peak_bytes=sum(by_role.values()), by_role=by_role)


def count_weights(graph: Graph) -> float:
    """Weights of the whole model, in all its repeated layers."""
    return float(sum(tensor.numel * tensor.copies for tensor in graph.tensors if tensor.role == "parameter"))


PINNED_ROUNDING = 1.44
"""Pinned blocks are rounded up to a power of two: 1 / ln 2 on average over sizes."""
STREAMED_BYTES = 2e9
"""Buffers of one rank through which state on drives streams: five of 1e8 elements in fp32."""


def hold_on_host(program: Program, job: Job, cluster: Cluster, *, remember: Remember = compute) -> HostMemory | None:
    """Of the fullest node; None where only the processes themselves are there."""
    plan = program.parallelism
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
    parts["processes"] = ranks * PROCESS.host_bytes
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
