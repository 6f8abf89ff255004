"""A job whose batch grows at its start to the steps and the time of its training."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.forecast._assemble import assemble, time_job
from traincast.spec import Cluster, Forecast, Job, Parallelism
from traincast.units import show_seconds

if TYPE_CHECKING:
    from traincast.forecast._engine import Engine, Shown


def ramp_up(engine: "Engine", job: Job, cluster: Cluster, plan: Parallelism, shown: "Shown") -> Forecast:
    """The forecast with a batch that grows from `rampup_batch` to the whole one over `rampup_samples`. Smaller batches have
    fewer passes, and the time of a step is linear in its passes, in a pipeline too; so two steps tell all."""
    start, plain = job.rampup_batch, replace(job, rampup_batch=None, rampup_samples=None, rampup_increment=None)
    found = engine.forecast(plain, cluster, plan, shown=shown)
    if start is None or job.rampup_samples is None:
        return found
    per_pass = job.graph.batch_size * plan.data
    sizes = list_batches(start, found.global_batch, job.rampup_increment or start, per_pass)
    if not sizes:
        note = f"the batch of {found.global_batch:,} is no larger than the {start:,} that it would grow from, so it does not grow"
        return replace(found, notes=(*found.notes, note))
    fewest = engine.forecast(plain, cluster, replace(plan, micro_batches=sizes[0] // per_pass)).step.seconds
    slope = (found.step.seconds - fewest) / max(1, plan.micro_batches - sizes[0] // per_pass)
    each = job.rampup_samples / len(sizes)
    counts = [math.ceil(each / size) for size in sizes]
    times = [fewest + slope * (size - sizes[0]) / per_pass for size in sizes]
    samples = job.samples if job.samples is not None else job.epoch_samples
    steps = found.job.num_steps
    if job.steps is None and samples is not None:
        steps = sum(counts) + math.ceil(max(0.0, samples - job.rampup_samples) / found.global_batch)
    early = min(steps, sum(counts))
    taken = walk(counts, early)
    spent_s = sum(count * time_s for count, time_s in zip(taken, times, strict=True))
    trained = sum(count * size for count, size in zip(taken, sizes, strict=True)) + (steps - early) * found.global_batch
    training_s = spent_s + (steps - early) * found.step.seconds
    mean_s = training_s / steps if steps else found.step.seconds
    whole = time_job(
        replace(plain, steps=int(steps), samples=None),
        cluster,
        found.step.scaled(mean_s / found.step.seconds),
        found.global_batch,
    )
    # The last step of a batch size may go past its share of the samples; no more are asked for than the job has.
    whole = replace(
        whole, num_samples=float(trained if job.steps is not None or samples is None else min(trained, samples))
    )
    note = (
        f"the batch grows from {start:,} to {found.global_batch:,} over {job.rampup_samples:,.0f} samples: {early:,} of "
        f"{steps:,} steps and {show_seconds(spent_s)} of training; the step shown is that of the whole batch"
    )
    made = assemble(
        job, cluster, found.step, found.timeline, global_batch=found.global_batch, num_devices=found.num_devices, whole=whole
    )  # fmt: skip
    return replace(found, **made, notes=(*found.notes, note))


def walk(counts: Sequence[int], steps: float) -> list[float]:
    """How many of the first `steps` fall on each batch size, the smallest first."""
    taken, left = [], float(steps)
    for count in counts:
        taken.append(min(float(count), left))
        left -= taken[-1]
    return taken


def list_batches(start: int, whole: int, increment: int, per_pass: int) -> list[int]:
    """The batches before the whole one (Megatron-LM's ramp-up: start, increment, samples), in whole passes of all replicas."""
    passes = [max(1, round(size / per_pass)) for size in range(start, whole, increment)]
    return [count * per_pass for count in passes if count * per_pass < whole]
