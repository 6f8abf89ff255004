"""How the error of a forecast is fitted to what is new about its question."""

import dataclasses

import numpy as np
import pytest

from research.fits.asked import Asked
from research.fits.intervals import find_given, fit, gather, make_examples, publisher_quantiles
from traincast.forecast import LEVELS, STEP, Setting

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
            operators=0.08, host=0.0, error=float(error + (bias if untaught else 0.0)), untaught=untaught,
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


def test_a_stack_has_the_scale_of_its_own_errors_and_a_new_one_a_larger() -> None:
    rows = [
        *runs("a", bias=0.3, sigma=0.1, seed=1),
        *runs("b", bias=-0.2, sigma=0.1, seed=2),
        *runs("c", bias=0.1, sigma=0.2, seed=3),
    ]
    known = gather([row for row in rows if not row.untaught])
    assert known["a"].log_sigma == pytest.approx(0.1, rel=0.3)
    assert known["c"].log_sigma > known["a"].log_sigma
    certainty = dataclasses.replace(fit(make_examples(rows)), known=known)
    seen = next(one for one in make_examples(rows) if one.fold == "")
    new = next(one for one in make_examples(rows) if one.fold == "publisher")
    narrow, wide = (
        np.diff(np.log(certainty.interval(one.novelty, stack)))[0] for one, stack in ((seen, "a"), (new, "z"))
    )
    assert wide > 1.5 * narrow


def test_a_measured_run_takes_away_what_all_runs_of_a_publisher_share() -> None:
    rows = [*runs("a", bias=0.8, sigma=0.02, seed=1), *runs("b", bias=-0.6, sigma=0.02, seed=2),
            *runs("c", bias=0.5, sigma=0.02, seed=3)]  # fmt: skip
    examples = make_examples(rows)
    certainty = fit(examples)
    table, share = find_given(examples, certainty)["new stack: this job"]
    assert share == 1.0
    left = certainty.quantiles["new stack"].values
    assert table.values[-3] - table.values[2] < 0.3 * (left[-3] - left[2])
