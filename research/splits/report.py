"""A study of splits to tables."""

from collections.abc import Iterator

from research.splits.study import Comparison, FitComparison, SplitStudy
from traincast.report import (
    FIT_HEADINGS,
    TIME_HEADINGS,
    Table,
    fit_cells,
    format_markdown,
    format_table,
    score_cells,
    tabulate,
)


def tabulate_splits(found: SplitStudy) -> Iterator[Table]:
    """What `traincast accuracy` shows, then the baselines; a table without rows is left out."""
    yield from tabulate(found.study)
    tables = [
        _comparisons("step time beside baselines, on the same asked rows", found.baselines),
        _comparisons("step time beside published methods (stored predictions)", found.peers),
        _comparisons("peak memory beside the nominal formula", found.memory),
        _fits("does it fit (nanotron)", found.fit),
    ]
    yield from (table for table in tables if table.rows)


def format_splits(found: SplitStudy) -> str:
    return "\n\n".join(format_table(table) for table in tabulate_splits(found)) + "\n"


def format_splits_markdown(found: SplitStudy) -> str:
    return "\n\n".join(format_markdown(table) for table in tabulate_splits(found)) + "\n"


def _comparisons(title: str, found: tuple[Comparison, ...]) -> Table:
    # A split is named once, where it begins.
    names = ["" if index and found[index - 1].split == one.split else one.split for index, one in enumerate(found)]
    rows = tuple((name, one.method, *score_cells(one.score)) for name, one in zip(names, found, strict=True))
    return Table(
        title=title, headings=("split", "method", *TIME_HEADINGS), rows=rows, left=frozenset({"split", "method"})
    )


def _fits(title: str, found: tuple[FitComparison, ...]) -> Table:
    rows = tuple((one.method, *fit_cells(one.confusion)) for one in found)
    return Table(title=title, headings=("method", *FIT_HEADINGS), rows=rows, left=frozenset({"method"}))
