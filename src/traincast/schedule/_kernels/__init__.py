"""The scheduler's event loop and the loops of share programs: compiled by numba where it is installed, plain Python elsewhere.

The same source runs both ways, on arrays or on lists, so the results are the same bits. What the passes of the event loop do
is said in `schedule.passes`; here only the order of work differs. Waiting jobs are kept by kind, because in one pass a kind
that failed once fails until the pass ends.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from traincast.schedule._kernels import (
    backfill,
    blocks,
    embedding,
    ends,
    hazards,
    heaps,
    lines,
    links,
    loop,
    nodes,
    order,
    places,
    preempt,
    program,
    reserve,
    residents,
    shadow,
    slots,
    tables,
    trees,
    turns,
)
from traincast.schedule._kernels.embedding import FOUND, IMPOSSIBLE, LOST
from traincast.schedule._kernels.preempt import DISTURB

__all__ = [
    "DISTURB",
    "FOUND",
    "IMPOSSIBLE",
    "LOST",
    "compiled",
    "interpreted",
]

Loops = dict[str, Callable[..., Any]]
_MODULES = (
    heaps,
    trees,
    nodes,
    places,
    tables,
    hazards,
    ends,
    shadow,
    reserve,
    lines,
    links,
    backfill,
    residents,
    order,
    preempt,
    loop,
    slots,
    turns,
    program,
    blocks,
    embedding,
)
_GUARDED = (slots.__name__, turns.__name__)
_INLINED = tuple(module.__name__ for module in (loop, lines, backfill, preempt))
_SMALL = (
    *(places.find_place, places.rate_at, nodes.fits_pool, nodes.any_with, nodes.over),
    *(tables.run_on, tables.settle, shadow.reserve_nodes, shadow.give_spare, shadow.give_gain),
    *(program.pull_job, program.steer_job, embedding.find_slope, embedding.find_step, embedding.move_by),
    *(blocks.scale_local_rows, blocks.rotate_rows, blocks.reach_shared, blocks.take_out_cone),
    *(blocks.go_forward, blocks.go_back, blocks.price_cone),
)
"""Parts of larger functions, called where passing their tables would cost as much as their work."""
_LOOPS = (
    "run_events",
    "run_main",
    "run_backfill",
    "run_turns",
    "give_turns",
    "settle_accounts",
    "fill_in_order",
    "raise_level",
    "find_shares",
)


def _parts() -> dict[str, FunctionType]:
    """All functions of the kernels by name; a name belongs to one of them."""
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
    # numba's cache looks at the file of each function alone, so the name carries the text of all of them and of this file.
    text = b"".join(Path(str(file)).read_bytes() for file in (__file__, *(module.__file__ for module in _MODULES)))
    version = hashlib.sha256(text).hexdigest()[:8]
    # Every function sees the constants of its own module; a name may mean another number elsewhere.
    scopes = {module.__name__: dict(vars(module)) for module in _MODULES}
    twins: dict[object, Any] = {}
    for name, part in _parts().items():
        twin = FunctionType(part.__code__, scopes[part.__module__], name)
        twin.__qualname__, twin.__module__ = f"{name}_{version}", part.__module__
        # Rates are above 0, and elsewhere a division by zero ends in "no answer": a test before each would cost half the speed.
        options: dict[str, object] = {"error_model": "python" if part.__module__ in _GUARDED else "numpy"}
        # No loop makes arrays, and counting references to those in its tables would cost several times the work itself.
        options |= {"_nrt": False}
        if name not in _LOOPS:
            options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
            # Tables of tables of arrays are passed by value, thousands of words at a call.
            options |= {"forceinline": part.__module__ in _INLINED or part in _SMALL}
        try:
            twins[part] = numba.njit(twin, cache=True, **options)
        except RuntimeError:  # no writable place for the cache
            twins[part] = numba.njit(twin, **options)
    # A function is compiled at its first call, when all names it uses have their compiled twins in its scope.
    for scope in scopes.values():
        scope.update(
            {name: twins[value] for name, value in scope.items() if isinstance(value, FunctionType) and value in twins}
        )
    return {name: twins[part] for name, part in _parts().items() if name in _LOOPS}


def is_ready(name: str) -> bool:
    """Whether this process has the machine code of a loop at hand, so that even a small run gains by it."""
    loops = compiled() if compiled.cache_info().currsize else None
    return loops is not None and bool(getattr(loops[name], "signatures", ()))


def compile_apart(name: str, module: str) -> None:
    """Where numba's cache has no machine code of a loop, let another process that runs `module` compile it there: the compiler
    holds more memory than a simulation. If that fails, the first call compiles here."""
    loops = compiled()
    if loops is None or is_ready(name) or not sys.executable:
        return
    index = getattr(getattr(getattr(loops[name], "_cache", None), "_cache_file", None), "_load_index", None)
    if index is None or index():  # nothing can be kept, or it is there
        return
    paths = os.pathsep.join(path for path in sys.path if path)
    subprocess.run(
        [sys.executable, "-m", module], env=os.environ | {"PYTHONPATH": paths}, check=False, capture_output=True
    )


REPAYS = 1000
"""So many jobs are divided by the interpreted loop before it is compiled: both take seconds."""
_jobs_seen: dict[tuple[object, ...], int] = {}


def pick(name: str, shape: tuple[int, ...], num_jobs: int) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    """A loop over share programs, and what makes its arguments of arrays. It is compiled for each `shape` apart, so only
    where that repays; the answer has the same bits either way."""
    seen = _jobs_seen[name, *shape] = _jobs_seen.get((name, *shape), 0) + num_jobs
    if seen > REPAYS and (loops := compiled()) is not None:
        return loops[name], lambda array: array
    return interpreted()[name], lambda array: array.tolist()


def interpreted() -> Loops:
    parts = _parts()
    return {name: parts[name] for name in _LOOPS}
