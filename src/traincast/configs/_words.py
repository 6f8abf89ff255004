"""Words that several projects share, from their document: names of optimizers, layers and kernels, and keys without effect."""

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "formats"
_TELLING = re.compile(
    r"precision|dtype|fp4|fp8|fp16|bf16|fp32|float8|float16|mxfp|nvfp|quant|[48]bit|int8|offload|parallel|recompute"
    r"|checkpointing|remat|(?:^|_)amp(?:_|$)",
    re.IGNORECASE,
)
"""In names of keys that say a format, an axis, what runs again or what lies off the device: such a key is harmless only where a
format names it in full."""


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
    known = tuple(beginnings)
    if key in known:
        return True
    if _TELLING.search(key.rpartition(".")[2]):
        return False
    if key.startswith(known):
        return True
    return any(_harmless().fullmatch(part.replace("-", "_")) for part in key.split("."))
