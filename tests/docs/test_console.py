"""Pages show what their commands print: the same words but for hints; numbers move. `python docs/console.py` writes them anew."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAME = 0.9
"""Share of words that must agree: a hint may be worded anew, but no phase, verdict or assumption may be missing."""


def load_console() -> ModuleType:
    spec = importlib.util.spec_from_file_location("console", ROOT / "docs" / "console.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["console"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


CONSOLE = load_console()
PAGES = [page for page in CONSOLE.list_pages() if page.name != "schedule.md"]
"""The page on scheduling has a test of its own, which knows the files that its programs write."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_its_commands_print(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", CONSOLE.COLUMNS)
    text = page.read_text(encoding="utf-8")
    with CONSOLE.in_folder_of(text):
        for block in CONSOLE.BLOCK.finditer(text):
            for shown in CONSOLE.split_block(block, text):
                printed = shown.answer()
                assert printed is not None, f"does not run: {shown.command}"
                alike = CONSOLE.compare(shown.text, printed)
                assert alike > SAME, f"refresh it: python docs/console.py {page}: {shown.command}"


def test_every_page_that_shows_a_command_is_looked_at() -> None:
    """A page whose commands are fenced otherwise would never be written anew."""
    found = [page for page in (ROOT / "docs").rglob("*.md") if "\n$ traincast " in page.read_text(encoding="utf-8")]
    assert set(found) <= set(CONSOLE.list_pages())
