"""Configurations on the command line: every command that asks a question takes them, and they are written back."""

import json
from pathlib import Path

import pytest

from configs.asking import FILES
from traincast.__main__ import main

TITAN = str(FILES / "torchtitan-llama3_70b.toml")
LORA = str(FILES / "trl-sft-lora.yaml")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_a_forecast_needs_no_source_where_a_configuration_names_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "forecast", "--config", TITAN, "--gpus", "8x8xh100", "--json"))
    assert answer["workload"] == "llama-3-70b"
    assert answer["num_devices"] == 64
    assert (answer["settings"]["batch"], answer["settings"]["seq"], answer["settings"]["stack"]) == (
        8,
        8192,
        "torchtitan",
    )
    assert any("without effect on time and memory: job.dump_folder" in said for said in answer["assumptions"])


def test_the_same_words_as_flags_give_the_same_forecast(capsys: pytest.CaptureFixture[str]) -> None:
    read = json.loads(run(capsys, "forecast", "--config", LORA, "--gpus", "4xa100-80g", "--json"))
    flags = [
        "--lora-rank",
        "32",
        "--lora-targets",
        "all",
        "--attention",
        "flash-2",
        "--seq",
        "2048",
        "-b",
        "2",
        "--precision",
        "bf16",
    ]
    flags += ["--micro-batches", "8", "--recompute", "full", "--stack", "hf-trainer", "--evaluation-every-steps", "100"]
    said = json.loads(run(capsys, "forecast", "qwen2.5-7b", *flags, "--gpus", "4xa100-80g", "--json"))
    assert read["step"] == said["step"]
    assert read["memory"]["peak_bytes"] == said["memory"]["peak_bytes"]


@pytest.mark.parametrize("command", ["fit", "advise"])
def test_other_commands_take_a_configuration(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, command, "--config", LORA, "--gpus", "1xa100-80g")
    assert "qwen2.5-7b" in out
    assert "trl-sft-lora.yaml" in out


def test_plan_searches_around_a_configuration_and_writes_its_format(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "plan",
        "--config",
        TITAN,
        "--gpus",
        "8x8xh100",
        "--batch",
        "1",
        "--recompute",
        "full",
        "--pp",
        "1",
        "--cp",
        "1",
    ]
    out = run(capsys, *words, "--tp", "8", "--zero", "3", "--emit", "torchtitan")
    assert "tensor_parallel_degree = 8" in out
    assert 'flavor = "70B"' in out


def test_a_forecast_is_written_as_another_projects_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = run(capsys, "forecast", "--config", TITAN, "--gpus", "8x8xh100", "--emit", "megatron-lm")
    assert "--tensor-model-parallel-size 8" in out
    assert "--num-layers 80" in out
    script = tmp_path / "run.sh"
    script.write_text(out)
    again = json.loads(run(capsys, "config", str(script), "--json"))
    (reading,) = again["files"]
    assert reading["format"] == "megatron-lm"
    assert reading["settings"]["source"]["value"] == "llama-3-70b"


def test_config_lists_every_key_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "config", str(FILES / "ds_z3_offload_config.json"))
    assert "parallelism.zero" in out
    assert "zero_optimization.stage3_max_live_parameters" in out
    formats = run(capsys, "config", "--formats")
    assert "torchtitan      torchtitan (toml)" in formats


def test_neither_a_source_nor_a_configuration_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", "--gpus", "8xh100"]) == 2
    assert "name a model" in capsys.readouterr().err
    assert main(["config"]) == 2
    assert "give a configuration" in capsys.readouterr().err
