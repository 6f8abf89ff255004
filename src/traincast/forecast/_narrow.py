"""What is new about a question to the measurements that would make its answer surer, and by how much."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from traincast.forecast._certainty import FEATURES, Certainty, Sensitivity, Setting, clip_interval, sort_of
from traincast.spec import COVERAGE, Narrowing
from traincast.units import MINUTE_S

GIVEN_JOB, GIVEN_DEVICE, GIVEN_STACK = "this job", "this stack on this device", "this stack"
GIVEN_OPERATORS, GIVEN_INPUTS = "operators on this device", "the input pipeline"
"""What may be measured, as the fitted document names it."""
WORTH = 0.9
"""A measurement that leaves more than this share of the width is not suggested."""
MOST_SUGGESTED = 3
START_S = 120.0
"""To start a job and reach steady steps; an order of magnitude, from no measurement of ours."""
STEPS, LEAST_STEPS, PROFILE_S = 50, 5, 600.0
"""Of a short profile: fewer where fifty would take longer than ten minutes, but five at least."""
CALIBRATION_S = 180.0
LOADING_S = 60.0
"""To run an input pipeline alone."""
_OF_OPERATORS = ("new device", "new architecture", "new vendor")
"""What measuring operators on the device makes known, beside their own errors."""


def suggest_narrowing(
    certainty: Certainty, novelty: Sequence[float], sensitivity: Sensitivity, setting: Setting, *, step_s: float
) -> tuple[Narrowing, ...]:
    """Measurements with the width of the interval that is expected after them, the narrowest first."""
    now = _width(certainty.interval(novelty, sensitivity, setting))
    found = [
        Narrowing(
            measurement=words, seconds=seconds, width_now=now, width_after=_width(after), given=given, after=after
        )
        for given, words, seconds, after in _measurements(certainty, novelty, sensitivity, setting, step_s)
        if _width(after) < WORTH * now
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
    if sensitivity.get("inputs", (0.0, 0.0))[1] > 0:
        words = "samples per second of the input pipeline alone, given with --loading"
        fed = {**sensitivity, "inputs": (0.0, 0.0)}
        yield GIVEN_INPUTS, words, LOADING_S, certainty.interval(novelty, fed, setting)


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
