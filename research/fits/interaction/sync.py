"""Measured steps of data-parallel hosts to what their collectives cost."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.noun import noun

Array = NDArray[np.float64]


OVERLAP_EXPONENT = 2.0
"""Under a CPU quota the kernel goes on sending while a rank waits for its next period: of sums of powers this one fitted best
(twelve networks of our corpus, architectures left out)."""
CPU_S_PER_BYTE = 1e-9
"""CPU time of gloo, as believed where only one link was measured."""
LINK_SHARE = 1.0
"""The payload travels at the nominal rate."""
RIDGE = 0.01
"""Where data cannot tell two constants apart they share the time."""
UNBOUNDED_BYTES_PER_S = 1e15


@noun
class CollectiveRates:
    """What one kind of collective reaches between the ranks of one machine: latency per hop and payload rate."""

    hop_s: float
    bytes_per_s: float
    cpu_s_per_byte: float = 0.0
    """Taken from the same cores that compute; zero where the network card does the work."""
    cpu_s_per_tensor: float = 0.0
    """The same for each gradient that is copied into a bucket and handed over."""
    call_s: float = 0.0
    """Of each bucket, beside its hops."""
    link_efficiency: float | None = None
    """Share of the narrowest link's rate that the payload reaches; None: bytes_per_s belongs to the one link there is."""
    overlap_exponent: float = 1.0
    """How the bytes' time on the link and their CPU time make one: (a^p + b^p)^(1/p). At 1 they follow each other; above, the
    link goes on while the cores wait for their share, and towards infinity only the longer one counts."""
    log_spread: float = 0.0
    num_measurements: int = 0

    def __post_init__(self) -> None:
        efficiency = 1.0 if self.link_efficiency is None else self.link_efficiency
        amounts = (self.hop_s, self.cpu_s_per_byte, self.cpu_s_per_tensor, self.call_s)
        if not (self.bytes_per_s > 0 and efficiency > 0 and min(amounts) >= 0):
            raise InvalidInput(
                f"bytes_per_s = {self.bytes_per_s}, hop_s = {self.hop_s}; a rate is above 0, a latency >= 0"
            )
        if not (self.overlap_exponent >= 1 and math.isfinite(self.overlap_exponent)):
            raise InvalidInput(f"overlap_exponent = {self.overlap_exponent}; it must be finite and at least 1")


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


@noun
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


@noun
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
    from scipy.optimize import nnls

    terms = np.array([_terms(step) for step in steps])
    seconds = np.array([step.seconds for step in steps])
    priors = np.array([0.0, 0.0, 0.0, 0.0, CPU_S_PER_BYTE, LINK_SHARE])
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
        design = relative * _parts_of_overlap(relative * found, OVERLAP_EXPONENT)
        weighed = np.concatenate([design * trust[:, None], ridge])
        solved = nnls(weighed, np.concatenate([trust, ridge @ believed]))[0]
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


def _parts_of_overlap(shares: Array, exponent: float) -> Array:
    """Factors that make the columns of CPU time per byte and of the link add up to what both take together."""
    parts = np.ones_like(shares)
    together = np.linalg.norm(shares[:, 4:], ord=exponent, axis=1)
    known = together > 0
    parts[known, 4:] = (shares[known, 4:] / together[known, None]) ** (exponent - 1)
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
