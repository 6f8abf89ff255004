"""`traincast learn`, and what it made used by other commands."""

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
ASKED = ("gpt2", "--device", "a100-sxm4-40g", "--precision", "fp32", "--seq", "256", "--json")


@pytest.fixture
def runs(run: Run, tmp_path: Path) -> Path:
    """Runs of one model on one device that all took half as long again as forecast."""
    lines = ["case_id,gpu,model,seq_len,dtype,mode,attention,act_ckpt,n_gpus,micro_batch,measured_step_s"]
    for batch in (2, 4, 8):
        step_s = json.loads(run("forecast", *ASKED, "--batch", batch).out)["step"]["seconds"]
        lines.append(f"b{batch},a100-sxm4-40g,gpt2,256,fp32,training_step,flash,none,1,{batch},{1.5 * step_s}")
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def seconds(run: Run, *words: object) -> float:
    ran = run("forecast", *ASKED, "--batch", 4, *words)
    assert ran.code == 0, ran.err
    return float(json.loads(ran.out)["step"]["seconds"])


def test_what_runs_taught_is_used_by_file_by_name_and_at_once(
    run: Run, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINCAST_CALIBRATIONS", str(tmp_path / "kept"))
    plain = seconds(run)
    ran = run("learn", runs, "-o", tmp_path / "mine.json")
    assert ran.code == 0, ran.err
    assert "3 runs of 1 models on a100-sxm4-40g" in ran.out
    assert run("learn", runs, "--name", "mine").code == 0
    by_file, by_name = (seconds(run, "--calibration", source) for source in (tmp_path / "mine.json", "mine"))
    assert by_file == by_name == pytest.approx(1.5 * plain, rel=0.03)
    assert seconds(run, "--given", runs) == pytest.approx(by_file)


def test_the_answer_says_what_was_used(run: Run, runs: Path) -> None:
    document = json.loads(run("forecast", *ASKED, "--batch", 4, "--given", runs).out)
    assert any("3 runs of this stack: what they agree on" in note for note in document["notes"])


def test_mistakes_are_one_line(run: Run, runs: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("case_id,gpu,model\nx,t4,gpt2\n")
    for words in (
        ("learn", runs),
        ("learn", empty, "--name", "x"),
        ("forecast", *ASKED, "--calibration", "x", "--given", runs),
        ("forecast", *ASKED, "--calibration", "never-kept"),
    ):
        ran = run(*words)
        assert ran.code == 2
        assert len(ran.err.splitlines()) == 1


def test_the_commands_of_a_batch_name_what_was_learnt_and_answer_the_same(run: Run, runs: Path, tmp_path: Path) -> None:
    run("batch", runs, "-o", tmp_path / "p.csv", "--given", runs, "--commands", tmp_path / "commands.txt")
    with (tmp_path / "p.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    commands = (tmp_path / "commands.txt").read_text().splitlines()
    words = shlex.split(commands[1])
    assert words[-2:] == ["--given", str(runs)]
    answer = json.loads(run(*words[1:], "--json").out)
    assert float(rows[1]["step_s"]) == pytest.approx(answer["step"]["seconds"], rel=1e-8)


def test_every_command_that_forecasts_takes_what_was_learnt(run: Run, runs: Path, tmp_path: Path) -> None:
    run("learn", runs, "-o", tmp_path / "mine.json")
    learned = ("--calibration", tmp_path / "mine.json")
    step_s = seconds(run, *learned)
    job = ("gpt2", "--device", "a100-sxm4-40g", "--precision", "fp32", "--seq", "256", "--json")
    advice = json.loads(run("advise", *job, "--batch", 4, *learned).out)
    assert advice["forecast"]["step"]["seconds"] == pytest.approx(step_s)
    plain, found = (json.loads(run("fit", *job, "--batch", 4, *words).out) for words in ((), learned))
    assert found != plain
    plans = json.loads(
        run(
            "plan", *job, "--gpus", 1, "--batch", 4, "--global-batch", 4, "--steps", 10, "--zero", 0, "--recompute", "none",
            *learned,
        ).out
    )  # fmt: skip
    assert plans["plans"][0]["forecast"]["step"]["seconds"] == pytest.approx(step_s)


def test_one_measured_product_moves_forecasts_of_its_gpu_and_of_no_other(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "level.json"
    ran = run("calibrate", "--gemm", "h100-sxm-80g bf16 8192x8192x8192 3ms", "--out", kept)
    assert ran.code == 0, ran.err
    assert "h100-sxm-80g: matmuls in bf16 take" in ran.out

    def step_s(device: str, *words: object) -> tuple[float, str]:
        asked = ("gpt2", "--device", device, "--precision", "bf16", "--batch", 32, "--json")
        ran = run("forecast", *asked, *words)
        assert ran.code == 0, ran.err
        return float(json.loads(ran.out)["step"]["seconds"]), ran.out

    before, (after, told) = step_s("h100-sxm-80g")[0], step_s("h100-sxm-80g", "--calibration", kept)
    assert after > 1.05 * before
    assert "times as long as expected" in told
    same, told = step_s("a100-sxm4-40g", "--calibration", kept)
    assert same == pytest.approx(step_s("a100-sxm4-40g")[0])
    assert "none of a100-sxm4-40g" in told
    wrong = run("calibrate", "--gemm", "h100-sxm-80g bf16 8192 3ms", "--out", kept)
    assert wrong.code == 2
    assert "DEVICE FORMAT MxNxK TIME" in wrong.err
