"""The map names every room there is, and shows the layers as they are checked."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = [re.sub("[()]", "", layer) for layer in CONTRACTS[0]["layers"]]
MOST_WORDS, MOST_DECISIONS, MOST_KB = 620, 25, 250


def test_every_room_has_a_line_in_the_map() -> None:
    paths = [path for path in (ROOT / "src" / "traincast").iterdir() if not path.name.startswith(("__", "."))]
    rooms = {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").is_file()}
    named = {name for cell in re.findall(r"\| ([^|]*) \|$", PAGE, flags=re.M) for name in re.findall(r"`(\w+)`", cell)}
    assert rooms <= named <= {name for layer in LAYERS for name in layer.split(" | ")}


def test_every_module_of_the_walk_is_there() -> None:
    walk = PAGE[PAGE.index("## The walk of one forecast") : PAGE.index("## Where does this line go?")]
    named = [name for name in re.findall(r"`([\w/]+\.py)`", walk) if not name.startswith("tests/")]
    assert named
    assert [name for name in named if not (ROOT / "src" / "traincast" / name).is_file()] == []


def test_the_layers_in_the_map_are_those_that_are_checked() -> None:
    assert "\n".join(LAYERS) in PAGE


def test_a_decision_is_a_page_with_its_date() -> None:
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert len(pages) <= MOST_DECISIONS, "merge what belongs together; superseded ones go"
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert len(text.split()) <= MOST_WORDS, f"{path.name}: results belong to research/results"
        assert re.search(r"^\*Decided 20\d\d-\d\d-\d\d", text, flags=re.M), f"{path.name}: say when it was decided"
        assert "**Decision.**" in text, f"{path.name}: say what was decided"
        assert "**Reason.**" in text, f"{path.name}: say why"


def test_the_pages_can_be_read() -> None:
    """A stranger reads so much and no more; generated tables live in research/results."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
    assert (ROOT / "CHANGELOG.md").stat().st_size <= 20_000
    assert sum(page.stat().st_size for page in (ROOT / "docs").rglob("*.md")) <= MOST_KB * 1000
