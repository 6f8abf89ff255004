"""The event loop compiled by numba: the source of `_loop` once more, on arrays."""

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from numba import types
from numba.experimental import structref
from numba.extending import register_jitable

from traincast.errors import MissingExtra
from traincast.schedule import _loop
from traincast.schedule._jobs import Ints
from traincast.schedule._layout import KIND, LINE, RUN, Layout
from traincast.schedule._placement import NodeMap

SPAN = np.dtype([(name, np.int64) for name in ("first", "last", "width", "words", "bits_at", "hist_at", "counted")])


MAP = ("free", "room", "hist", "bits", "pool_of", "pools")
"""The fields of a `NodeMap` that the loop reads."""
STATE = (
    *("job", "kind", "line", "run", "kind_pool", "kind_usable", "kind_rate", "nodes", "later", "limits", "event_keys"),
    *("event_tokens", "wait_keys", "wait_jobs", "run_keys", "run_jobs", "tree", "leaf_job", "part_node", "part_gpus"),
    *("part_next", "chosen", "losers", "spot_node", "spot_gpus", "kept_node", "kept_gpus", "hidden", "gain", "cleared"),
    *("levels", "quota", "pool_s"),
)
"""The fields of a `Floor` that the loop reads where it is compiled."""


class MapType(types.StructRef):  # type: ignore[misc]
    def __init__(self, fields: Any) -> None:
        super().__init__(fields)
        self.name = "Map"  # there is one such type, and its fields would be in the name of every function


class StateType(types.StructRef):  # type: ignore[misc]
    def __init__(self, fields: Any) -> None:
        super().__init__(fields)
        self.name = "State"


structref.register(MapType)
structref.register(StateType)


class Map(structref.StructRefProxy):  # type: ignore[misc]
    def __new__(cls, *args: Any) -> Any:
        return structref.StructRefProxy.__new__(cls, *args)


class State(structref.StructRefProxy):  # type: ignore[misc]
    def __new__(cls, *args: Any) -> Any:
        return structref.StructRefProxy.__new__(cls, *args)


structref.define_proxy(Map, MapType, MAP)
structref.define_proxy(State, StateType, STATE)


@cache
def load() -> Callable[[Any, int], bool]:
    """The compiled loop; numba keeps the machine code beside the source, or in the user's cache."""
    try:
        import numba
    except ImportError as error:
        raise MissingExtra("numba", "schedule", "the compiled engine") from error
    spec = importlib.util.spec_from_file_location("traincast.schedule._loop_compiled", _loop.__file__)
    if spec is None or spec.loader is None:
        raise MissingExtra("numba", "schedule", "the compiled engine")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["OBJECTS"] = False
    for part in list(vars(module).values()):
        if isinstance(part, FunctionType) and part.__module__ == spec.name:
            register_jitable(error_model="numpy")(part)
    found: Callable[[Any, int], bool] = numba.njit(cache=True, error_model="numpy")(vars(module)["run_events"])
    return found


def _lay_map(nodes: NodeMap) -> Any:
    spans = [tuple(getattr(span, name) for name in SPAN.names or ()) for span in nodes.pools]
    columns = (nodes.free, nodes.room, nodes.hist or [0], nodes.bits or [0], nodes.pool_of)
    return Map(*(np.array(column, dtype=np.int64) for column in columns), np.array(spans, dtype=SPAN))


def lay_out(layout: Layout) -> tuple[Any, dict[str, Any]]:
    """The state as the loop takes it, and its columns by name."""
    kinds, nodes, count = layout.kinds, layout.nodes, len(layout.jobs)
    num_nodes, num_gpus = len(nodes.free), sum(nodes.up_in_pool)
    most = min(count, num_gpus) + 1

    def ints(size: int) -> Ints:
        return np.zeros(size, dtype=np.int64)

    parts = num_gpus + num_nodes + 2
    room = 4 * most + 16
    known: dict[str, Any] = dict(
        job=layout.jobs_array(),
        kind=np.array(layout.kind_rows(), dtype=KIND),
        line=layout.lines.astype(LINE),
        run=np.array([layout.run_row()], dtype=RUN),
        kind_pool=np.array([*kinds.pools, 0], dtype=np.int64),
        kind_usable=np.array([*kinds.usable, 0], dtype=np.int64),
        kind_rate=np.array([*kinds.rates, 1.0]),
        nodes=_lay_map(nodes),
        later=_lay_map(nodes),
        limits=np.array(layout.rule.limits, dtype=np.float64),
        event_keys=np.zeros(room),
        event_tokens=ints(room),
        wait_keys=np.zeros(count),
        wait_jobs=ints(count),
        run_keys=np.zeros(most),
        run_jobs=ints(most),
        tree=layout.tree if len(layout.tree) else np.zeros(1),
        leaf_job=layout.leaf_job if len(layout.leaf_job) else ints(1),
        part_node=ints(parts),
        part_gpus=ints(parts),
        part_next=np.append(np.arange(1, parts), -1),
        chosen=ints(count + 1),
        losers=ints(most),
        **{
            name: ints(num_nodes + 1)
            for name in ("spot_node", "spot_gpus", "kept_node", "kept_gpus", "hidden", "gain", "cleared")
        },
        levels=ints(max(nodes.width, default=0) + 1),
        quota=ints(len(nodes.room)),
        pool_s=np.zeros(len(nodes.room)),
    )
    return State(*(known[name] for name in STATE)), known
