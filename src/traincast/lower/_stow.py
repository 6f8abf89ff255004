"""Weights and activations that do not stay on the device: they wait in host memory or on NVMe."""

from collections.abc import Iterator
from dataclasses import replace

from traincast.lower._recompute import match_backward
from traincast.lower._rewrite import alter, copy_with_host, map_tasks
from traincast.spec import Op, Parallelism, Repeat, Stage, Task, Tensor, segments

HELD_UNITS = 2
"""Layers whose weights are on the device at once: one runs, the next is being copied in. What does not repeat stays there."""


def _updated_bytes(stage: Stage) -> dict[int, float]:
    """The weights that each update writes."""
    return {
        index: sum(
            stage.tensors[tensor].num_bytes * stage.tensors[tensor].copies
            for tensor in task.writes
            if stage.tensors[tensor].role == "parameter"
        )
        for index, task in enumerate(stage.tasks)
        if isinstance(task, Op) and task.kind == "optimizer"
    }


def offload_weights(stage: Stage, plan: Parallelism) -> Stage:
    """The weights of each unit are copied in before it runs, one unit ahead, and again before its backward pass (Rajbhandari et
    al. 2021); a rank copies its own shard, before the others' are gathered."""
    if not plan.offload_weights:
        return stage
    starts: dict[int, tuple[float, str]] = {}
    for part in segments(stage.repeats, num_tasks=len(stage.tasks)):
        ops = [task for task in stage.ops(part) if task.phase != "optimizer"]
        used = {tensor for op in ops for tensor in op.reads if stage.tensors[tensor].role == "parameter"}
        num_bytes = sum(stage.tensors[tensor].num_bytes for tensor in used)
        if num_bytes:
            starts[part.start] = num_bytes, "backward" if ops[0].phase == "recompute" else ops[0].phase
    returned = {} if plan.offload_optimizer else _updated_bytes(stage)

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if index in starts:
            num_bytes, phase = starts[index]
            yield copy_with_host("copy_in", num_bytes, phase=phase, layer=task.layer, plan=plan)
        yield task
        if returned.get(index):
            yield copy_with_host("copy_out", returned[index], phase="optimizer", plan=plan)

    tensors = tuple(
        alter(tensor, copies=min(tensor.copies, HELD_UNITS)) if tensor.role == "parameter" else tensor
        for tensor in stage.tensors
    )
    return alter(map_tasks(stage, rewrite), tensors=tensors)


def stow_activations(stage: Stage, plan: Parallelism) -> Stage:
    """What a repeated layer keeps for its backward pass leaves for the host after the layer has run and is back when it is
    needed."""
    if not plan.offload_activations:
        return stage
    parts = list(segments(stage.repeats, num_tasks=len(stage.tasks)))
    partners = match_backward(stage, parts)
    tensors = list(stage.tensors)
    replaced: dict[int, Task] = {}
    after: dict[int, list[Task]] = {}
    before: dict[int, list[Task]] = {}
    for forward, backward in partners.items():
        span, back = parts[forward], parts[backward]
        kept = find_kept(stage, span, back) if span.count > 1 else []
        if not kept:
            continue
        returned = _rename(stage, back, kept, tensors, replaced)
        held = sum(stage.tensors[tensor].num_bytes for tensor in kept)
        layer = stage.tasks[span.start].layer
        leaving = copy_with_host("copy_out", held, phase="forward", layer=layer, plan=plan)
        coming = copy_with_host("copy_in", held, phase="backward", layer=layer, plan=plan)
        after.setdefault(span.stop - 1, []).append(leaving)
        before.setdefault(back.start, []).extend([coming, _restore(returned, layer)])

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        yield from before.get(index, ())
        yield replaced.get(index, task)
        yield from after.get(index, ())

    return map_tasks(replace(stage, tensors=tuple(tensors)), rewrite)


def find_kept(stage: Stage, span: Repeat, back: Repeat) -> list[int]:
    """Tensors that a layer writes forward and its backward pass reads; the input of a layer that runs again is one of them."""
    written = {
        tensor
        for task in stage.ops(span)
        if task.phase == "forward"
        for tensor in task.writes
        if stage.tensors[tensor].role == "activation"
    }
    made = {tensor for task in stage.ops(back) if task.phase == "recompute" for tensor in task.writes}
    read = {tensor for task in stage.ops(back) for tensor in task.reads}
    return sorted((written & read) - made)


def _rename(stage: Stage, back: Repeat, kept: list[int], tensors: list[Tensor], replaced: dict[int, Task]) -> list[int]:
    """The backward pass reads what comes back, which is then no longer what the forward pass wrote."""
    copies: dict[int, int] = {}
    for tensor in kept:
        tensors.append(stage.tensors[tensor])
        copies[tensor] = len(tensors) - 1
    for index, task in enumerate(stage.tasks[back.start : back.stop], back.start):
        if isinstance(task, Op) and copies.keys() & {*task.reads, *task.writes}:
            replaced[index] = alter(
                task,
                reads=tuple(copies.get(tensor, tensor) for tensor in task.reads),
                writes=tuple(copies.get(tensor, tensor) for tensor in task.writes),
            )
    return list(copies.values())


def _restore(returned: list[int], layer: str) -> Op:
    """The tensors are there again: the copy from the host was paid on its link."""
    return Op(
        name="restore_activations", kind="copy", flop=0.0, bytes_read=0.0, bytes_written=0.0, phase="recompute",
        dtype="bf16", writes=tuple(returned), layer=layer, attrs={"function": "contiguous", "numel": 1},
    )  # fmt: skip
