"""Optimizer state in host memory: gradients are copied out, the host updates, new weights are copied in."""

from collections.abc import Iterator
from dataclasses import replace

from traincast.lower._data import shards_of
from traincast.lower._rewrite import copy_with_host, last_writers, map_tasks
from traincast.spec import Collective, Op, Parallelism, Stage, Task, Tensor


def offload_state(stage: Stage, plan: Parallelism) -> Stage:
    """Each gradient leaves right after it is ready (and reduced), beside the backward pass; the host's update and the copy of
    new weights run tile by tile, so the copy hides behind it (ZeRO-Offload, Ren et al. 2021)."""
    if not plan.offload_optimizer:
        return stage
    whole_gradients = plan.zero < 2
    on_host = plan.sums_on_host
    leaving = _find_leaving(stage)

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if isinstance(task, Op) and task.kind == "optimizer":
            yield from _update_on_host(stage, task, plan)
            return
        yield task
        if index in leaving:
            left = [stage.tensors[tensor] for tensor in leaving[index]]
            held = sum(t.num_bytes / (shards_of(t.name, plan) if whole_gradients else 1) for t in left)
            # Where they add up on the host, those of every pass leave.
            phase = "backward" if on_host else "gradient"
            yield copy_with_host("copy_out", held, phase=phase, layer=task.layer)

    gone = {
        tensor
        for task in stage.ops()
        if task.kind == "optimizer"
        for tensor in task.writes
        if stage.tensors[tensor].role == "temporary"
    }

    def leave(index: int, tensor: Tensor) -> Tensor:
        if tensor.role == "optimizer_state" or index in gone:
            return replace(tensor, shape=(0,), copies=1)
        # Gradients that add up on the host (Ren et al. 2021; Rajbhandari et al. 2021) stay nowhere else.
        return replace(tensor, role="temporary") if on_host and tensor.role == "gradient" else tensor

    tensors = tuple([leave(index, tensor) for index, tensor in enumerate(stage.tensors)])
    return map_tasks(replace(stage, tensors=tensors), rewrite)


def _find_leaving(stage: Stage) -> dict[int, list[int]]:
    """The task after which each gradient is complete on this rank: its last writer, or the reduction behind that."""
    leaving: dict[int, list[int]] = {}
    for writer, tensors in last_writers(stage, "gradient").items():
        place = writer
        while place + 1 < len(stage.tasks) and _reduces_gradients(stage.tasks[place + 1]):
            place += 1
        leaving[place] = tensors
    return leaving


def _reduces_gradients(task: Task) -> bool:
    return isinstance(task, Collective) and task.axis == "data" and task.kind in ("all_reduce", "reduce_scatter")


def _update_on_host(stage: Stage, op: Op, plan: Parallelism) -> Iterator[Task]:
    """Weights that lie on the host stay there; states on NVMe stream through the host's memory."""
    if not plan.offload_weights:
        written = [stage.tensors[tensor] for tensor in op.writes if stage.tensors[tensor].role == "parameter"]
        shards = [1 if plan.zero == 3 else shards_of(tensor.name, plan) for tensor in written]
        new_bytes = sum(t.num_bytes * t.copies / parts for t, parts in zip(written, shards, strict=True))
        yield copy_with_host("copy_in", new_bytes, phase="optimizer")
    yield replace(copy_with_host("host_update", op.num_bytes, phase="optimizer", plan=plan), overlapped=False)
