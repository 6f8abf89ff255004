import pytest

from traincast.errors import InvalidInput
from traincast.report._paint import Paint
from traincast.report._table import Table, format_markdown, format_table

TABLE = Table(headings=("name", "n"), rows=(("a|b", "1"), ("longer", "200")), left=frozenset({"name"}))


def test_columns_line_up_whatever_the_colours() -> None:
    paint = Paint(colors=True)
    painted = Table(headings=TABLE.headings, rows=((paint("a|b", "red"), "1"), ("longer", "200")), left=TABLE.left)
    lines = format_table(TABLE).splitlines()
    assert lines[2] == "a|b       1"
    assert lines[3] == "longer  200"
    assert format_table(painted).splitlines()[2].endswith("       1")


def test_markdown_escapes_bars_and_marks_alignment() -> None:
    lines = format_markdown(TABLE).splitlines()
    assert lines == ["| name | n |", "|---|--:|", "| a\\|b | 1 |", "| longer | 200 |"]


def test_a_ragged_row_is_refused() -> None:
    with pytest.raises(InvalidInput, match="1 cells in a table of 2"):
        Table(headings=("a", "b"), rows=(("x",),))
