"""Activation recomputation: forward ops run again before the backward of their layer, and what they write is not kept."""

from dataclasses import replace

from traincast.lower._rewrite import map_tasks
from traincast.spec import Op, Repeat, Stage, Tensor, segments


def recompute(stage: Stage, how: str) -> Stage:
    """`full`: every op of a repeated layer; `selective`: the core of attention, whose results grow with length squared;
    `selective-op`: all of a repeated layer but attention and every second matmul with weights, the first included."""
    if how == "none" or any(task.phase == "recompute" for task in stage.tasks):
        return stage
    parts = list(segments(stage.repeats, num_tasks=len(stage.tasks)))
    partners = match_backward(stage, parts)
    tensors = list(stage.tensors)
    before: dict[int, list[Op]] = {}
    replaced: dict[int, Op] = {}
    for forward, backward in partners.items():
        span = parts[forward]
        chosen = [
            index
            for index in range(span.start, span.stop)
            if isinstance(stage.tasks[index], Op) and stage.tasks[index].phase == "forward"
        ]
        if how == "selective":
            chosen = _attention_core(stage, chosen)
        elif span.count == 1:
            continue
        elif how == "selective-op":
            chosen = _without_saved(stage, chosen)
        again, first_run = _run_twice(span, chosen, stage, tensors)
        if how == "selective-op" and again:
            again[-1] = _hand_in_saved(stage, again[-1], span, chosen)
        before[parts[backward].start] = again
        replaced.update(first_run)
    return map_tasks(
        replace(stage, tensors=tuple(tensors)), lambda i, task: [*before.get(i, []), replaced.get(i, task)]
    )


def match_backward(stage: Stage, parts: list[Repeat]) -> dict[int, int]:
    """For each forward segment, the backward segment of equal count that reads most of what it wrote and of its weights: runs of
    layers hand on one tensor, which alone does not tell them apart."""
    writer: dict[int, int] = {}
    for number, part in enumerate(parts):
        for task in stage.tasks[part.start : part.stop]:
            if isinstance(task, Op) and task.phase == "forward":
                for tensor in task.writes:
                    writer[tensor] = number
                if part.count > 1:
                    writer.update((t, number) for t in task.reads if stage.tensors[t].role == "parameter")
    shared: dict[tuple[int, int], int] = {}
    for number, part in enumerate(parts):
        for task in stage.tasks[part.start : part.stop]:
            # A layer that runs again from its input reads what the forward pass left there, and its backward only that run's.
            if isinstance(task, Op) and task.phase in ("backward", "recompute"):
                for tensor in task.reads:
                    source = writer.get(tensor)
                    if source is not None and parts[source].count == part.count:
                        shared[(source, number)] = shared.get((source, number), 0) + 1
    partners: dict[int, int] = {}
    for (source, number), _ in sorted(shared.items(), key=lambda item: item[1]):
        partners[source] = number
    return partners


def _attention_core(stage: Stage, indices: list[int]) -> list[int]:
    """The ops from the query-key product up to the value product, both batched."""
    batched = [
        place
        for place, index in enumerate(indices)
        if isinstance(op := stage.tasks[index], Op) and op.kind == "matmul" and int(op.attrs["batch"]) > 1
    ]
    return indices[batched[0] : batched[1]] if len(batched) > 1 else []


def _without_saved(stage: Stage, indices: list[int]) -> list[int]:
    ops = [(index, task) for index in indices if isinstance(task := stage.tasks[index], Op)]
    products = [
        index
        for index, op in ops
        if op.kind == "matmul" and any(stage.tensors[tensor].role == "parameter" for tensor in op.reads)
    ]
    core = set(_attention_core(stage, indices))
    saved = {*products[::2], *(index for index, op in ops if op.kind == "attention")}
    if core:
        # Written out, attention ends with the value product.
        saved.add(min(index for index in indices if index > max(core)))
    return [index for index in indices if index not in saved]


def _hand_in_saved(stage: Stage, last: Op, span: Repeat, chosen: list[int]) -> Op:
    """What was saved is kept for the second run even where no backward op needs it, as torch's selective checkpoints do."""
    saved = {
        tensor
        for index, task in enumerate(stage.tasks[span.start : span.stop], span.start)
        if isinstance(task, Op) and task.phase == "forward" and index not in chosen
        for tensor in task.writes
    }
    return replace(last, reads=tuple(dict.fromkeys((*last.reads, *sorted(saved)))))


def _carried(stage: Stage, span: Repeat) -> set[int]:
    """Tensors that a repetition hands to the next: the only ones that full recomputation keeps."""
    read: set[int] = set()
    carried: set[int] = set()
    for task in stage.tasks[span.start : span.stop]:
        if isinstance(task, Op):
            read.update(task.reads)
            carried.update(tensor for tensor in task.writes if tensor in read)
    return carried


def _run_twice(span: Repeat, chosen: list[int], stage: Stage, tensors: list[Tensor]) -> tuple[list[Op], dict[int, Op]]:
    """The second run writes the tensors that the backward pass reads; the first writes copies that soon vanish."""
    inside = {i: task for i, task in enumerate(stage.tasks[span.start : span.stop], span.start) if isinstance(task, Op)}
    written = {tensor for index in chosen for tensor in inside[index].writes}
    outside = {
        tensor
        for index, task in enumerate(stage.tasks)
        if isinstance(task, Op) and task.phase == "forward" and index not in inside
        for tensor in task.reads
    }
    kept = _carried(stage, span) | outside
    copies: dict[int, int] = {}
    for tensor in sorted(written - kept):
        tensors.append(stage.tensors[tensor])
        copies[tensor] = len(tensors) - 1
    again = [
        replace(inside[index], phase="recompute", writes=tuple(t for t in inside[index].writes if t in copies))
        for index in chosen
        if any(tensor in copies for tensor in inside[index].writes)
    ]
    first_run = {
        index: replace(
            op,
            reads=tuple(copies.get(tensor, tensor) for tensor in op.reads),
            writes=tuple(copies.get(tensor, tensor) for tensor in op.writes),
        )
        for index, op in inside.items()
        if op.phase == "forward"
    }
    return again, first_run
