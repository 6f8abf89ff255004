"""Writes an answer to standard output as it is: typer's own echo would take the colours out of a pipe."""

import sys


def say(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
