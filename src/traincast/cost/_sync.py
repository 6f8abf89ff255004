"""Prices collectives between hosts whose own cores do the sending: buckets, hops, the narrowest link, and CPU time taken from
the computation."""

from collections.abc import Mapping

from traincast.spec import Cluster, Collective, CollectiveRates, Stage

UNBOUNDED_BYTES_PER_S = 1e15


def wire_bytes(kind: str, *, num_ranks: int, num_bytes: float) -> float:
    """What one rank sends in the ring algorithms (Patarasuk and Yuan 2009); a broadcast forwards all of it."""
    share = (num_ranks - 1) / num_ranks
    factors = {"all_reduce": 2 * share, "reduce_scatter": share, "all_gather": share, "all_to_all": share}
    return num_bytes * factors.get(kind, 1.0)


def num_hops(kind: str, *, num_ranks: int) -> int:
    return {"all_reduce": 2 * (num_ranks - 1), "send_recv": 1}.get(kind, num_ranks - 1)


def collective_seconds(
    rates: CollectiveRates,
    *,
    num_ranks: int,
    num_bytes: float,
    kind: str = "all_reduce",
    link_bytes_per_s: float | None = None,
    speed: float = 1.0,
    num_buckets: float = 1.0,
) -> float:
    """Of one message, or of `num_bytes` in several buckets; what the cores do takes longer on a part of a core."""
    if num_ranks == 1:
        return 0.0
    wire = wire_bytes(kind, num_ranks=num_ranks, num_bytes=num_bytes)
    latency_s = rates.call_s + rates.hop_s * num_hops(kind, num_ranks=num_ranks)
    carried_s = wire / rates.bytes_per_s
    if rates.link_efficiency is not None and link_bytes_per_s is not None:
        carried_s = max(carried_s, wire / (link_bytes_per_s * rates.link_efficiency))
    return latency_s * num_buckets + _overlapped(
        carried_s, rates.cpu_s_per_byte * wire / speed, exponent=rates.overlap_exponent
    )


def _overlapped(one_s: float, other_s: float, *, exponent: float) -> float:
    longer_s, shorter_s = max(one_s, other_s), min(one_s, other_s)
    # Powers of the ratio, which cannot vanish where those of microseconds would.
    return longer_s * (1 + (shorter_s / longer_s) ** exponent) ** (1 / exponent) if longer_s > 0 else 0.0


def clock_scale(wall_scale: float, cluster: Cluster) -> float:
    """Time by the clock over CPU time of a whole core, on the slowest node: a part of a core is throttled, a whole one never."""
    speed = slowest_speed(cluster)
    return wall_scale / speed if speed < 1 else 1 / speed


def slowest_speed(cluster: Cluster) -> float:
    """A synchronous step waits for the slowest node; a CPU share of a quarter is a speed of 0.25."""
    return min(group.speed for group in cluster.groups)


def narrowest_bytes_per_s(cluster: Cluster) -> float:
    """A ring runs at the rate of its narrowest link."""
    crosses = cluster.num_nodes > 1
    return min((group.inter if crosses else group.intra).bytes_per_s for group in cluster.groups)


def price_collectives(stage: Stage, cluster: Cluster, rates: Mapping[str, CollectiveRates]) -> dict[int, float]:
    """Seconds of each task that is a collective of a known kind, by its place. Gradients travel together in buckets, and each
    pays the part of them that it fills."""
    speed, link = slowest_speed(cluster), narrowest_bytes_per_s(cluster)
    counts = stage.counts()
    whole: dict[tuple[str, int], float] = {}
    for task, count in zip(stage.tasks, counts, strict=True):
        if isinstance(task, Collective) and task.bucket_bytes is not None:
            key = (task.kind, task.num_ranks)
            whole[key] = whole.get(key, 0.0) + task.num_bytes * count
    prices: dict[int, float] = {}
    for index, task in enumerate(stage.tasks):
        if not isinstance(task, Collective) or task.kind not in rates:
            continue
        known = rates[task.kind]
        num_bytes, part, num_buckets = task.num_bytes, 1.0, 1.0
        if task.bucket_bytes is not None and task.num_bytes > 0:
            num_bytes = whole[task.kind, task.num_ranks]
            part = task.num_bytes / num_bytes
            num_buckets = max(1.0, num_bytes / task.bucket_bytes)
        seconds = part * collective_seconds(
            known, num_ranks=task.num_ranks, num_bytes=num_bytes, kind=task.kind, link_bytes_per_s=link, speed=speed,
            num_buckets=num_buckets,
        )  # fmt: skip
        handed_s = known.cpu_s_per_tensor / speed if task.num_ranks > 1 else 0.0
        prices[index] = seconds + handed_s
    return prices
