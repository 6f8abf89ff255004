"""The map of the house names every room there is, and shows the layers as they are checked."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "layout.md").read_text()


def test_every_room_has_a_line_in_the_map() -> None:
    paths = [path for path in (ROOT / "src" / "traincast").iterdir() if not path.name.startswith(("__", "."))]
    rooms = {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").is_file()}
    named = {name for cell in re.findall(r"\| ([^|]*) \|$", PAGE, flags=re.M) for name in re.findall(r"`(\w+)`", cell)}
    assert rooms == named


def test_every_module_of_the_walk_is_there() -> None:
    walk = PAGE[PAGE.index("## The walk of one forecast") : PAGE.index("## Where does this line go?")]
    named = [name for name in re.findall(r"`([\w/]+\.py)`", walk) if not name.startswith("tests/")]
    assert len(named) > 40
    assert [name for name in named if not (ROOT / "src" / "traincast" / name).is_file()] == []


def test_the_layers_in_the_map_are_those_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.sub("[()]", "", layer) for layer in contracts[0]["layers"]]
    assert "\n".join(layers) in PAGE


def test_an_adr_is_a_page_with_its_date() -> None:
    for path in sorted((ROOT / "docs" / "adr").glob("0*.md")):
        text = path.read_text()
        assert len(text.split()) <= 620, f"{path.name}: results belong to research/results"
        assert re.search(r"20\d\d-\d\d-\d\d", text), f"{path.name}: say when it was decided"
        assert "ecision" in text, f"{path.name}: say what was decided"
