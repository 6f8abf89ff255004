"""Pages of regimes, walks and explanations show what their commands print: the same words but for hints; numbers move."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SAME = 0.9
"""Share of words that must agree: a hint may be worded anew, but no phase, verdict or assumption may be missing."""
PAGES = [
    *sorted((DOCS / "how-to" / "regimes").glob("*.md")),
    DOCS / "tutorials" / "three-walks.md",
    DOCS / "how-to" / "explain.md",
]


def load_console() -> ModuleType:
    spec = importlib.util.spec_from_file_location("console", DOCS / "console.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = load_console()
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(DOCS.parent)
    text = page.read_text()
    blocks, parts = console.BLOCK.findall(text), console.parts_of(text)
    assert blocks, "such a page shows at least one command"
    for command, shown in blocks:
        assert console.compare(shown, console.run(command, parts)) > SAME, f"refresh it: python docs/console.py {page}"
