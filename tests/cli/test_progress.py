import io

import pytest

from traincast.cli import progress
from traincast.cli.progress import describe, watch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_quick_work_shows_nothing() -> None:
    screen = Terminal()
    assert list(watch([1, 2, 3], label="cases", stream=screen)) == [1, 2, 3]
    assert screen.getvalue() == ""


def test_slow_work_shows_a_bar_and_wipes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    screen = Terminal()
    assert list(watch(list(range(5)), label="cases", stream=screen)) == list(range(5))
    assert "cases" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_a_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    pipe = io.StringIO()
    assert list(watch([1, 2], label="cases", stream=pipe)) == [1, 2]
    assert pipe.getvalue() == ""


def test_the_bar_says_how_far_how_fast_and_how_long() -> None:
    assert describe(50, 200, 10.0, label="cases").endswith("50/200, 5/s, 30 s left")


def test_work_of_unknown_length_shows_the_time_and_wipes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    screen = Terminal()
    with progress.waiting("recording", stream=screen):
        while "recording" not in screen.getvalue():
            pass
    assert screen.getvalue().endswith("\r\x1b[K")
    pipe = io.StringIO()
    with progress.waiting("recording", stream=pipe):
        pass
    assert pipe.getvalue() == ""
