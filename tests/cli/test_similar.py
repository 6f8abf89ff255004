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
    assert len(found["neighbours"]) in (3, 4)
    assert found["dataset_type"] == "image"
    distances = [each["distance"] for each in found["neighbours"]]
    assert distances == sorted(distances)
    assert all(each["name"] != "resnet50" for each in found["neighbours"])
    assert all("measured_s" in each or each["forecast"]["step_s"] > 0 for each in found["neighbours"])


def test_forecasts_of_relatives_are_for_the_batch_that_was_asked_about_and_a_measured_one_is_always_named(
    run: Run,
) -> None:
    found = json.loads(run("similar", "resnet50", "-n", 2, "-b", 3, "--json").out)["neighbours"]
    assert all(each["batch"] == 3 for each in found if "forecast" in each)
    assert any(each.get("measured_s") for each in found)
    shown = run("similar", "resnet50", "-n", 2, "-b", 3).out
    assert "4 workers" in shown
    assert "a quarter of a core each" in shown


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
