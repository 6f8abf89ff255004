"""Rules for operations that this package does not know, from other installed packages."""

import functools
from collections.abc import Mapping

from traincast.capture._operators import Rule
from traincast.registry import Registry

REGISTRY: Registry[Rule] = Registry(kind="operator rule", entries={})
"""An entry point is called like its operation, `library.name`, and names a function of the call."""


@functools.cache
def installed_rules() -> Mapping[str, Rule]:
    """Of all installed packages together."""
    return {name: REGISTRY.find(name) for name in REGISTRY}
