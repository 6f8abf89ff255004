"""From the time of a step to the time, money and energy of the whole job."""

import math

from traincast.cost import copy_bytes_per_s
from traincast.resources import IDLE_POWER
from traincast.spec import Cluster, Estimate, Job, JobTime, Range, Timeline
from traincast.units import HOUR_S, KWH_JOULES, NORMAL_90, show_count, show_seconds

DRAWN = (0.6, 1.05)
"""What a device at work draws beside its rated power: a board is held to it, and memory-bound work draws less. From no
measurement of ours."""
COPY_EFFICIENCY = 0.8
"""Of the link to the host, from pinned memory."""
COMPILE_S_PER_OP = 0.1
"""torch.compile traces, fuses and builds kernels for about ten ops a second without a warm cache; an order of magnitude, from no
measurement of ours. Give `compile_s` where it matters."""

SEEN = 0.001
"""What adds less to a job is not spoken of."""


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
        assumed_s = _choose_interval(job, cluster, busy_s)
        checkpoint_s = 0.0 if assumed_s is None else busy_s / assumed_s * _write_shares(job, cluster)
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


def _choose_interval(job: Job, cluster: Cluster, busy_s: float) -> float | None:
    """Seconds between two checkpoints that lose least (Young 1974) where nobody says how often; None: none is worth it."""
    between_failures_s, write_s = job.device_mtbf_s / cluster.num_devices, _write_shares(job, cluster)
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


def price_job(cluster: Cluster, total: Estimate) -> Range | None:
    rate = cluster.usd_per_hour
    if rate is None:
        return None
    return Range(
        value=rate * total.seconds / HOUR_S, low=rate * total.low_s / HOUR_S, high=rate * total.high_s / HOUR_S
    )


def spend_energy(cluster: Cluster, timeline: Timeline, whole: JobTime) -> float | None:
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


def range_energy(joules: float | None, total: Estimate) -> Range | None:
    """The energy with an interval: no energy was measured, so it is that of the time, times what a device may draw."""
    if joules is None or not total.seconds:
        return None
    low, high = total.low_s / total.seconds * DRAWN[0], total.high_s / total.seconds * DRAWN[1]
    return Range(value=joules, low=joules * low, high=joules * high)


def weigh_co2(energy: Range | None, cluster: Cluster) -> Range | None:
    """Kilograms that the energy stands for where the cluster is."""
    if energy is None or cluster.region is None:
        return None
    kg_per_joule = cluster.region.grams_co2_per_kwh / 1000 / KWH_JOULES
    return Range(value=energy.value * kg_per_joule, low=energy.low * kg_per_joule, high=energy.high * kg_per_joule)
