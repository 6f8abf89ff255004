"""A job's own one-device steps to the ratio of measured to forecast time of its computation, at any batch and scale.

A step of many devices is then forecast as the measured step of one with the forecast's own communication beside it:
computation that takes longer also hides more of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from traincast.forecast import MAX_STEPS, compute_ratio, slow_down
from traincast.learn._stack_fit import FittedStacks, MeasuredStep, fit_networks, fit_stacks
from traincast.noun import noun
from traincast.spec import ProfileRatio, RunLabels, Stack


@noun
class ProfileRatios:
    """The profile of every job that was measured on one device."""

    profiles: Mapping[tuple[str, ...], ProfileRatio] = field(default_factory=dict)

    def ratio_of(self, labels: RunLabels) -> float:
        """1 for a job that was not measured."""
        profile = self.profiles.get(labels.job)
        return compute_ratio(profile, labels.pass_tokens) if profile else 1.0


@noun
class LearnedRatio:
    """What runs taught: constants, and the ratio of every profiled job beside them."""

    fitted: FittedStacks = field(default_factory=FittedStacks)
    ratios: ProfileRatios = field(default_factory=ProfileRatios)

    def stack_of(self, labels: RunLabels, start: Stack, *, profile: bool = True) -> Stack:
        found = self.fitted.stack_of(labels, start)
        return slow_down(found, self.ratios.ratio_of(labels)) if profile else found


def fit_all(
    steps: Sequence[MeasuredStep], *, prior: Stack | None = None, rounds: int = 8, max_steps: int = MAX_STEPS
) -> LearnedRatio:
    """Constants first; then those of the network again, beside jobs whose computation is known from their profiles."""
    fitted = fit_stacks(steps, prior=prior, rounds=rounds, max_steps=max_steps)
    fitted = fit_networks(fitted, _hold_computation(steps, fitted), rounds=rounds, max_steps=max_steps)
    return LearnedRatio(fitted=fitted, ratios=fit_ratios(steps, fitted))


def _hold_computation(steps: Sequence[MeasuredStep], fitted: FittedStacks) -> list[MeasuredStep]:
    """The steps of many devices whose job was measured on one, their computation as slow as it was there."""
    ratios = fit_ratios(steps, fitted)
    return [
        replace(one, step=replace(one.step, slowness=ratios.ratio_of(one.labels)))
        for one in steps
        if one.labels.job in ratios.profiles and not one.labels.is_profile
    ]


def fit_ratios(steps: Sequence[MeasuredStep], fitted: FittedStacks) -> ProfileRatios:
    """Measured over forecast time of the one-device steps, under the constants that they would be answered with."""
    found: dict[tuple[str, ...], dict[float, list[float]]] = {}
    for one in steps:
        if one.labels.is_profile:
            forecast_s = replace(one.step, slowness=1.0).predict(fitted.stack_of(one.labels, one.start))
            octave = math.log2(max(one.labels.pass_tokens, 1e-9))
            batches = found.setdefault(one.labels.job, {})
            batches.setdefault(octave, []).append(math.log(one.step.seconds / forecast_s))
    return ProfileRatios(
        profiles={
            job: ProfileRatio(
                job=job,
                octaves=tuple(sorted(batches)),
                log_ratios=tuple(float(np.mean(batches[octave])) for octave in sorted(batches)),
            )
            for job, batches in found.items()
        }
    )


def choose_informative(known: Sequence[RunLabels], asked: Sequence[RunLabels], most: int) -> list[int]:
    """The places of the runs that say most about the asked ones: all one-device steps of the asked jobs, and of the rest at
    most `most`, every job on one device, one node and many nodes with equal weight."""
    jobs = {labels.job for labels in asked}
    taken = {place for place, labels in enumerate(known) if labels.is_profile and labels.job in jobs}
    layers: dict[tuple[tuple[str, ...], int], list[int]] = {}
    for place, labels in enumerate(known):
        if place not in taken:
            layer = 0 if labels.is_profile else min(labels.num_nodes, 2)
            layers.setdefault((labels.job, layer), []).append(place)
    room = most
    for number, places in enumerate(sorted(layers.values(), key=len)):
        share = min(len(places), room // (len(layers) - number))
        room -= share
        taken.update(places[pick] for pick in np.linspace(0, len(places) - 1, share).round().astype(int))
    return sorted(taken)
