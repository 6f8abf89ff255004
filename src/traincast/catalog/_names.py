"""Tables of facts to entries: each found by its name or by any known spelling of it."""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput, UnknownName
from traincast.files import read_json
from traincast.units import GIB

Entry = Mapping[str, Any]

# Words that drivers, shops and papers put around a name without changing what it means.
_NOISE = frozenset(
    {"nvidia", "tesla", "geforce", "amd", "radeon", "instinct", "google", "cloud", "intel", "habana", "gpu"}
    | {"generation", "with", "design", "edition"}
)

# Words that say how a model was trained or is stored, not what it is.
_DECORATIONS = frozenset(
    {
        "hf",
        "instruct",
        "chat",
        "it",
        "sft",
        "pretraining",
        "pretrain",
        "pretrained",
        "training",
        "finetuning",
        "finetune",
    }
    | {"finetuned", "seqlen"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One table of the catalogue."""

    kind: str
    entries: Mapping[str, Entry]
    spellings: Mapping[str, str]
    """Squeezed spelling to name."""
    loose: Mapping[str, str]
    """Squeezed spelling without dots to name, where only one entry is spelt so; empty where names differ by dots."""
    sources: Mapping[str, str]
    """Short names of sources to their full text, where the table uses short names."""

    def find(self, name: str) -> str:
        """The name of the entry that this spelling means."""
        if not isinstance(name, str):
            raise InvalidInput(f"the name of a {self.kind} must be a text, not {name!r}")
        found = self.get(name)
        if found is None:
            raise UnknownName(self.kind, name, self.entries, also=self.aliases())
        return found

    def get(self, name: str) -> str | None:
        if name in self.entries:
            return name
        found = self.spellings.get(squeeze(name))
        if found is not None:
            return found
        return self._get_with_memory(name) if self.kind == "device" else self._get_loosely(name) if self.loose else None

    def _get_with_memory(self, name: str) -> str | None:
        """'RTX3090-24GB' is the device that is sold with so much memory, where its name alone says which."""
        sized = re.fullmatch(r"(.+?)[\s_-]+\(?(\d+)\s*gi?b?\)?", name.strip().lower())
        found = self.spellings.get(squeeze(sized[1])) if sized else None
        if sized is None or found is None:
            return None
        nominal_gib = float(self.entries[found]["nominal_memory_bytes"]) / GIB
        return found if abs(nominal_gib / max(1, int(sized[2])) - 1) < 0.1 else None

    def _get_loosely(self, name: str) -> str | None:
        """Without its owner, what stands in brackets, words about training, and dots that others leave out."""
        plain = re.sub(r"\(.*?\)", " ", name.lower().rpartition("/")[2]).replace("_", "-")
        words = [word for word in re.findall(r"[a-z0-9.]+", plain) if word not in _DECORATIONS]
        short = squeeze("-".join(words))
        return self.spellings.get(short) or self.loose.get(short.replace(".", ""))

    def aliases(self) -> Iterable[str]:
        return (alias for entry in self.entries.values() for alias in entry.get("aliases", ()))


@functools.cache
def load_facts(kind: str) -> Facts:
    """The table of all entries of a kind ('device', 'link', 'node', 'dataset'), read once."""
    plural = f"{kind}s"
    data = read_json(Path(__file__).parent / "data" / f"{plural}.json")
    entries: dict[str, Entry] = data[plural]
    spellings: dict[str, str] = {}
    for name, entry in entries.items():
        for alias in entry.get("aliases", ()):
            spellings[squeeze(alias)] = name
    # A name wins over an alias of another entry.
    spellings.update((squeeze(name), name) for name in entries)
    loose = _drop_dots(spellings) if kind == "model" else {}
    return Facts(kind=kind, entries=entries, spellings=spellings, loose=loose, sources=data.get("sources", {}))


def _drop_dots(spellings: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for spelling, name in spellings.items():
        found.setdefault(spelling.replace(".", ""), set()).add(name)
    return {spelling: names.pop() for spelling, names in found.items() if len(names) == 1}


def squeeze(name: str) -> str:
    """Case, punctuation, makers and 'GB' dropped: 'NVIDIA A100-SXM4-80GB' and 'a100_sxm4_80g' are one."""
    text = re.sub(r"(\d)\s*gi?b\b", r"\1g", name.lower().replace("_", " "))
    return "".join(word for word in re.findall(r"[a-z0-9.]+", text) if word not in _NOISE)
