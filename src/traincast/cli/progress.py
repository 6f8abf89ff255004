"""A progress line on a terminal's standard error, only for work that takes more than a second."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO, TypeVar

T = TypeVar("T")

QUIET_S = 1.0
"""Nothing is shown before this."""
_REFRESH_S = 0.1


def watch(items: Sequence[T], *, label: str, stream: TextIO | None = None) -> Iterator[T]:
    """The items one by one, with a bar, a rate and the time left while they are worked on."""
    out = stream or sys.stderr
    if not out.isatty():
        yield from items
        return
    started = shown = time.monotonic()
    drawn = False
    try:
        for count, item in enumerate(items):
            now = time.monotonic()
            if now - started > QUIET_S and now - shown > _REFRESH_S:
                shown, drawn = now, True
                out.write(f"\r{describe(count, len(items), now - started, label=label)}\x1b[K")
                out.flush()
            yield item
    finally:
        if drawn:
            out.write("\r\x1b[K")
            out.flush()


@contextmanager
def follow(*, label: str, stream: TextIO | None = None) -> Iterator[Callable[..., None]]:
    """A function to be told (done, total, what is known so far), for work whose results come in any order."""
    out = stream or sys.stderr
    started = shown = time.monotonic()
    drawn = False

    def show(done: int, total: int, known: str = "") -> None:
        nonlocal shown, drawn
        now = time.monotonic()
        if out.isatty() and now - started > QUIET_S and now - shown > _REFRESH_S:
            shown, drawn = now, True
            text = describe(done, total, now - started, label=label)
            out.write(f"\r{', '.join(part for part in (text, known) if part)}\x1b[K")
            out.flush()

    try:
        yield show
    finally:
        if drawn:
            out.write("\r\x1b[K")
            out.flush()


@contextmanager
def waiting(label: str, *, stream: TextIO | None = None) -> Iterator[None]:
    """A line with the time gone by, for work of which nobody knows how much there is, such as recording a model."""
    out = stream or sys.stderr
    if not out.isatty():
        yield
        return
    ended, started = threading.Event(), time.monotonic()

    def show() -> None:
        drawn = ended.wait(QUIET_S)
        while not drawn:
            out.write(f"\r{label}, {time.monotonic() - started:.0f} s\x1b[K")
            out.flush()
            drawn = ended.wait(_REFRESH_S * 5)
        if time.monotonic() - started > QUIET_S:
            out.write("\r\x1b[K")
            out.flush()

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    try:
        yield
    finally:
        ended.set()
        shown.join()


def describe(done: int, total: int, elapsed_s: float, *, label: str) -> str:
    from traincast.report import Paint
    from traincast.units import show_seconds

    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    left = f", {show_seconds((total - done) / rate)} left" if rate > 0 else ""
    bar = Paint().bar(done / total if total else 1.0, width=30)
    return f"{label} {bar} {done:,}/{total:,}, {rate:,.0f}/s{left}"
