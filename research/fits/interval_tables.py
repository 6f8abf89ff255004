"""How intervals and verdicts held, to the tables of research/results/uncertainty.md."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from research.fits.asked import Asked, Verdict
from research.output import splice_into
from traincast.spec import FIT_CONFIDENCE

BEGIN, END = "<!-- made by research.fits.intervals -->", "<!-- end of what it made -->"
CONFIDENCES = (0.5, 0.6, 0.75, 0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How the intervals of one sort of question held."""

    name: str
    num_rows: int
    coverage: tuple[float, ...]
    """Of 50, 80, 90 and 95% intervals."""
    width: float
    interval_score: float
    constant_score: float

    @property
    def cells(self) -> tuple[str, ...]:
        levels = " / ".join(f"{level:.0%}" for level in self.coverage)
        scores = f"{self.interval_score:.2f} / {self.constant_score:.2f}"
        return self.name, f"{self.num_rows:,}", levels, f"{self.width:.0%}", scores


Judge = Callable[[Verdict], tuple[float, float]]
"""A run to its probability to fit (without its publisher, as shipped)."""


def tabulate_held(held: Sequence[Held]) -> str:
    headings = ("", "n", "coverage of the 50 / 80 / 90 / 95% interval", "median width", "score / one width")
    parts = {
        "Publisher left out: the stack is new": "publisher ",
        "Something of a known stack left out": "known stack, new ",
        "Known stacks, nothing left out": "as shipped: ",
    }
    blocks = []
    for title, head in parts.items():
        own = [one.cells for one in held if one.name.startswith(head)]
        rows = [(cells[0].removeprefix(head), *cells[1:]) for cells in own]
        blocks.append(f"**{title}**\n\n{_table(headings, rows)}")
    return "\n\n".join(blocks)


def tabulate_verdicts(verdicts: Sequence[Verdict], judge: Judge) -> str:
    """Runs that failed and were called safe, and runs that ran and were refused."""
    judged: dict[str, list[tuple[Verdict, tuple[float, float]]]] = defaultdict(list)
    for one in verdicts:
        judged[one.source].append((one, judge(one)))
    headings = (
        "source",
        "ran",
        "refused: left out / shipped",
        "failed for memory",
        "excused",
        "called safe: left out / shipped",
    )
    rows = [_verdict_cells(source, found, FIT_CONFIDENCE) for source, found in sorted(judged.items())]
    every = [pair for found in judged.values() for pair in found]
    rows.append(_verdict_cells("all", every, FIT_CONFIDENCE))
    others = [(f"{level:.0%}", *_verdict_cells("", every, level)[1:]) for level in CONFIDENCES]
    return f"{_table(headings, rows)}\n\n{_table(('confidence, all sources', *headings[1:]), others)}"


def _verdict_cells(
    name: str, found: Sequence[tuple[Verdict, tuple[float, float]]], confidence: float
) -> tuple[str, ...]:
    ran = [chances for one, chances in found if one.ran and not one.disputed]
    failed = [chances for one, chances in found if not one.ran and not one.excused]
    excused = sum(not one.ran and one.excused for one, _ in found)
    refused = _count(ran, lambda chance: chance < confidence)
    safe = _count(failed, lambda chance: chance >= confidence)
    return name, f"{len(ran):,}", refused, f"{len(failed):,}", f"{excused:,}", safe


def _count(chances: Sequence[tuple[float, float]], counts: Callable[[float], bool]) -> str:
    if not chances:
        return "-"
    numbers = [sum(counts(pair[side]) for pair in chances) for side in (0, 1)]
    return " / ".join(f"{number} ({number / len(chances):.1%})" for number in numbers)


def tabulate_peaks(rows: Sequence[Asked]) -> str:
    """Errors of measured peaks with what their publisher taught, and without."""
    headings = ("publisher", "n", "shipped: mean", "median", "p90", "bias", "left out: mean", "median", "p90", "bias")
    made = []
    for name in [*sorted({row.publisher for row in rows}), "all"]:
        own = [row for row in rows if name in (row.publisher, "all")]
        cells = [cell for untaught in (False, True) for cell in _error_cells(own, untaught=untaught)]
        made.append((name, f"{len(own) // 2:,}", *cells))
    return _table(headings, made)


def _error_cells(rows: Sequence[Asked], *, untaught: bool) -> list[str]:
    errors = np.array([math.exp(-row.error) - 1 for row in rows if row.untaught == untaught])
    sizes = np.abs(errors)
    amounts = [sizes.mean(), np.median(sizes), np.quantile(sizes, 0.9)]
    return [*(f"{amount:.1%}" for amount in amounts), f"{errors.mean():+.1%}"]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))


def write_page(path: Path, sections: Mapping[str, str]) -> None:
    """The page with its tables made again."""
    text = "\n\n".join(f"## {title}\n\n{body}" for title, body in sections.items())
    splice_into(path, text, begin=BEGIN, end=END)
