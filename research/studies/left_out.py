"""Public steps with their publisher left out of every fit: python -m research.studies.left_out [CASES]... [--docs docs]
[--sources NAME...]

For each publisher (the first word of a source) all that is fitted to whole runs is fitted again without its rows: host constants
of its stack (to runs of the same stack by others; else those that a framework is expected to have), the two constants of
sustained kernels, what single workloads were seen to wait, and the widths of intervals. Then its rows are asked. `--docs` writes
what was found without the publisher to accuracy.md, and the same beside the answers as shipped to theory/accuracy-tables.md.
"""

import argparse
import dataclasses
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.fits.asked import Asked, publisher_of
from research.fits.intervals import Fits, ends_of, make_examples
from research.fits.kernels.steps import LOADS, SHARES, Step, log_errors, read_steps, with_step
from research.fits.stacks import FITTED, MIN_ROWS, ROUNDS, expect_constants, load_measured, thin
from traincast.accuracy import Measured, hide_results, parse_case, parse_observation, read_rows, read_stack, translate
from traincast.cost import Learned, Pricing, default_ops, load_learned, read_constants
from traincast.errors import TraincastError
from traincast.files import write_whole
from traincast.forecast import STEP, Engine, call_seconds, describe_setting, know_step, tally_program, tune
from traincast.report import splice
from traincast.spec import Job, Stack

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
TABLES = ("single_gpu", "dp", "llm", "memory", "mlperf")
MOST_ROWS = 250
"""Of one source, evenly over its models, devices and numbers of nodes."""
MOST_STEPS = 30
"""Of one source in the choice of the two constants of sustained kernels."""
TAUGHT = {"sia": ("deepspeech2",), "lambda": ("maskrcnn",)}
"""Workloads whose waiting was read off runs of a publisher; without it they wait for nothing."""

BEGIN, END = "<!-- made by research.studies.left_out -->", "<!-- end of what left_out made -->"
Row = Mapping[str, Any]


def pick(rows: Sequence[Row], most: int) -> list[int]:
    """Places of rows in turns over models, devices and numbers of nodes, the same in every run."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[tuple(str(row.get(name)) for name in ("model", "gpu", "n_nodes"))].append(place)
    spread = [[own[i] for i in np.random.default_rng(0).permutation(len(own))] for own in groups.values()]
    turns = (place for turn in itertools.zip_longest(*spread) for place in turn if place is not None)
    return sorted(itertools.islice(turns, most))


def read_all(paths: Sequence[str]) -> dict[str, list[tuple[Row, Row, float]]]:
    """By source: a row, the same without its results, and its measured step."""
    found: dict[str, list[tuple[Row, Row, float]]] = defaultdict(list)
    for path in paths:
        rows = read_rows(path)
        for row, hidden in zip(rows, hide_results(rows), strict=True):
            try:
                seen = parse_observation(row)
            except TraincastError:
                continue
            if seen.scores_time and seen.step_s:
                found[str(row.get("source"))].append((row, hidden, seen.step_s))
    return {
        source: [rows[place] for place in pick([row for row, _, _ in rows], MOST_ROWS)]
        for source, rows in sorted(found.items())
    }


def choose_sustained() -> dict[str, Learned]:
    """Operator models without each publisher in the choice of the constants of sustained kernels, by publisher."""
    groups: dict[str, list[Step]] = defaultdict(list)
    for step in read_steps():
        if step.source != "lambda":
            groups[step.source].append(step)
    learned = load_learned()
    grid = list(itertools.product(SHARES, LOADS))
    centres: dict[str, dict[tuple[float, float], float]] = {}
    for source, steps in groups.items():
        own = [steps[i] for i in sorted({round(x) for x in np.linspace(0, len(steps) - 1, MOST_STEPS)})]
        centres[source] = {
            (share, load): float(abs(np.median(log_errors(own, with_step(learned, share=share, load=load)))))
            for share, load in grid
        }
    chosen = {}
    for publisher in {publisher_of(source) for source in groups}:
        kept = [source for source in groups if publisher_of(source) != publisher]
        share, load = min(grid, key=lambda pair: float(np.mean([centres[source][pair] for source in kept])))
        chosen[publisher] = with_step(learned, share=share, load=load)
    return chosen


def fit_without(stack: Stack, publisher: str, rows: Sequence[Measured]) -> Stack:
    """The stack with constants that runs of other publishers give it; where there are too few, with those that a framework is
    expected to have by the stacks of other publishers."""
    others = [row for row in rows if publisher_of(row.case.source or "") != publisher]
    stacks = {(found := read_stack(row.case, [])).name: found for row in others}
    bare = dataclasses.replace(stack, **expect_constants(list(stacks.values())))
    own = [row for row in others if read_stack(row.case, []).name == stack.name]
    if len(own) < MIN_ROWS:
        return bare
    known = []
    for row in thin(own):
        try:
            asked = translate(row.case)
            costs = Pricing(ops=default_ops())
            known.append(know_step(asked.job, asked.cluster, asked.parallelism, row.step_s, costs=costs))
        except TraincastError:
            continue
    tuned = tune(Stack(), known, rounds=ROUNDS, spreads=FITTED)
    constants = {name: value for name, value in read_constants(tuned).items() if name in FITTED}
    return dataclasses.replace(bare, **constants)


def forget(job: Job, stack: Stack, publisher: str) -> Job:
    graph = job.graph
    if graph.name in TAUGHT.get(publisher, ()):
        graph = dataclasses.replace(graph, input_variation=0.0, preparation_s=0.0)
    return dataclasses.replace(job, stack=stack, graph=graph)


def ask(rows: Mapping[str, list[tuple[Row, Row, float]]], measured: Sequence[Measured]) -> list[Asked]:
    """Every row as the package ships and without what its publisher taught."""
    shipped, sustained = Engine(), choose_sustained()
    stacks: dict[tuple[str, str], Stack] = {}
    asked: list[Asked] = []
    for source, own in rows.items():
        publisher = publisher_of(source)
        learned = sustained.get(publisher)
        for row, hidden, step_s in own:
            try:
                question = translate(parse_case(hidden))
                stack = question.job.stack
                key = publisher, stack.name
                if key not in stacks:
                    stacks[key] = fit_without(stack, publisher, measured) if stack.num_steps else stack
                bare = stacks[key]
                without = shipped if learned is None else Engine(costs=Pricing(ops=learned, stack=bare))
                without._remember = shipped._remember
                for untaught, engine in ((False, shipped), (True, without)):
                    job = forget(question.job, bare, publisher) if untaught else question.job
                    asked.append(_answer(engine, job, question, row, step_s, untaught=untaught))
            except TraincastError:
                continue
        sys.stderr.write(f"{source}: {len(own)} rows\n")
    return asked


def _answer(engine: Engine, job: Job, question: Any, row: Row, step_s: float, *, untaught: bool) -> Asked:
    cluster, plan = question.cluster, question.parallelism
    program = engine.lower(job, cluster, plan)
    estimates = engine.cost(program, job, cluster)
    timeline = engine.simulate(program, estimates, job, cluster)
    source = str(row.get("source"))
    tally = tally_program(program, estimates)
    return Asked(
        quantity=STEP,
        publisher=publisher_of(source),
        source=source,
        workload=str(row.get("model")),
        setting=describe_setting(job, cluster, plan),
        operators=tally.operators_log_sigma,
        host=tally.host_share,
        exposed=timeline.shares.get("communication", 0.0),
        bandwidth=timeline.shares.get("memory", 0.0),
        call_s=call_seconds(job.stack),
        activations=0.0,
        beside=0.0,
        step_s=timeline.duration_s,
        error=math.log(step_s / timeline.duration_s),
        untaught=untaught,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Intervals that were fitted without a publisher, for its runs: by source."""

    held: Mapping[str, Sequence[bool]]
    widths: Mapping[str, Sequence[float]]


def fit_intervals(asked: Sequence[Asked]) -> Left:
    fits = Fits(rows=asked)
    examples = [one for one in make_examples(asked, fits.scales(frozenset())) if one.fold == "publisher"]
    held: dict[str, list[bool]] = defaultdict(list)
    widths: dict[str, list[float]] = defaultdict(list)
    for publisher in fits.publishers:
        certainty, _ = fits.fit(frozenset({publisher}))
        for one in examples:
            if one.row.publisher == publisher:
                low, high = ends_of(one, certainty)[0]
                held[one.row.source].append(low <= one.row.error <= high)
                widths[one.row.source].append(math.exp(high) - math.exp(low))
    return Left(held=held, widths=widths)


def tabulate_errors(asked: Sequence[Asked]) -> str:
    """Errors as shipped and without the publisher, a line for each source."""
    every = sorted({row.source for row in asked})
    rows = [
        (source, str(sum(row.untaught and row.source == source for row in asked)),
         *_cells(asked, [source], untaught=False), *_cells(asked, [source], untaught=True))
        for source in every
    ]  # fmt: skip
    return _table(BOTH, rows)


LEFT_OUT = ("source", "n", "mean", "median", "p90", "bias", "interval holds", "median width")
BOTH = ("source", "n", "shipped: mean", "median", "p90", "bias", "left out: mean", "median", "p90", "bias")


def tabulate(asked: Sequence[Asked], left: Left) -> tuple[str, str]:
    """(what was found without the publisher, the same beside the answers as shipped), a line for each source."""
    every = sorted({row.source for row in asked})
    groups = {**{source: [source] for source in every}, "all, a source counts once": every}
    alone, both = [], []
    for name, sources in groups.items():
        number = str(sum(row.untaught and row.source in sources for row in asked))
        found = _cells(asked, sources, untaught=True)
        covered = float(np.mean([np.mean(left.held[source]) for source in sources]))
        width = float(np.mean([np.median(left.widths[source]) for source in sources]))
        alone.append((name, number, *found, f"{covered:.0%}", f"{width:.0%}"))
        both.append((name, number, *_cells(asked, sources, untaught=False), *found))
    return _table(LEFT_OUT, alone), _table(BOTH, both)


def _cells(asked: Sequence[Asked], sources: Sequence[str], *, untaught: bool) -> list[str]:
    """Mean, median, p90 and bias, every source weighing the same."""
    found = []
    for source in sources:
        errors = np.expm1([-row.error for row in asked if row.source == source and row.untaught == untaught])
        sizes = np.abs(errors)
        found.append((sizes.mean(), np.median(sizes), np.quantile(sizes, 0.9), errors.mean()))
    mean, median, tail, bias = np.mean(found, axis=0)
    return [f"{mean:.1%}", f"{median:.1%}", f"{tail:.1%}", f"{bias:+.1%}"]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[str(CASES / f"{name}.parquet") for name in TABLES])
    parser.add_argument("--docs", type=Path, help="folder of the pages whose tables are made again")
    parser.add_argument(
        "--sources", nargs="*", default=(), help="sources or publishers to ask about; all if none is named"
    )
    options = parser.parse_args(arguments)
    rows = {
        source: own
        for source, own in read_all(options.cases).items()
        if not options.sources or source in options.sources or publisher_of(source) in options.sources
    }
    asked = ask(rows, load_measured(options.cases))
    if options.sources:
        # Widths are what all publishers say, so a few rows have errors alone.
        sys.stdout.write(f"{tabulate_errors(asked)}\n")
        return
    alone, both = tabulate(asked, fit_intervals(asked))
    sys.stdout.write(f"{alone}\n\n{both}\n")
    if options.docs:
        for name, table in (("accuracy.md", alone), ("theory/accuracy-tables.md", both)):
            path = options.docs / name
            write_whole(path, splice(path.read_text(encoding="utf-8"), table, begin=BEGIN, end=END))


if __name__ == "__main__":
    main()
