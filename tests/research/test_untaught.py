"""Forecasts without what runs of a publisher taught."""

from dataclasses import replace

import pytest

from research.fits.stacks import FITTED, UNMEASURED, expect_constants
from research.fits.untaught import TAUGHT_HABITS, forget
from tests.builders import make_mlp
from traincast.catalog import stack, stack_names
from traincast.cost import read_constants
from traincast.spec import Job, Stack


def test_an_unmeasured_framework_lies_between_the_prior_and_the_measured_ones() -> None:
    prior = Stack(num_steps=20)
    slow = replace(prior, forward_call_s=16 * prior.forward_call_s)
    twin = replace(slow, name="twin")
    idle = replace(prior, name="idle", backward_call_s=1.0)
    derived = replace(prior, name="derived", forward_call_s=100 * prior.forward_call_s, num_steps=0)
    expected = expect_constants([slow, twin, idle, derived])
    # The twin has the same constants and counts once; what stayed at the prior, or was expected itself, says nothing.
    assert expected["forward_call_s"] == pytest.approx(4 * prior.forward_call_s)
    assert expected["backward_call_s"] == pytest.approx(prior.backward_call_s)
    assert set(expected) == set(FITTED)


def test_what_ships_for_frameworks_without_runs_is_what_the_measured_ones_make_us_expect() -> None:
    expected = expect_constants([stack(name) for name in stack_names() if name not in UNMEASURED])
    for name in UNMEASURED:
        assert {key: read_constants(stack(name))[key] for key in expected} == pytest.approx(expected)


def test_habits_that_a_publisher_s_runs_taught_are_forgotten_without_it_and_others_stay() -> None:
    taught = stack("adaptdl")
    job = Job(graph=make_mlp(), stack=taught)
    left = forget(job, taught, "sia").stack.plan
    assert {*dict(left.calls), *dict(left.amounts)}.isdisjoint(TAUGHT_HABITS["sia"])
    assert left.num_calls("backward") == taught.plan.num_calls("backward") > 0
    assert forget(job, taught, "lambda").stack == taught
