"""Turns a priced stage into a graph of numbers: what each task is, when it runs, and which others touch it."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from traincast.noun import noun
from traincast.spec import KINDS, Collective, Estimate, Op, Stage, Task, calls_of

Array = NDArray[np.float64]
Places = NDArray[np.intp]

COLLECTIVE = "collective"
SORTS = (*KINDS, COLLECTIVE)
_SORT_OF = {sort: place for place, sort in enumerate(SORTS)}
_STAGES = {"forward": 0, "backward": 1, "recompute": 1, "gradient": 1, "optimizer": 2}
NUM_PASSES = 3
OF_TASK = (
    "log_flop", "log_read_bytes", "log_written_bytes", "log_intensity", "log_calls", "log_count", "log_rows", "log_cols",
    "log_depth", "log_share", "log_relative_cost", "log_reuse_bytes", "read_fresh", "position", "host_lead", "overlap",
)  # fmt: skip
"""Of each task. Costs count only beside those of the whole stage, so that a machine twice as fast gives the same features:
the share of the stage, and the price of a byte beside the stage's mean. `log_reuse_bytes`: moved since its largest input was
last touched; `read_fresh`: share of its inputs written by the task before; `host_lead`: how far the device is behind the host
(above 0) or waits for it; `overlap`: communication under way beside it, beside the whole stage."""
OF_STAGE = ("log_stage_flop", "log_stage_bytes", "log_stage_calls", "log_stage_weights", "log_stage_intensity")
NUMERIC = (*OF_TASK, *OF_STAGE)


@noun
class Flow:
    """A weighted sum over edges: at each end, of what stands at its origins. Edges are sorted by their ends."""

    origins: Places
    ends: Places
    weights: Array
    starts: Places
    size: int

    @staticmethod
    def of(origins: Places, ends: Places, weights: Array, *, size: int) -> "Flow":
        order = np.argsort(ends, kind="stable")
        ends = ends[order]
        starts = (
            np.flatnonzero(np.concatenate([[True], ends[1:] != ends[:-1]])) if len(ends) else np.zeros(0, dtype=np.intp)
        )
        return Flow(origins=origins[order], ends=ends, weights=weights[order], starts=starts, size=size)

    @staticmethod
    def mean(origins: Places, ends: Places, *, size: int) -> "Flow":
        weights = 1.0 / np.maximum(np.bincount(ends, minlength=size), 1)[ends] if len(ends) else np.zeros(0)
        return Flow.of(origins, ends, weights, size=size)

    def apply(self, state: Array) -> Array:
        total = np.zeros((self.size, state.shape[1]))
        if len(self.ends):
            carried = self.weights[:, None] * state[self.origins]
            total[self.ends[self.starts]] = np.add.reduceat(carried, self.starts, axis=0)
        return total


@noun
class Neighbourhood:
    """One stage as the network sees it."""

    sorts: Places
    passes: Places
    numeric: Array
    """One row for each task, one column for each of NUMERIC, not yet scaled."""
    counts: Array
    seconds: Array
    """As the cost model below priced them."""
    sources: Places
    targets: Places
    """Edges of data flow: the task that writes a tensor and one that reads it."""

    @property
    def num_tasks(self) -> int:
        return len(self.counts)

    def gather(self) -> Callable[[Array], Array]:
        """The state of each task beside those of its four sorts of neighbours."""
        flows = self.flows()
        return lambda state: np.concatenate([state, *(flow.apply(state) for flow in flows)], axis=1)

    def flows(self) -> tuple[Flow, ...]:
        """From the task before, the task after, those a task reads from, and those it hands over to."""
        size, places = self.num_tasks, np.arange(self.num_tasks, dtype=np.intp)
        return (
            Flow.mean(places[:-1], places[1:], size=size), Flow.mean(places[1:], places[:-1], size=size),
            Flow.mean(self.sources, self.targets, size=size), Flow.mean(self.targets, self.sources, size=size),
        )  # fmt: skip


@noun
class Look:
    """What a stage says of itself before anything is priced."""

    amounts: Array
    """One row for each task, one column for each of AMOUNTS."""
    counts: Array
    tensor_bytes: tuple[float, ...]
    totals: Array
    """The numbers OF_STAGE: they tell whether a network knows anything like it."""


def look_at(stage: Stage) -> Look:
    amounts = np.array([_amounts(task) for task in stage.tasks]).reshape(len(stage.tasks), len(AMOUNTS))
    counts = np.array(stage.counts(), dtype=np.float64)
    flop, moved, calls = (counts @ amounts[:, (_FLOP, _MOVED, _CALLS)]).tolist()
    sizes = tuple(tensor.num_bytes for tensor in stage.tensors)
    parameters = zip(stage.tensors, sizes, strict=True)
    weights = sum(size * tensor.copies for tensor, size in parameters if tensor.role == "parameter")
    moved = 1 + max(moved, 1.0)
    totals = np.log10([1 + flop, moved, 1 + calls, 1 + weights, (1 + flop) / moved])
    return Look(amounts=amounts, counts=counts, tensor_bytes=sizes, totals=totals)


def describe(stage: Stage, estimates: Sequence[Estimate], *, look: Look | None = None) -> Neighbourhood:
    """`look`: at the same stage, where it was taken already."""
    look = look or look_at(stage)
    size, counts = len(stage.tasks), look.counts
    sorts, passes, flop, read, written, moved, calls, rows, cols, depth = look.amounts.T
    seconds = np.array([estimate.seconds for estimate in estimates])
    spent = seconds * counts
    whole_s, whole_bytes = max(float(spent.sum()), 1e-30), max(float((moved * counts).sum()), 1.0)
    reuse, fresh, sources, targets = _follow_tensors(stage, look.tensor_bytes, moved * counts)
    # The device runs tasks one after another; a host that issues slower than it runs is a queue that empties.
    host = np.cumsum(np.array([estimate.host_s for estimate in estimates]) * counts)
    done = np.cumsum(spent)
    numeric = np.empty((size, len(NUMERIC)))
    for place, column in enumerate((
        1 + flop, 1 + read, 1 + written, (1 + flop) / (1 + moved), calls, counts, rows, cols, depth,
        np.maximum(spent / whole_s, 1e-9),
        np.minimum(np.maximum((seconds / (1 + moved)) * (whole_bytes / whole_s), 1e-6), 1e6),
        1 + reuse,
    )):  # fmt: skip
        numeric[:, place] = column
    np.log10(numeric[:, :_NUM_LOGS], out=numeric[:, :_NUM_LOGS])
    numeric[:, _NUM_LOGS] = fresh
    numeric[:, _NUM_LOGS + 1] = (done - spent / 2) / whole_s
    issued = bool(len(host)) and host[-1] > 0
    numeric[:, _NUM_LOGS + 2] = np.minimum(np.maximum((done - host) / whole_s, -1.0), 1.0) if issued else 0.0
    numeric[:, _NUM_LOGS + 3] = _overlap(stage.tasks, spent, whole_s)
    numeric[:, len(OF_TASK) :] = look.totals
    return Neighbourhood(
        sorts=sorts.astype(np.intp), passes=passes.astype(np.intp), numeric=numeric, counts=counts, seconds=seconds,
        sources=sources, targets=targets,
    )  # fmt: skip


AMOUNTS = ("sort", "pass", "flop", "read_bytes", "written_bytes", "moved_bytes", "calls", "rows", "cols", "depth")
_FLOP, _MOVED, _CALLS = (AMOUNTS.index(name) for name in ("flop", "moved_bytes", "calls"))
_NUM_LOGS = OF_TASK.index("read_fresh")


def _amounts(task: Task) -> tuple[float, ...]:
    """AMOUNTS of a task."""
    if not isinstance(task, Op):
        moved = task.num_bytes
        place = float(_SORT_OF[COLLECTIVE])
        return place, _STAGES[task.phase], 0.0, moved, moved, moved, 1.0, 1.0, 1.0, float(task.num_ranks)
    return (
        float(_SORT_OF[task.kind]), _STAGES[task.phase], task.flop or 0.0, task.bytes_read, task.bytes_written,
        task.num_bytes, float(calls_of(task)), *_sizes(task),
    )  # fmt: skip


_SIZES = {
    "matmul": ("m", "n", "k"), "softmax": ("rows", "cols", None), "norm": ("rows", "cols", None),
    "reduce": ("rows", "cols", None), "embedding": ("rows", "cols", "vocab"), "sort": ("rows", "cols", None),
    "attention": ("q_len", "kv_len", "head_dim"), "elementwise": ("numel", None, "num_inputs"), "index": ("numel", None, None),
    "pool": ("numel", None, None), "rnn": ("batch", "hidden", "inputs"), "optimizer": ("numel", "num_tensors", None),
    "dropout": ("numel", None, None), "copy": ("numel", None, None), "random": ("numel", None, None),
}  # fmt: skip


def _sizes(op: Op) -> tuple[float, float, float]:
    """Three sizes that say how long and how thin the work is."""
    attrs = op.attrs
    if op.kind == "conv":
        groups = int(attrs["groups"])
        places = math.prod(int(size) for size in str(attrs["out_size"]).split("x"))
        sizes = (
            float(places) * int(attrs["batch"]),
            int(attrs["out_channels"]) / groups,
            int(attrs["in_channels"]) / groups,
        )
    else:
        named = [float(attrs.get(name, 1)) if name else 1.0 for name in _SIZES.get(op.kind, ())]
        sizes = (named[0], named[1], named[2]) if named else (1.0, 1.0, 1.0)
    rows, cols, depth = (max(1.0, size) for size in sizes)
    return rows, cols, depth


def _follow_tensors(stage: Stage, sizes: Sequence[float], moved: Array) -> tuple[Array, Array, Places, Places]:
    """Bytes moved since each task's largest input was touched, how much of its input is fresh, and the data-flow edges."""
    before = [0.0, *np.cumsum(moved).tolist()]
    touched: dict[int, int] = {}
    writer: dict[int, int] = {}
    reuse, fresh = np.full(len(stage.tasks), before[-1]), np.zeros(len(stage.tasks))
    sources: list[int] = []
    targets: list[int] = []
    for place, task in enumerate(stage.tasks):
        if not isinstance(task, Op):
            if place:
                sources.append(place - 1)
                targets.append(place)
            continue
        reads, writes = task.reads, task.writes
        if reads:
            largest = max(reads, key=sizes.__getitem__) if len(reads) > 1 else reads[0]
            last = touched.get(largest)
            if last is not None:
                reuse[place] = before[place] - before[last + 1]
            whole = new = 0.0
            for tensor in reads:
                whole += sizes[tensor]
                source = writer.get(tensor)
                if source is None:
                    continue
                new += sizes[tensor] if source == place - 1 else 0.0
                sources.append(source)
                targets.append(place)
            fresh[place] = new / whole if whole else 0.0
        for tensor in reads:
            touched[tensor] = place
        for tensor in writes:
            touched[tensor] = writer[tensor] = place
    return reuse, fresh, np.array(sources, dtype=np.intp), np.array(targets, dtype=np.intp)


def _overlap(tasks: Sequence[Task], spent: Array, whole_s: float) -> Array:
    """Communication issued but not yet over when each task starts, if a network carries it beside the computation."""
    if not any(isinstance(task, Collective) and task.overlapped for task in tasks):
        return np.zeros(len(tasks))
    pending, waiting = 0.0, []
    for task, seconds in zip(tasks, spent.tolist(), strict=True):
        waiting.append(pending)
        if isinstance(task, Op):
            pending = max(0.0, pending - seconds)
        elif task.overlapped:
            pending += seconds
    return np.minimum(np.array(waiting) / whole_s, 1.0)
