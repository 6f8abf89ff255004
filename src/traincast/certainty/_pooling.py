"""Memory, GPU utilisation and network numbers of own runs to what they say of another job: partial pooling.

The gap between a measured number and its forecast is modelled as a sum of what everything, a stack, a device, a model and a job
have in common, each normal with a standard deviation that was set before any run was looked at (Gelman and Hill 2007,
hierarchical models). Few runs move little, runs that contradict each other move nothing, and a job that ran is believed most.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from traincast.certainty._gaussian_process import Array, trust_of
from traincast.noun import noun
from traincast.resources import OWN_RUNS, BusyShare, apply_busy, grounds_of
from traincast.spec import RESOURCES, Activity, Forecast, MeasuredNumbers, MemoryProfile, ResourceProfile, RunLabels

MEMORY, GPU_MEAN = "memory", "gpu_mean"
LEAST_MOVE = 1e-4


@noun
class Deviations:
    """Standard deviations of what runs share, and of one measurement."""

    everything: float
    stack: float
    device: float
    model: float
    job: float
    noise: float


DEVIATIONS: Mapping[str, Deviations] = {
    MEMORY: Deviations(everything=0.02, stack=0.05, device=0.03, model=0.05, job=0.06, noise=0.04),
    GPU_MEAN: Deviations(everything=0.01, stack=0.02, device=0.03, model=0.04, job=0.04, noise=0.04),
}
OF_NETWORK = Deviations(everything=0.05, stack=0.15, device=0.15, model=0.1, job=0.15, noise=0.15)
"""Of the logarithms of bursts and peaks; those of the test-bed differ by as much between settings."""


def pool_gap(numbers: Sequence[MeasuredNumbers], labels: RunLabels, name: str) -> float:
    """What own runs say of the gap of one number for another run; 0 where none measured it."""
    known = [one for one in numbers if name in one.gaps]
    if not known:
        return 0.0
    deviations = DEVIATIONS.get(name, OF_NETWORK)
    gaps = np.array([one.gaps[name] for one in known])
    every = [one.labels for one in known]
    between = _covariance(every, every, deviations)
    inverse = np.linalg.inv(between + deviations.noise**2 * np.eye(len(known)))
    weights = inverse @ gaps
    trust = trust_of(gaps, gaps - weights / np.diag(inverse), doubt=deviations.noise)
    return trust * float((_covariance([labels], every, deviations) @ weights)[0])


def _covariance(left: Sequence[RunLabels], right: Sequence[RunLabels], deviations: Deviations) -> Array:
    def one(a: RunLabels, b: RunLabels) -> float:
        stack = a.stack == b.stack
        return (
            deviations.everything**2
            + deviations.stack**2 * stack
            + deviations.device**2 * (stack and a.device == b.device)
            + deviations.model**2 * (a.model == b.model)
            + deviations.job**2 * (a.job == b.job)
        )

    return np.array([[one(a, b) for b in right] for a in left], dtype=np.float64)


def apply_numbers(numbers: Sequence[MeasuredNumbers], answer: Forecast, labels: RunLabels) -> Forecast:
    """The forecast with what own runs showed of memory, GPU utilisation and the network."""
    if not numbers:
        return answer
    moved = pool_gap(numbers, labels, MEMORY)
    memory = scale_memory(answer.memory, math.exp(moved)) if abs(moved) > LEAST_MOVE else answer.memory
    resources, used = answer.resources, answer.run_utilization
    shift = pool_gap(numbers, labels, GPU_MEAN)
    if used is not None and abs(shift) > LEAST_MOVE:
        used = min(1.0, max(0.0, used + shift))
    resources = tuple([_apply_profile(profile, numbers, labels, used, shift) for profile in resources])
    said = [name for name, is_used in (("memory", abs(moved) > LEAST_MOVE), ("GPU utilisation", abs(shift) > LEAST_MOVE),
                                       ("network", resources != answer.resources and not shift)) if is_used]  # fmt: skip
    notes = (*answer.notes, f"own runs also moved: {', '.join(said)}") if said else answer.notes
    return replace(answer, memory=memory, run_utilization=used, resources=resources, notes=notes)


def scale_memory(memory: MemoryProfile, factor: float) -> MemoryProfile:
    """Every part as much larger as own runs were."""
    return replace(
        memory,
        peak_bytes=memory.peak_bytes * factor,
        by_role={name: value * factor for name, value in memory.by_role.items()},
        stage_peaks=tuple(value * factor for value in memory.stage_peaks),
        curve=tuple((name, value * factor) for name, value in memory.curve),
    )


def _apply_profile(
    profile: ResourceProfile, numbers: Sequence[MeasuredNumbers], labels: RunLabels, used: float | None, shift: float
) -> ResourceProfile:
    if used is not None and abs(shift) > LEAST_MOVE:
        noise = DEVIATIONS[GPU_MEAN].noise
        busy = BusyShare(mean=used, low=max(0.0, used - 2 * noise), high=min(1.0, used + 2 * noise), nearness=1.0)
        profile = apply_busy(profile, busy, ground=OWN_RUNS)
    for resource in RESOURCES[2:]:
        activity: Activity = getattr(profile, resource)
        burst, peak = (pool_gap(numbers, labels, f"{resource}_{name}") for name in ("burst_s", "peak"))
        if activity.burst_s <= 0 or max(abs(burst), abs(peak)) <= LEAST_MOVE:
            continue
        burst_s = min(profile.step_s, activity.burst_s * math.exp(burst))
        after = replace(
            activity, burst_s=burst_s, idle_s=max(profile.step_s - burst_s, 0.0), peak=activity.peak * math.exp(peak)
        )
        names = [f"{resource}_{name}" for name in ("idle_s", "burst_s", "peak")]
        profile = replace(
            profile, basis="learned", grounds={**grounds_of(profile), **dict.fromkeys(names, OWN_RUNS)},
            ranges={name: pair for name, pair in profile.ranges.items() if name not in names},
            received=after if resource == "received" else profile.received,
            sent=after if resource == "sent" else profile.sent,
        )  # fmt: skip
    return profile
