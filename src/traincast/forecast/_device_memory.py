"""A lowered program to the memory of its fullest device, as the framework and as the device's own meter (nvidia-smi) see it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traincast.lower import lower
from traincast.memo import Remember, compute
from traincast.simulate import Overheads, keeps_gradients, replay_memory, replay_stages
from traincast.spec import (
    Cluster,
    Forecast,
    Job,
    MemoryHabits,
    MemoryProfile,
    NodeGroup,
    Parallelism,
    Program,
    Stack,
    Stage,
)

if TYPE_CHECKING:
    from traincast.simulate import Surroundings

CHANNELS = {
    "nvswitch": 24, "nvlink": 12, "nvlink-cube": 12, "nvlink-pairs": 4, "xgmi": 16, "c2c": 24, "pcie": 4, "pcie-host": 2,
    "infiniband": 16, "roce": 16, "efa": 16, "slingshot": 8, "tcpx": 8, "sockets": 2, "dcn": 0, "ici": 0, "neuronlink": 0,
    "memory": 0,
}  # fmt: skip
"""Channels that a communicator opens over each kind of link, as NCCL and RCCL choose them: recalled, not measured. Links that a
compiler drives have none, because their buffers are in the plan of the program, and hosts without devices have none either."""
RESERVED_BYTES = 2.7e8
"""What the runtime of a chip holds whose links a compiler drives: compilers of TPU v5e report 15.75 of 16 GiB (recalled)."""
UNKNOWN_CHANNELS = 8
PEER_AXES = ("expert", "pipeline")
"""Axes on which a rank also sends to single peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    from traincast.simulate import LEAN, Surroundings

    return LEAN if stack.memory.lean else Surroundings()


def outside_bytes(cluster: Cluster, plan: Parallelism, stack: Stack | None = None) -> float:
    """What of the smallest device the framework's allocator never gets to use."""
    return sum(list_outside(cluster, plan, stack).values())


def list_outside(cluster: Cluster, plan: Parallelism, stack: Stack | None = None) -> dict[str, float]:
    """The same part by part. Where a compiler plans memory, nothing is left in holes and communication has its buffers in the
    plan."""
    habits = (stack or Stack()).memory
    if habits.planned:
        driven = all(CHANNELS.get(group.intra.transport) == 0 for group in cluster.groups)
        return {"driver and libraries": min(habits.context_bytes, RESERVED_BYTES) if driven else habits.context_bytes}
    return {
        "driver and libraries": habits.context_bytes,
        "communicators": communicator_bytes(cluster, plan, habits),
        "holes between blocks": habits.hole_share * smallest_bytes(cluster),
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
        total += channels * habits.communicators * habits.channel_bytes
        if axis in PEER_AXES and channels:
            peers = degree - 1 if axis == "expert" else min(2, degree - 1)
            total += peers * habits.peer_bytes
    return total


def _channels(group: NodeGroup, *, spans: bool) -> int:
    """Of a group inside a node, or of one that spans nodes: a ring through a network has no more channels than its adapters
    feed."""
    inside = CHANNELS.get(group.intra.transport, UNKNOWN_CHANNELS)
    if not spans:
        return inside
    outside = CHANNELS.get(group.inter.transport, UNKNOWN_CHANNELS)
    return min(outside, max(2, 2 * group.inter.num_ports)) if inside else 0


def overheads_of(stack: Stack, plan: Parallelism, *, usual: Overheads | None = None) -> Overheads:
    """What runs of a stack hold beside their tensors. `usual`: the constants of a stack without habits of its own."""
    habits, usual = stack.memory, usual or Overheads()
    return replace(
        usual,
        cache=0.0 if habits.planned else usual.cache,
        queued_gathers=usual.queued_gathers if habits.queued_gathers and not habits.planned else 0.0,
        by_weight=habits.planned,
        flat_gradients=habits.flat_gradients,
        bucket_bytes=habits.bucket_bytes if plan.data * plan.context > 1 or plan.sums_on_host else 0.0,
        gradient_shards=plan.num_shards if plan.zero >= 2 else 1,
        live_bytes=habits.live_bytes if plan.zero == 3 else 0.0,
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
    return stack.memory.graph_kernel_bytes * (once + (sum(counts) - once) * plan.micro_batches)


def smallest_bytes(cluster: Cluster) -> float:
    return min(group.device.memory_bytes for group in cluster.groups)


def find_fullest(profiles: Sequence[MemoryProfile]) -> MemoryProfile:
    """The stage that comes nearest to filling its device, with the peaks of all."""
    worst = max(profiles, key=lambda profile: profile.needed_bytes)
    return replace(worst, stage_peaks=tuple([profile.peak_bytes for profile in profiles]))


def trace_memory(answer: Forecast, job: Job, plan: Parallelism) -> tuple[int, MemoryProfile]:
    """(which stage is the fullest, its tensors op by op over one pass) of a job that was forecast."""
    peaks = answer.memory.stage_peaks
    index = peaks.index(max(peaks)) if peaks else 0
    stage = lower(job.graph, plan, compiled=job.compiled).stages[index]
    capacity = answer.memory.capacity_bytes
    return index, replay_memory(stage, capacity_bytes=capacity, micro_batches=plan.micro_batches, with_curve=True)


def watch_device(
    job: Job, cluster: Cluster, plan: Parallelism, *, around: "Surroundings | None" = None, remember: Remember = compute
) -> DeviceMemory:
    """Of the stage that comes nearest to filling the smallest device; its requests are replayed one by one. `around`: what lies
    around the allocator, where it is not as under the stack."""
    from traincast.simulate import device_bytes, reserved_bytes, searches_algorithms

    capacity = smallest_bytes(cluster)
    program = lower(job.graph, plan, compiled=job.compiled, remember=remember)
    profiles = profile_stages(program, cluster, job.stack, captured=job.cuda_graphs, remember=remember)
    stage, profile = max(zip(program.stages, profiles, strict=True), key=lambda pair: pair[1].needed_bytes)
    overheads = overheads_of(job.stack, plan)
    reserved = reserved_bytes(stage, profile, accumulates=keeps_gradients(stage, plan.micro_batches, overheads))
    # The requests are those of the mean batch; the meter has seen the largest.
    reserved += profile.by_role.get("activation", 0.0) * (1 - 1 / program.largest_batch)
    around = around or surroundings_of(job.stack)
    used = device_bytes(reserved, capacity_bytes=capacity, searches=searches_algorithms(stage), around=around)
    if job.stack.memory.greedy:
        used = around.full * capacity
    live = profile.peak_bytes - profile.by_role.get("allocator", 0.0)
    return DeviceMemory(live_bytes=live, reserved_bytes=reserved, used_bytes=used)
