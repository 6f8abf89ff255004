"""Tables of facts to entries: each found by its name or by any known spelling of it."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar

from traincast.errors import InvalidInput, UnknownName
from traincast.files import read_json
from traincast.noun import noun
from traincast.units import GIB

Entry = Mapping[str, Any]
Noun = TypeVar("Noun")

# Words that drivers, shops and papers put around a name without changing what it means.
_NOISE = frozenset({
    "nvidia", "tesla", "geforce", "amd", "radeon", "instinct", "google", "cloud", "intel", "habana", "gpu", "generation", "with",
    "design", "edition",
})  # fmt: skip

# Words that say how a model was trained or is stored, not what it is.
_DECORATIONS = frozenset({
    "hf", "instruct", "chat", "it", "sft", "pretraining", "pretrain", "pretrained", "training", "finetuning", "finetune",
    "finetuned", "seqlen",
})  # fmt: skip
_SIZE = re.compile(r"(\d)\s*gi?b\b")
_WORDS = re.compile(r"[a-z0-9.]+")


@noun
class Facts:
    """One table of the catalogue."""

    kind: str
    entries: Mapping[str, Entry]
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
        found = list_spellings(self.kind).get(squeeze(name))
        if found is not None:
            return found
        if self.kind == "device":
            return self._get_with_memory(name)
        return self._get_loosely(name) if self.kind == "model" else None

    def _get_with_memory(self, name: str) -> str | None:
        """'RTX3090-24GB' is the device that is sold with so much memory, where its name alone says which."""
        sized = re.fullmatch(r"(.+?)[\s_-]+\(?(\d+)\s*gi?b?\)?", name.strip().lower())
        found = list_spellings("device").get(squeeze(sized[1])) if sized else None
        if sized is None or found is None:
            return None
        nominal_gib = float(self.entries[found]["nominal_memory_bytes"]) / GIB
        return found if abs(nominal_gib / max(1, int(sized[2])) - 1) < 0.1 else None

    def _get_loosely(self, name: str) -> str | None:
        """Without its owner, what stands in brackets, words about training, and dots that others leave out."""
        plain = re.sub(r"\(.*?\)", " ", name.lower().rpartition("/")[2]).replace("_", "-")
        words = [word for word in re.findall(r"[a-z0-9.]+", plain) if word not in _DECORATIONS]
        short = squeeze("-".join(words))
        return list_spellings("model").get(short) or _list_without_dots("model").get(short.replace(".", ""))

    def aliases(self) -> Iterable[str]:
        return (alias for entry in self.entries.values() for alias in entry.get("aliases", ()))


@functools.cache
def load_facts(kind: str) -> Facts:
    """The table of all entries of a kind ('device', 'link', 'node', 'dataset'), read once."""
    plural = f"{kind}s"
    data = read_json(Path(__file__).parent / "data" / f"{plural}.json")
    return Facts(kind=kind, entries=data[plural], sources=data.get("sources", {}))


@functools.cache
def list_spellings(kind: str) -> Mapping[str, str]:
    """Squeezed spelling to name; a name wins over an alias of another entry."""
    entries = load_facts(kind).entries
    aliases = {squeeze(alias): name for name, entry in entries.items() for alias in entry.get("aliases", ())}
    return aliases | {squeeze(name): name for name in entries}


@functools.cache
def _list_without_dots(kind: str) -> Mapping[str, str]:
    """Squeezed spelling without dots to name, where only one entry is spelt so."""
    found: dict[str, set[str]] = {}
    for spelling, name in list_spellings(kind).items():
        found.setdefault(spelling.replace(".", ""), set()).add(name)
    return {spelling: names.pop() for spelling, names in found.items() if len(names) == 1}


def make_entry(kind: type[Noun], name: str, facts: Entry, **given: Any) -> Noun:
    """A noun from the facts of an entry that are its fields; what is missing is named together with what may be said."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    values = {each.name: facts[each.name] for each in fields if each.name in facts} | given
    if any(each.name == "name" for each in fields):
        values.setdefault("name", name)
    needed = [each.name for each in fields if each.default is MISSING and each.default_factory is MISSING]
    absent = [key for key in needed if key not in values]
    if absent:
        others = [each.name for each in fields if each.name not in (*needed, "name")]
        raise InvalidInput(
            f"the entry {name!r} says no {', '.join(absent)}; needed: {', '.join(needed)}; may be said too: {', '.join(others)}"
        )
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def squeeze(name: str) -> str:
    """Case, punctuation, makers and 'GB' dropped: 'NVIDIA A100-SXM4-80GB' and 'a100_sxm4_80g' are one."""
    text = _SIZE.sub(r"\1g", name.lower().replace("_", " "))
    return "".join([word for word in _WORDS.findall(text) if word not in _NOISE])
