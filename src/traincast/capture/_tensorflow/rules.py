"""TensorFlow operations to work and tensors: a rule for each kind of node."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from traincast.capture._tensorflow.nodes import (
    NUMPY,
    TYPES,
    VALUE_LIMIT,
    Value,
    flag_of,
    ints_of,
    text_of,
    type_of,
)
from traincast.capture._tensorflow.numbers import known_numbers, strided_indices
from traincast.spec import Attr

if TYPE_CHECKING:
    from traincast.capture._tensorflow.recording import Recording


def _constant(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    tensor = node.attr["value"].tensor
    shape = tuple(int(dim.size) for dim in tensor.tensor_shape.dim)
    dtype = TYPES.get(tensor.dtype, "fp32")
    count = math.prod(shape)
    is_weight = node.name in reader.frozen if reader.frozen else count > 16
    if dtype in ("fp32", "fp16", "bf16", "fp64") and is_weight:
        return [reader.new(shape, dtype, role="parameter", name=node.name)]
    return [Value(shape, dtype, None, _numbers(tensor, shape, dtype) if count <= VALUE_LIMIT else None)]


def _numbers(tensor: Any, shape: tuple[int, ...], dtype: str) -> Any:
    kind = NUMPY.get(dtype)
    if kind is None:
        return None
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype=kind).reshape(shape)
    listed = {"fp32": tensor.float_val, "fp64": tensor.double_val, "int32": tensor.int_val, "int64": tensor.int64_val,
              "bool": tensor.bool_val}.get(dtype)  # fmt: skip
    values = list(listed) if listed is not None else []
    if not values:
        return np.zeros(shape, dtype=kind)
    # A shorter list repeats its last entry.
    full = values + [values[-1]] * (math.prod(shape) - len(values))
    return np.array(full[: math.prod(shape)], dtype=kind).reshape(shape)


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(size) for size in np.broadcast_shapes(*shapes))


_TESTS = ("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalOr")


def _pointwise(per_element: int = 1) -> Callable[[Recording, Any, list[Value]], list[Value]]:
    def rule(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
        shape = _broadcast(*(value.shape for value in inputs))
        dtype = "bool" if node.op in _TESTS else type_of(node, "DstT") or inputs[-1].dtype
        output = reader.new(shape, dtype)
        function = re.sub(r"(?<!^)(?=[A-Z])", "_", node.op).lower()
        if node.op == "Cast":
            return reader.emit(node, "copy", 0.0, {"function": "cast", "numel": output.numel}, inputs, [output])
        attrs: dict[str, Attr] = {"function": function, "numel": output.numel, "num_inputs": len(inputs)}
        return reader.emit(node, "elementwise", float(per_element * output.numel), attrs, inputs, [output])

    return rule


def _matmul(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    left, right = inputs[:2]
    first, second = flag_of(node, "transpose_a", "adj_x"), flag_of(node, "transpose_b", "adj_y")
    m, k = (left.shape[-1], left.shape[-2]) if first else left.shape[-2:]
    n = right.shape[-2] if second else right.shape[-1]
    lead = _broadcast(left.shape[:-2], right.shape[:-2])
    output = reader.new((*lead, m, n), left.dtype)
    batch = math.prod(lead)
    attrs: dict[str, Attr] = {
        "batch": batch, "m": m, "n": n, "k": k, "layout": "nt" if first else "tn" if second else "nn",
    }  # fmt: skip
    return reader.emit(node, "matmul", 2.0 * batch * m * n * k, attrs, inputs, [output])


def _spatial(node: Any, values: Sequence[int]) -> list[int]:
    return list(values[1:-1]) if text_of(node, "data_format", "NHWC").endswith("C") else list(values[2:])


def _channels(node: Any, shape: Sequence[int]) -> int:
    return shape[-1] if text_of(node, "data_format", "NHWC").endswith("C") else shape[1]


def _conv_sizes(node: Any, size: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    ones = [1] * (len(size) + 2)
    stride = _spatial(node, ints_of(node, "strides", ones))
    dilation = _spatial(node, ints_of(node, "dilations", ones))
    padding = text_of(node, "padding", "SAME")
    if padding == "EXPLICIT":
        amounts = ints_of(node, "explicit_paddings", [0] * 8)
        pairs = _spatial(node, [a + b for a, b in zip(amounts[::2], amounts[1::2], strict=True)])
        size = [n + p for n, p in zip(size, pairs, strict=True)]
    if padding == "SAME":
        return [math.ceil(n / s) for n, s in zip(size, stride, strict=True)], stride
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    return [(n - r) // s + 1 for n, r, s in zip(size, reach, stride, strict=True)], stride


def _shaped(node: Any, batch: int, size: Sequence[int], channels: int) -> tuple[int, ...]:
    if text_of(node, "data_format", "NHWC").endswith("C"):
        return (batch, *size, channels)
    return (batch, channels, *size)


def _conv(role: str, *, depthwise: bool = False) -> Callable[[Recording, Any, list[Value]], list[Value]]:
    """Conv2D and its two gradients. A filter is (height, width, in, out), or (height, width, in, multiplier)."""

    def rule(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
        if role == "forward":
            data_shape, filter_shape = inputs[0].shape, inputs[1].shape
        elif role == "grad_input":
            data_shape, filter_shape = known_numbers(node, inputs[0]), inputs[1].shape
        else:
            data_shape, filter_shape = inputs[0].shape, known_numbers(node, inputs[1])
        kernel = list(filter_shape[:-2])
        channels = _channels(node, data_shape)
        groups = channels if depthwise else channels // filter_shape[-2]
        features = channels * filter_shape[-1] if depthwise else filter_shape[-1]
        in_size = _spatial(node, data_shape)
        out_size, stride = _conv_sizes(node, in_size, kernel)
        batch = data_shape[0]
        flop = 2.0 * batch * math.prod(out_size) * math.prod(kernel) * channels * features / groups
        shape = {
            "forward": _shaped(node, batch, out_size, features),
            "grad_input": tuple(data_shape),
            "grad_weight": tuple(filter_shape),
        }[role]
        output = reader.new(shape, inputs[-1].dtype)

        def text(sizes: Sequence[int]) -> str:
            return "x".join(str(size) for size in sizes)

        attrs: dict[str, Attr] = {
            "batch": batch, "in_channels": channels, "out_channels": features, "groups": groups, "in_size": text(in_size),
            "out_size": text(out_size), "kernel": text(kernel), "stride": text(stride), "pass": role,
        }  # fmt: skip
        if text_of(node, "data_format", "NHWC").endswith("C"):
            attrs["channels_last"] = True
        return reader.emit(node, "conv", flop, attrs, inputs, [output])

    return rule


def _bias_add(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    output = reader.new(inputs[0].shape, inputs[0].dtype)
    attrs: dict[str, Attr] = {"function": "bias_add", "numel": output.numel, "num_inputs": 2}
    return reader.emit(node, "elementwise", float(output.numel), attrs, inputs, [output])


def _bias_gradient(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    channels = _channels(node, inputs[0].shape)
    output = reader.new((channels,), inputs[0].dtype)
    attrs: dict[str, Attr] = {"function": "sum", "rows": channels, "cols": inputs[0].numel // channels}
    return reader.emit(node, "reduce", float(inputs[0].numel), attrs, inputs, [output])


def _batch_norm(*, backward: bool) -> Callable[[Recording, Any, list[Value]], list[Value]]:
    def rule(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
        data = inputs[1] if backward else inputs[0]
        channels = _channels(node, data.shape)
        output = reader.new(data.shape, data.dtype)
        rest = [reader.new((channels,), "fp32") for _ in range(2 if backward else 5)]
        attrs: dict[str, Attr] = {"function": "batch_norm", "rows": channels, "cols": data.numel // channels}
        written = [output, *rest[:2]]
        reader.emit(node, "norm", float((12 if backward else 8) * data.numel), attrs, inputs, written)
        return [output, *rest, *rest[:2]]

    return rule


def _pool(function: str, *, backward: bool) -> Callable[[Recording, Any, list[Value]], list[Value]]:
    def rule(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
        kernel = _spatial(node, ints_of(node, "ksize", [1, 1, 1, 1]))
        if backward:
            shape = inputs[0].shape if function == "max" else known_numbers(node, inputs[0])
            output = reader.new(shape, inputs[-1].dtype)
            numel = inputs[-1].numel
        else:
            data = inputs[0]
            size, _ = _conv_sizes(node, _spatial(node, data.shape), kernel)
            output = reader.new(_shaped(node, data.shape[0], size, _channels(node, data.shape)), data.dtype)
            numel = output.numel
        attrs: dict[str, Attr] = {"function": function, "numel": numel, "kernel": "x".join(str(k) for k in kernel)}
        return reader.emit(node, "pool", float(numel * math.prod(kernel)), attrs, inputs, [output])

    return rule


def _reduce(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    data = inputs[0]
    axes = (
        {int(axis) % max(1, len(data.shape)) for axis in known_numbers(node, inputs[1])} if len(inputs) > 1 else set()
    )
    if node.op == "L2Loss":
        axes = set(range(len(data.shape)))
    keep = flag_of(node, "keep_dims")
    shape = [1 if axis in axes else size for axis, size in enumerate(data.shape) if keep or axis not in axes]
    dtype = (type_of(node, "output_type") or "int64") if node.op in ("ArgMax", "ArgMin") else data.dtype
    output = reader.new(shape, dtype)
    rows = max(1, output.numel)
    attrs: dict[str, Attr] = {"function": node.op.lower(), "rows": rows, "cols": data.numel // rows}
    return reader.emit(node, "reduce", float(data.numel), attrs, [data], [output])


def _softmax(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    data = inputs[0]
    output = reader.new(data.shape, data.dtype)
    columns = data.shape[-1]
    return reader.emit(
        node, "softmax", 5.0 * data.numel, {"rows": data.numel // columns, "cols": columns}, [data], [output]
    )


def _cross_entropy(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    """Loss and gradient come out of one kernel."""
    data = inputs[0]
    columns = data.shape[-1]
    rows = data.numel // max(1, columns)
    loss, gradient = reader.new((rows,), data.dtype), reader.new(data.shape, data.dtype)
    return reader.emit(node, "softmax", 7.0 * data.numel, {"rows": rows, "cols": columns}, inputs, [loss, gradient])


def _reshape(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    data = inputs[0]
    if node.op == "Reshape":
        shape = list(known_numbers(node, inputs[1]))
        if -1 in shape:
            rest = math.prod(size for size in shape if size != -1)
            shape[shape.index(-1)] = data.numel // max(1, rest)
    elif node.op == "ExpandDims":
        shape = list(data.shape)
        axis = known_numbers(node, inputs[1])[0]
        shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 1)
    else:
        axes = {axis % len(data.shape) for axis in ints_of(node, "squeeze_dims", [])}
        shape = [s for axis, s in enumerate(data.shape) if not (axis in axes if axes else s == 1)]
    return [replace(data, shape=tuple(int(size) for size in shape))]


def _move(
    shape_of: Callable[[Any, list[Value]], Sequence[int]],
) -> Callable[[Recording, Any, list[Value]], list[Value]]:
    def rule(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
        data = [value for value in inputs if value.index is not None] or inputs[:1]
        output = reader.new(shape_of(node, inputs), data[0].dtype)
        attrs: dict[str, Attr] = {"function": node.op.lower(), "numel": output.numel}
        size = sum(reader.tensors[value.index].num_bytes for value in data if value.index is not None)
        written = reader.tensors[output.index or 0].num_bytes
        return reader.emit(
            node, "copy", 0.0, attrs, data, [output], bytes_read=min(size, written) if len(data) == 1 else size
        )

    return rule


def _concatenated(node: Any, inputs: list[Value]) -> list[int]:
    parts = inputs[:-1] if node.op == "ConcatV2" else inputs[1:]
    axis = known_numbers(node, inputs[-1] if node.op == "ConcatV2" else inputs[0])[0] % len(parts[0].shape)
    shape = list(parts[0].shape)
    shape[axis] = sum(value.shape[axis] for value in parts)
    return shape


def _packed(node: Any, inputs: list[Value]) -> list[int]:
    shape = list(inputs[0].shape)
    axis = node.attr["axis"].i
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, len(inputs))
    return shape


def _padded(node: Any, inputs: list[Value]) -> list[int]:
    amounts = np.asarray(inputs[1].numbers)
    return [int(n + before + after) for n, (before, after) in zip(inputs[0].shape, amounts, strict=True)]


def _sliced(node: Any, inputs: list[Value]) -> list[int]:
    begin, size = known_numbers(node, inputs[1]), known_numbers(node, inputs[2])
    return [n - b if s == -1 else s for n, b, s in zip(inputs[0].shape, begin, size, strict=True)]


def _strided(node: Any, inputs: list[Value]) -> Sequence[int]:
    pattern = np.broadcast_to(np.int8(0), inputs[0].shape)
    return list(pattern[strided_indices(node, inputs)].shape)


def _split(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    axis, data = (inputs[0], inputs[1]) if node.op == "Split" else (inputs[2], inputs[0])
    place = known_numbers(node, axis)[0] % len(data.shape)
    count = int(node.attr["num_split"].i)
    sizes = [data.shape[place] // count] * count if node.op == "Split" else list(known_numbers(node, inputs[1]))
    outputs = [reader.new((*data.shape[:place], size, *data.shape[place + 1 :]), data.dtype) for size in sizes]
    return reader.emit(node, "copy", 0.0, {"function": "split", "numel": data.numel}, [data], outputs)


def _gather(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    table, indices = inputs[:2]
    axis = known_numbers(node, inputs[2])[0] % len(table.shape) if len(inputs) > 2 else 0
    output = reader.new((*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]), table.dtype)
    size = reader.tensors[output.index or 0].num_bytes + indices.numel * 4
    if len(table.shape) == 2 and axis == 0:
        attrs: dict[str, Attr] = {"rows": indices.numel, "cols": table.shape[1], "vocab": table.shape[0]}
        return reader.emit(node, "embedding", 0.0, attrs, [table, indices], [output], bytes_read=size)
    attrs = {"function": "gather", "numel": output.numel}
    return reader.emit(node, "index", 0.0, attrs, [table, indices], [output], bytes_read=size)


def _segment_sum(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    count = known_numbers(node, inputs[2])[0]
    trailing = inputs[0].shape[len(inputs[1].shape) :]
    output = reader.new((count, *trailing), inputs[0].dtype)
    attrs: dict[str, Attr] = {"rows": inputs[1].numel, "cols": math.prod(trailing), "vocab": count}
    return reader.emit(node, "embedding", float(inputs[0].numel), attrs, inputs[:2], [output])


def _segment_pool(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    """As many segments as samples: the ids themselves are data."""
    data = inputs[0]
    output = reader.new((reader.batch, *data.shape[1:]), data.dtype)
    reader.assumptions["segments of data are taken as one per sample"] = None
    rows = inputs[1].numel
    attrs: dict[str, Attr] = {"rows": rows, "cols": math.prod(data.shape[1:]), "vocab": data.shape[0]}
    return reader.emit(node, "embedding", float(rows * math.prod(data.shape[1:])), attrs, [data], [output])


def _fill(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    is_like = node.op in ("ZerosLike", "OnesLike")
    shape = inputs[0].shape if is_like else known_numbers(node, inputs[0])
    output = reader.new(shape, inputs[0 if is_like else -1].dtype)
    return reader.emit(node, "copy", 0.0, {"function": "fill", "numel": output.numel}, [], [output])


def _random(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    output = reader.new(known_numbers(node, inputs[0]), type_of(node, "dtype") or "fp32")
    return reader.emit(node, "random", float(output.numel), {"numel": output.numel}, [], [output])


def _one_hot(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    output = reader.new((*inputs[0].shape, known_numbers(node, inputs[1])[0]), inputs[-1].dtype)
    return reader.emit(node, "index", 0.0, {"function": "one_hot", "numel": output.numel}, inputs[:1], [output])


def _add_all(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    output = reader.new(inputs[0].shape, inputs[0].dtype)
    attrs: dict[str, Attr] = {"function": "add_n", "numel": output.numel, "num_inputs": len(inputs)}
    return reader.emit(node, "elementwise", float(output.numel * max(1, len(inputs) - 1)), attrs, inputs, [output])


def _einsum(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    """Labels of both operands and of the result are batch, of one operand its rows, of none of the result the inner sum."""
    terms, result = text_of(node, "equation", "").replace(" ", "").split("->")
    names = terms.split(",")
    spread = max((len(v.shape) - len(t.replace("...", "")) for t, v in zip(names, inputs, strict=True)), default=0)
    names = [term.replace("...", "0123456789"[:spread]) for term in names]
    result = result.replace("...", "0123456789"[:spread])
    sizes: dict[str, int] = {}
    for term, value in zip(names, inputs, strict=True):
        for label, size in zip(term, value.shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    output = reader.new([sizes[label] for label in result], inputs[0].dtype)
    if len(inputs) != 2:
        return reader.emit(node, "copy", 0.0, {"function": "einsum", "numel": output.numel}, inputs, [output])
    left, right = set(names[0]), set(names[1])

    def size_of(labels: set[str]) -> int:
        return math.prod(sizes[label] for label in labels)

    kept = set(result)
    batch, inner = size_of(left & right & kept), size_of((left & right) - kept)
    m, n = size_of(left - right), size_of(right - left)
    attrs: dict[str, Attr] = {"batch": batch, "m": m, "n": n, "k": inner, "layout": "nn"}
    return reader.emit(node, "matmul", 2.0 * batch * m * n * inner, attrs, inputs, [output])


def _unpack(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    axis, count = int(node.attr["axis"].i), int(node.attr["num"].i)
    shape = list(inputs[0].shape)
    del shape[axis]
    outputs = [reader.new(shape, inputs[0].dtype) for _ in range(count)]
    return reader.emit(node, "copy", 0.0, {"function": "unstack", "numel": inputs[0].numel}, inputs, outputs)


def _key_counter(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    return [Value((1,), "int64"), Value((2,), "int64")]


def _like(place: int, kind: str, function: str) -> Callable[[Recording, Any, list[Value]], list[Value]]:
    """One pass over an input, with a result of its shape."""

    def rule(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
        output = reader.new(inputs[place].shape, inputs[place].dtype)
        attrs: dict[str, Attr] = {"function": function, "numel": output.numel}
        return reader.emit(node, kind, float(output.numel) if kind != "copy" else 0.0, attrs, [inputs[place]], [output])

    return rule


def _resize(*, backward: bool) -> Callable[[Recording, Any, list[Value]], list[Value]]:
    def rule(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
        data = inputs[0]
        if backward:
            shape = inputs[1].shape if node.op.startswith("ResizeBi") else None
            sizes = shape[1:3] if shape else known_numbers(node, inputs[1])
        else:
            sizes = known_numbers(node, inputs[1])
        output = reader.new((data.shape[0], *sizes, data.shape[3]), data.dtype)
        taps = {"N": 1, "B": 8}[node.op.removeprefix("Resize")[0]]
        attrs: dict[str, Attr] = {"function": "interpolate", "numel": output.numel}
        return reader.emit(node, "index", float(taps * max(output.numel, data.numel)), attrs, [data], [output])

    return rule


def _cumulative(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    data = inputs[0]
    output = reader.new(data.shape, data.dtype)
    columns = data.shape[known_numbers(node, inputs[1])[0]] if data.shape else 1
    attrs: dict[str, Attr] = {"function": node.op.lower(), "rows": data.numel // max(1, columns), "cols": columns}
    return reader.emit(node, "reduce", float(data.numel), attrs, [data], [output])


def _unique(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    """Which values are different is data: all of them."""
    data = inputs[0]
    reader.assumptions["unknown values are taken as all different where the program asked for the different ones"] = (
        None
    )
    outputs = [reader.new(data.shape, data.dtype), reader.new(data.shape, "int32"), reader.new(data.shape, "int32")]
    rows, columns = 1, max(1, data.numel)
    flop = data.numel * max(1.0, math.log2(max(2, columns)))
    return reader.emit(node, "sort", flop, {"rows": rows, "cols": columns}, [data], outputs)


def _top_k(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    data = inputs[0]
    count = known_numbers(node, inputs[1])[0]
    columns = data.shape[-1]
    outputs = [reader.new((*data.shape[:-1], count), dtype) for dtype in (data.dtype, "int32")]
    flop = data.numel * max(1.0, math.log2(max(2, columns)))
    return reader.emit(node, "sort", flop, {"rows": data.numel // columns, "cols": columns}, [data], outputs)


def _gather_nd(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    table, places = inputs
    output = reader.new((*places.shape[:-1], *table.shape[places.shape[-1] :]), table.dtype)
    size = reader.tensors[output.index or 0].num_bytes
    return reader.emit(
        node, "index", 0.0, {"function": "gather_nd", "numel": output.numel}, inputs, [output], bytes_read=size
    )


def _scatter_nd(reader: Recording, node: Any, inputs: list[Value]) -> list[Value]:
    adds = node.op in ("TensorScatterUpdate", "TensorScatterAdd")
    output = reader.new(inputs[0].shape if adds else known_numbers(node, inputs[2]), inputs[2 if adds else 1].dtype)
    return reader.emit(node, "index", 0.0, {"function": "scatter", "numel": output.numel}, inputs[:2], [output])


_Rule = Callable[["Recording", Any, list[Value]], list[Value]]


def _table(names: str, rule: _Rule) -> dict[str, _Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: dict[str, _Rule] = {
    "Const": _constant,
    **_table("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3", _matmul),
    "Einsum": _einsum,
    **_table("Conv2D Conv3D", _conv("forward")),
    **_table("Conv2DBackpropInput Conv3DBackpropInputV2", _conv("grad_input")),
    **_table("Conv2DBackpropFilter Conv3DBackpropFilterV2", _conv("grad_weight")),
    **_table("DepthwiseConv2dNative", _conv("forward", depthwise=True)),
    **_table("DepthwiseConv2dNativeBackpropInput", _conv("grad_input", depthwise=True)),
    **_table("DepthwiseConv2dNativeBackpropFilter", _conv("grad_weight", depthwise=True)),
    **_table("BiasAdd", _bias_add),
    **_table("BiasAddGrad", _bias_gradient),
    **_table("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3", _batch_norm(backward=False)),
    **_table("FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3", _batch_norm(backward=True)),
    **_table("MaxPool MaxPool3D", _pool("max", backward=False)),
    **_table("MaxPoolGrad MaxPool3DGrad", _pool("max", backward=True)),
    **_table("AvgPool AvgPool3D", _pool("avg", backward=False)),
    **_table("AvgPoolGrad AvgPool3DGrad", _pool("avg", backward=True)),
    **_table(
        "Add AddV2 Sub Mul RealDiv Div DivNoNan Maximum Minimum SquaredDifference Neg Abs Sign Square Floor Ceil Round FloorDiv "
        "FloorMod Relu Relu6 ReluGrad Relu6Grad LeakyRelu LeakyReluGrad Cast Equal NotEqual Less LessEqual Greater GreaterEqual "
        "LogicalAnd LogicalOr LogicalNot Select SelectV2 Reciprocal ClipByValue IsFinite IsNan Rint Sign MulNoNan InvGrad "
        "ReciprocalGrad SeluGrad Mod ClipByValue BitwiseAnd Conj Real Imag",
        _pointwise(),
    ),
    **_table(
        "Exp Log Log1p Expm1 Tanh TanhGrad Sigmoid SigmoidGrad Sqrt SqrtGrad Rsqrt RsqrtGrad Pow Erf Erfc Erfinv Elu EluGrad "
        "Selu Softplus SoftplusGrad Sin Cos Xlogy Xdivy Xlog1py Atan2 Tan Softsign SoftsignGrad",
        _pointwise(4),
    ),
    "AddN": _add_all,
    **_table("Mean Sum Max Min Prod All Any ArgMax ArgMin L2Loss EuclideanNorm", _reduce),
    **_table("Softmax LogSoftmax", _softmax),
    **_table("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits", _cross_entropy),
    **_table("Reshape ExpandDims Squeeze", _reshape),
    "Transpose": _move(lambda node, inputs: [inputs[0].shape[axis] for axis in known_numbers(node, inputs[1])]),
    **_table("ConcatV2 Concat", _move(_concatenated)),
    "Pack": _move(_packed),
    **_table("Pad PadV2 MirrorPad", _move(_padded)),
    "Slice": _move(_sliced),
    "StridedSlice": _move(_strided),
    "StridedSliceGrad": _move(lambda node, inputs: known_numbers(node, inputs[0])),
    "Tile": _move(
        lambda node, inputs: [n * t for n, t in zip(inputs[0].shape, known_numbers(node, inputs[1]), strict=True)]
    ),
    "BroadcastTo": _move(lambda node, inputs: known_numbers(node, inputs[1])),
    **_table("Split SplitV", _split),
    **_table("Gather GatherV2 ResourceGather", _gather),
    **_table("UnsortedSegmentSum", _segment_sum),
    **_table("SegmentSum SegmentMean SparseSegmentSum SparseSegmentMean", _segment_pool),
    **_table("Fill ZerosLike OnesLike", _fill),
    **_table(
        "RandomUniform RandomStandardNormal TruncatedNormal RandomUniformInt StatelessRandomUniform StatelessRandomUniformV2 "
        "StatelessRandomNormalV2 StatelessTruncatedNormalV2 StatelessRandomUniformIntV2 StatelessRandomUniformFullIntV2",
        _random,
    ),
    **_table("StatelessRandomGetKeyCounter", _key_counter),
    "StatelessRandomGetAlg": lambda reader, node, inputs: [Value((), "int32")],
    "Unpack": _unpack,
    **_table("Cumsum Cumprod", _cumulative),
    "ReverseV2": _like(0, "copy", "reverse"),
    "MatrixBandPart": _like(0, "copy", "band"),
    "MatrixSetDiagV3": _like(0, "copy", "diagonal"),
    "Roll": _like(0, "copy", "roll"),
    **_table("ResizeBilinear ResizeNearestNeighbor ResizeBicubic", _resize(backward=False)),
    **_table("ResizeBilinearGrad ResizeNearestNeighborGrad ResizeBicubicGrad", _resize(backward=True)),
    **_table("TopKV2 TopK", _top_k),
    **_table("Unique UniqueV2 UniqueWithCounts", _unique),
    "GatherNd": _gather_nd,
    **_table("ScatterNd TensorScatterUpdate TensorScatterAdd", _scatter_nd),
    "OneHot": _one_hot,
}
"""Every TensorFlow operation that becomes work, or a tensor."""
