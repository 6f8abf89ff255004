"""Tutorials are programs: the code of each page runs in order, in a process of its own."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
TUTORIALS = [
    *sorted((DOCS / "tutorials").glob("*.md")),
    DOCS / "how-to" / "configs.md",
    DOCS / "how-to" / "catalog.md",
    DOCS / "how-to" / "python.md",
]
NEED_TORCH = ("your-model", "watch-a-run")


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_code_of_every_tutorial_runs(page: Path, tmp_path: Path) -> None:
    if page.stem in NEED_TORCH:
        pytest.importorskip("torch")
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks
    program = tmp_path / f"page_{page.stem.replace('-', '_')}.py"
    program.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", program.name], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_the_commands_of_five_runs_work_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from traincast.__main__ import main

    text = (DOCS / "tutorials" / "five-runs.md").read_text()
    table = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)[0]
    commands = re.findall(r"^traincast .*$", text, flags=re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    exec(table, {})
    assert [command.split()[1] for command in commands] == ["learn", "forecast", "plan"]
    # A plan asks the same calibration some fifty times, which takes too long here.
    for command in (commands[0], f"{commands[1]} --explain"):
        assert main(shlex.split(command)[1:]) == 0, command
    shown = capsys.readouterr().out
    assert "worth a run next" in shown
    assert "calibration 'my-cluster', 5 runs of this stack" in shown
    assert shown.count("- 90% interval ") == 1
    assert "> own runs" in shown
    assert "> layer models" not in shown
