"""How busy each rank is: what the timeline shows and, where runs like it were measured, what they say of it."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.cost import is_gpu
from traincast.errors import InvalidInput
from traincast.forecast._arbitrate import is_plainly_replicated
from traincast.spec import Activity, Cluster, Estimate, Job, Parallelism, ResourceProfile, Timeline

if TYPE_CHECKING:
    from traincast.resources import Busy, Corrected, GraphCorrection, Place

CORE_FLOP_PER_S = 2e11
"""One core of a processor is slower than this and every accelerator faster: runs on cores say nothing about those."""

SOCKETS = "sockets"
"""What carried the bytes of the test-bed; networks that read device memory by themselves were never watched."""

CORE = "cpu"
"""Stands for any such core."""

LEAST_NEARNESS = 0.05
"""Below it nothing of a correction is left."""


def describe_activity(job: Job, cluster: Cluster, plan: Parallelism, timeline: Timeline, *,
                      correction: "GraphCorrection | None" = None) -> tuple[ResourceProfile, ...]:  # fmt: skip
    """`correction`: fitted to runs of this very setting; without one, what our own runs on CPU nodes taught is used for CPU
    nodes and nothing for anything else."""
    from traincast.resources import WEIGHTS, load_graph_correction, profile_resources

    derived = profile_resources(timeline, cluster)
    if correction is not None:
        _check_device(correction, cluster)
    if correction is None and not (is_like_corpus(cluster) and WEIGHTS.is_file()):
        return tuple([_learn_from_gpus(profile, job, cluster, plan, timeline) for profile in derived])
    if not is_plain_data_parallel(cluster, plan) or len(derived) != 1:
        return derived
    chosen = correction or load_graph_correction()
    found = chosen.predict(job.graph, place_of(cluster), step_s=timeline.duration_s)
    return (correct_profile(derived[0], found),) if found.nearness >= LEAST_NEARNESS else derived


def as_sure_as(profiles: tuple[ResourceProfile, ...], step: Estimate) -> tuple[ResourceProfile, ...]:
    """Durations that were derived from the timeline are as sure as the step. So are levels the other way round, because the same
    bytes and FLOP then take more or less time; no share exceeds 1. What was learned keeps its own range."""
    if not step.seconds:
        return profiles
    low, high = step.low_s / step.seconds, step.high_s / step.seconds

    def ranged(profile: ResourceProfile) -> ResourceProfile:
        if profile.basis == "corrected":
            return profile
        derived = {name: _range_of(name, value, low, high) for name, value in profile.twelve().items()}
        return replace(profile, ranges={**derived, **profile.ranges})

    return tuple([ranged(profile) for profile in profiles])


def _range_of(name: str, value: float, low: float, high: float) -> tuple[float, float]:
    if name.endswith("_s"):
        return low * value, high * value
    most = 1.0 if name.startswith(("gpu", "memory")) else math.inf
    return value / high, max(value, min(most, value / low))


def _check_device(correction: "GraphCorrection", cluster: Cluster) -> None:
    """Runs on one device say nothing about how busy another is."""
    learned = correction.about.get("device")
    if learned is None or (learned == CORE and is_like_corpus(cluster)):
        return
    others = sorted({group.device.name for group in cluster.groups} - {learned})
    if others:
        raise InvalidInput(
            f"the activity correction was fitted to runs on {learned!r} and is asked about {', '.join(map(repr, others))}; "
            "fit one to your own runs: python -m research.fits.resources --corpus FOLDER --device NAME -o FILE"
        )


def expect_run_utilization(job: Job, cluster: Cluster, plan: Parallelism, timeline: Timeline) -> float | None:
    """What nvidia-smi shows over a whole run, by measured runs of data-parallel training on GPUs; None far from them."""
    from traincast.resources import LEAST_NEARNESS

    found = _expect_busy(job, cluster, plan, timeline)
    return found.mean if found is not None and found.nearness >= LEAST_NEARNESS else None


def _expect_busy(job: Job, cluster: Cluster, plan: Parallelism, timeline: Timeline) -> "Busy | None":
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


def is_like_corpus(cluster: Cluster) -> bool:
    """One CPU core, or a part of one, in each node."""
    cores = all((group.device.peak_flop_per_s("fp32") or 0.0) <= CORE_FLOP_PER_S for group in cluster.groups)
    return cores and not any(group.device.matrix_flop_per_s for group in cluster.groups)


def is_plain_data_parallel(cluster: Cluster, plan: Parallelism) -> bool:
    return is_plainly_replicated(plan) and all(group.devices_per_node == 1 for group in cluster.groups)


def place_of(cluster: Cluster) -> "Place":
    """Of the first rank."""
    from traincast.resources import Place

    first = cluster.groups[0]
    return Place(
        num_ranks=cluster.num_devices,
        bytes_per_s=first.inter.bytes_per_s,
        narrowest_bytes_per_s=min(group.inter.bytes_per_s for group in cluster.groups),
        speed=first.speed,
        slowest=min(group.speed for group in cluster.groups),
    )


def correct_profile(derived: ResourceProfile, found: "Corrected") -> ResourceProfile:
    """Durations, peaks and their ranges as corrected; bytes and energy stay as derived."""
    from traincast.resources import WINDOW_S

    sent_per_s = {"received": derived.received_bytes / found.step_s, "sent": derived.sent_bytes / found.step_s}

    def corrected(resource: str) -> Activity:
        before: Activity = getattr(derived, resource)
        idle_s, burst_s, peak = (found.twelve[f"{resource}_{name}"] for name in ("idle_s", "burst_s", "peak"))
        # The mean of a level cannot exceed its peak in the bursts and nothing beside them.
        mean = sent_per_s.get(resource, min(before.mean, peak * burst_s / found.step_s))
        return Activity(idle_s=idle_s, burst_s=burst_s, peak=peak, mean=mean, num_bursts=before.num_bursts)

    return replace(
        derived, step_s=found.step_s, window_s=WINDOW_S, basis="corrected", ranges=dict(found.ranges),
        gpu=corrected("gpu"), memory=corrected("memory"), received=corrected("received"), sent=corrected("sent"),
    )  # fmt: skip
