"""One recorded aten call to the work it means: kind, attributes, FLOP and the bytes its kernel touches.

FLOP conventions: a multiply-add counts two (a bias added inside a product is not counted); a pointwise operation one per
output element, or `TRANSCENDENTAL_FLOP` where it evaluates exp, log, tanh, erf and the like; softmax 5 per element forward and
4 backward; normalisation 8 and 12; operations that only move data count zero. An operation without a rule is of kind "other"
and has no FLOP at all.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from traincast.spec import Attr

DTYPES: dict[Any, str] = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8", torch.float8_e4m3fnuz: "fp8", torch.float8_e5m2fnuz: "fp8",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
    torch.uint16: "int16", torch.uint32: "int32", torch.uint64: "int64", torch.bool: "bool",
    torch.complex64: "complex64", torch.complex128: "complex128",
}  # fmt: skip

TRANSCENDENTAL_FLOP = 4
_TRANSCENDENTAL_NAMES = """
    exp exp2 expm1 log log1p log2 log10 tanh sigmoid gelu silu mish erf erfc erfinv sqrt rsqrt pow sin cos tan sinh cosh atan
    atan2 asin acos asinh acosh atanh softplus elu digamma lgamma logaddexp logit log_sigmoid_forward
"""
_TRANSCENDENTAL = frozenset(_TRANSCENDENTAL_NAMES.split())

CAUSAL_DENSITY = 0.55
"""Masks that keep at most this share of the square are priced like causal ones."""


@dataclass(frozen=True, slots=True)
class Call:
    """An aten call with its arguments by name and its tensors flat."""

    name: str
    arguments: dict[str, Any]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    pointwise: bool
    mutates: bool

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.arguments.get(name, default)


@dataclass(frozen=True, slots=True)
class Work:
    """What one kernel does. `reads` and `writes` are the tensors it touches."""

    kind: str
    flop: float | None
    bytes_read: float
    bytes_written: float
    attrs: dict[str, Attr]
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    num_kernels: int = 1
    suffix: str = ""
    dtype: str = field(default="")


Rule = Callable[[Call], "list[Work] | Work | float"]
"""What a call means: its kernels, or the FLOP of a single one that touches its inputs and outputs."""


def work(call: Call, kind: str, flop: float | None, attrs: dict[str, Attr], **options: Any) -> Work:
    """One kernel of a call; by default it reads all inputs and writes all outputs."""
    return _work(call, kind, flop, attrs, **options)


def _applied(rule: Rule, call: Call) -> list[Work]:
    meant = rule(call)
    if isinstance(meant, list):
        return meant
    return [meant] if isinstance(meant, Work) else [_work(call, "other", float(meant), {})]


def describe(call: Call, rules: Mapping[str, Rule] | None = None) -> list[Work]:
    """The kernels that one call launches, almost always one. `rules` come before those of this module."""
    given = (rules or {}).get(call.name)
    if given is not None:
        return _applied(given, call)
    rule = RULES.get(call.name)
    if rule is not None:
        return rule(call)
    # Forward-mode differentiation runs some operations by their reference implementations.
    stem = call.name.rstrip("_").replace("prims.", "aten.")
    rule = RULES.get(_SPELLINGS.get(stem, stem))
    if rule is not None:
        return rule(call)
    if call.pointwise or stem in _POINTWISE_WITHOUT_TAG:
        return [_elementwise(call)]
    return [_work(call, "other", None, {})]


def touched_bytes(tensor: Any) -> float:
    """Bytes behind a view: an expanded dim is one element wide, and no view holds more than its storage."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride != 0:
            count *= size
        elif size == 0:
            count = 0
    return float(min(count * tensor.element_size(), tensor.untyped_storage().nbytes()))


def dtype_name(tensor: Any) -> str:
    return DTYPES.get(tensor.dtype, "fp32")


def _sum_bytes(tensors: Iterable[Any]) -> float:
    seen: set[tuple[Any, ...]] = set()
    total = 0.0
    for tensor in tensors:
        key = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        if key not in seen:
            seen.add(key)
            total += touched_bytes(tensor)
    return total


def _work(
    call: Call, kind: str, flop: float | None, attrs: dict[str, Attr], *, reads: Sequence[Any] | None = None,
    writes: Sequence[Any] | None = None, bytes_read: float | None = None, bytes_written: float | None = None,
    num_kernels: int = 1, suffix: str = "",
) -> Work:  # fmt: skip
    read = tuple(call.inputs if reads is None else [tensor for tensor in reads if tensor is not None])
    written = tuple(call.outputs if writes is None else [tensor for tensor in writes if tensor is not None])
    return Work(
        kind=kind, flop=None if flop is None else float(flop),
        bytes_read=_sum_bytes(read) if bytes_read is None else float(bytes_read),
        bytes_written=_sum_bytes(written) if bytes_written is None else float(bytes_written), attrs=attrs, reads=read,
        writes=written, num_kernels=num_kernels, suffix=suffix,
    )  # fmt: skip


def _plain(call: Call) -> str:
    return call.name.removeprefix("aten.").strip("_")


def _numel(tensors: Sequence[Any]) -> int:
    return max((tensor.numel() for tensor in tensors), default=0)


def _elementwise(call: Call) -> Work:
    function = _plain(call)
    numel = _numel(call.outputs)
    per_element = TRANSCENDENTAL_FLOP if function.removesuffix("_backward") in _TRANSCENDENTAL else 1
    return _work(
        call,
        "elementwise",
        per_element * numel,
        {"function": function, "numel": numel, "num_inputs": len(call.inputs)},
    )


# matmul


def _is_transposed(matrix: Any) -> bool:
    rows, columns = matrix.stride()[-2:]
    return bool(rows == 1 and columns != 1 and matrix.shape[-1] > 1)


def _layout(first: Any, second: Any) -> str:
    if first.dim() >= 2 and _is_transposed(first):
        return "nt"
    return "tn" if second.dim() >= 2 and _is_transposed(second) else "nn"


def matmul_attrs(*, batch: int, m: int, n: int, k: int, layout: str = "nn") -> dict[str, Attr]:
    return {"batch": batch, "m": m, "n": n, "k": k, "layout": layout}


def _matmul(first: str, second: str) -> Callable[[Call], list[Work]]:
    def rule(call: Call) -> list[Work]:
        a, b = call[first], call[second]
        batch = a.shape[0] if a.dim() == 3 else 1
        m = a.shape[-2] if a.dim() >= 2 else 1
        n = b.shape[-1] if b.dim() >= 2 else 1
        k = a.shape[-1]
        return [
            _work(call, "matmul", 2 * batch * m * n * k, matmul_attrs(batch=batch, m=m, n=n, k=k, layout=_layout(a, b)))
        ]

    return rule


def _grouped_matmul(call: Call) -> list[Work]:
    a, b = call.inputs[0], call.inputs[1]
    # Either operand may be ragged: rows of a by group (forward), or the shared dim k by group (weight gradient).
    groups = b.shape[0] if b.dim() == 3 else a.shape[0] if a.dim() == 3 else call.outputs[0].shape[0]
    if a.dim() == 2 and b.dim() == 2:
        m, n, k = a.shape[0], b.shape[1], max(1, a.shape[1] // groups)
        flop = 2 * m * n * a.shape[1]
    elif a.dim() == 2:
        m, n, k = max(1, a.shape[0] // groups), b.shape[-1], a.shape[1]
        flop = 2 * a.shape[0] * n * k
    else:
        m, n, k = a.shape[-2], max(1, b.shape[-1] // (1 if b.dim() == 3 else groups)), a.shape[-1]
        flop = 2 * m * k * b.shape[-1] * (groups if b.dim() == 3 else 1)
    return [_work(call, "matmul", flop, matmul_attrs(batch=groups, m=m, n=n, k=k, layout=_layout(a, b)))]


def _dot(call: Call) -> list[Work]:
    k = call.inputs[0].numel()
    return [_work(call, "matmul", 2 * k, matmul_attrs(batch=1, m=1, n=1, k=k))]


def _cdist(call: Call) -> list[Work]:
    a, b = call.inputs[0], call.inputs[1]
    batch = math.prod(a.shape[:-2])
    m, n, k = a.shape[-2], b.shape[-2], a.shape[-1]
    return [_work(call, "matmul", 3 * batch * m * n * k, matmul_attrs(batch=batch, m=m, n=n, k=k, layout="tn"))]


def _kernel(call: Call) -> Work:
    return _work(call, "other", float(call["flop"]), {"function": str(call["name"])})


# attention


def attention_flop(
    *, batch: int, heads: int, q_len: int, kv_len: int, head_dim: int, value_dim: int, causal: bool
) -> float:
    """Two products forward; a causal mask leaves half of the square (the tiles above the diagonal are skipped)."""
    full = 2.0 * batch * heads * q_len * kv_len * (head_dim + value_dim)
    return full / 2 if causal else full


def _attention(factor: float, *, num_kernels: int = 1) -> Callable[[Call], list[Work]]:
    def rule(call: Call) -> list[Work]:
        query, key, value = call["query"], call["key"], call["value"]
        batch, heads, q_len, head_dim = query.shape
        kv_heads, kv_len, value_dim = key.shape[1], key.shape[2], value.shape[3]
        causal = bool(call.get("is_causal", False))
        flop = factor * attention_flop(
            batch=batch, heads=heads, q_len=q_len, kv_len=kv_len, head_dim=head_dim, value_dim=value_dim, causal=causal
        )
        density = float(call.get("density", 1.0))
        attrs: dict[str, Attr] = {
            "batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
            "head_dim": head_dim, "causal": causal,
        }  # fmt: skip
        if density < 1.0:
            # A sparse mask is skipped tile by tile, as the upper half of a causal one is.
            flop *= density
            attrs |= {"causal": density <= CAUSAL_DENSITY, "density": density}
        return [_work(call, "attention", flop, attrs, num_kernels=num_kernels)]

    return rule


# convolution


def conv_work(
    *, pass_: str, batch: int, in_channels: int, out_channels: int, groups: int, in_size: Sequence[int],
    out_size: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
) -> tuple[float, dict[str, Attr]]:  # fmt: skip
    """FLOP and attributes of one pass; all three passes do the same multiply-adds."""
    flop = 2.0 * batch * math.prod(out_size) * math.prod(kernel) * in_channels * out_channels / groups
    attrs: dict[str, Attr] = {
        "batch": batch, "in_channels": in_channels, "out_channels": out_channels, "groups": groups,
        "in_size": written_size(in_size), "out_size": written_size(out_size), "kernel": written_size(kernel),
        "stride": written_size(stride), "pass": pass_,
    }  # fmt: skip
    return flop, attrs


def written_size(sizes: Sequence[int]) -> str:
    return "x".join(str(int(size)) for size in sizes) or "1"


def _spatial(value: Any, dims: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 and dims > 1 else values


def _convolution(call: Call) -> list[Work]:
    data, weight = call["input"], call["weight"]
    flop, attrs = _conv_shape(call, data, weight, call.outputs[0], role="forward")
    return [_work(call, "conv", flop, attrs)]


def is_channels_last(*tensors: Any) -> bool:
    """As the library decides it: one operand with neighbouring channels is enough, if that is not the plain order too."""
    return any(
        tensor.dim() in (4, 5)
        and tensor.is_contiguous(memory_format=torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d)
        and not tensor.is_contiguous()
        for tensor in tensors
    )


def _conv_shape(call: Call, data: Any, weight: Any, output: Any, *, role: str) -> tuple[float, dict[str, Attr]]:
    flop, attrs = _conv_sizes(call, data, weight, output, role=role)
    return flop, {**attrs, "channels_last": True} if is_channels_last(data, weight) else attrs


def _conv_sizes(call: Call, data: Any, weight: Any, output: Any, *, role: str) -> tuple[float, dict[str, Attr]]:
    dims = weight.dim() - 2
    batch = data.shape[0] if data.dim() == weight.dim() else 1
    groups = int(call["groups"])
    in_size, out_size = list(data.shape[-dims:]), list(output.shape[-dims:])
    stride = _spatial(call["stride"], dims)
    kernel = list(weight.shape[2:])
    if call.get("transposed", False):
        # A transposed convolution runs the input-gradient kernel of the convolution it mirrors, and the reverse.
        mirrored = {"forward": "grad_input", "grad_input": "forward", "grad_weight": "grad_weight"}[role]
        return conv_work(
            pass_=mirrored, batch=batch, in_channels=weight.shape[1] * groups, out_channels=weight.shape[0], groups=groups,
            in_size=out_size, out_size=in_size, kernel=kernel, stride=stride,
        )  # fmt: skip
    return conv_work(
        pass_=role, batch=batch, in_channels=weight.shape[1] * groups, out_channels=weight.shape[0], groups=groups,
        in_size=in_size, out_size=out_size, kernel=kernel, stride=stride,
    )  # fmt: skip


def _convolution_backward(call: Call) -> list[Work]:
    gradient, data, weight = call["grad_output"], call["input"], call["weight"]
    wanted = list(call["output_mask"])
    outputs = iter(call.outputs)
    grad_input, grad_weight, grad_bias = (next(outputs) if flag else None for flag in wanted)
    works = []
    if grad_input is not None:
        flop, attrs = _conv_shape(call, data, weight, gradient, role="grad_input")
        works.append(
            _work(call, "conv", flop, attrs, reads=[gradient, weight], writes=[grad_input], suffix=".grad_input")
        )
    if grad_weight is not None:
        flop, attrs = _conv_shape(call, data, weight, gradient, role="grad_weight")
        works.append(
            _work(call, "conv", flop, attrs, reads=[gradient, data], writes=[grad_weight], suffix=".grad_weight")
        )
    if grad_bias is not None:
        rows = grad_bias.numel()
        works.append(
            _work(
                call, "reduce", gradient.numel(), {"function": "sum", "rows": rows, "cols": gradient.numel() // max(rows, 1)},
                reads=[gradient], writes=[grad_bias], suffix=".grad_bias",
            )
        )  # fmt: skip
    return works


# rows: softmax, norm, reduce


def _rows_and_columns(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, int]:
    columns = math.prod(shape[dim] for dim in dims) if shape else 1
    return (math.prod(shape) // columns if columns else 0), columns


def _softmax(per_element: int) -> Callable[[Call], list[Work]]:
    def rule(call: Call) -> list[Work]:
        data = call.inputs[0]
        rows, columns = _rows_and_columns(data.shape, [int(call["dim"])] if data.dim() else [])
        return [_work(call, "softmax", per_element * data.numel(), {"rows": rows, "cols": columns})]

    return rule


def _norm(function: str, per_element: int, *, num_kernels: int = 1) -> Callable[[Call], list[Work]]:
    def rule(call: Call) -> list[Work]:
        data = call["input"] if "input" in call.arguments else call.inputs[0]
        shape = list(data.shape)
        if function == "batch_norm":
            rows = shape[1] if len(shape) > 1 else 1
        elif function == "group_norm":
            rows = int(call["N"]) * int(call["group"])
        else:
            normalized = call.get("normalized_shape")
            rows = data.numel() // max(1, math.prod(normalized)) if normalized is not None else math.prod(shape[:-1])
        columns = data.numel() // max(rows, 1)
        attrs: dict[str, Attr] = {"function": function, "rows": rows, "cols": columns}
        return [_work(call, "norm", per_element * data.numel(), attrs, num_kernels=num_kernels)]

    return rule


def _weight_norm(per_element: int) -> Callable[[Call], list[Work]]:
    def rule(call: Call) -> list[Work]:
        numel = _numel(call.inputs)
        rows = max(1, min(tensor.numel() for tensor in call.inputs))
        attrs: dict[str, Attr] = {"function": "weight_norm", "rows": rows, "cols": numel // rows}
        return [_work(call, "norm", per_element * numel, attrs)]

    return rule


def _reduce(call: Call) -> list[Work]:
    data = next((tensor for tensor in call.inputs if tensor.numel() > 1), call.inputs[0])
    numel = data.numel()
    rows = min(numel, max((output.numel() for output in call.outputs), default=1)) or 1
    attrs: dict[str, Attr] = {"function": _plain(call), "rows": rows, "cols": numel // rows}
    return [_work(call, "reduce", numel, attrs)]


def _scan(call: Call) -> list[Work]:
    data = call.inputs[0]
    columns = data.shape[int(call["dim"])] if data.dim() else 1
    rows = data.numel() // max(columns, 1)
    return [_work(call, "reduce", data.numel(), {"function": _plain(call), "rows": rows, "cols": columns})]


def _sort(call: Call) -> list[Work]:
    data = call.inputs[0]
    columns = data.shape[int(call.get("dim", -1) or -1)] if data.dim() and "dim" in call.arguments else data.numel()
    rows = data.numel() // max(columns, 1)
    comparisons = data.numel() * max(1.0, math.log2(max(columns, 2)))
    return [_work(call, "sort", comparisons, {"rows": rows, "cols": columns})]


# rows of a table


def _embedding(call: Call) -> list[Work]:
    weight, indices = call["weight"], call["indices"]
    rows, columns, vocabulary = indices.numel(), weight.shape[1], weight.shape[0]
    read = rows * columns * weight.element_size() + touched_bytes(indices)
    attrs: dict[str, Attr] = {"rows": rows, "cols": columns, "vocab": vocabulary}
    return [_work(call, "embedding", 0, attrs, bytes_read=read)]


def _embedding_backward(call: Call) -> list[Work]:
    return _add_to_table(call, call["grad_output"])


def _add_to_table(call: Call, gradient: Any) -> list[Work]:
    """The table's gradient is cleared first, then the touched rows are read, added to and written."""
    indices, output = call["indices"], call.outputs[0]
    rows, columns, vocabulary = indices.numel(), output.shape[1], output.shape[0]
    touched_rows = min(rows, vocabulary) * columns * output.element_size()
    attrs: dict[str, Attr] = {"rows": rows, "cols": columns, "vocab": vocabulary}
    return [
        _work(
            call, "embedding", rows * columns, attrs, num_kernels=3,
            bytes_read=touched_bytes(gradient) + touched_bytes(indices) + touched_rows,
            bytes_written=touched_bytes(output) + touched_rows,
        )
    ]  # fmt: skip


def _embedding_bag(call: Call) -> list[Work]:
    weight, indices = call["weight"], call["indices"]
    rows, columns, vocabulary = indices.numel(), weight.shape[1], weight.shape[0]
    others = [tensor for tensor in call.inputs if tensor is not weight]
    read = rows * columns * weight.element_size() + _sum_bytes(others)
    attrs: dict[str, Attr] = {"rows": rows, "cols": columns, "vocab": vocabulary}
    return [_work(call, "embedding", rows * columns, attrs, bytes_read=read)]


def _embedding_bag_backward(call: Call) -> list[Work]:
    return _add_to_table(call, call["grad"])


def _gather(call: Call) -> list[Work]:
    """Reads as many elements of the table as it writes, plus the indices."""
    table, indices = call.inputs[0], call.inputs[1:]
    read = min(touched_bytes(table), _sum_bytes(call.outputs)) + _sum_bytes(indices)
    return [_work(call, "index", 0, {"function": _plain(call), "numel": _numel(call.outputs)}, bytes_read=read)]


def _scatter(*, adds: bool) -> Callable[[Call], list[Work]]:
    def rule(call: Call) -> list[Work]:
        target, sources = call.inputs[0], call.inputs[1:]
        values = [tensor for tensor in sources if tensor.dtype == target.dtype]
        moved = max((tensor.numel() for tensor in sources if tensor is not target), default=target.numel())
        if values:
            moved = max(tensor.numel() for tensor in values)
        moved_bytes = min(moved, target.numel()) * target.element_size()
        read, written = _sum_bytes(sources) + (moved_bytes if adds else 0), float(moved_bytes)
        if not call.mutates:
            read, written = read + touched_bytes(target), written + touched_bytes(target)
        return [
            _work(
                call, "index", moved if adds else 0, {"function": _plain(call), "numel": moved},
                bytes_read=read, bytes_written=written, num_kernels=1 if call.mutates else 2,
            )
        ]  # fmt: skip

    return rule


def _select_backward(call: Call) -> list[Work]:
    """Clears the whole gradient, then copies the slice in."""
    gradient = call.inputs[0]
    attrs: dict[str, Attr] = {"function": _plain(call), "numel": _numel(call.outputs)}
    written = _sum_bytes(call.outputs) + touched_bytes(gradient)
    return [_work(call, "index", 0, attrs, bytes_written=written, num_kernels=2)]


def _nll(call: Call) -> list[Work]:
    target = call["target"]
    rows = target.numel()
    backward = "backward" in call.name
    scores = call["self"]
    picked = rows * scores.element_size()
    outputs = _sum_bytes(call.outputs)
    attrs: dict[str, Attr] = {"function": _plain(call), "numel": rows}
    if backward:
        # The scores are passed for their shape: kept alive until here, but not read.
        read = picked + touched_bytes(target) + touched_bytes(call["grad_output"])
        written = outputs + picked
        return [_work(call, "index", rows, attrs, bytes_read=read, bytes_written=written, num_kernels=2)]
    return [_work(call, "index", rows, attrs, bytes_read=picked + touched_bytes(target))]


def _index(call: Call) -> list[Work]:
    return [_work(call, "index", 0, {"function": _plain(call), "numel": _numel(call.outputs)})]


# moving data


def _copy(call: Call) -> list[Work]:
    return [_work(call, "copy", 0, {"function": _plain(call), "numel": _numel(call.outputs)})]


def _overwrite(call: Call) -> list[Work]:
    """copy_(target, source): the target is not read."""
    source = call["src"]
    attrs: dict[str, Attr] = {"function": "copy", "numel": call["self"].numel()}
    return [_work(call, "copy", 0, attrs, reads=[source])]


def _fill(call: Call) -> list[Work]:
    attrs: dict[str, Attr] = {"function": "fill", "numel": _numel(call.outputs)}
    return [_work(call, "copy", 0, attrs, reads=[])]


def _to_copy(call: Call) -> list[Work]:
    source, target = call.inputs[0], call.outputs[0]
    function = "cast" if source.dtype != target.dtype else "to_copy"
    return [_work(call, "copy", 0, {"function": function, "numel": target.numel()})]


def _random(call: Call) -> list[Work]:
    numel = _numel(call.outputs)
    return [_work(call, "random", numel, {"numel": numel}, reads=[])]


def _dropout(call: Call) -> list[Work]:
    numel = call.outputs[0].numel()
    return [_work(call, "dropout", 2 * numel, {"numel": numel})]


# pooling and resizing


def _pool(function: str) -> Callable[[Call], list[Work]]:
    def rule(call: Call) -> list[Work]:
        data = call["self"] if "self" in call.arguments else call.inputs[0]
        output = call.outputs[0]
        dims = 3 if "3d" in call.name else 1 if "1d" in call.name else 2
        if "kernel_size" in call.arguments:
            kernel = _spatial(call["kernel_size"], dims)
        else:
            small, large = sorted((data.shape[-dims:], call.inputs[0].shape[-dims:]), key=math.prod)
            if "backward" not in call.name:
                small, large = output.shape[-dims:], data.shape[-dims:]
            kernel = [max(1, a // max(b, 1)) for a, b in zip(large, small, strict=True)]
        backward = "backward" in call.name
        numel = call.inputs[0].numel() if backward else output.numel()
        flop = numel if backward and function == "max" else numel * math.prod(kernel)
        attrs: dict[str, Attr] = {"function": function, "numel": numel, "kernel": written_size(kernel)}
        if backward:
            # The forward input is passed for its shape: it is kept alive until here, but not read.
            read = _sum_bytes([call["grad_output"], *(t for t in [call.get("indices")] if t is not None)])
            return [_work(call, "pool", flop, attrs, bytes_read=read)]
        return [_work(call, "pool", flop, attrs)]

    return rule


def _resize(call: Call) -> list[Work]:
    numel = _numel(call.outputs)
    per_element = 1 if "nearest" in call.name else 8
    return [_work(call, "index", per_element * numel, {"function": _plain(call), "numel": numel})]


# recurrent layers


RNN_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def rnn_flop(
    *, cell: str, steps: int, inputs: int, hidden: int, layers: int, directions: int, projected: int = 0
) -> float:
    """Gate products of every layer for `steps` (length x batch) steps of one sample."""
    output = projected or hidden
    total = 0.0
    for layer in range(layers):
        width = inputs if layer == 0 else output * directions
        total += 2.0 * steps * RNN_GATES[cell] * hidden * (width + output) * directions
        total += 2.0 * steps * hidden * projected * directions
    return total


def _rnn(factor: int) -> Callable[[Call], list[Work]]:
    def rule(call: Call) -> list[Work]:
        cell = str(call["cell"])
        data = call["input"]
        hidden, layers, directions = int(call["hidden"]), int(call["layers"]), int(call["directions"])
        length = int(call["length"])
        steps = data.numel() // max(1, data.shape[-1])
        flop = factor * rnn_flop(
            cell=cell, steps=steps, inputs=data.shape[-1], hidden=hidden, layers=layers, directions=directions,
            projected=int(call["projected"]),
        )  # fmt: skip
        attrs: dict[str, Attr] = {
            "cell": cell.removeprefix("rnn_"), "batch": max(1, steps // max(1, length)), "length": length,
            "inputs": data.shape[-1], "hidden": hidden, "layers": layers, "directions": directions,
        }  # fmt: skip
        # cuDNN reads the recurrent weights once per step; they stay in cache when small, so once is the lower bound.
        return [_work(call, "rnn", flop, attrs, num_kernels=layers * directions * (length + 1))]

    return rule


# products that are rarer


def _fft(call: Call) -> list[Work]:
    numel = max(_numel(call.inputs), _numel(call.outputs))
    sizes = [call.inputs[0].shape[dim] for dim in call["dim"]] if "dim" in call.arguments else [numel]
    return [_work(call, "other", 5 * numel * max(1.0, math.log2(max(2, math.prod(sizes)))), {})]


def _cube(factor: float) -> Callable[[Call], list[Work]]:
    """Dense linear algebra on (batches of) square-ish matrices: factor x m x n x min(m, n)."""

    def rule(call: Call) -> list[Work]:
        shape = call.inputs[0].shape
        m, n = shape[-2], shape[-1]
        return [_work(call, "other", factor * math.prod(shape[:-2]) * m * n * min(m, n), {})]

    return rule


def _loss(call: Call) -> list[Work]:
    numel = _numel(call.inputs)
    if "backward" in call.name:
        return [_elementwise(call)]
    rows = max(1, call.outputs[0].numel())
    return [_work(call, "reduce", 3 * numel, {"function": _plain(call), "rows": rows, "cols": numel // rows})]


def _bincount(call: Call) -> list[Work]:
    return [_work(call, "index", _numel(call.inputs), {"function": _plain(call), "numel": _numel(call.inputs)})]


_SPELLINGS = {"aten.to": "aten._to_copy", "aten.convert_element_type": "aten._to_copy"}
_POINTWISE_WITHOUT_TAG = frozenset(
    "aten." + name
    for name in (
        "abs", "add", "sub", "mul", "div", "neg", "exp", "log", "sqrt", "rsqrt", "pow", "tanh", "sin", "cos",
        "where", "floor_divide",
        "clamp", "clamp_min", "clamp_max", "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward",
        "threshold_backward", "hardtanh_backward", "hardswish_backward", "hardsigmoid_backward", "elu_backward",
        "leaky_relu_backward", "softplus_backward", "mish_backward", "glu", "glu_backward", "hardswish", "hardsigmoid",
        "prelu", "_prelu_kernel", "_prelu_kernel_backward", "rrelu_with_noise", "log_sigmoid_forward",
        "log_sigmoid_backward", "logit_backward", "masked_fill", "addcmul", "addcdiv", "lerp", "polar", "complex",
        "view_as_complex_copy", "isin", "_conj_physical", "frexp", "copysign", "real", "imag", "unsafe_chunk",
        "linalg_cross", "_fused_dropout", "angle", "searchsorted", "bucketize", "softshrink_backward",
        "hardshrink_backward", "huber_loss_backward", "binary_cross_entropy_backward", "_addmm_activation",
        "_thnn_fused_lstm_cell", "_amp_update_scale", "isclose", "nan_to_num", "float_power", "logaddexp", "_weight_norm",
    )
)  # fmt: skip


def _table(names: str, rule: Callable[[Call], list[Work]]) -> dict[str, Callable[[Call], list[Work]]]:
    return {"aten." + name: rule for name in names.split()}


RULES: dict[str, Callable[[Call], list[Work]]] = {
    **_table("mm _int_mm bmm", _matmul("self", "mat2")),
    **_table("_scaled_mm", _matmul("self", "mat2")),
    **_table("addmm", _matmul("mat1", "mat2")),
    **_table("baddbmm addbmm", _matmul("batch1", "batch2")),
    **_table("mv", _matmul("self", "vec")),
    **_table("addmv", _matmul("mat", "vec")),
    **_table("dot vdot", _dot),
    **_table("_grouped_mm _scaled_grouped_mm", _grouped_matmul),
    **_table("_cdist_forward _euclidean_dist", _cdist),
    "traincast.attention": _attention(1.0),
    # Flash attention recomputes the scores: five products backward against two forward (Dao et al. 2022).
    "traincast.attention_backward": _attention(2.5, num_kernels=3),
    **_table(
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention",
        _attention(1.0),
    ),
    **_table(
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward",
        _attention(2.5, num_kernels=3),
    ),
    **_table("convolution _convolution", _convolution),
    **_table("convolution_backward", _convolution_backward),
    **_table("_softmax _log_softmax _safe_softmax", _softmax(5)),
    **_table("_softmax_backward_data _log_softmax_backward_data", _softmax(4)),
    **_table("native_layer_norm", _norm("layer_norm", 8)),
    **_table("native_layer_norm_backward", _norm("layer_norm", 12, num_kernels=2)),
    **_table("_fused_rms_norm", _norm("rms_norm", 5)),
    **_table("_fused_rms_norm_backward", _norm("rms_norm", 10, num_kernels=2)),
    "traincast.rms_norm": _norm("rms_norm", 5),
    "traincast.rms_norm_backward": _norm("rms_norm", 10, num_kernels=2),
    **_table("_weight_norm_interface", _weight_norm(3)),
    **_table("_weight_norm_interface_backward", _weight_norm(6)),
    **_table("native_group_norm", _norm("group_norm", 8)),
    **_table("native_group_norm_backward", _norm("group_norm", 12, num_kernels=2)),
    **_table(
        "native_batch_norm cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
        "_native_batch_norm_legit_functional _batch_norm_with_update _batch_norm_no_update",
        _norm("batch_norm", 8),
    ),
    **_table(
        "native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward",
        _norm("batch_norm", 12, num_kernels=2),
    ),
    **_table(
        "sum mean amax amin max min prod any all var std var_mean std_mean norm linalg_vector_norm argmax argmin logsumexp "
        "nansum count_nonzero aminmax _foreach_norm trace equal is_nonzero isnan_any _is_all_true _is_any_true",
        _reduce,
    ),
    **_table("cumsum cumprod logcumsumexp cummax cummin", _scan),
    **_table("sort topk argsort msort kthvalue median nanmedian mode unique_dim _unique2 unique_consecutive", _sort),
    **_table("embedding", _embedding),
    **_table("embedding_dense_backward", _embedding_backward),
    **_table("_embedding_bag _embedding_bag_forward_only", _embedding_bag),
    **_table("_embedding_bag_dense_backward _embedding_bag_backward", _embedding_bag_backward),
    **_table("index index_select gather take masked_select masked_scatter_backward", _gather),
    **_table("index_add scatter_add index_put _index_put_impl _unsafe_index_put scatter_reduce", _scatter(adds=True)),
    **_table(
        "scatter index_copy index_fill masked_scatter slice_scatter select_scatter diagonal_scatter put",
        _scatter(adds=False),
    ),
    **_table("slice_backward select_backward diagonal_backward unfold_backward as_strided_scatter", _select_backward),
    **_table("nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward", _nll),
    **_table("nonzero bincount histc", _bincount),
    **_table(
        "clone contiguous cat stack constant_pad_nd repeat roll flip tril triu expand_copy diagonal_copy rot90 reflection_pad1d "
        "reflection_pad2d replication_pad1d replication_pad2d pixel_shuffle pixel_unshuffle channel_shuffle "
        "native_channel_shuffle im2col col2im unfold_copy view_copy permute_copy repeat_interleave tril_indices "
        "triu_indices _pack_padded_sequence _pad_packed_sequence _reshape_copy block_diag kron diag_embed "
        "reflection_pad2d_backward reflection_pad1d_backward replication_pad2d_backward split_with_sizes_copy "
        "_local_scalar_dense diag",
        _copy,
    ),
    **_table("copy", _overwrite),
    **_table("_to_copy", _to_copy),
    **_table(
        "zero zeros zeros_like ones ones_like full full_like fill arange linspace logspace eye scalar_tensor new_zeros "
        "new_ones new_full hann_window lift_fresh_copy one_hot",
        _fill,
    ),
    **_table(
        "rand randn randint rand_like randn_like randint_like randperm bernoulli uniform normal normal_functional "
        "exponential multinomial random cauchy log_normal geometric poisson",
        _random,
    ),
    **_table("native_dropout native_dropout_backward", _dropout),
    **_table(
        "max_pool2d_with_indices max_pool3d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices_backward "
        "adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d fractional_max_pool2d",
        _pool("max"),
    ),
    **_table(
        "avg_pool1d avg_pool2d avg_pool3d avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool3d "
        "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_avg_pool1d",
        _pool("avg"),
    ),
    **_table(
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_linear1d upsample_bicubic2d "
        "upsample_trilinear3d _upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d "
        "grid_sampler_3d upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
        "upsample_bilinear2d_backward upsample_linear1d_backward upsample_bicubic2d_backward "
        "upsample_trilinear3d_backward _upsample_nearest_exact2d_backward grid_sampler_2d_backward",
        _resize,
    ),
    "traincast_kernels.forward": lambda call: [_kernel(call)],
    "traincast_kernels.backward": lambda call: [_kernel(call)],
    "traincast.rnn": _rnn(1),
    "traincast.rnn_backward": _rnn(2),
    **_table("_fft_r2c _fft_c2r _fft_c2c", _fft),
    **_table("linalg_qr linalg_inv_ex _linalg_solve_ex linalg_solve_triangular triangular_solve", _cube(2.0)),
    **_table("linalg_cholesky_ex cholesky linalg_lu_factor_ex _linalg_det linalg_lu", _cube(2.0 / 3)),
    **_table("_linalg_svd _linalg_eigh linalg_eig", _cube(12.0)),
    **_table(
        "mse_loss smooth_l1_loss huber_loss binary_cross_entropy mse_loss_backward smooth_l1_loss_backward l1_loss "
        "soft_margin_loss kl_div binary_cross_entropy_with_logits",
        _loss,
    ),
}
