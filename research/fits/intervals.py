"""Fits how the error of a forecast grows with what is new about its question, and writes the document that ships.

Run: python -m research.fits.intervals ../shared/cases/*.parquet [--asked FILE] [--svg FOLDER] [--markdown FILE]

The rule (ADR 40, 41 and 49 say which of its constants were changed after results had been looked at). Every measured run is asked
twice: as the package ships, and with what its publisher taught taken away (`research.fits.untaught`; constants of memory are
their priors).

1. Examples. A publisher (the first word of a source) left out whole: nothing of it counts as known. Inside each stack with 20
   runs or more: each device, architecture, vendor, model family, model, precision, network, source, number of devices, version,
   compiled steps, the larger scales, and devices together with models left out in turn, where 20 other runs remain. And every
   stack as it ships.
2. The scale on either side of a forecast. New stack: the root of a base squared and, for each part of the answer, of a gain
   times how far the answer moves if that part is off (`step_sensitivity`, `memory_sensitivity`), squared. Known stack: its own
   scale times a power of what that root is beside the usual one of its runs. Each thing that is new adds a share to the square of
   either side, more than nothing. Bases, gains, powers and factors: maximum likelihood of a Student's t with four degrees of
   freedom and two scales. A publisher counts as four observations and so does a stack, split evenly over what is left out,
   whatever the number of rows. Priors: log factors 0.2 +- 0.5, gains 1 +- 0.3 (memory: 0.5 +- 0.5), powers 0.5 +- 0.3, the log
   of the base that of 0.12 +- 0.3: what nobody measured is not free.
   What novelty adds to known stacks is then raised or lowered, on each side, until 5% of the left-out runs of every kind of
   novelty lie beyond it; a stack counts by the root of its runs, and all kinds together as a stack of 100 runs.
3. A stack's own scale on a side is that of a normal distribution with the same 90% quantile of errors on that side, pooled
   with two models more that are as far off as those of a new stack whose host is known.
4. Quantiles of error over scale. Known stack: weighted quantiles of all examples, every stack by its number of models, count as
   half a model beside the stack's own errors over scale, which count by nearness to the question (`Cell.nearness`): all of
   its models where every run is like the question. They are
   widened by 2 / n, where the stack's runs count as n by nearness. New stack: errors of one publisher go together, so the
   quantiles are those of a sum: Student's t of the medians of k publishers, with k - 1 degrees of freedom and widened by
   sqrt(1 + 1 / k) (memory: as if two more were 0.4 scales apart, as those of steps are), and the errors about these medians,
   every publisher weighing the same. The scales of a publisher's errors are found without that publisher (cross-conformal), and
   the quantiles are widened until publishers of 50 runs and more, each under those of the others, are held 90% of the time on
   average.
5. Whoever asks about a known stack is a publisher that was never seen: a normal effect with the deviation of the medians of
   publishers where the host hardly counts is joined with the quantiles, in squares.
6. What remains once something was measured: one run of the same job (the smallest), five runs of other models with the same
   stack on the same device, twenty runs of the stack on other devices. The log error of the others, less the (median) error
   of the given.

The tables leave each publisher out of this fit as well. Folds inside a stack have constants of the stack that saw their rows.
"""

import argparse
import dataclasses
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from research.fits.asked import Asked, Verdict, ask_all, keep, load
from research.fits.interval_tables import (
    Held,
    tabulate_held,
    tabulate_peaks,
    tabulate_verdicts,
    write_page,
)
from traincast.certainty._certainty import (
    DOCUMENT,
    FEATURES,
    KNOWN_STACK,
    LEVELS,
    MEMORY,
    NEW_STACK,
    STEP,
    Cell,
    Certainty,
    Experience,
    Quantiles,
    Sensitivity,
    Setting,
    Sides,
    beliefs,
    clip_interval,
    count_near,
    join_all,
    list_novelty,
    memory_sensitivity,
    mix_quantiles,
    octave_of,
    sort_of,
    step_sensitivity,
)
from traincast.certainty._interval import GIVEN_DEVICE, GIVEN_JOB, GIVEN_STACK
from traincast.files import write_json, write_whole
from traincast.report._svg import _cycle, _document, _text

Array = NDArray[np.float64]
FREEDOM = 4.0
COVERAGE = 0.9
MEANT = (0.5, 0.8, 0.9, 0.95)
ENOUGH = 20
"""Runs of a stack from which on they say by themselves how far off forecasts for it are."""
LEAST = 0.04
"""Of the log error: no stack is surer than its measurements repeat."""
OBSERVATIONS = 4.0
PRIOR, PRIOR_SIGMA = 0.2, 0.5
GAINS = {STEP: (1.0, 0.3), MEMORY: (0.5, 0.5)}
"""Of a part that is as far off as it may be: one scale of a step (chosen by publishers left out, ADR 49), half of one of
memory."""
BASE, BASE_SIGMA = 0.12, 0.3
SHARE, SHARE_SIGMA = 0.5, 0.3
OWN_LEVEL, OWN_NORMAL = 0.9, 1.2816
"""The quantile of its errors on a side that gives a stack its own scale, and the same of a normal distribution."""
SHRINK = 2.0
"""Models that a stack's own scale is shrunk towards that of a new stack by."""
MOST_EXAMPLES = 60
"""Of one fold, for factors and gains; quantiles are those of all."""
ROUNDS = 2
"""Times that stacks' own scales and the gains are found, each given the other."""
GRID = (np.arange(199) + 1) / 200
FACETS: Mapping[str, Callable[[Asked], str]] = {
    "device": lambda row: row.setting.device,
    "architecture": lambda row: row.setting.architecture,
    "family": lambda row: row.setting.family,
    "model": lambda row: row.workload,
    "precision": lambda row: row.setting.precision,
    "network": lambda row: row.setting.network,
    "compiled": lambda row: str(row.setting.compiled),
    "vendor": lambda row: row.setting.vendor,
    "version": lambda row: row.setting.version,
    "source": lambda row: row.source,
    "number of devices": lambda row: str(octave_of(row.setting)),
}
MOST_PAIRS = 12
"""Devices and models of a stack that are left out together, evenly over all pairs that were run."""
KINDS: Mapping[str, tuple[str, ...]] = {
    "vendor": ("new vendor",),
    "architecture": ("new architecture",),
    "device": ("new device", "device new to the stack"),
    "family": ("new model family", "family new to the stack"),
    "model": ("model new to the stack",),
    "precision": ("precision new to the stack",),
    "network": ("network new to the stack",),
    "compiled": ("compiled",),
    "version": ("version new to the stack",),
    "scale": ("doublings of scale",),
    "axis": ("axis new to the stack",),
}
"""Which factors a kind of novelty has, that are widened where its intervals hold too few."""
SMALL = 1e-3
LARGE, FEWEST_LARGE = 50, 3
"""Runs of a publisher that is large, and publishers that say how far apart they are."""
WIDENINGS = np.linspace(1.0, 2.0, 51)
LOW, HIGH = LEVELS.index(0.05), LEVELS.index(0.95)
STRETCHES, MOST_STRETCH = 3, 0.5
"""Times that all kinds are looked at, and what a log factor may change by at a time."""
PARENT_RUNS = 100.0
"""All kinds of novelty together count as a stack of so many runs beside the stacks that show one kind."""
CELL_VALUES = 9
TENTHS = 10
"""Parts of a stack's runs that are left out in turn where nothing is new."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
FEW = 5
HOST_SHARE = 0.5
"""Of the devices' time; below it a step hardly waits for its host."""
NORMAL_MEDIAN = 1.4826
"""Standard deviation of a normal distribution over the median of its sizes."""
"""Runs of other models that stand for a stack on a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One forecast with what was new about it."""

    row: Asked
    fold: str
    """What was left out: 'publisher', a facet, 'scale' or nothing."""
    left: str
    """Which one of it."""
    stack: str
    novelty: tuple[float, ...]
    own: Experience
    """What the stack's other runs say; without a scale: the stack is new."""
    sensitivity: Sensitivity
    weight: float = 1.0


def sensitivity_of(row: Asked) -> Sensitivity:
    if row.quantity == MEMORY:
        return memory_sensitivity(activations=row.activations, beside=row.beside)
    return step_sensitivity(
        operators=row.operators,
        host=row.host,
        exposed=row.exposed,
        bandwidth=row.bandwidth,
        call_s=row.call_s,
        inputs=row.inputs,
        ring_steps_per_s=row.ring_steps_per_s,
        by_data=row.by_data,
    )


def first_guess(rows: Sequence[Asked]) -> Certainty:
    names = sensitivity_of(rows[0])
    gain, _ = GAINS[rows[0].quantity]
    return Certainty(base=(BASE, BASE), gains=dict.fromkeys(names, (gain, gain)), share=(SHARE, SHARE))


class Scaled:
    """What a table says of rows by their parts, found once for each: with all parts, and with a host that is known."""

    def __init__(self, rows: Sequence[Asked], guess: Certainty, *, with_cells: bool = True) -> None:
        self.guess, self.with_cells = guess, with_cells
        self.places = {id(row): place for place, row in enumerate(rows)}
        self.sensitivities = [sensitivity_of(row) for row in rows]
        self.parts = np.array([guess.parts(one) for one in self.sensitivities])
        # What a call costs the host is among the first things that runs of a stack tell.
        self.parents = np.array([guess.parts(one, without="host") for one in self.sensitivities])

    def of(self, rows: Sequence[Asked]) -> list[int]:
        return [self.places[id(row)] for row in rows]

    def sensitivity(self, row: Asked) -> Sensitivity:
        return self.sensitivities[self.places[id(row)]]


def gather(rows: Sequence[Asked], guess: Certainty) -> dict[str, Experience]:
    """What the rows show, by stack, and how far they were from their forecasts."""
    scaled = Scaled(rows, guess)
    return {name: _experience(own, scaled) for name, own in _by_stack(rows).items()}


def _by_stack(rows: Sequence[Asked]) -> dict[str, list[Asked]]:
    stacks: dict[str, list[Asked]] = defaultdict(list)
    for row in rows:
        stacks[row.setting.stack].append(row)
    return stacks


def _seen(settings: Collection[Setting]) -> Experience:
    """`Experience.joined` of all, without one object for each."""
    return Experience(
        devices=frozenset(one.device for one in settings),
        architectures=frozenset(one.architecture for one in settings),
        vendors=frozenset(one.vendor for one in settings),
        families=frozenset(one.family for one in settings),
        precisions=frozenset(one.precision for one in settings),
        networks=frozenset(one.network for one in settings) - {""},
        versions=frozenset(one.version for one in settings) - {""},
        axes=frozenset(axis for one in settings for axis in one.axes),
        models=frozenset((one.family, one.parameters) for one in settings),
        most_devices=max(one.num_devices for one in settings),
        compiled=any(one.compiled for one in settings),
        eager=not all(one.compiled for one in settings),
    )


def _experience(own: Sequence[Asked], scaled: Scaled) -> Experience:
    seen = _seen({row.setting for row in own})
    if len(own) < ENOUGH:
        return seen
    places = scaled.of(own)
    parts = scaled.parts[places]
    usual = np.exp(np.log(parts).mean(axis=0))
    errors = np.array([row.error for row in own])
    models = len({row.workload for row in own})
    parents = np.exp(np.log(scaled.parents[places]).mean(axis=0))
    shape = (parts / usual) ** np.array(scaled.guess.share)
    found = [
        _own_scale(errors * sign, shape[:, side], float(parents[side]), models) for side, sign in ((0, -1.0), (1, 1.0))
    ]
    side = (errors > 0).astype(int)
    over = errors / (np.array(found) * shape)[np.arange(len(errors)), side]
    return dataclasses.replace(
        seen, log_sigma=(found[0], found[1]), usual=(float(usual[0]), float(usual[1])), num_models=models,
        num_publishers=len({row.publisher for row in own}),
        cells=_make_cells(own, over) if scaled.with_cells else (),
    )  # fmt: skip


def _make_cells(own: Sequence[Asked], scaled: Array) -> tuple[Cell, ...]:
    """Errors over scale, those of runs that are alike together: a few quantiles stand for them."""
    groups: dict[tuple[str, str, str, int], list[int]] = defaultdict(list)
    for place, row in enumerate(own):
        one = row.setting
        groups[one.family, one.architecture, one.precision, octave_of(one)].append(place)
    cells = []
    for (family, architecture, precision, octave), places in sorted(groups.items()):
        number = min(len(places), CELL_VALUES)
        values = np.quantile(scaled[places], (np.arange(number) + 0.5) / number)
        cells.append(
            Cell(
                family=family, architecture=architecture, precision=precision, octave=octave, num_rows=len(places),
                values=tuple(round(float(value), 4) for value in values),
            )
        )  # fmt: skip
    return tuple(cells)


def _own_scale(errors: Array, shape: Array, parent: float, models: int) -> float:
    """By the errors that nine of ten stay below: a tail of three runs on one odd device says little of the others. Errors of one
    model go together, so models count."""
    found = max(LEAST, float(np.quantile(errors / shape, OWN_LEVEL)) / OWN_NORMAL)
    return math.sqrt((models * found**2 + SHRINK * parent**2) / (models + SHRINK))


def make_examples(rows: Sequence[Asked], guess: Certainty, *, most: int | None = None) -> list[Example]:
    """`most`: examples of one fold, evenly over its rows; None: all."""
    shipped = [row for row in rows if not row.untaught]
    examples: list[Example] = []
    # Scales do not look at the errors of single runs.
    scaled = Scaled(rows, guess, with_cells=most is None)
    stacks = _by_stack(shipped)
    everything = {name: _experience(own, scaled) for name, own in stacks.items()}
    for publisher in sorted({row.publisher for row in rows}):
        rest = {name: [row for row in own if row.publisher != publisher] for name, own in stacks.items()}
        known = {
            name: everything[name] if len(own) == len(stacks[name]) else _experience(own, scaled)
            for name, own in rest.items()
            if own
        }
        left = [row for row in rows if row.untaught and row.publisher == publisher]
        examples += _pose(_thin(left, most), known, scaled, fold="publisher", left=publisher)
    for stack, own in sorted(stacks.items()):
        if len(own) < ENOUGH:
            continue
        folds = list(_folds(own))
        number = sum(fold != "" for fold, *_ in folds) + 1
        for fold, name, left, gone in folds:
            known = {**everything, stack: _experience([row for row in own if id(row) not in gone], scaled)}
            share = (1.0 if fold else len(left) / len(own)) / number
            thinned = _thin(left, most if fold or most is None else math.ceil(most / TENTHS))
            examples += _pose(thinned, known, scaled, fold=fold, left=f"{stack}: {name}", share=share)
    return examples


def _thin(rows: Sequence[Asked], most: int | None) -> list[Asked]:
    if most is None or len(rows) <= most:
        return list(rows)
    return [rows[i] for i in sorted({round(x) for x in np.linspace(0, len(rows) - 1, most)})]


def _folds(own: Sequence[Asked]) -> Iterator[tuple[str, str, list[Asked], set[int]]]:
    """(what is left out, which one, its rows, all rows that are away for it) inside one stack; "": a tenth of them, so that
    nothing is new."""
    for number in range(TENTHS):
        if tenth := list(own[number::TENTHS]):
            yield "", f"tenth {number}", tenth, set(map(id, tenth))
    for facet, value_of in FACETS.items():
        for value in sorted({value_of(row) for row in own}):
            left = [row for row in own if value_of(row) == value] if value or facet != "version" else []
            if left and len(own) - len(left) >= ENOUGH:
                yield facet, value, left, set(map(id, left))
    for axis in sorted({axis for row in own for axis in row.setting.axes}):
        left = [row for row in own if axis in row.setting.axes]
        if len(own) - len(left) >= ENOUGH:
            yield "axis", axis, left, set(map(id, left))
    most = max(row.setting.num_devices for row in own)
    for limit in (most // 2, most // 4, most // 16):
        left = [row for row in own if row.setting.num_devices > limit >= 1]
        if left and len(own) - len(left) >= ENOUGH:
            yield "scale", f"above {limit}", left, set(map(id, left))
    yield from _pairs(own)


def _pairs(own: Sequence[Asked]) -> Iterator[tuple[str, str, list[Asked], set[int]]]:
    """A device and a model that are both new."""
    pairs = sorted({(row.setting.device, row.workload) for row in own})
    found = []
    for device, model in pairs:
        gone = {id(row) for row in own if row.setting.device == device or row.workload == model}
        if len(own) - len(gone) >= ENOUGH:
            left = [row for row in own if row.setting.device == device and row.workload == model]
            found.append(("device and model", f"{device}, {model}", left, gone))
    yield from (found[place] for place in _evenly(len(found), MOST_PAIRS))


def _evenly(number: int, most: int) -> list[int]:
    return sorted({round(x) for x in np.linspace(0, number - 1, min(number, most))})


def _pose(
    rows: Sequence[Asked], known: Mapping[str, Experience], scaled: Scaled, *, fold: str, left: str, share: float = 1.0
) -> list[Example]:
    made = []
    everything = join_all(known)
    for row in rows:
        own = known.get(row.setting.stack)
        made.append(
            Example(
                row=row,
                fold=fold,
                left=left,
                stack=row.setting.stack,
                novelty=list_novelty(row.setting, known, everything=everything),
                own=own or Experience(),
                sensitivity=scaled.sensitivity(row),
                weight=share / len(rows),
            )
        )
    return made


@dataclass(frozen=True, slots=True)
class Form:
    """Examples as arrays: how scales follow from the values that are fitted."""

    names: tuple[str, ...]
    novelty: Array
    own: Array
    """Two columns, for the sides; 0: the stack is new."""
    usual: Array
    parts: Array
    """(example, part, side)."""

    @classmethod
    def of(cls, examples: Sequence[Example]) -> "Form":
        names = tuple(examples[0].sensitivity)
        return cls(
            names=names,
            novelty=np.array([one.novelty for one in examples]),
            own=np.array([one.own.log_sigma for one in examples]),
            usual=np.array([one.own.usual for one in examples]),
            parts=np.array([[one.sensitivity[name] for name in names] for one in examples]),
        )

    def unpack(self, values: Array) -> tuple[Array, Array, Array, Array]:
        """(base, share, factors, gains)."""
        number = 4 + 2 * len(FEATURES)
        factors, gains = values[4:number].reshape(-1, 2), values[number:].reshape(-1, 2)
        return np.exp(values[:2]), values[2:4], factors, gains

    def pack(self, found: Certainty, factors: Array) -> Array:
        gains = np.array([found.gains[name] for name in self.names])
        return np.concatenate([np.log(found.base), found.share, factors.ravel(), gains.ravel()])

    def scales(self, values: Array) -> Array:
        """Of either side, for each example."""
        base, share, factors, gains = self.unpack(values)
        parts = np.sqrt(base[None, :] ** 2 + ((gains * self.parts) ** 2).sum(axis=1))
        known = self.own * (parts / self.usual) ** share[None, :]
        added = self.novelty @ np.expm1(2 * factors)
        wider = np.sqrt(known**2 + added * known.prod(axis=1, keepdims=True))
        return np.asarray(np.where(self.own > 0, wider, parts * np.sqrt(1 + added)))

    def pull_back(self, values: Array, slopes: Array) -> Array:
        """What a change of each value does, from what changes of the logs of all scales do."""
        base, share, factors, gains = self.unpack(values)
        squares = base[None, :] ** 2 + ((gains * self.parts) ** 2).sum(axis=1)
        known = self.own > 0
        slopes, by_factor = self._before_novelty(np.sqrt(squares), share, factors, slopes)
        # Of the logs of the scales by the log of what the parts add up to.
        power = np.where(known, share[None, :], 1.0)
        by_base = slopes * power * base[None, :] ** 2 / squares
        by_share = np.where(known, slopes * (0.5 * np.log(squares) - np.log(self.usual)), 0.0)
        by_gain = (slopes * power / squares)[:, None, :] * gains[None, :, :] * self.parts**2
        return np.concatenate(
            [by_base.sum(axis=0), by_share.sum(axis=0), by_factor.ravel(), by_gain.sum(axis=0).ravel()]
        )

    def _before_novelty(self, parts: Array, share: Array, factors: Array, slopes: Array) -> tuple[Array, Array]:
        """The slopes by the logs of the scales without what is new, and by the factors of that."""
        added = self.novelty @ np.expm1(2 * factors)
        alone = self.own * (parts / self.usual) ** share[None, :]
        middle = alone.prod(axis=1, keepdims=True)
        square = alone**2 + added * middle
        is_known = self.own > 0
        over = np.divide(slopes, square, out=np.zeros_like(slopes), where=is_known)
        both = (added * over).sum(axis=1, keepdims=True)
        inner = np.where(is_known, alone**2 * over + middle / 2 * both, slopes)
        by_added = np.where(is_known, middle * over, slopes / (1 + added))
        return inner, (self.novelty.T @ by_added) * np.exp(2 * factors)

    def read(self, values: Array) -> Certainty:
        base, share, factors, gains = self.unpack(values)
        return Certainty(
            base=(float(base[0]), float(base[1])),
            share=(float(share[0]), float(share[1])),
            factors=dict.fromkeys((NEW_STACK, KNOWN_STACK), _as_sides(factors)),
            gains={name: (float(low), float(high)) for name, (low, high) in zip(self.names, gains, strict=True)},
        )


def _as_sides(values: Array) -> tuple[Sides, ...]:
    return tuple((float(low), float(high)) for low, high in values)


WIDER = 0.05
"""What is new always widens an interval, by this log factor at least, also where the few runs that show it happen to err less."""


def find_values(examples: Sequence[Example]) -> Certainty:
    """Base scales, shares, factors and gains."""
    form = Form.of(examples)
    errors = np.array([one.row.error for one in examples])
    weights = OBSERVATIONS * np.array([one.weight for one in examples])
    side, places = (errors > 0).astype(int), np.arange(len(errors))
    numbers = (2, 2, 2 * len(FEATURES), 2 * len(form.names))
    gain, gain_sigma = GAINS[examples[0].row.quantity]
    middle = np.repeat([math.log(BASE), SHARE, PRIOR, gain], numbers)
    spread = np.repeat([BASE_SIGMA, SHARE_SIGMA, PRIOR_SIGMA, gain_sigma], numbers)

    def loss(values: Array) -> tuple[float, Array]:
        scales = form.scales(values)
        square = (errors / scales[places, side]) ** 2 / FREEDOM
        likelihood = -(FREEDOM + 1) / 2 * np.log1p(square) - np.log(scales.mean(axis=1))
        slopes = scales / scales.sum(axis=1, keepdims=True)
        slopes[places, side] -= (FREEDOM + 1) * square / (1 + square)
        gradient = form.pull_back(values, weights[:, None] * slopes) + (values - middle) / spread**2
        return float(-(weights * likelihood).sum() + 0.5 * (((values - middle) / spread) ** 2).sum()), gradient

    bounds = [(math.log(0.03), 0.0)] * 2 + [(0.0, 1.0)] * 2 + [(WIDER, 1.5)] * numbers[2] + [(0.0, 4.0)] * numbers[3]
    return form.read(optimize.minimize(loss, middle, jac=True, method="L-BFGS-B", bounds=bounds).x)


@dataclass(slots=True)
class Fits:
    """Tables of one quantity, each fitted without some publishers. Scales are found once for each set of them."""

    rows: Sequence[Asked]
    known: dict[frozenset[str], Certainty] = dataclasses.field(default_factory=dict)

    @property
    def publishers(self) -> list[str]:
        return sorted({row.publisher for row in self.rows})

    def rest(self, left: frozenset[str]) -> list[Asked]:
        return [row for row in self.rows if row.publisher not in left]

    def scales(self, left: frozenset[str]) -> Certainty:
        """Scales of stacks and gains in turn."""
        if left not in self.known:
            rows = self.rest(left)
            found = first_guess(rows)
            for _ in range(ROUNDS):
                found = find_values(make_examples(rows, found, most=MOST_EXAMPLES))
            self.known[left] = dataclasses.replace(
                found, known=gather([row for row in rows if not row.untaught], found)
            )
        return self.known[left]

    def prepare(self, left: frozenset[str] = frozenset()) -> tuple[Certainty, list[Example]]:
        """With the quantiles of error over scale."""
        found = self.scales(left)
        examples = make_examples(self.rest(left), found)
        scaled = scale_errors(examples, found)
        for one in sorted({one.row.publisher for one in examples}):
            # The scale of a publisher's own errors is what the others say of it.
            others = self.scales(left | {one})
            own = [
                i for i, example in enumerate(examples) if example.fold == "publisher" and example.row.publisher == one
            ]
            scaled[own] = scale_errors([examples[i] for i in own], others)
        return dataclasses.replace(found, quantiles=find_quantiles(examples, scaled)), examples

    def fit(self, left: frozenset[str] = frozenset()) -> tuple[Certainty, list[Example]]:
        """And with kinds of novelty held, and what remains once something was measured."""
        found, examples = self.prepare(left)
        found = stretch(found, examples)
        # Promises for memory did not hold for publishers left out, so none is made.
        given = find_given(examples, found) if self.rows[0].quantity == STEP else {}
        given_tables = {name: table for name, (table, _) in given.items()}
        return dataclasses.replace(found, given=given_tables, apart=find_apart(examples)), examples


def find_apart(examples: Sequence[Example]) -> float:
    """How far publishers are from each other where the host, which runs of a stack tell first, hardly counts: the standard
    deviation, by the median of their sizes, of median log errors of publishers, each forecast without what it taught."""
    errors: dict[str, list[float]] = defaultdict(list)
    for one in examples:
        if one.fold == "publisher" and one.row.quantity == STEP and one.row.host < HOST_SHARE:
            errors[one.row.publisher].append(one.row.error)
    medians = [float(np.median(own)) for own in errors.values() if len(own) >= FEW]
    return NORMAL_MEDIAN * float(np.median(np.abs(medians))) if medians else 0.0


def scales_of(one: Example, certainty: Certainty) -> Sides:
    """The scale of the stack's own errors is that without the rows that were left out."""
    return dataclasses.replace(certainty, known={one.stack: one.own}).scales(one.novelty, one.sensitivity, one.stack)


def scale_errors(examples: Sequence[Example], certainty: Certainty) -> Array:
    return np.array([one.row.error / scales_of(one, certainty)[int(one.row.error > 0)] for one in examples])


def find_quantiles(examples: Sequence[Example], scaled: Array) -> dict[str, Quantiles]:
    models = _count_models(examples)
    weights = np.array([one.weight * models[one.stack] for one in examples])
    sorts = np.array([sort_of(one.novelty) for one in examples])
    table = {"": _as_quantiles(_weighted_quantiles(scaled, weights, np.array(LEVELS)), len(examples))}
    for sort in sorted(set(sorts)):
        own = sorts == sort
        groups = [examples[place].row.publisher for place in np.flatnonzero(own).tolist()]
        if sort == NEW_STACK and len(set(groups)) > 2:
            apart = APART[examples[0].row.quantity]
            values = publisher_quantiles(scaled[own], groups, apart) * stretch_publishers(scaled[own], groups)
        else:
            values = _weighted_quantiles(scaled[own], weights[own], np.array(LEVELS))
        table[str(sort)] = _as_quantiles(values, int(own.sum()))
    return table


def stretch(found: Certainty, examples: Sequence[Example]) -> Certainty:
    """With kinds of novelty held by the rule."""
    kinds = Kinds.of(found, examples)
    return kinds.stretch(found) if kinds else found


@dataclass(frozen=True, slots=True)
class Kinds:
    """Left-out runs of known stacks, by the kind of what is new about them."""

    form: "Form"
    errors: Array
    folds: NDArray[np.str_]
    weights: Array
    ends: Array
    """As `unscaled`, before quantiles of few runs are widened."""
    numbers: Array
    """As how many runs those of the stack count."""

    @classmethod
    def of(cls, found: Certainty, examples: Sequence[Example]) -> "Kinds | None":
        known = _thin_folds([one for one in examples if one.own.has_scale and one.fold in KINDS])
        if not known:
            return None
        ends, numbers = unscale(known, found)
        return cls(
            form=Form.of(known),
            errors=np.array([one.row.error for one in known]),
            folds=np.array([one.fold for one in known]),
            weights=_kind_weights(known, examples),
            ends=ends,
            numbers=numbers,
        )

    def stretch(self, found: Certainty) -> Certainty:
        """With factors of known stacks such that intervals of every kind of novelty hold as many errors on either side as they
        say (Mondrian conformal prediction, Vovk 2005): likelihood alone prefers a narrow scale with long tails. Errors of all
        kinds count beside those of a kind, so what few runs show changes little."""
        factors = np.array(found.factors[KNOWN_STACK])
        ends = self.ends * (1 + beliefs().small_sample / self.numbers[:, None])
        for _ in range(STRETCHES):
            for kind, names in KINDS.items():
                places = [FEATURES.index(name) for name in names]
                new = self.form.novelty[:, places].sum(axis=1)
                own = (self.folds == kind) & (new > 0)
                if own.any():
                    amount = float(np.average(new[own], weights=self.weights[own]))
                    scales = self.form.scales(self.form.pack(found, factors))
                    more = self._lacks(own, ends * scales) / amount
                    more = np.clip(more, -MOST_STRETCH, MOST_STRETCH)
                    factors[places] = np.maximum(WIDER, factors[places] + more)
        return dataclasses.replace(found, factors={**found.factors, KNOWN_STACK: _as_sides(factors)})

    def _lacks(self, own: NDArray[np.bool_], ends: Array) -> Array:
        """The log of what ends of one kind must be multiplied by on either side."""
        over = _over_ends(self.errors, ends)
        parent = math.sqrt(PARENT_RUNS) / self.weights.sum()
        weights = np.where(own, self.weights, self.weights * parent)
        level = np.array([(1 + COVERAGE) / 2])
        needed = [float(_weighted_quantiles(over[:, side], weights, level)[0]) for side in (0, 1)]
        return np.log(np.maximum(SMALL, needed))


def _over_ends(errors: Array, ends: Array) -> Array:
    """Errors over the end of the interval on either side, which is 1 where an error lies on it."""
    return np.asarray(errors[:, None] * np.array([-1.0, 1.0]) / ends)


def _thin_folds(examples: Sequence[Example]) -> list[Example]:
    """At most `MOST_EXAMPLES` of one fold, which weigh as much as all."""
    folds: dict[tuple[str, str], list[Example]] = defaultdict(list)
    for one in examples:
        folds[one.fold, one.left].append(one)
    made = []
    for own in folds.values():
        thinned = [own[place] for place in _evenly(len(own), MOST_EXAMPLES)]
        made += [dataclasses.replace(one, weight=one.weight * len(own) / len(thinned)) for one in thinned]
    return made


def _kind_weights(known: Sequence[Example], examples: Sequence[Example]) -> Array:
    """Within a kind of novelty a stack counts by the root of the number of its runs, whatever the number of its folds: errors of
    one stack go together."""
    whole: dict[tuple[str, str], float] = defaultdict(float)
    for one in known:
        whole[one.fold, one.stack] += one.weight
    numbers = Counter(one.stack for one in examples if one.fold == "")
    return np.array([one.weight / whole[one.fold, one.stack] * math.sqrt(numbers[one.stack]) for one in known])


def unscale(examples: Sequence[Example], certainty: Certainty) -> tuple[Array, Array]:
    """How many scales both ends of an interval are from the forecast, beside what the stack's other runs say and before quantiles
    of few runs are widened; and as how many runs those count."""
    ends, numbers = np.zeros((len(examples), 2)), np.full(len(examples), math.inf)
    for place, one in enumerate(examples):
        table = certainty.quantiles[sort_of(one.novelty)]
        if one.own.cells:
            table = mix_quantiles(table, one.own, one.row.setting)
            numbers[place] = count_near(one.own, one.row.setting)
        errors = table.errors()
        low, high = (errors.quantile(level) for level in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
        ends[place] = max(SMALL, -low), max(SMALL, high)
    return ends / (1 + beliefs().small_sample / numbers[:, None]), numbers


def _count_models(examples: Sequence[Example]) -> dict[str, int]:
    models: dict[str, set[str]] = defaultdict(set)
    for one in examples:
        models[one.stack].add(one.row.workload)
    return {name: len(own) for name, own in models.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """How far apart publishers are taken to be, in scales, before a quantity's own are looked at, as if found from some more."""

    sigma: float = 0.0
    publishers: int = 0


APART = {STEP: Apart(), MEMORY: Apart(sigma=0.4, publishers=2)}
"""Four publishers of memory do not say how far publishers are apart. The ten of steps do: by 0.33 to 0.40 scales, whichever of
them is left out."""


def publisher_quantiles(scaled: Array, publishers: Sequence[str], apart: Apart = APART[STEP]) -> Array:
    """Of one error of a publisher that was never seen: a random effect of publishers, and errors about it."""
    named = np.array(publishers)
    names = sorted(set(publishers))
    middles = np.array([np.median(scaled[named == name]) for name in names])
    rest = scaled - np.array([middles[names.index(name)] for name in publishers])
    weights = np.array([1 / (named == name).sum() for name in publishers])
    number = len(names)
    freedom = number - 1 + apart.publishers
    spread = math.sqrt(((number - 1) * middles.var(ddof=1) + apart.publishers * apart.sigma**2) / freedom)
    within = _weighted_quantiles(rest, weights, GRID)
    effect = middles.mean() + spread * math.sqrt(1 + 1 / number) * stats.t.ppf(GRID, freedom)
    return np.asarray(np.quantile((effect[:, None] + within[None, :]).ravel(), LEVELS))


def stretch_publishers(scaled: Array, publishers: Sequence[str]) -> float:
    """How much wider the quantiles of a new publisher must be for the large ones, each held by those of the others, to be held
    as often as is said on average: few publishers have normal effects."""
    named = np.array(publishers)
    large = [name for name in sorted(set(publishers)) if (named == name).sum() >= LARGE]
    if len(large) < FEWEST_LARGE:
        return 1.0
    needed = []
    for name in large:
        own = named == name
        values = publisher_quantiles(scaled[~own], named[~own].tolist())
        low, high = min(-SMALL, values[LOW]), max(SMALL, values[HIGH])
        needed.append(np.where(scaled[own] < 0, scaled[own] / low, scaled[own] / high))
    for factor in WIDENINGS:
        if np.mean([np.mean(own <= factor) for own in needed]) >= COVERAGE:
            return float(factor)
    return float(WIDENINGS[-1])


def _weighted_quantiles(values: Array, weights: Array, levels: Array) -> Array:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    places = (total - 0.5 * weights[order]) / total[-1]
    return np.asarray(np.interp(levels, places, values[order]))


def _as_quantiles(values: Array, number: int) -> Quantiles:
    return Quantiles(values=tuple(float(value) for value in values), num_rows=number)


def find_given(examples: Sequence[Example], certainty: Certainty) -> dict[str, tuple[Quantiles, float]]:
    """Error over scale that remains once something was measured, by whether the stack is known and by what it was; and which
    share of the measured error is taken away: that which leaves the least, as `learn` shrinks what few runs say."""
    table = {}
    for name, parts in remain(examples, certainty).items():
        if len(parts) >= 2:
            pairs = np.concatenate(list(parts.values()))
            weights = np.concatenate([np.full(len(own), 1 / len(own)) for own in parts.values()])
            share = min(SHARES, key=lambda one: float(weights @ np.abs(pairs[:, 0] - one * pairs[:, 1])))
            rest = pairs[:, 0] - share * pairs[:, 1]
            table[name] = (_as_quantiles(_weighted_quantiles(rest, weights, np.array(LEVELS)), len(rest)), share)
    return table


def remain(examples: Sequence[Example], certainty: Certainty) -> dict[str, dict[str, Array]]:
    """By sort and what was given, then by publisher: the log errors of a run and of what was given, over the scale of the run."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    stacks: dict[tuple[str, str, str], list[Example]] = defaultdict(list)
    for one in examples:
        if one.fold in ("publisher", ""):
            stacks[one.fold, one.row.publisher, one.stack].append(one)
    for (_, publisher, _), own in stacks.items():
        for one in own:
            scales = scales_of(one, certainty)
            for given, error in _measured(one.row, [other.row for other in own]):
                name = f"{sort_of(one.novelty)}: {given}"
                scale = scales[int(one.row.error > error)]
                found[name][publisher].append((one.row.error / scale, error / scale))
    return {name: {publisher: np.array(errors) for publisher, errors in parts.items()} for name, parts in found.items()}


def _measured(row: Asked, own: Sequence[Asked]) -> Iterator[tuple[str, float]]:
    """(what was measured, the log error of its forecast) of what else a publisher ran with the same stack."""
    job = [one for one in own if _job_of(one) == _job_of(row)]
    given = min(job, key=lambda one: (one.setting.num_devices, one.scale))
    if given.setting != row.setting:
        yield GIVEN_JOB, given.error
    beside = [one for one in own if one.setting.device == row.setting.device and one.workload != row.workload]
    if len(beside) >= FEW:
        yield GIVEN_DEVICE, _median(beside, FEW)
    others = [one for one in own if one.setting.device != row.setting.device]
    if len(others) >= ENOUGH:
        yield GIVEN_STACK, _median(others, ENOUGH)


def _job_of(row: Asked) -> tuple[str, ...]:
    return row.workload, row.setting.device, row.setting.precision, row.source


def _median(rows: Sequence[Asked], most: int) -> float:
    picked = sorted({round(x) for x in np.linspace(0, len(rows) - 1, most)})
    return float(np.median([rows[place].error for place in picked]))


# tables


def ends_of(one: Example, certainty: Certainty, coverages: Sequence[float] = (COVERAGE,)) -> list[Sides]:
    """The logs of both ends of an interval for each coverage, by the runs of the stack that were not left out."""
    alone = dataclasses.replace(certainty, known={one.stack: one.own})
    errors = alone.errors(one.novelty, one.sensitivity, one.row.setting)
    ends = [clip_interval(errors.interval(coverage)) for coverage in coverages]
    return [(math.log(low), math.log(high)) for low, high in ends]


def _winkler(errors: Array, low: Array | float, high: Array | float) -> float:
    """The width of the interval, and twenty times what lies outside of it, in logs (Winkler 1972)."""
    outside = np.maximum(0.0, low - errors) + np.maximum(0.0, errors - high)
    return float(np.mean(high - low + 2 / (1 - COVERAGE) * outside))


Left = Mapping[str, Certainty]
"""The table that was fitted without each publisher."""


def leave_out(fits: Fits) -> Left:
    return {name: fits.fit(frozenset({name}))[0] for name in fits.publishers}


def hold(examples: Sequence[Example], left: Left) -> list[Held]:
    """Publishers left out of the fit of the intervals as well; then folds inside stacks, by publisher left out too."""
    asked: dict[str, list[tuple[Example, Certainty]]] = defaultdict(list)
    for one in examples:
        pair = one, left[one.row.publisher]
        if one.fold == "publisher":
            asked[f"publisher {one.row.publisher}"].append(pair)
        else:
            asked[f"known stack, new {one.fold or 'nothing'}"].append(pair)
        if one.fold == "":
            asked[f"as shipped: {one.stack}"].append(pair)
    widths = _one_width(examples)
    return [_hold(name, pairs, widths) for name, pairs in sorted(asked.items())]


def _one_width(examples: Sequence[Example]) -> dict[tuple[str, bool], float]:
    """One width for all, by the publisher that it is found without and by whether publishers are left out: nine of ten errors of
    the other publishers, each of which weighs the same, stay within it."""
    found = {}
    for is_publisher in (False, True):
        own = [one for one in examples if (one.fold == "publisher") == is_publisher]
        names, sizes = np.array([one.row.publisher for one in own]), np.array([abs(one.row.error) for one in own])
        numbers = Counter(names.tolist())
        weights = np.array([1 / numbers[name] for name in names])
        for name in {one.row.publisher for one in examples}:
            rest = names != name
            found[name, is_publisher] = float(_weighted_quantiles(sizes[rest], weights[rest], np.array([COVERAGE]))[0])
    return found


def _hold(name: str, pairs: Sequence[tuple[Example, Certainty]], widths: Mapping[tuple[str, bool], float]) -> Held:
    constant = np.array([widths[one.row.publisher, one.fold == "publisher"] for one, _ in pairs])
    errors = np.array([one.row.error for one, _ in pairs])
    every = np.array([ends_of(one, certainty, MEANT) for one, certainty in pairs])
    ends = {meant: every[:, place].T for place, meant in enumerate(MEANT)}
    low, high = ends[COVERAGE]
    return Held(
        name=name,
        num_rows=len(errors),
        coverage=tuple(float(np.mean((ends[meant][0] <= errors) & (errors <= ends[meant][1]))) for meant in MEANT),
        width=float(np.median(np.exp(high) - np.exp(low))),
        interval_score=_winkler(errors, low, high),
        constant_score=_winkler(errors, -constant, constant),
    )


def probability(certainty: Certainty, one: Verdict, margin: float) -> float:
    if one.setting is None:
        return 0.0
    novelty = list_novelty(one.setting, certainty.known)
    sensitivity = memory_sensitivity(activations=one.activations, beside=one.beside)
    return certainty.errors(novelty, sensitivity, one.setting).probability_below(margin)


def describe(certainty: Certainty) -> dict[str, object]:
    def tabulate(table: Mapping[str, Quantiles]) -> dict[str, object]:
        return {name: {"values": list(one.values), "num_rows": one.num_rows} for name, one in table.items()}

    known = {
        name: {
            key: sorted(value) if isinstance(value, frozenset) else value
            for key, value in dataclasses.asdict(experience).items()
        }
        for name, experience in sorted(certainty.known.items())
    }
    return {
        "base": certainty.base,
        "factors": {sort: dict(zip(FEATURES, own, strict=True)) for sort, own in certainty.factors.items()},
        "gains": certainty.gains,
        "share": certainty.share,
        "apart": certainty.apart,
        "quantiles": tabulate(certainty.quantiles),
        "given": tabulate(certainty.given),
        "known": known,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("-o", "--output", type=Path, default=DOCUMENT)
    parser.add_argument("--asked", type=Path, help="forecasts of the rows: read if the file is there, else written")
    parser.add_argument("--svg", type=Path, help="folder for drawings of the reliability of publishers left out")
    parser.add_argument("--markdown", type=Path, help="page whose tables are made again")
    options = parser.parse_args(arguments)
    asked, verdicts = load(options.asked) if options.asked and options.asked.exists() else ask_all(options.cases)
    if options.asked and not options.asked.exists():
        keep(options.asked, asked, verdicts)
    document: dict[str, object] = {"made_by": "python -m research.fits.intervals ../shared/cases/*.parquet"}
    sections: dict[str, str] = {}
    for quantity in (STEP, MEMORY):
        fits = Fits(rows=[row for row in asked if row.quantity == quantity])
        certainty, examples = fits.fit()
        left = leave_out(fits)
        document[quantity] = describe(certainty)
        held = hold(examples, left)
        sections[f"Intervals of {TITLES[quantity]}"] = tabulate_held(held)
        if options.svg:
            _draw(options.svg / f"reliability-{quantity}.svg", held, quantity)
        if quantity == MEMORY:
            sections["Verdicts"] = tabulate_verdicts(verdicts, partial(_judge, certainty, left))
            sections["Errors of peaks"] = tabulate_peaks(fits.rows)
    for title, body in sections.items():
        sys.stdout.write(f"{title}\n\n{body}\n\n")
    if options.markdown:
        write_page(options.markdown, sections)
    options.output.parent.mkdir(exist_ok=True)
    write_json(options.output, document, indent=1)


TITLES = {STEP: "steps", MEMORY: "peaks of memory"}


def _judge(whole: Certainty, left: Left, one: Verdict) -> tuple[float, float]:
    without = left.get(one.publisher, whole)
    return probability(without, one, one.untaught_margin), probability(whole, one, one.margin)


def _draw(path: Path, held: Sequence[Held], quantity: str) -> None:
    curves = {
        one.name.removeprefix("publisher "): [(0.0, 0.0), *zip(MEANT, one.coverage, strict=True)]
        for one in held
        if one.name.startswith("publisher")
    }
    write_whole(path, draw_reliability(curves, title=f"{quantity}: intervals of publishers left out"))


def draw_reliability(curves: Mapping[str, Sequence[tuple[float, float]]], *, title: str, size: int = 560) -> str:
    """Share of measurements inside an interval against the share that it was meant to hold, a line for each series."""
    inner = size - 110

    def place(meant: float, found: float) -> str:
        return f"{70 + inner * meant:.1f},{size - 60 - inner * found:.1f}"

    body = [
        _text(10, 22, title, size=15, weight="bold"),
        f'<polyline points="{place(0, 0)} {place(1, 1)}" fill="none" stroke="#bbbbbb" stroke-dasharray="4 3"/>',
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        body.append(_text(70 + inner * tick, size - 42, f"{tick:.0%}", anchor="middle"))
        body.append(_text(64, size - 56 - inner * tick, f"{tick:.0%}", anchor="end"))
    body.append(_text(70 + inner / 2, size - 22, "interval that was given", anchor="middle"))
    body.append(_text(70, 42, "measurements inside"))
    for row, ((name, points), colour) in enumerate(zip(curves.items(), _cycle(len(curves)), strict=True)):
        line = " ".join(place(*point) for point in points)
        body.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        body.append(f'<circle cx="{size - 170}" cy="{size - 76 - 16 * row}" r="4" fill="{colour}"/>')
        body.append(_text(size - 160, size - 72 - 16 * row, name))
    return _document(size, size, body)


if __name__ == "__main__":
    main()
