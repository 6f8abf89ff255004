"""The definitions of idle, burst and peak, which prediction and measurement share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InvalidInput
from traincast.resources._signal import (
    Signal,
    find_bursts,
    from_counter,
    from_gauge,
    from_pieces,
    repeat,
    sample,
    summarize,
)

levels = st.lists(st.sampled_from([0.0, 0.0, 0.2, 0.5, 1.0]), min_size=1, max_size=30)
lengths = st.floats(0.01, 10.0)


def make_signal(values: list[float], length_s: float = 1.0, window_s: float | None = None) -> Signal:
    return Signal(
        edges_s=length_s * np.arange(len(values) + 1), levels=np.array(values, dtype=float), window_s=window_s
    )


def make_steps(*, idle_s: float, burst_s: float, level: float, num_steps: int) -> Signal:
    step = from_pieces([(idle_s / 2, idle_s / 2 + burst_s, level)], duration_s=idle_s + burst_s)
    return repeat(step, num_steps)


@given(level=st.floats(0.01, 1e9), length_s=lengths, count=st.integers(1, 20))
def test_a_constant_signal_is_one_burst_without_idle_time(level, length_s, count):
    activity = summarize(make_signal([level] * count, length_s))
    assert activity.idle_s == pytest.approx(0, abs=1e-9 * length_s)
    assert activity.burst_s == pytest.approx(count * length_s)
    assert (activity.peak, activity.mean) == pytest.approx((level, level))
    assert activity.num_bursts == 1


def test_a_signal_of_nothing_is_idle_all_the_time():
    activity = summarize(make_signal([0.0] * 5))
    assert (activity.idle_s, activity.burst_s, activity.peak, activity.num_bursts) == (5, 0, 0, 0)


@given(values=levels, factor=st.floats(0.1, 10.0), windowed=st.booleans(), cyclic=st.booleans())
def test_scaling_time_scales_durations_and_nothing_else(values, factor, windowed, cyclic):
    one = summarize(make_signal(values, 1.0, 1.0 if windowed else None), cyclic=cyclic)
    other = summarize(make_signal(values, factor, factor if windowed else None), cyclic=cyclic)
    assert other.idle_s == pytest.approx(factor * one.idle_s, abs=1e-9)
    assert other.burst_s == pytest.approx(factor * one.burst_s, abs=1e-9)
    assert (other.peak, other.num_bursts) == (one.peak, one.num_bursts)


@given(values=levels, factor=st.floats(1e-3, 1e3))
def test_scaling_levels_scales_the_peak_and_no_duration(values, factor):
    one = summarize(make_signal(values))
    other = summarize(make_signal([factor * value for value in values]))
    assert (other.idle_s, other.burst_s) == pytest.approx((one.idle_s, one.burst_s))
    assert other.peak == pytest.approx(factor * one.peak)


@given(values=levels, cycles=st.integers(1, 5), windowed=st.booleans(), cyclic=st.booleans())
def test_idle_and_burst_fill_the_cycle(values, cycles, windowed, cyclic):
    signal = make_signal(values, window_s=1.0 if windowed else None)
    activity = summarize(signal, num_cycles=cycles, cyclic=cyclic)
    assert activity.cycle_s == pytest.approx(len(values) / cycles)
    assert activity.mean <= max(values) + 1e-12
    assert activity.peak <= max(values)


@given(values=levels, times=st.integers(2, 5), windowed=st.booleans())
def test_a_run_of_many_steps_has_the_activity_of_one_step(values, times, windowed):
    step = make_signal(values, window_s=1.0 if windowed else None)
    one = summarize(step, num_cycles=1, cyclic=True)
    many = summarize(repeat(step, times), num_cycles=times, cyclic=True)
    assert (many.idle_s, many.burst_s, many.mean) == pytest.approx((one.idle_s, one.burst_s, one.mean), abs=1e-9)
    if one.idle_s > 0:
        assert many.num_bursts == pytest.approx(one.num_bursts)


@given(
    rate_hz=st.sampled_from([10, 20, 25, 50]),
    idle=st.floats(4.0, 30.0),
    burst=st.floats(4.0, 30.0),
    level=st.floats(0.05, 1e8),
    phase=st.floats(0.0, 0.999),
)
def test_a_sampler_of_ten_to_fifty_hertz_recovers_a_known_signal_within_a_sample(rate_hz, idle, burst, level, phase):
    window_s = 1 / rate_hz
    truth = make_steps(idle_s=idle * window_s, burst_s=burst * window_s, level=level, num_steps=20)
    seen = sample(truth, window_s=window_s, offset_s=phase * window_s)
    activity = summarize(seen, num_cycles=seen.duration_s / ((idle + burst) * window_s))
    # The run is cut into whole windows, which loses up to two of them once, not once per step.
    allowed_s = 0.2 * window_s + 2 * window_s / 20
    assert activity.burst_s == pytest.approx(burst * window_s, abs=allowed_s)
    assert activity.idle_s == pytest.approx(idle * window_s, abs=allowed_s)
    assert activity.peak == pytest.approx(level, rel=1e-6)


@given(burst=st.floats(4.0, 30.0), idle=st.floats(4.0, 30.0))
def test_without_a_step_count_each_burst_is_a_cycle(burst, idle):
    activity = summarize(make_steps(idle_s=idle, burst_s=burst, level=3.0, num_steps=7))
    assert (activity.idle_s, activity.burst_s, activity.num_bursts) == pytest.approx((idle, burst, 1))


def test_a_gap_shorter_than_two_windows_is_bridged_and_a_longer_one_is_not():
    assert summarize(make_signal([1, 1, 1, 0, 1, 1, 1], window_s=1.0), num_cycles=1).idle_s == 0
    assert summarize(make_signal([1, 1, 1, 0, 0, 1, 1, 1], window_s=1.0), num_cycles=1).idle_s == 2


def test_a_burst_that_crosses_the_end_of_the_step_is_one_burst():
    step = make_signal([1, 0, 0, 0, 1])
    assert summarize(step, cyclic=True).num_bursts == 1
    assert summarize(step, cyclic=True).burst_s == 2
    assert summarize(step, num_cycles=1).num_bursts == 2


def test_bursts_are_found_where_they_are():
    signal = make_signal([0, 1, 1, 0, 1, 0, 0, 0, 0.5, 0], window_s=1.0)
    assert find_bursts(signal) == [(1.0, 5.0), (8.0, 9.0)]
    assert find_bursts(signal, floor=0.6) == [(1.0, 5.0)]
    assert find_bursts(make_signal([0, 0])) == []


def test_background_noise_below_the_floor_is_idle():
    noise = make_signal([0.01, 0.02, 0.01])
    assert summarize(noise).burst_s == 3
    assert summarize(noise, floor=0.05).burst_s == 0


def test_one_stray_sample_is_no_peak():
    signal = make_signal([1.0] * 50 + [9.0] + [1.0] * 49)
    assert summarize(signal).peak == 1.0


def test_a_low_level_beside_a_high_one_still_counts_as_busy_in_full():
    assert summarize(make_signal([0, 0, 0, 0.3, 0.3, 0.3, 1, 1, 1, 0, 0, 0], window_s=1.0), num_cycles=1).burst_s == 6


def test_a_counter_becomes_rates_and_a_gauge_keeps_its_levels():
    rates = from_counter([0.0, 1.0, 3.0], [10.0, 12.0, 12.0])
    assert rates.levels.tolist() == [2.0, 0.0]
    assert from_gauge([0.0, 1.0, 2.0], [7.0, 0.5, 0.25]).levels.tolist() == [0.5, 0.25]


def test_levels_of_overlapping_pieces_add_up_to_the_highest_allowed():
    pieces = [(0.0, 2.0, 0.6), (1.0, 3.0, 0.6)]
    assert from_pieces(pieces, duration_s=4.0).levels == pytest.approx([0.6, 1.2, 0.6, 0.0])
    assert from_pieces(pieces, duration_s=4.0, highest=1.0).levels == pytest.approx([0.6, 1.0, 0.6, 0.0])
    assert from_pieces([], duration_s=4.0).levels.tolist() == [0.0]


@given(values=levels, window=st.floats(0.05, 1.0))
def test_sampling_whole_windows_keeps_the_area(values, window):
    signal = make_signal(values)
    seen = sample(signal, window_s=window)
    covered = float(np.interp(seen.edges_s[-1], signal.edges_s, np.append(0, np.cumsum(signal.levels))))
    assert seen.mean * seen.duration_s == pytest.approx(covered, abs=1e-9)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Signal(edges_s=np.array([0.0, 1.0]), levels=np.array([1.0, 2.0])), "one edge more"),
        (lambda: make_signal([1.0, -1.0]), "at least 0"),
        (lambda: Signal(edges_s=np.array([0.0, 0.0]), levels=np.array([1.0])), "rise"),
        (lambda: from_counter([0.0, 1.0], [5.0, 4.0]), "must not fall"),
        (lambda: from_counter([0.0], [5.0]), "at least two"),
        (lambda: sample(make_signal([1.0]), window_s=2.0), "does not fit"),
        (lambda: summarize(make_signal([1.0]), num_cycles=0), "above 0"),
        (lambda: from_pieces([], duration_s=0.0), "duration above 0"),
        (lambda: repeat(make_signal([1.0]), 0), "at least 1"),
    ],
)
def test_a_signal_that_cannot_be_is_refused_in_one_sentence(make, says):
    with pytest.raises(InvalidInput, match=says):
        make()
