"""How busy each rank is: what the timeline shows and, where runs like it were measured, what they say of it."""

from dataclasses import replace

from traincast.resources import profile_resources
from traincast.resources.correction import WEIGHTS, Corrected, GraphCorrection, load_graph_correction
from traincast.resources.learned import WINDOW_S, Place
from traincast.spec import Activity, Cluster, Job, Parallelism, ResourceProfile, Timeline

CORE_FLOP_PER_S = 2e11
"""One core of a processor is slower than this and every accelerator faster: runs on cores say nothing about those."""

LEAST_NEARNESS = 0.05
"""Below it nothing of a correction is left."""


def describe_activity(job: Job, cluster: Cluster, plan: Parallelism, timeline: Timeline, *,
                      correction: GraphCorrection | None = None) -> tuple[ResourceProfile, ...]:  # fmt: skip
    """`correction`: fitted to runs of this very setting; without one, what our own runs on CPU nodes taught is used for CPU
    nodes and nothing for anything else."""
    derived = profile_resources(timeline, cluster)
    if correction is None and not (is_like_corpus(cluster) and WEIGHTS.is_file()):
        return derived
    if not is_plain_data_parallel(cluster, plan) or len(derived) != 1:
        return derived
    chosen = correction or load_graph_correction()
    found = chosen.predict(job.graph, place_of(cluster), step_s=timeline.duration_s)
    return (correct_profile(derived[0], found),) if found.nearness >= LEAST_NEARNESS else derived


def is_like_corpus(cluster: Cluster) -> bool:
    """One CPU core, or a part of one, in each node."""
    cores = all((group.device.peak_flop_per_s("fp32") or 0.0) <= CORE_FLOP_PER_S for group in cluster.groups)
    return cores and not any(group.device.matrix_flop_per_s for group in cluster.groups)


def is_plain_data_parallel(cluster: Cluster, plan: Parallelism) -> bool:
    plain = plan == replace(Parallelism(data=plan.data), overlap=plan.overlap, bucket_bytes=plan.bucket_bytes)
    return plain and all(group.devices_per_node == 1 for group in cluster.groups)


def place_of(cluster: Cluster) -> Place:
    """Of the first rank."""
    first = cluster.groups[0]
    return Place(
        num_ranks=cluster.num_devices,
        bytes_per_s=first.inter.bytes_per_s,
        narrowest_bytes_per_s=min(group.inter.bytes_per_s for group in cluster.groups),
        speed=first.speed,
        slowest=min(group.speed for group in cluster.groups),
    )


def correct_profile(derived: ResourceProfile, found: Corrected) -> ResourceProfile:
    """Durations, peaks and their ranges as corrected; bytes and energy stay as derived."""
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
