import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

SMALL = (
    "gpt2", "--machine", "aws-p4d.24xlarge", "--global-batch", 32, "--seq", 1024, "--precision", "bf16", "--steps", 1000,
    "--tp", "1,2", "--pp", "1", "--cp", "1", "--recompute", "none", "--micro-batch", "2,4", "--zero", "0,1",
)  # fmt: skip


def test_a_person_sees_ranked_plans_with_time_money_and_memory(run: Run) -> None:
    ran = run("plan", *SMALL, "--deadline", "1h", "--top", 3)
    assert ran.code == 0, ran.err
    for wanted in ("P(in time)", "P(fits)", "energy", "aws-p4d.24xlarge", "data parallel", "plans:"):
        assert wanted in ran.out


def test_the_json_plan_is_exactly_what_forecast_prints_for_it(run: Run) -> None:
    found = json.loads(run("plan", *SMALL, "--top", 1, "--json").out)
    best = found["plans"][0]
    degrees = best["parallelism"]
    again = json.loads(
        run(
            "forecast", "gpt2", "--machine", "aws-p4d.24xlarge", "--seq", 1024, "--precision", "bf16", "--steps", 1000,
            "--batch", best["batch"], "--dp", degrees["data"], "--tp", degrees["tensor"], "--zero", degrees["zero"],
            "--micro-batches", degrees["micro_batches"],
            *(["--sequence-parallel"] if degrees["sequence_parallel"] else []), "--json",
        ).out
    )  # fmt: skip
    # `forecast` draws every span and adds them up one by one, so the last digits may differ.
    for part, key in (("step", "seconds"), ("step", "high_s"), ("usd", "value"), ("memory", "peak_bytes")):
        assert again[part][key] == pytest.approx(best["forecast"][part][key], rel=1e-9)
    assert again["global_batch"] == 32


def test_no_plan_says_which_limit_excluded_how_many_and_the_nearest(run: Run) -> None:
    ran = run("plan", *SMALL, "--deadline", "61s")
    assert ran.code == 0
    assert "No plan keeps every limit" in ran.out
    assert "Nearest:" in ran.out
    assert "deadline:" in ran.out


def test_a_price_list_is_planned_for_with_its_regions_and_counts(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "offers.toml"
    file.write_text(
        '[[offers]]\nnode = "aws-p4d.24xlarge"\nusd_per_hour = 10.0\nregion = "eu-west"\nmax_nodes = 1\n'
        '[[offers]]\ndevice = "v100-16g"\ndevices_per_node = 4\nusd_per_hour = 4.0\nregion = "us-east"\nname = "old box"\n'
    )
    rest = [word for word in SMALL if word not in ("--machine", "aws-p4d.24xlarge")]
    ran = run("plan", *rest, "--offers", file, "--gpus", "4..16", "--objective", "money", "--json")
    assert ran.code == 0, ran.err
    clusters = {plan["cluster"] for plan in json.loads(ran.out)["plans"]}
    assert "1 x aws-p4d.24xlarge" in clusters
    assert any("old box" in name for name in clusters)
    assert not any(name.startswith("2 x aws") for name in clusters)
    only = json.loads(run("plan", *rest, "--offers", file, "--gpus", "4..16", "--region", "eu", "--json").out)
    assert {plan["cluster"] for plan in only["plans"]} == {"1 x aws-p4d.24xlarge"}
    assert any("region" in note for note in only["notes"])


def test_the_whole_catalogue_can_be_planned_for(run: Run) -> None:
    rest = [word for word in SMALL if word not in ("--machine", "aws-p4d.24xlarge")]
    ran = run("plan", *rest, "--all", "--devices", "l4", "--gpus", "8", "--objective", "money", "--json")
    assert ran.code == 0, ran.err
    assert {plan["forecast"]["device"] for plan in json.loads(ran.out)["plans"]} == {"l4"}


def test_what_if_tells_the_delta_of_one_change(run: Run) -> None:
    ran = run("plan", *SMALL, "--what-if", "recompute=full", "--what-if", "nodes=2", "--json")
    deltas = {delta["change"]: delta for delta in json.loads(ran.out)["what_if"]}
    assert deltas["recompute=full"]["step_ratio"] > 1
    assert deltas["recompute=full"]["memory_ratio"] < 1
    assert deltas["nodes=2"]["usd_ratio"] > 1
    assert deltas["nodes=2"]["after"]["global_batch"] == 32
    text = run("plan", *SMALL, "--what-if", "tp=2").out
    assert "what if" in text


def test_the_best_plan_is_written_for_a_scheduler(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    ran = run("plan", *SMALL, "--emit", "slurm", "-o", file, "--command", "train.py --epochs 2", "--time-quantile", 0.9)
    assert ran.code == 0, ran.err
    assert "#SBATCH --time=" in file.read_text()
    assert "train.py --epochs 2" in file.read_text()


def test_wrong_words_are_one_line_and_exit_code_2(run: Run) -> None:
    for extra, wanted in (
        (("--objective", "speed"), "allowed: time, money, energy"),
        (("--emit", "slurn"), "slurn"),
        (("--what-if", "tensors=2"), "did you mean 'tensor'"),
        (("--what-if", "tensor"), "KEY=VALUE"),
        (("--gpus", "many"), "8..64"),
        (("--tp", "two"), "whole numbers"),
        (("--order", "best"), "1f1b"),
        (("--all",), "leave out"),
    ):
        ran = run("plan", *SMALL, *extra)
        assert ran.code == 2, extra
        assert wanted in ran.err, extra
        assert len(ran.err.strip().splitlines()) == 1
