"""A study of errors to tables."""

from collections.abc import Iterator, Mapping

from traincast.accuracy import Accuracy, Confusion, Score, Study
from traincast.report._paint import Paint
from traincast.report._table import PLAIN, Table, format_markdown, format_table

TIME_HEADINGS = ("n", "answered", "mean", "median", "p90", "max", "within 10%", "bias", "coverage", "median width",
                 "interval score", "of one width")  # fmt: skip
_MEMORY_HEADINGS = ("n", "answered", "mean", "median", "p90", "max", "within 10%", "bias")
FIT_HEADINGS = ("fit n", "fit right", "false safe", "refused", "failed otherwise")
"""False safe: of the runs that ran out. Refused: of the runs that ran. Otherwise: a run of no less need ran."""


def tabulate(study: Study) -> Iterator[Table]:
    """The whole, each grouping, memory, fits and refusals; a table without rows is left out."""
    groupings = {"case": {"all": study.whole}, **study.parts}
    tables = [
        *(_times(f"step time by {by}", parts, by) for by, parts in groupings.items()),
        *(_memories(f"memory and fit by {by}", parts, by) for by, parts in groupings.items()),
        Table(
            title="not answered",
            headings=("reason", "rows"),
            rows=tuple((_shorten(reason, 110), f"{count:,}") for reason, count in list(study.refusals.items())[:15]),
            left=frozenset({"reason"}),
        ),
    ]
    return (table for table in tables if table.rows)


def format_study(study: Study, *, paint: Paint = PLAIN) -> str:
    return "\n\n".join(format_table(table, paint=paint) for table in tabulate(study)) + "\n"


def format_study_markdown(study: Study) -> str:
    return "\n\n".join(format_markdown(table) for table in tabulate(study)) + "\n"


def splice(document: str, generated: str, *, begin: str, end: str) -> str:
    """The document with what stands between two marks replaced; a document without marks gets them at its end."""
    block = f"{begin}\n{generated.strip()}\n{end}"
    if begin in document and end in document:
        head, _, rest = document.partition(begin)
        return f"{head}{block}{rest.partition(end)[2]}"
    return f"{document.rstrip()}\n\n{block}\n" if document.strip() else f"{block}\n"


def _times(title: str, parts: Mapping[str, Accuracy], by: str) -> Table:
    rows = tuple((name, *score_cells(one.time)) for name, one in parts.items() if one.time.num_cases)
    return Table(title=title, headings=(by, *TIME_HEADINGS), rows=rows, left=frozenset({by}))


def _memories(title: str, parts: Mapping[str, Accuracy], by: str) -> Table:
    rows = tuple(
        (name, *_memory_cells(one.memory), *fit_cells(one.fit))
        for name, one in parts.items()
        if one.memory.num_answered or one.fit.num_cases
    )
    return Table(title=title, headings=(by, *_MEMORY_HEADINGS, *FIT_HEADINGS), rows=rows, left=frozenset({by}))


def score_cells(one: Score) -> tuple[str, ...]:
    return (
        f"{one.num_cases:,}",
        _percent(one.answered if one.num_cases else None),
        _percent(one.mean, places=1),
        _percent(one.median, places=1),
        _percent(one.p90, places=1),
        _percent(one.max, places=0),
        _percent(one.within_10),
        _percent(one.bias, places=1, sign=True),
        _percent(one.coverage),
        "" if one.median_log_width is None else f"{one.median_log_width:.2f}",
        "" if one.interval_score is None else f"{one.interval_score:.2f}",
        "" if one.constant_score is None else f"{one.constant_score:.2f}",
    )


def _memory_cells(one: Score) -> tuple[str, ...]:
    return score_cells(one)[: len(_MEMORY_HEADINGS)]


def fit_cells(one: Confusion) -> tuple[str, ...]:
    return (
        f"{one.num_cases:,}",
        _percent(one.accuracy, places=1),
        _count(one.false_safe, one.false_safe_rate),
        _count(one.false_alarm, one.false_alarm_rate),
        f"{one.excused:,}" if one.excused else "",
    )


def _count(count: int, share: float | None) -> str:
    return "" if share is None else f"{count:,} ({share:.1%})"


def _percent(share: float | None, *, places: int = 0, sign: bool = False) -> str:
    if share is None:
        return ""
    return f"{share * 100:{'+' if sign else ''},.{places}f}%"


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
