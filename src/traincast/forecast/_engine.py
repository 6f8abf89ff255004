"""A job, a cluster and a plan to a forecast: lower, cost, simulate, memory, answer, each remembered on what it was given.

Everything that asks about a plan comes this way: one forecast, a search over thousands of plans, the largest batch that fits.
An engine that has answered before gives the same bytes as a new one, only sooner (see `traincast.memo`).
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from traincast.cost import (
    Correction,
    CostModel,
    Ensemble,
    OpModel,
    PartwiseCostModel,
    Pricing,
    describe_host,
    describe_links,
    is_gpu,
    mark_software,
    name_costs,
    note_kernels,
    replay,
    with_other_links,
)
from traincast.errors import IllegalPlan, InvalidInput
from traincast.forecast._activity import as_sure_as, describe_activity, expect_run_utilization
from traincast.forecast._arbitrate import Answer, choose_answer, correct_by_reuse, find_gap, prefer_reuse, stretch
from traincast.forecast._balance import advise_split
from traincast.forecast._bounds import (
    RUN_AGAIN,
    Work,
    add_up_work,
    bound_memory,
    bound_time,
    passes_of,
)
from traincast.forecast._certainty import describe_setting, hopeful_memory_errors, memory_errors
from traincast.forecast._device_memory import DeviceMemory, find_fullest, profile_stages, watch_device
from traincast.forecast._host_memory import hold_on_host
from traincast.forecast._interval import Assured, Tally, tally_program, with_interval, with_novelty
from traincast.forecast._job_time import (
    describe_checkpoints,
    describe_loading,
    price_job,
    range_energy,
    spend_energy,
    time_job,
    weigh_co2,
)
from traincast.forecast._moments import list_moments
from traincast.lower import lower, run_again, share_model
from traincast.memo import Memo, Remember
from traincast.simulate import Pass, add_waiting, replay_tasks, simulate_step
from traincast.spec import (
    Calibration,
    Cluster,
    Collective,
    Device,
    Estimate,
    Forecast,
    Graph,
    Job,
    MachineRates,
    MemoryProfile,
    NodeGroup,
    Op,
    Parallelism,
    Program,
    Repeat,
    Stack,
    Stage,
    Task,
    Tensor,
    Timeline,
    count_runs,
)

if TYPE_CHECKING:
    from traincast.resources import GraphCorrection

MOST_ANSWERS = 200_000
"""Of single steps that an engine remembers before it starts afresh."""
_PRODUCTS = ("matmul", "conv", "attention", "rnn")

_ALONE = Parallelism()

Prices = tuple[tuple[Estimate, ...], ...]
"""Of each stage, an estimate for each of its tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One step of a program: what its tasks cost and when they run."""

    program: Program
    estimates: Prices
    timeline: Timeline


class Engine:
    """Answers questions about jobs, and remembers every step of the way."""

    def __init__(
        self, *, costs: CostModel | None = None, calibration: Calibration | None = None, most: int = MOST_ANSWERS
    ) -> None:
        """`costs`: what prices tasks instead of the models that ship with the package. `calibration`: what was learnt from
        measurements of a machine, which then prices tasks, or from measured runs, which corrects whole steps."""
        if costs is not None and calibration is not None:
            raise InvalidInput("both costs and a calibration are given; give one of them")
        measured = calibration.machine if calibration is not None else None
        self.costs = costs if measured is None else _price_machine(measured)
        self.calibration = calibration if measured is None else None
        self._learned = calibration is not None
        self._remember: Remember = Memo(tracks=(Parallelism, Collective), most=most)

    def forecast(
        self, job: Job, cluster: Cluster, parallelism: Parallelism | None = None, *, draw: bool = False,
        activity: "GraphCorrection | None" = None,
    ) -> Forecast:  # fmt: skip
        """How long a step and the whole job take, whether it fits, and what it costs. `draw`: with every span, and so with how
        busy the devices are. `activity`: corrects those numbers by runs measured in this setting."""
        plan = parallelism or Parallelism(data=cluster.num_devices)
        if self._learned and job.cost_model is not None:
            raise InvalidInput(f"cost_model = {job.cost_model!r} and a calibration both price tasks; give one of them")
        if job.rampup_batch is not None:
            from traincast.forecast._rampup import ramp_up

            plain = replace(job, rampup_batch=None, rampup_samples=None, rampup_increment=None)
            whole = self.forecast(plain, cluster, plan, draw=draw, activity=activity)
            return ramp_up(self, job, cluster, plan, whole)
        if job.regime is not None:
            from traincast.forecast._regimes import forecast_regime

            return forecast_regime(self, job, job.regime, cluster, plan, draw=draw, activity=activity)
        if self.calibration is not None:
            return self._correct(self.calibration, job, cluster, plan, draw=draw, activity=activity)
        program = self.lower(job, cluster, plan)
        estimates = self.cost(program, job, cluster)
        timeline = self.simulate(program, estimates, job, cluster, draw=draw)
        memory = self.memory(program, job, cluster)
        run = Run(program=program, estimates=estimates, timeline=timeline)
        return self.answer(run, memory, job, cluster, activity=activity)

    def _correct(
        self, calibration: Calibration, job: Job, cluster: Cluster, plan: Parallelism, *, draw: bool,
        activity: "GraphCorrection | None",
    ) -> Forecast:  # fmt: skip
        """The forecast with what measured runs taught, under the constants that they choose."""
        from traincast.forecast._corrections import forecast_calibrated

        def ask(learned: CostModel) -> Forecast:
            engine = Engine(costs=learned)
            # What does not depend on the costs is shared: answers are kept by the model that gave them.
            engine._remember = self._remember
            return engine.forecast(job, cluster, plan, draw=draw, activity=activity)

        return forecast_calibrated(calibration, job, cluster, plan, ask=ask, activity=activity)

    def lower(self, job: Job, cluster: Cluster, plan: Parallelism) -> Program:
        """What each distinct rank runs."""
        check_size(plan, cluster)
        return lower(
            job.graph,
            plan,
            compiled=job.compiled,
            captured=job.cuda_graphs,
            habits=job.stack.plan,
            remember=self._remember,
        )

    def cost(self, program: Program, job: Job, cluster: Cluster) -> Prices:
        """Seconds of every task of every stage."""
        model, correction = self.model(job), self.correct(job, cluster)
        made: dict[int, tuple[Estimate, ...]] = {}
        for stage in program.stages:
            if id(stage.tasks) not in made:
                made[id(stage.tasks)] = self._price(model, stage, cluster, correction, replayed=job.cuda_graphs)
        return tuple([made[id(stage.tasks)] for stage in program.stages])

    def correct(self, job: Job, cluster: Cluster) -> Correction | None:
        """What measured whole steps say of the operators of a job's program; None where nobody measured anything like it. It
        follows from the program before any plan splits it, so every plan and every bound is corrected alike."""
        model = self.model(job)
        if not isinstance(model, Pricing) or model.interaction is None:
            return None
        if not all(is_gpu(group.device) for group in cluster.groups):
            return None
        whole = self._remember(share_model, self._remember(run_again, job.graph, _ALONE), _ALONE, job.compiled)
        found = self._remember(_correct, model.interaction, whole)
        if found is None:
            return self._remember(correct_by_reuse, whole, job.graph, job.compiled)
        return self._remember(prefer_reuse, found, job.graph, job.compiled)

    def _price(
        self, model: CostModel, stage: Stage, cluster: Cluster, correction: Correction | None, *, replayed: bool
    ) -> tuple[Estimate, ...]:
        if isinstance(model, PartwiseCostModel):
            priced = model.estimate_parts(_unplaced(stage), cluster, remember=self._remember)
        else:
            priced = self._remember(_estimate, model, stage.tasks, stage.repeats, stage.tensors, cluster)
        if correction is not None:
            priced = self._remember(_scale_classes, correction, stage.tasks, priced)
        return self._remember(replay, stage.tasks, priced) if replayed else priced

    def simulate(
        self, program: Program, estimates: Prices, job: Job, cluster: Cluster, *, draw: bool = False
    ) -> Timeline:
        """One optimizer step. Asynchronous workers cannot be faster than their servers."""
        habits, replayed = job.stack.plan, job.cuda_graphs
        run = partial(
            simulate_step, program, estimates, reads_back=habits.reads_back and not replayed,
            awaits_inputs=habits.awaits_inputs and not replayed,
        )  # fmt: skip
        timeline = run(remember=self._remember)
        if draw:
            # Drawing adds up one span after the other; the step is that of the closed form, drawn or not, to the last digit.
            timeline = replace(timeline, spans=run(draw=True).spans)
        plan = program.parallelism
        if isinstance(self.model(job), Pricing):
            # Measurements of a user's own cluster hold what its ranks wait for each other.
            timeline = add_waiting(timeline, program)
        if not plan.asynchronous:
            return timeline
        round_s = self._round_seconds(timeline, program, job, cluster)
        best = max(cluster.groups, key=lambda group: group.inter.bytes_per_s)
        busy_s = self._server_seconds(job, _alike(cluster, best), replace(plan, asynchronous=False))
        return replace(timeline, duration_s=max(round_s, busy_s))

    def _round_seconds(self, timeline: Timeline, program: Program, job: Job, cluster: Cluster) -> float:
        """In which as many steps are done as there are workers, each at its own pace."""
        if len(cluster.groups) == 1:
            return timeline.duration_s
        model, per_s = self.model(job), 0.0
        for group in cluster.groups:
            own = _alike(cluster, group)
            priced = tuple(self._price(model, stage, own, None, replayed=False) for stage in program.stages)
            per_s += group.num_nodes * group.devices_per_node / simulate_step(program, priced).duration_s
        return cluster.num_devices / per_s

    def draw_step(self, job: Job, cluster: Cluster, plan: Parallelism) -> Timeline:
        """A step with every span and nothing else of its forecast."""
        program = self.lower(job, cluster, plan)
        return self.simulate(program, self.cost(program, job, cluster), job, cluster, draw=True)

    def _server_seconds(self, job: Job, cluster: Cluster, plan: Parallelism) -> float:
        """What the servers need for one step of every worker; they send to some while they receive from others."""
        stage = lower(job.graph, plan, compiled=job.compiled, remember=self._remember).stages[0]
        priced = self._price(self.model(job), stage, cluster, None, replayed=False)
        busy_s = {"pull": 0.0, "push": 0.0}
        for task, estimate, count in zip(stage.tasks, priced, stage.counts(), strict=True):
            if isinstance(task, Collective) and task.kind in busy_s:
                busy_s[task.kind] += estimate.seconds * count
        return max(busy_s.values())

    def memory(self, program: Program, job: Job, cluster: Cluster) -> MemoryProfile:
        """Of the stage that comes nearest to filling the smallest device, and of the phase where a step has several."""
        profiles = profile_stages(program, cluster, job.stack, captured=job.cuda_graphs, remember=self._remember)
        fullest = replace(
            find_fullest(profiles),
            moments=list_moments(program, profiles, job, remember=self._remember),
            host=hold_on_host(program, job, cluster, remember=self._remember),
        )
        alone = self._with_errors(fullest, job, cluster, program.parallelism)
        if job.regime is None:
            return alone
        from traincast.forecast._regimes import regime_memory

        return regime_memory(self, alone, job, job.regime, cluster, program.parallelism)

    def _with_errors(self, profile: MemoryProfile, job: Job, cluster: Cluster, plan: Parallelism) -> MemoryProfile:
        """How sure it is, by what is new about the question."""
        setting = describe_setting(job, cluster, plan, remember=self._remember)
        return replace(profile, errors=memory_errors(setting, profile))

    def watch_device(self, job: Job, cluster: Cluster, plan: Parallelism) -> DeviceMemory:
        """What the device's own meter will show."""
        watched = watch_device(job, cluster, plan, remember=self._remember)
        if job.regime is None:
            return watched
        from traincast.forecast._regimes import extra_bytes

        alone = self.memory(self.lower(job, cluster, plan), replace(job, regime=None), cluster)
        more = extra_bytes(self, alone, job, cluster, plan)
        return DeviceMemory(
            live_bytes=watched.live_bytes + more, reserved_bytes=watched.reserved_bytes + more,
            used_bytes=watched.used_bytes + more,
        )  # fmt: skip

    def answer(
        self, run: Run, memory: MemoryProfile, job: Job, cluster: Cluster, *, activity: "GraphCorrection | None" = None
    ) -> Forecast:
        """The forecast, by whichever part of the model proved best for such a job."""
        plan, timeline = run.program.parallelism, run.timeline
        tally = tally_program(run.program, run.estimates, cluster, remember=self._remember)
        sure = self._cover_links(self._interval(timeline, tally, job, cluster, plan), run, job, cluster)
        own = self.own_costs(job)
        chosen = choose_answer(
            job, cluster, plan, sure.step, source=getattr(own, "source", "layers"), has_own_costs=own is not None,
            remember=self._remember,
        )  # fmt: skip
        sure = sure.given_as(chosen.step, unlike=chosen.is_unlike)
        if chosen.source == "reuse" and timeline.duration_s > 0:
            timeline = stretch(timeline, chosen.step.seconds / timeline.duration_s)
        resources = describe_activity(job, cluster, plan, timeline, correction=activity) if timeline.spans else ()
        resources = as_sure_as(resources, chosen.step)
        made = _fill_in(job, cluster, run.program, chosen, timeline, memory, tally, remember=self._remember)
        named = () if job.cost_model is None else (f"tasks are priced by the cost model {job.cost_model!r}",)
        notes = (*made.notes, *named, *self._note_kernels(run.program, job, cluster), *sure.says())
        return replace(made, resources=resources, notes=notes, narrowing=sure.narrowing)

    def _interval(self, timeline: Timeline, tally: Tally, job: Job, cluster: Cluster, plan: Parallelism) -> Assured:
        """The step with its interval, and what is new about it. A user's own measurements say themselves how sure they are."""
        if not isinstance(self.model(job), Pricing):
            return Assured(step=with_interval(timeline, tally, software=stack_of(job)))
        return with_novelty(timeline, tally, job, cluster, plan, remember=self._remember)

    def _cover_links(self, sure: Assured, run: Run, job: Job, cluster: Cluster) -> Assured:
        """The interval with the step over the links that a cluster may have where their transport is not given."""
        other = with_other_links(cluster) if isinstance(self.model(job), Pricing) and cluster.num_devices > 1 else None
        if other is None:
            return sure
        priced = self.cost(run.program, job, other)
        other_s = self.simulate(run.program, priced, job, other).duration_s
        step = sure.step
        wider = replace(step, low_s=min(step.low_s, other_s), high_s=max(step.high_s, other_s))
        return sure if wider == step else sure.given_as(wider).also("the transport of a link is not given")

    def _note_kernels(self, program: Program, job: Job, cluster: Cluster) -> tuple[str, ...]:
        """Widths that cost time, and silicon that nobody measured."""
        model = self.model(job)
        if not isinstance(model, Pricing):
            return ()
        first = program.stages[0]
        found = [
            note
            for group in cluster.groups
            for note in self._remember(_note_tasks, model.ops, model.stack, group.device, first.tasks, first.repeats)
        ]
        return tuple(dict.fromkeys(found))

    def bound_memory(self, job: Job, cluster: Cluster, plan: Parallelism) -> MemoryProfile:
        """Memory that a plan cannot need less than, from the model before any rank shares it: far quicker than the plan itself.
        Its probability to fit is one that the plan does not exceed."""
        check_size(plan, cluster)
        one = self._remember(self._replay_whole, job.graph, plan, job.compiled)
        bound = bound_memory(one, cluster, plan, job.stack)
        setting = describe_setting(job, cluster, plan, remember=self._remember)
        return replace(bound, errors=hopeful_memory_errors(setting, bound))

    def _replay_whole(self, graph: Graph, plan: Parallelism, compiled: bool) -> Pass:
        """One pass through the model before any rank shares it, without the update, whose needs shrink with its share."""
        whole = passes_of(self._remember(share_model, self._remember(run_again, graph, plan), _ALONE, compiled))
        return self._remember(replay_tasks, whole.tasks, whole.repeats, whole.tensors, True)

    def bound_time(
        self, job: Job, cluster: Cluster, plan: Parallelism, *, plain: Job | None = None
    ) -> tuple[float, float]:
        """(seconds of a step, seconds of it in which a device computes) that a plan cannot be below; quicker than the plan, as
        all plans that split the model alike share it.

        `plain`: the same job where nothing is run again. Its split then stands for this one's, which need not be made: what runs
        again is added as a share of its forward pass.
        """
        check_size(plan, cluster)
        corrected = self.calibration is not None or self._may_reuse(job, cluster, plan)
        if corrected or not isinstance(self.model(job), PartwiseCostModel):
            return 0.0, 0.0
        work = self._remember(self._find_work, job.graph, plan, job.compiled, cluster, self.model(job), job.cuda_graphs,
                              None if plain is None else plain.graph, self.correct(job, cluster))  # fmt: skip
        return bound_time(work, plan)

    def _find_work(
        self, graph: Graph, plan: Parallelism, compiled: bool, cluster: Cluster, model: CostModel, replayed: bool,
        plain: Graph | None, correction: Correction | None,
    ) -> Work:  # fmt: skip
        """Of one pass, as the ranks of the tensor, context and expert axes share it."""
        remember = self._remember
        how = compiled, cluster, model, replayed, correction
        if plain is None:
            return remember(self._work_of, remember(run_again, graph, plan), plan, *how)
        unsplit = remember(run_again, plain, _ALONE)
        alone = remember(self._work_of, unsplit, _ALONE, *how)
        again = remember(self._work_of, remember(run_again, graph, plan), _ALONE, *how)
        share = again.again_s / alone.forward_s if alone.forward_s else 0.0
        return remember(self._work_of, unsplit, plan, *how).run_again(RUN_AGAIN * share)

    def _work_of(
        self, whole: Stage, plan: Parallelism, compiled: bool, cluster: Cluster, model: CostModel, replayed: bool,
        correction: Correction | None,
    ) -> Work:  # fmt: skip
        passes = passes_of(self._remember(share_model, whole, plan, compiled))
        return add_up_work(
            passes.tasks, passes.repeats, self._price(model, passes, cluster, correction, replayed=replayed)
        )

    def weigh(
        self, job: Job, cluster: Cluster, plan: Parallelism, *, step_s: float, busy_s: float
    ) -> tuple[float, float | None, float | None]:
        """(seconds, USD, joules) of a job whose steps take so long and keep a device computing for so long."""
        step = Estimate(seconds=step_s, low_s=step_s, high_s=step_s)
        whole = time_job(job, cluster, step, job.graph.batch_size * plan.micro_batches * plan.data)
        usd = price_job(cluster, whole.total)
        timeline = Timeline(duration_s=step_s, spans=(), shares={}, busy_s=busy_s)
        return whole.total.seconds, None if usd is None else usd.value, spend_energy(cluster, timeline, whole)

    def model(self, job: Job) -> CostModel:
        """What prices the tasks of a job."""
        own = self.own_costs(job)
        return own if own is not None else self._remember(_price_under, stack_of(job))

    def own_costs(self, job: Job) -> CostModel | None:
        """What prices the tasks of a job instead of the fitted models; None: those do."""
        if self.costs is not None or job.cost_model is None:
            return self.costs
        return self._remember(name_costs, job.cost_model, stack_of(job))

    def _may_reuse(self, job: Job, cluster: Cluster, plan: Parallelism) -> bool:
        """Whether the reuse predictor could answer, so that the time of the tasks says nothing of the step."""
        return self.own_costs(job) is None and not find_gap(job, cluster, plan)


def stack_of(job: Job) -> Stack:
    """The software that runs a job."""
    return job.stack


def _alike(cluster: Cluster, group: NodeGroup) -> Cluster:
    """As many nodes, all like those of one group."""
    return replace(cluster, groups=(replace(group, num_nodes=cluster.num_nodes),))


def _price_machine(rates: MachineRates) -> CostModel:
    from traincast.cost import choose_costs

    return choose_costs(rates, others=Pricing().estimate)


def _price_under(software: Stack) -> Pricing:
    return Pricing(stack=software)


def _correct(ensemble: Ensemble, whole: Stage) -> Correction | None:
    return ensemble.correct(whole)


def _scale_classes(
    correction: Correction, tasks: tuple[Task, ...], estimates: tuple[Estimate, ...]
) -> tuple[Estimate, ...]:
    return correction.apply(tasks, estimates)


def _unplaced(stage: Stage) -> Stage:
    """Whatever its place in a pipeline."""
    return replace(stage, index=0, num_in_flight=1)


def _estimate(
    model: CostModel,
    tasks: tuple[Task, ...],
    repeats: tuple[Repeat, ...],
    tensors: tuple[Tensor, ...],
    cluster: Cluster,
) -> tuple[Estimate, ...]:
    return model.estimate(Stage(tasks=tasks, repeats=repeats, tensors=tensors), cluster)


def check_size(plan: Parallelism, cluster: Cluster) -> None:
    """Refuse a plan that needs more or fewer devices than there are."""
    if plan.num_devices != cluster.num_devices:
        raise IllegalPlan(
            f"the plan needs {plan.num_devices} devices (data {plan.data} x tensor {plan.tensor} x pipeline {plan.pipeline} "
            f"x context {plan.context}) and the cluster has {cluster.num_devices}; {_suggest(plan, cluster)}"
        )


def _suggest(plan: Parallelism, cluster: Cluster) -> str:
    rest = plan.tensor * plan.pipeline * plan.context
    if cluster.num_devices % rest == 0:
        return f"data = {cluster.num_devices // rest} would use them all"
    return f"tensor x pipeline x context must divide {cluster.num_devices}"


def _fill_in(
    job: Job, cluster: Cluster, program: Program, chosen: Answer, timeline: Timeline, memory: MemoryProfile,
    tally: Tally, *, remember: Remember,
) -> Forecast:  # fmt: skip
    plan, step = program.parallelism, chosen.step
    global_batch = program.batch_size * plan.micro_batches * plan.data
    whole = time_job(job, cluster, step, global_batch)
    device = cluster.groups[0].device
    flop = remember(_flop_of, job.graph) * plan.micro_batches * plan.data
    peak = remember(_peak_flop_per_s, job.graph, device)
    host = _describe_offload(plan, cluster)
    joules = spend_energy(cluster, timeline, whole)
    return Forecast(
        workload=job.graph.name,
        cluster=cluster.name,
        device=device.name,
        num_devices=cluster.num_devices,
        global_batch=global_batch,
        step=step,
        samples_per_s=global_batch / step.seconds if step.seconds else math.inf,
        timeline=timeline,
        memory=memory,
        job=whole,
        usd=price_job(cluster, whole.total),
        energy_joules=joules,
        energy_range=(energy := range_energy(joules, whole.total)),
        kg_co2=weigh_co2(energy, cluster),
        utilization=flop / (step.seconds * peak * cluster.num_devices) if peak and step.seconds else 0.0,
        grounds=tally.ground_shares,
        unknown_ops=remember(_unknown_ops, job.graph),
        notes=(
            *program.notes,
            *advise_split(job, cluster, plan),
            *_describe_links(job.stack, cluster),
            *host,
            *describe_loading(job, cluster, step, global_batch),
            *describe_checkpoints(job, whole),
            *chosen.notes,
        ),
        source=chosen.source,
        run_utilization=expect_run_utilization(job, cluster, plan, timeline),
    )


def _describe_links(stack: Stack, cluster: Cluster) -> tuple[str, ...]:
    said = describe_links(cluster)
    if not stack.plan.own_containers or all(group.devices_per_node == 1 for group in cluster.groups):
        return said
    name = stack.title or stack.name
    return (f"{name} runs each replica in a container of its own, so devices of one node talk over its network", *said)


def _describe_offload(plan: Parallelism, cluster: Cluster) -> tuple[str, ...]:
    held = {
        "optimizer state": plan.offload_optimizer,
        "weights": plan.offload_weights,
        "activations": plan.offload_activations,
    }
    words = ", ".join(name for name, is_away in held.items() if is_away)
    return (describe_host(cluster, held=words, nvme=plan.offload_to == "nvme"),) if words else ()


def _note_tasks(
    model: OpModel, stack: Stack, device: Device, tasks: tuple[Task, ...], repeats: tuple[Repeat, ...]
) -> tuple[str, ...]:
    counts = count_runs(repeats, num_tasks=len(tasks))
    chosen = [(task, count) for task, count in zip(tasks, counts, strict=True) if isinstance(task, Op)]
    ops = mark_software(tuple([op for op, _ in chosen]), stack)
    return note_kernels(ops, device, model, [count for _, count in chosen])


def _flop_of(graph: Graph) -> float:
    """Of the model itself; layers that run again to save memory do no more for it."""
    again = zip(graph.ops, graph.counts(), strict=True)
    return graph.flop - sum((op.flop or 0.0) * count for op, count in again if op.phase == "recompute")


def _unknown_ops(graph: Graph) -> tuple[str, ...]:
    return graph.unknown_ops()


def _peak_flop_per_s(graph: Graph, device: Device) -> float:
    """Of the fastest units that the products of a graph can use."""
    return max((device.peak_flop_per_s(op.dtype) or 0.0 for op in graph.ops if op.kind in _PRODUCTS), default=0.0)
