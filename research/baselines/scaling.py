"""No scaling cost: a step on many devices takes as long as on one, at the same batch per device."""

from collections.abc import Sequence

import numpy as np

from research.baselines.ernest import job_of
from traincast.accuracy import Case, Measured


def no_scaling(known: Sequence[Measured], asked: Sequence[Case]) -> list[float | None]:
    """The job's own one-device profile, interpolated over the batch; linear above the largest batch."""
    profiles: dict[tuple[str, str], dict[float, list[float]]] = {}
    for row in known:
        if row.case.n_gpus == 1 and row.case.micro_batch:
            profiles.setdefault(job_of(row.case), {}).setdefault(row.case.micro_batch, []).append(row.step_s)
    return [_look_up(profiles.get(job_of(case)), case.micro_batch) for case in asked]


def _look_up(profile: dict[float, list[float]] | None, batch: float | None) -> float | None:
    if not profile or not batch:
        return None
    batches = np.array(sorted(profile))
    steps_s = np.array([np.mean(profile[size]) for size in batches])
    inside = float(np.exp(np.interp(np.log(batch), np.log(batches), np.log(steps_s))))
    return inside * max(1.0, batch / float(batches[-1]))
