"""What pages name is there: files, modules of research, targets of make, commands and their options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from traincast.__main__ import main
from traincast.cli import make_app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "research").rglob("*.md")),
]
PATH = re.compile(
    r"(?<![\w/.-])((?:src|tests|research|benchmarks|examples|docs)/[\w/.-]+\.(?:py|md|json|toml|svg|txt))"
)
MADE_BY_PAGES = {"src/traincast/catalog/_models/perceptron.py", "src/traincast/catalog/data/stacks/our-trainer.toml"}
"""Files that a page tells its reader to write."""
OF_OTHERS = {
    "--time", "--mem", "--gres", "--nodes", "--ntasks-per-node", "--exclusive", "--seeds", "--markdown", "--write", "--again",
    "--jobs", "--reduce-every", "--fast", "--ways",
}  # fmt: skip
"""Options of Slurm, of research and benchmarks, and the one that a page adds."""
NOT_OURS = {"up", "alone", "answers"}
"""Words that follow the program's name in sentences."""


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = set(PATH.findall(text_of(page))) - MADE_BY_PAGES
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(
        r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    )
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_of_research_that_a_page_runs_is_there(page: Path) -> None:
    modules = set(re.findall(r"python -m (research[\w.]*[a-z])", text_of(page)))
    paths = {name: ROOT.joinpath(*name.split(".")) for name in modules}
    missing = [
        name
        for name, path in paths.items()
        if not (path.with_suffix(".py").exists() or (path / "__init__.py").exists())
    ]
    assert missing == []


def test_every_target_of_make_that_a_page_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)", text_of(page))}
    assert named <= targets


def list_options(command: Any) -> Iterator[str]:
    for one in command.params:
        yield from (*one.opts, *one.secondary_opts)
    for below in getattr(command, "commands", {}).values():
        yield from list_options(below)


def test_every_option_that_a_page_names_is_one_of_some_command() -> None:
    known = {*list_options(typer.main.get_command(make_app(wanted=None))), "--help"}
    unknown: dict[str, Path] = {}
    for page in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"):
        # A line that starts another program, a file that is shown, and a diff have options of their own.
        lines = [line for line in text_of(page).splitlines() if "traincast " in line or "`--" in line]
        spoken = [
            word for line in lines if "--emit" not in line for word in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", line)
        ]
        unknown |= {f"{page.name} {word}": page for word in spoken if word not in known | OF_OTHERS}
    assert sorted(unknown) == []


def test_every_command_that_a_page_names_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    commands = set(re.findall(r"\b[a-z]+\b", capsys.readouterr().out))
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which also names what is gone
    named = {
        name
        for page in pages
        for name in re.findall(r"(?:`|^|\$ )traincast ([a-z]+)\b", text_of(page), flags=re.MULTILINE)
    }
    assert named - commands - NOT_OURS == set()
