"""MaxText's published runs, completed by the scripts behind them."""

import csv
from pathlib import Path
from typing import Any

import pytest

from research.maxtext import RUNS, read_runs
from traincast.accuracy._batch import answer_rows
from traincast.accuracy._cases import hide_results, parse_case, parse_observation
from traincast.accuracy._scores import Scored, assess
from traincast.accuracy._translate import translate

STEPS = Path(__file__).resolve().parents[3] / "shared" / "data" / "dist_steps" / "steps.parquet"

ROW: dict[str, Any] = {
    "source": "maxtext", "source_row": "v5e#1", "trust": "B", "model": "maxtext-16b", "family": "transformer-lm",
    "gpu": "TPU-v5e", "n_gpus": "512", "n_nodes": "2", "gpus_per_node": "256", "framework": "MaxText", "strategy": "fsdp",
    "dtype": "", "step_time_s": "", "sync_time_s": "", "tflops_per_gpu": "117", "mfu": "0.59", "mem_gb_per_gpu": "",
    "status": "ok", "note": "",
}  # fmt: skip


def read_table(tmp_path: Path, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    path = tmp_path / "steps.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return read_runs(path)


@pytest.mark.parametrize(("device", "model"), RUNS)
def test_the_decoder_of_a_run_has_the_parameters_its_name_says(device: str, model: str) -> None:
    run = RUNS[device, model]
    width = run.n_heads * run.head_dim
    layer = 4 * run.hidden * width + (3 if run.gated else 2) * run.hidden * run.ffn
    parameters = run.n_layers * layer + 2 * run.vocab * run.hidden
    assert parameters == pytest.approx(float(model.removeprefix("maxtext-").removesuffix("b")) * 1e9, rel=0.04)


def test_throughput_becomes_the_step_it_stands_for(tmp_path: Path) -> None:
    row = read_table(tmp_path, ROW)[0]
    run = RUNS["tpu-v5e", "maxtext-16b"]
    assert row["measured_step_s"] == pytest.approx(run.flop_per_device() / 117e12)
    slower = read_table(tmp_path, {**ROW, "tflops_per_gpu": "58.5"})[0]
    assert slower["measured_step_s"] == pytest.approx(2 * row["measured_step_s"])


def test_an_answer_does_not_change_with_the_published_throughput(tmp_path: Path) -> None:
    rows = read_table(tmp_path, ROW, {**ROW, "tflops_per_gpu": "5", "mfu": "0.01", "step_time_s": "99"})
    first, second = hide_results(rows)
    assert first == second


def test_slices_hold_whole_copies_and_every_host_has_its_network(tmp_path: Path) -> None:
    question = translate(parse_case(read_table(tmp_path, ROW)[0]))
    assert question.parallelism.shard == 256
    group = question.cluster.groups[0]
    assert (group.num_nodes, group.devices_per_node) == (2, 256)
    assert group.inter.bytes_per_s == pytest.approx(32 * 25e9)


def test_a_run_that_is_not_known_is_refused(tmp_path: Path) -> None:
    row = read_table(tmp_path, {**ROW, "model": "maxtext-999b"})[0]
    assert parse_observation(row).step_s is None
    prediction = answer_rows([row])[0]
    assert not prediction.answered
    assert "batch" in prediction.reason


def test_half_of_maxtexts_published_runs_are_within_15_percent() -> None:
    if not STEPS.is_file():
        pytest.skip(f"the measured steps are not here: {STEPS}")
    rows = read_runs(STEPS)
    answers = answer_rows(rows)
    scored = [
        Scored(case=parse_case(row), prediction=answer, observation=parse_observation(row))
        for row, answer in zip(rows, answers, strict=True)
    ]
    time = assess(scored).time
    assert time.num_answered == len(rows) == 35
    assert time.median is not None
    assert time.median < 0.15
