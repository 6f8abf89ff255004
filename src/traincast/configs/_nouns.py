"""What a configuration says: fields of a question, what cannot change a forecast, and what was not used."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from traincast.configs._keys import Keys
from traincast.noun import noun
from traincast.spec import QUESTION_FIELDS

SAID, LOOSE, ASSUMED = 2, 1, 0
"""How strongly a file says a field: by a key of its own; in words that another file may make more exact; not at all, it is
what the project does where nothing is said."""
FIELDS: Mapping[str, type] = {
    **{f"{item.section}.{item.name}": item.kind for item in QUESTION_FIELDS if item.section},
    "source": str,
}
"""Everything that a configuration may say, by section and name."""


@noun
class Setting:
    """A field of the question with the key that says it."""

    value: Any
    origin: str
    strength: int


@noun
class Reading:
    """One file, read."""

    name: str
    format: str
    title: str
    settings: Mapping[str, Setting]
    """By field: 'workload.batch', 'parallelism.zero', 'source'."""
    unused: tuple[str, ...]
    """Keys that may change a forecast and have no field, or a value that no field has."""
    harmless: tuple[str, ...]
    """Keys that change neither time nor memory: learning rates, seeds, paths, loggers."""
    notes: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Draft:
    """A file while it is read."""

    keys: Keys
    settings: dict[str, Setting] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unmapped: dict[str, str] = field(default_factory=dict)
    """Keys whose value no field has, with the reason."""

    def put(self, name: str, value: Any, origin: str, *, strength: int = SAID) -> None:
        if value is None:
            return
        if name not in FIELDS:
            # A field of a regime that this version cannot ask for.
            self.unmapped[origin] = f"no field for {name.rpartition('.')[2].replace('_', ' ')}"
            return
        known = self.settings.get(name)
        if known is None or strength >= known.strength:
            self.settings[name] = Setting(value=value, origin=origin, strength=strength)

    def assume(self, name: str, value: Any, reason: str) -> None:
        """What the project does where its file says nothing."""
        if name not in self.settings:
            self.put(name, value, reason, strength=ASSUMED)

    def get(self, name: str, default: Any = None) -> Any:
        found = self.settings.get(name)
        return default if found is None else found.value

    def take(self, name: str, *keys: str, least: float | None = None, strength: int = SAID) -> Any:
        """Put what the first of these keys says into a field, as the field's own kind; a number below `least` says nothing."""
        kind = FIELDS.get(name, str)
        read: Callable[..., Any] = {
            int: self.keys.whole, float: self.keys.number, bool: self.keys.flag, str: self.keys.word,
        }[kind]  # fmt: skip
        origin = self.keys.first(*keys)
        value = read(*keys)
        if value is None or origin is None or (least is not None and value < least):
            return None
        self.put(name, value, origin, strength=strength)
        return value

    def translate(self, name: str, words: Mapping[str, Any], *keys: str, strength: int = SAID) -> Any:
        """Put what a word of the project means; a word that is not known is named as not used."""
        origin = self.keys.first(*keys)
        value = self.keys.take(*keys)
        if value is None or origin is None:
            return None
        word = str(value).strip().lower()
        if word not in words:
            self.unmapped[origin] = f"{value!r} is not known"
            return None
        self.put(name, words[word], origin, strength=strength)
        return words[word]

    def refuse(self, key: str, reason: str) -> None:
        """Name a key as not used, and why."""
        if self.keys.first(key) is not None:
            self.keys.take(key)
            self.unmapped[key] = reason


@dataclass(slots=True, kw_only=True)
class Sheet:
    """A file while it is written: the fields of a question in, the tree of a project's file out."""

    fields: Mapping[str, Any]
    tree: dict[str, Any] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    """Fields that the file says."""
    lost: set[str] = field(default_factory=set)
    """Fields whose value it has no place for, though it is a usual one."""
    comments: list[str] = field(default_factory=list)
    program: str = ""
    """What a launch script runs."""

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, which counts as told."""
        self.told.add(name)
        value = self.fields.get(name)
        return default if value is None else value

    def put(self, key: str, value: Any) -> None:
        """Set a dotted key."""
        if value is None:
            return
        *tables, last = key.split(".")
        place = self.tree
        for name in tables:
            place = place.setdefault(name, {})
        place[last] = value

    def copy(self, name: str, key: str) -> None:
        self.put(key, self.get(name))

    def translate(self, name: str, words: Mapping[Any, Any], key: str) -> None:
        """The project's word for a value; a value that it has no word for is not told."""
        value = self.fields.get(name)
        if value in words:
            self.told.add(name)
            self.put(key, words[value])


@noun
class ConfigFormat:
    """How one project writes its configurations."""

    name: str
    title: str
    syntax: str
    """What is written: json, yaml, toml, shell or python."""
    telling: tuple[str, ...]
    """Keys, or beginnings of keys that end in a dot, that few other projects have."""
    read: Callable[[Draft], None]
    sure: str = ""
    """A telling key that is enough alone."""
    write: Callable[[Sheet], None] | None = None
    harmless: tuple[str, ...] = ()
    """Beginnings of keys of this project that cannot change a forecast."""
    script: str = ""
    """Of a launch script: a word of the command that tells the project."""
    aliases: tuple[str, ...] = ()
