"""Forecasts without what runs of a publisher taught."""

from dataclasses import replace

import pytest

from research.fits.stacks import FITTED, expect_constants
from research.fits.untaught import TAUGHT_HABITS, forget
from tests.builders import make_mlp
from traincast.catalog import plain_stack, stack
from traincast.spec import Job


def test_an_unmeasured_framework_lies_between_plain_pytorch_and_the_measured_ones() -> None:
    plain = plain_stack()
    slow = replace(plain, forward_call_s=16 * plain.forward_call_s)
    twin = replace(slow, name="twin")
    idle = replace(plain, name="idle", backward_call_s=1.0)
    expected = expect_constants([slow, twin, idle])
    # The twin has the same constants and counts once; what stayed at the prior says nothing.
    assert expected["forward_call_s"] == pytest.approx(4 * plain.forward_call_s)
    assert expected["backward_call_s"] == pytest.approx(plain.backward_call_s)
    assert set(expected) == set(FITTED)


def test_habits_that_a_publisher_s_runs_taught_are_forgotten_without_it_and_others_stay() -> None:
    taught = stack("adaptdl")
    job = Job(graph=make_mlp(), stack=taught)
    left = forget(job, taught, "sia").stack.plan
    assert {*dict(left.calls), *dict(left.amounts)}.isdisjoint(TAUGHT_HABITS["sia"])
    assert left.num_calls("backward") == taught.plan.num_calls("backward") > 0
    assert forget(job, taught, "lambda").stack == taught
