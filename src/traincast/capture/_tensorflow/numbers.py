"""Shapes and small constants of a TensorFlow graph, computed as numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from traincast.capture._tensorflow.nodes import NUMPY, VALUE_LIMIT, Value, flag_of, ints_of, type_of
from traincast.errors import CaptureFailed


class UnknownNumbers(CaptureFailed):
    """A node takes sizes that come out of data."""


def known_numbers(node: Any, value: Value) -> tuple[int, ...]:
    if value.numbers is None:
        raise UnknownNumbers(f"node {node.name!r} ({node.op}) takes a shape that cannot be computed from the file")
    return tuple(int(number) for number in np.asarray(value.numbers).reshape(-1))


def strided_indices(node: Any, inputs: list[Value]) -> tuple[Any, ...]:
    begin, end, stride = (known_numbers(node, value) for value in inputs[1:4])
    masks = {
        key: int(node.attr[key].i)
        for key in ("begin_mask", "end_mask", "shrink_axis_mask", "new_axis_mask", "ellipsis_mask")
    }
    places: list[Any] = []
    for number, (low, high, step) in enumerate(zip(begin, end, stride, strict=True)):
        bit = 1 << number
        if masks["ellipsis_mask"] & bit:
            places.append(Ellipsis)
        elif masks["new_axis_mask"] & bit:
            places.append(None)
        elif masks["shrink_axis_mask"] & bit:
            places.append(low)
        else:
            places.append(
                slice(None if masks["begin_mask"] & bit else low, None if masks["end_mask"] & bit else high, step)
            )
    return tuple(places)


def compute(node: Any, inputs: list[Value]) -> list[Value] | None:
    """Shapes and small constants, as numbers."""
    found = _compute_shapes(node, inputs)
    return found if found is not None else _compute_values(node, inputs)


def _compute_shapes(node: Any, inputs: list[Value]) -> list[Value] | None:
    """What depends on the shapes of the inputs alone."""
    if node.op == "Shape":
        return [Value((len(inputs[0].shape),), "int32", None, np.array(inputs[0].shape, dtype=np.int32))]
    if node.op == "ShapeN":
        return [Value((len(v.shape),), "int32", None, np.array(v.shape, dtype=np.int32)) for v in inputs]
    if node.op in ("Size", "Rank"):
        number = inputs[0].numel if node.op == "Size" else len(inputs[0].shape)
        return [Value((), "int32", None, np.int32(number))]
    if node.op == "BroadcastArgs" and all(v.numbers is not None for v in inputs):
        shape = np.broadcast_shapes(*(tuple(int(n) for n in v.numbers) for v in inputs))
        return [Value((len(shape),), "int32", None, np.array(shape, dtype=np.int32))]
    if node.op == "BroadcastGradientArgs" and all(v.numbers is not None for v in inputs):
        return _broadcast_axes(*(tuple(int(n) for n in v.numbers) for v in inputs))
    return None


def _compute_values(node: Any, inputs: list[Value]) -> list[Value] | None:
    """What depends on their numbers, where all are known."""
    function = _ON_NUMBERS.get(node.op)
    if function is None or not inputs or any(value.numbers is None for value in inputs):
        return None
    results = function(node, [np.asarray(value.numbers) for value in inputs], inputs)
    results = results if isinstance(results, list) else [results]
    if any(np.size(result) > VALUE_LIMIT for result in results):
        return None
    dtype = type_of(node, "DstT") or inputs[-1 if node.op in ("Fill", "Select", "SelectV2") else 0].dtype
    return [
        Value(np.shape(result), "bool" if np.asarray(result).dtype == np.bool_ else dtype, None, np.asarray(result))
        for result in results
    ]


def _broadcast_axes(first: tuple[int, ...], second: tuple[int, ...]) -> list[Value]:
    rank = max(len(first), len(second))
    padded = [(1,) * (rank - len(shape)) + shape for shape in (first, second)]
    answers = []
    for mine, other in (padded, padded[::-1]):
        axes = [axis for axis in range(rank) if mine[axis] == 1 and (other[axis] != 1)]
        answers.append(Value((len(axes),), "int32", None, np.array(axes, dtype=np.int32)))
    return answers


def _stitch(node: Any, arrays: list[Any], inputs: list[Value]) -> Any:
    half = len(arrays) // 2
    size = max(int(np.max(indices)) for indices in arrays[:half] if indices.size) + 1
    merged = np.zeros((size, *arrays[half].shape[arrays[0].ndim :]), dtype=arrays[half].dtype)
    for indices, data in zip(arrays[:half], arrays[half:], strict=True):
        merged[indices.reshape(-1)] = data.reshape(-1, *merged.shape[1:])
    return merged


_PLAIN: dict[str, Callable[..., Any]] = {
    "Mul": np.multiply, "Add": np.add, "AddV2": np.add, "Sub": np.subtract, "RealDiv": np.divide, "Maximum": np.maximum,
    "Minimum": np.minimum, "Neg": np.negative, "Abs": np.abs, "Square": np.square, "Less": np.less, "LessEqual": np.less_equal,
    "Greater": np.greater, "GreaterEqual": np.greater_equal, "Equal": np.equal, "NotEqual": np.not_equal,
    "LogicalAnd": np.logical_and, "LogicalOr": np.logical_or, "LogicalNot": np.logical_not, "Select": np.where,
    "SelectV2": np.where, "ZerosLike": np.zeros_like, "OnesLike": np.ones_like,
}  # fmt: skip
_REDUCED: dict[str, Callable[..., Any]] = {"Prod": np.prod, "Sum": np.sum, "Max": np.max, "Min": np.min}


def _plainly(function: Callable[..., Any]) -> Callable[[Any, list[Any], list[Value]], Any]:
    return lambda node, arrays, inputs: function(*arrays)


def _reduced(function: Callable[..., Any]) -> Callable[[Any, list[Any], list[Value]], Any]:
    return lambda node, arrays, inputs: function(
        arrays[0], axis=tuple(arrays[1].reshape(-1)), keepdims=flag_of(node, "keep_dims")
    )


_ON_NUMBERS: dict[str, Callable[[Any, list[Any], list[Value]], Any]] = {
    **{name: _plainly(function) for name, function in _PLAIN.items()},
    **{name: _reduced(function) for name, function in _REDUCED.items()},
    "StridedSlice": lambda node, arrays, inputs: arrays[0][strided_indices(node, inputs)],
    "Pack": lambda node, arrays, inputs: np.stack(arrays, int(node.attr["axis"].i)),
    "Unpack": lambda node, arrays, inputs: list(np.moveaxis(arrays[0], int(node.attr["axis"].i), 0)),
    "ConcatV2": lambda node, arrays, inputs: np.concatenate(arrays[:-1], int(arrays[-1])),
    "FloorDiv": lambda node, arrays, inputs: arrays[0] // np.maximum(arrays[1], 1),
    "FloorMod": lambda node, arrays, inputs: arrays[0] % np.maximum(arrays[1], 1),
    "All": lambda node, arrays, inputs: np.all(arrays[0], axis=tuple(arrays[1].reshape(-1))),
    "Any": lambda node, arrays, inputs: np.any(arrays[0], axis=tuple(arrays[1].reshape(-1))),
    "Tile": lambda node, arrays, inputs: (
        np.tile(arrays[0], arrays[1])
        if arrays[0].size * np.prod(arrays[1]) <= VALUE_LIMIT
        else np.zeros(2 * VALUE_LIMIT)
    ),
    "BroadcastTo": lambda node, arrays, inputs: (
        np.broadcast_to(arrays[0], arrays[1]) if np.prod(arrays[1]) <= VALUE_LIMIT else np.zeros(2 * VALUE_LIMIT)
    ),
    "Slice": lambda node, arrays, inputs: arrays[0][
        tuple(slice(b, None if n == -1 else b + n) for b, n in zip(arrays[1], arrays[2], strict=True))
    ],
    "Cast": lambda node, arrays, inputs: arrays[0].astype(NUMPY.get(type_of(node, "DstT") or "int32", np.int32)),
    "Reshape": lambda node, arrays, inputs: arrays[0].reshape(arrays[1]),
    "ExpandDims": lambda node, arrays, inputs: np.expand_dims(arrays[0], int(arrays[1])),
    "Squeeze": lambda node, arrays, inputs: np.squeeze(arrays[0], tuple(ints_of(node, "squeeze_dims", [])) or None),
    "Range": lambda node, arrays, inputs: np.arange(*(array.item() for array in arrays)),
    "Fill": lambda node, arrays, inputs: (
        np.full(arrays[0], arrays[1]) if np.prod(arrays[0]) <= 1024 else np.zeros(2 * VALUE_LIMIT)
    ),
    "GatherV2": lambda node, arrays, inputs: np.take(arrays[0], arrays[1], axis=int(arrays[2])),
    "Transpose": lambda node, arrays, inputs: np.transpose(arrays[0], arrays[1]),
    "InvertPermutation": lambda node, arrays, inputs: np.argsort(arrays[0]),
    "DynamicStitch": _stitch,
    "ConcatOffset": lambda node, arrays, inputs: _offsets(arrays),
}
"""What can be computed as numbers when all inputs are numbers."""


def _offsets(arrays: list[Any]) -> list[Any]:
    axis, position, offsets = int(arrays[0]), 0, []
    for shape in arrays[1:]:
        offset = np.zeros_like(shape)
        offset[axis] = position
        position += int(shape[axis])
        offsets.append(offset)
    return offsets
