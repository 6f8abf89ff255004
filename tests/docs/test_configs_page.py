"""The commands of the page on configurations run, and print what the page shows. TRAINCAST_UPDATE_DOCS=1 writes it anew."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from traincast.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "configs.md"
FILES = ROOT / "tests" / "configs" / "files"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)


def words_of(text: str) -> list[str]:
    """Without numbers and lines, so that a better forecast or a narrower window is no other page."""
    return re.findall(r"[A-Za-z_]{3,}", text)


def run(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    program, *words = shlex.split(command)
    assert program == "traincast"
    assert main(words) == 0
    return capsys.readouterr().out.rstrip("\n")


def test_the_commands_of_the_page_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in FILES.iterdir():
        shutil.copy(file, tmp_path / file.name.removesuffix(".txt"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    page = PAGE.read_text()
    shown: list[tuple[str, str, str]] = []

    def answer(block: re.Match[str]) -> str:
        parts = re.split(r"^\$ (.*)\n", block[1], flags=re.MULTILINE)[1:]
        printed = []
        for command, before in zip(parts[::2], parts[1::2], strict=True):
            out = run(command, capsys)
            shown.append((command, before, out))
            printed.append(f"$ {command}\n{out}\n")
        return "```console\n" + "\n".join(printed) + "```"

    written = BLOCK.sub(answer, page)
    if os.environ.get("TRAINCAST_UPDATE_DOCS"):
        PAGE.write_text(written)
        return
    assert len(shown) >= 7
    for command, before, out in shown:
        was, now = words_of(before), words_of(out)
        if command.startswith("traincast config") or "--emit" in command:
            assert was == now
        else:
            # How an answer is worded changes with the rest of the package; what a file says must stand there.
            common = sum((Counter(was) & Counter(now)).values())
            assert common >= 0.8 * max(len(was), len(now)), command


def test_the_python_of_the_page_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "ds.json" not in done.stderr
