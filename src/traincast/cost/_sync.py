"""Prices collectives between hosts whose own cores do the sending: buckets, hops, the narrowest link, and CPU time taken from
the computation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.spec import Cluster, Collective, CollectiveRates, Stage

Array = NDArray[np.float64]
UNBOUNDED_BYTES_PER_S = 1e15
RIDGE = 0.01
OVERLAP_EXPONENT = 2.0
"""Under a CPU quota the kernel goes on sending while a rank waits for its next period: of sums of powers this one fitted all
twelve networks of our corpus best, with architectures left out (docs/how-to/calibrate.md)."""
PRIOR_CPU_S_PER_BYTE, PRIOR_LINK_SHARE = 1e-9, 1.0
"""What is believed where only one link was measured, and CPU time and time on the link cannot be told apart: a byte costs gloo
about a nanosecond of CPU time, and the payload travels at the nominal rate."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedStep:
    """One measured step of data-parallel ranks, and what is known about it: the amounts the fit needs."""

    seconds: float
    compute_s: float
    """CPU time of the step's operators on a whole core."""
    num_ranks: int
    speed: float
    link_bytes_per_s: float
    gradient_bytes: float
    num_tensors: int
    """Gradients handed over one by one."""
    num_buckets: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What a fit of synchronised steps found."""

    wall_scale: float
    rates: CollectiveRates

    def seconds(self, step: SyncedStep) -> float:
        """The step in closed form: computation, handing over and the collective one after the other."""
        compute_s = self.wall_scale * step.compute_s / step.speed
        if step.num_ranks == 1:
            return compute_s
        handed_s = self.rates.cpu_s_per_tensor * step.num_tensors / step.speed
        return compute_s + handed_s + collective_seconds(
            self.rates, num_ranks=step.num_ranks, num_bytes=step.gradient_bytes,
            link_bytes_per_s=step.link_bytes_per_s, speed=step.speed, num_buckets=step.num_buckets,
        )  # fmt: skip


def fit_sync(steps: Sequence[SyncedStep], *, num_iterations: int = 30) -> Synced:
    """Relative least squares with no constant below zero, outliers weighed down (Huber 1964)."""
    if len(steps) < 3:
        raise InvalidInput(f"{len(steps)} measured steps; at least three are needed, some of them with several ranks")
    terms = np.array([_terms(step) for step in steps])
    seconds = np.array([step.seconds for step in steps])
    priors = np.array([0.0, 0.0, 0.0, 0.0, PRIOR_CPU_S_PER_BYTE, PRIOR_LINK_SHARE])
    largest = terms.max(axis=0)
    # What no step shows stays what is believed.
    scale = np.where(largest > 0, largest, 1 / np.where(priors > 0, priors, 1.0))
    relative = terms / scale / seconds[:, None]
    believed = priors * scale
    # Where the data cannot tell two constants apart (two ranks only: buckets or hops?) they share the time.
    weight = np.linalg.norm(relative, axis=0)
    ridge = np.diag(RIDGE * np.where(weight > 0, weight, 1.0))
    trust = np.ones(len(steps))
    found = believed
    for _ in range(num_iterations):
        # A sum of powers is linear in its parts as long as their proportion is: found anew in each round, half of the way.
        design = relative * _parts_of_overlap(relative * found)
        weighed = np.concatenate([design * trust[:, None], ridge])
        solved = _nonnegative(weighed, np.concatenate([trust, ridge @ believed]))
        residual = design @ solved - 1
        trust = np.sqrt(np.minimum(1.0, 0.1 / np.maximum(np.abs(residual), 1e-9)))
        found = np.concatenate([solved[:4], 0.5 * (found[4:] + solved[4:])])
    wall, per_tensor, call_s, hop_s, per_byte, per_link = (float(value) for value in found / scale)
    many = np.array([step.num_ranks > 1 for step in steps])
    spread = float(np.sqrt(np.mean(np.minimum(np.abs(residual[many]), 1.0) ** 2))) if many.any() else 0.0
    rates = CollectiveRates(
        hop_s=hop_s, call_s=call_s, bytes_per_s=UNBOUNDED_BYTES_PER_S, cpu_s_per_byte=per_byte,
        cpu_s_per_tensor=per_tensor, link_efficiency=1 / per_link if per_link > 0 else 1e6,
        overlap_exponent=OVERLAP_EXPONENT, log_spread=spread, num_measurements=int(many.sum()),
    )  # fmt: skip
    return Synced(wall_scale=wall if wall > 0 else 1.0, rates=rates)


def _parts_of_overlap(shares: Array) -> Array:
    """Factors that make the columns of CPU time per byte and of the link add up to what both take together."""
    parts = np.ones_like(shares)
    together = np.linalg.norm(shares[:, 4:], ord=OVERLAP_EXPONENT, axis=1)
    known = together > 0
    parts[known, 4:] = (shares[known, 4:] / together[known, None]) ** (OVERLAP_EXPONENT - 1)
    return parts


def _terms(step: SyncedStep) -> tuple[float, ...]:
    """In the order wall scale, CPU per tensor, per bucket, per hop, CPU per byte, share of the link."""
    if step.num_ranks == 1:
        return (step.compute_s / step.speed, 0.0, 0.0, 0.0, 0.0, 0.0)
    wire = wire_bytes("all_reduce", num_ranks=step.num_ranks, num_bytes=step.gradient_bytes)
    hops = num_hops("all_reduce", num_ranks=step.num_ranks)
    return (
        step.compute_s / step.speed,
        step.num_tensors / step.speed,
        step.num_buckets,
        step.num_buckets * hops,
        wire / step.speed,
        wire / step.link_bytes_per_s,
    )


def _nonnegative(design: Array, target: Array) -> Array:
    """Least squares with no coefficient below zero (Lawson and Hanson 1974): the active set grows by the steepest column."""
    num_columns = design.shape[1]
    free = np.zeros(num_columns, dtype=bool)
    solution = np.zeros(num_columns)
    for _ in range(10 * num_columns):
        slope = design.T @ (target - design @ solution)
        slope[free] = -np.inf
        if not (slope > 1e-10).any():
            break
        free[int(np.argmax(slope))] = True
        while True:
            trial = np.zeros(num_columns)
            trial[free] = np.linalg.lstsq(design[:, free], target, rcond=None)[0]
            if (trial[free] > 0).all():
                break
            falling = free & (trial <= 0)
            step = float(np.min(solution[falling] / np.maximum(solution[falling] - trial[falling], 1e-300)))
            solution = solution + step * (trial - solution)
            free &= solution > 1e-14
            solution[~free] = 0.0
        solution = trial
    return solution
