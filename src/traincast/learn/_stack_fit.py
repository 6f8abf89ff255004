"""Measured runs to the constants of the stacks that ran them: first per stack, then per stack and device."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import field

from traincast.cost import TUNABLE, OpModel, Pricing, read_constants, with_constants
from traincast.errors import TraincastError
from traincast.forecast import COMMUNICATING, MAX_STEPS, KnownStep, know_step, tune
from traincast.noun import noun
from traincast.spec import MeasuredRun, RunLabels, Stack, StackConstants

Group = tuple[str, str | None]
"""A stack and a device; None: all devices."""

MIN_RUNS = 3
"""Fewer runs of one device say more about their jobs than about the device."""
OWN_SHARE = 0.5
"""How far a device's constants may leave its stack's, beside how far those may leave the prior."""
NETWORK_SHARE = 2.0
"""How far the constants of communication may leave theirs where computation is held: nothing else can take the blame."""


@noun
class MeasuredStep:
    """A measured run, lowered and priced once."""

    labels: RunLabels
    step: KnownStep
    start: Stack
    """The constants that it is answered with where nothing was learnt."""


@noun
class FittedStacks:
    """The constants to use for a run; where its stack has none, `prior`, or what ships for it."""

    groups: Mapping[Group, Stack] = field(default_factory=dict)
    prior: Stack | None = None

    def stack_of(self, labels: RunLabels, start: Stack) -> Stack:
        for group in ((labels.stack, labels.device), (labels.stack, None)):
            if group in self.groups:
                return self.groups[group]
        return self.prior or start

    def constants(self) -> tuple[StackConstants, ...]:
        return tuple(describe_stack(found, name, device) for (name, device), found in self.groups.items())


def describe_stack(found: Stack, name: str, device: str | None = None) -> StackConstants:
    return StackConstants(
        stack=name, device=device, constants=read_constants(found), log_sigma=found.log_sigma, num_steps=found.num_steps
    )


def measure_steps(runs: Sequence[MeasuredRun], *, ops: OpModel, prior: Stack | None = None) -> list[MeasuredStep]:
    """The runs that can be forecast at all. `prior`: the constants to start from; by default what ships for each stack."""
    steps: list[MeasuredStep] = []
    for run in runs:
        try:
            step = know_step(run.job, run.cluster, run.parallelism, run.step_s, costs=Pricing(ops=ops))
        except TraincastError as error:
            logging.getLogger(__name__).info("nothing is learned from %s: %s", run.name, error)
            continue
        steps.append(MeasuredStep(labels=run.labels, step=step, start=prior or run.job.stack))
    return steps


def fit_stacks(
    steps: Sequence[MeasuredStep], *, prior: Stack | None = None, rounds: int = 8, max_steps: int = MAX_STEPS
) -> FittedStacks:
    """Constants moved from where the steps start towards what was measured."""
    by_group: dict[Group, list[KnownStep]] = {}
    starts: dict[str, Stack] = {}
    for one in steps:
        by_group.setdefault((one.labels.stack, one.labels.device), []).append(one.step)
        starts[one.labels.stack] = one.start
    groups: dict[Group, Stack] = {}
    narrow = {name: OWN_SHARE * width for name, width in TUNABLE.items()}
    for name, start in starts.items():
        own = {group: known for group, known in by_group.items() if group[0] == name}
        together = [step for known in own.values() for step in known]
        common = groups[name, None] = tune(start, together, rounds=rounds, max_steps=max_steps)
        for group, known in own.items():
            if len(own) > 1 and len(known) >= MIN_RUNS:
                groups[group] = tune(common, known, spreads=narrow, rounds=min(5, rounds), max_steps=max_steps)
    return FittedStacks(groups=groups, prior=prior)


def fit_networks(
    fitted: FittedStacks, steps: Sequence[MeasuredStep], *, rounds: int = 8, max_steps: int = MAX_STEPS
) -> FittedStacks:
    """The constants of communication again and alone, for each device from where they started: the links of one machine say
    nothing about those of another. `steps`: of many devices, their computation held to what was measured of it."""
    spreads = {name: NETWORK_SHARE * TUNABLE[name] for name in COMMUNICATING}
    starts = {one.labels.stack: one.start for one in steps}
    groups = dict(fitted.groups)
    for group, found in fitted.groups.items():
        name, device = group
        own = [
            one.step for one in steps if one.labels.stack == name and one.labels.device == (device or one.labels.device)
        ]
        if name not in starts or (device is None and any(other[0] == name and other[1] for other in groups)):
            continue
        network = {key: value for key, value in read_constants(starts[name]).items() if key in COMMUNICATING}
        groups[group] = tune(with_constants(found, network), own, spreads=spreads, rounds=rounds, max_steps=max_steps)
    return FittedStacks(groups=groups, prior=fitted.prior)
