"""The tasks of a step and their estimates to its uncertainty, to what that rests on, and to what would narrow it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from traincast.certainty._certainty import (
    FEATURES,
    STEP,
    Certainty,
    Sensitivity,
    Setting,
    beliefs,
    call_seconds,
    clip_interval,
    describe_novelty,
    describe_setting,
    feature_seconds,
    load_certainty,
    loader_seconds,
    sort_of,
    step_sensitivity,
)
from traincast.cost import find_route
from traincast.memo import Remember, compute
from traincast.noun import noun
from traincast.spec import (
    COVERAGE,
    DYNAMIC,
    GROUNDS,
    Cluster,
    Collective,
    Estimate,
    Job,
    Narrowing,
    Op,
    Parallelism,
    Program,
    Repeat,
    Stack,
    Task,
    Timeline,
    count_runs,
)  # fmt: skip
from traincast.units import MINUTE_S, NORMAL_90

GIVEN_JOB, GIVEN_DEVICE, GIVEN_STACK = "this job", "this stack on this device", "this stack"
GIVEN_OPERATORS = "operators on this device"
"""What may be measured, as the fitted document names it."""
WORTH = 0.9
"""A measurement that leaves more than this share of the width is not suggested."""
MOST_SUGGESTED = 3
START_S = 120.0
"""To start a job and reach steady steps; an order of magnitude, from no measurement of ours."""
STEPS, LEAST_STEPS, PROFILE_S = 50, 5, 600.0
"""Of a short profile: fewer where fifty would take longer than ten minutes, but five at least."""
CALIBRATION_S = 180.0
_OF_OPERATORS = ("new device", "new architecture", "new vendor")
"""What measuring operators on the device makes known, beside their own errors."""


def suggest_narrowing(
    certainty: Certainty, novelty: Sequence[float], sensitivity: Sensitivity, setting: Setting, *, step_s: float,
    width_now: float,
) -> tuple[Narrowing, ...]:  # fmt: skip
    """Measurements with the width of the interval that is expected after them, the narrowest first."""
    found = [
        Narrowing(
            measurement=words, seconds=seconds, width_now=width_now, width_after=_width(after), given=given, after=after
        )
        for given, words, seconds, after in _measurements(certainty, novelty, sensitivity, setting, step_s)
        if _width(after) < WORTH * width_now
    ]
    return tuple(sorted(found, key=lambda one: (one.width_after, one.seconds))[:MOST_SUGGESTED])


def _measurements(
    certainty: Certainty, novelty: Sequence[float], sensitivity: Sensitivity, setting: Setting, step_s: float
) -> Iterator[tuple[str, str, float, tuple[float, float]]]:
    """(what is measured, in words, seconds that it takes, the interval after it)."""
    run_s = START_S + max(min(STEPS * step_s, PROFILE_S), LEAST_STEPS * step_s)
    scales, sort = certainty.scales(novelty, sensitivity, setting.stack), sort_of(novelty)
    ways = {
        GIVEN_JOB: (f"one profile of this job on one {setting.device}, given with --given", run_s),
        GIVEN_DEVICE: (f"runs of five other models with {setting.stack} on {setting.device}", 5 * run_s),
        GIVEN_STACK: (f"twenty runs of {setting.stack} on other devices", 20 * run_s),
    }
    values = dict(zip(FEATURES, novelty, strict=True))
    if not values["new stack"]:
        # Its runs were measured already; those on this device may not have been.
        del ways[GIVEN_STACK]
        if not values["device new to the stack"] and not values["new device"]:
            del ways[GIVEN_DEVICE]
    for given, (words, seconds) in ways.items():
        table = certainty.given.get(f"{sort}: {given}")
        if table is not None:
            yield given, words, seconds, clip_interval(table.errors(*scales).interval(COVERAGE))
    words = f"operators measured on one {setting.device} (traincast calibrate)"
    after = certainty.interval(*with_operators(novelty, sensitivity), setting)
    yield GIVEN_OPERATORS, words, CALIBRATION_S, after


def with_operators(novelty: Sequence[float], sensitivity: Sensitivity) -> tuple[list[float], Sensitivity]:
    """What remains new, and of the parts that may be off, once operators were measured on the device."""
    known = [0.0 if name in _OF_OPERATORS else amount for name, amount in zip(FEATURES, novelty, strict=True)]
    return known, {**sensitivity, "operators": (0.0, 0.0)}


def widen_narrowing(narrowing: Sequence[Narrowing], power: float, *, width_now: float) -> tuple[Narrowing, ...]:
    """Of an answer whose log interval is `power` times as wide: what a measurement leaves is as much wider."""
    made = []
    for one in narrowing:
        low, high = one.after
        after = clip_interval((low**power, high**power))
        made.append(replace(one, after=after, width_now=width_now, width_after=_width(after)))
    return tuple(made)


def say_narrowing(narrowing: Sequence[Narrowing]) -> str:
    """One sentence; empty where nothing would help."""
    if not narrowing:
        return ""
    best = narrowing[0]
    minutes = max(1, math.ceil(best.seconds / MINUTE_S))
    return (
        f"what would narrow it most: {best.measurement} (about {minutes} minute{'s' * (minutes > 1)}): "
        f"{best.width_now:.0%} -> {best.width_after:.0%} wide"
    )


def _width(interval: tuple[float, float]) -> float:
    """As a share of the forecast."""
    low, high = interval
    return high - low


MOST_SAID = 3
"""Reasons for a wide interval that one answer names."""
UNLIKE = "it is unlike every workload we know"


@noun
class Tally:
    """Device seconds of every kind of task, and how unsure they are."""

    seconds: Mapping[str, float]
    weighted: Mapping[str, float]
    """Seconds times the standard deviation of their log."""
    grounds: Mapping[str, float]
    bounded: float
    """The weighted seconds that rest on the bound alone."""
    host_s: float = 0.0
    """To issue them."""
    ring_steps: float = 0.0
    """Between nodes, that kernels wait for."""
    by_data: bool = False
    """What some of them do depends on the data."""

    def log_sigma(self, software: Stack) -> float:
        """One standard deviation of the log error of a step. Errors of one kind of task go together, those of different
        kinds do not; composition adds its own. For a stack whose whole steps were measured their left-out errors say it
        all, but for tasks that rest on the bound alone: they widen any."""
        whole = sum(self.seconds.values())
        variance = software.log_sigma**2 + sum((part / whole) ** 2 for part in self.weighted.values() if whole)
        if software.num_steps:
            variance = (beliefs().unseen_device * software.log_sigma) ** 2 + (
                self.bounded / whole if whole else 0.0
            ) ** 2
        return math.sqrt(variance)

    @property
    def operators_log_sigma(self) -> float:
        """What the tasks' own intervals give the step: errors of one kind of task go together, those of kinds do not."""
        whole = sum(self.seconds.values())
        return math.sqrt(sum((part / whole) ** 2 for part in self.weighted.values())) if whole else 0.0

    @property
    def host_share(self) -> float:
        """The host's time to issue the tasks over the devices' to run them."""
        whole = sum(self.seconds.values())
        return self.host_s / whole if whole else 0.0

    @property
    def ring_steps_per_s(self) -> float:
        """In a second of the devices' time."""
        whole = sum(self.seconds.values())
        return self.ring_steps / whole if whole else 0.0

    @property
    def ground_shares(self) -> dict[str, float]:
        """The share of the device time that rests on each ground."""
        whole = sum(self.grounds.values())
        return {ground: amount / whole if whole else 0.0 for ground, amount in self.grounds.items()}


def tally_program(
    program: Program, estimates: Sequence[tuple[Estimate, ...]], cluster: Cluster, *, remember: Remember = compute
) -> Tally:
    """Of all stages; those with the same tasks are looked at once."""
    seconds: dict[str, float] = {}
    weighted: dict[str, float] = {}
    grounds = dict.fromkeys(GROUNDS, 0.0)
    bounded = 0.0
    number: dict[int, int] = {}
    tallies: dict[int, Tally] = {}
    for stage, priced in zip(program.stages, estimates, strict=True):
        key = id(stage.tasks)
        number[key] = number.get(key, 0) + 1
        if key not in tallies:
            tallies[key] = remember(tally_tasks, stage.tasks, stage.repeats, priced, cluster)
    for key, tally in tallies.items():
        for kind, amount in tally.seconds.items():
            seconds[kind] = seconds.get(kind, 0.0) + number[key] * amount
            weighted[kind] = weighted.get(kind, 0.0) + number[key] * tally.weighted[kind]
        for ground, amount in tally.grounds.items():
            grounds[ground] += number[key] * amount
        bounded += number[key] * tally.bounded
    return Tally(
        seconds=seconds,
        weighted=weighted,
        grounds=grounds,
        bounded=bounded,
        host_s=sum(number[key] * tally.host_s for key, tally in tallies.items()),
        ring_steps=sum(number[key] * tally.ring_steps for key, tally in tallies.items()),
        by_data=any(tally.by_data for tally in tallies.values()),
    )


def tally_tasks(
    tasks: tuple[Task, ...], repeats: tuple[Repeat, ...], estimates: tuple[Estimate, ...], cluster: Cluster
) -> Tally:
    """Of one stage."""
    seconds: dict[str, float] = {}
    weighted: dict[str, float] = {}
    grounds = dict.fromkeys(GROUNDS, 0.0)
    bounded = host_s = ring_steps = 0.0
    for task, estimate, count in zip(tasks, estimates, count_runs(repeats, num_tasks=len(tasks)), strict=True):
        kind = f"{task.axis} communication" if isinstance(task, Collective) else task.kind
        amount = estimate.seconds * count
        unsure = amount * _log_sigma(estimate.low_s, estimate.high_s)
        seconds[kind] = seconds.get(kind, 0.0) + amount
        weighted[kind] = weighted.get(kind, 0.0) + unsure
        grounds[estimate.ground] += amount
        bounded += unsure if estimate.ground == "bound" else 0.0
        host_s += estimate.host_s * count
        if isinstance(task, Collective) and _waits_for_rings(task, cluster):
            ring_steps += (task.num_ranks - 1) * count
    return Tally(
        seconds=seconds, weighted=weighted, grounds=grounds, bounded=bounded, host_s=host_s, ring_steps=ring_steps,
        by_data=any(isinstance(task, Op) and DYNAMIC in task.attrs for task in tasks),
    )  # fmt: skip


def _waits_for_rings(task: Collective, cluster: Cluster) -> bool:
    """Whether kernels wait for a ring between nodes. Gradients follow each other through the network without a kernel between."""
    rings = task.kind in ("all_gather", "reduce_scatter") and task.phase != "gradient" and not task.overlapped
    return rings and find_route(task, cluster).num_nodes > 1


def with_interval(timeline: Timeline, tally: Tally, *, software: Stack) -> Estimate:
    """The duration of a step as an estimate, as unsure as its tasks and the composition of its stack are."""
    factor = math.exp(NORMAL_90 * tally.log_sigma(software))
    return _estimate(timeline, tally, 1 / factor, factor)


SURE = "90% interval"
"""How the note begins that says how uncertain a step is."""


@noun
class Assured:
    """A step with its interval, its reasons, and what would narrow it."""

    step: Estimate
    because: tuple[str, ...] = ()
    narrowing: tuple[Narrowing, ...] = ()

    def says(self) -> str:
        """The interval of the step in words; none where its width has no reason that was learnt."""
        if not self.because:
            return ""
        low, high = (end / self.step.seconds - 1 for end in (self.step.low_s, self.step.high_s))
        said = f"{SURE} {low:+.0%} to {high:+.0%}: {'; '.join(self.because)}"
        return "; ".join(part for part in (said, say_narrowing(self.narrowing)) if part)

    def also(self, reason: str) -> "Assured":
        """With one more reason, named first."""
        return replace(self, because=(reason, *self.because)[:MOST_SAID]) if self.because else self

    def given_as(self, step: Estimate, *, unlike: bool = False) -> "Assured":
        """With the step that is given in the end, wider where it is `unlike` all we know, or another part's."""
        if step == self.step or not self.because:
            return replace(self, step=step)
        because = (UNLIKE, *self.because)[:MOST_SAID] if unlike else self.because
        if step.seconds != self.step.seconds:
            # What a measurement would leave was learnt about the other part's answer.
            return Assured(step=step, because=because)
        power = math.log(step.high_s / step.low_s) / math.log(self.step.high_s / self.step.low_s)
        width = (step.high_s - step.low_s) / step.seconds
        return Assured(step=step, because=because, narrowing=widen_narrowing(self.narrowing, power, width_now=width))


def with_novelty(
    timeline: Timeline, tally: Tally, job: Job, cluster: Cluster, plan: Parallelism, *, remember: Remember = compute
) -> Assured:
    """The duration of a step as an estimate, as unsure as left-out runs were about which as much was new."""
    certainty = load_certainty(STEP)
    setting = describe_setting(job, cluster, plan, remember=remember)
    novelty = certainty.novelty_of(setting)
    shares = timeline.shares
    step_s = timeline.duration_s or math.inf
    sensitivity = step_sensitivity(
        operators=tally.operators_log_sigma, host=tally.host_share, exposed=shares.get("communication", 0.0),
        bandwidth=shares.get("memory", 0.0), call_s=call_seconds(job.stack),
        inputs=feature_seconds(job, plan, setting) / step_s, ring_steps_per_s=tally.ring_steps_per_s, by_data=tally.by_data,
    )  # fmt: skip
    low, high = certainty.interval(novelty, sensitivity, setting)
    narrowing = suggest_narrowing(
        certainty, novelty, sensitivity, setting, step_s=timeline.duration_s, width_now=_width((low, high))
    )
    new = describe_novelty(
        novelty, setting, host=tally.host_share, loader=loader_seconds(job, plan, setting) / step_s,
        ring_steps_per_s=tally.ring_steps_per_s, by_data=tally.by_data,
    )[:MOST_SAID]  # fmt: skip
    because = new or (f"runs of {setting.stack} like this one were measured",)
    return Assured(step=_estimate(timeline, tally, low, high), because=because, narrowing=narrowing)


def _estimate(timeline: Timeline, tally: Tally, low: float, high: float) -> Estimate:
    total = timeline.duration_s
    return Estimate(
        seconds=total,
        low_s=total * low,
        high_s=total * high,
        limit=max(timeline.shares, key=lambda name: timeline.shares[name]),
        ground=max(tally.grounds, key=lambda name: tally.grounds[name]),
    )


def _log_sigma(low_s: float, high_s: float) -> float:
    return math.log(high_s / low_s) / (2 * NORMAL_90) if high_s > low_s > 0 else 0.0
