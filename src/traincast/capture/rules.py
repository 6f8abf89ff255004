"""Rules for operations that this package does not know, from other installed packages."""

import functools
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from traincast.errors import InvalidInput

GROUP = "traincast.rules"
"""Entry points of this group are mappings from an operation, `library.name`, to its rule."""


@functools.cache
def installed_rules() -> Mapping[str, Callable[..., Any]]:
    """Of all installed packages together."""
    rules: dict[str, Callable[..., Any]] = {}
    for point in entry_points(group=GROUP):
        found = point.load()
        if not isinstance(found, Mapping) or not all(callable(rule) for rule in found.values()):
            raise InvalidInput(
                f"the entry point {point.name!r} of {GROUP} is no mapping from operations to rules; see docs/how-to/capture.md"
            )
        rules.update(found)
    return rules
