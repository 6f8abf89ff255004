"""How the error of a forecast is fitted to what is new about its question."""

import dataclasses

import numpy as np
import pytest

from research.fits.asked import Asked
from research.fits.intervals import (
    COVERAGE,
    Apart,
    Fits,
    Form,
    _one_width,
    ends_of,
    find_given,
    first_guess,
    gather,
    make_examples,
    publisher_quantiles,
    stretch_publishers,
)
from traincast.certainty._certainty import FEATURES, KNOWN_STACK, LEVELS, STEP, Setting

SETTING = Setting(
    stack="a", device="x", architecture="", vendor="", family="dense", precision="fp32", network="", num_devices=1,
    num_nodes=1, compiled=False,
)  # fmt: skip


def runs(publisher: str, *, bias: float, sigma: float, number: int = 60, seed: int = 0) -> list[Asked]:
    """Runs of one publisher with a stack of its own on two devices, each forecast with and without what they taught."""
    errors = np.random.default_rng(seed).normal(0.0, sigma, number)
    return [
        Asked(
            quantity=STEP, publisher=publisher, source=publisher, workload=f"m{place % 3}",
            setting=dataclasses.replace(SETTING, stack=publisher, device="xy"[place % 2], num_devices=1 + place % 4),
            operators=0.08, host=0.0, exposed=0.0, bandwidth=0.0, call_s=18e-6, activations=0.0, beside=0.0, step_s=1.0,
            error=float(error + (bias if untaught else 0.0)), untaught=untaught,
        )
        for place, error in enumerate(errors)
        for untaught in (False, True)
    ]  # fmt: skip


def test_errors_of_publishers_that_go_together_widen_the_interval_of_a_new_one() -> None:
    rng = np.random.default_rng(1)
    names = [name for name in "abcdef" for _ in range(50)]
    alone = publisher_quantiles(rng.normal(0, 1, 300), names)
    effects = dict(zip("abcdef", (-3.0, -1.0, 0.0, 1.0, 2.0, 4.0), strict=True))
    together = publisher_quantiles(rng.normal(0, 1, 300) + np.array([effects[name] for name in names]), names)
    low, high = LEVELS.index(0.05), LEVELS.index(0.95)
    assert alone[high] - alone[low] == pytest.approx(3.3, rel=0.25)
    assert together[high] - together[low] > 2 * (alone[high] - alone[low])


def test_few_publishers_say_less_of_how_far_apart_publishers_are_than_is_known_before() -> None:
    names = [name for name in "abc" for _ in range(50)]
    errors = np.random.default_rng(1).normal(0, 1, 150) + np.repeat([-0.5, 0.0, 0.5], 50)
    high = LEVELS.index(0.95)
    alone = publisher_quantiles(errors, names)[high]
    assert publisher_quantiles(errors, names, Apart(sigma=0.4, publishers=9))[high] < 0.9 * alone
    assert publisher_quantiles(errors, names, Apart(sigma=2.0, publishers=9))[high] > 1.1 * alone


def test_a_stack_has_the_scale_of_its_own_errors_and_a_new_one_a_larger() -> None:
    rows = [
        *runs("a", bias=0.3, sigma=0.1, seed=1),
        *runs("b", bias=-0.2, sigma=0.1, seed=2),
        *runs("c", bias=0.1, sigma=0.2, seed=3),
    ]
    known = gather([row for row in rows if not row.untaught], first_guess(rows))
    assert known["a"].log_sigma == pytest.approx((0.1, 0.1), rel=0.35)
    assert known["c"].log_sigma > known["a"].log_sigma
    certainty, examples = Fits(rows=rows).fit()
    seen = next(one for one in examples if one.fold == "" and one.stack == "a")
    new = next(one for one in examples if one.fold == "publisher")
    narrow, wide = (
        np.diff(np.log(certainty.interval(one.novelty, one.sensitivity, setting)))[0]
        for one, setting in ((seen, seen.row.setting), (new, dataclasses.replace(new.row.setting, stack="z")))
    )
    assert wide > 1.5 * narrow


def test_runs_of_a_few_models_say_less_of_a_stack_than_runs_of_many() -> None:
    few = [dataclasses.replace(row, workload="m") for row in runs("a", bias=0.0, sigma=0.02)]
    many = [dataclasses.replace(row, workload=f"m{i}") for i, row in enumerate(few)]
    one, several = (gather(rows, first_guess(rows))["a"].log_sigma for rows in (few, many))
    assert several[0] < one[0] < first_guess(few).base[0] * 2


def test_the_gradient_of_the_scales_is_that_of_the_scales() -> None:
    rows = [
        dataclasses.replace(row, host=0.1 * (i % 9), exposed=0.1 * (i % 5), bandwidth=0.3)
        for i, row in enumerate([*runs("a", bias=0.3, sigma=0.1, seed=1), *runs("b", bias=0.0, sigma=0.2, seed=2)])
    ]
    form = Form.of(make_examples(rows, first_guess(rows)))
    size = 4 + 2 * form.novelty.shape[1] + 2 * len(form.names)
    values = np.linspace(0.05, 0.4, size)
    weights = np.random.default_rng(0).normal(size=form.own.shape)
    found = form.pull_back(values, weights)
    for place in range(size):
        step = np.eye(size)[place] * 1e-6
        slope = (np.log(form.scales(values + step)) - np.log(form.scales(values - step))) / 2e-6
        assert found[place] == pytest.approx(float((weights * slope).sum()), rel=1e-4, abs=1e-5)


def test_a_measured_run_takes_away_what_all_runs_of_a_publisher_share() -> None:
    rows = [*runs("a", bias=0.8, sigma=0.02, seed=1), *runs("b", bias=-0.6, sigma=0.02, seed=2),
            *runs("c", bias=0.5, sigma=0.02, seed=3)]  # fmt: skip
    certainty, examples = Fits(rows=rows).fit()
    table, share = find_given(examples, certainty)["new stack: this job"]
    assert share == 1.0
    left = certainty.quantiles["new stack"].values
    assert table.values[-3] - table.values[2] < 0.3 * (left[-3] - left[2])


def test_publishers_that_are_farther_apart_than_the_others_say_widen_the_quantiles_of_a_new_one() -> None:
    rng = np.random.default_rng(0)
    names = [name for name in "abcdefg" for _ in range(60)]
    alike = rng.normal(0, 1, len(names))
    odd = np.array([value + 12 * (name == "g") for name, value in zip(names, alike, strict=True)])
    assert stretch_publishers(alike, names) == pytest.approx(1.0, abs=0.1)
    assert stretch_publishers(odd, names) > stretch_publishers(alike, names)
    few = [name for name in "abcdefg" for _ in range(10)]
    assert stretch_publishers(rng.normal(0, 1, len(few)), few) == 1.0


def test_a_kind_of_novelty_that_errs_more_is_held_as_often_as_is_said() -> None:
    rows = [
        dataclasses.replace(row, error=row.error * (6 if row.setting.device == "y" else 1))
        for seed, name in enumerate("abc")
        for row in runs(name, bias=0.1 * seed, sigma=0.05, number=120, seed=seed)
    ]
    certainty, examples = Fits(rows=rows).fit()
    new = [one for one in examples if one.fold == "device"]
    ends = [ends_of(one, certainty)[0] for one in new]
    held = np.mean([low <= one.row.error <= high for one, (low, high) in zip(new, ends, strict=True)])
    assert held > COVERAGE - 0.05  # All kinds of novelty count beside one that three stacks show.


def test_a_kind_of_novelty_that_errs_to_one_side_widens_that_side() -> None:
    rows = [
        dataclasses.replace(row, error=row.error + 0.3 * (row.setting.num_devices > 2))
        for seed, name in enumerate("abc")
        for row in runs(name, bias=0.0, sigma=0.05, number=120, seed=seed)
    ]
    certainty, _ = Fits(rows=rows).fit()
    low, high = certainty.factors[KNOWN_STACK][FEATURES.index("doublings of scale")]
    assert high > 2 * low


def test_one_width_is_found_without_the_publisher_that_it_is_compared_on() -> None:
    rows = [*runs("a", bias=0.0, sigma=0.5, seed=1), *runs("b", bias=0.0, sigma=0.01, seed=2)]
    widths = _one_width(make_examples(rows, first_guess(rows)))
    assert widths["a", True] < 0.03
    assert widths["b", True] > 0.5
