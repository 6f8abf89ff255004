"""Turns a class into a noun: a frozen, slotted, keyword-only dataclass.

`dataclasses` compiles seven functions for each class, which was a third of a cold start; only `__init__` needs compiling.
"""

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

Noun = TypeVar("Noun")


def _write_init(cls: type[Any]) -> Callable[..., None]:
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    taken, lines = ["self"], []
    for position, item in enumerate(fields(cls)):
        name, value = item.name, item.name
        if item.default_factory is not MISSING:
            known[f"_make{position}"] = item.default_factory
            taken.append(f"{name}=_missing")
            value = f"_make{position}() if {name} is _missing else {name}"
        elif item.default is not MISSING:
            known[f"_default{position}"] = item.default
            taken.append(f"{name}=_default{position}")
        else:
            taken.append(name)
        lines.append(f" _set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    if len(taken) > 1:
        taken.insert(1, "*")
    exec(f"def __init__({', '.join(taken)}):\n" + "\n".join(lines or [" pass"]), known)  # noqa: S102
    written: Callable[..., None] = known["__init__"]
    written.__qualname__ = f"{cls.__qualname__}.__init__"
    return written


def _repr(self: Any) -> str:
    shown = ", ".join(f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    return self._compared(self) == self._compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _refuse(self: Any, name: str, *_value: Any) -> None:
    raise FrozenInstanceError(f"cannot change field {name!r} of {type(self).__qualname__}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, item.name) for item in fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for item, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, item.name, value)


_SHARED = {
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _getstate,
    "__setstate__": _setstate,
}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def noun(cls: type[Noun]) -> type[Noun]:
    """A frozen, slotted, keyword-only dataclass; what the class defines itself stays."""
    own = {name for name in _SHARED if name in cls.__dict__ and cls.__dict__[name] is not None}
    if not cls.__doc__:
        cls.__doc__ = cls.__name__  # or `dataclass` writes a signature, which takes as long as all the rest
    made = dataclass(init=False, repr=False, eq=False, kw_only=True, slots=True)(cls)
    made.__init__ = _write_init(made)  # type: ignore[method-assign]
    names = [item.name for item in fields(made) if item.compare]  # type: ignore[arg-type]
    names *= 1 + (len(names) == 1)  # attrgetter gives a tuple for two names and more
    made._compared = staticmethod(attrgetter(*names) if names else lambda _: ())  # type: ignore[attr-defined]
    for name, shared in _SHARED.items():
        if name not in own:
            setattr(made, name, shared)
    return made
