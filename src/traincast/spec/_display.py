"""How a noun shows itself: what formats it stands above this room, and is loaded by name when it is asked for."""

import importlib
from typing import Any

FORMATTERS = "traincast.report"
"""A name and no import: the nouns depend on nothing that formats for eyes."""


def show_text(noun: object) -> str | None:
    """Text of a forecast as the command line prints it; None where no formatter is installed."""
    try:
        shown: str | None = make_with("tell_answer", noun)
    except ImportError:
        return None
    return shown


def make_with(name: str, noun: object, **options: Any) -> Any:
    """What a function of the room above makes of a noun, such as a frame."""
    return getattr(importlib.import_module(FORMATTERS), name)(noun, **options)
