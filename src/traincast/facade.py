"""What a room shows to others: names that are imported from its private modules when they are first asked for."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def load_lazily(room: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The `__getattr__` of a room. `homes`: each private module with the names that it gives to the room.

    Nothing is imported until somebody asks, so a command loads only the modules on its way.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{room}.{home_of[name]}"), name)
        setattr(sys.modules[room], name, value)
        return value

    return find
