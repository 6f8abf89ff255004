"""Slurm's compact lists of hosts to single names: `rack[0-1]-gpu[01-04,7]`."""

import itertools
import math
import re

from traincast.errors import InvalidInput

_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12}))?")
MOST_HOSTS = 100_000


def split_outside(text: str, separator: str = ",") -> list[str]:
    """Split at separators that stand in no bracket."""
    parts, depth, last = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == separator and depth == 0:
            parts.append(text[last:at])
            last = at + 1
    return [part.strip() for part in (*parts, text[last:]) if part.strip()]


def expand_hosts(text: str) -> list[str]:
    names: list[str] = []
    for part in split_outside(text):
        pieces = [_expand_range(piece, part) if inside else [piece] for inside, piece in _cut_brackets(part)]
        if len(names) + math.prod(len(piece) for piece in pieces) > MOST_HOSTS:
            raise InvalidInput(f"{part[:100]!r} names more than {MOST_HOSTS:,} hosts")
        names += ["".join(words) for words in itertools.product(*pieces)]
    return names


def _cut_brackets(part: str) -> list[tuple[bool, str]]:
    if part.count("[") != part.count("]"):
        raise InvalidInput(f"{part!r} has a bracket that is not closed; write a range such as node[01-16]")
    cut = re.split(r"\[([^\]]*)\]", part)
    return [(at % 2 == 1, piece) for at, piece in enumerate(cut)]


def _expand_range(inside: str, part: str) -> list[str]:
    names = []
    for piece in inside.split(","):
        found = _RANGE.fullmatch(piece.strip())
        if found is None:
            raise InvalidInput(f"[{inside}] of {part!r} is not a range of hosts such as [01-16,20]")
        first, last = found[1], found[2] or found[1]
        if int(last) - int(first) > MOST_HOSTS:
            raise InvalidInput(f"{part!r} names more than {MOST_HOSTS:,} hosts")
        names += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return names
