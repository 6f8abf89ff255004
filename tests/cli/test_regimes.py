"""A regime is asked for in the same words everywhere, and gets the same answer."""

import json
from pathlib import Path

import pytest

from cli.conftest import Run

RL = ("--regime", "grpo", "--prompt-tokens", "64", "--response-tokens", "128", "--group-size", "4", "--rollout-offload")
ASKED = ("gpt2", "--gpus", "8xa100-80g", "--precision", "bf16", "--zero", "3")
JOB = """
source = "gpt2"
workload = { precision = "bf16", batch = 4 }
cluster = { device = "a100-80g", nodes = 1, devices_per_node = 8 }
parallelism = { zero = 3 }
job = { regime = "grpo", prompt_tokens = 64, response_tokens = 128, group_size = 4, rollout_offload = true }
"""


def test_a_job_file_and_flags_get_the_same_answer(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    file = json.loads(run("forecast", tmp_path / "job.toml", "--json").out)
    flags = json.loads(run("forecast", *ASKED, "--batch", 4, *RL, "--json").out)
    assert file["step"] == flags["step"]
    assert [phase["name"] for phase in file["phases"]] == ["rollout", "scoring", "training", "weight sync"]
    assert file["phases"] == flags["phases"]


def test_fit_counts_every_phase(run: Run) -> None:
    plain = json.loads(run("fit", *ASKED, "--batch", 4, "--seq", 192, "--json").out)
    rl = json.loads(run("fit", *ASKED, "--batch", 4, *RL, "--json").out)
    assert rl["peak_bytes"] > plain["peak_bytes"]
    assert rl["largest_batch"] <= plain["largest_batch"]


def test_a_plan_is_found_for_the_whole_step(run: Run) -> None:
    found = json.loads(run("plan", *ASKED, "--global-batch", 32, *RL, "--recompute", "none", "--json").out)
    best = found["plans"][0]["forecast"]
    assert best["phases"][0]["name"] == "rollout"
    assert best["step"]["seconds"] == pytest.approx(sum(phase["step"]["seconds"] for phase in best["phases"]))


def test_the_trace_of_a_step_shows_its_phases(run: Run, tmp_path: Path) -> None:
    assert run("forecast", *ASKED, "--batch", 4, *RL, "--trace", tmp_path / "step.json").code == 0
    names = {event.get("name") for event in json.loads((tmp_path / "step.json").read_text())["traceEvents"]}
    assert {"rollout", "reference", "weight sync"} <= names


def test_an_answer_for_people_has_a_verdict_for_every_phase(run: Run) -> None:
    shown = run("forecast", *ASKED, "--batch", 4, *RL).out
    assert "Phases of a step" in shown
    lines = [line for line in shown.splitlines() if line.strip().startswith(("rollout", "scoring", "training "))]
    assert all("fits" in line for line in lines[:3])
