"""A job, a cluster and a plan to what the device's own meter (nvidia-smi) will show."""

from dataclasses import dataclass

from traincast.forecast import outside_bytes, overheads_of
from traincast.lower import lower
from traincast.simulate import replay_stages
from traincast.simulate.memory import keeps_gradients
from traincast.simulate.reserve import LEAN, Surroundings, device_bytes, reserved_bytes, searches_algorithms
from traincast.spec import Cluster, Job, Parallelism, Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The fullest rank as others see it: three numbers for one moment, none of which is wrong."""

    live_bytes: float
    """Of tensors: what torch.cuda.max_memory_allocated reports."""
    reserved_bytes: float
    """What the caching allocator has taken for them: torch.cuda.max_memory_reserved."""
    used_bytes: float
    """What the device has given away, context and workspaces included: nvidia-smi."""


def surroundings_of(stack: Stack) -> Surroundings:
    """What lies around the allocator under a stack."""
    return LEAN if stack.memory.lean else Surroundings()


def watch_device(job: Job, cluster: Cluster, plan: Parallelism) -> DeviceMemory:
    """Of the stage that comes nearest to filling the smallest device; its requests are replayed one by one."""
    capacity = min(group.device.memory_bytes for group in cluster.groups)
    stages = lower(job.graph, plan, compiled=job.compiled).stages
    profiles = replay_stages(
        stages,
        capacity_bytes=capacity,
        micro_batches=plan.micro_batches,
        overhead_bytes=outside_bytes(capacity, plan),
        overheads=overheads_of(job.stack),
        bucket_copies=plan.copies_gradients,
        replicated=plan.data > 1,
    )
    stage, profile = max(zip(stages, profiles, strict=True), key=lambda pair: pair[1].needed_bytes)
    reserved = reserved_bytes(stage, profile, accumulates=keeps_gradients(stage, plan.micro_batches))
    around = surroundings_of(job.stack)
    used = device_bytes(reserved, capacity_bytes=capacity, searches=searches_algorithms(stage), around=around)
    if job.stack.memory.greedy:
        used = around.full * capacity
    live = profile.peak_bytes - profile.by_role.get("allocator", 0.0)
    return DeviceMemory(live_bytes=live, reserved_bytes=reserved, used_bytes=used)
