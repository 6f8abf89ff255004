"""Fits how the error of a forecast grows with what is new about its question, and writes the document that ships.

Run: python -m research.fits.intervals ../shared/cases/*.parquet [--asked FILE] [--svg FOLDER]

The rule; ADR 31 says what of it was changed after results had been looked at. Every measured run is asked twice: as the
package ships, and with what its publisher taught taken away (constants of its stack are those of plain PyTorch, constants of
memory their priors).

1. Examples. A publisher (the first word of a source) left out whole: nothing of it counts as known. Inside each stack with 20
   runs or more: each device, architecture, model family, model, precision, network, compiled steps and the larger scales left
   out in turn, where 20 other runs remain. And every stack as it ships.
2. The log of the scale is the stack's own (or one base for a new stack) plus a factor of at least 0 for each thing that is
   new: maximum likelihood of Student's t with four degrees of freedom. A publisher counts as four observations and so does a
   stack, split evenly over what is left out, whatever the number of rows. Factors have a prior of 0.2 +- 0.5: what nobody
   measured is not free.
3. Quantiles of error over scale. Known stack: weighted quantiles of all examples. New stack: errors of one publisher go
   together, so the quantiles are those of a sum: Student's t of the medians of k publishers, with k - 1 degrees of freedom
   and widened by sqrt(1 + 1 / k), and the errors about these medians, every publisher weighing the same.
4. What remains once something was measured: one run of the same job (the smallest), five runs of other models with the same
   stack on the same device, twenty runs of the stack on other devices. The log error of the others, less the (median) error
   of the given.

The tables leave each publisher out of this fit as well. Folds inside a stack have constants of the stack that saw their rows.
"""

import argparse
import dataclasses
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from research.fits.asked import Asked, Verdict, ask_all, keep, load
from traincast.files import write_json, write_whole
from traincast.forecast import (
    DOCUMENT,
    FEATURES,
    GIVEN_DEVICE,
    GIVEN_JOB,
    GIVEN_STACK,
    LEVELS,
    MEMORY,
    ORDINARY_OPERATORS,
    STEP,
    Certainty,
    Experience,
    Quantiles,
    Setting,
    beyond_usual,
    list_novelty,
    sort_of,
)
from traincast.report import draw_reliability
from traincast.spec import FIT_CONFIDENCE
from traincast.units import NORMAL_90

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
GRID = (np.arange(199) + 1) / 200
HEADING = "left out: rows, coverage of 50 / 80 / 90 / 95%, median width, interval score / that of one width"
FACETS: Mapping[str, Callable[[Asked], str]] = {
    "device": lambda row: row.setting.device,
    "architecture": lambda row: row.setting.architecture,
    "family": lambda row: row.setting.family,
    "model": lambda row: row.workload,
    "precision": lambda row: row.setting.precision,
    "network": lambda row: row.setting.network,
    "compiled": lambda row: str(row.setting.compiled),
}
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
FEW = 5
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
    own: float
    """The scale of the stack's own errors; 0: the stack is new."""
    features: tuple[float, ...]
    weight: float = 1.0


def gather(rows: Sequence[Asked]) -> dict[str, Experience]:
    """What the rows show, by stack, and how far they were from their forecasts."""
    known: dict[str, Experience] = {}
    errors: dict[str, list[float]] = defaultdict(list)
    usual: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for row in rows:
        name = row.setting.stack
        known[name] = known.get(name, Experience()).joined(row.setting.as_experience())
        errors[name].append(abs(row.error))
        usual[name].append(_novelty(row, {}))
    return {
        name: dataclasses.replace(
            experience,
            log_sigma=max(LEAST, float(np.quantile(errors[name], COVERAGE)) / NORMAL_90)
            if len(errors[name]) >= ENOUGH
            else 0.0,
            unsure=float(np.mean([one[FEATURES.index("unsure operators")] for one in usual[name]])),
            host=float(np.mean([one[FEATURES.index("host-bound")] for one in usual[name]])),
        )
        for name, experience in known.items()
    }


def _novelty(row: Asked, known: Mapping[str, Experience]) -> tuple[float, ...]:
    return list_novelty(row.setting, known, operators=row.operators, host=row.host)


def make_examples(rows: Sequence[Asked]) -> list[Example]:
    shipped = [row for row in rows if not row.untaught]
    examples: list[Example] = []
    for publisher in sorted({row.publisher for row in rows}):
        known = gather([row for row in shipped if row.publisher != publisher])
        left = [row for row in rows if row.untaught and row.publisher == publisher]
        examples += _pose(left, known, fold="publisher", left=publisher)
    for stack in sorted({row.setting.stack for row in shipped}):
        own = [row for row in shipped if row.setting.stack == stack]
        if len(own) < ENOUGH:
            continue
        folds = list(_folds(own))
        for fold, name, left in folds:
            gone = set(map(id, left))
            known = gather([row for row in shipped if id(row) not in gone] if fold else shipped)
            examples += _pose(left, known, fold=fold, left=f"{stack}: {name}", share=1 / len(folds))
    return examples


def _folds(own: Sequence[Asked]) -> Iterator[tuple[str, str, list[Asked]]]:
    """(what is left out, which one, its rows) inside one stack."""
    yield "", "", list(own)
    for facet, value_of in FACETS.items():
        for value in sorted({value_of(row) for row in own}):
            left = [row for row in own if value_of(row) == value]
            if len(own) - len(left) >= ENOUGH:
                yield facet, value, left
    most = max(row.setting.num_devices for row in own)
    for limit in (most // 2, most // 4, most // 16):
        left = [row for row in own if row.setting.num_devices > limit >= 1]
        if left and len(own) - len(left) >= ENOUGH:
            yield "scale", f"above {limit}", left


def _pose(
    rows: Sequence[Asked], known: Mapping[str, Experience], *, fold: str, left: str, share: float = 1.0
) -> list[Example]:
    made = []
    for row in rows:
        novelty = _novelty(row, known)
        own = known.get(row.setting.stack)
        measured = own is not None and own.log_sigma > 0
        made.append(
            Example(
                row=row,
                fold=fold,
                left=left,
                stack=row.setting.stack,
                novelty=novelty,
                own=own.log_sigma if own is not None and measured else 0.0,
                features=beyond_usual(novelty, own) if own is not None and measured else novelty,
                weight=share / len(rows),
            )
        )
    return made


def fit(examples: Sequence[Example]) -> Certainty:
    """The base scale and the factors; then the quantiles of error over scale."""
    features = np.array([one.features for one in examples])
    own = np.array([one.own for one in examples])
    errors = np.array([one.row.error for one in examples])
    weights = OBSERVATIONS * np.array([one.weight for one in examples])

    def loss(values: Array) -> float:
        log_scale = np.where(own > 0, np.log(np.maximum(own, 1e-9)), values[0]) + features @ values[1:]
        ratio = errors / np.exp(log_scale)
        likelihood = -(FREEDOM + 1) / 2 * np.log1p(ratio**2 / FREEDOM) - log_scale
        prior = 0.5 * (((values[1:] - PRIOR) / PRIOR_SIGMA) ** 2).sum()
        return float(-(weights * likelihood).sum() + prior)

    start = np.concatenate([[math.log(0.12)], np.full(len(FEATURES), PRIOR)])
    bounds = [(math.log(0.03), math.log(1.0))] + [(0.0, 1.5)] * len(FEATURES)
    found = optimize.minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
    base, factors = float(math.exp(found[0])), tuple(float(value) for value in found[1:])
    scales = np.where(own > 0, own, base) * np.exp(features @ found[1:])
    return Certainty(base=base, factors=factors, quantiles=find_quantiles(examples, errors / scales))


def find_quantiles(examples: Sequence[Example], scaled: Array) -> dict[str, Quantiles]:
    weights = np.array([one.weight for one in examples])
    sorts = np.array([sort_of(one.novelty) for one in examples])
    table = {"": _as_quantiles(_weighted_quantiles(scaled, weights, np.array(LEVELS)), len(examples))}
    for sort in sorted(set(sorts)):
        own = sorts == sort
        places = np.flatnonzero(own).tolist()
        groups = [examples[place].row.publisher for place in places]
        if sort == "new stack" and len(set(groups)) > 2:
            values = publisher_quantiles(scaled[own], groups)
        else:
            values = _weighted_quantiles(scaled[own], weights[own], np.array(LEVELS))
        table[str(sort)] = _as_quantiles(values, int(own.sum()))
    return table


def publisher_quantiles(scaled: Array, publishers: Sequence[str]) -> Array:
    """Of one error of a publisher that was never seen: a random effect of publishers, and errors about it."""
    named = np.array(publishers)
    names = sorted(set(publishers))
    middles = np.array([np.median(scaled[named == name]) for name in names])
    rest = scaled - np.array([middles[names.index(name)] for name in publishers])
    weights = np.array([1 / (named == name).sum() for name in publishers])
    number = len(names)
    effect = middles.mean() + middles.std(ddof=1) * math.sqrt(1 + 1 / number) * stats.t.ppf(GRID, number - 1)
    within = _weighted_quantiles(rest, weights, GRID)
    return np.asarray(np.quantile((effect[:, None] + within[None, :]).ravel(), LEVELS))


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
            scale = _scale_of(one, certainty)
            for given, error in _measured(one.row, [other.row for other in own]):
                name = f"{sort_of(one.novelty)}: {given}"
                found[name][publisher].append((one.row.error / scale, error / scale))
    return {name: {publisher: np.array(errors) for publisher, errors in parts.items()} for name, parts in found.items()}


def _scale_of(one: Example, certainty: Certainty) -> float:
    more = math.exp(sum(a * b for a, b in zip(certainty.factors, one.features, strict=True)))
    return (one.own or certainty.base) * more


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


def make(rows: Sequence[Asked]) -> Certainty:
    known = gather([row for row in rows if not row.untaught])
    examples = make_examples(rows)
    certainty = fit(examples)
    # Promises for memory did not hold for publishers left out, so none is made.
    found = find_given(examples, certainty) if rows and rows[0].quantity == STEP else {}
    given = {name: quantiles for name, (quantiles, _) in found.items()}
    return dataclasses.replace(certainty, known=known, given=given)


# tables


def _intervals(certainty: Certainty, examples: Sequence[Example], coverage: float = COVERAGE) -> tuple[Array, Array]:
    pairs = []
    for one in examples:
        # The scale of the stack's own errors is that without the rows that were left out.
        own = Experience(log_sigma=one.own) if one.own else None
        known = {one.stack: own} if own is not None else {}
        table = dataclasses.replace(certainty, known=known)
        novelty = one.features if own is not None else one.novelty
        pairs.append(table.interval(novelty, one.stack, coverage=coverage))
    low, high = np.log(np.array(pairs)).T
    return low, high


def _winkler(errors: Array, low: Array | float, high: Array | float) -> float:
    """The width of the interval, and twenty times what lies outside of it, in logs (Winkler 1972)."""
    outside = np.maximum(0.0, low - errors) + np.maximum(0.0, errors - high)
    return float(np.mean(high - low + 2 / (1 - COVERAGE) * outside))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How the intervals of one sort of question held."""

    name: str
    num_rows: int
    coverage: tuple[float, ...]
    """At each of `MEANT`."""
    width: float
    interval_score: float
    constant_score: float

    def __str__(self) -> str:
        levels = " / ".join(f"{level:.0%}" for level in self.coverage)
        scores = f"{self.interval_score:.2f} / {self.constant_score:.2f}"
        return f"{self.name}: {self.num_rows}, {levels}, {self.width:.0%}, {scores}"


def hold(rows: Sequence[Asked]) -> list[Held]:
    """Publishers left out of the fit of the intervals as well; then folds inside stacks, by publisher left out too."""
    examples = make_examples(rows)
    asked: dict[str, list[tuple[Example, Certainty]]] = defaultdict(list)
    for publisher in sorted({row.publisher for row in rows}):
        certainty = fit(make_examples([row for row in rows if row.publisher != publisher]))
        for one in examples:
            if one.row.publisher == publisher:
                what = (
                    f"publisher {publisher}" if one.fold == "publisher" else f"known stack, new {one.fold or 'nothing'}"
                )
                asked[what].append((one, certainty))
                if one.fold == "":
                    asked[f"as shipped: {one.stack}"].append((one, certainty))
    constant = float(np.quantile([abs(one.row.error) for one in examples], COVERAGE))
    return [_hold(name, pairs, constant) for name, pairs in sorted(asked.items())]


def _hold(name: str, pairs: Sequence[tuple[Example, Certainty]], constant: float) -> Held:
    errors = np.array([one.row.error for one, _ in pairs])
    ends = {meant: np.array([_ends(one, certainty, meant) for one, certainty in pairs]).T for meant in MEANT}
    low, high = ends[COVERAGE]
    return Held(
        name=name,
        num_rows=len(errors),
        coverage=tuple(float(np.mean((ends[meant][0] <= errors) & (errors <= ends[meant][1]))) for meant in MEANT),
        width=float(np.median(np.exp(high) - np.exp(low))),
        interval_score=_winkler(errors, low, high),
        constant_score=_winkler(errors, -constant, constant),
    )


def _ends(one: Example, certainty: Certainty, coverage: float) -> tuple[float, float]:
    low, high = _intervals(certainty, [one], coverage)
    return float(low[0]), float(high[0])


def score_given(rows: Sequence[Asked]) -> list[str]:
    """Whether the promised width after a measurement holds for a publisher that did not help to find it. Widths are medians."""
    lines = ["given: publisher left out, rows, width before, promised after, coverage, width that would have done"]
    examples = make_examples(rows)
    for publisher in sorted({row.publisher for row in rows}):
        rest = [one for one in examples if one.row.publisher != publisher]
        certainty = fit(rest)
        table = find_given(rest, certainty)
        own = [one for one in examples if one.row.publisher == publisher]
        for name, residuals in sorted(remain(own, certainty).items()):
            pairs = residuals[publisher]
            if name not in table or len(pairs) < FEW:
                continue
            quantiles, share = table[name]
            errors = pairs[:, 0] - share * pairs[:, 1]
            fold = "publisher" if name.startswith("new stack") else ""
            asked = [one for one in own if one.fold == fold]
            scale = float(np.median([_scale_of(one, certainty) for one in asked]))
            before = np.median([high - low for low, high in np.exp(np.array(_intervals(certainty, asked)).T)])
            low, high = (quantiles.errors().quantile(level) for level in (0.05, 0.95))
            real = np.exp(scale * np.quantile(errors, 0.95)) - np.exp(scale * np.quantile(errors, 0.05))
            covered = np.mean((low <= errors) & (errors <= high))
            promised = math.exp(scale * high) - math.exp(scale * low)
            lines.append(f"{name}: {publisher}, {len(errors)}, {before:.0%}, {promised:.0%}, {covered:.0%}, {real:.0%}")
    return lines


def score_verdicts(rows: Sequence[Asked], verdicts: Sequence[Verdict]) -> list[str]:
    """Runs that failed and were called safe, and runs that ran and were refused, with the publisher left out and as shipped."""
    lines = [
        f"verdicts at {FIT_CONFIDENCE:.0%}: source, ran, refused left out / shipped; failed, excused, safe left out / shipped"
    ]
    whole = make(rows)
    judged: dict[str, list[tuple[Verdict, bool, bool]]] = defaultdict(list)
    for publisher in sorted({one.publisher for one in verdicts}):
        rest = [row for row in rows if row.publisher != publisher]
        known = gather([row for row in rest if not row.untaught])
        left = dataclasses.replace(fit(make_examples(rest)), known=known)
        for one in verdicts:
            if one.publisher == publisher:
                fits = _says_fits(left, one, one.untaught_margin), _says_fits(whole, one, one.margin)
                judged[one.source].append((one, *fits))
    for source, found in sorted(judged.items()):
        ran = [(left, ship) for one, left, ship in found if one.ran and not one.disputed]
        failed = [(left, ship) for one, left, ship in found if not one.ran and not one.excused]
        excused = sum(not one.ran and one.excused for one, _, _ in found)
        refused = [sum(not pair[i] for pair in ran) for i in (0, 1)]
        safe = [sum(pair[i] for pair in failed) for i in (0, 1)]
        lines.append(
            f"{source}: {len(ran)}, {refused[0]} / {refused[1]}; {len(failed)}, {excused}, {safe[0]} / {safe[1]}"
        )
    return lines


def probability(certainty: Certainty, setting: Setting, margin: float) -> float:
    novelty = list_novelty(setting, certainty.known, operators=ORDINARY_OPERATORS)
    return certainty.errors(novelty, setting.stack).probability_below(margin)


def _says_fits(certainty: Certainty, one: Verdict, margin: float) -> bool:
    return one.setting is not None and probability(certainty, one.setting, margin) >= FIT_CONFIDENCE


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
        "factors": dict(zip(FEATURES, certainty.factors, strict=True)),
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
    options = parser.parse_args(arguments)
    asked, verdicts = load(options.asked) if options.asked and options.asked.exists() else ask_all(options.cases)
    if options.asked and not options.asked.exists():
        keep(options.asked, asked, verdicts)
    document: dict[str, object] = {"made_by": "python -m research.fits.intervals ../shared/cases/*.parquet"}
    for quantity in (STEP, MEMORY):
        rows = [row for row in asked if row.quantity == quantity]
        certainty = make(rows)
        document[quantity] = describe(certainty)
        sys.stdout.write(f"\n{quantity}: base {certainty.base:.3f}\n")
        sys.stdout.write(json.dumps(dict(zip(FEATURES, certainty.factors, strict=True)), indent=1) + "\n")
        held = hold(rows)
        sys.stdout.write(
            f"{HEADING}\n" + "\n".join([*map(str, held), *(score_given(rows) if quantity == STEP else [])]) + "\n"
        )
        if options.svg:
            curves = {
                one.name.removeprefix("publisher "): [(0.0, 0.0), *zip(MEANT, one.coverage, strict=True)]
                for one in held
                if one.name.startswith("publisher")
            }
            title = f"{quantity}: intervals of publishers left out"
            write_whole(options.svg / f"reliability-{quantity}.svg", draw_reliability(curves, title=title))
        if quantity == MEMORY:
            sys.stdout.write("\n".join(score_verdicts(rows, verdicts)) + "\n")
    options.output.parent.mkdir(exist_ok=True)
    write_json(options.output, document, indent=1)


if __name__ == "__main__":
    main()
