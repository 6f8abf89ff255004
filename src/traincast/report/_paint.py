"""Colours and bars of a terminal: escape codes where they are wanted, plain text everywhere else."""

import os
import re
import shutil
from typing import TextIO

from traincast.errors import InvalidInput
from traincast.noun import noun

PIPE_WIDTH = 96
"""Characters of a line where no terminal says how many it has."""
COLOR_CHOICES = ("auto", "always", "never")

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_EIGHTHS = " ▏▎▍▌▋▊▉"


@noun
class Paint:
    """How to write: with colours or plain, with block characters or ASCII, and how wide."""

    colors: bool = False
    blocks: bool = True
    width: int = 80

    def __call__(self, text: str, *styles: str) -> str:
        if not (self.colors and styles and text):
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def bar(self, share: float, *, width: int, style: str = "") -> str:
        """A bar of `width` cells, filled to `share`; anything above nothing shows at least a sliver."""
        share = min(max(share, 0.0), 1.0)
        eighths = round(share * width * 8)
        if share > 0 and eighths == 0:
            eighths = 1
        if not self.blocks:
            full = max(1, round(eighths / 8)) if eighths else 0
            return self("#" * full, *([style] if style else [])) + "." * (width - full)
        full, rest = divmod(eighths, 8)
        filled = "█" * full + (_EIGHTHS[rest] if rest else "")
        empty = width - len(filled)
        return self(filled, *([style] if style else [])) + self("·" * empty, "dim")


def choose_paint(stream: TextIO, *, color: str = "auto") -> Paint:
    """Colours for a terminal, none for a pipe; NO_COLOR and FORCE_COLOR decide before the kind of stream does."""
    if color not in COLOR_CHOICES:
        raise InvalidInput(f"color = {color!r}; allowed: {', '.join(COLOR_CHOICES)}")
    terminal = stream.isatty()
    if color == "auto":
        if os.environ.get("NO_COLOR"):
            colors = False
        elif os.environ.get("FORCE_COLOR"):
            colors = True
        else:
            colors = terminal and os.environ.get("TERM") != "dumb"
    else:
        colors = color == "always"
    blocks = (stream.encoding or "ascii").lower().replace("-", "") in ("utf8", "utf16", "utf32")
    columns = shutil.get_terminal_size((PIPE_WIDTH, 24)).columns if terminal else PIPE_WIDTH
    return Paint(colors=colors, blocks=blocks, width=max(60, min(columns, 120)))


def plain(text: str) -> str:
    """The text without its escape codes."""
    return _ESCAPE.sub("", text)


def visible_length(text: str) -> int:
    return len(plain(text))
