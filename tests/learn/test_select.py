import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast.certainty._gaussian_process import trust_of
from traincast.certainty._labels import label_run
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.forecast._corrections import IGNORE, Corrections, Novelty, StackTable, doubt, novelty_of, shares_of
from traincast.forecast._tune import know_step
from traincast.learn._runs import keep_steps
from traincast.learn._select import CHOICES, POOLED, Fold, choose, possible_novelties, read_scope, select, widen
from traincast.learn._stack_fit import MeasuredStep
from traincast.spec import Estimate, Job, Parallelism, RunLabels, Stack
from traincast.spec._calibration import Choice
from traincast.units import NORMAL_90


def make_step(*, slower: float = 1.0, batch: int = 8, devices: int = 1, **values: object) -> MeasuredStep:
    """A step of the model as a machine would run it whose products are `slower` than we think."""
    job = Job(graph=make_mlp(layers=4, width=2048, batch=64 * batch))
    plan, cluster = Parallelism(data=devices), make_cluster(devices_per_node=devices)
    step = know_step(job, cluster, plan, 1.0, costs=Pricing(ops=Roofline()))
    labels = replace(label_run(job, cluster, plan), **values)  # type: ignore[arg-type]
    truth = step.predict(Stack(product_factor=slower))
    return MeasuredStep(labels=labels, step=replace(step, seconds=truth), start=Stack())


def runs(slower: float, **values: object) -> list[MeasuredStep]:
    return [make_step(slower=slower, batch=batch, **values) for batch in (1, 2, 4, 8, 12, 16)]


def learnt(steps: list[MeasuredStep], *asked: RunLabels) -> Corrections:
    return Corrections(keep_steps(steps, name="test", asked=asked))


def answer(found: Corrections, step: MeasuredStep, labels: RunLabels | None = None) -> float:
    """What the constants of the choice say of a step, before near runs correct it."""
    labels = labels or step.labels
    choice = found.choice_of(labels)
    corrections = found.calibration.runs
    assert corrections is not None
    table = StackTable(corrections.fitted if choice.constants else corrections.shipped)
    return step.step.predict(table.stack_for(labels, Stack(), profile=choice.profile))


def test_runs_that_agree_with_us_change_nothing() -> None:
    steps = runs(1.0)
    found = learnt(steps, steps[0].labels)
    assert not found.choice_of(steps[0].labels).constants
    assert answer(found, steps[0]) == pytest.approx(steps[0].step.seconds)


def test_a_shared_bias_is_learnt_even_for_a_model_never_seen() -> None:
    steps = [*runs(1.6), *runs(1.6, model="other")]
    strange = replace(steps[3].labels, model="third")
    found = learnt(steps, strange)
    assert found.choice_of(strange).constants
    assert answer(found, steps[3], strange) == pytest.approx(steps[3].step.seconds, rel=0.1)


def test_models_that_contradict_each_other_teach_nothing_about_a_third() -> None:
    steps = [*runs(1.6), *runs(0.6, model="other")]
    strange = replace(steps[0].labels, model="third")
    choice = learnt(steps, strange).choice_of(strange)
    assert not choice.constants
    assert not choice.near


def test_another_stack_is_answered_as_if_nothing_were_given() -> None:
    steps = runs(2.0)
    stranger = replace(steps[0].labels, stack="another")
    found = learnt(steps, stranger, steps[0].labels)
    assert found.choice_of(stranger) == IGNORE
    assert answer(found, steps[0], stranger) == steps[0].step.predict(Stack())


def test_a_device_that_no_fold_can_leave_out_is_not_corrected_by_near_runs() -> None:
    steps = [*runs(1.6), *runs(1.6, model="other")]
    strange = replace(steps[0].labels, device="h100-sxm-80g")
    assert not learnt(steps, strange).choice_of(strange).near


def pooled_ratio(found: Corrections, step: MeasuredStep, labels: RunLabels | None = None) -> float:
    """What pooling makes of the forecast of a step."""
    process = found._pooled_process(labels or step.labels)
    assert process is not None
    shares = shares_of(step.step.simulate(Stack()))
    return math.exp(process.predict([(labels or step.labels, shares)])[0].log_ratio)


def test_a_single_run_corrects_its_own_job_most_and_another_model_less() -> None:
    step = make_step(slower=1.6)
    other = replace(step.labels, model="other")
    found = learnt([step], step.labels, other)
    assert found.choice_of(step.labels) == found.choice_of(other) == POOLED
    missed = step.step.seconds / step.step.predict(Stack())
    assert 0.9 * missed < pooled_ratio(found, step) <= missed
    assert 1.0 < pooled_ratio(found, step, other) < pooled_ratio(found, step)


def test_five_runs_that_contradict_each_other_are_not_believed() -> None:
    agreeing = [make_step(slower=1.5, model=name) for name in "abcde"]
    contradicting = [make_step(slower=1.5 if name in "ace" else 0.7, model=name) for name in "abcde"]
    strange = replace(agreeing[0].labels, model="another")
    together, apart = (pooled_ratio(learnt(steps, strange), steps[0], strange) for steps in (agreeing, contradicting))
    assert together > 1.2
    assert abs(math.log(apart)) < 0.3 * math.log(together)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.lists(st.floats(-1, 1), min_size=8, max_size=8))
def test_trust_is_a_share_and_full_where_runs_foretell_each_other(errors: list[float], said: list[float]) -> None:
    found = np.array(errors)
    assert 0 <= trust_of(found, np.array(said[: len(errors)])) <= 1
    assert trust_of(found, found) == pytest.approx(1.0)
    assert trust_of(found, -found) <= trust_of(found, np.zeros(len(found)))


def test_what_is_new_is_seen_beside_the_whole_the_device_and_the_model() -> None:
    one = make_step().labels
    many = replace(one, num_devices=8, num_nodes=2)
    scope = read_scope([one, replace(many, model="other"), replace(many, device="p100-pcie-16g")])
    assert novelty_of(scope, one) == Novelty()
    assert novelty_of(scope, many) == Novelty()
    assert novelty_of(scope, replace(many, num_devices=16)).kinds == {"scale"}
    assert novelty_of(scope, replace(one, model="third")).kinds == {"model"}
    larger = replace(one, model="third", num_parameters=2 * one.num_parameters)
    assert novelty_of(scope, larger).kinds == {"size"}
    assert novelty_of(scope, replace(larger, family="another")).kinds == {"model"}
    alone = read_scope([one, replace(many, model="other")])
    assert novelty_of(alone, many) == Novelty(kinds=frozenset({"model scale"}), reach=(1, 1))
    apart = read_scope([one, replace(many, device="p100-pcie-16g")])
    assert novelty_of(apart, many) == Novelty(kinds=frozenset({"device scale"}), reach=(1, 1))


def test_the_same_devices_on_more_nodes_are_a_new_scale() -> None:
    labels = replace(make_step().labels, num_devices=4, num_nodes=1)
    assert novelty_of(read_scope([labels]), replace(labels, num_nodes=4)).kinds == {"scale"}


@given(
    devices=st.sampled_from((1, 2, 8, 64)),
    nodes=st.sampled_from((1, 2, 8)),
    model=st.sampled_from(("a", "b", "c")),
    device=st.sampled_from(("t4", "p100-pcie-16g", "h100-sxm-80g")),
    parameters=st.sampled_from((1e6, 1e9)),
)
def test_every_question_finds_its_novelty_among_the_possible_ones(
    devices: int, nodes: int, model: str, device: str, parameters: float
) -> None:
    one = RunLabels(model="a", family="f", mode="training_step", precision="fp32", device="t4", stack="pytorch")
    scope = read_scope([
        one, replace(one, model="b", num_devices=8, num_nodes=2),
        replace(one, device="p100-pcie-16g", num_devices=4, num_parameters=1e6),
    ])  # fmt: skip
    asked = replace(one, model=model, device=device, num_devices=devices, num_nodes=nodes, num_parameters=parameters)
    assert novelty_of(scope, asked) in set(possible_novelties(scope))


def test_what_is_learnt_for_every_question_holds_what_is_learnt_for_one() -> None:
    steps = [*runs(1.6), *runs(1.6, model="other")]
    strange = replace(steps[0].labels, model="third")
    assert set(select(steps, [strange])) <= set(select(steps))


def test_jobs_that_scale_alike_teach_how_a_profiled_one_scales() -> None:
    known = [
        step
        for model, slower in (("a", 1.3), ("b", 1.6), ("c", 0.8))
        for devices in (1, 4)
        for step in runs(slower, model=model, devices=devices)[::2]
    ]
    asked = make_step(slower=2.0, model="d", devices=4, batch=4)
    found = learnt([*known, *runs(2.0, model="d")], asked.labels)
    assert found.choice_of(asked.labels).profile
    assert answer(found, asked) == pytest.approx(asked.step.seconds, rel=0.05)


def folds(*errors: list[list[float]]) -> list[Fold]:
    return [Fold(errors=tuple(np.array(row) for row in fold), log_sigmas=np.full(len(fold[0]), 0.1)) for fold in errors]


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


def test_near_runs_that_may_not_answer_are_not_averaged_either() -> None:
    gaining = [[0.5] * 9, [0.5] * 9, [0.1] * 9, [0.05] * 9]
    losing = [[0.2] * 9, [0.2] * 9, [0.25] * 9, [0.3] * 9]
    assert {one.near for one in choose(folds(gaining, losing)).also} == {False, True}
    assert {one.near for one in choose(folds(gaining, losing), may_correct=False).also} == {False}


def test_the_interval_of_an_average_holds_its_own_errors_and_not_those_of_its_parts() -> None:
    opposite = [[0.3, 0.2] * 6, [0.3, 0.2] * 6, [-0.25, -0.25] * 6, [0.9, 0.9] * 6]
    choice = widen(choose(folds(opposite, opposite)), folds(opposite, opposite))
    assert choice.also
    assert 0.0 < choice.log_sigma < 0.1


def test_errors_within_the_noise_of_one_measurement_leave_nothing_to_carry_over() -> None:
    fold = [[0.05, 0.06, 0.07], *[[0.01, 0.01, 0.02]] * 3]
    assert choose(folds(fold, fold), floor=0.08) == IGNORE
    assert choose(folds(fold, fold), floor=0.04) != IGNORE


def test_the_simpler_of_equal_answers_is_taken() -> None:
    fold = [[0.5, 0.4, 0.5], *[[0.1, 0.1, 0.2]] * 3]
    assert choose(folds(fold, fold)) == CHOICES[1]


def test_an_interval_holds_the_errors_of_what_was_left_out() -> None:
    step = Estimate(seconds=1.0, low_s=0.9, high_s=1.1)
    sure = Choice(constants=True, log_sigma=0.1)
    assert doubt(IGNORE, step, own=step) == step
    wide = doubt(sure, step, own=step)
    assert math.log(wide.high_s / wide.low_s) == pytest.approx(2 * NORMAL_90 * 0.1)
    near = doubt(replace(sure, near=True, stretch=2.0), step, own=step)
    assert math.log(near.high_s / near.low_s) == pytest.approx(2 * math.log(1.1 / 0.9))
