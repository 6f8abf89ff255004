"""Forms of intervals under new stacks, chosen without the publisher that is reported.

Run: python -m research.studies.new_stack_forms ASKED [--markdown research/results/0049-how-sure.md]

ASKED: as `python -m research.fits.intervals CASES --asked ASKED` keeps it. The rule was written before its table: for each
publisher, the form with the lowest mean log Winkler score on the others, among those under which no other publisher of 50 runs is
held less than 80% of the time. Every form is fitted without the publisher; the scales of another publisher's errors, from which
quantiles come, without that one too.
"""

import argparse
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from research.fits.asked import Asked, load
from research.fits.intervals import (
    BASE,
    BASE_SIGMA,
    ENOUGH,
    FREEDOM,
    OBSERVATIONS,
    _weighted_quantiles,
    publisher_quantiles,
)
from research.output import splice_into
from traincast.forecast import (
    DATA_FACTOR,
    HOST_CPU_FACTOR,
    HOST_LEAST_S,
    HOST_MOST_S,
    LATE_RING_STEP_S,
    LEVELS,
    MOST_OPERATORS,
    STEP,
    WIDEST,
)
from traincast.units import NORMAL_90

Array = NDArray[np.float64]
BEGIN, END = "<!-- made by research.studies.new_stack_forms -->", "<!-- end of what new_stack_forms made -->"
LARGE, LEAST_HELD = 50, 0.8
WAITS: dict[str, Callable[[Array], Array]] = {
    "maximum": lambda beside: np.maximum(1.0, beside),
    "root of squares": lambda beside: np.hypot(1.0, beside),
    "sum": lambda beside: 1.0 + beside,
}
GAINS = {"0.5 +- 0.5": (0.5, 0.5), "1 +- 0.3": (1.0, 0.3)}
LINKS = (2.0, 4.0)
LOW, HIGH = LEVELS.index(0.05), LEVELS.index(0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    wait: str
    gain: str
    link: float
    pooled: bool
    inputs: bool = True

    @property
    def name(self) -> str:
        publishers = "pooled" if self.pooled else "random effect"
        return f"{self.wait}; gain {self.gain}; links off by {self.link:.0f}; {publishers}{'' if self.inputs else '; no inputs'}"


def parts_of(rows: Sequence[Asked], form: Form) -> Array:
    """(run, part, side)."""
    wait = WAITS[form.wait]
    names = ("host", "call_s", "inputs", "ring_steps_per_s")
    host, call_s, inputs, ring_steps = (np.array([getattr(row, name) for row in rows]) for name in names)
    slower = np.maximum(HOST_CPU_FACTOR, HOST_MOST_S / call_s)
    faster = np.maximum(HOST_CPU_FACTOR, call_s / HOST_LEAST_S)
    operators = np.clip([row.operators for row in rows], 0.0, MOST_OPERATORS)
    share, fused = (np.clip([getattr(row, name) for row in rows], 0.0, 1.0) for name in ("exposed", "bandwidth"))
    nothing = np.zeros(len(rows))
    sides = [
        (operators, operators),
        (np.log(wait(host) / wait(host / faster)), np.log(wait(host * slower) / wait(host))),
        (-np.log(1 - fused / 2), nothing),
        (-np.log(1 - share * (1 - 1 / form.link)), np.log(1 + share * (form.link - 1))),
        (nothing, np.log1p(ring_steps * LATE_RING_STEP_S)),
        (nothing, math.log(DATA_FACTOR) * np.array([float(row.by_data) for row in rows])),
    ]
    if form.inputs:
        sides.append((nothing, np.log(wait(inputs)) / NORMAL_90))
    return np.array(sides).transpose(2, 0, 1)


def fit_scales(parts: Array, errors: Array, publishers: Array, *, gain: float, sigma: float) -> Array:
    """Base and gains by the likelihood of `research.fits.intervals`, a publisher counting as four observations."""
    weights = OBSERVATIONS / np.array([(publishers == name).sum() for name in publishers])
    side, places = (errors > 0).astype(int), np.arange(len(errors))
    number = parts.shape[1] * 2
    middle = np.array([math.log(BASE)] * 2 + [gain] * number)
    spread = np.array([BASE_SIGMA] * 2 + [sigma] * number)

    def loss(values: Array) -> tuple[float, Array]:
        base, gains = np.exp(values[:2]), values[2:].reshape(-1, 2)
        scales = np.sqrt(base**2 + ((gains * parts) ** 2).sum(axis=1))
        square = (errors / scales[places, side]) ** 2 / FREEDOM
        likelihood = -(FREEDOM + 1) / 2 * np.log1p(square) - np.log(scales.mean(axis=1))
        slopes = scales / scales.sum(axis=1, keepdims=True)
        slopes[places, side] -= (FREEDOM + 1) * square / (1 + square)
        slopes *= weights[:, None] / scales**2
        by_gain = (slopes[:, None, :] * gains * parts**2).sum(axis=0).ravel()
        gradient = np.concatenate([(slopes * base**2).sum(axis=0), by_gain]) + (values - middle) / spread**2
        return float(-(weights * likelihood).sum() + 0.5 * (((values - middle) / spread) ** 2).sum()), gradient

    bounds = [(math.log(0.03), 0.0)] * 2 + [(0.0, 4.0)] * number
    return np.asarray(optimize.minimize(loss, middle, jac=True, method="L-BFGS-B", bounds=bounds).x)


def scales_of(parts: Array, values: Array) -> Array:
    return np.asarray(np.sqrt(np.exp(values[:2]) ** 2 + ((values[2:].reshape(-1, 2) * parts) ** 2).sum(axis=1)))


def outer_loop(rows: Sequence[Asked], form: Form) -> dict[str, tuple[int, float, float, float]]:
    """By publisher left out: (runs, log Winkler score, holds, median width)."""
    errors, publishers = np.array([row.error for row in rows]), np.array([row.publisher for row in rows])
    parts, (gain, sigma) = parts_of(rows, form), GAINS[form.gain]
    known: dict[frozenset[str], Array] = {}

    def scales(*left: str) -> Array:
        if frozenset(left) not in known:
            kept = ~np.isin(publishers, left)
            known[frozenset(left)] = fit_scales(parts[kept], errors[kept], publishers[kept], gain=gain, sigma=sigma)
        return scales_of(parts, known[frozenset(left)])

    found = {}
    side = (errors > 0).astype(int)
    for name in sorted(set(publishers)):
        over = np.zeros(len(errors))
        for other in sorted(set(publishers) - {name}):
            own = publishers == other
            over[own] = errors[own] / scales(name, other)[own, side[own]]
        rest = publishers != name
        low, high = _ends(over[rest], publishers[rest], pooled=form.pooled)
        own = publishers == name
        ends = scales(name)[own] * np.array([low, high])
        below, above = np.clip(ends[:, 0], -WIDEST, -1e-3), np.clip(ends[:, 1], 1e-3, WIDEST)
        outside = np.maximum(0.0, below - errors[own]) + np.maximum(0.0, errors[own] - above)
        score, held = float(np.mean(above - below + 20 * outside)), float(np.mean(outside == 0))
        found[name] = int(own.sum()), math.log(score), held, float(np.median(np.exp(above) - np.exp(below)))
    return found


def _ends(over: Array, publishers: Array, *, pooled: bool) -> tuple[float, float]:
    if pooled:
        weights = 1 / np.array([(publishers == name).sum() for name in publishers])
        low, high = _weighted_quantiles(over, weights, np.array([0.05, 0.95]))
        return float(low), float(high)
    values = publisher_quantiles(over, publishers.tolist())
    return float(values[LOW]), float(values[HIGH])


def pick_new(rows: Sequence[Asked]) -> list[Asked]:
    """Forecasts without what the publisher taught, of stacks that others ran fewer than 20 times."""
    numbers: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    untaught = [row for row in rows if row.quantity == STEP and row.untaught]
    for row in untaught:
        numbers[row.setting.stack][row.publisher] += 1
    return [
        row
        for row in untaught
        if sum(n for name, n in numbers[row.setting.stack].items() if name != row.publisher) < ENOUGH
    ]


Found = dict[str, dict[str, tuple[int, float, float, float]]]


def choose(found: Found, publisher: str) -> str:
    """By the other publishers."""

    def rank(name: str) -> tuple[bool, float]:
        others = [values for other, values in found[name].items() if other != publisher]
        broken = any(number >= LARGE and held < LEAST_HELD for number, _, held, _ in others)
        return broken, float(np.mean([score for _, score, _, _ in others]))

    return min(found, key=rank)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("asked", type=Path)
    parser.add_argument("--markdown", type=Path, help="page whose tables are made again")
    options = parser.parse_args(arguments)
    rows = pick_new(load(options.asked)[0])
    grid = itertools.product(WAITS, GAINS, LINKS, (False, True))
    forms = [
        Form(wait="maximum", gain="0.5 +- 0.5", link=2.0, pooled=False, inputs=False),
        Form(wait="root of squares", gain="1 +- 0.3", link=2.0, pooled=False, inputs=False),
    ]
    forms += [Form(wait=wait, gain=gain, link=link, pooled=pooled) for wait, gain, link, pooled in grid]
    found = {form.name: outer_loop(rows, form) for form in forms}
    lines = ["| form | mean log score | least held of 50 runs | held, by publisher |", "|---|--:|--:|---|"]
    for name, own in found.items():
        held = ", ".join(f"{publisher} {values[2]:.0%}" for publisher, values in own.items())
        least = min(values[2] for values in own.values() if values[0] >= LARGE)
        lines.append(f"| {name} | {np.mean([values[1] for values in own.values()]):.3f} | {least:.0%} | {held} |")
    lines += ["", "| publisher | the others choose | n | holds | median width |", "|---|---|--:|--:|--:|"]
    for publisher in next(iter(found.values())):
        name = choose(found, publisher)
        number, _, held, width = found[name][publisher]
        lines.append(f"| {publisher} | {name} | {number} | {held:.0%} | {width:.0%} |")
    text = "\n".join(lines)
    sys.stdout.write(f"{text}\n")
    if options.markdown:
        splice_into(options.markdown, text, begin=BEGIN, end=END)


if __name__ == "__main__":
    main()
