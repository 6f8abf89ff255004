"""The tree of a configuration to its keys, each with the value it has and whether a reader has used it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from traincast.errors import InvalidInput

MOST_KEYS = 20_000
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_NOTHING = ("auto", "null", "none", "")
"""Words by which a file leaves a value to somebody else."""


class Keys:
    """Dotted keys with plain values. A reader takes what it knows; what nobody takes is left over."""

    def __init__(self, tree: Mapping[str, Any], *, where: str) -> None:
        self.where = where
        self.values: dict[str, Any] = {}
        self._taken: set[str] = set()
        for key, value in _flatten(tree):
            if len(self.values) >= MOST_KEYS:
                raise InvalidInput(
                    f"{where} has more than {MOST_KEYS:,} keys; configurations of that size are not read"
                )
            self.values[key] = value

    def __contains__(self, key: str) -> bool:
        return self._find(key) is not None

    def _find(self, key: str) -> Any:
        """The value of a key, a reference to another key followed; None: not said."""
        value = self.values.get(key)
        for _ in range(8):
            matched = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
            if matched is None:
                break
            value = self.values.get(matched[1])
        if isinstance(value, str) and (is_open(value) or value.strip().lower() in _NOTHING):
            return None
        return value

    def open_values(self) -> list[str]:
        """Keys whose value only a run of the program would tell."""
        return [key for key, value in self.values.items() if is_open(value) and self._find(key) is None]

    def under(self, prefix: str) -> Iterator[str]:
        """The keys of a table."""
        return (key for key in self.values if key == prefix or key.startswith(f"{prefix}."))

    def ending(self, name: str) -> list[str]:
        """The keys whose last part is this."""
        return [key for key in self.values if key == name or key.endswith(f".{name}")]

    def first(self, *keys: str) -> str | None:
        """The first of these keys that is said."""
        return next((key for key in keys if self._find(key) is not None), None)

    def take(self, *keys: str) -> Any:
        """The value of the first of these keys that is said; all of them count as used."""
        self._taken.update(key for key in keys if key in self.values)
        found = self.first(*keys)
        return None if found is None else self._find(found)

    def whole(self, *keys: str) -> int | None:
        value = self.number(*keys)
        if value is None:
            return None
        if not float(value).is_integer():
            raise InvalidInput(f"{self.where}: {self.first(*keys)} = {value}; it must be a whole number")
        return int(value)

    def number(self, *keys: str) -> float | None:
        value = self.take(*keys)
        if value is None:
            return None
        if isinstance(value, str):
            try:
                value = float(value.replace("_", ""))
            except ValueError:
                raise InvalidInput(f"{self.where}: {self.first(*keys)} = {value!r}; it must be a number") from None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e30 or value != value:
            raise InvalidInput(f"{self.where}: {self.first(*keys)} = {value!r}; it must be a number")
        return value

    def flag(self, *keys: str) -> bool | None:
        value = self.take(*keys)
        if isinstance(value, str) and value.lower() in ("true", "false", "yes", "no", "1", "0", "on", "off"):
            return value.lower() in ("true", "yes", "1", "on")
        if isinstance(value, (bool, int)):
            return bool(value)
        if value is None:
            return None
        raise InvalidInput(f"{self.where}: {self.first(*keys)} = {value!r}; it must be true or false")

    def word(self, *keys: str) -> str | None:
        value = self.take(*keys)
        if value is None or isinstance(value, (list, Mapping)):
            return None
        return str(value).strip()

    def left(self) -> list[str]:
        """Keys that nobody used and that say something."""
        return [
            key
            for key, value in self.values.items()
            if key not in self._taken and value not in (None, "", [], {}) and str(value).lower() not in _NOTHING
        ]


def is_open(value: Any) -> bool:
    """A value with a variable in it that the file does not set."""
    return isinstance(value, str) and re.search(r"\$[\w{(]", value) is not None


def _flatten(tree: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > 40:
        raise InvalidInput("the configuration is nested too deeply to be read")
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{name}.", depth + 1)
        else:
            yield name, value
