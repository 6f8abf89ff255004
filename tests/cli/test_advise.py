import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]

JOB = ("gpt2", "--device", "a100-80g", "-g", 4, "--batch", 4, "--seq", 512, "--precision", "bf16", "--steps", 1000)


def test_a_job_is_told_in_sentences(run: Run) -> None:
    ran = run("advise", *JOB)
    assert ran.code == 0, ran.err
    text = " ".join(ran.out.split())
    for wanted in (
        "One step of gpt2",
        "What takes longest is",
        "likely to fit: a device needs",
        "Uncertainty:",
        "whole job of 1,000",
    ):
        assert wanted in text


def test_suggestions_are_numbers_too_and_the_fastest_comes_first(run: Run) -> None:
    found = json.loads(run("advise", *JOB, "--json").out)
    ratios = [one["time_ratio"] for one in found["suggestions"]]
    assert ratios == sorted(ratios)
    assert {one["kind"] for one in found["suggestions"]} == {"plan", "devices"}
    assert found["forecast"]["workload"] == "gpt2"
    assert found["sentences"]


def test_a_job_that_does_not_fit_is_told_what_makes_it_fit(run: Run) -> None:
    ran = run(
        "advise", "gpt2-xl", "-d", "a100-40g", "-g", 8, "-b", 8, "--seq", 1024, "--zero", 0, "--precision", "fp32"
    )
    text = " ".join(ran.out.split())
    assert "not fit" in text
    assert "To make it fit:" in text


def test_the_slurm_helper_prints_the_flags_alone(run: Run, tmp_path: Path) -> None:
    ran = run("advise", *JOB, "--slurm")
    assert ran.code == 0, ran.err
    assert re.fullmatch(r"--time=[\d:-]+ --mem=\d+G --gres=gpu:4 --nodes=1 --ntasks-per-node=1", ran.out.strip()), (
        ran.out
    )
    job = tmp_path / "job.toml"
    job.write_text(
        'source = "gpt2"\n[workload]\nbatch = 4\nseq = 512\nprecision = "bf16"\n'
        '[cluster]\ndevice = "a100-80g"\ndevices_per_node = 4\n[job]\nsteps = 1000\n'
    )
    assert run("advise", job, "--slurm").out == ran.out
    longer = json.loads(run("advise", *JOB, "--slurm", "--time-quantile", 0.999, "--json").out)
    assert set(longer["flags"]) == {"--time", "--mem", "--gres", "--nodes", "--ntasks-per-node"}


def test_a_missing_device_is_one_line_and_exit_code_2(run: Run) -> None:
    ran = run("advise", "gpt2")
    assert ran.code == 2
    assert "--gpus" in ran.err
