import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.accuracy._cases import Case, Observation
from traincast.accuracy._predictions import Prediction, refuse
from traincast.accuracy._scores import Scored, break_down, confuse, name_scale, score, score_time


def make_scored(
    *, said: bool | None, status: str, step: float | None = 1.0, quality: str = "clean", gpu: str = "t4"
) -> Scored:
    return Scored(
        case=Case(case_id="x", gpu=gpu),
        prediction=Prediction(case_id="x", step_s=step, step_low_s=0.5, step_high_s=2.0, memory_bytes=1.0, fits=said),
        observation=Observation(case_id="x", step_s=1.0, status=status, quality=quality, memory_bytes=2.0),
    )


def test_figures_follow_their_definitions() -> None:
    found = score([1.0, 1.0, 2.0, 4.0], [1.08, 0.5, None, 8.0], intervals=[(1.0, 1.2), (0.4, 0.6), None, (1.0, 9.0)])
    assert (found.num_cases, found.num_answered) == (4, 3)
    assert found.mean == pytest.approx((0.08 + 0.5 + 1.0) / 3)
    assert found.median == pytest.approx(0.5)
    assert found.p90 == pytest.approx(0.5 + 0.8 * (1.0 - 0.5))
    assert found.max == pytest.approx(1.0)
    assert found.within_10 == pytest.approx(1 / 3)
    assert found.bias == pytest.approx((0.08 - 0.5 + 1.0) / 3)
    assert found.coverage == pytest.approx(2 / 3)
    assert found.median_log_width == pytest.approx(math.log(1.5))


def test_nothing_answered_has_no_figures() -> None:
    found = score([1.0], [None])
    assert (found.num_cases, found.num_answered, found.mean, found.coverage) == (1, 0, None, None)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.1, 10))
def test_a_constant_factor_is_the_error_everywhere(measured: list[float], factor: float) -> None:
    found = score(measured, [value * factor for value in measured])
    for figure in (found.mean, found.median, found.p90, found.max):
        assert figure == pytest.approx(abs(factor - 1), abs=1e-9)


def test_false_safe_is_kept_apart_from_false_alarm() -> None:
    rows = [make_scored(said=said, status=status) for said, status in
            ((True, "ok"), (True, "oom"), (True, "failed"), (False, "ok"), (False, "failed"), (None, "ok"))]  # fmt: skip
    found = confuse(rows)
    assert (found.true_fit, found.false_safe, found.false_alarm, found.true_fail) == (1, 2, 1, 1)
    assert found.false_safe_rate == pytest.approx(2 / 3)
    assert found.false_alarm_rate == pytest.approx(1 / 2)
    assert found.accuracy == pytest.approx(2 / 5)


def test_a_plan_that_cannot_be_built_is_said_to_fail() -> None:
    rows = [replace(make_scored(said=None, status=status), prediction=refuse("x", "no such plan", fits=False))
            for status in ("failed", "ok")]  # fmt: skip
    found = confuse(rows)
    assert (found.true_fail, found.false_alarm) == (1, 1)
    assert score_time(rows).answered == 0.0
    assert confuse([replace(rows[0], prediction=refuse("x", "unknown model"))]).num_cases == 0


def test_suspect_rows_are_scored_for_nothing() -> None:
    row = make_scored(said=True, status="ok", quality="suspect")
    assert score_time([row]).num_cases == 0
    assert confuse([row]).num_cases == 0


def test_an_unanswered_row_lowers_the_answered_share() -> None:
    rows = [make_scored(said=True, status="ok"), make_scored(said=True, status="ok", step=None)]
    assert score_time(rows).answered == 0.5


def test_parts_add_up_to_the_whole() -> None:
    rows = [make_scored(said=True, status="ok", gpu=gpu) for gpu in ("t4", "t4", "a10")]
    parts = break_down(rows, "gpu")
    assert list(parts) == ["t4", "a10"]
    assert sum(part.time.num_cases for part in parts.values()) == 3


@pytest.mark.parametrize(
    ("gpus", "nodes", "name"),
    [(1, 1, "1 GPU"), (8, 1, "1 node"), (16, 2, "2 nodes"), (24, 3, "3-4 nodes"), (64, 8, "5-8 nodes"), (999, 99, "33+ nodes"),
     (4, None, "2+ GPUs, nodes unknown")],
)  # fmt: skip
def test_scales_are_named(gpus: int, nodes: int | None, name: str) -> None:
    assert name_scale(Case(case_id="x", gpu="t4", n_gpus=gpus, n_nodes=nodes)) == name


def test_an_excused_failure_is_no_false_safe() -> None:
    rows = [make_scored(said=True, status="failed"), make_scored(said=True, status="ok")]
    assert confuse(rows).false_safe == 1
    found = confuse([replace(rows[0], excused=True), rows[1]])
    assert (found.false_safe, found.excused, found.true_fit) == (0, 1, 1)


def test_an_interval_is_scored_by_its_width_and_by_what_lies_outside() -> None:
    inside = score([1.0], [1.0], intervals=[(0.5, 2.0)], constant=math.log(4))
    assert inside.interval_score == pytest.approx(math.log(4))
    assert inside.constant_score == pytest.approx(2 * math.log(4))
    outside = score([4.0], [1.0], intervals=[(0.5, 2.0)])
    assert outside.interval_score == pytest.approx(math.log(4) + 20 * math.log(2))
