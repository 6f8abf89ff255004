"""How busy each rank is: what the timeline shows and, where runs like it were measured, what they say of it."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.certainty import is_plainly_replicated
from traincast.cost import is_gpu
from traincast.forecast._assemble import draw_shares
from traincast.spec import Cluster, Estimate, Job, Parallelism, ResourceProfile, Timeline

if TYPE_CHECKING:
    from traincast.resources import BusyShare

SOCKETS = "sockets"
"""What carried the bytes of the test-bed; networks that read device memory by themselves were never watched."""


def describe_activity(job: Job, cluster: Cluster, plan: Parallelism, timeline: Timeline) -> tuple[ResourceProfile, ...]:
    """Of each distinct rank, by the timeline and by what measured runs on GPUs say of it."""
    from traincast.resources import group_of, profile_resources

    derived = profile_resources(timeline, cluster)
    learned = [_learn_from_gpus(profile, job, cluster, plan, timeline) for profile in derived]
    passes_per_s = plan.micro_batches * plan.data / cluster.num_devices / max(timeline.duration_s, 1e-12)
    shares = draw_shares(job if job.regime is None else None, cluster, timeline, passes_per_s=passes_per_s)
    found = []
    for profile in learned:
        place = group_of(cluster, profile.rank * cluster.num_devices // len(learned))
        rated = cluster.groups[place].device.power_watts
        joules = None if rated is None else shares[place] * rated * timeline.duration_s
        found.append(replace(profile, energy_joules=joules))
    return tuple(found)


def as_sure_as(profiles: tuple[ResourceProfile, ...], step: Estimate) -> tuple[ResourceProfile, ...]:
    """Durations that were derived from the timeline are as sure as the step. So are levels the other way round, because the same
    bytes and FLOP then take more or less time; no share exceeds 1. What was learned keeps its own range."""
    if not step.seconds:
        return profiles
    low, high = step.low_s / step.seconds, step.high_s / step.seconds

    def ranged(profile: ResourceProfile) -> ResourceProfile:
        derived = {name: _range_of(name, value, low, high) for name, value in profile.twelve().items()}
        return replace(profile, ranges={**derived, **profile.ranges})

    return tuple([ranged(profile) for profile in profiles])


def _range_of(name: str, value: float, low: float, high: float) -> tuple[float, float]:
    if name.endswith("_s"):
        return low * value, high * value
    most = 1.0 if name.startswith(("gpu", "memory")) else math.inf
    return value / high, max(value, min(most, value / low))


def expect_run_utilization(job: Job, cluster: Cluster, plan: Parallelism, timeline: Timeline) -> float | None:
    """What nvidia-smi shows over a whole run, by measured runs of data-parallel training on GPUs; None far from them."""
    from traincast.resources import LEAST_NEARNESS

    found = _expect_busy(job, cluster, plan, timeline)
    return found.mean if found is not None and found.nearness >= LEAST_NEARNESS else None


def _expect_busy(job: Job, cluster: Cluster, plan: Parallelism, timeline: Timeline) -> "BusyShare | None":
    """None for what was never watched: inference, plans that split a model, processors and systolic devices."""
    from traincast.resources import ON_GPUS, busy_share, describe_busy, load_gpu_activity

    watched = is_plainly_replicated(plan) and all(is_gpu(group.device) for group in cluster.groups)
    if not watched or job.graph.mode == "inference" or job.regime is not None or not timeline.duration_s:
        return None
    if not ON_GPUS.is_file():
        return None
    point = describe_busy(
        job.graph, timeline, num_nodes=cluster.num_nodes, num_devices=cluster.num_devices, passes=plan.micro_batches
    )
    return load_gpu_activity().utilization(point, busy_share(timeline))


def _learn_from_gpus(
    profile: ResourceProfile, job: Job, cluster: Cluster, plan: Parallelism, timeline: Timeline
) -> ResourceProfile:
    """The numbers of one rank with what measured runs say of them."""
    from traincast.resources import apply_busy, apply_wire, load_gpu_activity

    busy = _expect_busy(job, cluster, plan, timeline)
    if busy is None:
        return profile
    found = apply_busy(profile, busy)
    first = cluster.groups[0]
    if cluster.num_nodes > 1 and all(group.inter.transport == SOCKETS for group in cluster.groups):
        narrowest = min(group.inter.bytes_per_s for group in cluster.groups)
        found = apply_wire(
            found, load_gpu_activity(), num_ranks=cluster.num_nodes,
            link_bytes_per_s=first.inter.bytes_per_s / first.devices_per_node, slowest=narrowest / first.inter.bytes_per_s,
        )  # fmt: skip
    return found
