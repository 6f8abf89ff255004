"""The map of the product: a job, a cluster and a plan become a forecast."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from traincast.cost import CostModel
from traincast.cost.pricing import Pricing
from traincast.cost.stack import stack
from traincast.errors import IllegalPlan
from traincast.lower import lower
from traincast.resources import IDLE_POWER, profile_resources
from traincast.simulate import Overheads, replay_memory, simulate_step
from traincast.spec import (
    GROUNDS,
    Cluster,
    Collective,
    Estimate,
    Forecast,
    Job,
    JobTime,
    MemoryProfile,
    Parallelism,
    Program,
    Range,
    Timeline,
)
from traincast.units import HOUR_S

NORMAL_90 = 1.645
CONTEXT_BYTES = 0.75e9
"""What the driver and libraries hold on a device beside the framework's allocator."""
USABLE_ALONE, USABLE_TOGETHER = 0.95, 0.87
"""Share of a device that requests fill before one of them finds no hole; with others, communicators take their part too."""
MEMORY_SPREAD = 0.09
"""One standard deviation of the peak in log bytes, on models and scales left out of the fit."""


def forecast(job: Job, cluster: Cluster, parallelism: Parallelism | None = None, *, costs: CostModel | None = None,
             draw: bool = False) -> Forecast:  # fmt: skip
    """How long a step and the whole job take, whether it fits, and what it costs."""
    plan = parallelism or Parallelism(data=cluster.num_devices)
    _check_size(plan, cluster)
    program = lower(job.graph, plan, compiled=job.compiled)
    software = stack(job.stack)
    model = costs or Pricing(stack=software)
    estimates = _price_stages(program, cluster, model)
    if job.cuda_graphs:
        estimates = _replayed(estimates)
    timeline = simulate_step(program, estimates, draw=draw)
    memory = _worst_memory(program, cluster)
    step = _with_interval(timeline, program, estimates, spread=software.spread)
    answer = _answer(job, cluster, program, step, timeline, memory, estimates)
    return replace(answer, resources=profile_resources(timeline, cluster)) if timeline.spans else answer


def _price_stages(program: Program, cluster: Cluster, model: CostModel) -> list[tuple[Estimate, ...]]:
    """Stages with the same tasks are priced once."""
    priced: dict[int, tuple[Estimate, ...]] = {}
    for stage in program.stages:
        if id(stage.tasks) not in priced:
            priced[id(stage.tasks)] = model.estimate(stage, cluster)
    return [priced[id(stage.tasks)] for stage in program.stages]


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


def _worst_memory(program: Program, cluster: Cluster) -> MemoryProfile:
    """Of the stage that comes nearest to filling the smallest device."""
    capacity = min(group.device.memory_bytes for group in cluster.groups)
    plan = program.parallelism
    usable = USABLE_TOGETHER if plan.num_devices > 1 else USABLE_ALONE
    known: dict[tuple[int, int], MemoryProfile] = {}
    for stage in program.stages:
        key = (id(stage.tasks), stage.num_in_flight)
        if key not in known:
            known[key] = replay_memory(
                stage,
                capacity_bytes=capacity,
                micro_batches=plan.micro_batches,
                overhead_bytes=CONTEXT_BYTES + (1 - usable) * capacity,
                pipelined=plan.pipeline > 1,
                overheads=Overheads(),
                spread=MEMORY_SPREAD,
            )
    profiles = [known[(id(stage.tasks), stage.num_in_flight)] for stage in program.stages]
    worst = max(profiles, key=lambda profile: profile.peak_bytes)
    return replace(worst, stage_peaks=tuple(profile.peak_bytes for profile in profiles))


def _with_interval(
    timeline: Timeline, program: Program, estimates: Sequence[Sequence[Estimate]], *, spread: float
) -> Estimate:
    """Errors of one kind of task go together, those of different kinds do not; composition (`spread`) adds its own."""
    seconds: dict[str, float] = {}
    weighted: dict[str, float] = {}
    grounds = dict.fromkeys(GROUNDS, 0.0)
    for stage, priced in zip(program.stages, estimates, strict=True):
        for task, estimate, count in zip(stage.tasks, priced, stage.counts(), strict=True):
            kind = f"{task.axis} communication" if isinstance(task, Collective) else task.kind
            amount = estimate.seconds * count
            seconds[kind] = seconds.get(kind, 0.0) + amount
            weighted[kind] = weighted.get(kind, 0.0) + amount * _spread(estimate)
            grounds[estimate.ground] += amount
    whole = sum(seconds.values())
    variance = spread**2 + sum((part / whole) ** 2 for part in weighted.values() if whole)
    factor = math.exp(NORMAL_90 * math.sqrt(variance))
    total = timeline.duration_s
    return Estimate(
        seconds=total,
        low_s=total / factor,
        high_s=total * factor,
        limit=max(timeline.shares, key=lambda name: timeline.shares[name]),
        ground=max(grounds, key=lambda name: grounds[name]),
    )


def _spread(estimate: Estimate) -> float:
    if estimate.low_s <= 0 or estimate.high_s <= estimate.low_s:
        return 0.0
    return math.log(estimate.high_s / estimate.low_s) / (2 * NORMAL_90)


def _answer(job: Job, cluster: Cluster, program: Program, step: Estimate, timeline: Timeline, memory: MemoryProfile,
            estimates: Sequence[Sequence[Estimate]]) -> Forecast:  # fmt: skip
    plan = program.parallelism
    global_batch = program.batch_size * plan.micro_batches * plan.data
    whole = _whole_job(job, cluster, step, global_batch)
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
        usd=_price(cluster, whole.total),
        energy_joules=_energy(cluster, timeline, whole),
        utilization=flop / (step.seconds * peak * cluster.num_devices) if peak and step.seconds else 0.0,
        grounds=_ground_shares(program, estimates),
        unknown_ops=job.graph.unknown_ops(),
        notes=program.notes,
    )


_PRODUCTS = ("matmul", "conv", "attention", "rnn")


def _whole_job(job: Job, cluster: Cluster, step: Estimate, global_batch: int) -> JobTime:
    """Start-up, steps, evaluation, checkpoints and the wait for data (job execution time, as in DeletePop)."""
    samples = job.samples if job.samples is not None else job.epoch_samples
    steps = job.steps if job.steps is not None else math.ceil(samples / global_batch) if samples else 1
    training_s = steps * step.seconds
    stall_s = 0.0
    if job.loading_samples_per_s is not None:
        loading_s = global_batch / (job.loading_samples_per_s * cluster.num_nodes)
        stall_s = steps * max(0.0, loading_s - step.seconds)
    evaluation_s = 0.0
    if job.evaluation_every_steps is not None:
        # Evaluation runs the forward pass only: about a third of a training step per sample.
        once_s = job.evaluation_samples / global_batch * step.seconds / 3
        evaluation_s = (steps // job.evaluation_every_steps) * once_s
    checkpoint_s = 0.0
    if job.checkpoint_every_steps is not None:
        saved = job.graph.role_bytes("parameter") + job.graph.role_bytes("optimizer_state")
        checkpoint_s = (steps // job.checkpoint_every_steps) * saved / job.checkpoint_bytes_per_s
    fixed_s = job.startup_s + stall_s + checkpoint_s
    scaled_s = training_s + evaluation_s
    total = Estimate(
        seconds=fixed_s + scaled_s,
        low_s=fixed_s + scaled_s * step.low_s / step.seconds if step.seconds else fixed_s,
        high_s=fixed_s + scaled_s * step.high_s / step.seconds if step.seconds else fixed_s,
        limit=step.limit,
        ground=step.ground,
    )
    return JobTime(
        total=total,
        num_steps=steps,
        startup_s=job.startup_s,
        training_s=training_s,
        evaluation_s=evaluation_s,
        checkpoint_s=checkpoint_s,
        loading_stall_s=stall_s,
    )


def _price(cluster: Cluster, total: Estimate) -> Range | None:
    rate = cluster.usd_per_hour
    if rate is None:
        return None
    return Range(
        value=rate * total.seconds / HOUR_S, low=rate * total.low_s / HOUR_S, high=rate * total.high_s / HOUR_S
    )


def _energy(cluster: Cluster, timeline: Timeline, whole: JobTime) -> float | None:
    """Rated power while the device works, a share of it while it waits."""
    busy = timeline.busy_s / timeline.duration_s if timeline.duration_s else 0.0
    working_s = whole.training_s * min(1.0, busy)
    waiting_s = whole.total.seconds - working_s
    joules = 0.0
    for group in cluster.groups:
        if group.device.power_watts is None:
            return None
        joules += group.num_devices * group.device.power_watts * (working_s + IDLE_POWER * waiting_s)
    return joules


def _ground_shares(program: Program, estimates: Sequence[Sequence[Estimate]]) -> Mapping[str, float]:
    amounts = dict.fromkeys(GROUNDS, 0.0)
    for stage, priced in zip(program.stages, estimates, strict=True):
        for estimate, count in zip(priced, stage.counts(), strict=True):
            amounts[estimate.ground] += estimate.seconds * count
    whole = sum(amounts.values())
    return {ground: amount / whole if whole else 0.0 for ground, amount in amounts.items()}
