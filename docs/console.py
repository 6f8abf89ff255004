"""Runs the commands of a page and compares or rewrites what the page shows: python docs/console.py docs/how-to/regimes/*.md."""

import contextlib
import io
import re
import shlex
import sys
from difflib import SequenceMatcher
from pathlib import Path

BLOCK = re.compile(r"^```console\n\$ (traincast [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = ("Phases of a step", "Assumed", "Memory at its peak", "The whole job")
"""Parts of a forecast that a page shows after its heading and its answer; all others are left out."""
INSTEAD = re.compile(r"<!-- shown: (.*) -->")
"""A page may name the parts that it shows instead."""


def parts_of(text: str) -> tuple[str, ...]:
    """The parts of a forecast that a page shows."""
    found = INSTEAD.search(text)
    return tuple(found[1].split(", ")) if found else SHOWN


def run(command: str, parts: tuple[str, ...] = SHOWN) -> str:
    """What a command prints, on plain paper."""
    from traincast.__main__ import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(shlex.split(command)[1:])
    return shorten(out.getvalue(), parts) if code == 0 else f"exit {code}\n"


def shorten(text: str, shown: tuple[str, ...] = SHOWN) -> str:
    parts = [part.strip("\n") for part in text.split("\n\n") if part.strip()]
    kept = [part for place, part in enumerate(parts) if place < 2 or part.startswith(shown)]
    kept += re.findall(r"^  - the bottleneck is .*(?:\n    .*)*", text, re.MULTILINE)
    lines = [line.rstrip() for part in kept for line in (*part.splitlines(), "")]
    return "\n".join(lines[:-1]) + "\n"


def compare(shown: str, printed: str) -> float:
    """How much of two outputs agrees, from 0 to 1, whatever their numbers."""
    return SequenceMatcher(None, words_of(shown), words_of(printed), autojunk=False).ratio()


def words_of(text: str) -> list[str]:
    """The words of an output without numbers, bars and line breaks, which move with every fit."""
    bare = re.sub(r"[\u2580-\u259f·─]+|\$?\d[\d,.]*%?|µs|\bms\b|\bs\b|\bmin\b|\bh\b|\bdays\b|[KMGT]iB", " ", text)
    return re.findall(r"[A-Za-z_]{2,}", bare)


def refresh(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    parts = parts_of(text)
    made = BLOCK.sub(lambda found: f"```console\n$ {found[1]}\n{run(found[1], parts)}```", text)
    page.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        refresh(Path(name))
