import dataclasses
import io

import pytest

from traincast.errors import InvalidInput
from traincast.report._paint import Paint, choose_paint, plain, visible_length
from traincast.report._text import dominant_share, format_forecast, name_work, say_dominant, top_tasks
from traincast.spec import BusyTime, Estimate, Forecast


def test_the_answer_shows_step_interval_job_cost_and_memory(forecast: Forecast) -> None:
    text = format_forecast(forecast)
    for wanted in (
        "tiny-gpt",
        "100 ms",
        "80 ms to 130 ms",
        "1,000 steps",
        "$12.00",
        "$10.00 to $15.00",
        "80 samples/s per device, 1,280 in all",
    ):
        assert wanted in text
    assert "27.9 GiB of 37.3 GiB per device (75%)" in text


def test_a_job_that_does_not_fit_says_so_loudly(oversized_forecast: Forecast) -> None:
    assert "DOES NOT FIT" in format_forecast(oversized_forecast)


def test_unknown_operations_notes_and_grounds_are_named(forecast: Forecast) -> None:
    text = format_forecast(forecast, explain=True)
    assert "aten.mystery" in text
    assert "the network is assumed to be idle" in text
    assert "50% measured on this device" in text
    assert "25% the physical bound only" in text


def test_a_missing_price_is_unknown_and_not_free(forecast: Forecast) -> None:
    text = format_forecast(dataclasses.replace(forecast, usd=None))
    assert "unknown" in text
    assert "$" not in text


def test_a_single_step_is_not_sold_as_a_job(forecast: Forecast) -> None:
    job = dataclasses.replace(forecast.job, num_steps=1)
    text = format_forecast(dataclasses.replace(forecast, job=job))
    assert "not asked" in text
    assert "$" not in text


def test_what_dominates_is_a_sentence(forecast: Forecast) -> None:
    assert dominant_share(forecast) == "compute"
    assert say_dominant(forecast).startswith("Arithmetic dominates (70% of the step):")


def test_top_tasks_add_up_by_name_or_by_layer(forecast: Forecast) -> None:
    assert top_tasks(forecast.timeline)[0] == ("aten.mm", "compute", pytest.approx(0.07))
    by_layer = top_tasks(forecast.timeline, by_layer=True)
    assert by_layer[0] == ("aten.mm @ block.0.mlp", "compute", pytest.approx(0.06))


def test_a_job_is_the_sum_of_its_parts_in_one_line(forecast: Forecast) -> None:
    job = dataclasses.replace(forecast.job, checkpoint_s=50.0, total=Estimate(seconds=210.0, low_s=190.0, high_s=240.0))
    text = format_forecast(dataclasses.replace(forecast, job=job, settings=SETTINGS))
    assert "= 1,000 steps 100 s + checkpoints 50 s (at 1 GB/s a node) + start 60 s; 3.17 min to 4 min" in text


def test_hfu_stands_beside_mfu_where_layers_run_again(forecast: Forecast) -> None:
    assert "41% MFU\n" in format_forecast(forecast)
    assert "41% MFU, 55% HFU" in format_forecast(dataclasses.replace(forecast, recomputed=1 / 3))


SETTINGS = {
    "precision": "bf16", "seq": None, "global_batch": 128, "stack": "pytorch", "compiled": False,
    "checkpoint_bytes_per_s": 1e9, "flags": (), "choice": "",
}  # fmt: skip


def test_explain_adds_memory_parts_job_parts_and_exposed_communication(forecast: Forecast) -> None:
    brief, full = format_forecast(forecast), format_forecast(forecast, explain=True)
    for wanted in ("Memory at its peak (backward block.0)", "Communication that nothing hides"):
        assert wanted in full
        assert wanted not in brief


def test_colours_change_the_look_and_not_the_words(forecast: Forecast) -> None:
    colourful = format_forecast(forecast, paint=Paint(colors=True))
    assert "\x1b[" in colourful
    assert plain(colourful) == format_forecast(forecast)


def test_no_line_is_wider_than_the_paint(forecast: Forecast) -> None:
    text = format_forecast(forecast, paint=Paint(width=100), explain=True)
    assert max(visible_length(line) for line in text.splitlines()) <= 100


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours_and_a_pipe_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert choose_paint(Terminal()).colors
    assert not choose_paint(io.StringIO()).colors


def test_no_color_wins_over_a_terminal_and_always_wins_over_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert not choose_paint(Terminal()).colors
    assert choose_paint(io.StringIO(), color="always").colors
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert choose_paint(io.StringIO()).colors


def test_an_unknown_colour_choice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="allowed: auto, always, never"):
        choose_paint(io.StringIO(), color="pink")


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.001, 0.5, 1.0, 7.0])
@pytest.mark.parametrize("blocks", [True, False])
def test_a_bar_is_always_as_wide_as_asked(share: float, blocks: bool) -> None:
    assert visible_length(Paint(colors=True, blocks=blocks).bar(share, width=20, style="red")) == 20


def test_a_tiny_share_still_shows_a_sliver() -> None:
    assert Paint().bar(0.0, width=10) != Paint().bar(1e-6, width=10)


def test_sending_between_stages_is_said_in_words() -> None:
    for name in ("send_recv[pipeline] in", "send_recv[pipeline] out"):
        sent = BusyTime(name=name, category="communication", layer="", seconds=1.0)
        assert name_work(sent) == "pipeline send and receive"
