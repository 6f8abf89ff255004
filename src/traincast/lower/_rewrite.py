"""Edits a stage task by task and keeps its repeats true; every pass of lowering is built on it."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from traincast.spec import Graph, Op, Repeat, Stage, Task, Tensor

Noun = TypeVar("Noun", Op, Tensor, Stage)


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
