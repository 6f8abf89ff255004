"""What a room shows to others: names that are imported from its private modules when they are first asked for."""

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SHOWN = re.compile(r"^    from (traincast[\w.]+) import (?:\(([^)]*)\)|(.*))$", re.MULTILINE)


def load_lazily(room: str) -> Callable[[str], Any]:
    """The `__getattr__` of a room: what its file imports for type checkers is what it shows.

    Nothing is imported until somebody asks, so a command loads only the modules on its way.
    """
    text = Path(str(sys.modules[room].__file__)).read_text(encoding="utf-8")
    homes = {
        name: module
        for module, *lists in _SHOWN.findall(text)
        for name in re.findall(r"\w+", re.sub("#.*", "", "".join(lists)))
    }

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[room], name, value)
        return value

    return find
