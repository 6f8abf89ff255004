import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast.accuracy.cases import Case
from traincast.accuracy.grant import CHOICES, IGNORE, Verdict, choose, weigh
from traincast.accuracy.retune import Lesson
from traincast.cost.pricing import Pricing
from traincast.cost.roofline import Roofline
from traincast.cost.stack import Stack
from traincast.forecast.tune import know_step
from traincast.spec import Job, Parallelism


def make_lesson(*, slower: float = 1.0, batch: int = 8, **values: object) -> Lesson:
    """A step of the model as a machine would run it whose products are `slower` than we think."""
    usual: dict[str, object] = {"case_id": "x", "gpu": "t4", "model": "mlp", "framework": "f", "n_gpus": 1}
    case = Case(**{**usual, "micro_batch": float(batch), **values})  # type: ignore[arg-type]
    job = Job(graph=make_mlp(layers=4, width=2048, batch=64 * batch))
    step = know_step(job, make_cluster(), Parallelism(), 1.0, costs=Pricing(ops=Roofline()))
    truth = step.predict(Stack(product_factor=slower))
    return Lesson(case=case, step=replace(step, seconds=truth), start=Stack())


def rows(slower: float, **values: object) -> list[Lesson]:
    return [make_lesson(slower=slower, batch=batch, **values) for batch in (1, 2, 4, 8, 12, 16)]


def test_rows_that_agree_with_us_change_nothing() -> None:
    lessons = rows(1.0)
    grant = weigh(lessons, [lessons[0].case])
    assert grant.verdict_of(lessons[0].case) == IGNORE


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
    assert weigh(lessons, [strange]).verdict_of(strange) == IGNORE


def test_another_framework_is_answered_as_if_nothing_were_given() -> None:
    lessons = rows(2.0)
    stranger = replace(lessons[0].case, framework="another")
    grant = weigh(lessons, [stranger, lessons[0].case])
    assert grant.verdict_of(stranger) == IGNORE
    assert grant.stack_of(stranger, "pytorch") == grant.ignoring.stack_of(stranger, "pytorch")


def test_a_device_that_no_fold_can_rehearse_is_not_corrected_by_near_rows() -> None:
    lessons = [*rows(1.6), *rows(1.6, model="other")]
    strange = replace(lessons[0].case, gpu="h100-sxm-80g")
    assert not weigh(lessons, [strange]).verdict_of(strange).near


def test_a_single_profile_corrects_its_own_job_and_leaves_the_constants() -> None:
    lesson = make_lesson(slower=1.6)
    other = replace(lesson.case, model="other")
    grant = weigh([lesson], [lesson.case, other])
    assert grant.verdict_of(lesson.case) == Verdict(near=True)
    assert grant.verdict_of(other) == IGNORE


@given(
    ignored=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=8),
    factor=st.floats(0.92, 3.0),
    may_correct=st.booleans(),
)
def test_what_does_not_clearly_help_is_not_used(ignored: list[float], factor: float, may_correct: bool) -> None:
    others = [[factor * error for error in ignored]] * (len(CHOICES) - 1)
    assert choose([ignored, *others], may_correct=may_correct) == IGNORE or math.isclose(sum(ignored), 0)
