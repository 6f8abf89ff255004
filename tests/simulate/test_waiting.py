"""Devices wait for their inputs and for the slowest rank."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.simulate import add_waiting
from traincast.simulate._step import expect_largest
from traincast.spec import Parallelism, Program, Timeline

ALONE = Timeline(
    duration_s=1.0, spans=(), shares={"compute": 0.6, "memory": 0.2, "communication": 0.2, "host": 0.0, "bubble": 0.0},
    exposed_by_axis={"data": 0.2}, busy_s=0.8,
)  # fmt: skip


def wait(*, variation: float = 0.0, preparation_s: float = 0.0, **plan: int) -> Timeline:
    program = Program(
        stages=(), parallelism=Parallelism(**plan), batch_size=1, mode="training_step", input_variation=variation,
        preparation_s=preparation_s,
    )  # fmt: skip
    return add_waiting(ALONE, program)


def test_the_largest_of_few_normal_values_is_the_published_one() -> None:
    # Expected maxima of 2, 8 and 100 standard normal values (Harter 1961).
    for number, largest in ((2, 0.564), (8, 1.424), (100, 2.508)):
        assert expect_largest(number) == pytest.approx(largest, abs=0.03)


def test_one_device_waits_for_nobody() -> None:
    assert wait(variation=0.3) is ALONE


@given(data=st.integers(1, 512), more=st.integers(1, 64), variation=st.floats(0, 0.5))
def test_more_replicas_never_wait_less_and_sizes_are_bounded(data: int, more: int, variation: float) -> None:
    few, many = (wait(variation=variation, data=number).duration_s for number in (data, data + more))
    assert 1.0 <= few <= many <= 1.0 + 0.8 * (variation * 3**0.5 + 0.02 * 5)


def test_passes_of_one_step_average_out() -> None:
    once, often = wait(variation=0.3, data=8), wait(variation=0.3, data=8, micro_batches=16)
    plain = wait(data=8)
    assert often.duration_s - plain.duration_s == pytest.approx((once.duration_s - plain.duration_s) / 4)


def test_shares_add_up_and_the_wait_is_exposed() -> None:
    late = wait(variation=0.2, data=4)
    assert sum(late.shares.values()) == pytest.approx(1)
    assert late.exposed_by_axis["stragglers"] == pytest.approx(late.duration_s - 1)
    assert late.shares["communication"] * late.duration_s == pytest.approx(sum(late.exposed_by_axis.values()))


def test_inputs_made_in_the_loop_take_their_time_in_every_pass() -> None:
    made = wait(preparation_s=0.1, micro_batches=3)
    assert made.duration_s == pytest.approx(1.3)
    assert made.shares["host"] == pytest.approx(0.3 / 1.3)


def test_asynchronous_workers_do_not_wait() -> None:
    plan = Parallelism(data=8, servers=2, asynchronous=True)
    program = Program(stages=(), parallelism=plan, batch_size=1, mode="training_step", input_variation=0.3)
    assert add_waiting(ALONE, program) == replace(ALONE)
