"""Public steps with their publisher left out of every fit: python -m research.studies.left_out [CASES]... [--docs docs]
[--sources NAME...]

For each publisher (the first word of a source) all that is fitted to whole runs is fitted again without its rows: host constants
of its stack (to runs of the same stack by others; else those that a framework is expected to have), the two constants of
sustained kernels, what single workloads were seen to wait, and the widths of intervals. Then its rows are asked. `--docs` writes
what was found without the publisher to accuracy.md, and the same beside the answers as shipped to theory/accuracy-tables.md.
"""

import argparse
import contextlib
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from research.fits.asked import Asked, ask_step
from research.fits.intervals import Fits, ends_of, make_examples
from research.fits.stacks import load_measured
from research.fits.untaught import Untaught, publisher_of
from research.output import splice_into
from traincast.accuracy import Measured, hide_results, parse_case, parse_observation, read_rows, translate
from traincast.errors import TraincastError
from traincast.forecast import Engine

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
TABLES = ("single_gpu", "dp", "llm", "memory", "mlperf")
MOST_ROWS = 250
"""Of one source, evenly over its models, devices and numbers of nodes."""
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


def ask(rows: Mapping[str, list[tuple[Row, Row, float]]], measured: Sequence[Measured]) -> list[Asked]:
    """Every row as the package ships and without what its publisher taught."""
    untaught = Untaught(measured, shipped=Engine())
    asked: list[Asked] = []
    for source, own in rows.items():
        for row, hidden, step_s in own:
            with contextlib.suppress(TraincastError):
                question = translate(parse_case(hidden))
                asked += ask_step(untaught, question, row, step_s)
        sys.stderr.write(f"{source}: {len(own)} rows\n")
    return asked


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
            splice_into(path, table, begin=BEGIN, end=END)


if __name__ == "__main__":
    main()
