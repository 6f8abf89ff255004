"""Branches, loops and lists of tensors in a TensorFlow graph, run on the shapes and the small numbers that are known."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from traincast.capture._tensorflow.nodes import TYPES, Value, declared_shapes
from traincast.capture._tensorflow.numbers import known_numbers
from traincast.capture._tensorflow.recording import Recording
from traincast.errors import CaptureFailed
from traincast.spec import Attr

Call = Callable[[Recording, Any, str, Sequence[Value]], list[Value]]

_MAX_ROUNDS = 20000
_MAX_OPS = 400000


def _while(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    """The body again and again until its own condition ends it."""
    condition, body = node.attr["cond"].func.name, node.attr["body"].func.name
    return repeat(
        recording, node.name, inputs,
        asks=lambda values: call(recording, node, condition, values)[0],
        runs=lambda values: call(recording, node, body, values),
    )  # fmt: skip


def repeat(
    recording: Recording, name: str, inputs: Sequence[Value], *, asks: Callable[[list[Value]], Value],
    runs: Callable[[list[Value]], list[Value]],
) -> list[Value]:  # fmt: skip
    """What a loop carries, after its last round."""
    values = list(inputs)
    start = len(recording.ops)
    for rounds in range(_MAX_ROUNDS + 1):
        before = len(recording.ops)
        answer = asks(values)
        del recording.ops[before:]
        if answer.numbers is None:
            if recording.loop_length is None:
                raise CaptureFailed(
                    f"the loop {name!r} runs as often as the data say; give its length (loop_length, --loop-length)"
                )
            recording.assumptions[f"the loop {name} is taken to run {recording.loop_length} times"] = None
            if rounds >= recording.loop_length:
                return values
        elif not bool(np.asarray(answer.numbers).reshape(-1)[0]):
            return values
        values = runs(values)
        if len(recording.ops) - start > _MAX_OPS:
            break
    raise CaptureFailed(
        f"the loop {name!r} runs more than {_MAX_OPS:,} operations; shorten its input for the recording"
    )


def _branch(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    """The branch that is taken, or the one with most nodes where the data decide."""
    if node.op in ("If", "StatelessIf"):
        branches = [node.attr["else_branch"].func.name, node.attr["then_branch"].func.name]
    else:
        branches = [item.name for item in node.attr["branches"].list.func]
    choice = inputs[0]
    if choice.numbers is not None:
        number = int(np.asarray(choice.numbers).reshape(-1)[0])
        taken = branches[min(max(number, 0), len(branches) - 1)]
    else:
        recording.assumptions["of a branch that the data choose the longer one is counted"] = None
        taken = max(branches, key=lambda name: len(recording.functions[name].node_def))
    return call(recording, node, taken, inputs[1:])


def _switch(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    return [inputs[0], inputs[0]]


def _merge(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    return [inputs[0], Value((), "int32", None, np.int32(0))]


# lists


def _list_of(items: Sequence[Value | None], dtype: str) -> Value:
    return Value((), dtype, None, None, items=tuple(items))


def _held(node: Any, value: Value) -> tuple[Value | None, ...]:
    if value.items is None:
        raise CaptureFailed(f"node {node.name!r} ({node.op}) takes a list of tensors whose origin is not in the file")
    return value.items


def _element_dtype(node: Any) -> str:
    return TYPES.get(node.attr["element_dtype"].type, "fp32")


def _number(node: Any, value: Value) -> int:
    return known_numbers(node, value)[0]


def _element_shape(node: Any, value: Value, items: Sequence[Value | None]) -> tuple[int, ...]:
    for item in items:
        if item is not None:
            return item.shape
    sizes = known_numbers(node, value)
    return tuple(size for size in sizes if size >= 0)


def _reserve(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    count = _number(node, inputs[1]) if node.op == "TensorListReserve" else 0
    return [_list_of([None] * max(0, count), _element_dtype(node))]


def _from_tensor(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    data = inputs[0]
    part = replace(data, shape=data.shape[1:], numbers=None)
    return [_list_of([part] * data.shape[0], data.dtype)]


def _get_item(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    items = _held(node, inputs[0])
    place = _number(node, inputs[1]) if inputs[1].numbers is not None else 0
    item = items[place] if -len(items) <= place < len(items) else None
    if item is not None:
        return [item]
    return [_zeros(recording, node, _element_shape(node, inputs[2], items))]


def _zeros(recording: Recording, node: Any, shape: Sequence[int]) -> Value:
    output = recording.new(shape, _element_dtype(node))
    recording.emit(node, "copy", 0.0, {"function": "fill", "numel": output.numel}, [], [output])
    return output


def _set_item(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    items = list(_held(node, inputs[0]))
    place = _number(node, inputs[1]) if inputs[1].numbers is not None else 0
    items += [None] * (place + 1 - len(items))
    items[place] = inputs[2]
    return [_list_of(items, inputs[2].dtype)]


def _push_back(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    return [_list_of((*_held(node, inputs[0]), inputs[1]), inputs[1].dtype)]


def _pop_back(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    items = _held(node, inputs[0])
    last = items[-1] if items else None
    if last is None:
        last = _zeros(recording, node, _element_shape(node, inputs[1], items))
    return [_list_of(items[:-1], last.dtype), last]


def _length(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    return [Value((), "int32", None, np.int32(len(_held(node, inputs[0]))))]


def _shape(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    held = [item for item in _held(node, inputs[0]) if item is not None]
    shape = held[0].shape if held else ()
    return [Value((len(shape),), "int32", None, np.array(shape, dtype=np.int32))]


def _stack(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    items = _held(node, inputs[0])
    parts = [item for item in items if item is not None]
    if parts and all(part.numbers is not None for part in parts) and len(parts) == len(items):
        stacked = np.stack([np.asarray(part.numbers) for part in parts])
        return [Value(stacked.shape, parts[0].dtype, None, stacked)]
    shape = _element_shape(node, inputs[1], items)
    if node.op.startswith("TensorListConcat"):
        total = sum(part.shape[0] for part in parts) if parts else 0
        shape = (total, *shape[1:])
    else:
        shape = (len(items), *shape)
    output = recording.new(shape, parts[0].dtype if parts else _element_dtype(node))
    attrs: dict[str, Attr] = {"function": "stack", "numel": output.numel}
    recording.emit(node, "copy", 0.0, attrs, parts, [output])
    return [output, Value((len(items),), "int64", None, np.array([math.prod(p.shape[:1]) for p in parts]))]


def _gather(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    items = _held(node, inputs[0])
    places = known_numbers(node, inputs[1])
    chosen = [items[place] for place in places]
    return _stack(recording, node, [_list_of(chosen, inputs[0].dtype), inputs[2]], call)


# what loops of TensorFlow 1 keep outside themselves, by a handle


def _keeper(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    """A stack or an array of tensors: empty, or as long as it says."""
    is_array = node.op.startswith("TensorArray")
    count = _number(node, inputs[0]) if is_array and inputs and inputs[0].numbers is not None else 0
    # A node inside a loop makes one per round; the scopes tell functions apart.
    handle = "/".join((*recording.scopes, node.name))
    recording.kept[handle] = [None] * max(0, count)
    return [Value((), "int64", None, None, handle=handle), Value((), "fp32", None, np.float32(0))]


def _array_of_gradients(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    handle = f"{inputs[0].handle}/{node.attr['source'].s.decode()}"
    recording.kept.setdefault(handle, [None] * len(recording.kept.get(inputs[0].handle, ())))
    return [Value((), "int64", None, None, handle=handle), Value((), "fp32", None, np.float32(0))]


def _kept_by(recording: Recording, node: Any, value: Value) -> list[Value | None]:
    if value.handle not in recording.kept:
        raise CaptureFailed(f"node {node.name!r} ({node.op}) uses a list of tensors that the file does not make")
    return recording.kept[value.handle]


def _push(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    _kept_by(recording, node, inputs[0]).append(inputs[1])
    return [inputs[1]]


def _pop(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    kept = _kept_by(recording, node, inputs[0])
    last = kept.pop() if kept else None
    if last is None:
        raise CaptureFailed(f"node {node.name!r} takes from a stack that is empty; the loop before it ran less often")
    return [last]


def _array_write(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    kept = _kept_by(recording, node, inputs[0])
    places, data, flow = inputs[1], inputs[2], inputs[-1]
    if node.op == "TensorArrayWriteV3":
        pairs = [(_number(node, places), data)]
    else:
        part = replace(data, shape=data.shape[1:], numbers=None)
        pairs = [(place, part) for place in known_numbers(node, places)]
    for place, item in pairs:
        kept += [None] * (place + 1 - len(kept))
        before = kept[place]
        if before is not None and before.index is not None and "grad" in inputs[0].handle:
            summed = _add_lists(recording, node, [_list_of([before], item.dtype), _list_of([item], item.dtype)])
            item = next((one for one in summed[0].items or () if one is not None), item)
        kept[place] = item
    return [flow]


def _array_read(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    kept = _kept_by(recording, node, inputs[0])
    places = known_numbers(node, inputs[1])
    known = next((item for item in kept if item is not None), None)
    if known is None:
        raise CaptureFailed(f"node {node.name!r} ({node.op}) reads an array that nothing was written to")
    chosen = [kept[place] if place < len(kept) and kept[place] is not None else known for place in places]
    if node.op == "TensorArrayReadV3":
        return [chosen[0] or known]
    shape = Value((len(known.shape),), "int32", None, np.array(known.shape, dtype=np.int32))
    return _stack(recording, node, [_list_of(chosen, known.dtype), shape], call)[:1]


def _array_size(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    return [Value((), "int32", None, np.int32(len(_kept_by(recording, node, inputs[0]))))]


def zeros_like(value: Value) -> Value:
    """A list of zeros: each has the shape of what is there, and no memory of its own."""
    items = [None if item is None else replace(item, index=None, numbers=None) for item in value.items or ()]
    return _list_of(items, value.dtype)


def _add_lists(recording: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    """Gradients of a list that is used several times."""
    added: list[Value | None] = []
    for parts in zip(*(_held(node, value) for value in inputs), strict=True):
        real = [part for part in parts if part is not None and part.index is not None]
        if len(real) > 1:
            output = recording.new(real[0].shape, real[0].dtype)
            attrs: dict[str, Attr] = {"function": "add_n", "numel": output.numel, "num_inputs": len(real)}
            recording.emit(node, "elementwise", float(output.numel), attrs, real, [output])
            added.append(output)
        else:
            added.append(real[0] if real else parts[0])
    return [_list_of(added, inputs[0].dtype)]


def on_lists(recording: Recording, node: Any, inputs: list[Value]) -> list[Value] | None:
    """Operations that take lists where they mostly take tensors."""
    if not inputs or inputs[0].items is None:
        return None
    if node.op == "ZerosLike":
        return [zeros_like(inputs[0])]
    return _add_lists(recording, node, inputs) if node.op in ("AddN", "AddV2") else None


def _empty_optional(recording: Recording, node: Any, inputs: list[Value], call: Call) -> list[Value]:
    shapes = declared_shapes(node, recording.batch) or [()]
    return [Value(shape, "fp32") for shape in shapes]


RULES: dict[str, Callable[[Recording, Any, list[Value], Call], list[Value]]] = {
    "While": _while, "StatelessWhile": _while, "If": _branch, "StatelessIf": _branch, "Case": _branch,
    "StatelessCase": _branch, "Switch": _switch, "RefSwitch": _switch, "Merge": _merge, "RefMerge": _merge,
    "TensorListReserve": _reserve, "EmptyTensorList": _reserve, "TensorListFromTensor": _from_tensor,
    "TensorListGetItem": _get_item, "TensorListSetItem": _set_item, "TensorListPushBack": _push_back,
    "TensorListPopBack": _pop_back, "TensorListLength": _length, "TensorListElementShape": _shape,
    "TensorListStack": _stack, "TensorListConcat": _stack, "TensorListConcatV2": _stack, "TensorListGather": _gather,
    "OptionalNone": _empty_optional, "StackV2": _keeper, "StackPushV2": _push, "StackPopV2": _pop,
    "TensorArrayV3": _keeper, "TensorArrayGradV3": _array_of_gradients, "TensorArrayWriteV3": _array_write,
    "TensorArrayScatterV3": _array_write, "TensorArrayReadV3": _array_read, "TensorArrayGatherV3": _array_read,
    "TensorArraySizeV3": _array_size,
}  # fmt: skip
"""Every operation that decides what runs, or keeps tensors in a list."""
