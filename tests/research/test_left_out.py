"""Constants and rows of the study that leaves publishers out."""

from dataclasses import replace

import pytest

from research.fits.stacks import FITTED, expect_constants
from research.fits.untaught import TAUGHT_HABITS, forget
from research.studies.left_out import pick
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


def test_picked_rows_are_spread_over_jobs_and_always_the_same() -> None:
    rows = [{"model": "large", "gpu": "a", "n_nodes": 1}] * 90 + [{"model": "small", "gpu": "a", "n_nodes": 1}] * 10
    places = pick(rows, 20)
    assert places == pick(rows, 20) == sorted(places)
    assert sum(place >= 90 for place in places) == 10


def test_habits_that_a_publisher_s_runs_taught_are_forgotten_without_it_and_others_stay() -> None:
    taught = stack("adaptdl")
    job = Job(graph=make_mlp(), stack=taught)
    left = forget(job, taught, "sia").stack.plan
    assert {name: getattr(left, name) for name in TAUGHT_HABITS["sia"]} == TAUGHT_HABITS["sia"]
    assert left.hook_kernels == taught.plan.hook_kernels
    assert forget(job, taught, "lambda").stack == taught
