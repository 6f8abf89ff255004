"""Runs the real main program inside the test and keeps what it printed."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from traincast.__main__ import main


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("NO_COLOR", "FORCE_COLOR", "TRAINCAST_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def run_command(*arguments: object) -> Ran:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run_command
