"""Pages, output and options speak the field's words: docs/words.toml has the lists, docs/glossary.md the words of our own."""

import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from traincast.cli import make_app

ROOT = Path(__file__).resolve().parents[2]
WORDS = tomllib.loads((ROOT / "docs" / "words.toml").read_text(encoding="utf-8"))
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
OWN = {
    word
    for term in re.findall(r"^\| ([^|]+) \|", GLOSSARY, flags=re.MULTILINE)
    for word in re.findall(r"[a-z0-9]+", term)
}
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(page for folder in ("docs", "research", "benchmarks") for page in sorted((ROOT / folder).rglob("*.md"))),
]
PROGRAMS = [
    path
    for folder in ("src", "tests", "research", "benchmarks", "docs", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".toml") and path.name not in ("words.toml", "test_words.py")
]
WRITTEN = [page for page in PAGES if not page.is_relative_to(ROOT / "research" / "results")]
"""Pages that people write; those of results hold tables with messages of the package."""
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WHERE = ("docs", "output", "help", "source")


def find(kind: str, text: str) -> list[str]:
    """Words of a list that stand in a text, with what to say instead."""
    return [
        f"{found[0]!r}: say {instead}"
        for pattern, instead in WORDS[kind].items()
        for found in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", text, flags=re.IGNORECASE)
    ]


def prose_of(page: Path) -> str:
    """A page without code, links' targets and comments."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", " ", text, flags=re.DOTALL)


def shown_by(page: Path) -> str:
    """What commands print, as a page shows it; tests/docs/test_console.py holds it to the truth."""
    blocks = [text for _, text in FENCED.findall(page.read_text(encoding="utf-8")) if text.startswith("$ traincast ")]
    return "\n".join(re.sub(r"^\$ .*$", "", block, flags=re.MULTILINE) for block in blocks)


def list_commands(command: Any = None, name: str = "traincast") -> Iterator[tuple[str, Any]]:
    command = command or typer.main.get_command(make_app(wanted=None))
    yield name, command
    for own, below in getattr(command, "commands", {}).items():
        yield from list_commands(below, f"{name} {own}")


def prose_of_program(path: Path) -> str:
    """Comments and strings of a program; a document as a whole."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    kinds = (tokenize.COMMENT, tokenize.STRING)
    said = [one.string for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type in kinds]
    return "\n".join(text for text in said if " " in text)  # a word alone is a name, not prose


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_private_words(page: Path) -> None:
    assert find("private", prose_of(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_nothing_of_how_or_when_it_was_made(page: Path) -> None:
    assert find("history", page.read_text(encoding="utf-8")) == []


def test_only_decisions_releases_and_prices_have_dates() -> None:
    """What a page says holds; when somebody found it out is no part of it."""
    dated = {
        page.name: re.findall(r"\b20\d\d-\d\d-\d\d\b", prose_of(page)) for page in WRITTEN if "adr" not in page.parts
    }
    assert {name: dates for name, dates in dated.items() if dates and name != "CHANGELOG.md"} == {}


def test_no_program_says_how_or_when_it_was_made() -> None:
    found = {str(path.relative_to(ROOT)): find("history", prose_of_program(path)) for path in PROGRAMS}
    assert {path: words for path, words in found.items() if words} == {}


@pytest.mark.skipif("output" not in WORDS["covered"], reason="docs/words.toml does not cover output yet")
def test_what_commands_print_has_no_private_words() -> None:
    found = {page.name: find("private", shown_by(page)) for page in PAGES}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.skipif("help" not in WORDS["covered"], reason="docs/words.toml does not cover help texts yet")
def test_help_texts_have_no_private_words() -> None:
    texts = {
        f"{name} {one.name}": getattr(one, "help", "") or ""
        for name, command in list_commands()
        for one in command.params
    }
    texts |= {name: command.help or "" for name, command in list_commands()}
    found = {name: find("private", text) for name, text in texts.items()}
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.skipif("source" not in WORDS["covered"], reason="docs/words.toml does not cover the source yet")
def test_the_source_has_no_private_words() -> None:
    paths = [path for path in PROGRAMS if path.is_relative_to(ROOT / "src")]
    found = {str(path.relative_to(ROOT)): find("private", prose_of_program(path)) for path in paths}
    assert {path: words for path, words in found.items() if words} == {}


def test_options_are_made_of_words_that_are_in_the_glossary_or_in_use_in_the_field() -> None:
    """A new word is used by the field (add it to docs/words.toml), ours (explain it in docs/glossary.md), or better avoided."""
    known = {*WORDS["field"].split(), *OWN}
    unknown = {
        f"{name} {option}": sorted(words)
        for name, command in list_commands()
        for one in command.params
        for option in (*one.opts, *one.secondary_opts)
        if option.startswith("--") and (words := set(option[2:].removeprefix("no-").split("-")) - known)
    }
    assert unknown == {}


def test_the_lists_are_sound() -> None:
    assert set(WORDS["covered"]) <= set(WHERE)
    field = WORDS["field"].split()
    assert field == sorted(set(field)), "one of each, in order"
    for pattern in (*WORDS["private"], *WORDS["history"]):
        re.compile(pattern)
    assert find("private", "batch 1 x 8 passes x 8 replicas; recompute products, fits with 96%")
