"""Candidates to their figures, each exactly what a forecast would say, with everything that plans share worked out once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from traincast.cost.pricing import Pricing
from traincast.cost.stack import stack
from traincast.errors import IllegalPlan
from traincast.forecast import MEMORY_SPREAD, NORMAL_90, Tally, forecast, outside_bytes, overheads_of
from traincast.forecast.job_time import price_job, spend_energy, time_job
from traincast.lower import split_model
from traincast.lower.pipeline import in_flight
from traincast.plan.nouns import Candidate, Figures, Limits, Pose, meet_probability
from traincast.plan.pieces import NotInPieces, Piece, Variant, place_replicas
from traincast.simulate.memory import add_up
from traincast.simulate.order import EXACT_CELLS, WEIGHT_SHARE, finish_times
from traincast.simulate.passes import Spent, split_passes
from traincast.simulate.step import StageRun, join_stages, run_alone, run_stage
from traincast.spec import (
    Cluster,
    Collective,
    Estimate,
    Forecast,
    Job,
    MemoryProfile,
    Op,
    Parallelism,
    Stage,
    Task,
    Timeline,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A candidate that this model cannot run."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a candidate's figures cannot be below."""

    job_s: float
    usd: float
    energy_joules: float

    def of(self, objective: str) -> float:
        return {"time": self.job_s, "money": self.usd, "energy": self.energy_joules}[objective]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of a plan in time, before an order joins them."""

    runs: tuple[StageRun, ...]
    """One for each distinct piece."""
    owner: tuple[int, ...]
    hop_s: float
    passes: tuple[dict[str, list[object]], ...]
    """The parts of the only piece, where there is no pipeline."""
    spread: float

    def each(self) -> list[StageRun]:
        return [self.runs[piece] for piece in self.owner]


Spot = tuple[object, ...]


@dataclass(slots=True)
class Bench:
    """Remembers every part of a candidate that another may need."""

    pose: Pose
    limits: Limits = field(default_factory=Limits)
    _variants: dict[Spot, Variant | str | None] = field(default_factory=dict)
    """None: a model that cannot be taken apart; a text: why the split is impossible."""
    _pricing: dict[str, Pricing] = field(default_factory=dict)
    _ops: dict[tuple[int, str], tuple[Estimate, ...]] = field(default_factory=dict)
    _updates: dict[Spot, Estimate] = field(default_factory=dict)
    _collectives: dict[Spot, Estimate] = field(default_factory=dict)
    _memory: dict[Spot, MemoryProfile] = field(default_factory=dict)
    _stages: dict[Spot, Stages] = field(default_factory=dict)
    _ends: dict[Spot, list[float]] = field(default_factory=dict)
    _whole: dict[int, Forecast] = field(default_factory=dict)

    # Memory ------------------------------------------------------------------------------------------------------

    def fill(self, candidate: Candidate) -> MemoryProfile | Impossible:
        """The memory of the fullest stage."""
        plan = candidate.parallelism
        try:
            variant = self._variant(candidate)
            if isinstance(variant, str):
                return Impossible(reason=variant)
            if variant is None:
                return self._forecast(candidate).memory
            return self._fill(candidate, variant, plan)
        except IllegalPlan as error:
            return Impossible(reason=str(error))
        except NotInPieces:
            self._variants[_split_of(candidate)] = None
            return self._forecast(candidate).memory

    def _fill(self, candidate: Candidate, variant: Variant, plan: Parallelism) -> MemoryProfile:
        capacity = min(group.device.memory_bytes for group in candidate.cluster.groups)
        # Orders that hold the same passes need the same memory.
        held = (
            plan.micro_batches
            if plan.order == "gpipe"
            else (min(plan.micro_batches, plan.pipeline), plan.virtual_stages)
        )
        key = (_split_of(candidate), plan.pipeline, plan.data, plan.zero, plan.micro_batches > 1, held, capacity)
        if key not in self._memory:
            cut = variant.cut(plan)
            outside = outside_bytes(capacity, plan)
            overheads = overheads_of(self.pose(candidate.batch, plan.recompute).stack)
            seen: set[tuple[int, int]] = set()
            worst: MemoryProfile | None = None
            for index, place in enumerate(cut.owner):
                flying = 1 if plan.pipeline == 1 else in_flight(plan, index)
                if (place, flying) in seen:
                    continue
                seen.add((place, flying))
                piece = cut.pieces[place]
                one = piece.replay(plan, accumulates=plan.micro_batches > 1 or flying > 1 or piece.widens)
                profile = add_up(
                    replace(piece.stage, num_in_flight=flying), one, capacity_bytes=capacity, overhead_bytes=outside,
                    pipelined=plan.pipeline > 1, overheads=overheads, spread=MEMORY_SPREAD,
                    bucket_copies=plan.copies_gradients, lone_pass=plan.micro_batches == 1, replicated=plan.data > 1,
                )  # fmt: skip
                if worst is None or profile.needed_bytes > worst.needed_bytes:
                    worst = profile
                if not one.gathers.num_gathers:
                    # Without gathers a stage of the same sort that holds fewer passes never needs more.
                    seen.update((place, fewer) for fewer in range(1, flying))
            if worst is None:
                raise IllegalPlan("the plan leaves no stage to run")
            self._memory[key] = worst
        return self._memory[key]

    def _variant(self, candidate: Candidate) -> Variant | str | None:
        key = _split_of(candidate)
        if key not in self._variants:
            job = self.pose(candidate.batch, candidate.parallelism.recompute)
            if job.graph.mode == "inference":
                self._variants[key] = None
                return None
            try:
                shared = split_model(job.graph, candidate.parallelism, compiled=job.compiled)
                self._variants[key] = Variant(shared=shared)
            except IllegalPlan as error:
                self._variants[key] = str(error)
        return self._variants[key]

    def _forecast(self, candidate: Candidate) -> Forecast:
        if id(candidate) not in self._whole:
            job = self.pose(candidate.batch, candidate.parallelism.recompute)
            self._whole[id(candidate)] = forecast(job, candidate.cluster, candidate.parallelism)
        return self._whole[id(candidate)]

    # Time --------------------------------------------------------------------------------------------------------

    def bound(self, candidate: Candidate) -> Bound:
        """Lower bounds from the stages alone: no order ends before the work of any stage, what must come before its first
        forward and what must come after its last backward."""
        if self._variant(candidate) is None:
            figures = figures_of(self._forecast(candidate), self.limits)
            return Bound(job_s=figures.job_s, usd=figures.of("money"), energy_joules=figures.of("energy"))
        plan = candidate.parallelism
        stages = self._time(candidate)
        if plan.pipeline == 1 or _by_formula(plan):
            step_s, spent = self._join(candidate, stages)
            busy_s = spent.compute_s + spent.memory_s
        else:
            each = stages.each()
            step_s = lowest_finish(plan, each, stages.hop_s)
            slowest = max(each, key=lambda run: run.forward_s + run.backward_s)
            busy_s = plan.micro_batches * _busy(slowest.spent)
            busy_s += min(_busy(run.tail) - _busy(run.before) for run in stages.runs)
        job = self.pose(candidate.batch, plan.recompute)
        figures = _compose(job, candidate, step_s, busy_s, stages.spread, Limits())
        return Bound(job_s=figures.job_s, usd=figures.of("money"), energy_joules=figures.of("energy"))

    def answer(self, candidates: Sequence[Candidate]) -> list[Figures]:
        return [self._answer(candidate) for candidate in candidates]

    def _answer(self, candidate: Candidate) -> Figures:
        if self._variant(candidate) is None:
            return figures_of(self._forecast(candidate), self.limits)
        stages = self._time(candidate)
        step_s, spent = self._join(candidate, stages)
        job = self.pose(candidate.batch, candidate.parallelism.recompute)
        return _compose(job, candidate, step_s, _busy(spent), stages.spread, self.limits)

    def _join(self, candidate: Candidate, stages: Stages) -> tuple[float, Spent]:
        plan = candidate.parallelism
        if plan.pipeline == 1:
            return run_alone(stages.passes[0], micro_batches=plan.micro_batches)  # type: ignore[arg-type]
        each = stages.each()
        forward, backward = tuple(run.forward_s for run in each), tuple(run.backward_s for run in each)
        key = (plan.order, forward, backward, stages.hop_s, plan.micro_batches, plan.virtual_stages)
        if key not in self._ends:
            self._ends[key] = finish_times(
                plan.order, forward_s=forward, backward_s=backward, hop_s=stages.hop_s,
                micro_batches=plan.micro_batches, virtual_stages=plan.virtual_stages,
            )  # fmt: skip
        step_s, spent, _ = join_stages(each, self._ends[key], micro_batches=plan.micro_batches)
        return step_s, spent

    def _time(self, candidate: Candidate) -> Stages:
        plan, cluster = candidate.parallelism, candidate.cluster
        key = (_split_of(candidate), plan.pipeline, plan.data, plan.zero, id(cluster))
        if key not in self._stages:
            self._stages[key] = self._run_stages(candidate, cluster, plan)
        return self._stages[key]

    def _run_stages(self, candidate: Candidate, cluster: Cluster, plan: Parallelism) -> Stages:
        variant = self._variant(candidate)
        if not isinstance(variant, Variant):
            raise NotInPieces
        job = self.pose(candidate.batch, plan.recompute)
        cut = variant.cut(plan)
        runs, parts = [], []
        tally = Tally()
        hop_s = 0.0
        for number, piece in enumerate(cut.pieces):
            stage, estimates = self._price(job, cluster, plan, piece)
            passes = split_passes(stage, estimates)
            if plan.pipeline > 1:
                runs.append(run_stage(passes))
                hop_s = max([hop_s, *_hops(stage.tasks, estimates)])
            else:
                parts.append(passes)
            if self.limits.deadline_s is not None or self.limits.budget_usd is not None:
                share = cut.owner.count(number)
                tally.add(stage.tasks, estimates, [share * count for count in stage.counts()])
        spread = tally.spread(stack(job.stack)) if tally.seconds else 0.0
        return Stages(
            runs=tuple(runs), owner=cut.owner, hop_s=hop_s, passes=tuple(parts), spread=spread  # type: ignore[arg-type]
        )  # fmt: skip

    def _price(self, job: Job, cluster: Cluster, plan: Parallelism, piece: Piece) -> tuple[Stage, list[Estimate]]:
        """The tasks of a piece under a plan, and their estimates: ops once per device, collectives once per cluster."""
        template = piece.shape.template(plan)
        end = next((i for i, task in enumerate(template.tasks) if task.phase == "optimizer"), len(template.tasks))
        tasks: list[Task] = [*place_replicas(template.tasks[:end], plan), *piece.update_tasks(plan)]
        priced = iter(self._price_ops(job, cluster, piece))
        estimates = [
            self._price_collective(job, cluster, task)
            if isinstance(task, Collective)
            else next(priced)
            if place < end
            else self._price_update(job, cluster, task, piece)
            for place, task in enumerate(tasks)
        ]
        if job.cuda_graphs:
            estimates = [replace(estimate, host_s=0.0) for estimate in estimates]
        return Stage(tasks=tuple(tasks), repeats=piece.repeats(template), tensors=()), estimates

    def _price_ops(self, job: Job, cluster: Cluster, piece: Piece) -> tuple[Estimate, ...]:
        key = id(piece.shape), _devices_of(cluster)
        if key not in self._ops:
            ops = tuple(task for task in piece.stage.tasks[: piece.end] if isinstance(task, Op))
            alone = Stage(tasks=ops, repeats=(), tensors=piece.stage.tensors)
            self._ops[key] = self._model(job).estimate(alone, cluster)
        return self._ops[key]

    def _price_update(self, job: Job, cluster: Cluster, op: Op, piece: Piece) -> Estimate:
        """Apart from the passes, but for what they leave in a cache: that only matters to small models."""
        context = _recent(piece, op, max(group.device.l2_bytes or 0.0 for group in cluster.groups))
        key = (
            job.stack, _devices_of(cluster), op.name, op.kind, op.num_bytes, op.num_kernels, tuple(op.attrs.items()),
            id(piece.shape) if context else 0,
        )  # fmt: skip
        if key not in self._updates:
            alone = Stage(tasks=(*context, op), repeats=(), tensors=piece.stage.tensors)
            self._updates[key] = self._model(job).estimate(alone, cluster)[-1]
        return self._updates[key]

    def _price_collective(self, job: Job, cluster: Cluster, task: Collective) -> Estimate:
        key = (
            id(cluster),
            job.stack,
            task.kind,
            task.num_bytes,
            task.axis,
            task.num_ranks,
            task.stride,
            task.bucket_bytes,
            task.phase,
        )
        if key not in self._collectives:
            alone = Stage(tasks=(task,), repeats=(), tensors=())
            self._collectives[key] = self._model(job).estimate(alone, cluster)[0]
        return self._collectives[key]

    def _model(self, job: Job) -> Pricing:
        if job.stack not in self._pricing:
            self._pricing[job.stack] = Pricing(stack=stack(job.stack))
        return self._pricing[job.stack]

    def forget(self, cluster: Cluster) -> None:
        """Drop what only this cluster needed."""
        self._stages = {}
        self._ends = {}
        self._memory = {}
        self._whole = {}
        self._collectives = {key: value for key, value in self._collectives.items() if key[0] != id(cluster)}


def _split_of(candidate: Candidate) -> Spot:
    plan = candidate.parallelism
    return (candidate.batch, plan.recompute, plan.tensor, plan.context, plan.expert, plan.sequence_parallel)


def _recent(piece: Piece, op: Op, cache_bytes: float) -> tuple[Op, ...]:
    """The last ops of the backward pass whose results may still be cached when the update reads them; often none."""
    recent: list[Op] = []
    touched = 0.0
    cached = False
    for task in reversed(piece.stage.tasks[: piece.end]):
        if not isinstance(task, Op) or touched > cache_bytes:
            if touched > cache_bytes:
                break
            continue
        recent.append(task)
        small = task.bytes_written <= cache_bytes * max(1, len(task.writes))
        cached = cached or (small and any(tensor in op.reads for tensor in task.writes))
        touched += task.num_bytes
    return tuple(reversed(recent)) if cached else ()


def _devices_of(cluster: Cluster) -> str:
    return ", ".join(f"{group.device.name} {group.speed}" for group in cluster.groups)


def _hops(tasks: Sequence[Task], estimates: Sequence[Estimate]) -> list[float]:
    return [
        estimate.seconds
        for task, estimate in zip(tasks, estimates, strict=True)
        if isinstance(task, Collective) and task.axis == "pipeline"
    ]


def _busy(spent: Spent) -> float:
    return spent.compute_s + spent.memory_s


def _by_formula(plan: Parallelism) -> bool:
    """The order is known in closed form, which is as quick as any bound."""
    return plan.pipeline * plan.micro_batches * plan.virtual_stages > EXACT_CELLS


def lowest_finish(plan: Parallelism, runs: Sequence[StageRun], hop_s: float) -> float:
    """A step cannot end sooner. Stage s starts when the stages before it have run their first forward (their first chunk,
    if interleaved), runs every pass, and then the stages before it still have a backward to run: with a zero-bubble order
    only its input half, and the stage may keep its own weight halves for later."""
    late = WEIGHT_SHARE if plan.order == "zero-bubble" else 0.0
    times, chunks = plan.micro_batches, plan.virtual_stages
    ahead = behind = lowest = 0.0
    for run in runs:
        own_s = ahead + times * (run.forward_s + run.backward_s)
        lowest = max(lowest, own_s + run.tail_s)
        lowest = max(lowest, own_s - times * late * run.backward_s + behind + runs[0].tail_s)
        ahead += run.forward_s / chunks + hop_s
        behind += (1 - late) * run.backward_s / chunks + hop_s
    return lowest


def _compose(job: Job, candidate: Candidate, step_s: float, busy_s: float, spread: float, limits: Limits) -> Figures:
    cluster = candidate.cluster
    factor = math.exp(NORMAL_90 * spread)
    step = Estimate(seconds=step_s, low_s=step_s / factor, high_s=step_s * factor)
    plan = candidate.parallelism
    whole = time_job(job, cluster, step, candidate.batch * plan.micro_batches * plan.data)
    usd = price_job(cluster, whole.total)
    timeline = Timeline(duration_s=step_s, spans=(), shares={}, busy_s=busy_s)
    met = None if limits.deadline_s is None else meet_probability(whole, limits.deadline_s)
    paid = None
    if limits.budget_usd is not None and usd is not None:
        paid = meet_probability(whole, limits.budget_usd / usd.value * whole.total.seconds if usd.value else math.inf)
    return Figures(
        step_s=step_s,
        job_s=whole.total.seconds,
        usd=None if usd is None else usd.value,
        energy_joules=spend_energy(cluster, timeline, whole),
        deadline_probability=met,
        budget_probability=paid,
    )


def figures_of(answer: Forecast, limits: Limits) -> Figures:
    """The figures of a full forecast."""
    usd = answer.usd
    affordable_s = None
    if limits.budget_usd is not None and usd is not None:
        affordable_s = limits.budget_usd / usd.value * answer.job.total.seconds if usd.value else math.inf
    return Figures(
        step_s=answer.step.seconds,
        job_s=answer.job.total.seconds,
        usd=None if usd is None else usd.value,
        energy_joules=answer.energy_joules,
        deadline_probability=None if limits.deadline_s is None else meet_probability(answer.job, limits.deadline_s),
        budget_probability=None if affordable_s is None else meet_probability(answer.job, affordable_s),
    )
