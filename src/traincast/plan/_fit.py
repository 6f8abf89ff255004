"""Whether a job fits, how large it may grow, and what to change first: one answer for the command line and the service."""

from typing import Any

from traincast.cost import CostModel
from traincast.forecast import DeviceMemory, Engine
from traincast.noun import noun
from traincast.plan._capacity import (
    Change,
    Limit,
    SizedJob,
    can_grow,
    largest_batch,
    longest_sequence,
    suggest_changes,
)
from traincast.spec import FIT_CONFIDENCE, Calibration, Cluster, Forecast, Parallelism


@noun
class Fit:
    """A job as it was asked, at its limits, and what would make room."""

    now: Forecast
    meter: DeviceMemory
    batch: int
    confidence: float
    most: Limit
    """The largest batch with this confidence."""
    likely: Limit | None
    """The largest that is worth a try (`FIT_CONFIDENCE`); None: less than that was asked."""
    longest: Limit | None
    """None: the model has no length to choose."""
    usual_sequence: int | None
    """The length that the model is published with."""
    changes: tuple[Change, ...]
    """Where it does not fit with the asked confidence."""

    @property
    def fits(self) -> bool:
        return self.now.memory.fit_probability >= self.confidence

    def document(self) -> dict[str, Any]:
        """For programs."""
        memory = self.now.memory
        return {
            "workload": self.now.workload,
            "device": self.now.device,
            "num_devices": self.now.num_devices,
            "confidence": self.confidence,
            "batch": self.batch,
            "peak_bytes": memory.peak_bytes,
            "capacity_bytes": memory.capacity_bytes,
            "live_bytes": self.meter.live_bytes,
            "reserved_bytes": self.meter.reserved_bytes,
            "used_bytes": self.meter.used_bytes,
            "fit_probability": memory.fit_probability,
            "fits": self.fits,
            "largest_batch": self.most.size,
            "largest_batch_is_a_bound": not self.most.reached_end,
            "largest_batch_samples_per_s": self.most.answer.samples_per_s if self.most.answer else None,
            "likely_batch": self.likely.size if self.likely else None,
            "longest_sequence": self.longest.size if self.longest else None,
            "usual_sequence": self.usual_sequence,
            "by_role": memory.by_role,
            "peak_at": memory.peak_at,
            "changes": self.changes,
        }


def find_fit(
    job_at: SizedJob, cluster: Cluster, plan: Parallelism, *, batch: int, seq: int | None, confidence: float,
    costs: CostModel | None = None, calibration: Calibration | None = None,
) -> Fit:  # fmt: skip
    """Every size that is looked at is answered on its own. `costs` or `calibration`: what prices tasks instead of the models that
    ship with the package."""
    engine = Engine(costs=costs, calibration=calibration)
    job = job_at(batch, seq, plan)
    now = engine.forecast(job, cluster, plan)
    most = largest_batch(job_at, cluster, plan, confidence=confidence, seq=seq, engine=engine)
    likely = None
    if confidence > FIT_CONFIDENCE:
        likely = largest_batch(job_at, cluster, plan, confidence=FIT_CONFIDENCE, seq=seq, engine=engine)
    longest, usual = None, None
    if can_grow(job_at, plan, batch=batch):
        usual = job_at(batch, None, plan).graph.tokens_per_sample
        longest = longest_sequence(job_at, cluster, plan, batch=batch, confidence=confidence, engine=engine)
    changes: list[Change] = []
    if now.memory.fit_probability < confidence:
        changes = suggest_changes(job_at, cluster, plan, batch=batch, seq=seq, confidence=confidence, engine=engine)
    return Fit(
        now=now,
        meter=engine.watch_device(job, cluster, plan),
        batch=batch,
        confidence=confidence,
        most=most,
        likely=likely,
        longest=longest,
        usual_sequence=usual,
        changes=tuple(changes),
    )
