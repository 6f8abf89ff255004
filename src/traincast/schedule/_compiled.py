"""The event loop compiled by numba: the source of `_loop` once more, on arrays."""

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit, typeof, types
from numba.experimental import structref
from numba.extending import register_jitable

from traincast.errors import MissingExtra
from traincast.schedule import _loop
from traincast.schedule._jobs import Ints
from traincast.schedule._layout import KIND, LINE, RUN, Layout
from traincast.schedule._loop import EASY, PREEMPT
from traincast.schedule._placement import NodeMap

SPAN = np.dtype([(name, np.int64) for name in ("first", "last", "width", "words", "bits_at", "hist_at", "counted")])


MAP = ("free", "room", "hist", "bits", "pool_of", "pools")
"""The fields of a `NodeMap` that the loop reads."""
STATE = (
    *("job", "kind", "line", "run", "kind_pool", "kind_rate", "nodes", "later", "limits", "event_keys"),
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
    pass


class State(structref.StructRefProxy):  # type: ignore[misc]
    pass


structref.define_proxy(Map, MapType, MAP)
structref.define_proxy(State, StateType, STATE)


@njit(cache=True)  # type: ignore[untyped-decorator]
def make_map(*columns: Any) -> Any:
    return Map(*columns)


@njit(cache=True)  # type: ignore[untyped-decorator]
def make_state(*columns: Any) -> Any:
    return State(*columns)


@cache
def load(name: str, state: Any) -> tuple[Callable[..., bool], Callable[..., None]]:
    """The compiled loop and the look of this name, apart from each other, so that only what a policy needs is compiled; numba
    keeps the machine code beside the source, or in the user's cache."""
    module = _read_loop()
    look = types.void(state, types.float64)
    found = njit(look, cache=True, error_model="numpy")(module[name])
    return _load_events(state, look), found


@cache
def _load_events(state: Any, look: Any) -> Any:
    signature = types.boolean(state, types.int64, types.FunctionType(look))
    return njit(signature, cache=True, error_model="numpy")(_read_loop()["run_events"])


@cache
def _read_loop() -> dict[str, Any]:
    """The source of the loop as a module whose functions numba may compile."""
    spec = importlib.util.spec_from_file_location("traincast.schedule._loop_compiled", _loop.__file__)
    if spec is None or spec.loader is None:
        raise MissingExtra("numba", "schedule", "the compiled engine")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["OBJECTS"] = False
    for part in list(vars(module).values()):
        if isinstance(part, FunctionType) and part.__module__ == spec.name:
            register_jitable(error_model="numpy", no_cfunc_wrapper=True)(part)
    return vars(module)


def _lay_map(nodes: NodeMap) -> Any:
    spans = [tuple(getattr(span, name) for name in SPAN.names or ()) for span in nodes.pools]
    columns = (nodes.free, nodes.room, nodes.hist or [0], nodes.bits or [0], nodes.pool_of)
    return make_map(*(np.array(column, dtype=np.int64) for column in columns), np.array(spans, dtype=SPAN))


def lay_out(layout: Layout) -> tuple[Any, dict[str, Any]]:
    """The state as the loop takes it, and its columns by name."""
    kinds, nodes, count = layout.kinds, layout.nodes, len(layout.jobs)
    num_nodes, num_gpus = len(nodes.free), sum(nodes.up_in_pool)
    most = min(count, num_gpus) + 1

    def ints(size: int) -> Ints:
        return np.zeros(size, dtype=np.int64)

    eased = layout.rule.fit == EASY
    parts = num_gpus + num_nodes + 2
    room = 4 * most + 16
    known: dict[str, Any] = dict(
        job=layout.jobs_array(),
        kind=np.array(layout.kind_rows(), dtype=KIND),
        line=layout.lines.astype(LINE),
        run=np.array([layout.run_row()], dtype=RUN),
        kind_pool=np.array([*kinds.pools, 0], dtype=np.int64),
        kind_rate=np.array([*kinds.rates, 1.0]),
        nodes=_lay_map(nodes),
        later=_lay_map(nodes),
        limits=np.array(layout.rule.limits, dtype=np.float64),
        event_keys=np.zeros(room),
        event_tokens=ints(room),
        wait_keys=np.zeros(1 if eased else count),
        wait_jobs=ints(1 if eased else count),
        run_keys=np.zeros(most),
        run_jobs=ints(most),
        tree=layout.tree if len(layout.tree) else np.zeros(1),
        leaf_job=layout.leaf_job if len(layout.leaf_job) else ints(1),
        part_node=ints(parts),
        part_gpus=ints(parts),
        part_next=np.append(np.arange(1, parts), -1),
        chosen=ints(count + 1 if layout.rule.fit == PREEMPT else 1),
        losers=ints(most),
        **{
            name: ints(num_nodes + 1)
            for name in ("spot_node", "spot_gpus", "kept_node", "kept_gpus", "hidden", "gain", "cleared")
        },
        levels=ints(max(nodes.width, default=0) + 1),
        quota=ints(len(nodes.room)),
        pool_s=np.zeros(len(nodes.room)),
    )
    return make_state(*(known[name] for name in STATE)), known


def run_layout(layout: Layout, look: str, run: Callable[[Any, Callable[[int], bool]], None]) -> tuple[Any, Any, Any]:
    """Jobs, counters and seconds by pool after the run; all else makes room for the answer."""
    state, columns = lay_out(layout)
    layout.tree, layout.leaf_job, layout.rank, layout.leaf = np.zeros(0), np.zeros(0, dtype=np.int64), None, None
    events, chosen = load(look, typeof(state))
    run(columns["run"][0], lambda most: events(state, most, chosen))
    return columns["job"], columns["run"][0], columns["pool_s"]
