"""Writes an answer to standard output as it is: typer's own echo would take the colours out of a pipe."""

import shlex
import sys


def say(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def lead_to(*words: object) -> None:
    """The one next command worth running, as the last line of an answer."""
    from traincast.report import say_next

    say("\n" + say_next(shlex.join(["traincast", *map(str, words)])))
