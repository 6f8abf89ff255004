"""A job that may be made larger or smaller to the largest one that fits, and to what to change first where it does not."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from traincast.errors import IllegalPlan, InvalidInput, TraincastError
from traincast.forecast import Engine
from traincast.noun import noun
from traincast.spec import Cluster, Forecast, Job, Parallelism
from traincast.units import show_bytes

SizedJob = Callable[[int, int | None, Parallelism], Job]
"""(samples of one pass, tokens of a sample or None for the usual, plan) -> the job to forecast."""

LARGEST_BATCH = 2**22
LONGEST_SEQUENCE = 2**23
MOST_COMBINED = 4
MOST_STARTS = 3
"""Of the changes that save most, how many are gone on from where none is enough."""
LEAST_SAVED = 0.005
"""A change that saves a smaller share of the peak is no advice."""
AGAIN = {
    "selective": "activation checkpointing of attention",
    "selective-op": "selective activation checkpointing",
    "full": "full activation checkpointing",
}
SHARDS = {1: "optimizer state (ZeRO 1)", 2: "gradients too (ZeRO 2)", 3: "weights too (ZeRO 3, FSDP)"}
SEQUENCE_STEP = 128
"""Tokens: lengths are multiples of this, which all kernels run well."""


@noun
class Limit:
    """The largest size that fits with the asked confidence, and the forecast at it; size 0: not even the smallest does."""

    size: int
    answer: Forecast | None
    reached_end: bool = False
    """The search ended before the device was full."""


@noun
class Change:
    """One thing to change, what it does to the memory and what it costs in time."""

    name: str
    plan: Parallelism
    batch: int
    peak_bytes: float
    needed_bytes: float
    """The peak and what is held beside the framework's allocator."""
    fit_probability: float
    seconds_ratio: float
    """Seconds per sample over those of the job as it was asked."""
    fits: bool
    """With the asked confidence."""


def largest_batch(job_at: SizedJob, cluster: Cluster, plan: Parallelism, *, confidence: float = 0.5,
                  seq: int | None = None, engine: Engine | None = None) -> Limit:  # fmt: skip
    """The most samples of one pass that fit; memory never falls as they grow, so halving the range finds it."""
    ask = _Fitting(engine=engine or Engine(), job_of=lambda size: job_at(size, seq, plan), cluster=cluster, plan=plan)
    return _search(ask, step=1, last=LARGEST_BATCH, confidence=confidence)


def longest_sequence(job_at: SizedJob, cluster: Cluster, plan: Parallelism, *, batch: int,
                     confidence: float = 0.5, engine: Engine | None = None) -> Limit:  # fmt: skip
    """The most tokens of a sample that fit, as a multiple of 128."""
    # Ranks of the tensor and context axes share the positions evenly.
    step = math.lcm(SEQUENCE_STEP, plan.context * (plan.tensor if plan.sequence_parallel else 1))
    ask = _Fitting(engine=engine or Engine(), job_of=lambda size: job_at(batch, size, plan), cluster=cluster, plan=plan)
    return _search(ask, step=step, last=LONGEST_SEQUENCE, confidence=confidence)


@noun
class _Fitting:
    """Whether a job fits at a size: only its memory is worked out, until one size is chosen."""

    engine: Engine
    job_of: Callable[[int], Job]
    cluster: Cluster
    plan: Parallelism

    def probability(self, size: int) -> float:
        job = self.job_of(size)
        program = self.engine.lower(job, self.cluster, self.plan)
        return self.engine.memory(program, job, self.cluster).fit_probability

    def limit(self, size: int, *, reached_end: bool = False) -> Limit:
        answer = self.engine.forecast(self.job_of(size), self.cluster, self.plan) if size else None
        return Limit(size=size, answer=answer, reached_end=reached_end)


def _search(ask: _Fitting, *, step: int, last: int, confidence: float) -> Limit:
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence = {confidence}; it must lie between 0 and 1")
    low, high = 0, 1
    # Double until it does not fit ...
    while high * step <= last:
        if ask.probability(high * step) < confidence:
            break
        low, high = high, 2 * high
    else:
        return ask.limit(low * step, reached_end=True)
    # ... then halve what lies between.
    while high - low > 1:
        middle = (low + high) // 2
        if ask.probability(middle * step) >= confidence:
            low = middle
        else:
            high = middle
    return ask.limit(low * step)


def suggest_changes(job_at: SizedJob, cluster: Cluster, plan: Parallelism, *, batch: int, seq: int | None = None,
                    confidence: float = 0.5, engine: Engine | None = None) -> list[Change]:  # fmt: skip
    """Each single change that saves memory: those that make it fit first, the cheapest in time before the others.

    Where no single change is enough, further ones are added to those that save most until some fit; the cheapest comes first.
    """
    trial = _Trial(
        job_at=job_at,
        cluster=cluster,
        plan=plan,
        batch=batch,
        seq=seq,
        confidence=confidence,
        engine=engine or Engine(),
    )
    singles = trial.change(plan, batch)
    changes = sorted(
        singles, key=lambda change: (not change.fits, change.seconds_ratio if change.fits else change.peak_bytes)
    )
    if not changes or changes[0].fits:
        return changes
    combined = _combine(trial, changes)
    return [combined, *changes] if combined is not None else changes


def _combine(trial: "_Trial", changes: Sequence[Change]) -> Change | None:
    """The cheapest of the shortest combinations that fit."""
    starts = sorted(changes, key=lambda change: change.peak_bytes)[:MOST_STARTS]
    for _ in range(MOST_COMBINED - 1):
        found = {
            (change.plan, change.batch): change
            for start in starts
            for change in trial.change(start.plan, start.batch)
            if change.peak_bytes < start.peak_bytes
        }
        enough = [change for change in found.values() if change.fits]
        if enough:
            cheapest = sorted(enough, key=lambda change: change.seconds_ratio)[:MOST_STARTS]
            return min(map(trial.regrow, cheapest), key=lambda change: change.seconds_ratio)
        starts = sorted(found.values(), key=lambda change: change.peak_bytes)[:MOST_STARTS]
    return None


@dataclass(slots=True, kw_only=True)
class _Trial:
    """A job as it was asked, and every change of it that was looked at."""

    job_at: SizedJob
    cluster: Cluster
    plan: Parallelism
    batch: int
    seq: int | None
    confidence: float
    engine: Engine
    _known: dict[tuple[Parallelism, int], Forecast | None] = field(default_factory=dict)

    def change(self, plan: Parallelism, batch: int) -> list[Change]:
        """What saves memory against the job as it was asked, by one change of this plan."""
        found = (
            self._weigh(other, size)
            for other, size in (*_alternatives(plan, batch), *self._smaller_passes(plan, batch))
        )
        return [change for change in found if change is not None]

    def regrow(self, change: Change) -> Change:
        """With the largest micro-batch that still fits beside the other changes."""
        passes = max(1, round(change.plan.micro_batches * change.batch / self.batch))
        for plan, size in self._smaller_passes(replace(change.plan, micro_batches=passes), self.batch):
            larger = self._weigh(plan, size)
            if size > change.batch and larger is not None and larger.fits:
                return larger
        return change

    def _weigh(self, plan: Parallelism, batch: int) -> Change | None:
        """None: it cannot be built, or does not save memory."""
        before, after = self._ask(self.plan, self.batch), self._ask(plan, batch)
        if before is None or after is None:
            return None
        if after.memory.peak_bytes > (1 - LEAST_SAVED) * before.memory.peak_bytes:
            return None
        return Change(
            name=_name_change(self.plan, self.batch, plan, batch) + _say_host(before, after),
            plan=plan,
            batch=batch,
            peak_bytes=after.memory.peak_bytes,
            needed_bytes=after.memory.needed_bytes,
            fit_probability=after.memory.fit_probability,
            seconds_ratio=before.samples_per_s / after.samples_per_s,
            fits=after.memory.fit_probability >= self.confidence,
        )

    def _smaller_passes(self, plan: Parallelism, batch: int) -> Iterator[tuple[Parallelism, int]]:
        """The micro-batch halved until it fits, or until one sample is left; what is left out is accumulated."""
        size = batch
        while size > 1:
            size //= 2
            smaller = replace(plan, micro_batches=math.ceil(plan.micro_batches * batch / size))
            answer = self._ask(smaller, size)
            if size == 1 or (answer is not None and answer.memory.fit_probability >= self.confidence):
                yield smaller, size
                return

    def _ask(self, plan: Parallelism, batch: int) -> Forecast | None:
        """None: not every model can be split or cut in every way; what cannot be built is no advice."""
        if (plan, batch) not in self._known:
            try:
                self._known[plan, batch] = self.engine.forecast(self.job_at(batch, self.seq, plan), self.cluster, plan)
            except (IllegalPlan, InvalidInput):
                if (plan, batch) == (self.plan, self.batch):
                    raise
                self._known[plan, batch] = None
        return self._known[plan, batch]


def _alternatives(plan: Parallelism, batch: int) -> Iterator[tuple[Parallelism, int]]:
    for how in AGAIN:
        if plan.recompute not in (how, "full"):
            yield replace(plan, recompute=how), batch
    if plan.data * plan.context > 1:
        for stage in range(plan.zero + 1, 4):
            yield replace(plan, zero=stage), batch
    if plan.tensor > 1 and not plan.sequence_parallel:
        yield replace(plan, sequence_parallel=True), batch
    if (plan.data * plan.context) % (2 * plan.expert) == 0:
        yield replace(plan, expert=2 * plan.expert), batch
    if plan.data > 1 and plan.data % 2 == 0 and (plan.data // 2 * plan.context) % plan.expert == 0:
        half = plan.data // 2
        yield replace(plan, tensor=2 * plan.tensor, data=half, sequence_parallel=True), batch
        passes = max(plan.micro_batches, 4 * plan.pipeline)
        yield replace(plan, pipeline=2 * plan.pipeline, data=half, micro_batches=passes), batch
    if not plan.offload_optimizer:
        yield replace(plan, offload_optimizer=True), batch
    elif not plan.offload_weights:
        yield replace(plan, offload_weights=True), batch


def _say_host(before: Forecast, after: Forecast) -> str:
    """What the host of a node must have for a change, where it needs more and nobody said how much there is."""
    host, usual = after.memory.host, before.memory.host
    if host is None or host.capacity_bytes is not None or host.needed_bytes <= (usual.needed_bytes if usual else 0.0):
        return ""
    return f" ({show_bytes(host.needed_bytes)} of host memory in a node)"


def _name_change(old: Parallelism, old_batch: int, new: Parallelism, new_batch: int) -> str:
    """What differs between two plans, in words."""
    parts = []
    if new.recompute != old.recompute:
        parts.append(AGAIN[new.recompute])
    if new.zero != old.zero:
        parts.append(f"shard {SHARDS[new.zero]}")
    if new.tensor != old.tensor:
        parts.append(f"tensor parallelism {new.tensor}")
    elif new.sequence_parallel != old.sequence_parallel:
        parts.append("sequence parallelism along the tensor axis")
    if new.expert != old.expert:
        parts.append(f"expert parallelism {new.expert}")
    if new.pipeline != old.pipeline:
        parts.append(f"pipeline of {new.pipeline} stages")
    if new_batch != old_batch:
        parts.append(f"micro-batch {new_batch} instead of {old_batch}, accumulated")
    if new.offload_optimizer and not old.offload_optimizer:
        parts.append("optimizer state in host memory")
    if new.offload_weights and not old.offload_weights:
        parts.append("weights in host memory")
    return " + ".join(parts)


def can_grow(job_at: SizedJob, plan: Parallelism, *, batch: int) -> bool:
    """Whether the length of a sample can be chosen for this model."""
    try:
        usual = job_at(batch, None, plan).graph.tokens_per_sample
        return job_at(batch, 2 * SEQUENCE_STEP, plan).graph.tokens_per_sample == 2 * SEQUENCE_STEP and usual > 1
    except TraincastError:
        return False
