"""How a noun shows itself in a notebook: a presenter above this room is loaded by name, and only when a notebook asks."""

import importlib
from typing import Any

FORMATTERS = "traincast.report"
PRESENTER = "traincast.report._notebook"
"""A name and no import: the nouns depend on nothing that formats for eyes."""


def show_text(noun: object) -> str | None:
    """Text of a noun as the command line prints it; None where no presenter is installed or knows it."""
    try:
        presenter = importlib.import_module(PRESENTER)
    except ImportError:
        return None
    shown: str | None = presenter.tell(noun)
    return shown


def make_with(name: str, noun: object, **options: Any) -> Any:
    """What a function of the room above makes of a noun, such as a frame or a figure."""
    return getattr(importlib.import_module(FORMATTERS), name)(noun, **options)


def show_html(noun: object) -> str | None:
    """HTML of a noun; None, which a notebook takes as "show the text", where no presenter is installed or knows it."""
    try:
        presenter = importlib.import_module(PRESENTER)
    except ImportError:
        return None
    shown: str | None = presenter.present(noun)
    return shown
