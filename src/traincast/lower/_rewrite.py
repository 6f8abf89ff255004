"""Edits a stage task by task and keeps its repeats true; every pass of lowering is built on it."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from traincast.spec import HOST, Collective, Graph, Op, Parallelism, Repeat, Stage, Task, Tensor

EXPERTS = "experts"
"""The layer name, or a part of it, under which expert weights stand in every framework we read."""
GATHERED = "gathered_bytes"
"""Attribute of the ops that compare samples of all replicas: bytes that one replica gives to a gather before it (forward) or
gets from a scatter after it (backward); 0: none."""
HOST_GATHER = "host_gather"
"""The function of an index op whose source lies in host memory, as the features of a large graph do."""

SIZES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("elementwise", "dropout", "copy", "index", "random"), ("numel",)),
    **dict.fromkeys(("softmax", "norm", "reduce"), ("rows",)),
}
"""What says how much there is to do for ops that work element by element, or row by row."""

Noun = TypeVar("Noun", Op, Tensor, Stage)


def is_expert(layer: str) -> bool:
    return EXPERTS in layer.split(".")


def is_table(task: Task) -> bool:
    """Whether a task looks rows of a sparse table up, or makes the gradient of those rows."""
    return isinstance(task, Op) and task.kind == "embedding" and bool(task.attrs.get("sparse"))


def reads_host(task: Task) -> bool:
    """Whether a task gathers rows from host memory."""
    return isinstance(task, Op) and task.attrs.get("function") == HOST_GATHER


def as_stage(graph: Graph) -> Stage:
    """The whole step as the single stage of one device."""
    return Stage(tasks=graph.ops, repeats=graph.repeats, tensors=graph.tensors)


def alter(noun: Noun, **changes: Any) -> Noun:
    """As `dataclasses.replace`, which takes several times as long: a plan alters thousands of ops and tensors."""
    kind: Any = type(noun)
    read_all, setters = _slots_of(kind)
    made = object.__new__(kind)
    for put, value in zip(setters.values(), read_all(noun), strict=True):
        put(made, value)
    for name, value in changes.items():
        setters[name](made, value)
    made.__post_init__()
    return cast(Noun, made)


@functools.cache
def _slots_of(kind: Any) -> tuple[Callable[[Any], tuple[Any, ...]], dict[str, Callable[[Any, Any], None]]]:
    """(what reads all fields of a noun, what sets each of them on a new one)."""
    names = [item.name for item in dataclasses.fields(kind)]
    return operator.attrgetter(*names), {name: getattr(kind, name).__set__ for name in names}


def map_tasks(
    stage: Stage, rewrite: Callable[[int, Task], Iterable[Task]], *, tensors: Sequence[Tensor] = (),
    at: Iterable[int] | None = None,
) -> Stage:  # fmt: skip
    """Replace each task by what `rewrite` gives for it; `tensors` are the new ones, numbered after the old. `at`: the only
    places where anything changes."""
    tasks: list[Task] = []
    starts: list[int] = []
    copied = 0
    for index in range(len(stage.tasks)) if at is None else sorted(at):
        tasks.extend(stage.tasks[copied:index])
        starts.extend(range(len(tasks) - (index - copied), len(tasks) + 1))
        tasks.extend(rewrite(index, stage.tasks[index]))
        copied = index + 1
    starts.extend(range(len(tasks), len(tasks) + len(stage.tasks) - copied + 1))
    tasks.extend(stage.tasks[copied:])
    moved = (Repeat(start=starts[r.start], stop=starts[r.stop], count=r.count) for r in stage.repeats)
    repeats = tuple(repeat for repeat in moved if repeat.start < repeat.stop)
    return alter(stage, tasks=tuple(tasks), repeats=repeats, tensors=stage.tensors + tuple(tensors))


def scale_op(op: Op, factor: float, *, attrs: Sequence[str] = ()) -> Op:
    """An op that does `factor` of its work, with the named sizes scaled alike."""
    sizes = {name: max(1, round(int(op.attrs[name]) * factor)) for name in attrs if name in op.attrs}
    if op.kind == "optimizer":
        # One launch serves a fixed number of parameters, so fewer parameters need fewer of them.
        op = alter(
            op, num_kernels=max(1, round(op.num_kernels * factor)), num_calls=max(1, round(op.num_calls * factor))
        )
    return alter(
        op,
        flop=None if op.flop is None else op.flop * factor,
        bytes_read=op.bytes_read * factor,
        bytes_written=op.bytes_written * factor,
        attrs={**op.attrs, **sizes},
    )


def resize_matmul(op: Op, flop: float, **sizes: int) -> Op:
    """A matmul with other sizes (batch, m, n, k) and so much of its FLOP; its operands weigh what they have numbers."""
    whole = [int(op.attrs[name]) for name in ("batch", "m", "n", "k")]
    batch, m, n, k = (sizes.get(name, size) for name, size in zip(("batch", "m", "n", "k"), whole, strict=True))
    size = op.num_bytes / max(1.0, whole[0] * (whole[1] * whole[3] + whole[3] * whole[2] + whole[1] * whole[2]))
    return alter(
        op, flop=None if op.flop is None else op.flop * flop, bytes_read=size * batch * (m * k + k * n),
        bytes_written=size * batch * m * n, attrs={**op.attrs, **sizes},
    )  # fmt: skip


def copy_with_host(
    kind: str, num_bytes: float, *, phase: str, layer: str = "", plan: Parallelism | None = None
) -> Collective:
    """Between host and device, beside computation. `plan`: says whether it comes from the drives of the node."""
    tier = "nvme" if plan is not None and plan.offload_to == "nvme" else ""
    return Collective(
        kind=kind, num_bytes=num_bytes, axis=HOST, num_ranks=1, stride=1, phase=phase, overlapped=True, layer=layer, tier=tier
    )  # fmt: skip


def last_writers(stage: Stage, role: str) -> dict[int, list[int]]:
    """For each task of the backward pass, the tensors of a role that no later one of it writes."""
    last: dict[int, int] = {}
    for index, task in enumerate(stage.tasks):
        if isinstance(task, Op) and task.phase == "backward":
            for tensor in task.writes:
                if stage.tensors[tensor].role == role:
                    last[tensor] = index
    writers: dict[int, list[int]] = {}
    for tensor, index in last.items():
        writers.setdefault(index, []).append(tensor)
    return writers


def find_owners(stage: Stage) -> dict[int, int]:
    """The weight that each gradient and optimizer state belongs to: they are named after their weights. Layers that run in
    several groups have weights of the same name, and their states stand in the same order."""
    weights: dict[str, list[int]] = {}
    seen: dict[tuple[str, str], int] = {}
    found: dict[int, int] = {}
    for place, tensor in enumerate(stage.tensors):
        if tensor.role == "parameter":
            weights.setdefault(tensor.name, []).append(place)
    for place, tensor in enumerate(stage.tensors):
        owners = weights.get(tensor.name.rpartition(".")[0])
        if tensor.role in ("gradient", "optimizer_state") and owners:
            number = seen[tensor.role, tensor.name] = seen.get((tensor.role, tensor.name), -1) + 1
            found[place] = owners[min(number, len(owners) - 1)]
    return found


def find_trained(stage: Stage) -> frozenset[int]:
    """The weights that an update writes; all of them where no update is recorded."""
    updates = [task for task in stage.ops() if task.kind == "optimizer"]
    weights = {place for place, tensor in enumerate(stage.tensors) if tensor.role == "parameter"}
    written = {tensor for task in updates for tensor in task.writes} & weights
    return frozenset(written or weights)
