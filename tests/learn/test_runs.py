import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast.certainty._gaussian_process import prove, trust_of
from traincast.certainty._labels import label_run
from traincast.errors import InvalidInput
from traincast.forecast import Engine, forecast
from traincast.learn import describe_stacks, learn
from traincast.spec import MeasuredRun, Parallelism
from traincast.spec._job import Job

JOB, PLAN, CLUSTER = (
    Job(graph=make_mlp(layers=4, width=2048, batch=512)),
    Parallelism(),
    make_cluster(devices_per_node=1),
)


def make_run(slower: float, **values: object) -> MeasuredRun:
    """A step that took so many times what is forecast."""
    labels = replace(label_run(JOB, CLUSTER, PLAN), **values)  # type: ignore[arg-type]
    step_s = slower * Engine().forecast(JOB, CLUSTER, PLAN).step.seconds
    return MeasuredRun(labels=labels, job=JOB, cluster=CLUSTER, parallelism=PLAN, step_s=step_s)


def factor(*runs: MeasuredRun) -> float:
    """What becomes of the step of the job."""
    plain, found = forecast(JOB, CLUSTER, PLAN), forecast(JOB, CLUSTER, PLAN, calibration=learn(runs))
    return found.step.seconds / plain.step.seconds


def test_runs_that_agree_with_us_change_nothing() -> None:
    assert factor(make_run(1.0), make_run(1.0, model="other")) == pytest.approx(1.0)


def test_a_single_run_corrects_its_own_job_most_and_another_model_less() -> None:
    own, other = factor(make_run(1.5)), factor(make_run(1.5, model="other", family="other"))
    assert 1.4 < own < 1.5
    assert 1.0 < other < own


def test_a_run_that_repeats_could_explain_moves_the_answer_by_less_than_half_of_what_it_missed() -> None:
    assert factor(make_run(1.03)) - 1 < 0.5 * 0.03


def test_one_run_that_is_far_off_is_believed_less_than_several_that_agree() -> None:
    lone, agreeing = factor(make_run(4.0)), factor(*(make_run(4.0, pass_tokens=512.0 + place) for place in range(4)))
    assert 1.5 < lone < 2.5
    assert agreeing > 1.3 * lone


def test_runs_of_another_stack_say_nothing_and_the_answer_says_so() -> None:
    answer = forecast(JOB, CLUSTER, PLAN, calibration=learn([make_run(1.5, stack="torchtitan")]))
    assert answer.step == forecast(JOB, CLUSTER, PLAN).step
    assert "holds no run of this stack" in (answer.learned or "")


def test_five_runs_that_contradict_each_other_are_not_believed() -> None:
    agreeing = factor(*(make_run(1.5, model=name) for name in "abcde"))
    contradicting = factor(*(make_run(1.5 if name in "ace" else 0.7, model=name) for name in "abcde"))
    assert agreeing > 1.2
    assert abs(math.log(contradicting)) < 0.3 * math.log(agreeing)


def test_what_runs_are_worth_is_told_by_leaving_each_out() -> None:
    found = learn([make_run(1.5, pass_tokens=512.0 + place) for place in range(5)])
    (stack,) = describe_stacks(found)
    assert (stack.num_runs, stack.most_devices) == (5, 1)
    assert stack.error_without == pytest.approx(1 / 3, rel=0.01)
    assert stack.error_with < 0.1
    assert found.runs is not None
    assert prove(found.runs.runs[:1]) == pytest.approx((1 / 3, 1 / 3), rel=0.01)


def test_nothing_can_be_learnt_from_no_run() -> None:
    with pytest.raises(InvalidInput, match="no measured run"):
        learn([])


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.lists(st.floats(-1, 1), min_size=8, max_size=8))
def test_trust_is_a_share_and_full_where_runs_foretell_each_other(errors: list[float], said: list[float]) -> None:
    found = np.array(errors)
    assert 0 <= trust_of(found, np.array(said[: len(errors)])) <= 1
    assert trust_of(found, found) == pytest.approx(1.0)
    assert trust_of(found, -found) <= trust_of(found, np.zeros(len(found)))
