"""Runs in one format of two bytes teach forecasts in the other."""

from dataclasses import replace

import pytest

from traincast.certainty._gaussian_process import condition
from traincast.spec import MeasuredForecast, RunLabels

SHARES = (0.8, 0.2, 0.0, 0.0, 0.0)


def make_labels(precision: str) -> RunLabels:
    return RunLabels(
        model="net", family="f", mode="training_step", precision=precision, device="a100-sxm4-40g", stack="pytorch-ddp"
    )


@pytest.mark.parametrize(("other", "same"), [("bf16, weights fp32", True), ("fp32", False)])
def test_a_job_in_the_other_format_of_two_bytes_is_the_same_job(other: str, same: bool) -> None:
    known = make_labels("fp16, weights fp32")
    runs = [MeasuredForecast(labels=known, shares=SHARES, forecast_s=1.0, measured_s=1.5)]
    process = condition(runs)
    itself, asked = process.predict([(known, SHARES), (replace(known, precision=other), SHARES)])
    assert (asked.log_ratio == pytest.approx(itself.log_ratio)) is same
    assert 0 < asked.log_ratio <= itself.log_ratio
