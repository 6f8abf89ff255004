"""How a field of a noun is asked for: its help, its flags and its panel, written once beside the field."""

import dataclasses
import types
import typing
from typing import Any

from traincast.noun import noun


@noun
class Asked:
    """One thing that a question may say."""

    section: str
    """The table of a job file or of a request body that holds it; empty: the top."""
    name: str
    kind: type
    """int, float, str or bool."""
    help: str
    flags: tuple[str, ...]
    """On the command line; the first is the one to print."""
    panel: str
    unit: str = ""
    """How a person may write it: count (10k, 15B), length (8k is 8,192), bytes (80GB), seconds (36h); empty: a plain value."""
    words: tuple[str, ...] = ()
    """Some values to name in help texts."""

    def words_for(self, value: Any) -> list[str]:
        """How a value is said on the command line."""
        if self.kind is bool:
            long = self.name.replace("_", "-")
            return [f"--{long}" if value else f"--no-{long}"]
        flag = next((name for name in self.flags if name.startswith("--")), self.flags[0])
        return [flag, repr(value) if isinstance(value, float) else str(value)]

    @property
    def description(self) -> str:
        return f"{self.help} {', '.join(self.words)}.".strip() if self.words else self.help


def asked(default: Any, help: str, *flags: str, unit: str = "", words: tuple[str, ...] = (), panel: str = "") -> Any:  # noqa: A002
    """A field with a default that a user may be asked for."""
    metadata = {"help": help, "flags": flags, "unit": unit, "words": words, "panel": panel}
    return dataclasses.field(default=default, metadata=metadata)


def hidden(default: Any) -> Any:
    """A field that is worked out and never asked for."""
    return dataclasses.field(default=default, metadata={"hidden": True})


def list_asked(kind: type, *, section: str, panel: str, without: tuple[str, ...] = ()) -> tuple[Asked, ...]:
    """Every field of a noun that a question may say, in order."""
    hints = typing.get_type_hints(kind)
    return tuple(
        _describe(item, hints[item.name], section, panel)
        for item in dataclasses.fields(kind)
        if item.name not in without and not item.metadata.get("hidden")
    )


def _describe(item: "dataclasses.Field[Any]", hint: Any, section: str, panel: str) -> Asked:
    long = f"--{item.name.replace('_', '-')}"
    flags = item.metadata.get("flags", ())
    return Asked(
        section=section,
        name=item.name,
        kind=_kind_of(hint),
        help=item.metadata.get("help", ""),
        flags=tuple(dict.fromkeys((*flags, long))),
        panel=item.metadata.get("panel") or panel,
        unit=item.metadata.get("unit", ""),
        words=item.metadata.get("words", ()),
    )


def _kind_of(hint: Any) -> type:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    return hint if hint in (int, float, str, bool) else str
