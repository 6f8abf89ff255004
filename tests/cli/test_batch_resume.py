"""A batch that is killed goes on where it stopped, and answers the same."""

import csv
from pathlib import Path

import pytest

from killing import run_until
from traincast.__main__ import main
from traincast.accuracy import Journal, journal_of
from traincast.accuracy._predictions import Prediction
from traincast.errors import InvalidInput

ROWS = 40


def write_cases(file: Path) -> None:
    names = ["case_id", "model", "framework", "gpu", "n_gpus", "micro_batch", "dtype", "seq_len"]
    with file.open("w", newline="") as handle:
        table = csv.DictWriter(handle, names)
        table.writeheader()
        for number in range(ROWS):
            table.writerow(
                {"case_id": f"c{number}", "model": "gpt2", "framework": "pytorch", "gpu": "a100-80g", "n_gpus": 1,
                 "micro_batch": 1 + number, "dtype": "bf16", "seq_len": 512}
            )  # fmt: skip


def test_a_killed_batch_goes_on_and_answers_the_same(tmp_path: Path) -> None:
    cases, whole, output = tmp_path / "cases.csv", tmp_path / "whole.csv", tmp_path / "out.csv"
    write_cases(cases)
    assert main(["batch", str(cases), "-o", str(whole), "--workers", "1"]) == 0
    assert not journal_of(whole).exists()
    partial = journal_of(output)
    run_until(
        "after", "traincast.accuracy:Journal.keep", ["batch", str(cases), "-o", str(output), "--workers", "1"], number=5
    )
    assert not output.exists()
    assert len(partial.read_text().splitlines()) == 1 + 5
    with partial.open("a") as handle:
        handle.write('{"key": "cut o')
    assert main(["batch", str(cases), "-o", str(output), "--workers", "1", "--resume"]) == 0
    assert output.read_bytes() == whole.read_bytes()
    assert not partial.exists()


def test_answers_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.csv.partial"
    journal = Journal(path, answers_of="traincast 1", resume=False)
    journal.keep(("a", 1), Prediction(case_id="a", step_s=1.5))
    journal.close(done=False)
    again = Journal(path, answers_of="traincast 1", resume=True)
    assert again.find(("a", 1)) == Prediction(case_id="a", step_s=1.5)
    assert again.find(("a", 2)) is None
    again.close(done=False)
    with pytest.raises(InvalidInput, match="another version"):
        Journal(path, answers_of="traincast 2", resume=True)
    fresh = Journal(path, answers_of="traincast 2", resume=False)
    assert len(fresh) == 0
    fresh.close(done=True)
    assert not path.exists()
