"""An ONNX file to a PyTorch module that runs its nodes, so that a training step of it can be recorded.

Shapes and other small values are computed on the host while the module runs; everything else becomes the PyTorch operation
that the node stands for. Weights are never read: only their shapes count.
"""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from traincast.capture._extras import need
from traincast.errors import CaptureFailed, InvalidInput
from traincast.noun import noun

DEFAULT_DIMS = {"whole": 128, "image": 224}
"""What an open dim that is not the batch is taken as, for integer and for floating inputs."""

_DTYPES: dict[int, Any] = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip


@noun
class Source:
    """What a recording needs of an ONNX file."""

    name: str
    build: Callable[[], nn.Module]
    make_inputs: Callable[[int], tuple[Any, ...]]
    batch: int
    batch_is_free: bool
    assumptions: tuple[str, ...] = ()
    """What open axes are taken as."""


def describe_onnx(path: str | Path) -> Source:
    onnx = need("onnx", extra="onnx", purpose="reading an ONNX file")
    graph = _load_model(onnx, path).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    unsupported = sorted(
        {str(node.op_type) for node in graph.node if node.op_type not in NODES and node.op_type != "Constant"}
    )
    if unsupported:
        raise CaptureFailed(f"{path} uses the ONNX operation {', '.join(unsupported)}, which cannot be recorded")
    first_dims = [_dims(value)[0] for value in inputs if _dims(value)]
    free = bool(first_dims) and all(dim is None for dim in first_dims)
    batch = 1 if free or not first_dims else int(first_dims[0] or 1)
    return Source(
        name=graph.name if graph.name not in ("", "main_graph", "torch_jit", "torch-jit-export") else Path(path).stem,
        build=lambda: _Interpreter(graph, onnx),
        make_inputs=lambda size: tuple(_example(value, size) for value in inputs),
        batch=batch,
        batch_is_free=free,
        assumptions=tuple(text for value in inputs for text in _say_open(value)),
    )


def _load_model(onnx: Any, path: str | Path) -> Any:
    """The file with its functions unfolded."""
    try:
        model = onnx.load(str(path), load_external_data=False)
        _check_sizes(model)
        if not model.functions:
            return model
        from onnx import inliner

        return inliner.inline_local_functions(model)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error
    except Exception as error:
        raise InvalidInput(f"{path} is not a readable ONNX file: {' '.join(str(error).split())[:200]}") from error


MOST_NODES = 200_000
"""Of a whole file, functions unfolded."""
MOST_ELEMENTS = 2**42
"""Of one input or weight."""


def _check_sizes(model: Any) -> None:
    """Refuse what a small file can ask for and no machine can walk: functions that unfold without end, endless tensors."""
    functions = {(each.domain, each.name): each for each in model.functions}
    counts: dict[tuple[str, str], int] = {}

    def count(nodes: Any, depth: int) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in functions and key not in counts:
                if depth > len(functions):
                    raise InvalidInput(f"the function {node.op_type[:60]!r} calls itself")
                counts[key] = count(functions[key].node, depth + 1)
            total += counts.get(key, 1)
            if node.op_type == "Split" and any(
                item.name == "num_outputs" and item.i != len(node.output) for item in node.attribute
            ):
                raise InvalidInput("a Split has another number of outputs than it names")
        if total > MOST_NODES:
            raise InvalidInput(f"the file has more than {MOST_NODES:,} nodes, functions unfolded; no more are read")
        return total

    count(model.graph.node, 0)
    sizes = [[dim or 1 for dim in _dims(value)] for value in model.graph.input]
    for dims in (*sizes, *(list(tensor.dims) for tensor in model.graph.initializer)):
        if any(dim < 0 for dim in dims) or math.prod(dims) > MOST_ELEMENTS:
            raise InvalidInput(
                f"a tensor of {'x'.join(map(str, dims))[:100]} elements; at most {MOST_ELEMENTS:,} are read"
            )


def _dims(value: Any) -> list[int | None]:
    shape = value.type.tensor_type.shape
    return [
        dim.dim_value if dim.WhichOneof("value") == "dim_value" and dim.dim_value > 0 else None for dim in shape.dim
    ]


def _usual_dim(value: Any) -> int:
    dtype = _DTYPES.get(value.type.tensor_type.elem_type, torch.float32)
    return DEFAULT_DIMS["image" if dtype.is_floating_point else "whole"]


def _say_open(value: Any) -> list[str]:
    """Axes that the file leaves open, but for the batch."""
    return [
        f"axis {place} of the input {value.name!r} is open in the file ({dim.dim_param or 'no name'}) and taken as "
        f"{_usual_dim(value)}; export it with the size that you train at"
        for place, dim in enumerate(value.type.tensor_type.shape.dim)
        if place > 0 and _dims(value)[place] is None
    ]


def _example(value: Any, batch: int) -> Any:
    dtype = _DTYPES.get(value.type.tensor_type.elem_type, torch.float32)
    other = _usual_dim(value)
    sizes = [(batch if place == 0 else other) if dim is None else dim for place, dim in enumerate(_dims(value))]
    # Ones are valid token ids and, as a mask, hide nothing.
    return torch.zeros(sizes, dtype=dtype) if dtype.is_floating_point else torch.ones(sizes, dtype=dtype)


class _Node(nn.Module):  # type: ignore[misc]
    """One ONNX node; it owns the weights that it is the first to use."""

    def __init__(self, node: Any, attributes: dict[str, Any]) -> None:
        super().__init__()
        self.kind = node.op_type
        self.attributes = attributes

    def forward(self, values: list[Any]) -> Any:
        return NODES[self.kind](values, self.attributes, self)


class _Interpreter(nn.Module):  # type: ignore[misc]
    def __init__(self, graph: Any, onnx: Any) -> None:
        super().__init__()
        self._onnx = onnx
        self._input_names: list[str] = []
        self._output_names = [value.name for value in graph.output]
        self._constants: dict[str, Any] = {}
        self._owned: dict[str, tuple[nn.Module, str]] = {}
        self._steps: list[tuple[_Node, Any, list[str], list[str]]] = []
        initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._input_names = [value.name for value in graph.input if value.name not in initializers]
        consumers: dict[str, list[tuple[str, int]]] = {}
        for node in graph.node:
            for place, name in enumerate(node.input):
                consumers.setdefault(name, []).append((node.op_type, place))
        for number, node in enumerate(graph.node):
            attributes = {item.name: _attribute(onnx, item) for item in node.attribute}
            if node.op_type == "Constant":
                self._constants[node.output[0]] = _constant(attributes, node)
                continue
            module = _Node(node, attributes)
            self._place(module, node.name or f"{node.op_type}_{number}")
            self._steps.append((module, node, list(node.input), list(node.output)))
            for place, name in enumerate(node.input):
                if name in initializers and name not in self._owned and name not in self._constants:
                    self._own(module, initializers[name], consumers[name], place)
        self._last_use: dict[str, int] = {}
        for step, (_, _, names, _) in enumerate(self._steps):
            for name in names:
                self._last_use[name] = step

    def _place(self, module: _Node, name: str) -> None:
        """Put a node where its name says: '/encoder/layer.0/MatMul' is the module encoder.layer.0.MatMul."""
        parts = [part for part in re.split(r"[/.:]+", name) if part] or ["node"]
        owner: nn.Module = self
        for part in parts[:-1]:
            found = owner._modules.get(part)
            if not isinstance(found, nn.Module) or isinstance(found, _Node):
                part = part if found is None else f"{part}_scope"
                if part not in owner._modules:
                    owner.add_module(part if not hasattr(owner, part) else f"{part}_", nn.Module())
                part = part if part in owner._modules else f"{part}_"
            owner = owner._modules[part]
        last = parts[-1]
        while last in owner._modules or hasattr(owner, last):
            last += "_"
        owner.add_module(last, module)

    def _own(self, module: _Node, tensor: Any, uses: list[tuple[str, int]], place: int) -> None:
        dims = tuple(tensor.dims)
        dtype = _DTYPES.get(tensor.data_type, torch.float32)
        is_weight = dtype.is_floating_point and any(_trains(kind, slot, dims) for kind, slot in uses)
        if not is_weight and math.prod(dims) <= 2**16:
            self._constants[tensor.name] = _numbers(self._onnx, tensor)
            return
        key = re.sub(r"\W+", "_", tensor.name.rsplit(".", 1)[-1].rsplit("/", 1)[-1]) or f"weight_{place}"
        while hasattr(module, key) or key in module._parameters or key in module._buffers:
            key += "_"
        data = torch.empty(dims, dtype=dtype)
        if is_weight and not all(_is_statistic(kind, slot) for kind, slot in uses):
            module.register_parameter(key, nn.Parameter(data))
        else:
            module.register_buffer(key, data)
        self._owned[tensor.name] = (module, key)

    def forward(self, *inputs: Any) -> Any:
        values: dict[str, Any] = dict(zip(self._input_names, inputs, strict=False))
        values.update(self._constants)
        values.update({name: getattr(module, key) for name, (module, key) in self._owned.items()})
        wanted = set(self._output_names)
        for step, (module, node, names, outputs) in enumerate(self._steps):
            arguments = [values[name] if name else None for name in names]
            results: Any
            try:
                if _belongs_on_host(node, arguments):
                    results = self._on_host(module, node, arguments)
                else:
                    if arguments and not isinstance(arguments[0], torch.Tensor):
                        # Large constants of constants: an array would be computed, a tensor has only its shape.
                        arguments[0] = _tensor(arguments[0])
                    results = module(arguments)
            except CaptureFailed:
                raise
            except (KeyError, IndexError, TypeError, NotImplementedError) as error:
                raise CaptureFailed(
                    f"the ONNX operation {node.op_type} (node {node.name!r}) cannot be recorded: {type(error).__name__} {error}"
                ) from error
            if not isinstance(results, (tuple, list)):
                results = (results,)
            values.update(dict(zip(outputs, results, strict=False)))
            for name in names:
                if self._last_use.get(name) == step and name not in wanted and name not in self._owned:
                    values.pop(name, None)
        found = [values[name] for name in self._output_names if isinstance(values.get(name), torch.Tensor)]
        return found[0] if len(found) == 1 else tuple(found)

    def _on_host(self, module: _Node, node: Any, arguments: list[Any]) -> list[Any]:
        """Shapes and constants, by the reference implementation."""
        from onnx.reference import ReferenceEvaluator

        with _disable_current_modes():
            feeds = {name: np.asarray(value) for name, value in zip(node.input, arguments, strict=True) if name}
            try:
                results: list[Any] = ReferenceEvaluator(node).run(None, feeds)
            except Exception:
                # The reference has gaps; the recorded operation on real values has none that matter here.
                answer = module([_tensor(value) for value in arguments])
                results = [item.numpy() for item in (answer if isinstance(answer, (tuple, list)) else (answer,))]
        return results


def _belongs_on_host(node: Any, arguments: list[Any]) -> bool:
    """Small values made of small values; a large constant is made where it is used."""
    if any(isinstance(value, torch.Tensor) for value in arguments):
        return False
    if node.op_type == "ConstantOfShape":
        return math.prod(_ints(arguments[0])) <= _HOST_LIMIT
    if node.op_type == "Range":
        start, limit, step = (float(np.asarray(value)) for value in arguments)
        return (limit - start) / step <= _HOST_LIMIT
    sizes = [np.size(value) for value in arguments if value is not None]
    if node.op_type in _GROWING:
        # One of their other arguments says how large the result is.
        said = [value for value in arguments[1:] if value is not None and np.size(value) <= 16]
        size = sizes[0] * math.prod(max(1, abs(int(item))) for value in said for item in np.ravel(value))
        if size > _MOST_CONSTANT:
            raise CaptureFailed(f"the ONNX operation {node.op_type} makes a constant of {size:,} elements from a few")
        return size <= _HOST_MOST
    if len(sizes) > 1 and (node.op_type in ("Concat", "MatMul", "Gemm", "Einsum") or sum(sizes) > _HOST_MOST):
        return math.prod(sizes) <= _HOST_MOST or (node.op_type == "Concat" and sum(sizes) <= _HOST_MOST)
    return True


_HOST_LIMIT = 1024
_HOST_MOST = 2**20
"""Elements that are computed on the host; what is larger is only given its shape."""
_MOST_CONSTANT = 2**27
_GROWING = {"Expand", "Tile", "Pad", "OneHot", "Resize", "Upsample"}
_STATISTICS = {("BatchNormalization", 3), ("BatchNormalization", 4)}
_MOVING = {"Slice", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Expand", "Concat", "Cast", "Where", "Pad", "Tile"}
_NOT_WEIGHTS = {"Clip", "Resize", "Upsample", "Pow", "Div", "Equal", "ConstantOfShape", "Range", "Less", "Greater", "Max", "Min",
                "OneHot", "Dropout"}  # fmt: skip


def _is_statistic(kind: str, place: int) -> bool:
    return (kind, place) in _STATISTICS


def _trains(kind: str, place: int, dims: tuple[int, ...]) -> bool:
    """Whether a float tensor in this place is a weight: not a bound, a scale or where to move data."""
    if kind in _MOVING and kind != "Concat" and place > 0:
        return False
    return kind not in _NOT_WEIGHTS and (math.prod(dims) > 1 or (kind, place) == ("PRelu", 1))


def _attribute(onnx: Any, item: Any) -> Any:
    value = onnx.helper.get_attribute_value(item)
    return value.decode() if isinstance(value, bytes) else value


def _constant(attributes: dict[str, Any], node: Any) -> Any:
    for key, value in attributes.items():
        if key == "value":
            from onnx import numpy_helper

            return numpy_helper.to_array(value)
        if key in ("value_float", "value_floats"):
            return np.asarray(value, dtype=np.float32)
        if key in ("value_int", "value_ints"):
            return np.asarray(value, dtype=np.int64)
    raise CaptureFailed(f"the ONNX constant {node.name!r} has no readable value")


def _numbers(onnx: Any, tensor: Any) -> Any:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return np.zeros(tuple(tensor.dims), dtype=onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return onnx.numpy_helper.to_array(tensor)


def _tensor(value: Any, like: Any = None) -> Any:
    if isinstance(value, torch.Tensor) or value is None:
        return value
    made = torch.from_numpy(np.array(value))
    return made.to(like.dtype) if like is not None and made.is_floating_point() and like.is_floating_point() else made


def _all(values: Sequence[Any]) -> list[Any]:
    like = next((value for value in values if isinstance(value, torch.Tensor)), None)
    return [_tensor(value, like) for value in values]


def _ints(value: Any) -> list[int]:
    if value is None:
        return []
    if isinstance(value, torch.Tensor):
        return [int(item) for item in value.reshape(-1).tolist()]
    return [int(item) for item in np.asarray(value).reshape(-1)]


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda values, attributes, node: function(*_all(values))


def _chain(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
        first, *rest = _all(values)
        for other in rest:
            first = function(first, other)
        return first

    return run


def _axes(values: list[Any], attributes: dict[str, Any]) -> list[int]:
    return (
        _ints(values[1])
        if len(values) > 1 and values[1] is not None
        else [int(axis) for axis in attributes.get("axes", ())]
    )


def _pads(attributes: dict[str, Any], size: Sequence[int], kernel: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Begin and end padding of every dim."""
    dims = len(kernel)
    automatic = attributes.get("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        dilation = attributes.get("dilations", [1] * dims)
        total = [
            max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n)
            for n, k, s, d in zip(size, kernel, stride, dilation, strict=True)
        ]
        first = [t // 2 if automatic == "SAME_UPPER" else t - t // 2 for t in total]
        return first + [t - f for t, f in zip(total, first, strict=True)]
    return [int(pad) for pad in attributes.get("pads", [0] * 2 * dims)]


def _padded(data: Any, pads: list[int], value: float) -> tuple[Any, list[int]]:
    """Symmetric padding is left to the operation; other padding is done first."""
    dims = len(pads) // 2
    begin, end = pads[:dims], pads[dims:]
    if begin == end:
        return data, begin
    both = [amount for place in reversed(range(dims)) for amount in (begin[place], end[place])]
    return F.pad(data, both, value=value), [0] * dims


def _conv(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data, weight, *bias = _all(values)
    dims = weight.dim() - 2
    stride = attributes.get("strides", [1] * dims)
    data, padding = _padded(data, _pads(attributes, data.shape[2:], weight.shape[2:], stride), 0.0)
    function = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    return function(
        data, weight, bias[0] if bias else None, stride, padding, attributes.get("dilations", [1] * dims),
        attributes.get("group", 1),
    )  # fmt: skip


def _conv_transpose(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data, weight, *bias = _all(values)
    dims = weight.dim() - 2
    pads = attributes.get("pads", [0] * 2 * dims)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
    return function(
        data, weight, bias[0] if bias else None, attributes.get("strides", [1] * dims), pads[:dims],
        attributes.get("output_padding", [0] * dims), attributes.get("group", 1), attributes.get("dilations", [1] * dims),
    )  # fmt: skip


def _gemm(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    a, b, *c = _all(values)
    a = a.t() if attributes.get("transA") else a
    b = b.t() if attributes.get("transB") else b
    if c and c[0] is not None and c[0].dim() == 1 and c[0].numel() > 1:
        return torch.addmm(c[0], a, b)
    product = a @ b
    return product + c[0] if c and c[0] is not None else product


def _pool(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data = values[0]
    kernel = attributes["kernel_shape"]
    dims = len(kernel)
    stride = attributes.get("strides", [1] * dims)
    is_max = node.kind == "MaxPool"
    data, padding = _padded(data, _pads(attributes, data.shape[2:], kernel, stride), -math.inf if is_max else 0.0)
    ceil = bool(attributes.get("ceil_mode", 0))
    if is_max:
        function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
        return function(data, kernel, stride, padding, attributes.get("dilations", [1] * dims), ceil)
    average = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
    return average(data, kernel, stride, padding, ceil, bool(attributes.get("count_include_pad", 0)))


def _batch_norm(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data, scale, bias, mean, variance = _all(values)
    return F.batch_norm(
        data, mean, variance, scale, bias, node.training, 1 - attributes.get("momentum", 0.9),
        attributes.get("epsilon", 1e-5),
    )  # fmt: skip


def _layer_norm(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data, scale, *bias = _all(values)
    axis = attributes.get("axis", -1) % data.dim()
    return F.layer_norm(data, data.shape[axis:], scale, bias[0] if bias else None, attributes.get("epsilon", 1e-5))


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
        axes = _axes(values, attributes)
        if not axes and attributes.get("noop_with_empty_axes"):
            return values[0]
        return function(values[0], axes or list(range(values[0].dim())), bool(attributes.get("keepdims", 1)))

    return run


def _product(data: Any, axes: list[int], keepdim: bool) -> Any:
    for axis in sorted((axis % data.dim() for axis in axes), reverse=True):
        data = data.prod(axis, keepdim=keepdim)
    return data


def _reshape(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data, shape = values[0], _ints(values[1])
    if not attributes.get("allowzero"):
        shape = [data.shape[place] if size == 0 else size for place, size in enumerate(shape)]
    return _tensor(data).reshape(shape)


def _slice(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data = values[0]
    if len(values) > 1:
        starts, ends = _ints(values[1]), _ints(values[2])
        axes = _ints(values[3]) if len(values) > 3 and values[3] is not None else list(range(len(starts)))
        steps = _ints(values[4]) if len(values) > 4 else [1] * len(starts)
    else:
        starts, ends = list(attributes["starts"]), list(attributes["ends"])
        axes, steps = list(attributes.get("axes", range(len(starts)))), [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0:
            data = data.flip(axis)
            size = data.shape[axis]
            first = max(0, start + size if start < 0 else min(start, size - 1))
            last = -1 if end < -size else end + size if end < 0 else end
            start, end, step = size - 1 - first, size - 1 - last, -step
        places = [slice(None)] * data.dim()
        places[axis] = slice(start, min(end, data.shape[axis]) if end > 0 else end, step)
        data = data[tuple(places)]
    return data


def _split(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    axis = attributes.get("axis", 0)
    sizes = _ints(values[1]) if len(values) > 1 else list(attributes.get("split", ()))
    if not sizes:
        count = attributes.get("num_outputs", 2)
        sizes = [math.ceil(values[0].shape[axis] / count)] * count
        sizes[-1] = values[0].shape[axis] - sum(sizes[:-1])
    return torch.split(values[0], sizes, axis)


def _squeeze(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    axes = _axes(values, attributes)
    return values[0].squeeze(tuple(axes)) if axes else values[0].squeeze()


def _unsqueeze(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data = values[0]
    axes = _axes(values, attributes)
    rank = data.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        data = data.unsqueeze(axis)
    return data


def _gather(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data, indices = _all(values)
    axis = attributes.get("axis", 0)
    if not isinstance(values[1], torch.Tensor) and np.ndim(values[1]) == 0:
        return data.select(axis, int(values[1]))
    if axis == 0 and data.dim() == 2 and isinstance(data, nn.Parameter):
        return F.embedding(indices, data)
    picked = data.index_select(axis, indices.reshape(-1))
    return picked.reshape(*data.shape[:axis], *indices.shape, *data.shape[axis % data.dim() + 1 :])


def _gather_nd(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data, indices = _all(values)
    return data[tuple(indices.unbind(-1))]


def _scatter_nd(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data, indices, updates = _all(values)
    return data.index_put(tuple(indices.unbind(-1)), updates)


def _pad(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data = values[0]
    pads = _ints(values[1]) if len(values) > 1 else [int(pad) for pad in attributes["pads"]]
    value = float(np.asarray(values[2])) if len(values) > 2 and values[2] is not None else attributes.get("value", 0.0)
    dims = len(pads) // 2
    both = [amount for place in reversed(range(dims)) for amount in (pads[place], pads[place + dims])]
    while len(both) >= 2 and both[-2:] == [0, 0]:
        both = both[:-2]
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}[attributes.get("mode", "constant")]
    return F.pad(data, both, mode, value if mode == "constant" else None)


def _resize(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data = values[0]
    given = [value for value in values[1:] if value is not None and np.size(value)]
    last = given[-1]
    is_size = np.asarray(last).dtype.kind in "iu"
    numbers = [float(number) for number in np.asarray(last).reshape(-1)]
    spatial = numbers[-(data.dim() - 2) :]
    size = [int(n) for n in spatial] if is_size else [int(n * s) for n, s in zip(data.shape[2:], spatial, strict=True)]
    way = attributes.get("mode", "nearest")
    if way == "nearest":
        return F.interpolate(data, size=size, mode="nearest")
    name = {("linear", 3): "linear", ("linear", 4): "bilinear", ("linear", 5): "trilinear", ("cubic", 4): "bicubic"}
    return F.interpolate(data, size=size, mode=name[way, data.dim()], align_corners=False)


def _cast(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    dtype = _DTYPES.get(attributes["to"])
    if dtype is None:
        raise CaptureFailed(f"an ONNX cast to type {attributes['to']} cannot be recorded")
    if dtype.is_floating_point and values[0].is_floating_point() and dtype == torch.float32:
        # A file in fp32 may be recorded in another precision; its casts to its own precision follow.
        return values[0]
    return values[0].to(dtype)


def _expand(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    data = _tensor(values[0])
    shape = torch.broadcast_shapes(tuple(data.shape), tuple(_ints(values[1])))
    return data.expand(shape)


def _clip(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    bounds = [None if value is None else float(np.asarray(value)) for value in values[1:3]]
    low = bounds[0] if bounds else attributes.get("min")
    high = bounds[1] if len(bounds) > 1 else attributes.get("max")
    return torch.clamp(values[0], low, high)


def _dropout(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    ratio = float(np.asarray(values[1])) if len(values) > 1 and values[1] is not None else attributes.get("ratio", 0.5)
    return F.dropout(values[0], ratio, node.training)


def _recurrent(kind: str) -> Callable[..., Any]:
    def run(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
        values = _all(values)
        data, weight, recurrence = values[:3]
        bias = values[3] if len(values) > 3 else None
        directions, hidden = weight.shape[0], int(attributes["hidden_size"])
        weights: list[Any] = []
        for way in range(directions):
            weights += [weight[way], recurrence[way]]
            if bias is not None:
                half = bias.shape[1] // 2
                weights += [bias[way, :half], bias[way, half:]]
        batch = data.shape[1]
        states = [data.new_zeros(directions, batch, hidden) for _ in range(2 if kind == "lstm" else 1)]
        function = {"lstm": torch.lstm, "gru": torch.gru}[kind]
        output, *last = function(
            data, states if kind == "lstm" else states[0], weights, bias is not None, 1, 0.0, node.training,
            directions == 2, False,
        )  # fmt: skip
        # ONNX puts the directions on their own axis: (length, direction, batch, hidden).
        return [output.reshape(*output.shape[:2], directions, hidden).transpose(1, 2), *last]

    return run


def _one_hot(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    return F.one_hot(values[0].long(), int(np.asarray(values[1]).reshape(-1)[0])).float()


def _range(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    return torch.arange(*(value.item() if hasattr(value, "item") else value for value in values))


def _fill(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    from onnx import numpy_helper

    value = numpy_helper.to_array(attributes["value"]).reshape(-1)[0] if "value" in attributes else np.float32(0)
    return torch.full(_ints(values[0]), value.item(), dtype=torch.from_numpy(np.array(value)).dtype)


def _matmul_like(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    a, b = _all(values)
    return a @ b


def _topk(values: list[Any], attributes: dict[str, Any], node: Any) -> Any:
    return torch.topk(values[0], _ints(values[1])[0], attributes.get("axis", -1), bool(attributes.get("largest", 1)))


def _argument(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda values, attributes, node: function(
        values[0], attributes.get("axis", 0), bool(attributes.get("keepdims", 1))
    )


def _softmax(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda values, attributes, node: function(values[0], attributes.get("axis", -1))


NODES: dict[str, Callable[[list[Any], dict[str, Any], Any], Any]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul_like,
    "Einsum": lambda values, attributes, node: torch.einsum(attributes["equation"], *_all(values)),
    "Add": _plain(torch.add),
    "Sub": _plain(torch.sub),
    "Mul": _plain(torch.mul),
    "Div": _plain(lambda a, b: a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")),
    "Mod": _plain(torch.remainder),
    "Pow": lambda values, attributes, node: torch.pow(
        _tensor(values[0]), float(np.asarray(values[1])) if not isinstance(values[1], torch.Tensor) else values[1]
    ),
    "Sqrt": _plain(torch.sqrt),
    "Exp": _plain(torch.exp),
    "Log": _plain(torch.log),
    "Erf": _plain(torch.erf),
    "Tanh": _plain(torch.tanh),
    "Sin": _plain(torch.sin),
    "Cos": _plain(torch.cos),
    "Sigmoid": _plain(torch.sigmoid),
    "Relu": _plain(torch.relu),
    "LeakyRelu": lambda values, attributes, node: F.leaky_relu(values[0], attributes.get("alpha", 0.01)),
    "Elu": lambda values, attributes, node: F.elu(values[0], attributes.get("alpha", 1.0)),
    "PRelu": _plain(lambda data, slope: torch.where(data > 0, data, data * slope)),
    "Softplus": _plain(F.softplus),
    "HardSigmoid": _plain(F.hardsigmoid),
    "HardSwish": _plain(F.hardswish),
    "Gelu": lambda values, attributes, node: F.gelu(values[0], approximate=attributes.get("approximate", "none")),
    "Mish": _plain(F.mish),
    "Abs": _plain(torch.abs),
    "Neg": _plain(torch.neg),
    "Floor": _plain(torch.floor),
    "Ceil": _plain(torch.ceil),
    "Round": _plain(torch.round),
    "Sign": _plain(torch.sign),
    "Reciprocal": _plain(torch.reciprocal),
    "IsNaN": _plain(torch.isnan),
    "Not": _plain(torch.logical_not),
    "And": _plain(torch.logical_and),
    "Or": _plain(torch.logical_or),
    "Xor": _plain(torch.logical_xor),
    "Equal": _plain(torch.eq),
    "Greater": _plain(torch.gt),
    "GreaterOrEqual": _plain(torch.ge),
    "Less": _plain(torch.lt),
    "LessOrEqual": _plain(torch.le),
    "Where": _plain(torch.where),
    "Min": _chain(torch.minimum),
    "Max": _chain(torch.maximum),
    "Sum": _chain(torch.add),
    "Mean": lambda values, attributes, node: sum(_all(values)[1:], _all(values)[0]) / len(values),
    "Clip": _clip,
    "Softmax": _softmax(torch.softmax),
    "LogSoftmax": _softmax(torch.log_softmax),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "InstanceNormalization": lambda values, attributes, node: F.instance_norm(
        values[0], weight=_tensor(values[1]), bias=_tensor(values[2]), eps=attributes.get("epsilon", 1e-5)
    ),
    "GroupNormalization": lambda values, attributes, node: F.group_norm(
        values[0], attributes["num_groups"], _tensor(values[1]), _tensor(values[2]), attributes.get("epsilon", 1e-5)
    ),
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": lambda values, attributes, node: values[0].mean(
        tuple(range(2, values[0].dim())), keepdim=True
    ),
    "GlobalMaxPool": lambda values, attributes, node: values[0].amax(tuple(range(2, values[0].dim())), keepdim=True),
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMin": _reduce(torch.amin),
    "ReduceProd": _reduce(_product),
    "ReduceL2": _reduce(lambda data, axes, keepdim: torch.linalg.vector_norm(data, dim=axes, keepdim=keepdim)),
    "ReduceLogSumExp": _reduce(torch.logsumexp),
    "CumSum": lambda values, attributes, node: torch.cumsum(values[0], _ints(values[1])[0]),
    "Concat": lambda values, attributes, node: torch.cat(_all(values), attributes["axis"]),
    "Split": _split,
    "Slice": _slice,
    "Reshape": _reshape,
    "Flatten": lambda values, attributes, node: values[0].reshape(
        math.prod(values[0].shape[: attributes.get("axis", 1)]), -1
    ),
    "Transpose": lambda values, attributes, node: values[0].permute(
        attributes.get("perm", list(reversed(range(values[0].dim()))))
    ),
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "Tile": lambda values, attributes, node: values[0].repeat(_ints(values[1])),
    "Gather": _gather,
    "GatherElements": lambda values, attributes, node: torch.gather(
        _tensor(values[0]), attributes.get("axis", 0), _tensor(values[1])
    ),
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "ScatterElements": lambda values, attributes, node: torch.scatter(
        _tensor(values[0]), attributes.get("axis", 0), _tensor(values[1]), _tensor(values[2])
    ),
    "Cast": _cast,
    "CastLike": _plain(lambda data, like: data.to(like.dtype)),
    "Identity": lambda values, attributes, node: values[0],
    "Dropout": _dropout,
    "Pad": _pad,
    "Resize": _resize,
    "Upsample": _resize,
    "Trilu": lambda values, attributes, node: (torch.triu if attributes.get("upper", 1) else torch.tril)(
        values[0], _ints(values[1])[0] if len(values) > 1 and values[1] is not None else 0
    ),
    "ArgMax": _argument(torch.argmax),
    "ArgMin": _argument(torch.argmin),
    "TopK": _topk,
    "NonZero": lambda values, attributes, node: values[0].nonzero().t(),
    "OneHot": _one_hot,
    "Range": _range,
    "ConstantOfShape": _fill,
    "Shape": lambda values, attributes, node: np.array(
        values[0].shape[attributes.get("start", 0) : attributes.get("end", values[0].dim())], dtype=np.int64
    ),
    "Size": lambda values, attributes, node: np.array(values[0].numel(), dtype=np.int64),
    "DepthToSpace": lambda values, attributes, node: F.pixel_shuffle(values[0], attributes["blocksize"]),
    "SpaceToDepth": lambda values, attributes, node: F.pixel_unshuffle(values[0], attributes["blocksize"]),
    "LSTM": _recurrent("lstm"),
    "GRU": _recurrent("gru"),
}
"""Every ONNX operation that can be recorded."""
