"""Numbers that were fitted, measured or looked up stand in documents, not in code."""

import ast
import re
from pathlib import Path

import pytest

from traincast.catalog._constants import DOCUMENTS, constant_groups, constants, read_constants
from traincast.cost._kernels import RULES
from traincast.errors import InvalidInput, UnknownName
from traincast.simulate._reserve import Surroundings

SOURCE = Path(__file__).parents[1] / "src" / "traincast"
PLAIN = {0.0, 0.5, 1.0, 2.0}
ALLOWED: frozenset[tuple[str, float]] = frozenset()
"""(file, number) that may stand in code although it is neither plain nor a power of ten."""


def find_numbers(source: str) -> list[float]:
    """Floats that are no plain arithmetic: not 0, 1/2, 1, 2, and no power of ten."""
    found = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    numbers = [value for value in found if isinstance(value, float) and value not in PLAIN]
    return [value for value in numbers if float(f"{value:e}".split("e")[0]) != 1.0]


@pytest.mark.parametrize("room", ["cost", "simulate"])
def test_no_fitted_number_stands_in_code(room: str) -> None:
    found = {
        (str(file.relative_to(SOURCE)), number)
        for file in (SOURCE / room).rglob("*.py")
        for number in find_numbers(file.read_text())
    }
    assert found - ALLOWED == set()


def test_the_search_tells_a_fitted_number_from_arithmetic() -> None:
    assert sorted(find_numbers("x = 0.5 * y + 1e-12 + 1000.0 + 2.0 + 48.5 + 6.3")) == [6.3, 48.5]


@pytest.mark.parametrize("group", constant_groups())
def test_every_constant_says_what_it_is_and_where_it_is_from(group: str) -> None:
    for name, one in constants(group).items():
        assert re.fullmatch(r"[a-z0-9_-]+", name)
        assert one.unit, name
        assert one.says.endswith("."), name
        assert one.source, name
        if one.command:
            module = re.match(r"python (?:-m )?(\S+)", one.command)
            assert module, one.command
            path = SOURCE.parents[1] / module[1].replace(".", "/").removesuffix("/py")
            assert path.with_suffix(".py").is_file() or path.is_dir(), one.command


def test_every_document_is_read_by_code() -> None:
    source = "".join(file.read_text() for file in SOURCE.rglob("*.py"))
    assert [group for group in constant_groups() if f'"{group}")' not in source] == []


def test_every_rule_of_kernels_is_used_and_every_used_one_is_in_the_document() -> None:
    source = (SOURCE / "cost" / "_kernels.py").read_text()
    assert [name for name in RULES if f'"{name}"' not in source] == []


def test_a_document_with_an_unknown_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCUMENTS / "device_memory.json").read_text().replace('"full"', '"fill"')
    (tmp_path / "typo.json").write_text(text)
    monkeypatch.setattr("traincast.catalog._constants.DOCUMENTS", tmp_path)
    with pytest.raises(InvalidInput, match="unknown key 'fill'"):
        read_constants(Surroundings, "typo")
    with pytest.raises(UnknownName):
        constants("nothing")
