import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import traincast.cli
from traincast.cli import COMMANDS, make_app

Run = Callable[..., Any]
HEAVY = ("torch", "numpy", "pyarrow", "scipy", "lightgbm", "transformers", "jax", "onnx")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from traincast.__main__ import main; main(['--help']);"
        f"sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    ran = python("-c", code)
    assert ran.stderr == ""
    for name in ("forecast", "batch", "accuracy"):
        assert name in ran.stdout


def test_a_catalogue_forecast_needs_no_torch() -> None:
    code = (
        "import sys; from traincast.__main__ import main;"
        "code = main(['forecast', 'gpt2', '--device', 'a100-80g', '--json']);"
        "sys.stderr.write(f'{code}' + (' torch' if 'torch' in sys.modules else ''))"
    )
    assert python("-c", code).stderr == "0"


def test_the_module_runs_as_a_program() -> None:
    ran = python("-m", "traincast", "--version")
    assert ran.returncode == 0
    assert ran.stdout.startswith("traincast ")


def test_a_closed_pipe_is_no_error() -> None:
    ran = subprocess.run(
        f"{sys.executable} -m traincast forecast gpt2 -d a100-80g --json --explain | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0
    assert ran.stderr == ""


def test_every_listed_command_that_exists_is_a_function_of_its_name() -> None:
    folder = Path(traincast.cli.__file__).parent
    present = [name for name in COMMANDS if (folder / f"{name}.py").exists()]
    registered = {command.name for command in make_app().registered_commands}
    assert set(present) == registered


def test_without_a_command_questions_are_shown_and_the_help_has_panels(run: Run) -> None:
    assert "--tokens 15B" in run().out
    assert "Measure and learn" in run("--help").out


@pytest.mark.parametrize("arguments", [("forcast",), ("forecast",), ("forecast", "gpt2", "--devise", "a100-80g")])
def test_a_misspelt_command_or_option_is_one_line_and_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1


def test_a_misspelt_command_names_the_nearest(run: Run) -> None:
    assert "'forecast'" in run("forcast").err


def complete(line: str) -> list[str]:
    """What bash would offer after this line."""
    ran = python(
        "-m",
        "traincast",
        _TRAINCAST_COMPLETE="complete_bash",
        COMP_WORDS=line,
        COMP_CWORD=str(len(line.split(" ")) - 1),
    )
    return ran.stdout.split()


def test_the_shell_completes_commands_devices_and_workloads() -> None:
    assert complete("traincast forec") == ["forecast"]
    assert "a100-sxm4-80g" in complete("traincast forecast gpt2 --device a100")
    assert "gpt2-xl" in complete("traincast forecast gpt2-")


def test_a_completion_script_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = python("-m", "traincast", "--show-completion", "bash")
    assert "_TRAINCAST_COMPLETE" in ran.stdout
