"""A TensorFlow graph (frozen GraphDef or SavedModel) to the graph of its step; shapes are inferred here, without TensorFlow.

A graph that holds `Apply...` nodes is a training step and is walked back from them; any other graph from its results. Nodes of
the name scopes `gradients` and `gradient_tape` are the backward pass.
"""

import importlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from traincast.capture.folding import fold
from traincast.capture.optimizers import UPDATES
from traincast.capture.phases import mark_kept, tell_mode
from traincast.errors import CaptureFailed, InvalidInput, MissingExtra
from traincast.spec.graph import Attr, Graph, Op, Tensor

_TYPES = {
    1: "fp32", 2: "fp64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64", 9: "int64", 10: "bool", 14: "bf16",
    17: "int16", 18: "complex128", 19: "fp16", 22: "int32", 23: "int64",
}  # fmt: skip
_NUMPY = {
    "fp32": np.float32,
    "fp64": np.float64,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
    "fp16": np.float16,
}
_VALUE_LIMIT = 65536
_APPLY = {
    "ApplyGradientDescent": "sgd", "ApplyMomentum": "momentum", "ApplyKerasMomentum": "momentum", "ApplyAdam": "adam",
    "ApplyAdagrad": "adagrad", "ApplyAdagradV2": "adagrad", "ApplyRMSProp": "rmsprop", "ApplyAdamWithAmsgrad": "adam",
}  # fmt: skip
_GRADIENT_SCOPE = re.compile(r"(^|/)(gradients?(_\d+)?|gradient_tape)/")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_SAME = {
    "Identity", "StopGradient", "PreventGradient", "Snapshot", "CheckNumerics", "ReadVariableOp", "PlaceholderWithDefault",
    "IdentityN", "EnsureShape",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of the TensorFlow graph: its shape, its memory, and its numbers where they are small and known."""

    shape: tuple[int, ...]
    dtype: str
    index: int | None = None
    numbers: Any = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def read_tensorflow(path: str | Path, *, batch: int = 1, precision: str = "fp32", name: str = "") -> Graph:
    """Read a .pb, .pbtxt or SavedModel directory; open first dims are taken as the batch."""
    if batch < 1:
        raise InvalidInput(f"a batch of {batch}; it must be at least 1")
    if precision not in ("fp32", "tf32"):
        raise InvalidInput(
            f"a TensorFlow graph has its own precision; {precision!r} cannot be asked of it (fp32 or tf32)"
        )
    definition = _parse(Path(path))
    if not definition.node:
        raise InvalidInput(f"{path} holds no TensorFlow graph")
    reader = _Reader(definition, batch=batch, tf32=precision == "tf32")
    reader.run()
    return fold(reader.graph(name=name or Path(path).stem))


def _parse(path: Path) -> Any:
    try:
        text_format = importlib.import_module("google.protobuf.text_format")
        message = importlib.import_module("google.protobuf.message")
        from tensorboard.compat.proto import graph_pb2, meta_graph_pb2
    except ImportError as error:
        raise MissingExtra("tensorboard", "tensorflow", "reading a TensorFlow graph") from error
    file = path / "saved_model.pb" if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput(f"there is no file {file}")
    raw = file.read_bytes()
    definition = graph_pb2.GraphDef()
    try:
        if file.suffix == ".pbtxt":
            return text_format.Parse(raw.decode(), definition)
        if file.name == "saved_model.pb":
            meta = meta_graph_pb2.MetaGraphDef()
            meta.ParseFromString(_field(raw, 2))
            return meta.graph_def
        definition.ParseFromString(raw)
    except (message.DecodeError, text_format.ParseError, ValueError, UnicodeDecodeError, RuntimeWarning) as error:
        raise InvalidInput(
            f"{file} is not a readable TensorFlow graph: {' '.join(str(error).split())[:200]}"
        ) from error
    return definition


def _field(raw: bytes, wanted: int) -> bytes:
    """The first length-delimited field of a message: a SavedModel is a list of meta graphs in field 2."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            if position >= len(raw):
                raise ValueError("the message ends early")
            byte = raw[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(raw):
        key = varint()
        if key & 7 == 2:
            size = varint()
            if key >> 3 == wanted:
                return raw[position : position + size]
            position += size
        elif key & 7 == 0:
            varint()
        else:
            position += 8 if key & 7 == 1 else 4
    raise ValueError("no meta graph in it")


class _Reader:
    def __init__(self, definition: Any, *, batch: int, tf32: bool) -> None:
        self.batch = batch
        self.tf32 = tf32
        self.ops: list[Op] = []
        self.tensors: list[Tensor] = []
        self.assumptions: dict[str, None] = {}
        self.updates: dict[str, list[tuple[_Value, _Value, list[_Value]]]] = {}
        self._nodes = {node.name: node for node in definition.node}
        self._functions = {function.signature.name: function for function in definition.library.function}
        self._order = list(definition.node)
        self._values: dict[str, list[_Value]] = {}

    def run(self) -> None:
        targets = [node.name for node in self._order if _apply_name(node.op) is not None]
        if not targets:
            used = {_source(name)[0] for node in self._order for name in node.input}
            targets = [node.name for node in self._order if node.name not in used and not _is_bookkeeping(node)]
        for name in self._needed(targets):
            node = self._nodes[name]
            inputs = [self._value(text) for text in node.input if not text.startswith("^")]
            self._values[name] = self._evaluate(node, inputs)
        self._append_updates()

    def _needed(self, targets: Sequence[str]) -> list[str]:
        """Everything the targets use, each after its inputs."""
        order: list[str] = []
        state: dict[str, int] = {}
        for target in targets:
            stack = [(target, False)]
            while stack:
                name, is_ready = stack.pop()
                if is_ready:
                    order.append(name)
                    continue
                if name in state:
                    continue
                state[name] = 1
                if name not in self._nodes:
                    raise CaptureFailed(f"the TensorFlow graph uses the node {name!r}, which it does not define")
                stack.append((name, True))
                stack += [
                    (_source(text)[0], False) for text in reversed(self._nodes[name].input) if not text.startswith("^")
                ]
        return order

    def _value(self, text: str) -> _Value:
        name, place = _source(text)
        if name not in self._values:
            raise CaptureFailed(f"the TensorFlow graph has a loop through the node {name!r}")
        outputs = self._values[name]
        if place >= len(outputs):
            raise CaptureFailed(
                f"the TensorFlow graph uses output {place} of the node {name!r}, which has {len(outputs)}"
            )
        return outputs[place]

    def new(self, shape: Sequence[int], dtype: str, *, role: str = "temporary", name: str = "") -> _Value:
        sizes = tuple(int(size) for size in shape)
        self.tensors.append(Tensor(shape=sizes, dtype=dtype, role=role, name=name))
        return _Value(sizes, dtype, len(self.tensors) - 1)

    def emit(
        self, node: Any, kind: str, flop: float | None, attrs: dict[str, Attr], reads: Sequence[_Value],
        writes: Sequence[_Value], *, bytes_read: float | None = None, name: str = "",
    ) -> None:  # fmt: skip
        kept = [value for value in reads if value.index is not None]
        read_indices = tuple(dict.fromkeys(value.index for value in kept if value.index is not None))
        written = tuple(value.index for value in writes if value.index is not None)
        dtypes = [value.dtype for value in (*reads, *writes)]
        dtype = next((d for d in dtypes if d.startswith(("fp", "bf"))), dtypes[0] if dtypes else "fp32")
        if self.tf32 and dtype == "fp32" and kind in ("matmul", "conv"):
            dtype = "tf32"
        phase = "backward" if _GRADIENT_SCOPE.search(node.name) else "forward"
        self.ops.append(
            Op(
                name=f"tf.{name or node.op}",
                kind=kind,
                flop=flop,
                bytes_read=sum(self.tensors[i].num_bytes for i in read_indices) if bytes_read is None else bytes_read,
                bytes_written=sum(self.tensors[i].num_bytes for i in written),
                phase=phase,
                dtype=dtype,
                reads=read_indices,
                writes=written,
                layer=_layer(node.name),
                attrs=attrs,
            )
        )

    def _evaluate(self, node: Any, inputs: list[_Value]) -> list[_Value]:
        op = node.op
        apply = _apply_name(op)
        if apply is not None:
            self._note_update(node, apply, inputs)
            return [inputs[0]]
        if op in _CALLS:
            return self._call(node, inputs)
        if op in _SAME:
            return inputs or [_Value((), "fp32")]
        if op in ("NoOp", "Assert", "Assign", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"):
            return inputs[:1]
        rule = RULES.get(op)
        try:
            numbers = _compute(node, inputs)
            if numbers is not None:
                return numbers
            if rule is not None:
                return rule(self, node, inputs)
            return self._unknown(node, inputs)
        except CaptureFailed:
            raise
        except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise CaptureFailed(
                f"the TensorFlow operation {op} (node {node.name!r}) has inputs of shapes "
                f"{[value.shape for value in inputs]} that cannot be read: {error}"
            ) from error

    def _unknown(self, node: Any, inputs: list[_Value]) -> list[_Value]:
        shapes = _declared(node, self.batch)
        if shapes is None:
            raise CaptureFailed(
                f"the TensorFlow operation {node.op} (node {node.name!r}) is not known and its shape is not in the file; "
                "export the graph with as_graph_def(add_shapes=True)"
            )
        dtype = _type(node, "T") or (inputs[0].dtype if inputs else "fp32")
        outputs = [self.new(shape, dtype) for shape in shapes]
        self.emit(node, "other", None, {}, inputs, outputs)
        return outputs

    def _call(self, node: Any, inputs: list[_Value]) -> list[_Value]:
        """The body of a function in place of its call."""
        function = self._functions.get(node.attr["f"].func.name)
        if function is None:
            raise CaptureFailed(f"the TensorFlow graph calls {node.attr['f'].func.name!r}, which it does not define")
        inner = _Reader.__new__(_Reader)
        inner.batch, inner.tf32, inner._functions = self.batch, self.tf32, self._functions
        inner.ops, inner.tensors, inner.assumptions, inner.updates = (
            self.ops,
            self.tensors,
            self.assumptions,
            self.updates,
        )
        inner._nodes = {item.name: item for item in function.node_def}
        inner._order = list(function.node_def)
        inner._values = {
            argument.name: [value] for argument, value in zip(function.signature.input_arg, inputs, strict=False)
        }
        outputs = [function.ret[argument.name] for argument in function.signature.output_arg]
        updates = [item.name for item in function.node_def if _apply_name(item.op) is not None]
        wanted = [*updates, *(_source(text)[0] for text in outputs)]
        arguments = set(inner._values)
        for argument in arguments:
            inner._nodes.setdefault(argument, _Argument(argument))
        for name in inner._needed(wanted):
            if name in arguments:
                continue
            item = inner._nodes[name]
            values = [inner._value(text) for text in item.input if not text.startswith("^")]
            inner._values[name] = inner._evaluate(item, values)
        return [inner._value(text) for text in outputs]

    def _note_update(self, node: Any, algorithm: str, inputs: list[_Value]) -> None:
        first = inputs[0]
        gradient = next(
            (value for value in reversed(inputs) if value.shape == first.shape and value.index != first.index), first
        )
        states = [v for v in inputs[1:] if v.shape == first.shape and v.index not in (first.index, gradient.index)]
        self.updates.setdefault(algorithm, []).append((first, gradient, states))

    def _append_updates(self) -> None:
        for algorithm, members in self.updates.items():
            for value, gradient, states in members:
                self._set_role(value, "parameter")
                self._set_role(gradient, "gradient")
                for state in states:
                    self._set_role(state, "optimizer_state")
            update = UPDATES[algorithm]
            numel = sum(value.numel for value, _, _ in members)
            touched = [v for value, gradient, states in members for v in (value, gradient, *states)]
            written = [v for value, _, states in members for v in (value, *states)]
            indices = [
                tuple(dict.fromkeys(v.index for v in part if v.index is not None)) for part in (touched, written)
            ]
            # TensorFlow's Apply kernels are fused: one per variable.
            self.ops.append(
                Op(
                    name=f"optimizer.{algorithm}", kind="optimizer", flop=float(update.flop * numel),
                    bytes_read=float(update.fused_reads * numel * 4), bytes_written=float(update.fused_writes * numel * 4),
                    phase="optimizer", reads=indices[0], writes=indices[1], num_kernels=len(members), num_calls=len(members),
                    attrs={"algorithm": algorithm, "numel": numel, "num_tensors": len(members), "implementation": "fused"},
                )
            )  # fmt: skip

    def _set_role(self, value: _Value, role: str) -> None:
        if value.index is not None:
            self.tensors[value.index] = replace(self.tensors[value.index], role=role)

    def graph(self, *, name: str) -> Graph:
        return Graph(
            name=name,
            ops=tuple(self.ops),
            tensors=mark_kept(self.tensors, self.ops),
            batch_size=self.batch,
            mode=tell_mode(self.ops),
            source="tensorflow",
            assumptions=tuple(self.assumptions),
        )


@dataclass(frozen=True, slots=True)
class _Argument:
    """Stands for an argument of a function among its nodes."""

    name: str
    input: tuple[str, ...] = ()
    op: str = "_Argument"


def _source(text: str) -> tuple[str, int]:
    """'node', 'node:1' or, inside functions, 'node:output:1'."""
    name, *rest = text.lstrip("^").split(":")
    return name, int(rest[-1]) if rest else 0


def _apply_name(op: str) -> str | None:
    return _APPLY.get(op.removeprefix("Resource"))


def _is_bookkeeping(node: Any) -> bool:
    words = ("Save", "Restore", "Assign", "NoOp", "Merge", "Assert", "Summary", "Const", "Placeholder", "VarHandle",
             "VarIsInitialized", "ReadVariable", "Variable")  # fmt: skip
    return any(word in node.op for word in words)


def _layer(name: str) -> str:
    scope = name.rpartition("/")[0]
    scope = re.sub(r"(^|/)(gradients?(_\d+)?|gradient_tape)/", r"\1", scope + "/").strip("/")
    scope = re.sub(r"_grad$", "", scope)
    return scope.replace("/", ".")


def _type(node: Any, key: str) -> str | None:
    return _TYPES.get(node.attr[key].type) if key in node.attr else None


def _ints(node: Any, key: str, default: Sequence[int]) -> list[int]:
    return list(node.attr[key].list.i) or list(default) if key in node.attr else list(default)


def _flag(node: Any, *keys: str) -> bool:
    return any(node.attr[key].b for key in keys if key in node.attr)


def _text(node: Any, key: str, default: str) -> str:
    return (node.attr[key].s.decode() or default) if key in node.attr else default


def _sizes(shape: Any, batch: int, node: Any) -> tuple[int, ...] | None:
    if shape.unknown_rank:
        return None
    sizes = [int(dim.size) for dim in shape.dim]
    if any(size < 0 for size in sizes[1:]):
        return None
    return tuple(batch if size < 0 else size for size in sizes)


def _declared(node: Any, batch: int) -> list[tuple[int, ...]] | None:
    if "_output_shapes" not in node.attr:
        return None
    shapes = [_sizes(shape, batch, node) for shape in node.attr["_output_shapes"].list.shape]
    known = [shape for shape in shapes if shape is not None]
    return known if len(known) == len(shapes) else None


def _constant(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    tensor = node.attr["value"].tensor
    shape = tuple(int(dim.size) for dim in tensor.tensor_shape.dim)
    dtype = _TYPES.get(tensor.dtype, "fp32")
    count = math.prod(shape)
    if dtype in ("fp32", "fp16", "bf16", "fp64") and count > 16:
        return [reader.new(shape, dtype, role="parameter", name=node.name)]
    return [_Value(shape, dtype, None, _numbers(tensor, shape, dtype) if count <= _VALUE_LIMIT else None)]


def _numbers(tensor: Any, shape: tuple[int, ...], dtype: str) -> Any:
    kind = _NUMPY.get(dtype)
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


def _placeholder(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    shape = _sizes(node.attr["shape"].shape, reader.batch, node) if "shape" in node.attr else None
    if shape is None:
        declared = _declared(node, reader.batch)
        shape = declared[0] if declared else None
    if shape is None:
        raise CaptureFailed(
            f"the input {node.name!r} has open dims besides the batch; export the graph with fixed sizes"
        )
    return [reader.new(shape, _type(node, "dtype") or "fp32", role="input", name=node.name)]


def _variable(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    shape = _sizes(node.attr["shape"].shape, reader.batch, node) or ()
    dtype = _type(node, "dtype") or "fp32"
    # Moving averages and counters are kept, not trained; what an optimizer updates becomes a parameter later.
    is_state = (
        re.search(r"moving_|global_step|/Adam|/Momentum|beta\d_power|iter$|learning_rate", node.name) or not shape
    )
    return [reader.new(shape, dtype, role="buffer" if is_state else "parameter", name=node.name)]


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(size) for size in np.broadcast_shapes(*shapes))


def _pointwise(per_element: int = 1) -> Callable[[_Reader, Any, list[_Value]], list[_Value]]:
    def rule(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
        shape = _broadcast(*(value.shape for value in inputs))
        is_test = node.op in (
            "Equal",
            "NotEqual",
            "Less",
            "LessEqual",
            "Greater",
            "GreaterEqual",
            "LogicalAnd",
            "LogicalOr",
        )
        dtype = "bool" if is_test else _type(node, "DstT") or inputs[-1].dtype
        output = reader.new(shape, dtype)
        function = re.sub(r"(?<!^)(?=[A-Z])", "_", node.op).lower()
        if node.op == "Cast":
            reader.emit(node, "copy", 0.0, {"function": "cast", "numel": output.numel}, inputs, [output])
        else:
            attrs: dict[str, Attr] = {"function": function, "numel": output.numel, "num_inputs": len(inputs)}
            reader.emit(node, "elementwise", float(per_element * output.numel), attrs, inputs, [output])
        return [output]

    return rule


def _matmul(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    left, right = inputs[:2]
    first, second = _flag(node, "transpose_a", "adj_x"), _flag(node, "transpose_b", "adj_y")
    m, k = (left.shape[-1], left.shape[-2]) if first else left.shape[-2:]
    n = right.shape[-2] if second else right.shape[-1]
    lead = _broadcast(left.shape[:-2], right.shape[:-2])
    output = reader.new((*lead, m, n), left.dtype)
    batch = math.prod(lead)
    attrs: dict[str, Attr] = {
        "batch": batch, "m": m, "n": n, "k": k, "layout": "nt" if first else "tn" if second else "nn",
    }  # fmt: skip
    reader.emit(node, "matmul", 2.0 * batch * m * n * k, attrs, inputs, [output])
    return [output]


def _spatial(node: Any, values: Sequence[int]) -> list[int]:
    return list(values[2:]) if _text(node, "data_format", "NHWC") == "NCHW" else list(values[1:-1])


def _channels(node: Any, shape: Sequence[int]) -> int:
    return shape[1] if _text(node, "data_format", "NHWC") == "NCHW" else shape[-1]


def _conv_sizes(node: Any, size: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int]]:
    stride = _spatial(node, _ints(node, "strides", [1, 1, 1, 1]))
    dilation = _spatial(node, _ints(node, "dilations", [1, 1, 1, 1]))
    padding = _text(node, "padding", "SAME")
    if padding == "EXPLICIT":
        amounts = _ints(node, "explicit_paddings", [0] * 8)
        pairs = _spatial(node, [a + b for a, b in zip(amounts[::2], amounts[1::2], strict=True)])
        size = [n + p for n, p in zip(size, pairs, strict=True)]
    if padding == "SAME":
        return [math.ceil(n / s) for n, s in zip(size, stride, strict=True)], stride
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    return [(n - r) // s + 1 for n, r, s in zip(size, reach, stride, strict=True)], stride


def _shaped(node: Any, batch: int, size: Sequence[int], channels: int) -> tuple[int, ...]:
    if _text(node, "data_format", "NHWC") == "NCHW":
        return (batch, channels, *size)
    return (batch, *size, channels)


def _conv(role: str, *, depthwise: bool = False) -> Callable[[_Reader, Any, list[_Value]], list[_Value]]:
    """Conv2D and its two gradients. A filter is (height, width, in, out), or (height, width, in, multiplier)."""

    def rule(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
        if role == "forward":
            data_shape, filter_shape = inputs[0].shape, inputs[1].shape
        elif role == "grad_input":
            data_shape, filter_shape = _known(node, inputs[0]), inputs[1].shape
        else:
            data_shape, filter_shape = inputs[0].shape, _known(node, inputs[1])
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
        reader.emit(node, "conv", flop, attrs, inputs, [output])
        return [output]

    return rule


def _known(node: Any, value: _Value) -> tuple[int, ...]:
    if value.numbers is None:
        raise CaptureFailed(f"node {node.name!r} ({node.op}) takes a shape that cannot be computed from the file")
    return tuple(int(number) for number in np.asarray(value.numbers).reshape(-1))


def _bias_add(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    output = reader.new(inputs[0].shape, inputs[0].dtype)
    attrs: dict[str, Attr] = {"function": "bias_add", "numel": output.numel, "num_inputs": 2}
    reader.emit(node, "elementwise", float(output.numel), attrs, inputs, [output])
    return [output]


def _bias_gradient(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    channels = _channels(node, inputs[0].shape)
    output = reader.new((channels,), inputs[0].dtype)
    attrs: dict[str, Attr] = {"function": "sum", "rows": channels, "cols": inputs[0].numel // channels}
    reader.emit(node, "reduce", float(inputs[0].numel), attrs, inputs, [output])
    return [output]


def _batch_norm(*, backward: bool) -> Callable[[_Reader, Any, list[_Value]], list[_Value]]:
    def rule(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
        data = inputs[1] if backward else inputs[0]
        channels = _channels(node, data.shape)
        output = reader.new(data.shape, data.dtype)
        rest = [reader.new((channels,), "fp32") for _ in range(2 if backward else 5)]
        attrs: dict[str, Attr] = {"function": "batch_norm", "rows": channels, "cols": data.numel // channels}
        written = [output, *rest[:2]]
        reader.emit(node, "norm", float((12 if backward else 8) * data.numel), attrs, inputs, written)
        return [output, *rest, *rest[:2]]

    return rule


def _pool(function: str, *, backward: bool) -> Callable[[_Reader, Any, list[_Value]], list[_Value]]:
    def rule(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
        kernel = _spatial(node, _ints(node, "ksize", [1, 1, 1, 1]))
        if backward:
            shape = inputs[0].shape if function == "max" else _known(node, inputs[0])
            output = reader.new(shape, inputs[-1].dtype)
            numel = inputs[-1].numel
        else:
            data = inputs[0]
            size, _ = _conv_sizes(node, _spatial(node, data.shape), kernel)
            output = reader.new(_shaped(node, data.shape[0], size, _channels(node, data.shape)), data.dtype)
            numel = output.numel
        attrs: dict[str, Attr] = {"function": function, "numel": numel, "kernel": "x".join(str(k) for k in kernel)}
        reader.emit(node, "pool", float(numel * math.prod(kernel)), attrs, inputs, [output])
        return [output]

    return rule


def _reduce(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    data = inputs[0]
    axes = {int(axis) % max(1, len(data.shape)) for axis in _known(node, inputs[1])} if len(inputs) > 1 else set()
    if node.op == "L2Loss":
        axes = set(range(len(data.shape)))
    keep = _flag(node, "keep_dims")
    shape = [1 if axis in axes else size for axis, size in enumerate(data.shape) if keep or axis not in axes]
    dtype = (_type(node, "output_type") or "int64") if node.op in ("ArgMax", "ArgMin") else data.dtype
    output = reader.new(shape, dtype)
    rows = max(1, output.numel)
    attrs: dict[str, Attr] = {"function": node.op.lower(), "rows": rows, "cols": data.numel // rows}
    reader.emit(node, "reduce", float(data.numel), attrs, [data], [output])
    return [output]


def _softmax(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    data = inputs[0]
    output = reader.new(data.shape, data.dtype)
    columns = data.shape[-1]
    reader.emit(node, "softmax", 5.0 * data.numel, {"rows": data.numel // columns, "cols": columns}, [data], [output])
    return [output]


def _cross_entropy(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    """Loss and gradient come out of one kernel."""
    data = inputs[0]
    rows, columns = data.shape
    loss, gradient = reader.new((rows,), data.dtype), reader.new(data.shape, data.dtype)
    reader.emit(node, "softmax", 7.0 * data.numel, {"rows": rows, "cols": columns}, inputs, [loss, gradient])
    return [loss, gradient]


def _reshape(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    data = inputs[0]
    if node.op == "Reshape":
        shape = list(_known(node, inputs[1]))
        if -1 in shape:
            rest = math.prod(size for size in shape if size != -1)
            shape[shape.index(-1)] = data.numel // max(1, rest)
    elif node.op == "ExpandDims":
        shape = list(data.shape)
        axis = _known(node, inputs[1])[0]
        shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 1)
    else:
        axes = {axis % len(data.shape) for axis in _ints(node, "squeeze_dims", [])}
        shape = [s for axis, s in enumerate(data.shape) if not (axis in axes if axes else s == 1)]
    return [replace(data, shape=tuple(int(size) for size in shape))]


def _move(
    shape_of: Callable[[Any, list[_Value]], Sequence[int]],
) -> Callable[[_Reader, Any, list[_Value]], list[_Value]]:
    def rule(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
        data = [value for value in inputs if value.index is not None] or inputs[:1]
        output = reader.new(shape_of(node, inputs), data[0].dtype)
        attrs: dict[str, Attr] = {"function": node.op.lower(), "numel": output.numel}
        size = sum(reader.tensors[value.index].num_bytes for value in data if value.index is not None)
        written = reader.tensors[output.index or 0].num_bytes
        reader.emit(node, "copy", 0.0, attrs, data, [output], bytes_read=min(size, written) if len(data) == 1 else size)
        return [output]

    return rule


def _concatenated(node: Any, inputs: list[_Value]) -> list[int]:
    parts = inputs[:-1] if node.op == "ConcatV2" else inputs[1:]
    axis = _known(node, inputs[-1] if node.op == "ConcatV2" else inputs[0])[0] % len(parts[0].shape)
    shape = list(parts[0].shape)
    shape[axis] = sum(value.shape[axis] for value in parts)
    return shape


def _packed(node: Any, inputs: list[_Value]) -> list[int]:
    shape = list(inputs[0].shape)
    axis = node.attr["axis"].i
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, len(inputs))
    return shape


def _padded(node: Any, inputs: list[_Value]) -> list[int]:
    amounts = np.asarray(inputs[1].numbers)
    return [int(n + before + after) for n, (before, after) in zip(inputs[0].shape, amounts, strict=True)]


def _sliced(node: Any, inputs: list[_Value]) -> list[int]:
    begin, size = _known(node, inputs[1]), _known(node, inputs[2])
    return [n - b if s == -1 else s for n, b, s in zip(inputs[0].shape, begin, size, strict=True)]


def _strided_indices(node: Any, inputs: list[_Value]) -> tuple[Any, ...]:
    begin, end, stride = (_known(node, value) for value in inputs[1:4])
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


def _strided(node: Any, inputs: list[_Value]) -> Sequence[int]:
    pattern = np.broadcast_to(np.int8(0), inputs[0].shape)
    return list(pattern[_strided_indices(node, inputs)].shape)


def _split(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    axis, data = (inputs[0], inputs[1]) if node.op == "Split" else (inputs[2], inputs[0])
    place = _known(node, axis)[0] % len(data.shape)
    count = int(node.attr["num_split"].i)
    sizes = [data.shape[place] // count] * count if node.op == "Split" else list(_known(node, inputs[1]))
    outputs = [reader.new((*data.shape[:place], size, *data.shape[place + 1 :]), data.dtype) for size in sizes]
    reader.emit(node, "copy", 0.0, {"function": "split", "numel": data.numel}, [data], outputs)
    return outputs


def _gather(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    table, indices = inputs[:2]
    axis = _known(node, inputs[2])[0] % len(table.shape) if len(inputs) > 2 else 0
    output = reader.new((*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]), table.dtype)
    size = reader.tensors[output.index or 0].num_bytes + indices.numel * 4
    if len(table.shape) == 2 and axis == 0:
        attrs: dict[str, Attr] = {"rows": indices.numel, "cols": table.shape[1], "vocab": table.shape[0]}
        reader.emit(node, "embedding", 0.0, attrs, [table, indices], [output], bytes_read=size)
    else:
        attrs = {"function": "gather", "numel": output.numel}
        reader.emit(node, "index", 0.0, attrs, [table, indices], [output], bytes_read=size)
    return [output]


def _segment_sum(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    count = _known(node, inputs[2])[0]
    trailing = inputs[0].shape[len(inputs[1].shape) :]
    output = reader.new((count, *trailing), inputs[0].dtype)
    attrs: dict[str, Attr] = {"rows": inputs[1].numel, "cols": math.prod(trailing), "vocab": count}
    reader.emit(node, "embedding", float(inputs[0].numel), attrs, inputs[:2], [output])
    return [output]


def _fill(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    is_like = node.op in ("ZerosLike", "OnesLike")
    shape = inputs[0].shape if is_like else _known(node, inputs[0])
    output = reader.new(shape, inputs[0 if is_like else -1].dtype)
    reader.emit(node, "copy", 0.0, {"function": "fill", "numel": output.numel}, [], [output])
    return [output]


def _random(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    output = reader.new(_known(node, inputs[0]), _type(node, "dtype") or "fp32")
    reader.emit(node, "random", float(output.numel), {"numel": output.numel}, [], [output])
    return [output]


def _one_hot(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    output = reader.new((*inputs[0].shape, _known(node, inputs[1])[0]), inputs[-1].dtype)
    reader.emit(node, "index", 0.0, {"function": "one_hot", "numel": output.numel}, inputs[:1], [output])
    return [output]


def _add_all(reader: _Reader, node: Any, inputs: list[_Value]) -> list[_Value]:
    output = reader.new(inputs[0].shape, inputs[0].dtype)
    attrs: dict[str, Attr] = {"function": "add_n", "numel": output.numel, "num_inputs": len(inputs)}
    reader.emit(node, "elementwise", float(output.numel * max(1, len(inputs) - 1)), attrs, inputs, [output])
    return [output]


def _compute(node: Any, inputs: list[_Value]) -> list[_Value] | None:
    """Shapes and small constants, as numbers."""
    if node.op == "Shape":
        return [_Value((len(inputs[0].shape),), "int32", None, np.array(inputs[0].shape, dtype=np.int32))]
    if node.op == "ShapeN":
        return [_Value((len(v.shape),), "int32", None, np.array(v.shape, dtype=np.int32)) for v in inputs]
    if node.op in ("Size", "Rank"):
        number = inputs[0].numel if node.op == "Size" else len(inputs[0].shape)
        return [_Value((), "int32", None, np.int32(number))]
    if node.op == "BroadcastGradientArgs" and all(v.numbers is not None for v in inputs):
        return _broadcast_axes(*(tuple(int(n) for n in v.numbers) for v in inputs))
    function = _ON_NUMBERS.get(node.op)
    if function is None or not inputs or any(value.numbers is None for value in inputs):
        return None
    results = function(node, [np.asarray(value.numbers) for value in inputs], inputs)
    results = results if isinstance(results, list) else [results]
    if any(np.size(result) > _VALUE_LIMIT for result in results):
        return None
    dtype = _type(node, "DstT") or inputs[0].dtype
    return [_Value(np.shape(result), dtype, None, np.asarray(result)) for result in results]


def _broadcast_axes(first: tuple[int, ...], second: tuple[int, ...]) -> list[_Value]:
    rank = max(len(first), len(second))
    padded = [(1,) * (rank - len(shape)) + shape for shape in (first, second)]
    answers = []
    for mine, other in (padded, padded[::-1]):
        axes = [axis for axis in range(rank) if mine[axis] == 1 and (other[axis] != 1)]
        answers.append(_Value((len(axes),), "int32", None, np.array(axes, dtype=np.int32)))
    return answers


def _stitch(node: Any, arrays: list[Any], inputs: list[_Value]) -> Any:
    half = len(arrays) // 2
    size = max(int(np.max(indices)) for indices in arrays[:half] if indices.size) + 1
    merged = np.zeros((size, *arrays[half].shape[arrays[0].ndim :]), dtype=arrays[half].dtype)
    for indices, data in zip(arrays[:half], arrays[half:], strict=True):
        merged[indices.reshape(-1)] = data.reshape(-1, *merged.shape[1:])
    return merged


_ON_NUMBERS: dict[str, Callable[[Any, list[Any], list[_Value]], Any]] = {
    "StridedSlice": lambda node, arrays, inputs: arrays[0][_strided_indices(node, inputs)],
    "Pack": lambda node, arrays, inputs: np.stack(arrays, int(node.attr["axis"].i)),
    "Unpack": lambda node, arrays, inputs: list(np.moveaxis(arrays[0], int(node.attr["axis"].i), 0)),
    "ConcatV2": lambda node, arrays, inputs: np.concatenate(arrays[:-1], int(arrays[-1])),
    "Prod": lambda node, arrays, inputs: np.prod(
        arrays[0], axis=tuple(arrays[1].reshape(-1)), keepdims=_flag(node, "keep_dims")
    ),
    "Sum": lambda node, arrays, inputs: np.sum(
        arrays[0], axis=tuple(arrays[1].reshape(-1)), keepdims=_flag(node, "keep_dims")
    ),
    "Mul": lambda node, arrays, inputs: arrays[0] * arrays[1],
    "Add": lambda node, arrays, inputs: arrays[0] + arrays[1],
    "AddV2": lambda node, arrays, inputs: arrays[0] + arrays[1],
    "Sub": lambda node, arrays, inputs: arrays[0] - arrays[1],
    "FloorDiv": lambda node, arrays, inputs: arrays[0] // np.maximum(arrays[1], 1),
    "FloorMod": lambda node, arrays, inputs: arrays[0] % np.maximum(arrays[1], 1),
    "RealDiv": lambda node, arrays, inputs: arrays[0] / arrays[1],
    "Maximum": lambda node, arrays, inputs: np.maximum(arrays[0], arrays[1]),
    "Minimum": lambda node, arrays, inputs: np.minimum(arrays[0], arrays[1]),
    "Neg": lambda node, arrays, inputs: -arrays[0],
    "Cast": lambda node, arrays, inputs: arrays[0].astype(_NUMPY.get(_type(node, "DstT") or "int32", np.int32)),
    "Reshape": lambda node, arrays, inputs: arrays[0].reshape(arrays[1]),
    "ExpandDims": lambda node, arrays, inputs: np.expand_dims(arrays[0], int(arrays[1])),
    "Squeeze": lambda node, arrays, inputs: np.squeeze(arrays[0]),
    "Range": lambda node, arrays, inputs: np.arange(int(arrays[0]), int(arrays[1]), int(arrays[2])),
    "Fill": lambda node, arrays, inputs: (
        np.full(arrays[0], arrays[1]) if np.prod(arrays[0]) <= 1024 else np.zeros(2 * _VALUE_LIMIT)
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


_Rule = Callable[[_Reader, Any, list[_Value]], list[_Value]]


def _table(names: str, rule: _Rule) -> dict[str, _Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: dict[str, _Rule] = {
    "Const": _constant,
    **_table("Placeholder", _placeholder),
    **_table("VariableV2 Variable VarHandleOp", _variable),
    **_table("MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3", _matmul),
    **_table("Conv2D", _conv("forward")),
    **_table("Conv2DBackpropInput", _conv("grad_input")),
    **_table("Conv2DBackpropFilter", _conv("grad_weight")),
    **_table("DepthwiseConv2dNative", _conv("forward", depthwise=True)),
    **_table("DepthwiseConv2dNativeBackpropInput", _conv("grad_input", depthwise=True)),
    **_table("DepthwiseConv2dNativeBackpropFilter", _conv("grad_weight", depthwise=True)),
    **_table("BiasAdd", _bias_add),
    **_table("BiasAddGrad", _bias_gradient),
    **_table("FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3", _batch_norm(backward=False)),
    **_table("FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3", _batch_norm(backward=True)),
    **_table("MaxPool", _pool("max", backward=False)),
    **_table("MaxPoolGrad", _pool("max", backward=True)),
    **_table("AvgPool", _pool("avg", backward=False)),
    **_table("AvgPoolGrad", _pool("avg", backward=True)),
    **_table(
        "Add AddV2 Sub Mul RealDiv Div DivNoNan Maximum Minimum SquaredDifference Neg Abs Sign Square Floor Ceil Round FloorDiv "
        "FloorMod Relu Relu6 ReluGrad Relu6Grad LeakyRelu LeakyReluGrad Cast Equal NotEqual Less LessEqual Greater GreaterEqual "
        "LogicalAnd LogicalOr LogicalNot Select SelectV2 Reciprocal ClipByValue",
        _pointwise(),
    ),
    **_table(
        "Exp Log Log1p Expm1 Tanh TanhGrad Sigmoid SigmoidGrad Sqrt SqrtGrad Rsqrt RsqrtGrad Pow Erf Elu EluGrad Selu Softplus "
        "SoftplusGrad Sin Cos",
        _pointwise(4),
    ),
    "AddN": _add_all,
    **_table("Mean Sum Max Min Prod All Any ArgMax ArgMin L2Loss EuclideanNorm", _reduce),
    **_table("Softmax LogSoftmax", _softmax),
    **_table("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits", _cross_entropy),
    **_table("Reshape ExpandDims Squeeze", _reshape),
    "Transpose": _move(lambda node, inputs: [inputs[0].shape[axis] for axis in _known(node, inputs[1])]),
    **_table("ConcatV2 Concat", _move(_concatenated)),
    "Pack": _move(_packed),
    **_table("Pad PadV2 MirrorPad", _move(_padded)),
    "Slice": _move(_sliced),
    "StridedSlice": _move(_strided),
    "StridedSliceGrad": _move(lambda node, inputs: _known(node, inputs[0])),
    "Tile": _move(lambda node, inputs: [n * t for n, t in zip(inputs[0].shape, _known(node, inputs[1]), strict=True)]),
    "BroadcastTo": _move(lambda node, inputs: _known(node, inputs[1])),
    **_table("Split SplitV", _split),
    **_table("Gather GatherV2 ResourceGather", _gather),
    **_table("UnsortedSegmentSum", _segment_sum),
    **_table("Fill ZerosLike OnesLike", _fill),
    **_table("RandomUniform RandomStandardNormal TruncatedNormal", _random),
    "OneHot": _one_hot,
}
"""Every TensorFlow operation that becomes work, or a tensor."""
