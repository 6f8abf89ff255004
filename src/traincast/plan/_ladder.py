"""What practitioners try to the simplest plan that fits and is within a few percent of the best."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from traincast.errors import IllegalPlan, InvalidInput, TraincastError
from traincast.noun import noun
from traincast.plan._judge import Judge
from traincast.plan._space import STATE_BYTES, is_small
from traincast.plan._usual import RECOMPUTES, Open, degree, list_usual
from traincast.resolve import most_samples, usual_global_batch
from traincast.spec import Forecast, Graph, Job, MemoryProfile, Parallelism

TOLERANCE = 0.05
"""A simpler plan is preferred unless another is faster by more than this."""
WORTH_RECOMPUTING = 0.02
"""Layers are run again only where that is faster by more than this, or where it must be."""
Complete = Callable[[Mapping[str, Any]], Parallelism]
"""Named values -> the plan with the habits of its stack."""
_ALONE = {"data": 1, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1, "zero": 0, "micro_batches": 1,
          "recompute": "none"}  # fmt: skip


@noun
class Rung:
    """One arrangement at its best batch and recomputation."""

    title: str
    plan: Parallelism
    batch: int
    memory: MemoryProfile
    forecast: Forecast | None = None
    """None: it does not fit, so its time was not worked out."""

    @property
    def samples_per_s(self) -> float:
        return 0.0 if self.forecast is None else self.forecast.samples_per_s

    @property
    def nearness(self) -> tuple[float, float]:
        """How near it comes to fitting."""
        return self.memory.fit_probability, -self.memory.peak_bytes


@noun
class Choice:
    """The plan to take, the fastest that was tried, and whether any fits."""

    taken: Rung
    fastest: Rung
    num_tried: int
    fits: bool

    @property
    def price(self) -> float:
        """How much longer a sample takes than under the fastest plan, as a share."""
        slower = self.taken.samples_per_s
        return self.fastest.samples_per_s / slower - 1 if slower else 0.0


def climb(asked: Open, complete: Complete, judge: Judge) -> Choice | None:
    """The simplest arrangement that fits and is within `TOLERANCE` of the fastest. None: nothing can be built."""
    climber = _Climb(asked=asked, complete=complete, judge=judge)
    try:
        arrangements = list(list_usual(asked, climber.sample.graph))
    except TraincastError:
        # What cannot be built at all is refused with its reason where the question is posed.
        return None
    fitting: list[Rung] = []
    num_tried = 0
    for title, values in arrangements:
        if climber.is_enough(values, fitting):
            break
        num_tried += 1
        found = climber.best_of(title, values)
        if found is not None:
            fitting.append(found)
            climber.fastest = max(climber.fastest, found.samples_per_s)
    if not fitting:
        nearest = [rung for one in arrangements if (rung := climber.nearest(*one)) is not None]
        if not nearest:
            return None
        fitting = [rung for rung in nearest if rung.memory.fits]
    if not fitting:
        safest = max(nearest, key=lambda rung: rung.nearness)
        return Choice(taken=safest, fastest=safest, num_tried=num_tried, fits=False)
    fastest = max(fitting, key=lambda rung: rung.samples_per_s)
    taken = next(rung for rung in fitting if rung.samples_per_s * (1 + TOLERANCE) >= fastest.samples_per_s)
    return Choice(taken=taken, fastest=fastest, num_tried=num_tried, fits=True)


def _cuts_layers(values: Mapping[str, Any]) -> bool:
    return degree(values.get("tensor")) > 1 or degree(values.get("pipeline")) > 1


def _leaves_nothing(rung: Rung) -> bool:
    """Whether splitting layers cannot gain more than the tolerance: nothing is run twice, waits or is exposed."""
    shares = rung.forecast.timeline.shares if rung.forecast is not None else {"communication": 1.0}
    idle = shares.get("communication", 0.0) + shares.get("bubble", 0.0)
    return rung.plan.recompute == "none" and idle <= TOLERANCE / (1 + TOLERANCE)


@dataclass(slots=True, kw_only=True)
class _Climb:
    asked: Open
    complete: Complete
    judge: Judge
    fastest: float = 0.0
    """Samples per second of the fastest arrangement so far that fits."""

    @property
    def sample(self) -> Job:
        return self.judge.job_at(self.asked.batch or 1, self.complete({**self.asked.values, **_ALONE}))

    def is_enough(self, values: Mapping[str, Any], sure: Sequence[Rung]) -> bool:
        """Whether what fits already leaves nothing to an arrangement and those after it."""
        if values.get("tensor", 1) > 1 and any(_leaves_nothing(rung) for rung in sure):
            return True
        small = is_small(STATE_BYTES * self.sample.graph.num_parameters, self.asked.cluster)
        return _cuts_layers(values) and small and any(rung.plan.recompute == "none" for rung in sure)

    def best_of(self, title: str, values: Mapping[str, Any]) -> Rung | None:
        """The arrangement where it is fastest. None: it never surely fits, or is slower than what does."""
        fitting: list[Rung] = []
        for how in self._recomputes(values):
            found = self._largest(title, {**values, "recompute": how})
            if found is None or not self.asked.takes(found.memory):
                continue
            fitting.append(found)
            if found.batch == next(iter(self._batches(values)))[0]:
                # No pass can be larger, so running layers again can only be slower.
                break
        fastest = max((rung.samples_per_s for rung in fitting), default=0.0)
        return next((rung for rung in fitting if rung.samples_per_s * (1 + WORTH_RECOMPUTING) >= fastest), None)

    def nearest(self, title: str, values: Mapping[str, Any]) -> Rung | None:
        """The arrangement where it comes nearest to fitting, with the fewest samples of a pass that can be built."""
        measured: list[Rung] = []
        for how in self._recomputes(values):
            for batch, passes in reversed(list(self._batches(values))):
                try:
                    plan = self.complete({**values, "recompute": how, "micro_batches": passes})
                    measured.append(self._judge(title, plan, self.judge.job_at(batch, plan)))
                    break
                except (IllegalPlan, InvalidInput):
                    continue
        return max(measured, key=lambda rung: rung.nearness, default=None)

    def _recomputes(self, values: Mapping[str, Any]) -> Sequence[str]:
        """What may be run again: as named, or as the stack does wherever weights are sharded, or as little as fits."""
        sharded = self.asked.sharded_recompute if values.get("zero") == 3 else None
        named, usual = self.asked.values.get("recompute") or sharded, self.asked.usual_recompute
        return (named,) if named else RECOMPUTES[RECOMPUTES.index(usual) if usual in RECOMPUTES else 0 :]

    def _largest(self, title: str, values: Mapping[str, Any]) -> Rung | None:
        """With the most samples of a pass that fit, or with fewer where a pipeline is faster with more passes."""
        best: Rung | None = None
        undecided: tuple[Parallelism, Job] | None = None
        is_first = True
        for batch, passes in self._batches(values):
            try:
                plan = self.complete({**values, "micro_batches": passes})
                job = self.judge.job_at(batch, plan)
                if self._cannot_fit(plan, job):
                    is_first = False
                    continue
                if self._is_slow(job, plan):
                    # The largest pass that fits ends the search where it is slow; whether it fits may never matter.
                    undecided = (plan, job) if is_first and undecided is None else undecided
                    continue
                if undecided is not None:
                    if self._fits(*undecided):
                        return None
                    undecided = None
                found = self._judge(title, plan, job)
            except (IllegalPlan, InvalidInput):
                continue
            is_first = False
            if best is None or not best.samples_per_s or found.samples_per_s > best.samples_per_s:
                best = found
            if best.samples_per_s and plan.pipeline == 1:
                break
        return best

    def _cannot_fit(self, plan: Parallelism, job: Job) -> bool:
        """Where even a bound on its memory is too much; quicker to know than its memory."""
        return job.regime is None and not self._may_be_taken(self.judge.least_memory(job, plan), job)

    def _may_be_taken(self, memory: MemoryProfile, job: Job) -> bool:
        """Whether a plan of such memory is worth its time: it surely fits, or perhaps and cannot be made smaller."""
        return self.asked.takes(memory) or (memory.fits and job.graph.batch_size == 1)

    def _fits(self, plan: Parallelism, job: Job) -> bool:
        try:
            return self._may_be_taken(self.judge.memory(job, plan), job)
        except (IllegalPlan, InvalidInput):
            return False

    def _judge(self, title: str, plan: Parallelism, job: Job) -> Rung:
        """Its memory, and its time where it fits."""
        memory = self.judge.memory(job, plan)
        made = Rung(title=title, plan=plan, batch=job.graph.batch_size, memory=memory)
        if not self._may_be_taken(memory, job):
            return made
        return replace(made, forecast=self.judge.forecast(job, plan))

    def _is_slow(self, job: Job, plan: Parallelism) -> bool:
        """Whether it cannot be as fast as what was found before; quicker to know than its forecast."""
        if not self.fastest:
            return False
        step_s, _ = self.judge.least_time(job, plan, by_plain=plan.recompute != "none")
        samples = job.graph.batch_size * plan.micro_batches * plan.data
        return step_s > 0 and samples / step_s < self.fastest

    def _batches(self, values: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
        """(samples of a pass, passes of a step) to try, most samples first."""
        asked, data, stages = self.asked, int(values["data"]), int(values.get("pipeline", 1))
        whole = self._samples_per_step()
        if asked.batch is not None:
            sizes = [asked.batch]
        else:
            graph = self.sample.graph
            most = most_samples(asked.training, tokens=graph.tokens_per_sample, flop=_flop_per_sample(graph))
            sizes = [2**power for power in range(int(math.log2(most)), -1, -1)]
        for size in sizes:
            if whole is None:
                yield size, asked.passes or (1 if stages == 1 else 4 * stages)
                continue
            passes, rest = divmod(whole, size * data)
            # A pipeline with fewer passes than stages never fills.
            enough = passes >= stages or size == 1 or asked.batch is not None
            if rest == 0 and asked.passes in (None, passes) and enough:
                yield size, passes

    def _samples_per_step(self) -> int | None:
        """Of all replicas together; None: as many as the plan has in its passes."""
        asked = self.asked
        if asked.global_batch is not None or asked.passes is not None:
            return asked.global_batch
        devices = asked.cluster.num_devices
        if not asked.names_batch and (asked.batch is None or asked.training.tokens_per_step is not None):
            tokens = self.sample.graph.tokens_per_sample
            return usual_global_batch(asked.training, num_devices=devices, tokens=tokens)
        # Plans are compared at one number of samples, that of a pass of plain replicas.
        return asked.batch * devices if asked.batch and asked.batch > 0 and not asked.names_plan else None


def _flop_per_sample(graph: Graph) -> float:
    """Of both passes; the update is the same for any number of samples."""
    counted = zip(graph.ops, graph.counts(), strict=True)
    return sum((op.flop or 0.0) * count for op, count in counted if op.phase != "optimizer") / graph.batch_size
