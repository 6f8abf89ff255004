"""Statistics of gradients: what a stack runs on each of them beside the backward pass and before the update."""

from collections.abc import Iterator

from traincast.lower._rewrite import last_writers, map_tasks
from traincast.spec import Op, PlanHabits, Stage, Task, Tensor

PASSES = 1.5
"""Of a gradient's bytes that a kernel moves: all read it, every second writes as much (powers and quotients do, sums do not)."""


def watch_gradients(stage: Stage, habits: PlanHabits) -> Stage:
    """A hook after the op that writes each gradient, and kernels on all of them before the first update."""
    hooked = habits.num_calls("backward")
    before = habits.num_calls("update")
    scaled = habits.num_calls("update scaled") if _scales_loss(stage) else 0
    if not hooked and not before and not scaled:
        return stage
    writers = last_writers(stage, "gradient")
    gradients = [stage.tensors[index] for own in writers.values() for index in own]
    first = next((i for i, task in enumerate(stage.tasks) if isinstance(task, Op) and task.phase == "optimizer"), None)

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if index == first and before:
            yield _watch(gradients, before, phase="optimizer", copies=True)
        if index == first and scaled:
            yield _read_scale(scaled * sum(gradient.copies for gradient in gradients))
        yield task
        if index in writers and hooked:
            own = [stage.tensors[tensor] for tensor in writers[index]]
            yield _watch(own, hooked, phase="backward", copies=False)

    places = {*writers, *(() if first is None else (first,))}
    return map_tasks(stage, rewrite, at=places)


def _watch(gradients: list[Tensor], kernels: int, *, phase: str, copies: bool) -> Op:
    """So many kernels on each gradient, one after the other; `copies`: on those of all repetitions of a layer."""
    times = [gradient.copies if copies else 1 for gradient in gradients]
    numel = sum(gradient.numel * each for gradient, each in zip(gradients, times, strict=True))
    num_bytes = sum(gradient.num_bytes * each for gradient, each in zip(gradients, times, strict=True))
    return Op(
        name=f"statistics.{phase}", kind="elementwise", flop=float(kernels * numel), bytes_read=float(kernels * num_bytes),
        bytes_written=(PASSES - 1) * kernels * num_bytes, phase=phase, layer="statistics",
        attrs={"function": "pow", "numel": numel, "num_inputs": 1},
        num_kernels=kernels * sum(times), num_calls=kernels * sum(times),
    )  # fmt: skip


def _scales_loss(stage: Stage) -> bool:
    """Gradients of fp16 vanish unless the loss is scaled."""
    return any(
        isinstance(task, Op) and task.kind in ("conv", "matmul") and task.dtype == "fp16" for task in stage.tasks
    )


def _read_scale(calls: int) -> Op:
    """So many calls on single numbers."""
    return Op(
        name="statistics.scale", kind="elementwise", flop=float(calls), bytes_read=4.0 * calls, bytes_written=4.0 * calls,
        phase="optimizer", layer="statistics", attrs={"function": "mul", "numel": calls, "num_inputs": 1},
        num_kernels=calls, num_calls=calls,
    )  # fmt: skip
