"""Rows of cells to an aligned text table or to Markdown."""

from collections.abc import Sequence

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.report._paint import Paint, visible_length

PLAIN = Paint()


@noun
class Table:
    """Cells as text, with one heading per column; columns named in `left` are aligned left, the others right."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[str] = frozenset()
    title: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise InvalidInput(f"a row of {len(row)} cells in a table of {len(self.headings)} columns: {row}")


def format_table(table: Table, *, paint: Paint = PLAIN) -> str:
    """Columns padded to their widest cell, headings underlined."""
    widths = [max(visible_length(cell) for cell in column) for column in zip(table.headings, *table.rows, strict=True)]
    is_left = [heading in table.left for heading in table.headings]

    def line(cells: Sequence[str]) -> str:
        padded = (_pad(cell, width, left=left) for cell, width, left in zip(cells, widths, is_left, strict=True))
        return "  ".join(padded).rstrip()

    rule = "─" if paint.blocks else "-"
    lines = [paint(table.title, "bold")] if table.title else []
    lines.append(paint(line(table.headings), "bold"))
    lines.append(paint("  ".join(rule * width for width in widths), "dim"))
    lines.extend(line(row) for row in table.rows)
    return "\n".join(lines)


def format_markdown(table: Table) -> str:
    """A GitHub table; a bar inside a cell is escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join("---" if heading in table.left else "--:" for heading in table.headings) + "|"
    body = [line(table.headings), rule, *(line(row) for row in table.rows)]
    return "\n".join([f"**{table.title}**", "", *body] if table.title else body)


def _pad(cell: str, width: int, *, left: bool) -> str:
    space = " " * (width - visible_length(cell))
    return cell + space if left else space + cell
