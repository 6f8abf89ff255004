"""Logs of finished runs say how long a step took and what it held."""

import json
from pathlib import Path

import pytest

from traincast.configs import is_log, read_log
from traincast.errors import InvalidInput

TITAN = "".join(
    f"[titan] 2025-06-01 10:00:{2 * at:02d},000 - root - INFO - step: {at:2d}  loss:  7.1  memory: 47.65GiB(60.20%)  "
    f"tps: 4,096  tflops: 240.1  mfu: 24.3%\n"
    for at in range(1, 8)
)
MEGATRON = (
    " [2025-06-01 10:00:00] iteration      100/     500 | consumed samples:  51200 | elapsed time per iteration (ms): 1500.0 | "
    "learning rate: 3.0E-04 | global batch size:   512 | lm loss: 2.1E+00 |\n"
    "[Rank 0] (after 100 iterations) memory (MB) | allocated: 100.0 | max allocated: 40000.0 | reserved: 1.0 | "
    "max reserved: 41000.0\n"
)
DMON = (
    "# gpu   pwr gtemp mtemp    sm   mem    fb  bar1\n# Idx     W     C     C     %     %    MB    MB\n"
    "    0   650    60     -    98    40 71000     5\n    0   640    60     -    94    41 71500     5\n"
)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_trainer_state_says_its_mean_step(tmp_path: Path) -> None:
    entry = {"step": 500, "train_runtime": 1000.0, "train_steps_per_second": 0.5}
    state = {"global_step": 500, "log_history": [{"step": 10, "loss": 1.0}, entry]}
    found = read_log(write(tmp_path, "trainer_state.json", json.dumps(state)))
    assert (found.step_s, found.num_steps) == (2.0, 500)


def test_an_unfinished_trainer_state_is_refused_with_its_reason(tmp_path: Path) -> None:
    path = write(tmp_path, "trainer_state.json", json.dumps({"log_history": [{"step": 10, "loss": 1.0}]}))
    with pytest.raises(InvalidInput, match="train_runtime"):
        read_log(path)


def test_a_log_of_torchtitan_says_step_rate_and_memory(tmp_path: Path) -> None:
    found = read_log(write(tmp_path, "train.log", TITAN))
    assert found.step_s == pytest.approx(2.0)
    assert found.tokens_per_device_s == 4096
    assert found.reserved_bytes == pytest.approx(47.65 * 2**30)


def test_a_log_of_megatron_says_step_and_memory(tmp_path: Path) -> None:
    found = read_log(write(tmp_path, "train.log", MEGATRON))
    assert (found.step_s, found.reserved_bytes) == (1.5, 41000 * 2**20)


def test_the_devices_own_meter_says_memory_and_utilisation(tmp_path: Path) -> None:
    found = read_log(write(tmp_path, "dmon.txt", DMON))
    assert (found.step_s, found.used_bytes, found.gpu_share) == (None, 71500 * 2**20, pytest.approx(0.96))


def test_exports_with_a_clock_say_their_median_step(tmp_path: Path) -> None:
    history = "_step,_runtime,train/loss\n" + "".join(f"{10 * at},{25 * at},1.0\n" for at in range(6))
    metric = "".join(f"{1_700_000_000_000 + 3000 * at} 2.5 {at}\n" for at in range(6))
    assert read_log(write(tmp_path, "history.csv", history)).step_s == pytest.approx(2.5)
    assert read_log(write(tmp_path, "loss", metric)).step_s == pytest.approx(3.0)


def test_what_is_no_log_is_refused_with_what_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"trainer_state\.json, torchtitan"):
        read_log(write(tmp_path, "notes.txt", "nothing here\n"))
    assert not is_log(write(tmp_path, "trace.json", '{"traceEvents": []}'))
