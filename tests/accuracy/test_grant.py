import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast.accuracy.cases import Case
from traincast.accuracy.grant import CHOICES, IGNORE, Fold, Novelty, calibrate, choose, read_scope, weigh
from traincast.accuracy.predictions import Prediction
from traincast.accuracy.retune import Lesson
from traincast.catalog.stacks import plain_stack
from traincast.cost.pricing import Pricing
from traincast.cost.roofline import Roofline
from traincast.forecast.tune import know_step
from traincast.spec import Job, Parallelism, Stack


def make_lesson(*, slower: float = 1.0, batch: int = 8, **values: object) -> Lesson:
    """A step of the model as a machine would run it whose products are `slower` than we think."""
    usual: dict[str, object] = {"case_id": "x", "gpu": "t4", "model": "mlp", "framework": "f", "n_gpus": 1}
    case = Case(**{**usual, "micro_batch": float(batch), **values})  # type: ignore[arg-type]
    job = Job(graph=make_mlp(layers=4, width=2048, batch=64 * batch))
    devices = case.n_gpus or 1
    plan, cluster = Parallelism(data=devices), make_cluster(devices_per_node=devices)
    step = know_step(job, cluster, plan, 1.0, costs=Pricing(ops=Roofline()))
    truth = step.predict(Stack(product_factor=slower))
    return Lesson(case=case, step=replace(step, seconds=truth), start=Stack())


def rows(slower: float, **values: object) -> list[Lesson]:
    return [make_lesson(slower=slower, batch=batch, **values) for batch in (1, 2, 4, 8, 12, 16)]


def test_rows_that_agree_with_us_change_nothing() -> None:
    lessons = rows(1.0)
    grant = weigh(lessons, [lessons[0].case])
    assert not grant.verdict_of(lessons[0].case).constants
    assert lessons[0].step.predict(grant.stack_of(lessons[0].case, "pytorch")) == pytest.approx(lessons[0].step.seconds)


def test_a_shared_bias_is_learnt_even_for_a_model_never_seen() -> None:
    lessons = [*rows(1.6), *rows(1.6, model="other")]
    strange = replace(lessons[0].case, model="third")
    grant = weigh(lessons, [strange])
    assert grant.verdict_of(strange).constants
    moved = grant.stack_of(strange, "pytorch")
    assert lessons[3].step.predict(moved) == pytest.approx(lessons[3].step.seconds, rel=0.1)


def test_models_that_contradict_each_other_teach_nothing_about_a_third() -> None:
    lessons = [*rows(1.6), *rows(0.6, model="other")]
    strange = replace(lessons[0].case, model="third")
    verdict = weigh(lessons, [strange]).verdict_of(strange)
    assert not verdict.constants
    assert not verdict.near


def test_another_framework_is_answered_as_if_nothing_were_given() -> None:
    lessons = rows(2.0)
    stranger = replace(lessons[0].case, framework="another")
    grant = weigh(lessons, [stranger, lessons[0].case])
    assert grant.verdict_of(stranger) == IGNORE
    assert grant.stack_of(stranger, "pytorch") == plain_stack()


def test_a_device_that_no_fold_can_rehearse_is_not_corrected_by_near_rows() -> None:
    lessons = [*rows(1.6), *rows(1.6, model="other")]
    strange = replace(lessons[0].case, gpu="h100-sxm-80g")
    assert not weigh(lessons, [strange]).verdict_of(strange).near


def test_a_single_profile_corrects_its_own_job_and_leaves_the_constants() -> None:
    lesson = make_lesson(slower=1.6)
    other = replace(lesson.case, model="other")
    grant = weigh([lesson], [lesson.case, other])
    assert not grant.verdict_of(lesson.case).constants
    assert lesson.step.predict(grant.stack_of(lesson.case, "pytorch")) == pytest.approx(lesson.step.seconds)
    assert grant.stack_of(other, "pytorch") == plain_stack()
    assert not grant.verdict_of(other).near


def test_what_is_new_is_seen_beside_the_whole_the_device_and_the_model() -> None:
    case = make_lesson().case
    many = replace(case, n_gpus=8, n_nodes=2)
    scope = read_scope([case, replace(many, model="other"), replace(many, gpu="p100-pcie-16g")])
    assert scope.novelty_of(case) == Novelty()
    assert scope.novelty_of(many) == Novelty()
    assert scope.novelty_of(replace(many, n_gpus=16)).kinds == {"scale"}
    assert scope.novelty_of(replace(case, model="third")).kinds == {"model"}
    alone = read_scope([case, replace(many, model="other")])
    assert alone.novelty_of(many) == Novelty(kinds=frozenset({"model scale"}), reach=(1, 1))
    apart = read_scope([case, replace(many, gpu="p100-pcie-16g")])
    assert apart.novelty_of(many) == Novelty(kinds=frozenset({"device scale"}), reach=(1, 1))


def test_the_same_devices_on_more_nodes_are_a_new_scale() -> None:
    case = replace(make_lesson().case, n_gpus=4, n_nodes=1)
    assert read_scope([case]).novelty_of(replace(case, n_nodes=4)).kinds == {"scale"}


def test_jobs_that_scale_alike_teach_how_a_profiled_one_scales() -> None:
    known = [
        lesson
        for model, slower in (("a", 1.3), ("b", 1.6), ("c", 0.8))
        for devices in (1, 4)
        for lesson in rows(slower, model=model, n_gpus=devices)[::2]
    ]
    asked = make_lesson(slower=2.0, model="d", n_gpus=4, batch=4)
    grant = weigh([*known, *rows(2.0, model="d")], [asked.case])
    verdict = grant.verdict_of(asked.case)
    assert verdict.profile
    assert asked.step.predict(grant.stack_of(asked.case, "pytorch")) == pytest.approx(asked.step.seconds, rel=0.05)


def folds(*errors: list[list[float]]) -> list[Fold]:
    return [Fold(errors=tuple(np.array(row) for row in fold), spreads=np.full(len(fold[0]), 0.1)) for fold in errors]


@given(
    ignored=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=8),
    factor=st.floats(1.0, 3.0),
    may_correct=st.booleans(),
)
def test_what_does_not_help_is_not_used(ignored: list[float], factor: float, may_correct: bool) -> None:
    fold = [ignored, *[[factor * error for error in ignored]] * (len(CHOICES) - 1)]
    assert replace(choose(folds(fold, fold), may_correct=may_correct), also=()) == IGNORE


def test_what_surely_harms_has_no_part_in_the_answer() -> None:
    fold = [[0.1, 0.12, 0.09], *[[0.2, 0.21, 0.25]] * 3]
    assert choose(folds(fold, fold)) == IGNORE


def test_answers_that_cannot_be_told_apart_are_averaged_each_once() -> None:
    gaining, losing = [[0.5] * 9, *[[0.1] * 9] * 3], [[0.2] * 9, *[[0.25] * 9] * 3]
    assert choose(folds(gaining, losing)) == replace(IGNORE, also=(CHOICES[1],))
    assert choose(folds(gaining, gaining)) == CHOICES[1]


def test_near_rows_that_may_not_answer_are_not_averaged_either() -> None:
    gaining = [[0.5] * 9, [0.5] * 9, [0.1] * 9, [0.05] * 9]
    losing = [[0.2] * 9, [0.2] * 9, [0.25] * 9, [0.3] * 9]
    assert {one.near for one in choose(folds(gaining, losing)).also} == {False, True}
    assert {one.near for one in choose(folds(gaining, losing), may_correct=False).also} == {False}


def test_the_interval_of_an_average_holds_its_own_errors_and_not_those_of_its_parts() -> None:
    opposite = [[0.3, 0.2] * 6, [0.3, 0.2] * 6, [-0.25, -0.25] * 6, [0.9, 0.9] * 6]
    verdict = calibrate(choose(folds(opposite, opposite)), folds(opposite, opposite))
    assert verdict.also
    assert 0.0 < verdict.spread < 0.1


def test_errors_within_the_noise_of_one_measurement_leave_nothing_to_carry_over() -> None:
    fold = [[0.05, 0.06, 0.07], *[[0.01, 0.01, 0.02]] * 3]
    assert choose(folds(fold, fold), floor=0.08) == IGNORE
    assert choose(folds(fold, fold), floor=0.04) != IGNORE


def test_the_simpler_of_equal_answers_is_taken() -> None:
    fold = [[0.5, 0.4, 0.5], *[[0.1, 0.1, 0.2]] * 3]
    assert choose(folds(fold, fold)) == CHOICES[1]


def test_an_interval_holds_the_errors_of_what_was_left_out() -> None:
    sure = replace(CHOICES[2], spread=0.1)
    answer = sure.doubt(Prediction(case_id="x", step_s=1.0, step_low_s=0.2, step_high_s=5.0))
    assert answer.step_high_s == pytest.approx(math.exp(0.16449), rel=1e-3)
    assert CHOICES[2].doubt(answer) == answer
