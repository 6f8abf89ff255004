"""How many samples a published target takes: MLPerf Training's reference convergence, by the global batch."""

import functools
import math

from traincast.catalog._names import load_facts
from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import Range
from traincast.units import NORMAL_90


@noun
class Target:
    """Samples until a benchmark's quality target is met, as many submitted runs needed them."""

    name: str
    title: str
    quality: str
    workloads: tuple[str, ...]
    batch: float
    """The global batch at which `samples` holds."""
    samples: float
    per_octave: float
    """Log samples for each doubling of the batch."""
    spread: float
    """One standard deviation of the log between runs of one batch, submitter left out of the fit."""
    smallest_batch: float
    largest_batch: float
    num_runs: int
    source: str

    def samples_at(self, global_batch: float) -> Range:
        """With the interval that nine of ten runs fall into. Outside the batches that were run, the nearest of them."""
        inside = min(max(global_batch, self.smallest_batch), self.largest_batch)
        value = self.samples * math.exp(self.per_octave * math.log2(inside / self.batch))
        factor = math.exp(NORMAL_90 * self.spread)
        return Range(value=value, low=value / factor, high=value * factor)

    def covers(self, global_batch: float) -> bool:
        return self.smallest_batch <= global_batch <= self.largest_batch


@functools.cache
def targets() -> tuple[Target, ...]:
    facts = load_facts("target")
    return tuple(
        Target(name=name, source=facts.sources["mlperf"], **{**entry, "workloads": tuple(entry["workloads"])})
        for name, entry in facts.entries.items()
    )


def target_of(workload: str) -> Target:
    """The target that is known for a workload."""
    for target in targets():
        if workload in target.workloads:
            return target
    known = ", ".join(sorted(name for target in targets() for name in target.workloads))
    raise InvalidInput(f"no samples to a target are known for {workload!r}; known: {known}; or give --samples")
