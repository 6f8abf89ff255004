"""Every command and every program of the page on scheduling is run, and what it shows of the worked month is what is printed."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from traincast.__main__ import main
from traincast.schedule._known import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how-to/schedule.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SHOWN = [text.split("\n", 1) for kind, text in BLOCKS if not kind and text.startswith("$ ")]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]
METADATA = [text for kind, text in BLOCKS if kind == "toml"]


def ask(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(shlex.split(command.removeprefix("$ "))[1:]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "shown",
    [shown for shown in SHOWN if "month" in shown[0] or "day.sacct" in shown[0]],
    ids=lambda shown: shown[0][:60],
)
def test_the_worked_month_is_what_the_command_prints(
    shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    printed = ask(shown[0], capsys)
    # docs/console.py cuts long lines at a word.
    missing = [line for line in shown[1].splitlines() if line.removesuffix(" ...") not in printed]
    assert not missing


def test_the_jobs_of_the_page_are_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers move with the forecasts; rows and columns do not."""
    monkeypatch.chdir(tmp_path)
    exec(compile(PROGRAMS[0], "page", "exec"), {})
    command, shown = next(shown for shown in SHOWN if "jobs.csv" in shown[0])
    printed = ask(command, capsys)
    heading = next(line for line in shown.splitlines() if line.startswith("policy"))
    assert heading.split() == next(line for line in printed.splitlines() if line.startswith("policy")).split()
    for name in ("fifo", "srtf (forecast)", "max-min-perf"):
        assert any(line.startswith(name) for line in printed.splitlines())


def test_the_policy_of_the_page_is_found_by_its_entry_point_and_keeps_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from traincast.testing import check_policy

    (tmp_path / "house_rules.py").write_text(PROGRAMS[1])
    made = tmp_path / "house_rules-1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: house-rules\nVersion: 1\n")
    group, name = re.fullmatch(r'\[project\.entry-points\."([\w.]+)"\]\n(\S+ = "\S+")\n', METADATA[0]).groups()  # type: ignore[union-attr]
    (made / "entry_points.txt").write_text(f"[{group}]\n{name.replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert "small-first" in REGISTRY
        check_policy("small-first")
        command = next(text for kind, text in BLOCKS if not kind and "small-first" in text)
        assert "small-first" in ask(command.strip().replace("100000", "500"), capsys)
    finally:
        sys.modules.pop("house_rules", None)


def test_every_option_of_the_page_is_one_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import fields

    from traincast.cli.schedule import Options, _flag_of

    known = {_flag_of(entry.name) for entry in fields(Options)}
    elsewhere = {"--exclusive", "--engine"}  # of sbatch, and of `traincast batch`
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) - known - elsewhere == set()


def test_the_first_command_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = next(text for kind, text in BLOCKS if not kind)
    assert "fifo" in ask(first.strip().replace("TRACE", "synthetic:50"), capsys)
    assert (tmp_path / "page.html").is_file()
