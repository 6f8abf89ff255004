"""A lowered program to the memory of its fullest device, as the framework and as the device's own meter (nvidia-smi) see it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traincast.lower import lower
from traincast.memo import Remember, compute
from traincast.simulate import Overheads, keeps_gradients, replay_memory, replay_stages
from traincast.spec import Cluster, Forecast, Job, MemoryProfile, Parallelism, Program, Stack

if TYPE_CHECKING:
    from traincast.simulate import Surroundings

CONTEXT_BYTES = 0.75e9
"""What the driver and libraries hold on a device beside the framework's allocator."""
USABLE = 0.975
"""Share of a device that requests fill, holes included, before one of them finds no room."""
COMMUNICATOR_SHARE = 0.022
"""Share taken by the buffers of one axis: a larger device has more channels to its peers. Found, as the share above, from
runs that failed and from batches chosen to fill the device."""


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


def outside_bytes(capacity_bytes: float, plan: Parallelism, stack: Stack | None = None) -> float:
    """What of a device the framework's allocator never gets to use. Where a compiler plans memory, nothing is left in holes and
    communication has its buffers in the plan."""
    if stack is not None and stack.memory.planned:
        return CONTEXT_BYTES
    num_axes = sum(degree > 1 for degree in (plan.data, plan.tensor, plan.pipeline, plan.context, plan.expert))
    return CONTEXT_BYTES + (1 - USABLE + num_axes * COMMUNICATOR_SHARE) * capacity_bytes


def overheads_of(stack: Stack, plan: Parallelism, *, usual: Overheads | None = None) -> Overheads:
    """What runs of a stack hold beside their tensors. `usual`: the constants of a stack without habits of its own."""
    habits, usual = stack.memory, usual or Overheads()
    return replace(
        usual,
        cache=0.0 if habits.planned else usual.cache,
        queued_gathers=usual.queued_gathers if habits.queued_gathers and not habits.planned else 0.0,
        by_weight=habits.planned,
        bucket_bytes=habits.bucket_bytes if plan.num_shards > 1 and plan.zero else 0.0,
        live_bytes=habits.live_bytes if plan.zero == 3 else 0.0,
    )


def profile_stages(
    program: Program, cluster: Cluster, stack: Stack, *, usual: Overheads | None = None, remember: Remember = compute
) -> list[MemoryProfile]:
    """The memory of every stage of a program on the smallest device. `usual`: as in `overheads_of`."""
    capacity = smallest_bytes(cluster)
    plan = program.parallelism
    return replay_stages(
        program.stages,
        capacity_bytes=capacity,
        micro_batches=plan.micro_batches,
        overhead_bytes=outside_bytes(capacity, plan, stack),
        overheads=overheads_of(stack, plan, usual=usual),
        bucket_copies=plan.copies_gradients,
        replicated=plan.data > 1,
        remember=remember,
    )


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


def watch_device(job: Job, cluster: Cluster, plan: Parallelism, *, remember: Remember = compute) -> DeviceMemory:
    """Of the stage that comes nearest to filling the smallest device; its requests are replayed one by one."""
    from traincast.simulate import device_bytes, reserved_bytes, searches_algorithms

    capacity = smallest_bytes(cluster)
    program = lower(job.graph, plan, compiled=job.compiled, remember=remember)
    profiles = profile_stages(program, cluster, job.stack, remember=remember)
    stage, profile = max(zip(program.stages, profiles, strict=True), key=lambda pair: pair[1].needed_bytes)
    reserved = reserved_bytes(stage, profile, accumulates=keeps_gradients(stage, plan.micro_batches))
    around = surroundings_of(job.stack)
    used = device_bytes(reserved, capacity_bytes=capacity, searches=searches_algorithms(stage), around=around)
    if job.stack.memory.greedy:
        used = around.full * capacity
    live = profile.peak_bytes - profile.by_role.get("allocator", 0.0)
    return DeviceMemory(live_bytes=live, reserved_bytes=reserved, used_bytes=used)
