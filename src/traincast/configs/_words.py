"""Words that several projects share, from their document: names of optimizers, layers and kernels, and keys without effect."""

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "formats"


@functools.cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads((FOLDER / "words.toml").read_text(encoding="utf-8"))


def words_of(group: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """A group of words by its name; a table is its own."""
    return _tables()[group] if isinstance(group, str) else group


@functools.cache
def _harmless() -> re.Pattern[str]:
    parts = [part for listed in words_of("harmless").values() for part in listed]
    return re.compile("|".join(f"(?:{part})" for part in parts), re.IGNORECASE)


def is_harmless(key: str, beginnings: Iterable[str]) -> bool:
    """Whether a key, or a table that holds it, is known to change neither the time nor the memory of a step."""
    if any(key == start or key.startswith(start) for start in beginnings):
        return True
    return any(_harmless().fullmatch(part.replace("-", "_")) for part in key.split("."))
