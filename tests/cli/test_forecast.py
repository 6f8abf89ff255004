import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import make_mlp
from traincast.files import save_graph
from traincast.spec._graph import Scalable

Run = Callable[..., Any]
JOB = """
source = "gpt2"
[workload]
batch = 4
seq = 512
precision = "bf16"
[cluster]
device = "a100-80g"
nodes = 2
devices_per_node = 8
usd_per_hour = 20.0
[parallelism]
tensor = 2
micro_batches = 4
[job]
steps = 1000
"""


def answer(run: Run, *arguments: object) -> dict[str, Any]:
    ran = run("forecast", *arguments, "--json")
    assert (ran.code, ran.err) == (0, "")
    document: dict[str, Any] = json.loads(ran.out)
    return document


def test_a_person_sees_the_answer_without_escape_codes_in_a_pipe(run: Run) -> None:
    ran = run("forecast", "gpt2-xl", "-d", "a100-80g", "--nodes", 2, "-g", 8, "-b", 8, "--seq", 1024, "--steps", 100)
    assert ran.code == 0
    for wanted in (
        "gpt2-xl",
        "90% interval",
        "memory",
        "Largest costs",
        "global batch 128",
        "data parallel 16",
    ):
        assert wanted in ran.out
    assert "\x1b[" not in ran.out


def test_colours_can_be_forced_through_a_pipe(run: Run) -> None:
    assert "\x1b[" in run("forecast", "gpt2", "-d", "a100-80g", "--color", "always").out


def test_json_holds_the_interval_and_the_steps_of_the_job(run: Run) -> None:
    document = answer(run, "gpt2", "--device", "a100-80g", "--steps", 50)
    assert document["step"]["low_s"] < document["step"]["seconds"] < document["step"]["high_s"]
    assert document["job"]["num_steps"] == 50
    assert document["memory"]["fits"] is True


def test_all_devices_that_the_plan_leaves_hold_replicas(run: Run) -> None:
    document = answer(run, "gpt2", "-d", "a100-80g", "--nodes", 2, "-g", 4, "--tp", 2, "-b", 3)
    assert document["global_batch"] == 3 * 4


def test_degrees_alone_say_how_many_devices_there_are(run: Run) -> None:
    assert answer(run, "gpt2", "-d", "a100-80g", "--dp", 4)["num_devices"] == 4


def test_a_price_is_for_one_device_and_hour(run: Run) -> None:
    document = answer(run, "gpt2", "-d", "a100-80g", "-g", 8, "--price", 2.0, "--steps", 1000)
    assert document["usd"]["value"] == pytest.approx(16.0 * document["job"]["total"]["seconds"] / 3600)


def test_an_epoch_of_a_known_workload_is_one_of_its_data_set(run: Run) -> None:
    document = answer(run, "resnet50", "--gpus", "8xv100", "--batch", 128, "--epochs", 90)
    assert document["job"]["num_steps"] == -(-90 * 1_281_167 // (8 * 128))
    assert any("1,281,167 samples" in line and "imagenet-1k" in line for line in document["assumptions"])
    assert "--epoch-samples" in run("forecast", "gpt2", "--gpus", "1xa100", "--epochs", 2, "--seq", 512).err


def test_epochs_multiply_the_samples_of_one(run: Run) -> None:
    document = answer(run, "gpt2", "-d", "a100-80g", "-b", 10, "--epochs", 2, "--epoch-samples", 1000)
    assert document["job"]["num_steps"] == 200


def test_a_job_file_is_asked_as_it_stands_and_a_flag_wins_over_it(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    document = answer(run, file)
    assert document["num_devices"] == 16
    assert document["global_batch"] == 4 * 4 * 8
    assert document["usd"]["value"] == pytest.approx(40.0 * document["job"]["total"]["seconds"] / 3600)
    assert answer(run, file, "--batch", 2)["global_batch"] == 2 * 4 * 8


def test_a_misspelt_key_of_a_job_file_names_the_nearest(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB.replace("precision", "precission"))
    ran = run("forecast", file)
    assert ran.code == 2
    assert "did you mean 'precision'" in ran.err


def test_a_saved_graph_is_forecast_without_its_model(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mlp.json.gz"
    save_graph(make_mlp(batch=32), file)
    assert answer(run, file, "-d", "v100", "--dp", 2)["global_batch"] == 64


def test_a_graph_recorded_at_two_batches_answers_any_other(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mlp.json"
    save_graph(Scalable(small=make_mlp(batch=8), large=make_mlp(batch=64)), file)
    assert answer(run, file, "-d", "v100", "-b", 100)["global_batch"] == 100


@pytest.mark.parametrize("flag", [("--batch", 7), ("--precision", "bf16"), ("--seq", 12)])
def test_a_saved_graph_refuses_what_it_cannot_change(run: Run, tmp_path: Path, flag: tuple[str, object]) -> None:
    file = tmp_path / "mlp.json"
    save_graph(make_mlp(batch=32), file)
    ran = run("forecast", file, "-d", "v100", *flag)
    assert ran.code == 2
    assert "captured" in ran.err


def test_a_trace_is_written_whole(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    assert run("forecast", "gpt2", "-d", "a100-80g", "--dp", 2, "--trace", trace).code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"X", "M"} == {event["ph"] for event in events}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json"]


MODEL = """
from torch import nn
import torch

print("building")

def build():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)), lambda batch: torch.zeros(batch, 64)
"""


def test_a_model_of_ones_own_is_recorded_and_its_prints_stay_out_of_the_answer(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(MODEL)
    ran = run("forecast", f"{tmp_path / 'mine.py'}:build", "-d", "a100-80g", "-b", 16, "--dp", 2, "--json")
    document = json.loads(ran.out)
    assert document["global_batch"] == 32
    assert document["step"]["seconds"] > 0
    assert "building" in ran.err


def test_a_job_file_may_name_a_model_beside_it(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / "job.toml").write_text('source = "mine.py:build"\n[workload]\nbatch = 4\n[cluster]\ndevice = "t4"\n')
    ran = run("forecast", tmp_path / "job.toml", "--json")
    assert json.loads(ran.out)["global_batch"] == 4


def test_a_job_to_its_target_says_how_many_samples_that_takes(run: Run) -> None:
    ran = run("forecast", "resnet50", "--device", "a100-80g", "--batch", 400, "--to-target", "--json")
    answer = json.loads(ran.out)
    assert ran.code == 0
    assert any("MLPerf" in note for note in answer["notes"])
    refused = run("forecast", "gpt2", "--device", "a100-80g", "--to-target")
    assert refused.code == 2
    assert "no samples to a target are known" in refused.err


def test_the_optimizer_state_can_live_on_the_host(run: Run) -> None:
    here, there = (
        json.loads(run("forecast", "gpt2", "--device", "a100-80g", "--json", *flags).out)
        for flags in ((), ("--offload-optimizer",))
    )
    assert there["memory"]["peak_bytes"] < here["memory"]["peak_bytes"]
    assert there["step"]["seconds"] > here["step"]["seconds"]


def test_explain_shows_each_parts_answer_and_marks_the_one_that_counts(run: Run) -> None:
    ran = run("forecast", "gpt2", "--device", "a100-80g", "--batch", 2, "--explain")
    assert ran.code == 0
    lines = ran.out.splitlines()
    first = lines.index("Which part answers")
    shown = [line for line in lines[first + 1 : first + 10] if line[2:3] in (">", " ") and line[4:5] not in (" ", "")]
    assert [line[4:20].strip() for line in shown] == ["physics alone", "layer models"]
    assert [line[2] for line in shown] == [" ", ">"]


@pytest.mark.parametrize(
    "words",
    [
        ("llama-3-8b", "--gpus", "8xh100", "--tokens", "15B"),
        ("gpt2", "--gpus", "1xa100-80g"),
        ("stable-diffusion", "--gpus", "4xrtx3090", "--steps", "10000"),
        ("llama-3.1-8b", "--gpus", "1xrtx4090", "--regime", "qlora", "--epoch-samples", "50k", "--epochs", "3"),
        ("resnet50", "--gpus", "8xv100-16g"),
    ],
)
def test_the_answer_is_one_screen_of_24_lines(run: Run, words: tuple[str, ...]) -> None:
    out = run("forecast", *words).out
    assert len(out.splitlines()) <= 24, out
    assert "MFU" in out
    assert "likely to fit" in out.splitlines()[0]
    assert out.splitlines()[-1].startswith("Next: ")


def test_help_shows_the_options_that_matter_and_all_on_demand(run: Run) -> None:
    shown = {word for word in run("forecast", "--help").out.split() if word.startswith("--")}
    assert len(shown) <= 30
    assert "--explain" in shown
    assert "--bucket-bytes" not in shown
