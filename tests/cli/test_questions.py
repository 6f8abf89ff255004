"""The same words for every command: derived options read back what `write_command` writes."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Run
from traincast.catalog._stacks import stack
from traincast.cli.advise import advise
from traincast.cli.compare import compare
from traincast.cli.fit import fit
from traincast.cli.forecast import forecast
from traincast.cli.plan import plan
from traincast.cli.questions import takes_question, write_command
from traincast.spec import Question, WorkloadOptions
from traincast.spec._question import QUESTION_FIELDS

COMMANDS = {"forecast": forecast, "fit": fit, "advise": advise, "plan": plan, "compare": compare}
NOT_ASKED = {"plan": {"data", "micro_batches"}, "compare": {"steps"}}
TINY = ("forecast", "gpt2", "--seq", "128", "--batch", "1", "--json")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_one_command_takes_every_command_takes(name: str) -> None:
    options = inspect.signature(COMMANDS[name]).parameters
    asked = {item.name for item in QUESTION_FIELDS} - NOT_ASKED.get(name, set())
    assert asked <= set(options)
    assert {"calibration", "given"} <= set(options)


def test_no_command_has_more_parameters_of_its_own_than_a_head_can_hold() -> None:
    for command in COMMANDS.values():
        inner = inspect.getclosurevars(command).nonlocals["function"]
        assert len(inspect.signature(inner).parameters) <= 12


def test_every_field_of_a_question_survives_its_command() -> None:
    samples: dict[type, Any] = {int: 3, float: 2.5, str: "word", bool: False}
    said: dict[str, dict[str, Any]] = {"workload": {}, "cluster": {}, "parallelism": {}, "job": {}, "": {}}
    for item in QUESTION_FIELDS:
        said[item.section][item.name] = samples[item.kind]
    asked = Question(
        source="mine", workload=WorkloadOptions(**said["workload"]), cluster=said["cluster"],
        parallelism=said["parallelism"], job=said["job"], **said[""],
    )  # fmt: skip
    heard: list[Question] = []

    @takes_question()
    def listen(question: Question) -> None:
        heard.append(question)

    import typer

    app = typer.Typer()
    app.command()(listen)
    typer.main.get_command(app).main(args=write_command(asked)[2:], standalone_mode=False)
    assert heard == [asked]


@pytest.mark.parametrize(
    ("words", "devices"), [("8xh100", 8), ("2x8xh100", 16), ("h100:8", 8), ("16xh100", 16), ("2x4xa100-80g", 8)]
)
def test_hardware_can_be_said_in_one_word(run: Run, words: str, devices: int) -> None:
    assert json.loads(run(*TINY, "--gpus", words).out)["num_devices"] == devices


def test_devices_of_a_machine_are_spread_over_its_hosts(run: Run) -> None:
    """A GB200 NVL72 has hosts of four in one NVLink domain of 72."""
    counted = json.loads(run(*TINY, "--machine", "gb200-nvl72", "--gpus", "72", "--tp", "12").out)
    hosts = json.loads(run(*TINY, "--machine", "gb200-nvl72", "--nodes", "18", "--tp", "12").out)
    assert counted["num_devices"] == hosts["num_devices"] == 72
    assert counted["step"] == hosts["step"]
    flat = json.loads(run(*TINY, "--gpus", "18x4xb200", "--tp", "12", "--inter", "400Gb/s").out)
    assert counted["step"]["seconds"] < flat["step"]["seconds"]


def test_every_name_of_a_switch_is_an_option(run: Run) -> None:
    adapted = (*TINY, "--gpus", "1xh100", "--lora-rank", "8")
    long, short, off = (run(*adapted, flag) for flag in ("--adapter-norm", "--dora", "--no-dora"))
    assert long.code == short.code == off.code == 0
    assert long.out == short.out != off.out


def test_short_and_long_names_and_human_numbers_mean_the_same(run: Run) -> None:
    short = run(*TINY, "--gpus", "4xh100", "--tp", "2", "--samples", "10000")
    long = run(*TINY, "--device", "h100", "-g", "4", "--tensor", "2", "--samples", "10k")
    assert short.code == long.code == 0
    assert json.loads(short.out)["step"] == json.loads(long.out)["step"]
    assert json.loads(short.out)["job"] == json.loads(long.out)["job"]


def test_a_stack_of_ones_own_is_used(run: Run, tmp_path: Path) -> None:
    document = tmp_path / "ours.toml"
    document.write_text('title = "Ours"\nlike = "nanotron"\n[costs]\nforward_call_s = 0.001\n')
    ours = json.loads(run(*TINY, "--gpus", "2xh100", "--stack", str(document)).out)
    theirs = json.loads(run(*TINY, "--gpus", "2xh100", "--stack", "nanotron").out)
    assert ours["step"]["seconds"] > theirs["step"]["seconds"]
    assert ours["settings"]["stack"] == "ours"


def test_a_search_plans_with_the_habits_of_its_stack(run: Run) -> None:
    found = json.loads(
        run("plan", "gpt2", "--gpus", "4xh100", "--global-batch", "8", "--tp", "2", "--pp", "1", "--stack", "megatron-core",
            "--recompute", "none", "--zero", "0", "--json").out
    )  # fmt: skip
    best = found["plans"][0]
    assert best["parallelism"]["sequence_parallel"] is stack("megatron-core").plan.sequence_parallel is True
    assert best["parallelism"]["bucket_copies"] is False
    assert best["parallelism"]["micro_batches"] == 1
    typed = run(
        "forecast",
        "gpt2",
        "--gpus",
        "4xh100",
        "--tp",
        "2",
        "--zero",
        "0",
        "--batch",
        best["batch"],
        "--stack",
        "megatron-core",
        "--json",
    )
    assert json.loads(typed.out)["step"] == best["forecast"]["step"]
