"""A finished run beside its forecast, and kept for `learn`."""

import csv
from pathlib import Path
from typing import Any

from configs.test_logs import MEGATRON, write

Run = Any


def test_a_log_is_laid_beside_the_forecast_and_kept(run: Run, tmp_path: Path) -> None:
    log, runs = write(tmp_path, "train.log", MEGATRON), tmp_path / "runs.csv"
    ran = run("compare", log, "gpt2", "--gpus", "1xa100-80g", "--batch", 8, "--seq", 1024, "-o", runs)
    assert ran.code == 0, ran.err
    assert "1.5 s" in ran.out
    assert "memory, reserved by the framework" in ran.out
    rows = list(csv.DictReader(runs.read_text().splitlines()))
    assert [float(row["measured_step_s"]) for row in rows] == [1.5]
    learned = run("learn", runs, "-o", tmp_path / "mine.json")
    assert learned.code == 0, learned.err
