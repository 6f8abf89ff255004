import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast.errors import InvalidInput
from traincast.forecast import forecast
from traincast.integrate import RunWatch, StepTime
from traincast.integrate._watch import MAX_BLOCKS, kendall_z
from traincast.spec import Estimate, Forecast, Job


def make_forecast(step_s: float = 1.0, *, factor: float = 1.2, steps: int = 1000) -> Forecast:
    answer = forecast(Job(graph=make_mlp(), steps=steps), make_cluster())
    step = Estimate(seconds=step_s, low_s=step_s / factor, high_s=step_s * factor)
    return replace(answer, step=step)


def feed(watch: RunWatch, steps: int, seconds: float, *, noise: float = 0.02, seed: int = 0, **parts: object) -> None:
    draw = random.Random(seed)
    for _ in range(steps):
        watch.observe(StepTime(seconds=seconds * math.exp(draw.gauss(0, noise)), **parts))  # type: ignore[arg-type]


def test_before_any_step_the_forecast_alone_says_how_long_it_takes() -> None:
    left = RunWatch(make_forecast(), num_steps=100).remaining()
    assert left is not None
    assert left.seconds == pytest.approx(100)
    assert (left.low_s, left.high_s) == (pytest.approx(100 / 1.2), pytest.approx(120))


def test_without_forecast_or_steps_nothing_is_said_about_the_rest() -> None:
    assert RunWatch(None, num_steps=100).remaining() is None
    assert RunWatch(make_forecast()).remaining() is None


def test_observed_steps_outweigh_a_forecast_that_they_contradict() -> None:
    watch = RunWatch(make_forecast(1.0), num_steps=1000)
    feed(watch, 100, 2.0)
    left = watch.remaining()
    assert left is not None
    assert left.seconds == pytest.approx(900 * 2.0, rel=0.03)
    assert left.low_s < left.seconds < left.high_s


def test_a_few_steps_move_the_estimate_only_part_of_the_way() -> None:
    watch = RunWatch(make_forecast(1.0), num_steps=1000, warm_up=0)
    feed(watch, 1, 1.15)
    step = watch.expect_step(ahead=999)
    assert step is not None
    assert 1.02 < step.seconds < 1.13


def test_the_interval_narrows_as_steps_come_in() -> None:
    widths = []
    for steps in (0, 5, 50, 500):
        watch = RunWatch(make_forecast(factor=1.5), num_steps=10_000)
        feed(watch, steps, 1.0)
        left = watch.remaining()
        assert left is not None
        widths.append(left.high_s / left.low_s)
    assert widths[0] > 1.5 * widths[1] > 1.5 * widths[2]
    # What a run may still change by does not vanish with more steps.
    assert 1.05 < widths[3] < 1.1


def test_the_interval_of_the_remaining_time_holds_the_truth_as_often_as_it_says() -> None:
    """Runs whose speed wanders: steps resemble their neighbours, and each run has a speed of its own."""
    held, total = 0, 200
    for seed in range(total):
        draw = random.Random(seed)
        typical_s = math.exp(draw.gauss(0, 0.11))
        level, times = 0.0, []
        for _ in range(600):
            level = 0.97 * level + draw.gauss(0, 0.01)
            times.append(typical_s * math.exp(level + draw.gauss(0, 0.03)))
        watch = RunWatch(make_forecast(1.0), num_steps=600)
        done = draw.choice([0, 10, 40, 200])
        for seconds in times[:done]:
            watch.observe(StepTime(seconds=seconds))
        left = watch.remaining()
        assert left is not None
        held += left.low_s <= sum(times[done:]) <= left.high_s
    assert held / total > 0.85


def test_a_run_at_forecast_speed_raises_no_warning() -> None:
    watch = RunWatch(make_forecast(1.0), num_steps=1000)
    feed(watch, 200, 1.05)
    assert watch.find_cause() is None
    assert watch.compare().ratio == pytest.approx(1 / 1.05, rel=0.02)


def test_waiting_for_data_is_named_the_input_pipeline() -> None:
    watch = RunWatch(make_forecast(1.0), num_steps=1000)
    feed(watch, 50, 1.5, waiting_s=0.5)
    found = watch.find_cause()
    assert found is not None
    assert found.cause == "input pipeline"
    assert found.seconds == pytest.approx(0.5)
    assert "33%" in found.says


def test_one_slow_rank_is_named_a_straggler_with_its_number() -> None:
    watch = RunWatch(make_forecast(1.0), num_steps=1000)
    feed(watch, 50, 1.4, rank_s=(0.3, 0.31, 0.45, 0.3))
    found = watch.find_cause()
    assert found is not None
    assert found.cause == "straggler"
    assert "rank 2" in found.says


def test_a_process_that_does_not_get_its_cores_is_told_so() -> None:
    watch = RunWatch(make_forecast(1.0), num_steps=1000)
    feed(watch, 50, 4.0, starved_s=2.9)
    found = watch.find_cause()
    assert found is not None
    assert found.cause == "contention"
    assert "72%" in found.says


def test_a_machine_that_gets_busier_is_not_taken_for_a_device_that_throttles() -> None:
    watch = RunWatch(make_forecast(1.0), num_steps=1000)
    for number in range(200):
        feed(watch, 1, 1.0 + number / 100, seed=number, starved_s=number / 100, noise=0.0)
    found = watch.find_cause()
    assert found is not None
    assert found.cause == "contention"


def test_steps_that_grow_longer_are_named_throttling() -> None:
    watch = RunWatch(make_forecast(1.0), num_steps=1000)
    for number in range(200):
        feed(watch, 1, 1.0 + 0.4 * number / 200, seed=number)
    found = watch.find_cause()
    assert found is not None
    assert found.cause == "throttling"


def test_slow_from_the_first_step_for_no_reason_seen_is_slow_everywhere() -> None:
    watch = RunWatch(make_forecast(1.0), num_steps=1000)
    feed(watch, 50, 1.6)
    found = watch.find_cause()
    assert found is not None
    assert found.cause == "everywhere"


def test_inside_the_interval_and_without_a_cause_nothing_is_said() -> None:
    watch = RunWatch(make_forecast(1.0, factor=2.0), num_steps=1000)
    feed(watch, 50, 1.6)
    assert watch.find_cause() is None


def test_a_small_wait_does_not_take_the_blame_for_a_large_excess() -> None:
    watch = RunWatch(make_forecast(1.0), num_steps=1000)
    feed(watch, 50, 3.0, waiting_s=0.3)
    found = watch.find_cause()
    assert found is not None
    assert found.cause == "everywhere"
    assert "input pipeline" in found.says


def test_noise_alone_is_no_trend() -> None:
    draw = random.Random(1)
    assert abs(kendall_z([draw.random() for _ in range(100)])) < 3
    assert kendall_z(list(range(30))) > 5


@given(st.integers(1, 3000))
def test_memory_is_bounded_and_no_step_is_lost_however_long_the_run(steps: int) -> None:
    watch = RunWatch(None, num_steps=steps, warm_up=0)
    for number in range(steps):
        watch.observe(StepTime(seconds=float(number % 7)))
    assert len(watch._blocks) <= MAX_BLOCKS
    assert watch.num_done == steps
    assert watch.compare().observed_s == pytest.approx(sum(number % 7 for number in range(steps)) / steps)


def test_evaluation_between_steps_counts_for_the_rest_but_not_as_a_step() -> None:
    watch = RunWatch(make_forecast(1.0), num_steps=200, warm_up=0)
    feed(watch, 100, 1.0, noise=0.0, outside_s=0.5)
    compared = watch.compare()
    assert compared.observed_s == pytest.approx(1.0)
    assert compared.remaining is not None
    assert compared.remaining.seconds == pytest.approx(150, rel=0.01)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_an_impossible_step_time_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="finite"):
        StepTime(seconds=seconds)


def test_a_run_needs_at_least_one_step() -> None:
    with pytest.raises(InvalidInput, match="num_steps"):
        RunWatch(None, num_steps=0)
