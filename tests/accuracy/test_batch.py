from typing import Any

import pytest

from traincast.accuracy._batch import answer_rows, learn_rows
from traincast.accuracy._cases import parse_case
from traincast.accuracy._runs import read_runs
from traincast.accuracy._translate import translate
from traincast.learn import learn, save_calibration
from traincast.learn._calibrations import load_calibration
from traincast.plan import forecast

ROW: dict[str, Any] = {
    "case_id": "x", "gpu": "a100-sxm4-40g", "family": "transformer-lm", "arch": "llama", "model": "small", "n_layers": 24,
    "hidden": 1024, "n_heads": 8, "n_kv_heads": 8, "head_dim": 128, "ffn": 4096, "vocab": 8192, "seq_len": 2048,
    "mode": "training_step", "dtype": "bf16", "attention": "flash", "optimizer": "adam", "n_gpus": 1, "n_nodes": 1,
    "micro_batch": 32.0, "grad_accum": 1, "framework": "pytorch-2.1",
}  # fmt: skip


def test_a_job_that_may_run_its_layers_again_is_not_said_to_fail_for_want_of_it() -> None:
    stated, open_, huge = answer_rows(
        [
            {**ROW, "act_ckpt": "none"},
            {**ROW, "act_ckpt": "unknown"},
            {**ROW, "act_ckpt": "unknown", "micro_batch": 512.0},
        ]
    )
    assert (stated.fits, open_.fits, huge.fits) == (False, True, False)
    assert open_.step_s == stated.step_s
    assert "left open" in open_.reason


def test_the_memory_of_a_source_that_read_the_meter_is_what_the_meter_shows() -> None:
    row = {**ROW, "micro_batch": 2.0}
    tensors, metered = answer_rows([row, {**row, "framework": "nvidia-dle-pytorch(lambda)", "case_id": "y"}])
    assert tensors.memory_bytes is not None
    assert metered.memory_bytes is not None
    assert tensors.memory_bytes + 0.5e9 < metered.memory_bytes < 42e9


def measure(batch: float, factor: float, **values: Any) -> dict[str, Any]:
    """A row that took `factor` times what we say."""
    row = {**ROW, "micro_batch": batch, "case_id": f"{batch}", **values}
    step_s = answer_rows([row])[0].step_s
    assert step_s is not None
    return {**row, "measured_step_s": factor * step_s, "measured_status": "ok", "quality": "clean"}


@pytest.fixture(scope="module")
def given_rows() -> list[dict[str, Any]]:
    return [measure(batch, 1.5) for batch in (1.0, 2.0, 4.0)]


def test_a_row_is_answered_as_forecast_answers_its_question_whatever_the_other_rows(
    given_rows: list[dict[str, Any]],
) -> None:
    row = {**ROW, "micro_batch": 3.0}
    calibration = learn_rows(given_rows)
    question = translate(parse_case(row))
    single = forecast(question.job, question.cluster, question.parallelism, calibration=calibration)
    alone, beside = answer_rows([row], given=given_rows)[0], answer_rows([row, *given_rows], calibration=calibration)[0]
    assert (alone.step_s, alone.step_low_s, alone.step_high_s) == (
        single.step.seconds, single.step.low_s, single.step.high_s,
    )  # fmt: skip
    assert alone == beside
    plain = answer_rows([row])[0].step_s
    assert plain is not None
    assert alone.step_s == pytest.approx(1.5 * plain, rel=0.02)
    assert "3 runs of this stack" in alone.reason


def test_a_corrected_step_carries_job_time_and_throughput_with_it(given_rows: list[dict[str, Any]]) -> None:
    question = translate(parse_case({**ROW, "micro_batch": 2.0}))
    parts = question.job, question.cluster, question.parallelism
    calibration = learn(read_runs(given_rows))
    plain, found = forecast(*parts), forecast(*parts, calibration=calibration)
    factor = found.step.seconds / plain.step.seconds
    assert factor == pytest.approx(1.5, rel=0.02)
    assert found.timeline.duration_s == pytest.approx(found.step.seconds)
    assert found.samples_per_s == pytest.approx(plain.samples_per_s / factor)
    assert found.utilization == pytest.approx(plain.utilization / factor)
    assert found.memory == plain.memory


def test_a_calibration_answers_the_same_after_a_journey_through_a_file(
    given_rows: list[dict[str, Any]], tmp_path: Any
) -> None:
    calibration = learn(read_runs(given_rows), name="mine", sources=("my runs",))
    save_calibration(calibration, tmp_path / "mine.json")
    again = load_calibration(tmp_path / "mine.json")
    assert again == calibration
    row = {**ROW, "micro_batch": 2.0, "n_gpus": 4, "dp": 4}
    assert answer_rows([row], calibration=again) == answer_rows([row], calibration=calibration)


def test_a_stack_that_was_not_learnt_from_is_answered_as_before_and_says_so(given_rows: list[dict[str, Any]]) -> None:
    row = {**ROW, "micro_batch": 2.0, "framework": "torchtitan"}
    with_runs, plain = answer_rows([row], calibration=learn(read_runs(given_rows)))[0], answer_rows([row])[0]
    assert with_runs.step_s == plain.step_s
    assert "no run of this stack" in with_runs.reason
