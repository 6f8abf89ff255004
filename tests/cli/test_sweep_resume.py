"""A sweep that is killed goes on where it stopped, and says the same."""

from pathlib import Path

import pytest

from killing import run_until
from traincast.__main__ import main

SWEEP = ["schedule", "synthetic:400", "-c", "2x8:a100@2.5", "-p", "fifo,srtf", "--error-sweep"]


def test_a_killed_sweep_goes_on_and_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, "-o", str(tmp_path / "whole")]) == 0
    said = capsys.readouterr().out
    journal = tmp_path / "cut" / "error-sweep.partial"
    run_until("after", "traincast.schedule:SweepJournal.keep", [*SWEEP, "-o", str(tmp_path / "cut")], number=3)
    assert len(journal.read_text().splitlines()) == 1 + 3
    with journal.open("a") as handle:
        handle.write('{"run": "cut o')
    assert main([*SWEEP, "--seed", "3", "--resume", "-o", str(tmp_path / "cut")]) == 2
    assert "another sweep" in capsys.readouterr().err
    assert main([*SWEEP, "--resume", "-o", str(tmp_path / "cut")]) == 0
    assert capsys.readouterr().out == said
    pictures = [(tmp_path / each / "error-sweep.svg").read_bytes() for each in ("whole", "cut")]
    assert pictures[0] == pictures[1]
    assert not journal.exists()


def test_resuming_needs_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, "--resume"]) == 2
    assert "pass it with -o" in capsys.readouterr().err
