"""The map of the product: a job, a cluster and a plan become a forecast."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from traincast.cost import CostModel
from traincast.cost.notes import note_kernels
from traincast.cost.offload import describe_host
from traincast.cost.pricing import Pricing
from traincast.cost.stack import Stack, stack
from traincast.errors import IllegalPlan
from traincast.forecast.activity import describe_activity, expect_run_utilization
from traincast.forecast.balance import advise_split
from traincast.forecast.choose import settle, stretch
from traincast.forecast.job_time import price_job, spend_energy, time_job
from traincast.lower import lower
from traincast.resources.correction import GraphCorrection
from traincast.simulate import Overheads, replay_stages, simulate_step
from traincast.spec import (
    GROUNDS,
    Cluster,
    Collective,
    Estimate,
    Forecast,
    Job,
    MemoryProfile,
    Op,
    Parallelism,
    Program,
    Stage,
    Task,
    Timeline,
)

NORMAL_90 = 1.645
UNSEEN_DEVICE = 1.15
"""A stack's left-out errors are of models never seen on devices that were; others may be a little further off."""
CONTEXT_BYTES = 0.75e9
"""What the driver and libraries hold on a device beside the framework's allocator."""
USABLE = 0.975
"""Share of a device that requests fill, holes included, before one of them finds no room."""
COMMUNICATOR_SHARE = 0.022
"""Share taken by the buffers of one axis: a larger device has more channels to its peers. Found, as the share above, from
runs that failed and from batches chosen to fill the device."""
MEMORY_SPREAD = 0.04
"""Scale of Student's t (two degrees of freedom) of the peak in log bytes, on models and scales left out of the fit."""
REUSING_STACKS = frozenset({"megatron-core", "megatron-deepspeed", "megatron-lm", "torchtitan"})
"""Stacks that gather into one buffer again and again (Megatron) or on the stream of the product (torchtitan): a host that is
ahead holds nothing."""


def forecast(job: Job, cluster: Cluster, parallelism: Parallelism | None = None, *, costs: CostModel | None = None,
             draw: bool = False, activity: GraphCorrection | None = None) -> Forecast:  # fmt: skip
    """How long a step and the whole job take, whether it fits, and what it costs. `activity`: corrects the resource numbers
    by runs measured in this setting."""
    plan = parallelism or Parallelism(data=cluster.num_devices)
    _check_size(plan, cluster)
    program = lower(job.graph, plan, compiled=job.compiled)
    software = stack(job.stack)
    model = costs or Pricing(stack=software)
    estimates = _price_stages(program, cluster, model)
    if job.cuda_graphs:
        estimates = _replayed(estimates)
    timeline = simulate_step(program, estimates, draw=draw)
    memory = _worst_memory(program, cluster, job.stack)
    if plan.asynchronous:
        timeline = replace(timeline, duration_s=max(timeline.duration_s, _server_seconds(job, cluster, plan, model)))
    step = _with_interval(timeline, program, estimates, software=software)
    settled = settle(job, cluster, plan, step, has_own_costs=costs is not None)
    if settled.reuse is not None and timeline.duration_s > 0:
        timeline = stretch(timeline, settled.step.seconds / timeline.duration_s)
    answer = _answer(job, cluster, program, settled.step, timeline, memory, estimates)
    run_utilization = expect_run_utilization(job, cluster, plan, timeline)
    notes = (*answer.notes, *settled.notes, *_note_kernels(program, cluster, model))
    answer = replace(answer, notes=notes, run_utilization=run_utilization)
    if not timeline.spans:
        return answer
    return replace(answer, resources=describe_activity(job, cluster, plan, timeline, correction=activity))


def _note_kernels(program: Program, cluster: Cluster, model: CostModel) -> tuple[str, ...]:
    if not isinstance(model, Pricing):
        return ()
    ops = [task for task in program.stages[0].tasks if isinstance(task, Op)]
    found = [note for group in cluster.groups for note in note_kernels(ops, group.device, model.ops)]
    return tuple(dict.fromkeys(found))


def _price_stages(program: Program, cluster: Cluster, model: CostModel) -> list[tuple[Estimate, ...]]:
    """Stages with the same tasks are priced once."""
    priced: dict[int, tuple[Estimate, ...]] = {}
    for stage in program.stages:
        if id(stage.tasks) not in priced:
            priced[id(stage.tasks)] = model.estimate(stage, cluster)
    return [priced[id(stage.tasks)] for stage in program.stages]


def _server_seconds(job: Job, cluster: Cluster, plan: Parallelism, model: CostModel) -> float:
    """What the servers need for one step of every worker: asynchronous workers cannot be faster than that."""
    program = lower(job.graph, replace(plan, asynchronous=False), compiled=job.compiled)
    stage, priced = program.stages[0], _price_stages(program, cluster, model)[0]
    tasks = zip(stage.tasks, priced, stage.counts(), strict=True)
    return sum(estimate.seconds * count for task, estimate, count in tasks if isinstance(task, Collective))


def _replayed(estimates: Sequence[Sequence[Estimate]]) -> list[tuple[Estimate, ...]]:
    """CUDA graphs: one launch per step, so the host issues nothing op by op."""
    return [tuple(replace(estimate, host_s=0.0) for estimate in priced) for priced in estimates]


def _check_size(plan: Parallelism, cluster: Cluster) -> None:
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


def outside_bytes(capacity_bytes: float, plan: Parallelism) -> float:
    """What of a device the framework's allocator never gets to use."""
    num_axes = sum(degree > 1 for degree in (plan.data, plan.tensor, plan.pipeline, plan.context, plan.expert))
    return CONTEXT_BYTES + (1 - USABLE + num_axes * COMMUNICATOR_SHARE) * capacity_bytes


def overheads_of(stack_name: str) -> Overheads:
    """What runs of a stack hold beside their tensors."""
    return Overheads(queued_gathers=0.0) if stack_name in REUSING_STACKS else Overheads()


def _worst_memory(program: Program, cluster: Cluster, stack_name: str) -> MemoryProfile:
    """Of the stage that comes nearest to filling the smallest device."""
    capacity = min(group.device.memory_bytes for group in cluster.groups)
    plan = program.parallelism
    profiles = replay_stages(
        program.stages,
        capacity_bytes=capacity,
        micro_batches=plan.micro_batches,
        overhead_bytes=outside_bytes(capacity, plan),
        overheads=overheads_of(stack_name),
        spread=MEMORY_SPREAD,
        bucket_copies=plan.copies_gradients,
        replicated=plan.data > 1,
    )
    worst = max(profiles, key=lambda profile: profile.needed_bytes)
    return replace(worst, stage_peaks=tuple(profile.peak_bytes for profile in profiles))


@dataclass(slots=True)
class Tally:
    """Device seconds of every kind of task, and how unsure they are."""

    seconds: dict[str, float] = field(default_factory=dict)
    weighted: dict[str, float] = field(default_factory=dict)
    """Seconds times the standard deviation of their log."""
    grounds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(GROUNDS, 0.0))
    bounded: float = 0.0
    """The weighted seconds that rest on the bound alone."""

    def add(self, tasks: Sequence[Task], estimates: Sequence[Estimate], counts: Sequence[int]) -> None:
        for task, estimate, count in zip(tasks, estimates, counts, strict=True):
            kind = f"{task.axis} communication" if isinstance(task, Collective) else task.kind
            amount = estimate.seconds * count
            unsure = amount * _spread(estimate)
            self.seconds[kind] = self.seconds.get(kind, 0.0) + amount
            self.weighted[kind] = self.weighted.get(kind, 0.0) + unsure
            self.grounds[estimate.ground] += amount
            self.bounded += unsure if estimate.ground == "bound" else 0.0

    def spread(self, software: Stack) -> float:
        """One standard deviation of the log error of a step. Errors of one kind of task go together, those of different
        kinds do not; composition adds its own. For a stack whose whole steps were measured their left-out errors say it
        all, but for tasks that rest on the bound alone: they widen any."""
        whole = sum(self.seconds.values())
        variance = software.spread**2 + sum((part / whole) ** 2 for part in self.weighted.values() if whole)
        if software.num_steps:
            variance = (UNSEEN_DEVICE * software.spread) ** 2 + (self.bounded / whole if whole else 0.0) ** 2
        return math.sqrt(variance)


def _with_interval(
    timeline: Timeline, program: Program, estimates: Sequence[Sequence[Estimate]], *, software: Stack
) -> Estimate:
    tally = Tally()
    for stage, priced, times in _distinct(program, estimates):
        tally.add(stage.tasks, priced, [times * count for count in stage.counts()])
    factor = math.exp(NORMAL_90 * tally.spread(software))
    total = timeline.duration_s
    return Estimate(
        seconds=total,
        low_s=total / factor,
        high_s=total * factor,
        limit=max(timeline.shares, key=lambda name: timeline.shares[name]),
        ground=max(tally.grounds, key=lambda name: tally.grounds[name]),
    )


def _distinct(program: Program, estimates: Sequence[Sequence[Estimate]]) -> list[tuple[Stage, Sequence[Estimate], int]]:
    """Each sort of stage with its prices and how many there are of it."""
    found: dict[tuple[int, int], tuple[Stage, Sequence[Estimate], int]] = {}
    for stage, priced in zip(program.stages, estimates, strict=True):
        key = id(stage.tasks), id(priced)
        found[key] = (stage, priced, found[key][2] + 1 if key in found else 1)
    return list(found.values())


def _spread(estimate: Estimate) -> float:
    if estimate.low_s <= 0 or estimate.high_s <= estimate.low_s:
        return 0.0
    return math.log(estimate.high_s / estimate.low_s) / (2 * NORMAL_90)


def _answer(job: Job, cluster: Cluster, program: Program, step: Estimate, timeline: Timeline, memory: MemoryProfile,
            estimates: Sequence[Sequence[Estimate]]) -> Forecast:  # fmt: skip
    plan = program.parallelism
    global_batch = program.batch_size * plan.micro_batches * plan.data
    balance = advise_split(job, cluster, plan)
    whole = time_job(job, cluster, step, global_batch)
    device = cluster.groups[0].device
    flop = job.graph.flop * plan.micro_batches * plan.data
    peak = max((device.peak_flop_per_s(op.dtype) or 0.0 for op in job.graph.ops if op.kind in _PRODUCTS), default=0.0)
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
        energy_joules=spend_energy(cluster, timeline, whole),
        utilization=flop / (step.seconds * peak * cluster.num_devices) if peak and step.seconds else 0.0,
        grounds=_ground_shares(program, estimates),
        unknown_ops=job.graph.unknown_ops(),
        notes=(*program.notes, *balance, *((describe_host(cluster),) if plan.offload_optimizer else ())),
    )


_PRODUCTS = ("matmul", "conv", "attention", "rnn")


def _ground_shares(program: Program, estimates: Sequence[Sequence[Estimate]]) -> Mapping[str, float]:
    amounts = dict.fromkeys(GROUNDS, 0.0)
    for stage, priced, times in _distinct(program, estimates):
        for estimate, count in zip(priced, stage.counts(), strict=True):
            amounts[estimate.ground] += times * estimate.seconds * count
    whole = sum(amounts.values())
    return {ground: amount / whole if whole else 0.0 for ground, amount in amounts.items()}
