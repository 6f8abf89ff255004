"""Mixed devices: what the slow ones cost a synchronous step, and the split of the batch that would balance them."""

from collections.abc import Sequence

from traincast.cost import default_ops
from traincast.spec import Cluster, Job, Parallelism

WORTH_SAYING = 0.05


def advise_split(job: Job, cluster: Cluster, plan: Parallelism) -> tuple[str, ...]:
    """A sentence where an uneven batch would save a visible share of the step; nothing for equal devices."""
    kinds = {(group.device.name, group.speed) for group in cluster.groups}
    if len(kinds) < 2 or plan.tensor * plan.pipeline * plan.context > 1:
        return ()
    speeds = sample_rates(job, cluster)
    slowest = min(rate for _, _, rate in speeds)
    replicas = sum(count for _, count, _ in speeds)
    gain = 1 - slowest * replicas / sum(count * rate for _, count, rate in speeds)
    if gain < WORTH_SAYING:
        return ()
    parts = split_batch(speeds, job.graph.batch_size * replicas)
    if len(set(parts)) == 1:
        # So few samples cannot be split in any other way.
        return ()
    shares = ", ".join(f"{batch} on each {name}" for (name, _, _), batch in zip(speeds, parts, strict=True))
    return (
        f"every step waits for the slowest device; a batch split by speed ({shares}, instead of {job.graph.batch_size} "
        f"on each) would save about {gain:.0%} of the computation",
    )


def sample_rates(job: Job, cluster: Cluster) -> list[tuple[str, int, float]]:
    """(device, how many, samples per second of one) for each group of the cluster."""
    ops = default_ops()
    rates = []
    for group in cluster.groups:
        estimates = ops.estimate_ops(job.graph.ops, group.device)
        step_s = sum(e.seconds * count for e, count in zip(estimates, job.graph.counts(), strict=True))
        rates.append((group.device.name, group.num_devices, job.graph.batch_size * group.speed / step_s))
    return rates


def split_batch(rates: Sequence[tuple[str, int, float]], samples: int) -> list[int]:
    """Samples for one device of each group, in proportion to its speed, at least one each."""
    whole = sum(count * rate for _, count, rate in rates)
    return [max(1, round(samples * rate / whole)) for _, _, rate in rates]
