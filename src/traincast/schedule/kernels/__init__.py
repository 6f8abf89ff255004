"""The engine's hot loops for one pool of equal nodes: compiled by numba where it is installed, plain Python elsewhere.

The same source runs both ways, on arrays or on lists, so the results are the same bits. What each loop does is said in
`schedule.passes`; here only the order of work differs. Waiting jobs are kept per class (number of GPUs), because in one
pass a class that failed once fails until the pass ends.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from traincast.schedule.kernels import (
    ends,
    head,
    heaps,
    nodes,
    order,
    preempt,
    program,
    queue,
    reserve,
    trees,
    turns,
)
from traincast.schedule.kernels.nodes import BITS
from traincast.schedule.kernels.order import BY_LEVEL, BY_REMAINING, BY_SERVICE
from traincast.schedule.kernels.preempt import DISTURB
from traincast.schedule.kernels.turns import DIVIDE, DRAW, TICK

__all__ = [
    "BITS",
    "BY_LEVEL",
    "BY_REMAINING",
    "BY_SERVICE",
    "DISTURB",
    "DIVIDE",
    "DRAW",
    "TICK",
    "compiled",
    "interpreted",
]

Loops = dict[str, Callable[..., Any]]
_MODULES = (heaps, trees, nodes, ends, head, queue, reserve, order, preempt, turns, program)
_LOOPS = (
    "run_head",
    "run_queue",
    "run_conservative",
    "run_preemptive",
    "run_turns",
    "fill_in_order",
    "raise_level",
)


def _parts() -> dict[str, FunctionType]:
    return {
        name: part
        for module in _MODULES
        for name, part in vars(module).items()
        if isinstance(part, FunctionType) and part.__module__ == module.__name__
    }


@cache
def compiled() -> Loops | None:
    """The loops as machine code, or None where numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    # numba's cache looks at the file of each function alone, so the name carries the text of all of them.
    text = b"".join(Path(str(module.__file__)).read_bytes() for module in _MODULES)
    version = hashlib.sha256(text).hexdigest()[:8]
    scope: dict[str, object] = {}
    for module in _MODULES:
        scope.update(vars(module))
    # A function is compiled at its first call, when all names it uses have their compiled twins in the scope.
    for name, part in _parts().items():
        twin = FunctionType(part.__code__, scope, name)
        twin.__qualname__, twin.__module__ = f"{name}_{version}", part.__module__
        try:
            scope[name] = numba.njit(twin, cache=True)
        except RuntimeError:  # no writable place for the cache
            scope[name] = numba.njit(twin)
    return {name: scope[name] for name in _LOOPS}  # type: ignore[misc]


def is_ready(name: str) -> bool:
    """Whether this process has the machine code of a loop at hand, so that even a small run gains by it."""
    loops = compiled() if compiled.cache_info().currsize else None
    return loops is not None and bool(getattr(loops[name], "signatures", ()))


def interpreted() -> Loops:
    parts = _parts()
    return {name: parts[name] for name in _LOOPS}
