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
        "It fits with probability",
        "How sure:",
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
    assert "--device" in ran.err


SCRIPT = """#!/bin/bash
#SBATCH --job-name=try -N 2
#SBATCH --gres=gpu:a100-80g:4,license:1
#SBATCH --time=0-00:01   # far too short
#SBATCH --mem 4G
srun torchrun train.py
#SBATCH --time=9-00:00:00
"""


def test_a_batch_script_gives_the_cluster_and_is_judged(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text(SCRIPT)
    job = ("gpt2", "--batch", 4, "--seq", 512, "--precision", "bf16", "--steps", 1000)
    ran = run("advise", *job, "--script", script)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert " --gres=gpu:4 --nodes=2 " in lines[0]
    assert lines[1] == "# --time=0-00:01 of the script is enough with probability 0%"
    assert lines[2].startswith("# --mem=4G of the script is less than the ")
    assert len(lines) == 3
    found = json.loads(run("advise", *job, "--script", script, "--nodes", 1, "--json").out)
    assert found["flags"]["--nodes"] == "1"
    assert "the script asks for 2 with --nodes, the job was forecast with 1" in found["remarks"]


def test_what_is_no_batch_script_is_refused(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("torchrun train.py\n#SBATCH --nodes=2\n")
    ran = run("advise", *JOB, "--script", script)
    assert ran.code == 2
    assert "no #SBATCH line before its first command" in ran.err
