"""Measured steps of data-parallel hosts to what their collectives cost."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traincast.catalog import read_constants
from traincast.cost import UNBOUNDED_BYTES_PER_S, collective_seconds, num_hops, wire_bytes
from traincast.errors import InvalidInput, MissingExtra
from traincast.noun import noun
from traincast.spec import CollectiveRates

Array = NDArray[np.float64]


@noun
class SyncConstants:
    """Of the document `sync`, which says what each is."""

    overlap_exponent: float
    cpu_s_per_byte: float
    link_share: float
    ridge: float


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
    try:
        from scipy.optimize import nnls
    except ImportError as error:
        raise MissingExtra("scipy", "fit", "learning what synchronising costs") from error
    constants = read_constants(SyncConstants, "sync")
    terms = np.array([_terms(step) for step in steps])
    seconds = np.array([step.seconds for step in steps])
    priors = np.array([0.0, 0.0, 0.0, 0.0, constants.cpu_s_per_byte, constants.link_share])
    largest = terms.max(axis=0)
    # What no step shows stays what is believed.
    scale = np.where(largest > 0, largest, 1 / np.where(priors > 0, priors, 1.0))
    relative = terms / scale / seconds[:, None]
    believed = priors * scale
    # Where the data cannot tell two constants apart (two ranks only: buckets or hops?) they share the time.
    weight = np.linalg.norm(relative, axis=0)
    ridge = np.diag(constants.ridge * np.where(weight > 0, weight, 1.0))
    trust = np.ones(len(steps))
    found = believed
    for _ in range(num_iterations):
        # A sum of powers is linear in its parts as long as their proportion is: found anew in each round, half of the way.
        design = relative * _parts_of_overlap(relative * found, constants.overlap_exponent)
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
        overlap_exponent=constants.overlap_exponent, log_spread=spread, num_measurements=int(many.sum()),
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
