"""Each system can be asked by name, on every way a question can be put."""

import math
from dataclasses import replace

import numpy as np
import pytest

from traincast import catalog
from traincast.__main__ import main
from traincast.certainty._labels import label_run
from traincast.embed._encoder import Encoder, load_encoder
from traincast.errors import InvalidInput
from traincast.forecast import Engine, adapt_twelve
from traincast.forecast._methods import describe_rank
from traincast.resources._twelve import OUTPUTS, load_twelve, measure_outputs
from traincast.spec import METHODS, Job, MeasuredRun, Parallelism

GPUS = catalog.cluster(device="a100-80g", nodes=1, devices_per_node=4)
JOB = Job(graph=catalog.workload("resnet18", batch=16), steps=10)
PLAN = Parallelism(data=4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("model", "device"), [("resnet50", "t4"), ("gpt2", "b200"), ("deepspeech2", "mi300x"), ("dlrm", "l4")]
)
def test_every_method_answers_for_any_model_on_any_gpu(method: str, model: str, device: str) -> None:
    cluster = catalog.cluster(device=device, nodes=1, devices_per_node=1)
    job = Job(graph=catalog.workload(model, batch=4), method=method)
    step = Engine().forecast(job, cluster, Parallelism()).step
    assert 0 < step.low_s < step.seconds < step.high_s < math.inf


def test_methods_differ_and_best_is_the_default() -> None:
    """In training nothing above the operators helps, so the best is what the operators say."""
    steps = {method: Engine().forecast(replace(JOB, method=method), GPUS, PLAN).step.seconds for method in METHODS}
    assert len({seconds for method, seconds in steps.items() if method != "best"}) == len(METHODS) - 1
    assert steps["best"] == steps["deletepop"] == Engine().forecast(JOB, GPUS, PLAN).step.seconds


def test_all_methods_differ_where_image_models_infer() -> None:
    job = Job(graph=catalog.workload("resnet50", batch=64, precision="fp16", mode="inference"))
    one = catalog.cluster(device="rtx-3090", nodes=1, devices_per_node=1)
    steps = {Engine().forecast(replace(job, method=method), one, Parallelism()).step.seconds for method in METHODS}
    assert len(steps) == len(METHODS)


@pytest.mark.parametrize("method", ["scaledl", "predictddl", "driple"])
def test_a_learned_method_says_that_it_knows_no_processor(method: str) -> None:
    with pytest.raises(InvalidInput, match="trained on GPUs"):
        Engine().forecast(
            replace(JOB, method=method), catalog.cluster(device="cpu", nodes=1, devices_per_node=1), Parallelism()
        )


def test_a_method_and_a_cost_model_are_not_both_asked() -> None:
    with pytest.raises(InvalidInput, match="give one"):
        replace(JOB, method="physics", cost_model="roofline")


def test_without_the_encoder_predictddl_says_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(JOB, method="predictddl")
    before = Engine().forecast(asked, GPUS, PLAN).step.seconds
    empty = Encoder(weights={name: np.zeros_like(each) for name, each in load_encoder().weights.items()})
    monkeypatch.setattr("traincast.embed._summary.load_encoder", lambda: empty)
    assert Engine().forecast(asked, GPUS, PLAN).step.seconds != before


def test_the_plan_is_searched_with_the_method_that_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "resnet18", "--gpus", "4xa100", "--global-batch", "64", "--steps", "100", "--method", "predictddl"]
    assert main([*words, "--json"]) == 0
    assert "predictddl" in capsys.readouterr().out


def test_few_runs_of_a_setting_move_the_last_layer_of_the_twelve() -> None:
    network, rank = load_twelve(), describe_rank(JOB, GPUS, PLAN, guess_s=0.01)
    before = network.predict(rank)
    target = measure_outputs(2 * before.step_s, {"gpu_burst_s": before.step_s}, rank)
    after = network.adapted([rank] * 5, [target] * 5).predict(rank)
    assert abs(math.log(after.step_s / (2 * before.step_s))) < 0.3 * math.log(2)
    assert after.values["gpu"][0] / after.step_s < before.values["gpu"][0] / before.step_s
    assert network.arrays["head"].shape[1] == len(OUTPUTS)


def test_twelve_numbers_make_one_step() -> None:
    shown = Engine().forecast(replace(JOB, method="driple"), GPUS, PLAN)
    assert shown.step.seconds > 0
    found = load_twelve().predict(describe_rank(JOB, GPUS, PLAN, guess_s=0.01))
    for name in ("gpu", "memory", "received", "sent"):
        burst_s, peak = found.values[name]
        assert 0 <= burst_s <= found.step_s
        assert peak >= 0


def test_runs_that_mislead_about_each_other_leave_the_network_as_it_ships() -> None:
    steps = (0.01, 10.0, 0.02, 20.0)
    runs = [
        MeasuredRun(labels=label_run(JOB, GPUS, PLAN), job=JOB, cluster=GPUS, parallelism=PLAN, step_s=step_s)
        for step_s in steps
    ]
    found = adapt_twelve(runs)
    assert (found.network is load_twelve()) == (found.after >= found.before)
    agreeing = adapt_twelve([replace(run, step_s=3.0) for run in runs])
    assert agreeing.after < agreeing.before
    assert agreeing.network is not load_twelve()
