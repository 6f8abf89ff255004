"""A job that runs until a published target instead of for given samples."""

from dataclasses import replace

from traincast.catalog import target_of
from traincast.errors import InvalidInput
from traincast.spec import Job, Parallelism


def train_to_target(job: Job, plan: Parallelism) -> tuple[Job, str]:
    """The job with the samples that its target is expected to take at the plan's global batch, and a sentence about them."""
    if job.steps is not None or job.samples is not None:
        raise InvalidInput("--to-target says how long the job runs; give no steps, samples or epochs beside it")
    target = target_of(job.graph.name)
    batch = job.graph.batch_size * plan.micro_batches * plan.data
    samples = target.samples_at(batch)
    said = (
        f"{target.title} to {target.quality}: {samples.low:,.0f} to {samples.high:,.0f} samples at a global batch of {batch:,} "
        f"(MLPerf Training, {target.num_runs:,} runs)"
    )
    if not target.covers(batch):
        said += (
            f"; runs had batches of {target.smallest_batch:,.0f} to {target.largest_batch:,.0f}, the nearest is used"
        )
    return replace(job, samples=samples.value, samples_spread=target.spread), said
