"""Fits how the error of a forecast grows with what is new about its question, and writes the document that ships.

Run: python -m research.fits.intervals ../shared/cases/*.parquet

Every measured run is asked twice. Once with its source left out: nothing of that source counts as known, and the constants of
its stack are those of plain PyTorch. Once as a user of the shipped package asks: everything counts as known.

The rule: publishers (the first word of a source) are left out whole and weigh the same,
whatever their number of rows. Factors of novelty are not negative. The scale of the log error is fitted by maximum likelihood
of Student's t with four degrees of freedom. Quantiles of error over scale are taken by sort of novelty, and shrunk towards
those of all rows as if 60 of these were added to each sort. A stack with 20 runs or more has the scale of its own errors.

How the rule came about: five forms were compared on these same left-out publishers (one scale or one for each measured stack,
symmetric or not, with and without a cap on the operators' part), and stacks with few runs were made to count as new after their
coverage had been seen. So the printed table is of folds that helped to choose the form, and somewhat optimistic.
The table that it prints leaves each source out of this fit as well (leave-one-source-out).
"""

import argparse
import dataclasses
import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from traincast.accuracy import CaseQuestion, hide_results, parse_case, parse_observation, read_rows, translate
from traincast.catalog import plain_stack
from traincast.errors import TraincastError
from traincast.files import write_json
from traincast.forecast import (
    DOCUMENT,
    FEATURES,
    LEVELS,
    Certainty,
    Engine,
    Experience,
    Quantiles,
    Setting,
    describe_setting,
    list_novelty,
    sort_of,
    tally_program,
)
from traincast.spec import Stack
from traincast.units import NORMAL_90

Array = NDArray[np.float64]
MOST_ROWS = 80
"""Of one source and framework, evenly over the table."""
FREEDOM = 4.0
SHRINKAGE = 60.0
COVERAGE = 0.9
ENOUGH = 20
"""Runs of a stack from which on they say by themselves how far off forecasts for it are."""
LEAST = 0.04
"""Of the log error: no stack is surer than its measurements repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One measured run and what was forecast for it."""

    source: str
    setting: Setting
    operators: float
    error: float
    """The log of measured over forecast."""
    left_out: bool


def ask_all(paths: Sequence[str]) -> list[Asked]:
    engine = Engine()
    found: list[Asked] = []
    for path in paths:
        rows = read_rows(path)
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for index, row in enumerate(rows):
            groups[str(row.get("source")), str(row.get("framework"))].append(index)
        hidden = hide_results(rows)
        for (named, framework), places in groups.items():
            # Tables of one publisher share machines, people and habits, so they are left out together.
            source = named.partition("_")[0]
            kept = [place for place in places if _scores(rows[place])]
            picked = (
                [kept[i] for i in sorted({round(x) for x in np.linspace(0, len(kept) - 1, MOST_ROWS)})] if kept else []
            )
            made = [one for place in picked for one in _ask(engine, rows[place], hidden[place], source)]
            sys.stderr.write(f"{path} {source} {framework}: {len(made)} of {len(kept)} rows\n")
            found += made
    return found


def _scores(row: Mapping[str, object]) -> bool:
    try:
        return parse_observation(row).scores_time
    except TraincastError:
        return False


def _ask(engine: Engine, row: Mapping[str, object], hidden: Mapping[str, object], source: str) -> list[Asked]:
    try:
        question = translate(parse_case(hidden))
        measured = parse_observation(row).step_s or math.nan
        return [
            _answer(engine, question, stack, measured, source, left_out=left_out)
            for stack, left_out in ((question.job.stack, False), (_untaught(question.job.stack), True))
        ]
    except TraincastError:
        return []


def _untaught(stack: Stack) -> Stack:
    """The stack with the constants of its parent: what is known of it without its own runs."""
    if not stack.num_steps:
        return stack
    plain = plain_stack()
    names = ("forward_call_s", "backward_call_s", "optimizer_call_s", "launch_s", "collective_call_s", "ring_step_s",
             "product_factor", "memory_factor", "intra_factor", "inter_factor")  # fmt: skip
    return dataclasses.replace(stack, **{name: getattr(plain, name) for name in names})


def _answer(
    engine: Engine, question: CaseQuestion, stack: Stack, measured_s: float, source: str, *, left_out: bool
) -> Asked:
    job = dataclasses.replace(question.job, stack=stack)
    cluster, plan = question.cluster, question.parallelism
    program = engine.lower(job, cluster, plan)
    estimates = engine.cost(program, job, cluster)
    step_s = engine.simulate(program, estimates, job, cluster).duration_s
    return Asked(
        source=source,
        setting=describe_setting(job, cluster, plan, remember=engine._remember),
        operators=tally_program(program, estimates).operators_log_sigma,
        error=math.log(measured_s / step_s),
        left_out=left_out,
    )


def gather(rows: Sequence[Asked], *, without: str = "") -> dict[str, Experience]:
    """What the rows show, by stack, and how far they were from their forecasts."""
    known: dict[str, Experience] = {}
    errors: dict[str, list[float]] = defaultdict(list)
    unsure: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.source != without and not row.left_out:
            own = row.setting.as_experience()
            known[row.setting.stack] = known.get(row.setting.stack, Experience()).joined(own)
            errors[row.setting.stack].append(abs(row.error))
            unsure[row.setting.stack].append(list_novelty(row.setting, {}, operators=row.operators)[-1])
    return {
        name: dataclasses.replace(
            experience,
            log_sigma=max(LEAST, float(np.quantile(errors[name], COVERAGE)) / NORMAL_90)
            if len(errors[name]) >= ENOUGH
            else 0.0,
            unsure=float(np.mean(unsure[name])),
        )
        for name, experience in known.items()
    }


def describe(rows: Sequence[Asked]) -> tuple[Array, Array, list[str], Array]:
    """Features, errors, sources and weights."""
    everything = gather(rows)
    without = {source: gather(rows, without=source) for source in {row.source for row in rows}}
    features = np.array(
        [
            list_novelty(row.setting, without[row.source] if row.left_out else everything, operators=row.operators)
            for row in rows
        ]
    )
    sources = [row.source for row in rows]
    count: dict[tuple[str, bool], int] = defaultdict(int)
    for row in rows:
        count[row.source, row.left_out] += 1
    weights = np.array([1 / count[row.source, row.left_out] for row in rows])
    return features, np.array([row.error for row in rows]), sources, weights


def fit(features: Array, errors: Array, weights: Array) -> tuple[float, tuple[float, ...]]:
    """The base scale and the factors, from the runs whose publisher was left out."""

    def loss(values: Array) -> float:
        log_scale = values[0] + features @ values[1:]
        ratio = errors / np.exp(log_scale)
        likelihood = -(FREEDOM + 1) / 2 * np.log1p(ratio**2 / FREEDOM) - log_scale
        # A weak pull to nothing new mattering, so that features without rows stay at zero.
        return float(-(weights * likelihood).sum() + 0.05 * (values[1:] ** 2).sum())

    start = np.concatenate([[math.log(0.12)], np.full(features.shape[1], 0.2)])
    bounds = [(math.log(0.03), math.log(1.0))] + [(0.0, 1.5)] * features.shape[1]
    found = optimize.minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
    return float(math.exp(found[0])), tuple(float(value) for value in found[1:])


def find_quantiles(
    certainty: Certainty, rows: Sequence[Asked], features: Array, errors: Array, weights: Array
) -> dict[str, Quantiles]:
    scales = [
        certainty.log_sigma(x, "" if row.left_out else row.setting.stack) for x, row in zip(features, rows, strict=True)
    ]
    scaled = errors / np.array(scales)
    sorts = np.array([sort_of(row) for row in features])
    whole = _weighted_quantiles(scaled, weights)
    table = {"": Quantiles(values=tuple(whole), num_rows=len(errors))}
    for sort in sorted(set(sorts)):
        own = sorts == sort
        number = int(own.sum())
        share = number / (number + SHRINKAGE)
        values = share * _weighted_quantiles(scaled[own], weights[own]) + (1 - share) * whole
        table[str(sort)] = Quantiles(values=tuple(values.tolist()), num_rows=number)
    return table


def _weighted_quantiles(values: Array, weights: Array) -> Array:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    places = (total - 0.5 * weights[order]) / total[-1]
    return np.interp(LEVELS, places, values[order])


def make(rows: Sequence[Asked], features: Array, errors: Array, weights: Array) -> Certainty:
    left = np.array([row.left_out for row in rows])
    base, factors = fit(features[left], errors[left], weights[left])
    plain = Certainty(known=gather(rows), base=base, factors=factors)
    return dataclasses.replace(plain, quantiles=find_quantiles(plain, rows, features, errors, weights))


def score(rows: Sequence[Asked], features: Array, errors: Array, sources: Sequence[str], weights: Array) -> str:
    """Each source left out of the fit of the intervals as well."""
    lines = ["publisher, left out: rows, coverage of 90%, median width, mean interval score beside a constant width"]
    named = np.array(sources)
    left = np.array([row.left_out for row in rows])
    for source in sorted(set(sources)):
        asked, rest = (named == source) & left, named != source
        certainty = make([row for row in rows if row.source != source], features[rest], errors[rest], weights[rest])
        stacks = [row.setting.stack for row in rows if row.source == source and row.left_out]
        pairs = [certainty.interval(x, stack) for x, stack in zip(features[asked], stacks, strict=True)]
        low, high = np.log(np.array(pairs)).T
        constant = np.quantile(np.abs(errors[rest]), COVERAGE)
        own = errors[asked]
        covered = np.mean((low <= own) & (own <= high))
        width = np.median(np.exp(high) - np.exp(low))
        lines.append(
            f"{source}: {asked.sum()}, {covered:.0%}, {width:.0%}, {_winkler(own, low, high):.2f} / "
            f"{_winkler(own, -constant, constant):.2f}"
        )
    return "\n".join(lines)


def _winkler(errors: Array, low: Array | float, high: Array | float) -> float:
    """The width of the interval, and twenty times what lies outside of it, in logs (Winkler 1972)."""
    outside = np.maximum(0.0, low - errors) + np.maximum(0.0, errors - high)
    return float(np.mean(high - low + 2 / (1 - COVERAGE) * outside))


def write(certainty: Certainty, path: Path) -> None:
    known = {
        name: {
            key: sorted(value) if isinstance(value, frozenset) else value
            for key, value in dataclasses.asdict(experience).items()
        }
        for name, experience in sorted(certainty.known.items())
    }
    document = {
        "made_by": "python -m research.fits.intervals ../shared/cases/*.parquet",
        "base": certainty.base,
        "factors": dict(zip(FEATURES, certainty.factors, strict=True)),
        "quantiles": {
            name: {"values": list(one.values), "num_rows": one.num_rows} for name, one in certainty.quantiles.items()
        },
        "known": known,
    }
    path.parent.mkdir(exist_ok=True)
    write_json(path, document, indent=1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("-o", "--output", type=Path, default=DOCUMENT)
    options = parser.parse_args(arguments)
    rows = ask_all(options.cases)
    features, errors, sources, weights = describe(rows)
    certainty = make(rows, features, errors, weights)
    write(certainty, options.output)
    sys.stdout.write(json.dumps(dict(zip(FEATURES, certainty.factors, strict=True)), indent=1) + "\n")
    sys.stdout.write(f"base {certainty.base:.3f}\n{score(rows, features, errors, sources, weights)}\n")


if __name__ == "__main__":
    main()
