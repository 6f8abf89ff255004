"""Weights and activations that do not stay on the device: they wait in host memory, on NVMe, or in a smaller format."""

from collections.abc import Iterator
from dataclasses import replace

from traincast.lower._recompute import match_backward
from traincast.lower._rewrite import alter, map_tasks
from traincast.spec import HOST, Attr, Collective, Op, Parallelism, Repeat, Stage, Task, Tensor, segments
from traincast.units import DTYPE_BYTES

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
        ops = [
            task for task in stage.tasks[part.start : part.stop] if isinstance(task, Op) and task.phase != "optimizer"
        ]
        used = {tensor for op in ops for tensor in op.reads if stage.tensors[tensor].role == "parameter"}
        num_bytes = sum(stage.tensors[tensor].num_bytes for tensor in used)
        if num_bytes:
            starts[part.start] = num_bytes, "backward" if ops[0].phase == "recompute" else ops[0].phase
    returned = {} if plan.offload_optimizer else _updated_bytes(stage)

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if index in starts:
            yield fetch(starts[index][0], phase=starts[index][1], layer=task.layer, tier=_tier(plan))
        yield task
        if returned.get(index):
            yield replace(fetch(returned[index], phase="optimizer", tier=_tier(plan)), kind="copy_out")

    tensors = tuple(
        alter(tensor, copies=min(tensor.copies, HELD_UNITS)) if tensor.role == "parameter" else tensor
        for tensor in stage.tensors
    )
    return alter(map_tasks(stage, rewrite), tensors=tensors)


def stow_activations(stage: Stage, plan: Parallelism) -> Stage:
    """What a repeated layer keeps for its backward pass leaves after the layer has run and is back when it is needed: over the
    link to the host, or packed into a smaller format on the device."""
    if not plan.offload_activations and plan.activation_dtype is None:
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
        leaving, coming = _move(plan, held, layer=layer, tensors=tensors, dtype=stage.tensors[kept[0]].dtype)
        after.setdefault(span.stop - 1, []).extend(leaving)
        restore = _restore(returned, layer=layer, packed=next((task for task in leaving if isinstance(task, Op)), None))
        before.setdefault(back.start, []).extend([*coming, restore])

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        yield from before.get(index, ())
        yield replaced.get(index, task)
        yield from after.get(index, ())

    return map_tasks(replace(stage, tensors=tuple(tensors)), rewrite)


def find_kept(stage: Stage, span: Repeat, back: Repeat) -> list[int]:
    """Tensors that a layer writes forward and its backward pass reads; the input of a layer that runs again is one of them."""
    written = {
        tensor
        for task in stage.tasks[span.start : span.stop]
        if isinstance(task, Op) and task.phase == "forward"
        for tensor in task.writes
        if stage.tensors[tensor].role == "activation"
    }
    made = {
        tensor
        for task in stage.tasks[back.start : back.stop]
        if isinstance(task, Op) and task.phase == "recompute"
        for tensor in task.writes
    }
    read = {tensor for task in stage.tasks[back.start : back.stop] if isinstance(task, Op) for tensor in task.reads}
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


def _move(
    plan: Parallelism, held: float, *, layer: str, tensors: list[Tensor], dtype: str
) -> tuple[list[Task], list[Task]]:
    """(what runs after the layer, what runs before its backward)."""
    if plan.offload_activations:
        out = replace(fetch(held, phase="forward", layer=layer, tier=_tier(plan)), kind="copy_out")
        return [out], [fetch(held, phase="backward", layer=layer, tier=_tier(plan))]
    packed = plan.activation_dtype or dtype
    numel = int(held / DTYPE_BYTES[dtype])
    tensors.append(Tensor(shape=(numel,), dtype=packed, role="activation", name=f"{layer}.packed"))
    attrs: dict[str, Attr] = {"function": "quantize", "numel": numel}
    pack = Op(
        name="pack_activations", kind="copy", flop=0.0, bytes_read=held, bytes_written=numel * DTYPE_BYTES[packed],
        phase="forward", dtype=dtype, writes=(len(tensors) - 1,), layer=layer, attrs=attrs,
    )  # fmt: skip
    return [pack], []


def _restore(returned: list[int], *, layer: str, packed: Op | None) -> Op:
    """The tensors are there again. Unpacking reads and writes them; a copy from the host was paid on its link."""
    numel = 1 if packed is None else int(packed.attrs["numel"])
    attrs: dict[str, Attr] = {"function": "dequantize", "numel": numel}
    return Op(
        name="restore_activations", kind="copy", flop=0.0, bytes_read=0.0 if packed is None else packed.bytes_written,
        bytes_written=0.0 if packed is None else packed.bytes_read, phase="recompute",
        dtype="bf16" if packed is None else packed.dtype, reads=() if packed is None else packed.writes,
        writes=tuple(returned), layer=layer, attrs=attrs,
    )  # fmt: skip


def fetch(num_bytes: float, *, phase: str, layer: str = "", tier: str = "") -> Collective:
    """From the host to the device, asked for one unit ahead, as sharded weights are gathered."""
    return Collective(
        kind="copy_in", num_bytes=num_bytes, axis=HOST, num_ranks=1, stride=1, phase=phase, overlapped=True, layer=layer,
        tier=tier,
    )  # fmt: skip


def _tier(plan: Parallelism) -> str:
    return "nvme" if plan.offload_to == "nvme" else ""
