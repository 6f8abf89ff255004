"""Ctrl-C while a bar is drawn: the line is taken away, nothing is thrown at the reader, the code says what happened."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="a terminal of its own is only had where there are pseudo-terminals")


def read_until(master: int, done: Callable[[bytes], bool], *, patience_s: float = 120.0) -> bytes:
    """What the terminal shows until it is enough."""
    shown, end = b"", time.monotonic() + patience_s
    while not done(shown) and time.monotonic() < end:
        if select.select([master], [], [], 0.2)[0]:
            shown += os.read(master, 65_536)
    return shown


def test_a_bar_is_taken_away_when_somebody_stops_it(tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    words = ["plan", "llama-3-70b", "--all", "--gpus", "8..512", "--tokens", "15B"]
    command = [sys.executable, "-m", "traincast", *words]
    child = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path, start_new_session=True,
        # A shell lets jobs in its background ignore Ctrl-C, and what they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    # Our end of the terminal stays open: what is still on its way when the last one closes may be lost.
    shown = read_until(master, lambda shown: b"left" in shown or child.poll() is not None)
    assert b"left" in shown, shown[-500:]
    os.killpg(child.pid, signal.SIGINT)
    shown += read_until(master, lambda shown: b"interrupted" in shown)
    os.close(master)
    os.close(terminal)
    assert child.wait(timeout=60) == 130
    assert b"Traceback" not in shown
    assert shown.rstrip(b"\r\n").endswith(b"\r\x1b[Ktraincast: interrupted"), shown[-200:]
    assert list(tmp_path.iterdir()) == []
