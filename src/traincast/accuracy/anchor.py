"""A job's own one-device steps to how much slower than forecast its computation is, at any batch and scale.

A step of many devices is then forecast as the measured step of one with the forecast's own communication laid beside it:
computation that takes longer also hides more of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from traincast.accuracy.cases import Case
from traincast.accuracy.retune import Lesson, Tuned, retune, retune_network
from traincast.forecast.tune import MAX_STEPS, slow_down
from traincast.spec.stack import Stack

Job = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """For each job that was measured on one device, octaves of its batches with the logarithm of its slowness there."""

    profiles: Mapping[Job, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)

    def slowness_of(self, case: Case) -> float:
        """Between measured batches interpolated, beyond them that of the nearest; 1 for a job that was not measured."""
        profile = self.profiles.get(job_of(case))
        return math.exp(float(np.interp(_octave(case), *profile))) if profile else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What rows taught: constants, and how slow the computation of each profiled job is beside them."""

    tuned: Tuned = field(default_factory=Tuned)
    anchors: Anchors = field(default_factory=Anchors)

    def stack_of(self, case: Case, name: str, *, profile: bool = True) -> Stack:
        found = self.tuned.stack_of(case, name)
        return slow_down(found, self.anchors.slowness_of(case)) if profile else found


def learn(
    lessons: Sequence[Lesson], *, prior: Stack | None = None, rounds: int = 8, max_steps: int = MAX_STEPS
) -> Learned:
    """Constants first; then those of the network again, beside jobs whose computation is known from their profiles."""
    tuned = retune(lessons, prior=prior, rounds=rounds, max_steps=max_steps)
    tuned = retune_network(tuned, _lay_beside(lessons, tuned), rounds=rounds, max_steps=max_steps)
    return Learned(tuned=tuned, anchors=anchor(lessons, tuned))


def _lay_beside(lessons: Sequence[Lesson], tuned: Tuned) -> list[Lesson]:
    """The lessons of many devices whose job was measured on one, their computation as slow as it was there."""
    anchors = anchor(lessons, tuned)
    return [
        replace(one, step=replace(one.step, slowness=anchors.slowness_of(one.case)))
        for one in lessons
        if job_of(one.case) in anchors.profiles and not is_profile(one.case)
    ]


def anchor(lessons: Sequence[Lesson], tuned: Tuned) -> Anchors:
    """What the one-device lessons say beside the constants that they would be answered with."""
    found: dict[Job, dict[float, list[float]]] = {}
    for one in lessons:
        if is_profile(one.case):
            forecast_s = replace(one.step, slowness=1.0).predict(tuned.stack_of(one.case, one.start.name))
            batches = found.setdefault(job_of(one.case), {})
            batches.setdefault(_octave(one.case), []).append(math.log(one.step.seconds / forecast_s))
    return Anchors(
        profiles={
            job: (tuple(sorted(batches)), tuple(float(np.mean(batches[octave])) for octave in sorted(batches)))
            for job, batches in found.items()
        }
    )


def is_profile(case: Case) -> bool:
    return (case.n_gpus or 1) == 1


def job_of(case: Case) -> Job:
    """What is one job on one kind of device, at whatever batch and scale."""
    return case.model, case.gpu, case.dtype, case.mode, case.framework, case.act_ckpt, str(case.compiled)


def choose_telling(cases: Sequence[Case], asked: Sequence[Case], most: int) -> list[int]:
    """The places of the cases that tell most about the asked ones: all one-device steps of the asked jobs, and of the rest at
    most `most`, every job on one device, one node and many nodes with an equal voice."""
    jobs = {job_of(case) for case in asked}
    own = [place for place, case in enumerate(cases) if is_profile(case) and job_of(case) in jobs]
    taken = set(own)
    layers: dict[tuple[Job, int], list[int]] = {}
    for place, case in enumerate(cases):
        if place not in taken:
            layer = 0 if is_profile(case) else min(case.n_nodes or 1, 2)
            layers.setdefault((job_of(case), layer), []).append(place)
    room = most
    for number, places in enumerate(sorted(layers.values(), key=len)):
        share = min(len(places), room // (len(layers) - number))
        room -= share
        taken.update(places[pick] for pick in np.linspace(0, len(places) - 1, share).round().astype(int))
    return sorted(taken)


def _octave(case: Case) -> float:
    return math.log2(max((case.micro_batch or 1.0) * (case.seq_len or 1), 1e-9))
