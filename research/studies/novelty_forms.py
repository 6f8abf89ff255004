"""Forms of what novelty adds to the intervals of known stacks, chosen without the publisher that is reported.

Run: python -m research.studies.novelty_forms ASKED [--markdown research/results/0051-both-sides.md]

ASKED: as `python -m research.fits.intervals CASES --asked ASKED` keeps it. Groups are what was left out of a stack, by publisher.
The rule: for each publisher, of the forms under which no group of 50 runs of the others is held less than 80% of the time, the
one that holds most of these groups 88 to 92% of the time; of equal ones that with the lowest mean log Winkler score (groups of 20
runs or more). Every publisher's runs are asked under tables that were fitted without it.
"""

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.fits.asked import load
from research.fits.intervals import Example, Fits, Form, Kinds, Stretch, _winkler, unscale
from research.output import splice_into
from traincast.forecast import KNOWN_STACK, STEP, WIDEST, Certainty

Array = NDArray[np.float64]
BEGIN, END = "<!-- made by research.studies.novelty_forms -->", "<!-- end of what novelty_forms made -->"
FEWEST, LARGE, LEAST_HELD = 20, 50, 0.8
AIM = (0.88, 0.92)
FORMS: Mapping[str, Stretch] = {
    **{f"likelihood alone, n + {more:.0f}": Stretch(holds=False, small_sample=more) for more in (0.0, 1.0, 2.0, 3.0)},
    "raised only, both sides alike, n + 0 (ADR 49)": Stretch(
        parent_runs=0.0, lowers=False, sided=False, small_sample=0.0
    ),
    "raised only, each side, n + 0": Stretch(lowers=False, small_sample=0.0),
    "both ways, both sides alike, n + 0": Stretch(sided=False, small_sample=0.0),
    **{f"both ways, each side, n + {more:.0f}": Stretch(small_sample=more) for more in (0.0, 1.0, 2.0, 3.0, 5.0)},
    **{
        f"both ways, each side, n + 2, parent of {runs:.0f} runs": Stretch(parent_runs=runs)
        for runs in (0.0, 900.0, 3600.0)
    },
}
"""By name. "n + 2": quantiles of n runs are widened by 2 / n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Of one group of left-out runs."""

    num_rows: int
    winkler: float
    held: float
    width: float


Scores = dict[str, dict[tuple[str, str, str], Score]]
"""By form, then by publisher, what was left out and stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Runs of one publisher, the table that was fitted without it before kinds of novelty were held, and what holds them."""

    publisher: str
    table: Certainty
    kinds: Kinds | None
    form: Form
    errors: Array
    ends: Array
    numbers: Array
    groups: Mapping[tuple[str, str, str], list[int]]
    """By publisher, what was left out and stack."""

    @classmethod
    def of(cls, publisher: str, fits: Fits, examples: Sequence[Example]) -> "Left":
        table, others = fits.prepare(frozenset({publisher}))
        own = [
            one for one in examples if one.row.publisher == publisher and one.own.has_scale and one.fold != "publisher"
        ]
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for place, one in enumerate(own):
            groups[publisher, one.fold or "nothing", one.stack].append(place)
        ends, numbers = unscale(own, table)
        return cls(
            publisher=publisher, table=table, kinds=Kinds.of(table, others), form=Form.of(own),
            errors=np.array([one.row.error for one in own]), ends=ends, numbers=numbers, groups=groups,
        )  # fmt: skip

    def score(self, rule: Stretch) -> dict[tuple[str, str, str], Score]:
        table = self.kinds.stretch(self.table, rule) if self.kinds else self.table
        scales = self.form.scales(self.form.pack(table, np.array(table.factors[KNOWN_STACK])))
        few = 1 + rule.small_sample / self.numbers[:, None]
        low, high = (np.minimum(WIDEST, scales * self.ends * few) * np.array([-1.0, 1.0])).T
        return {key: _score(self.errors[places], low[places], high[places]) for key, places in self.groups.items()}


def _score(errors: Array, low: Array, high: Array) -> Score:
    held = (low <= errors) & (errors <= high)
    return Score(
        num_rows=len(errors),
        winkler=_winkler(errors, low, high),
        held=float(held.mean()),
        width=float(np.median(np.exp(high) - np.exp(low))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Of a form on some publishers."""

    log_score: float
    num_aimed: int
    num_large: int
    least: float

    @classmethod
    def of(cls, scores: Sequence[Score]) -> "Summary":
        large = [one.held for one in scores if one.num_rows >= LARGE]
        return cls(
            log_score=float(np.mean([math.log(one.winkler) for one in scores if one.num_rows >= FEWEST])),
            num_aimed=sum(AIM[0] <= held <= AIM[1] for held in large),
            num_large=len(large),
            least=min(large),
        )


def summarize(found: Scores, *, without: str = "") -> dict[str, Summary]:
    return {
        name: Summary.of([one for (publisher, _, _), one in own.items() if publisher != without])
        for name, own in found.items()
    }


def choose(summaries: Mapping[str, Summary]) -> str:
    """By the rule above."""
    safe = {name: one for name, one in summaries.items() if one.least >= LEAST_HELD} or summaries
    return max(safe, key=lambda name: (safe[name].num_aimed, -safe[name].log_score))


def tabulate(found: Scores) -> str:
    lines = ["| form | mean log score | groups of 50 runs that hold 88 to 92% | least |", "|---|--:|--:|--:|"]
    for name, one in summarize(found).items():
        lines.append(f"| {name} | {one.log_score:.4f} | {one.num_aimed} of {one.num_large} | {one.least:.0%} |")
    lines += ["", "| publisher | the others choose |", "|---|---|"]
    for publisher in sorted({publisher for publisher, _, _ in next(iter(found.values()))}):
        lines.append(f"| {publisher} | {choose(summarize(found, without=publisher))} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("asked", type=Path)
    parser.add_argument("--markdown", type=Path, help="page whose tables are made again")
    options = parser.parse_args(arguments)
    fits = Fits(rows=[row for row in load(options.asked)[0] if row.quantity == STEP])
    _, examples = fits.prepare()
    known = {one.row.publisher for one in examples if one.own.has_scale and one.fold != "publisher"}
    left = [Left.of(name, fits, examples) for name in sorted(known)]
    found = {name: {key: one for own in left for key, one in own.score(rule).items()} for name, rule in FORMS.items()}
    text = tabulate(found)
    sys.stdout.write(f"{text}\n")
    if options.markdown:
        splice_into(options.markdown, text, begin=BEGIN, end=END)


if __name__ == "__main__":
    main()
