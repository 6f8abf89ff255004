"""A question without a plan to the simplest plan that fits and is within a few percent of the best."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from traincast.errors import IllegalPlan, InvalidInput, TraincastError
from traincast.forecast._defaults import most_samples, usual_global_batch
from traincast.forecast._engine import Engine
from traincast.spec import Cluster, Forecast, Graph, Job, MemoryProfile, Parallelism

TOLERANCE = 0.05
"""A simpler plan is preferred unless another is faster by more than this."""
WORTH_RECOMPUTING = 0.02
"""Layers are run again only where that is faster by more than this, or where it must be."""
SURE = 0.95
"""How sure a plan with a batch that we choose must be to fit."""
RECOMPUTES = ("none", "products", "full")
STATE_BYTES = 16
"""Of a parameter in mixed precision: weight, gradient, master copy and two moments."""
MOST_STAGES = 16
LONG_SAMPLE = 32_768
"""Tokens from which on splitting a sample over devices is tried."""
AXES = (
    "data", "tensor", "pipeline", "context", "expert", "expert_tensor", "virtual_stages", "zero", "shard",
    "sequence_parallel", "order", "servers", "asynchronous",
)  # fmt: skip
"""Whoever names one of these has named a plan."""

Pose = Callable[[Parallelism, int | None], Job]
"""(plan, samples of one pass or None for as many as the source has) -> the job."""
Complete = Callable[[Mapping[str, Any]], Parallelism]
"""Named values -> the plan with the habits of its stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """What a question says of its plan and its batches; the rest is to be chosen."""

    values: Mapping[str, Any]
    """Of the plan, as named."""
    cluster: Cluster
    text: bool
    """Whether samples are counted in tokens."""
    batch: int | None = None
    """Samples of one pass, where they are named or cannot be chosen."""
    names_batch: bool = False
    """Whether somebody named them; a batch that only cannot be chosen is accumulated to a usual step."""
    global_batch: int | None = None
    sharded_recompute: str | None = None
    """What the stack runs again wherever weights are sharded."""
    usual_zero: int | None = None
    """What a stack that somebody named always shards over replicas; None: no stack was named, or it shards what one likes."""
    usual_recompute: str | None = None
    """What it runs again unless somebody says otherwise; more where memory needs it, never less."""

    @property
    def names_plan(self) -> bool:
        return any(axis in self.values for axis in AXES)

    def takes(self, memory: MemoryProfile) -> bool:
        """Whether a plan of such memory is sure enough to fit. Whoever names a batch has often seen it run, so the verdict
        that the answer prints is enough; running layers again to be surer would answer another question."""
        return memory.fits if self.names_batch else memory.fit_probability >= SURE

    def shards(self, *usual: int) -> tuple[int, ...]:
        """Stages of ZeRO to try."""
        return usual if self.usual_zero is None else (self.usual_zero,)

    @property
    def passes(self) -> int | None:
        found = self.values.get("micro_batches")
        return found if isinstance(found, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One arrangement at its best batch and recomputation."""

    title: str
    plan: Parallelism
    batch: int
    memory: MemoryProfile
    forecast: Forecast | None = None
    """None: it does not fit, so its time was not worked out."""
    is_bound: bool = False
    """Whether the memory is only what the plan cannot need less than, which is too much already."""
    larger: tuple["Rung", ...] = ()
    """The same with more samples in a pass, which does not fit either, nearest first."""

    @property
    def samples_per_s(self) -> float:
        return 0.0 if self.forecast is None else self.forecast.samples_per_s

    @property
    def fit_probability(self) -> float:
        return self.memory.fit_probability


@dataclass(frozen=True, slots=True, kw_only=True)
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


def choose_plan(asked: Open, pose: Pose, complete: Complete, engine: Engine) -> Choice | None:
    """The simplest arrangement that fits and is within `TOLERANCE` of the fastest. None: nothing can be built."""
    climb = _Climb(asked=asked, pose=pose, complete=complete, engine=engine)
    rungs: list[tuple[Rung, ...]] = []
    try:
        arrangements = list(list_arrangements(asked, climb.sample))
    except TraincastError:
        # What cannot be built at all is refused with its reason where the question is posed.
        return None
    sure: list[Rung] = []
    for title, values in arrangements:
        if climb.is_enough(values, sure):
            break
        found = climb.best_of(title, values)
        rungs.append(found)
        if len(found) == 1 and asked.takes(found[0].memory):
            sure.append(found[0])
            climb.fastest = max(climb.fastest, found[0].samples_per_s)
    fitting = sure
    if not fitting:
        nearest = [rung for found in rungs if (rung := climb.nearest(found)) is not None]
        if not nearest:
            return None
        fitting = [rung for rung in nearest if rung.memory.fits]
    if not fitting:
        safest = max(nearest, key=lambda rung: (rung.fit_probability, -rung.memory.peak_bytes))
        return Choice(taken=safest, fastest=safest, num_tried=len(rungs), fits=False)
    fastest = max(fitting, key=lambda rung: rung.samples_per_s)
    taken = next(rung for rung in fitting if rung.samples_per_s * (1 + TOLERANCE) >= fastest.samples_per_s)
    return Choice(taken=taken, fastest=fastest, num_tried=len(rungs), fits=True)


def _cuts_layers(values: Mapping[str, Any]) -> bool:
    return _degree(values.get("tensor")) > 1 or _degree(values.get("pipeline")) > 1


def _leaves_nothing(rung: Rung) -> bool:
    """Whether splitting layers cannot gain more than the tolerance: nothing is run twice, waits or is exposed."""
    shares = rung.forecast.timeline.shares if rung.forecast is not None else {"communication": 1.0}
    idle = shares.get("communication", 0.0) + shares.get("bubble", 0.0)
    return rung.plan.recompute == "none" and idle <= TOLERANCE / (1 + TOLERANCE)


@dataclass(slots=True, kw_only=True)
class _Climb:
    asked: Open
    pose: Pose
    complete: Complete
    engine: Engine
    fastest: float = 0.0
    """Samples per second of the fastest arrangement so far that fits."""

    @property
    def is_small(self) -> bool:
        """Whether weights, gradients and optimizer state fill no more than half of a device."""
        room = min(group.device.memory_bytes for group in self.asked.cluster.groups)
        return STATE_BYTES * self.sample.graph.num_parameters <= room / 2

    @property
    def sample(self) -> Job:
        return self.pose(self.complete({**self.asked.values, **_ALONE}), self.asked.batch or 1)

    def is_enough(self, values: Mapping[str, Any], sure: Sequence[Rung]) -> bool:
        """Whether what fits already leaves nothing to an arrangement and those after it."""
        if values.get("tensor", 1) > 1 and any(_leaves_nothing(rung) for rung in sure):
            return True
        # Nobody cuts a model of which every device can hold a whole replica, though a slow link would make it pay.
        return _cuts_layers(values) and self.is_small and any(rung.plan.recompute == "none" for rung in sure)

    def best_of(self, title: str, values: Mapping[str, Any]) -> tuple[Rung, ...]:
        """The arrangement where it is fastest; where it never fits, all that come into question as the nearest."""
        named = self.asked.values.get("recompute") or (
            self.asked.sharded_recompute if values.get("zero") == 3 else None
        )
        rungs: list[Rung] = []
        usual = self.asked.usual_recompute
        for how in (named,) if named else RECOMPUTES[RECOMPUTES.index(usual) if usual in RECOMPUTES else 0 :]:
            found = self._largest(title, {**values, "recompute": how})
            if found is None:
                continue
            rungs.append(found)
            if self.asked.takes(found.memory) and found.batch == next(iter(self._batches(values)))[0]:
                # No pass can be larger, so running layers again can only be slower.
                break
        fitting = [rung for rung in rungs if self.asked.takes(rung.memory)]
        if not fitting:
            return tuple(rungs)
        fastest = max(fitting, key=lambda rung: rung.samples_per_s)
        return (next(r for r in fitting if r.samples_per_s * (1 + WORTH_RECOMPUTING) >= fastest.samples_per_s),)

    def nearest(self, rungs: Sequence[Rung]) -> Rung | None:
        """The one that comes nearest to fitting, by the memory that it needs itself."""
        measured = [found for rung in rungs if (found := self._measure(rung)) is not None]
        return max(measured, key=lambda rung: (rung.fit_probability, -rung.memory.peak_bytes), default=None)

    def _measure(self, rung: Rung) -> Rung | None:
        """With its own memory instead of a bound. Where the model cannot be split so at this batch, at the one before it."""
        for one in (rung, *rung.larger) if rung.is_bound else ():
            try:
                memory = self._memory(self.pose(one.plan, one.batch), one.plan)
            except (IllegalPlan, InvalidInput):
                continue
            return replace(one, memory=memory, is_bound=False)
        return None if rung.is_bound else rung

    def _memory(self, job: Job, plan: Parallelism) -> MemoryProfile:
        return self.engine.memory(self.engine.lower(job, self.asked.cluster, plan), job, self.asked.cluster)

    def _largest(self, title: str, values: Mapping[str, Any]) -> Rung | None:
        """With the most samples of a pass that fit, or with fewer where a pipeline is faster with more passes; one sample where
        none fits."""
        best: Rung | None = None
        undecided: tuple[Parallelism, Job] | None = None
        for batch, passes in self._batches(values):
            try:
                plan = self.complete({**values, "micro_batches": passes})
                job = self.pose(plan, batch)
                found = self._exclude(title, plan, job)
                if found is None and self._is_slow(job, plan):
                    # The largest pass that fits ends the search where it is slow; whether it fits may never matter.
                    undecided = (plan, job) if best is None and undecided is None else undecided
                    continue
                if found is None and undecided is not None:
                    if self._fits(*undecided):
                        return None
                    undecided = None
                found = found or self._judge(title, plan, job)
            except (IllegalPlan, InvalidInput):
                continue
            if best is None or not best.samples_per_s or found.samples_per_s > best.samples_per_s:
                tried = () if best is None else (replace(best, larger=()), *best.larger)
                best = replace(found, larger=tried) if found.is_bound else found
            if best.samples_per_s and plan.pipeline == 1:
                break
        return best

    def _exclude(self, title: str, plan: Parallelism, job: Job) -> Rung | None:
        """Where even a bound on its memory is too much; quicker to know than its memory."""
        if job.regime is not None:
            return None
        least = self.engine.bound_memory(job, self.asked.cluster, plan)
        if self._may_be_taken(least, job):
            return None
        return Rung(title=title, plan=plan, batch=job.graph.batch_size, memory=least, is_bound=True)

    def _may_be_taken(self, memory: MemoryProfile, job: Job) -> bool:
        """Whether a plan of such memory is worth its time: it surely fits, or perhaps and cannot be made smaller."""
        return self.asked.takes(memory) or (memory.fits and job.graph.batch_size == 1)

    def _fits(self, plan: Parallelism, job: Job) -> bool:
        try:
            return self._may_be_taken(self._memory(job, plan), job)
        except (IllegalPlan, InvalidInput):
            return False

    def _judge(self, title: str, plan: Parallelism, job: Job) -> Rung:
        """Its memory, and its time where it fits."""
        memory = self._memory(job, plan)
        made = Rung(title=title, plan=plan, batch=job.graph.batch_size, memory=memory)
        if not self._may_be_taken(memory, job):
            return made
        return replace(made, forecast=self.engine.forecast(job, self.asked.cluster, plan))

    def _is_slow(self, job: Job, plan: Parallelism) -> bool:
        """Whether it cannot be as fast as what was found before; quicker to know than its forecast."""
        if not self.fastest:
            return False
        plain = None if plan.recompute == "none" else self.pose(replace(plan, recompute="none"), job.graph.batch_size)
        step_s, _ = self.engine.bound_time(job, self.asked.cluster, plan, plain=plain)
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
            most = most_samples(tokens=graph.tokens_per_sample, text=asked.text, flop=_flop_per_sample(graph))
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
        if asked.text and not asked.names_batch:
            return usual_global_batch(num_devices=devices, tokens=self.sample.graph.tokens_per_sample)
        # Plans are compared at one number of samples, that of a pass of plain replicas.
        return asked.batch * devices if asked.batch and asked.batch > 0 and not asked.names_plan else None


def _flop_per_sample(graph: Graph) -> float:
    """Of both passes; the update is the same for any number of samples."""
    counted = zip(graph.ops, graph.counts(), strict=True)
    return sum((op.flop or 0.0) * count for op, count in counted if op.phase != "optimizer") / graph.batch_size


_ALONE = {"data": 1, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1, "zero": 0, "micro_batches": 1,
          "recompute": "none"}  # fmt: skip
_SHARDED = {
    0: "plain data parallel (DDP)", 1: "data parallel with sharded optimizer state (ZeRO 1)",
    2: "data parallel with sharded optimizer state and gradients (ZeRO 2)", 3: "fully sharded data parallel (FSDP, ZeRO 3)",
}  # fmt: skip


def list_arrangements(asked: Open, sample: Job) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what it is called, its values), simplest first: replicas, shards, tensor inside a node, pipeline."""
    count, node = asked.cluster.num_devices, asked.cluster.devices_per_domain
    if asked.names_plan:
        inner = math.prod(_degree(asked.values.get(axis)) for axis in ("tensor", "pipeline", "context"))
        yield "the plan as named", {"data": max(1, count // inner), **asked.values}
        return
    if count == 1:
        yield "one device", {**asked.values, "data": 1}
        return
    for zero in asked.shards(0, 1, 2, 3):
        yield _SHARDED[zero], {**asked.values, "data": count, "zero": zero}
    if len(asked.cluster.groups) > 1:
        return
    graph = sample.graph
    experts = max((int(op.attrs["batch"]) for op in graph.ops if "experts" in op.layer.split(".")
                   and op.kind == "matmul"), default=0)  # fmt: skip
    for expert in _powers(math.gcd(experts, count) if experts else 1):
        for zero in asked.shards(1, 3) if expert > 1 else ():
            yield f"experts over {expert} devices, {_SHORT[zero]}", {**asked.values, "data": count, "expert": expert,
                                                                     "zero": zero}  # fmt: skip
    if not any(op.kind == "attention" for op in graph.ops):
        return
    yield from _split_arrangements(asked, count, node, graph.tokens_per_sample)


_SHORT = {0: "replicas", 1: "ZeRO 1", 2: "ZeRO 2", 3: "FSDP"}


def _split_arrangements(asked: Open, count: int, node: int, tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Layers split over the devices of a node, samples over devices, layers over stages."""
    for tensor in _powers(min(node, count)):
        for zero in asked.shards(1, 3) if tensor > 1 else ():
            data = count // tensor
            values = {**asked.values, "data": data, "tensor": tensor, "sequence_parallel": tokens % tensor == 0}
            how = f"{_SHORT[zero]} over {data}" if data > 1 else "one replica"
            yield f"tensor parallel {tensor} inside a node, {how}", {**values, "zero": zero if data > 1 else 0}
            if data == 1:
                break
    for context in _powers(min(node, count)) if tokens >= LONG_SAMPLE else ():
        if context > 1:
            yield f"samples split over {context} devices, FSDP", {**asked.values, "data": count // context, "context": context,
                                                                  "zero": 3}  # fmt: skip
    for pipeline in _powers(min(MOST_STAGES, count)):
        for tensor in _powers(min(node, count // pipeline)) if pipeline > 1 else ():
            data = count // pipeline // tensor
            inside = f", tensor parallel {tensor}" if tensor > 1 else ""
            zero = asked.shards(1)[0] if data > 1 else 0
            values = {**asked.values, "data": data, "tensor": tensor, "pipeline": pipeline, "zero": zero}
            replicas = "one replica" if data == 1 else f"{data} replicas"
            yield f"pipeline of {pipeline} stages{inside}, {replicas}", {
                **values, "sequence_parallel": tensor > 1 and tokens % tensor == 0
            }  # fmt: skip


def _powers(most: int) -> list[int]:
    """Powers of two that divide a number."""
    return [2**power for power in range(most.bit_length()) if 2**power <= most and most % 2**power == 0]


def _degree(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else 1
