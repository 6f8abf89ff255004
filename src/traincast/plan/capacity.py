"""A job that may be made larger or smaller to the largest one that fits, and to what to change first where it does not."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from traincast.errors import IllegalPlan, InvalidInput, TraincastError
from traincast.forecast import forecast
from traincast.spec import Cluster, Forecast, Job, Parallelism

Pose = Callable[[int, int | None, Parallelism], Job]
"""(samples of one pass, tokens of a sample or None for the usual, plan) -> the job to forecast."""

LARGEST_BATCH = 2**22
LONGEST_SEQUENCE = 2**23
MOST_COMBINED = 4
LEAST_SAVED = 0.005
"""A change that saves a smaller share of the peak is no advice."""
AGAIN = {
    "selective": "the core of attention",
    "products": "all but attention and every second product",
    "full": "whole layers",
}
SEQUENCE_STEP = 128
"""Tokens: lengths are multiples of this, which all kernels run well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The largest size that fits with the asked confidence, and the forecast at it; size 0: not even the smallest does."""

    size: int
    answer: Forecast | None
    reached_end: bool = False
    """The search ended before the device was full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing to change, what it does to the memory and what it costs in time."""

    name: str
    plan: Parallelism
    batch: int
    peak_bytes: float
    fit_probability: float
    seconds_ratio: float
    """Seconds per sample over those of the job as it was asked."""
    fits: bool
    """With the asked confidence."""


def largest_batch(pose: Pose, cluster: Cluster, plan: Parallelism, *, confidence: float = 0.5,
                  seq: int | None = None) -> Limit:  # fmt: skip
    """The most samples of one pass that fit; memory never falls as they grow, so halving the range finds it."""
    return _search(
        lambda size: forecast(pose(size, seq, plan), cluster, plan), step=1, last=LARGEST_BATCH, confidence=confidence
    )


def longest_sequence(pose: Pose, cluster: Cluster, plan: Parallelism, *, batch: int,
                     confidence: float = 0.5) -> Limit:  # fmt: skip
    """The most tokens of a sample that fit, as a multiple of 128."""
    # Ranks of the tensor and context axes share the positions evenly.
    step = math.lcm(SEQUENCE_STEP, plan.context * (plan.tensor if plan.sequence_parallel else 1))
    return _search(
        lambda size: forecast(pose(batch, size, plan), cluster, plan),
        step=step,
        last=LONGEST_SEQUENCE,
        confidence=confidence,
    )


def _search(ask: Callable[[int], Forecast], *, step: int, last: int, confidence: float) -> Limit:
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence = {confidence}; it must lie between 0 and 1")
    found: Forecast | None = None
    low, high = 0, 1
    # Double until it does not fit ...
    while high * step <= last:
        answer = ask(high * step)
        if answer.memory.fit_probability < confidence:
            break
        found, low, high = answer, high, 2 * high
    else:
        return Limit(size=low * step, answer=found, reached_end=True)
    # ... then halve what lies between.
    while high - low > 1:
        middle = (low + high) // 2
        answer = ask(middle * step)
        if answer.memory.fit_probability >= confidence:
            found, low = answer, middle
        else:
            high = middle
    return Limit(size=low * step, answer=found)


def suggest_changes(pose: Pose, cluster: Cluster, plan: Parallelism, *, batch: int, seq: int | None = None,
                    confidence: float = 0.5) -> list[Change]:  # fmt: skip
    """Each single change that saves memory: those that make it fit first, the cheapest in time before the others.

    Where no single change is enough, the one that saves most is made and the next is looked for, until it fits.
    """
    before = forecast(pose(batch, seq, plan), cluster, plan)
    singles = list(_try_each(pose, cluster, plan, batch, seq, before, confidence))
    changes = sorted(
        singles, key=lambda change: (not change.fits, change.seconds_ratio if change.fits else change.peak_bytes)
    )
    if not changes or changes[0].fits:
        return changes
    best = changes[0]
    for _ in range(MOST_COMBINED - 1):
        further = list(_try_each(pose, cluster, best.plan, best.batch, seq, before, confidence))
        smaller = [change for change in further if change.peak_bytes < best.peak_bytes]
        if not smaller:
            return changes
        enough = [change for change in smaller if change.fits]
        step = (
            min(enough, key=lambda change: change.seconds_ratio)
            if enough
            else min(smaller, key=lambda change: change.peak_bytes)
        )
        best = replace(step, name=f"{best.name} + {step.name}")
        if best.fits:
            return [best, *changes]
    return changes


def _try_each(pose: Pose, cluster: Cluster, plan: Parallelism, batch: int, seq: int | None, before: Forecast,
              confidence: float) -> Iterator[Change]:  # fmt: skip
    for name, other, size in _alternatives(plan, batch):
        try:
            after = forecast(pose(size, seq, other), cluster, other)
        except (IllegalPlan, InvalidInput):
            # Not every model can be split or cut in every way; what cannot be built is no advice.
            continue
        if after.memory.peak_bytes > (1 - LEAST_SAVED) * before.memory.peak_bytes:
            continue
        yield Change(
            name=name,
            plan=other,
            batch=size,
            peak_bytes=after.memory.peak_bytes,
            fit_probability=after.memory.fit_probability,
            seconds_ratio=before.samples_per_s / after.samples_per_s,
            fits=after.memory.fit_probability >= confidence,
        )


def _alternatives(plan: Parallelism, batch: int) -> Iterator[tuple[str, Parallelism, int]]:
    for how, what in AGAIN.items():
        if plan.recompute not in (how, "full"):
            yield f"recompute {what}", replace(plan, recompute=how), batch
    if plan.data * plan.context > 1:
        shards = {1: "optimizer state (ZeRO 1)", 2: "gradients too (ZeRO 2)", 3: "weights too (ZeRO 3, FSDP)"}
        for stage in range(plan.zero + 1, 4):
            yield f"shard {shards[stage]}", replace(plan, zero=stage), batch
    if batch > 1:
        smaller = batch // 2
        yield (
            f"micro-batch {smaller} instead of {batch}, accumulated",
            replace(plan, micro_batches=math.ceil(plan.micro_batches * batch / smaller)),
            smaller,
        )
    if plan.tensor > 1 and not plan.sequence_parallel:
        yield "sequence parallelism along the tensor axis", replace(plan, sequence_parallel=True), batch
    if plan.data > 1 and plan.data % 2 == 0 and (plan.data // 2 * plan.context) % plan.expert == 0:
        half = plan.data // 2
        yield (
            f"tensor parallelism {2 * plan.tensor}",
            replace(plan, tensor=2 * plan.tensor, data=half, sequence_parallel=True),
            batch,
        )
        yield (
            f"pipeline of {2 * plan.pipeline} stages",
            replace(
                plan, pipeline=2 * plan.pipeline, data=half, micro_batches=max(plan.micro_batches, 4 * plan.pipeline)
            ),
            batch,
        )
    if not plan.offload_optimizer:
        yield "optimizer state in host memory", replace(plan, offload_optimizer=True), batch


def can_grow(pose: Pose, plan: Parallelism, *, batch: int) -> bool:
    """Whether the length of a sample can be chosen for this model."""
    try:
        usual = pose(batch, None, plan).graph.tokens_per_sample
        return pose(batch, 2 * SEQUENCE_STEP, plan).graph.tokens_per_sample == 2 * SEQUENCE_STEP and usual > 1
    except TraincastError:
        return False
