"""Whether a job fits, how large it may grow, and what to change first: one answer for the command line and the service."""

from dataclasses import dataclass
from typing import Any

from traincast.forecast import forecast
from traincast.forecast.device_memory import DeviceMemory, watch_device
from traincast.plan.capacity import (
    Change,
    Limit,
    Pose,
    can_grow,
    largest_batch,
    longest_sequence,
    suggest_changes,
)
from traincast.spec import Cluster, Forecast, Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A job as it was asked, at its limits, and what would make room."""

    now: Forecast
    meter: DeviceMemory
    batch: int
    confidence: float
    most: Limit
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
            "longest_sequence": self.longest.size if self.longest else None,
            "usual_sequence": self.usual_sequence,
            "by_role": memory.by_role,
            "peak_at": memory.peak_at,
            "changes": self.changes,
        }


def find_fit(pose: Pose, cluster: Cluster, plan: Parallelism, *, batch: int, seq: int | None, confidence: float) -> Fit:
    """Every size that is looked at is a forecast of its own."""
    job = pose(batch, seq, plan)
    now = forecast(job, cluster, plan)
    most = largest_batch(pose, cluster, plan, confidence=confidence, seq=seq)
    longest, usual = None, None
    if can_grow(pose, plan, batch=batch):
        usual = pose(batch, None, plan).graph.tokens_per_sample
        longest = longest_sequence(pose, cluster, plan, batch=batch, confidence=confidence)
    sure = now.memory.fit_probability >= confidence
    changes = [] if sure else suggest_changes(pose, cluster, plan, batch=batch, seq=seq, confidence=confidence)
    return Fit(
        now=now,
        meter=watch_device(job, cluster, plan),
        batch=batch,
        confidence=confidence,
        most=most,
        longest=longest,
        usual_sequence=usual,
        changes=tuple(changes),
    )
