"""A job, a cluster and a plan to a forecast: lower, cost, simulate, memory, answer, each remembered on what it was given.

Everything that asks about a plan comes this way: one forecast, a search over thousands of plans, the largest batch that fits.
An engine that has answered before gives the same bytes as a new one, only sooner (see `traincast.memo`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from traincast.certainty import (
    Answer,
    Assured,
    Tally,
    choose_answer,
    describe_setting,
    hopeful_memory_errors,
    memory_errors,
    tally_program,
    with_interval,
    with_novelty,
)
from traincast.cost import (
    ClassFactors,
    CostModel,
    OpModel,
    PartwiseCostModel,
    Pricing,
    describe_host,
    describe_links,
    fastest_flop_per_s,
    infers_images,
    is_gpu,
    name_costs,
    note_kernels,
    replay,
    with_other_links,
)
from traincast.errors import IllegalPlan, InvalidInput
from traincast.forecast._activity import as_sure_as, describe_activity, expect_run_utilization
from traincast.forecast._assemble import assemble, describe_checkpoints, describe_loading, hold_to_limit
from traincast.forecast._memory import (
    DeviceMemory,
    find_fullest,
    hold_on_host,
    list_moments,
    profile_stages,
    watch_device,
)
from traincast.lower import lower, narrow_split, run_again, share_model, split_model
from traincast.memo import Memo, Remember, compute
from traincast.noun import noun
from traincast.simulate import Pass, add_waiting, list_busy, replay_tasks, simulate_step
from traincast.spec import (
    MATMULS,
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
    from traincast.forecast._bounds import Work
    from traincast.resources import TwelveNetwork

MOST_ANSWERS = 200_000
"""Of single steps that an engine remembers before it starts afresh."""

_ALONE = Parallelism()
PRICED_BY = {"physics": "roofline", "deletepop": "operators", "scaledl": "graph-network"}
"""Methods that price tasks, by the cost model that does it."""
WHOLE_STEPS = ("predictddl", "driple")
"""Methods that give a whole step, anchored on physics."""
UNBOUNDED = (*WHOLE_STEPS, "scaledl")
"""What they answer follows from a whole step, so no part of one bounds it."""


@noun
class Shown:
    """What of a step is shown beside its numbers; nothing else of it is worked out."""

    spans: bool = False
    """Every piece of work in time, and so how busy the devices are."""
    work: bool = False
    """What keeps a rank busy, sort by sort."""
    activity: "TwelveNetwork | None" = None
    """Adapted to runs of this setting, for the method driple."""


NOTHING = Shown()
RegimeAnswer = Callable[["Engine", Job, Cluster, Parallelism, Shown], Forecast]

Prices = tuple[tuple[Estimate, ...], ...]
"""Of each stage, an estimate for each of its tasks."""


@noun
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
        self._remember: Remember = Memo(by_value=(Parallelism, Collective), most=most)

    def forecast(
        self, job: Job, cluster: Cluster, parallelism: Parallelism | None = None, *, shown: Shown = NOTHING
    ) -> Forecast:
        """How long a step and the whole job take, whether it fits, and what it costs."""
        plan = parallelism or Parallelism(data=cluster.num_devices)
        compose = self._find_regime_answer(job)
        if compose is not None:
            return compose(self, job, cluster, plan, shown)
        program = self.lower(job, cluster, plan)
        estimates = self.cost(program, job, cluster)
        timeline = self.simulate(program, estimates, job, cluster, shown=shown)
        memory = self.memory(program, job, cluster)
        return self.answer(
            Run(program=program, estimates=estimates, timeline=timeline), memory, job, cluster, shown=shown
        )

    def _find_regime_answer(self, job: Job) -> "RegimeAnswer | None":
        """What joins several forecasts to that of a job; None where it is one step over and over."""
        if self._learned and job.cost_model is not None:
            raise InvalidInput(f"cost_model = {job.cost_model!r} and a calibration both price tasks; give one of them")
        if self._learned and job.method not in (None, "best"):
            raise InvalidInput(f"method = {job.method!r} and a calibration both say who answers; give one of them")
        if job.rampup_batch is not None:
            from traincast.forecast._rampup import ramp_up

            return ramp_up
        if job.regime is not None:
            from traincast.forecast._regimes import forecast_regime

            return forecast_regime
        if self.calibration is not None:
            from traincast.forecast._corrections import forecast_calibrated

            return forecast_calibrated
        if job.method in WHOLE_STEPS:
            from traincast.forecast._methods import forecast_whole_step

            return forecast_whole_step
        return None

    def priced_by(self, costs: CostModel) -> "Engine":
        """An engine with other costs. What does not depend on them is shared: answers are kept by the model that gave them."""
        engine = Engine(costs=costs)
        engine._remember = self._remember
        return engine

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
                made[id(stage.tasks)] = self._remember(
                    self._price_stage,
                    model,
                    stage.tasks,
                    stage.repeats,
                    stage.tensors,
                    cluster,
                    correction,
                    job.cuda_graphs,
                )
        return tuple([made[id(stage.tasks)] for stage in program.stages])

    def correct(self, job: Job, cluster: Cluster) -> ClassFactors | None:
        """What measured whole steps say of the operators of a job's program; None where nothing that they say helps. It follows
        from the program before any plan splits it, so every plan and every bound is corrected alike."""
        model = self.model(job)
        if not isinstance(model, Pricing) or not all(is_gpu(group.device) for group in cluster.groups):
            return None
        return model.interaction if self._remember(infers_images, job.graph) else None

    def _price_stage(
        self, model: CostModel, tasks: tuple[Task, ...], repeats: tuple[Repeat, ...], tensors: tuple[Tensor, ...],
        cluster: Cluster, correction: ClassFactors | None, replayed: bool,
    ) -> tuple[Estimate, ...]:  # fmt: skip
        stage = Stage(tasks=tasks, repeats=repeats, tensors=tensors)
        return self._price(model, stage, cluster, correction, replayed=replayed)

    def _price(
        self, model: CostModel, stage: Stage, cluster: Cluster, correction: ClassFactors | None, *, replayed: bool
    ) -> tuple[Estimate, ...]:
        if isinstance(model, PartwiseCostModel):
            priced = model.estimate_parts(stage, cluster, remember=self._remember)
        else:
            priced = self._remember(_estimate, model, stage.tasks, stage.repeats, stage.tensors, cluster)
        if correction is not None:
            priced = self._remember(_scale_classes, correction, stage.tasks, priced)
        return self._remember(replay, stage.tasks, priced) if replayed else priced

    def simulate(
        self, program: Program, estimates: Prices, job: Job, cluster: Cluster, *, shown: Shown = NOTHING
    ) -> Timeline:
        """One optimizer step. Asynchronous workers cannot be faster than their servers."""
        timeline = self._run(program, estimates, job, remember=self._remember)
        if shown.spans or shown.work:
            timeline = replace(timeline, work=list_busy(program, estimates, remember=self._remember))
        if shown.spans:
            # Drawing adds up one span after the other; the step is the same, drawn or not, to the last digit.
            timeline = replace(timeline, spans=self.draw(program, estimates, job).spans)
        plan = program.parallelism
        if isinstance(self.model(job), Pricing):
            # Measurements of a user's own cluster hold what its ranks wait for each other.
            timeline = add_waiting(timeline, program)
        timeline = hold_to_limit(timeline, cluster)
        if not plan.asynchronous:
            return timeline
        round_s = self._round_seconds(timeline, program, job, cluster)
        best = max(cluster.groups, key=lambda group: group.inter.bytes_per_s)
        busy_s = self._server_seconds(job, _alike(cluster, best), replace(plan, asynchronous=False))
        return replace(timeline, duration_s=max(round_s, busy_s))

    def draw(self, program: Program, estimates: Prices, job: Job) -> Timeline:
        """The step of a program with every span, before anything that devices wait for each other."""
        return self._run(program, estimates, job, draw=True)

    def _run(
        self, program: Program, estimates: Prices, job: Job, *, draw: bool = False, remember: Remember = compute
    ) -> Timeline:
        habits, replayed = job.stack.plan, job.cuda_graphs
        return simulate_step(
            program, estimates, draw=draw, reads_back="gradients" in habits.awaits and not replayed,
            awaits_inputs="inputs" in habits.awaits and not replayed, remember=remember,
        )  # fmt: skip

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
        """Its uncertainty, by what is new about the question."""
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
        self, run: Run, memory: MemoryProfile, job: Job, cluster: Cluster, *, shown: Shown = NOTHING
    ) -> Forecast:
        """The forecast, by whichever part of the model proved best for such a job."""
        plan, timeline = run.program.parallelism, run.timeline
        tally = tally_program(run.program, run.estimates, cluster, remember=self._remember)
        sure = self._cover_links(self._interval(timeline, tally, job, cluster, plan), run, job, cluster)
        chosen = choose_answer(job.graph, sure.step, remember=self._remember)
        sure = sure.given_as(chosen.step, unlike=chosen.is_unlike)
        resources = describe_activity(job, cluster, plan, timeline) if timeline.spans else ()
        resources = as_sure_as(resources, chosen.step)
        made = _fill_in(job, cluster, run.program, chosen, timeline, memory, tally, remember=self._remember)
        name = job.cost_model or PRICED_BY.get(job.method or "")
        named = () if name is None else (f"tasks are priced by the cost model {name!r}",)
        notes = (*made.notes, *named, *self._note_kernels(run.program, job, cluster))
        return replace(made, resources=resources, notes=notes, narrowing=sure.narrowing).saying(uncertainty=sure.says())

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
        from traincast.forecast._bounds import bound_memory

        check_size(plan, cluster)
        one = self._remember(self._replay_whole, job.graph, plan.recompute, job.compiled)
        bound = bound_memory(one, cluster, plan, job.stack)
        setting = describe_setting(job, cluster, plan, remember=self._remember)
        return replace(bound, errors=hopeful_memory_errors(setting, bound))

    def _replay_whole(self, graph: Graph, how: str, compiled: bool) -> Pass:
        """One pass through the model before any rank shares it, without the update, whose needs shrink with its share."""
        from traincast.forecast._bounds import passes_of

        unsplit = Parallelism(recompute=how)
        whole = passes_of(split_model(graph, unsplit, compiled=compiled, remember=self._remember))
        return self._remember(replay_tasks, whole.tasks, whole.repeats, whole.tensors, True)

    def bound_time(
        self, job: Job, cluster: Cluster, plan: Parallelism, *, plain: Job | None = None
    ) -> tuple[float, float]:
        """(seconds of a step, seconds of it in which a device computes) that a plan cannot be below; quicker than the plan, as
        all plans that split the model alike share it.

        `plain`: the same job where nothing is run again. Its split then stands for this one's, which need not be made: what runs
        again is added as a share of its forward pass.
        """
        from traincast.forecast._bounds import bound_time

        check_size(plan, cluster)
        corrected = self.calibration is not None
        if corrected or job.method in UNBOUNDED or not isinstance(self.model(job), PartwiseCostModel):
            return 0.0, 0.0
        whole = self._remember(run_again, job.graph, plan.recompute)
        unsplit = None if plain is None else self._remember(run_again, plain.graph, "none")
        split = narrow_split(whole, plan, remember=self._remember)
        how = job.compiled, cluster, self.model(job), job.cuda_graphs, self.correct(job, cluster)
        return bound_time(self._remember(self._find_work, whole, unsplit, split, *how), plan)

    def _find_work(self, whole: Stage, plain: Stage | None, plan: Parallelism, *how: Any) -> "Work":
        """Of one pass, as the ranks of the tensor, context and expert axes share it."""
        from traincast.forecast._bounds import RUN_AGAIN

        remember = self._remember
        if plain is None:
            return self._work_of(whole, plan, *how)
        alone, again = (remember(self._work_of, one, _ALONE, *how) for one in (plain, whole))
        share = again.again_s / alone.forward_s if alone.forward_s else 0.0
        return remember(self._work_of, plain, plan, *how).run_again(RUN_AGAIN * share)

    def _work_of(
        self, whole: Stage, plan: Parallelism, compiled: bool, cluster: Cluster, model: CostModel, replayed: bool,
        correction: ClassFactors | None,
    ) -> "Work":  # fmt: skip
        from traincast.forecast._bounds import add_up_work, passes_of

        passes = passes_of(self._remember(share_model, whole, plan, compiled))
        return add_up_work(
            passes.tasks, passes.repeats, self._price(model, passes, cluster, correction, replayed=replayed)
        )

    def weigh(
        self, job: Job, cluster: Cluster, plan: Parallelism, *, step_s: float, busy_s: float
    ) -> tuple[float, float | None, float | None]:
        """(seconds, USD, joules) of a job whose steps take so long and keep a device computing for so long."""
        step = Estimate(seconds=step_s, low_s=step_s, high_s=step_s)
        timeline = Timeline(duration_s=step_s, spans=(), shares={}, busy_s=busy_s)
        global_batch = job.graph.batch_size * plan.micro_batches * plan.data
        made = assemble(job, cluster, step, timeline, global_batch=global_batch)
        usd = made["usd"]
        return made["job"].total.seconds, None if usd is None else usd.value, made["energy_joules"]

    def model(self, job: Job) -> CostModel:
        """What prices the tasks of a job."""
        own = self.own_costs(job)
        return own if own is not None else self._remember(_price_under, stack_of(job))

    def own_costs(self, job: Job) -> CostModel | None:
        """What prices the tasks of a job instead of the fitted models; None: those do."""
        name = job.cost_model or PRICED_BY.get(job.method or "")
        if self.costs is not None or name is None:
            return self.costs
        return self._remember(name_costs, name, stack_of(job))


def stack_of(job: Job) -> Stack:
    """The software that runs a job."""
    return job.stack


def _alike(cluster: Cluster, group: NodeGroup) -> Cluster:
    """As many nodes, all like those of one group."""
    return replace(cluster, groups=(replace(group, num_nodes=cluster.num_nodes),))


def _price_machine(rates: MachineRates) -> CostModel:
    from traincast.cost import Calibrated

    return Calibrated(rates=rates, others=Pricing().estimate)


def _price_under(software: Stack) -> Pricing:
    return Pricing(stack=software)


def _scale_classes(
    correction: ClassFactors, tasks: tuple[Task, ...], estimates: tuple[Estimate, ...]
) -> tuple[Estimate, ...]:
    return correction.apply(tasks, estimates)


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
    made = assemble(job, cluster, step, timeline, global_batch=global_batch)
    device = cluster.groups[0].device
    flop = remember(_flop_of, job.graph) * plan.micro_batches * plan.data
    peak = remember(_peak_flop_per_s, job.graph, device)
    host = _describe_offload(plan, cluster)
    return Forecast(
        **made,
        workload=job.graph.name,
        cluster=cluster.name,
        device=device.name,
        memory=memory,
        utilization=flop / (step.seconds * peak * cluster.num_devices) if peak and step.seconds else 0.0,
        recomputed=remember(_share_again, job.graph, plan.recompute),
        grounds=tally.ground_shares,
        unknown_ops=remember(_unknown_ops, job.graph),
        notes=(
            *program.notes,
            *_advise_split(job, cluster, plan),
            *_describe_links(job.stack, cluster),
            *host,
            *describe_loading(job, cluster, step, global_batch),
            *describe_checkpoints(job, made["job"]),
            *chosen.notes,
        ),
        run_utilization=expect_run_utilization(job, cluster, plan, timeline),
    )


def _advise_split(job: Job, cluster: Cluster, plan: Parallelism) -> tuple[str, ...]:
    if len(cluster.groups) == 1:
        return ()
    from traincast.forecast._balance import advise_split

    return advise_split(job, cluster, plan)


def _describe_links(stack: Stack, cluster: Cluster) -> tuple[str, ...]:
    said = describe_links(cluster)
    if "own_containers" not in stack.plan.runs or all(group.devices_per_node == 1 for group in cluster.groups):
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
    return note_kernels(tuple([op for op, _ in chosen]), [count for _, count in chosen], device, model, stack)


def _flop_of(graph: Graph) -> float:
    """Of the model itself; layers that run again to save memory do no more for it."""
    again = zip(graph.ops, graph.counts(), strict=True)
    return graph.flop - sum((op.flop or 0.0) * count for op, count in again if op.phase == "recompute")


def _share_again(graph: Graph, how: str) -> float:
    """FLOP that run again to save memory, over the model's own."""
    whole = run_again(graph, how)
    again = zip(whole.tasks, whole.counts(), strict=True)
    flop = sum((op.flop or 0.0) * count for op, count in again if isinstance(op, Op) and op.phase == "recompute")
    return flop / (_flop_of(graph) or 1.0)


def _unknown_ops(graph: Graph) -> tuple[str, ...]:
    return graph.unknown_ops()


def _peak_flop_per_s(graph: Graph, device: Device) -> float:
    """Of the fastest units that the matmuls of a graph can use: a format that a device lacks runs in a wider one."""
    return fastest_flop_per_s(device, frozenset(op.dtype for op in graph.ops if op.kind in MATMULS))
