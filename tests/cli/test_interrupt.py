"""Ctrl-C while a bar is drawn: the line is taken away, nothing is thrown at the reader, the code says what happened."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="a terminal of its own is only had where there are pseudo-terminals")


def read_until(master: int, words: bytes, *, patience_s: float = 60.0) -> bytes:
    """What the terminal shows until the words come, or until the command has ended."""
    shown, end = b"", time.monotonic() + patience_s
    while words not in shown and time.monotonic() < end:
        try:
            part = os.read(master, 65_536)
        except OSError:
            break
        if not part:
            break
        shown += part
    return shown


def test_a_bar_is_taken_away_when_somebody_stops_it(tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    words = ["plan", "llama-3-70b", "--all", "--gpus", "8..512", "--tokens", "15B"]
    command = [sys.executable, "-m", "traincast", *words]
    child = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path, start_new_session=True
    )
    os.close(terminal)
    shown = read_until(master, b"left")
    assert b"left" in shown, shown[-500:]
    os.killpg(child.pid, signal.SIGINT)
    shown += read_until(master, b"\0never\0")
    os.close(master)
    assert child.wait(timeout=60) == 130
    assert b"Traceback" not in shown
    assert shown.rstrip(b"\r\n").endswith((b"\r\x1b[K", b"\r\x1b[Ktraincast: interrupted")), shown[-200:]
    assert list(tmp_path.iterdir()) == []
