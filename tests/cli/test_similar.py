"""`traincast similar`: neighbours, behaviour, verdict."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders import make_mlp
from traincast.files import save_graph

Run = Callable[..., Any]


def test_a_catalogue_workload_has_relatives_with_forecasts_or_measured_steps(run: Run) -> None:
    found = json.loads(run("similar", "resnet50", "-n", 3, "-b", 8, "--json").out)
    assert len(found["neighbours"]) == 3
    assert found["dataset_type"] == "image"
    distances = [each["distance"] for each in found["neighbours"]]
    assert distances == sorted(distances)
    assert all(each["name"] != "resnet50" for each in found["neighbours"])
    assert all("measured_s" in each or each["forecast"]["step_s"] > 0 for each in found["neighbours"])


def test_a_small_captured_model_meets_measured_steps_and_gets_a_step_time(run: Run, tmp_path: Path) -> None:
    save_graph(make_mlp(layers=4, width=256, batch=16, folded=False), tmp_path / "mlp.json.gz")
    ran = run(
        "similar", tmp_path / "mlp.json.gz", "-n", 2, "--workers", 4, "--link", "1gbit", "--samples", 640, "--json"
    )
    found = json.loads(ran.out)
    assert found["reuse"]["low_s"] < found["reuse"]["step_s"] < found["reuse"]["high_s"]
    assert found["reuse"]["epoch_s"] == 10 * found["reuse"]["step_s"]
    shown = run("similar", tmp_path / "mlp.json.gz", "-n", 2, "--workers", 1).out
    assert "how it behaved" in shown
    assert "On 1 CPU worker a step takes" in shown


def test_what_nobody_ever_ran_is_called_unlike_all_we_know(run: Run, tmp_path: Path) -> None:
    save_graph(make_mlp(layers=500, width=65536, batch=65536), tmp_path / "giant.json.gz")
    ran = run("similar", tmp_path / "giant.json.gz", "-n", 1)
    assert ran.code == 0
    assert "Unlike all we know" in ran.out
    assert "measure" in ran.out


def test_an_unknown_name_is_one_line_and_exit_code_2(run: Run) -> None:
    ran = run("similar", "resnet5000")
    assert ran.code == 2
    assert len(ran.err.strip().splitlines()) == 1
