"""How measurements lie about a forecast."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InvalidInput
from traincast.spec import LogErrors

ERRORS = LogErrors(levels=(0.05, 0.25, 0.5, 0.75, 0.95), values=(-0.3, -0.1, 0.02, 0.2, 0.6))


@given(level=st.floats(1e-6, 1 - 1e-6))
def test_a_probability_is_the_inverse_of_a_quantile(level: float) -> None:
    assert ERRORS.probability_below(ERRORS.quantile(level)) == pytest.approx(level, abs=1e-9)


@given(one=st.floats(-5, 5), other=st.floats(-5, 5))
def test_more_room_is_never_less_likely_to_do(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= ERRORS.probability_below(low) <= ERRORS.probability_below(high) <= 1


def test_a_surer_interval_is_wider_and_not_symmetric() -> None:
    narrow, wide = ERRORS.interval(0.5), ERRORS.interval(0.9)
    assert wide[0] < narrow[0] < 1 < narrow[1] < wide[1]
    assert math.log(wide[1]) > -math.log(wide[0])


def test_values_that_fall_are_refused() -> None:
    with pytest.raises(InvalidInput, match="must not fall"):
        LogErrors(levels=(0.1, 0.9), values=(0.2, 0.1))
