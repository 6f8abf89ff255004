"""Calibrations that can be written down by hand."""

import math

import pytest

from traincast.cost._calibrated import _with_interval
from traincast.learn._calibrations import _middle
from traincast.spec import Rates


def test_the_middle_of_several_kinds_is_as_unsure_as_the_least_sure() -> None:
    rates = [
        Rates(flop_per_s=flop, bytes_per_s=1e9, overhead_s=1e-6, log_spread=spread)
        for flop, spread in ((1e9, 0.1), (2e9, 0.4), (9e9, 0.2))
    ]
    found = _middle(rates)
    assert (found.flop_per_s, found.log_spread) == (2e9, 0.4)


def test_an_interval_holds_nine_of_ten_log_errors() -> None:
    found = _with_interval(2.0, 0.3, limit="compute", ground="measured")
    assert math.log(found.high_s / found.low_s) == pytest.approx(2 * 1.645 * 0.3)
