"""Forms of what novelty adds to the intervals of known stacks, chosen without the publisher that is reported.

Run: python -m research.studies.novelty_forms ASKED [--markdown research/results/0051-both-sides.md]

ASKED: as `python -m research.fits.intervals CASES --asked ASKED` keeps it. The rule: for each publisher, the form with the lowest
mean log Winkler score on groups of the others (what was left out of a stack, 20 runs or more), among those under which no such
group of 50 runs is held less than 80% of the time. Forms within 0.005 of the lowest are equal; of these the one that holds most
groups of 50 runs 88 to 92% of the time. Every publisher's runs are asked under tables that were fitted without it.
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
from research.fits.intervals import Example, Fits, Form, Stretch, _winkler, stretch, unscaled
from traincast.files import write_whole
from traincast.forecast import KNOWN_STACK, STEP, WIDEST, Certainty
from traincast.report import splice

Array = NDArray[np.float64]
BEGIN, END = "<!-- made by research.studies.novelty_forms -->", "<!-- end of what novelty_forms made -->"
FEWEST, LARGE, LEAST_HELD, EQUAL = 20, 50, 0.8, 0.005
AIM = (0.88, 0.92)
FORMS: Mapping[str, Stretch | None] = {
    "likelihood alone, n + 0": None,
    "raised only, both sides alike, n + 0 (ADR 49)": Stretch(
        parent_runs=0.0, lowers=False, sided=False, small_sample=0.0
    ),
    "raised only, each side, n + 0": Stretch(lowers=False, small_sample=0.0),
    "both ways, both sides alike, n + 0": Stretch(sided=False, small_sample=0.0),
    **{f"both ways, each side, n + {more:.0f}": Stretch(small_sample=more) for more in (0.0, 1.0, 2.0, 3.0, 5.0)},
    **{
        f"both ways, each side, n + 2, parent of {runs:.0f} runs": Stretch(parent_runs=runs)
        for runs in (0.0, 100.0, 3600.0)
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


def score_form(
    rule: Stretch | None, examples: Sequence[Example], left: Mapping[str, tuple[Certainty, list[Example]]]
) -> dict[tuple[str, str, str], Score]:
    """`left`: the table without each publisher before kinds of novelty are held, and its examples."""
    by_publisher: dict[str, list[Example]] = defaultdict(list)
    for one in examples:
        if one.own.has_scale and one.fold != "publisher":
            by_publisher[one.row.publisher].append(one)
    found = {}
    for publisher, own in by_publisher.items():
        table, others = left[publisher]
        table = stretch(table, others, rule) if rule else table
        ends = _ends(own, table, rule.small_sample if rule else 0.0)
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for place, one in enumerate(own):
            groups[publisher, one.fold or "nothing", one.stack].append(place)
        errors = np.array([one.row.error for one in own])
        found |= {key: _score(errors[places], *ends[places].T) for key, places in groups.items()}
    return found


def _ends(examples: Sequence[Example], table: Certainty, small_sample: float) -> Array:
    form = Form.of(examples)
    scales = form.scales(form.pack(table, np.array(table.factors[KNOWN_STACK])))
    sizes = np.minimum(WIDEST, scales * np.array([unscaled(one, table, small_sample) for one in examples]))
    return np.asarray(sizes * np.array([-1.0, 1.0]))


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
    lowest = min(one.log_score for one in safe.values())
    equal = {name: one for name, one in safe.items() if one.log_score <= lowest + EQUAL}
    return max(equal, key=lambda name: (equal[name].num_aimed, -equal[name].log_score))


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
    left = {name: fits.prepare(frozenset({name})) for name in fits.publishers}
    found = {name: score_form(rule, examples, left) for name, rule in FORMS.items()}
    text = tabulate(found)
    sys.stdout.write(f"{text}\n")
    if options.markdown:
        page = options.markdown.read_text(encoding="utf-8")
        write_whole(options.markdown, splice(page, text, begin=BEGIN, end=END))


if __name__ == "__main__":
    main()
