"""The step of a job to its throughput, time, money, energy and CO2: the one place where any regime computes them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict

from traincast.cost import copy_bytes_per_s, draw_share, power
from traincast.spec import Cluster, Estimate, Job, JobTime, Range, Timeline
from traincast.units import HOUR_S, KWH_JOULES, NORMAL_90, show_count, show_seconds

COPY_EFFICIENCY = 0.8
"""Of the link to the host, from pinned memory."""
COMPILE_S_PER_OP = 0.1
"""torch.compile traces, fuses and builds kernels for about ten ops a second without a warm cache; an order of magnitude, from no
measurement of ours. Give `compile_s` where it matters."""

SEEN = 0.001
"""What adds less to a job is not spoken of."""


class Assembled(TypedDict):
    """The fields of a forecast that follow from its step."""

    step: Estimate
    timeline: Timeline
    global_batch: int
    num_devices: int
    samples_per_s: float
    job: JobTime
    usd: Range | None
    energy_joules: float | None
    energy_range: Range | None
    kg_co2: Range | None


def assemble(
    job: Job, cluster: Cluster, step: Estimate, timeline: Timeline, *, global_batch: int, num_devices: int | None = None,
    whole: JobTime | None = None, only_trains: bool = True,
) -> Assembled:  # fmt: skip
    """Everything that a step decides. `num_devices`: that are paid, where more than the cluster's are (devices that only
    generate). `whole`: the time of the job where its steps are not all alike (a batch that grows). `only_trains`: a step is
    passes over the job's graph and nothing else."""
    num_devices = num_devices or cluster.num_devices
    paid = num_devices / cluster.num_devices
    whole = whole or time_job(job, cluster, step, global_batch)
    passes_per_s = global_batch / max(job.graph.batch_size, 1) / cluster.num_devices / max(step.seconds, 1e-12)
    known = job if only_trains and job.regime is None else None
    shares = draw_shares(known, cluster, timeline, passes_per_s=passes_per_s)
    energy = spend_energy(cluster, whole, shares, paid=paid)
    return Assembled(
        step=step,
        timeline=timeline,
        global_batch=global_batch,
        num_devices=num_devices,
        samples_per_s=global_batch / step.seconds if step.seconds else math.inf,
        job=whole,
        usd=price_job(cluster, whole.total, paid=paid),
        energy_joules=energy,
        energy_range=(ranged := _range_energy(energy, whole.total)),
        kg_co2=_weigh_co2(ranged, cluster),
    )


def time_job(job: Job, cluster: Cluster, step: Estimate, global_batch: int) -> JobTime:
    """Start-up, compilation, steps, evaluation, checkpoints, the wait for data, failures: DeletePop's job execution time."""
    samples = job.samples if job.samples is not None else job.epoch_samples
    steps = job.steps if job.steps is not None else math.ceil(samples / global_batch) if samples else 1
    training_s = steps * step.seconds
    stall_s = 0.0
    rates = loading_rates(job)
    if rates:
        loading_s = global_batch / (min(rates.values()) * cluster.num_nodes)
        stall_s = steps * max(0.0, loading_s - step.seconds)
    evaluation_s = 0.0
    if job.evaluation_every_steps is not None:
        # Evaluation runs the forward pass only: about a third of a training step per sample.
        once_s = job.evaluation_samples / global_batch * step.seconds / 3
        evaluation_s = (steps // job.evaluation_every_steps) * once_s
    logging_s = job.logging_s * (steps // job.logging_every_steps) if job.logging_every_steps is not None else 0.0
    compile_s = expect_compilation(job)
    busy_s = training_s + evaluation_s + stall_s + logging_s
    if job.checkpoint_every_steps is not None:
        checkpoint_s = (steps // job.checkpoint_every_steps) * _wait_for_checkpoint(job, cluster, step)
        every_s, assumed_s = (busy_s + checkpoint_s) * min(1.0, job.checkpoint_every_steps / steps), None
    else:
        write_s = _write_shares(job, cluster)
        assumed_s = _choose_interval(job, cluster, busy_s, write_s)
        checkpoint_s = 0.0 if assumed_s is None else busy_s / assumed_s * write_s
        every_s = busy_s if assumed_s is None else assumed_s
    # Failures come at random, in proportion to devices and time; each costs a start and on average half an interval (Young 1974).
    failures = (busy_s + checkpoint_s) * cluster.num_devices / job.device_mtbf_s
    restarts_s = failures * (job.startup_s + compile_s + every_s / 2)
    scaled_s = training_s + evaluation_s + restarts_s + (checkpoint_s if assumed_s is not None else 0.0)
    fixed_s = job.startup_s + compile_s + stall_s + logging_s + (checkpoint_s if assumed_s is None else 0.0)
    low, high = _both_uncertain(step, job.samples_spread if job.samples is not None else 0.0)
    total = Estimate(
        seconds=fixed_s + scaled_s,
        low_s=fixed_s + scaled_s * low,
        high_s=fixed_s + scaled_s * high,
        limit=step.limit,
        ground=step.ground,
    )
    return JobTime(
        total=total,
        num_steps=steps,
        num_samples=float(steps * global_batch),
        startup_s=job.startup_s,
        training_s=training_s,
        evaluation_s=evaluation_s,
        checkpoint_s=checkpoint_s,
        loading_stall_s=stall_s,
        restarts_s=restarts_s,
        compile_s=compile_s,
        logging_s=logging_s,
        checkpoint_every_s=assumed_s,
    )


def loading_rates(job: Job) -> dict[str, float]:
    """Samples per second that each part of one node's input pipeline delivers."""
    rates: dict[str, float] = {}
    if job.loading_samples_per_s is not None:
        rates["the input pipeline"] = job.loading_samples_per_s
    if job.loader_cores is not None and job.decode_samples_per_s is not None:
        rates[f"decoding on {job.loader_cores} CPU cores"] = job.loader_cores * job.decode_samples_per_s
    if job.sample_bytes is not None and job.storage_bytes_per_s is not None:
        rates["reading from storage"] = job.storage_bytes_per_s / job.sample_bytes
    return rates


def describe_loading(job: Job, cluster: Cluster, step: Estimate, global_batch: int) -> tuple[str, ...]:
    """Says that the input pipeline is the bottleneck where it is."""
    rates = loading_rates(job)
    if not rates or not step.seconds:
        return ()
    name = min(rates, key=rates.__getitem__)
    delivered, wanted = rates[name] * cluster.num_nodes, global_batch / step.seconds
    if delivered >= wanted:
        return (f"{name} delivers {delivered:,.0f} samples/s, {delivered / wanted:.1f} times what the devices take",)
    return (
        f"the bottleneck is {name}: {delivered:,.0f} samples/s where the devices would take {wanted:,.0f}, so they wait for "
        f"{1 - delivered / wanted:.0%} of the time",
    )


def _wait_for_checkpoint(job: Job, cluster: Cluster, step: Estimate) -> float:
    """Seconds that training stands still for one checkpoint: a whole one goes through one writer, a sharded one through every
    node's; an asynchronous one is copied to host memory first, and a new one waits until the last has been written."""
    saved = job.graph.role_bytes("parameter") + job.graph.role_bytes("optimizer_state")
    writers = cluster.num_nodes if job.checkpoint_sharded else 1
    write_s = saved / (job.checkpoint_bytes_per_s * writers)
    if not job.checkpoint_async:
        return write_s
    group = cluster.groups[0]
    devices = cluster.num_devices if job.checkpoint_sharded else group.devices_per_node
    copy_s = saved / devices / (COPY_EFFICIENCY * copy_bytes_per_s(group.device))
    between_s = (job.checkpoint_every_steps or 1) * step.seconds
    return copy_s + max(0.0, write_s - between_s)


def expect_compilation(job: Job) -> float:
    """A compiler sees a layer once, however often it repeats, so the folded graph counts."""
    if not job.compiled:
        return 0.0
    return job.compile_s if job.compile_s is not None else COMPILE_S_PER_OP * len(job.graph.ops)


def _both_uncertain(step: Estimate, samples_spread: float) -> tuple[float, float]:
    """The interval of steps x step as multiples of its middle; speed and convergence err independently, in log time."""
    if not (step.seconds > 0 and step.low_s > 0):
        return 0.0, 1.0
    number = NORMAL_90 * samples_spread
    low, high = math.log(step.seconds / step.low_s), math.log(step.high_s / step.seconds)
    return math.exp(-math.hypot(low, number)), math.exp(math.hypot(high, number))


def _write_shares(job: Job, cluster: Cluster) -> float:
    """Seconds of a checkpoint of which every node writes its share."""
    saved = job.graph.role_bytes("parameter") + job.graph.role_bytes("optimizer_state")
    return saved / (job.checkpoint_bytes_per_s * cluster.num_nodes)


def _choose_interval(job: Job, cluster: Cluster, busy_s: float, write_s: float) -> float | None:
    """Seconds between two checkpoints that lose least (Young 1974) where nobody says how often; None: none is worth it."""
    between_failures_s = job.device_mtbf_s / cluster.num_devices
    every_s = math.sqrt(2 * write_s * between_failures_s)
    if not 0 < every_s < busy_s:
        return None
    with_them = busy_s / every_s * write_s + busy_s / between_failures_s * every_s / 2
    return every_s if with_them < busy_s / between_failures_s * busy_s / 2 else None


def describe_checkpoints(job: Job, whole: JobTime) -> tuple[str, ...]:
    """Says how often a long job is taken to write checkpoints where nobody said it."""
    if whole.checkpoint_every_s is None or whole.checkpoint_s + whole.restarts_s < SEEN * whole.total.seconds:
        return ()
    return (
        f"a checkpoint about every {show_seconds(whole.checkpoint_every_s)} is assumed, as often as loses least (Young 1974); "
        f"every node writes its share at {show_count(job.checkpoint_bytes_per_s, 'B/s')}",
    )


def price_job(cluster: Cluster, total: Estimate, *, paid: float = 1.0) -> Range | None:
    """`paid`: devices that are paid for each one of the cluster."""
    if cluster.usd_per_hour is None:
        return None
    value, low, high = (
        cluster.usd_per_hour * seconds / HOUR_S * paid for seconds in (total.seconds, total.low_s, total.high_s)
    )
    return Range(value=value, low=low, high=high)


def draw_shares(job: Job | None, cluster: Cluster, timeline: Timeline, *, passes_per_s: float) -> list[float]:
    """What a device of each group draws during a step, as a share of its rated power. `passes_per_s`: over the graph of the job,
    of one device; without a job only how long kernels run is known."""
    busy = min(1.0, timeline.busy_s / timeline.duration_s) if timeline.duration_s else 0.0
    shares = []
    for group in cluster.groups:
        device = group.device
        limit = None if group.power_limit_watts is None else group.power_limit_watts / (device.power_watts or 1.0)
        graph = None if job is None else job.graph
        shares.append(draw_share(device, graph, busy=busy, limit=limit, passes_per_s=passes_per_s))
    return shares


def spend_energy(cluster: Cluster, whole: JobTime, shares: Sequence[float], *, paid: float = 1.0) -> float | None:
    """`shares`: of the rated power that each group draws in a step; what it draws while it waits is less."""
    waiting_s = whole.total.seconds - whole.training_s
    joules = 0.0
    for group, share in zip(cluster.groups, shares, strict=True):
        rated = group.device.power_watts
        if rated is None:
            return None
        spent = share * whole.training_s + min(share, power().idle) * waiting_s
        joules += group.num_devices * rated * spent
    return joules * paid


def hold_to_limit(timeline: Timeline, cluster: Cluster) -> Timeline:
    """The step under the power limits of its devices: kernels take longer, what devices wait for does not."""
    slower = [
        power().stretch(group.power_limit_watts / group.device.power_watts)
        for group in cluster.groups
        if group.power_limit_watts is not None and group.device.power_watts is not None
    ]
    if max(slower, default=1.0) <= 1.0 or not timeline.duration_s:
        return timeline
    busy = min(1.0, timeline.busy_s / timeline.duration_s)
    return stretch(timeline, 1.0 + busy * (max(slower) - 1.0))


def _range_energy(joules: float | None, total: Estimate) -> Range | None:
    """The energy with its interval: that of the time, and what devices that were left out drew beside the forecast."""
    if joules is None or not total.seconds:
        return None
    low, high = total.low_s / total.seconds * power().drawn_low, total.high_s / total.seconds * power().drawn_high
    return Range(value=joules, low=joules * low, high=joules * high)


def _weigh_co2(energy: Range | None, cluster: Cluster) -> Range | None:
    """Kilograms that the energy stands for where the cluster is."""
    if energy is None or cluster.region is None:
        return None
    kg_per_joule = cluster.region.grams_co2_per_kwh / 1000 / KWH_JOULES
    return Range(value=energy.value * kg_per_joule, low=energy.low * kg_per_joule, high=energy.high * kg_per_joule)


def stretch(timeline: Timeline, factor: float) -> Timeline:
    """The same step at another pace: everything takes `factor` times as long."""
    spans = tuple(replace(span, start_s=span.start_s * factor, end_s=span.end_s * factor) for span in timeline.spans)
    return replace(
        timeline, duration_s=timeline.duration_s * factor, spans=spans, busy_s=timeline.busy_s * factor,
        communication_s=timeline.communication_s * factor,
        exposed_by_axis={axis: seconds * factor for axis, seconds in timeline.exposed_by_axis.items()},
        work=tuple(replace(one, seconds=one.seconds * factor) for one in timeline.work),
    )  # fmt: skip
