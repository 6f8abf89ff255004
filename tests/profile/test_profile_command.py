"""`traincast profile` as its user runs it: killed, resumed, and told what is wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from traincast.store import Store

COMMAND = [sys.executable, "-m", "traincast", "profile"]


def blocks_in(path: Path) -> int:
    if not path.exists():
        return 0
    with Store(path) as store:
        return store.counts()["blocks"]


def test_a_killed_run_loses_nothing_finished_and_a_second_one_does_only_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    command = [*COMMAND, "operators", "softmax", "--rounds", "2", "--block", "0.02", "--store", str(path), "--json"]
    victim = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while blocks_in(path) < 5 and time.monotonic() < deadline and victim.poll() is None:
        time.sleep(0.1)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    kept = blocks_in(path)
    assert kept >= 5
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(again.stdout)
    with Store(path) as store:
        store.check()
        total = store.counts()
    assert total["blocks"] == 2 * total["experiments"]
    assert answer["num_blocks"] == total["blocks"] - kept
    assert answer["failures"] == {}


def test_a_step_of_a_users_file_is_measured_from_the_command_line(tmp_path: Path) -> None:
    model = tmp_path / "mine.py"
    model.write_text("import torch\ndef build(batch):\n    return torch.nn.Linear(4, 2), torch.rand(batch, 4)\n")
    command = [
        *COMMAND,
        "steps",
        f"{model}:build",
        "-b",
        "3",
        "--rounds",
        "2",
        "--block",
        "0.01",
        "-s",
        str(tmp_path / "m.db"),
        "--json",
    ]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (found,) = answer["measurements"]
    assert found["num_blocks"] == 2
    assert found["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["stps"], "did you mean 'steps'"),
        (["operators", "matmull"], "did you mean 'matmul'"),
        (["steps", "nothing.py:build"], "there is no file"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_two(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    done = subprocess.run(
        [*COMMAND, *arguments, "-s", str(tmp_path / "m.db")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
