"""Every answer ends with one command that runs; what does not fit leads with what would make it fit."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from traincast.__main__ import main
from traincast.cli import QUESTIONS

Run = Any


def last_command(text: str) -> list[str]:
    found = [line for line in text.splitlines() if line.startswith("Next: ")]
    assert len(found) == 1, text
    assert text.rstrip().splitlines()[-1] == found[0]
    return shlex.split(found[0].removeprefix("Next: "))[1:]


@pytest.mark.parametrize(
    "words",
    [
        ("forecast", "gpt2", "--gpus", "8xa100-80g"),
        ("fit", "gpt2", "--gpus", "1xa100-80g", "--seq", "512"),
        ("advise", "gpt2", "--gpus", "2xa100-80g", "--batch", "4"),
        ("plan", "gpt2", "--gpus", "2xa100-80g", "--tokens", "1B", "--pp", "1"),
        ("schedule", "synthetic:40", "-c", "2x4:a100", "-p", "fifo,sjf"),
    ],
)
def test_the_next_command_runs(
    run: Run, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*words)
    assert ran.code == 0, ran.err
    again = run(*last_command(ran.out))
    assert again.code == 0, again.err


def test_what_does_not_fit_comes_first_with_remedies_and_their_commands(run: Run) -> None:
    out = run("forecast", "gpt2-xl", "--gpus", "1xrtx-3060").out
    refused, step = out.index("DOES NOT FIT"), out.index("  step ")
    assert refused < step
    told = out[refused:step]
    commands = [line.strip() for line in told.splitlines() if line.strip().startswith("traincast forecast")]
    assert told.index("- QLoRA") < told.index("- LoRA")
    assert all(" likely to fit" in run(*shlex.split(command)[1:]).out.splitlines()[0] for command in commands[:2])
    assert last_command(out)[0] == "fit"


def test_where_no_plan_is_enough_more_devices_are_named(run: Run) -> None:
    words = ("forecast", "llama-2-7b", "--gpus", "1xrtx-4090", "--seq", "1024", "--lora-rank", "0")
    out = run(*words, "--host-memory", "32GB").out
    assert "No change makes it fit on 1 device" in out
    assert "devices (" in out
    # Where nobody said what the host has, the answer says what it must have.
    assert "of host memory in a node)" in " ".join(run(*words).out.split())


def test_every_command_shows_the_same_memory(run: Run) -> None:
    words = ("gpt2-xl", "--gpus", "8xa100-40g", "--batch", "1", "--zero", "1", "--recompute", "full")
    amounts = {
        command: next(line for line in run(command, *words).out.splitlines() if " GiB of " in line)
        for command in ("forecast", "fit", "advise")
    }
    needed = {command: line.split(" GiB of ")[0].split()[-1] for command, line in amounts.items()}
    assert len(set(needed.values())) == 1, amounts


def test_the_program_alone_shows_five_questions_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert len(QUESTIONS) == 5
    for question, command in QUESTIONS:
        assert question in out
        assert command in out
        assert main([command.split()[1], "--help"]) == 0
