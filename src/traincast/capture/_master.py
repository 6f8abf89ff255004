"""A step recorded all in half precision to the same step with fp32 master weights and optimizer state."""

from dataclasses import replace

from traincast.spec import Graph, Op, Repeat, Tensor
from traincast.units import DTYPE_BYTES

HALVES = ("bf16", "fp16")


def keep_master(graph: Graph, *, gradient: str | None = None) -> Graph:
    """Weights get an fp32 copy that the optimizer updates, and its state is fp32. `gradient`: what gradients are added up and
    kept in until then; None: as they were computed."""
    tensors = list(graph.tensors)
    halves = {place for place, tensor in enumerate(tensors) if tensor.dtype in HALVES}
    update = [op for op in graph.ops if op.phase == "optimizer"]
    if not update:
        return graph
    gradients = [place for place in sorted(halves) if tensors[place].role == "gradient"]
    trained = [
        place
        for place in sorted(halves)
        if tensors[place].role == "parameter" and any(place in op.writes for op in update)
    ]
    _widen_state(tensors, halves, graph)
    masters = tuple(range(len(tensors), len(tensors) + len(trained)))
    tensors += [
        replace(tensors[place], dtype="fp32", role="optimizer_state", name=f"{tensors[place].name}.master")
        for place in trained
    ]
    kept = _keep_gradients(tensors, gradients, gradient) if gradient else {}
    ops, repeats = _add_up(graph, kept, tensors)
    changed = [
        _update_master(op, graph, kept, masters=masters, trained=trained) if op.phase == "optimizer" else op
        for op in ops
    ]
    return replace(graph, ops=tuple(changed), tensors=tuple(tensors), repeats=repeats)


def _widen_state(tensors: list[Tensor], halves: set[int], graph: Graph) -> None:
    """State, and what only an update writes, is fp32."""
    written = {place for op in graph.ops if op.phase == "optimizer" for place in op.writes}
    elsewhere = {place for op in graph.ops if op.phase != "optimizer" for place in (*op.reads, *op.writes)}
    for place in halves:
        own = tensors[place].role == "temporary" and place in written - elsewhere
        if tensors[place].role == "optimizer_state" or own:
            tensors[place] = replace(tensors[place], dtype="fp32")


def _keep_gradients(tensors: list[Tensor], gradients: list[int], dtype: str) -> dict[int, int]:
    """Places of computed gradients to those of the sums that are kept."""
    kept = {place: len(tensors) + number for number, place in enumerate(gradients)}
    # The ending marks gradients that stay through the whole step (see traincast.simulate._memory).
    tensors += [replace(tensors[place], dtype=dtype, name=f"{tensors[place].name}.main_grad") for place in gradients]
    for place in gradients:
        tensors[place] = replace(tensors[place], role="temporary", copies=1)
    return kept


def _add_up(graph: Graph, kept: dict[int, int], tensors: list[Tensor]) -> tuple[list[Op], tuple[Repeat, ...]]:
    """The ops with an addition after the last that writes each gradient, and the ranges that then repeat."""
    computed = [(number, op) for number, op in enumerate(graph.ops) if op.phase != "optimizer"]
    last = {place: number for number, op in computed for place in op.writes if place in kept}
    added: dict[int, list[Op]] = {}
    for place, number in last.items():
        numel = tensors[place].numel
        half, whole = (DTYPE_BYTES[tensors[index].dtype] for index in (place, kept[place]))
        add = Op(
            name="aten.add_", kind="elementwise", flop=float(numel), bytes_read=numel * (half + whole),
            bytes_written=numel * whole, phase=graph.ops[number].phase, dtype="fp32", reads=(kept[place], place),
            writes=(kept[place],), layer=graph.ops[number].layer,
            attrs={"function": "add", "numel": numel, "num_inputs": 2},
        )  # fmt: skip
        added.setdefault(number, []).append(add)
    ops: list[Op] = []
    start_of: list[int] = []
    for number, op in enumerate(graph.ops):
        start_of.append(len(ops))
        ops += [op, *added.get(number, ())]
    start_of.append(len(ops))
    repeats = tuple(replace(one, start=start_of[one.start], stop=start_of[one.stop]) for one in graph.repeats)
    return ops, repeats


def _update_master(op: Op, graph: Graph, kept: dict[int, int], *, masters: tuple[int, ...], trained: list[int]) -> Op:
    """One op of the update on fp32 copies; half-precision weights are written besides, and sums of gradients zeroed."""
    own = [number for number, place in enumerate(trained) if place in op.writes]
    size = {place: tensor.num_bytes * tensor.copies for place, tensor in enumerate(graph.tensors)}
    gradients = [place for place in op.reads if graph.tensors[place].role == "gradient"]
    half_bytes = sum(size[place] for place in gradients)
    kept_bytes = sum(size[place] * (2 if place in kept else 1) for place in gradients)
    weight_bytes = sum(size[trained[number]] for number in own)
    copies = tuple(masters[number] for number in own)
    zeroed = kept_bytes if kept else 0.0
    if not own:
        return replace(op, reads=tuple(kept.get(place, place) for place in op.reads),
                       writes=tuple(kept.get(place, place) for place in op.writes))  # fmt: skip
    return replace(
        op, bytes_read=2 * max(0.0, op.bytes_read - half_bytes) + kept_bytes,
        bytes_written=2 * op.bytes_written + weight_bytes + zeroed, dtype="fp32",
        reads=(*(kept.get(place, place) for place in op.reads), *copies),
        writes=(*(kept.get(place, place) for place in op.writes), *copies), attrs={**op.attrs, "master": True},
        num_kernels=op.num_kernels + bool(kept),
    )  # fmt: skip
