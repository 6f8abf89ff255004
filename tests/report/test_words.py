"""Numbers a person reads, work in words, and a next command under every answer."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.report._text import format_forecast, top_work
from traincast.spec import BusyTime, Timeline
from traincast.units import show_change, show_number, show_seconds


@pytest.mark.parametrize(
    ("amount", "text"),
    [(2920.4, "2,920"), (31.4159, "31.4"), (0.0724, "0.0724"), (4.37e-16, "0"), (1_469_000.0, "1,470,000"), (7.0, "7")],
)
def test_a_number_has_three_digits_and_no_power_of_ten(amount: float, text: str) -> None:
    assert show_number(amount) == text


@given(st.floats(min_value=0, max_value=1e15))
def test_no_number_is_written_with_an_exponent_and_all_are_close(amount: float) -> None:
    text = show_number(amount)
    assert re.fullmatch(r"[\d,]+(\.\d+)?", text), text
    assert float(text.replace(",", "")) == pytest.approx(amount, rel=0.006, abs=6e-4)


@given(st.floats(min_value=0, max_value=1e10))
def test_no_time_is_written_with_an_exponent(seconds: float) -> None:
    assert "e-" not in show_seconds(seconds)


@pytest.mark.parametrize(("ratio", "text"), [(0.75, "25% less"), (1.28, "28% more"), (1.001, "the same")])
def test_a_change_is_more_or_less_and_never_negative(ratio: float, text: str) -> None:
    assert show_change(ratio) == text


def busy(name: str, layer: str, category: str, seconds: float) -> BusyTime:
    return BusyTime(name=name, layer=layer, category=category, seconds=seconds)


def test_work_is_named_by_layer_and_purpose() -> None:
    work = (
        busy("aten.mm", "layers.0.mlp.up", "compute", 0.4),
        busy("aten.mm", "layers.1.mlp.up", "compute", 0.1),
        busy("gradients[data]", "layers.0.mlp.up", "communication", 0.2),
        busy("optimizer.adamw", "optimizer", "memory", 0.1),
    )
    listed = top_work(Timeline(duration_s=1.0, spans=(), shares={"compute": 1.0}, work=work))
    assert [name for name, _, _ in listed] == ["mlp up: matmuls", "gradient all-reduce", "optimizer update"]
    assert sum(seconds for _, _, seconds in listed) <= 1.0
    assert not any("aten" in name for name, _, _ in listed)


def test_an_answer_ends_with_the_next_command(forecast) -> None:  # type: ignore[no-untyped-def]
    assert format_forecast(forecast, then="traincast plan x").rstrip().endswith("Next: traincast plan x")
