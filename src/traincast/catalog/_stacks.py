"""Stack documents to stacks: each found by its name or by any spelling that tables and command lines use for it."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput, UnknownName
from traincast.files import decode, read_toml
from traincast.noun import noun
from traincast.registry import Registry
from traincast.spec import PLAIN, MemoryHabits, PlanHabits, RecipeHabits, Stack, Words

LARGE = "large-models"
DOCUMENTS = Path(__file__).parent / "data" / "stacks"
SECTIONS: Mapping[str, type] = {"plan": PlanHabits, "recipe": RecipeHabits, "memory": MemoryHabits}
_VERSION = re.compile(r"[ =@-]+v?(\d+(?:\.\d+)?)[\w.+-]*$")


@noun
class LogFacts:
    """What the numbers in a stack's logs and tables mean. Readers of tables use them; a forecast does not."""

    watched_stage: int | None = None
    """The pipeline stage whose memory is logged; None: the fullest."""
    memory_unit: float = 1.0
    """Bytes in what tables made from these logs call a byte."""
    counts_reserved: bool = True
    """Memory is what the caching allocator holds; False: what tensors take."""
    metered_spelling: str = ""
    """Part of the spelling that says that memory was read from the device's own meter."""
    known_to_run: bool = False
    """Its tables are recipes published for a device, so each is known to run on it."""
    unsharded_adapters: bool = False
    """Its tables give the peak of one device where adapters were trained on several."""
    adapter_targets: str = ""
    """Beside which layers the recipes in its tables put adapters, where they do not say; empty: as the stack does by default."""
    precision_settings: Words = ()
    """Words among a row's other settings that change its precision: (("float8_rowwise", "bf16"),)."""


class _Documents(Mapping[str, Stack]):
    """The stacks that ship, each read when it is first asked for."""

    def __getitem__(self, name: str) -> Stack:
        if name not in stack_names():
            raise KeyError(name)
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(stack_names())

    def __len__(self) -> int:
        return len(stack_names())


STACKS: Registry[Stack] = Registry(kind="stack", entries=_Documents())
"""A stack by its name; another package adds one through the entry-point group `traincast.stacks`."""


def stack(name: str | Stack) -> Stack:
    """A stack by name or by any spelling of it: 'nanotron', 'Megatron-Core', 'torchtitan 0.2'."""
    if isinstance(name, Stack):
        return name
    found = find_stack(name)
    return with_version(found, version_in(name)) if found is not None else STACKS.find(name)


def with_version(found: Stack, version: str) -> Stack:
    """The same object where no version is said, so that what was found for it is found again."""
    return dataclasses.replace(found, version=version) if version else found


def version_in(spelling: str) -> str:
    """The version at the end of a spelling, its first two numbers: 'Megatron-Core 26.02.01' has 26.02. The name of a stack may
    end in a number (pytorch-1) and has none."""
    plain = _plain(spelling)
    found = None if plain in _spellings() else _VERSION.search(plain)
    return found.group(1) if found else ""


def find_stack(spelling: str) -> Stack | None:
    """The stack that a spelling means; None where no document knows it. Of several the most particular is meant."""
    if not isinstance(spelling, str):
        raise InvalidInput(f"the name of a stack must be a text, not {spelling!r}")
    plain = _plain(spelling)
    if plain in stack_names():
        return _load(plain)
    known = _spellings()
    if plain in known:
        return _load(known[plain])
    within = [alias for alias in known if _stands_in(alias, plain)]
    return _load(known[max(within, key=len)]) if within else None


def name_stack(spelling: str) -> str | None:
    """The name of the stack that a spelling is, in any capitals and version; None for what only contains a known one."""
    return _spellings().get(_VERSION.sub("", _plain(spelling)))


def stacks() -> tuple[Stack, ...]:
    return tuple(_load(name) for name in stack_names())


@functools.cache
def stack_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in DOCUMENTS.glob("*.toml")))


def read_stack(path: Path, *, name: str | None = None) -> Stack:
    """A stack from a document of its own; what it does not say is as in the stack that it is like."""
    data = read_toml(path)
    parent = data.get("like", "")
    table = _merge(_document(parent) if parent else {}, data)
    table.setdefault("title", name or path.stem)
    costs = table.pop("costs", {})
    if not isinstance(costs, Mapping):
        raise InvalidInput(f"{path}: costs must be a table of constants")
    table.pop("logs", None)
    for section, kind in SECTIONS.items():
        if isinstance(table.get(section), Mapping):
            table[section] = _entries(kind, table[section])
    table = _entries(Stack, table)
    return decode(Stack, {**table, **costs, "name": name or path.stem}, where=str(path))


def _entries(kind: type, table: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of what a framework does and does not, and of what words mean, as the pairs and names that nouns hold."""
    defaults = {one.name: one.default for one in dataclasses.fields(kind) if isinstance(one.default, tuple)}
    return {
        key: _entry(defaults[key], value) if key in defaults and isinstance(value, Mapping) else value
        for key, value in table.items()
    }


def _entry(default: tuple[Any, ...], value: Mapping[str, Any]) -> list[Any]:
    if all(isinstance(said, bool) for said in value.values()) and not any(isinstance(one, tuple) for one in default):
        return sorted({*default, *value} - {name for name, said in value.items() if not said})
    return sorted({**dict(default), **value}.items())


@functools.cache
def log_facts(name: str) -> LogFacts:
    """What numbers in the logs of a framework mean; as usual for one that has no document."""
    return decode(LogFacts, _entries(LogFacts, _document(name).get("logs", {})) if name in stack_names() else {})


@functools.cache
def _load(name: str) -> Stack:
    return read_stack(DOCUMENTS / f"{name}.toml", name=name)


@functools.cache
def _document(name: str) -> dict[str, Any]:
    """The tables of a stack with those of all that it is like; its spellings and its title are its own."""
    if name not in stack_names():
        raise UnknownName("stack", name, stack_names())
    data = read_toml(DOCUMENTS / f"{name}.toml")
    whole = _merge(_document(data["like"]), data) if "like" in data else data
    return {key: value for key, value in whole.items() if key not in ("title", "aliases", "like")}


def _merge(parent: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(parent)
    for key, value in child.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


@functools.cache
def _spellings() -> dict[str, str]:
    """Every spelling to its stack; a name wins over an alias of another."""
    found: dict[str, str] = {}
    for name in stack_names():
        for alias in _aliases(name):
            found[_plain(alias)] = name
    found.update((name, name) for name in stack_names())
    return found


def _aliases(name: str) -> list[str]:
    listed: list[str] = read_toml(DOCUMENTS / f"{name}.toml").get("aliases", [])
    return listed


def _plain(spelling: str) -> str:
    return " ".join(spelling.strip().lower().replace("_", "-").split())


def _stands_in(alias: str, spelling: str) -> bool:
    """Whether a spelling has the alias as a word of its own; a version may follow: 'nvidia-dle-tensorflow2', 'Nanotron 0.4'."""
    return re.search(rf"(?<![a-z0-9]){re.escape(alias)}(?![a-z])", spelling) is not None


@functools.cache
def plain_stack() -> Stack:
    """Eager PyTorch, which is assumed where no stack is named and no plan asks for more."""
    return _load(PLAIN)


@functools.cache
def large_stack() -> Stack:
    """What frameworks that cut layers and pipelines have in common; assumed where a plan asks for one and none is named."""
    return _load(LARGE)
