"""Single operators as experiments: a captured op, or a point of a grid, to something that runs on a device."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from traincast.errors import InvalidInput
from traincast.profile._protocol import Running, Subject
from traincast.spec import Attr, Experiment, Graph, Op
from traincast.units import DTYPE_BYTES

Attrs = Mapping[str, Attr]
Maker = Callable[[Any, Attrs, Any], Callable[[], object]]
"""(torch, attributes, options for new tensors) to one run."""

AMOUNTS = ("flop", "bytes_read", "bytes_written")
"""Kept among the attributes of an operator experiment, so that a stored measurement can be fitted without its graph."""


OPTIMIZERS: dict[str, tuple[str, dict[str, float]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
}
"""Class of torch.optim and what it is given beside its rate, which changes no duration."""


def find_optimizer(torch: Any, name: str) -> tuple[Any, dict[str, float]]:
    """The class of an optimizer and its options. `torch`: whoever asks has loaded it."""
    kind, options = OPTIMIZERS[name]
    return getattr(torch.optim, kind), {"lr": 1e-3, **options}


def experiment_of(op: Op) -> Experiment:
    """The experiment that measures this op by itself."""
    amounts: dict[str, Attr] = {"bytes_read": op.bytes_read, "bytes_written": op.bytes_written}
    if op.flop is not None:
        amounts["flop"] = op.flop
    # The phase matters only where the same kind and sizes mean another kernel.
    phase = "backward" if op.phase == "backward" else "forward"
    return Experiment(
        subject="operator", name=op.kind, attrs={**op.attrs, "dtype": op.dtype, "phase": phase, **amounts}
    )


def op_of(experiment: Experiment) -> Op:
    """Back from a stored experiment."""
    attrs = dict(experiment.attrs)
    if "bytes_read" not in attrs:
        raise InvalidInput(f"{experiment.key} does not say how many bytes it moves; it was not measured by traincast")
    flop = attrs.pop("flop", None)
    dtype, phase = str(attrs.pop("dtype")), str(attrs.pop("phase"))
    read, written = float(attrs.pop("bytes_read")), float(attrs.pop("bytes_written"))
    return Op(
        name=experiment.name, kind=experiment.name, flop=None if flop is None else float(flop), bytes_read=read,
        bytes_written=written, phase=phase, dtype=dtype, attrs=attrs,
    )  # fmt: skip


def distinct_operators(graphs: Iterable[Graph]) -> list[Experiment]:
    """Every different operator of these graphs that can be run by itself, once, in order of appearance."""
    found: dict[str, Experiment] = {}
    for graph in graphs:
        for op in graph.ops:
            if is_runnable(op):
                experiment = experiment_of(op)
                found.setdefault(experiment.key, experiment)
    return list(found.values())


def is_runnable(op: Op) -> bool:
    function = op.attrs.get("function")
    if op.kind not in MAKERS or op.dtype not in ("fp32", "fp64", "fp16", "bf16", "tf32"):
        return False
    if op.kind == "elementwise":
        return function in ELEMENTWISE and _inputs_of(op.attrs) <= 3
    known = {"norm": NORMS, "reduce": REDUCTIONS, "copy": COPIES, "pool": ("max", "avg")}.get(op.kind)
    return known is None or function in known


def subject_of(experiment: Experiment, *, device: str = "cpu") -> Subject:
    """How a step or an operator alone is set up on this machine."""
    if experiment.subject == "operator":
        return Subject(experiment=experiment, prepare=lambda: prepare_operator(experiment, device=device))
    from traincast.profile._steps import prepare_step

    return Subject(experiment=experiment, prepare=lambda: prepare_step(experiment, device=device))


def prepare_operator(experiment: Experiment, *, device: str = "cpu") -> Running:
    """Allocate what the operator needs, with random content, and return how to run it."""
    import torch

    if experiment.name not in MAKERS:
        raise InvalidInput(f"operators of kind {experiment.name!r} cannot be run alone; known: {', '.join(MAKERS)}")
    dtypes = {"fp32": torch.float32, "tf32": torch.float32, "fp64": torch.float64, "fp16": torch.float16,
              "bf16": torch.bfloat16}  # fmt: skip
    dtype = dtypes.get(str(experiment.attrs.get("dtype", "fp32")))
    if dtype is None:
        raise InvalidInput(f"{experiment.key} has a dtype that cannot be run alone; known: {', '.join(dtypes)}")
    options = {"dtype": dtype, "device": device}
    once = MAKERS[experiment.name](torch, experiment.attrs, options)

    def run() -> None:
        once()

    return Running(run=run, settle=torch.cuda.synchronize if device == "cuda" else lambda: None)


def grid(*, dtype: str = "fp32", max_seconds_hint: float = 0.05, flop_per_s: float = 2e10) -> list[Experiment]:
    """A generic set of operators over the usual ranges, those expected to take longer than the hint left out."""
    ops = [
        *_matmul_grid(dtype), *_conv_grid(dtype), *_elementwise_grid(dtype), *_row_grid(dtype), *_memory_grid(dtype),
        *_attention_grid(dtype),
    ]  # fmt: skip
    return [experiment_of(op) for op in ops if (op.flop or 0.0) / flop_per_s <= max_seconds_hint]


def _op(kind: str, dtype: str, attrs: dict[str, Attr], *, flop: float, read: float, written: float, phase: str) -> Op:
    width = DTYPE_BYTES[dtype]
    return Op(
        name=kind, kind=kind, flop=float(flop), bytes_read=read * width, bytes_written=written * width, phase=phase,
        dtype=dtype, attrs=attrs,
    )  # fmt: skip


def _matmul_grid(dtype: str) -> list[Op]:
    sizes = itertools.product((1, 8, 64), (8, 64, 256, 1024), (16, 64, 256, 1024), (16, 128, 512), ("tn", "nn", "nt"))
    return [
        _op(
            "matmul", dtype, {"batch": batch, "m": m, "n": n, "k": k, "layout": layout}, flop=2 * batch * m * n * k,
            read=batch * (m * k + k * n), written=batch * m * n, phase="forward",
        )
        for batch, m, n, k, layout in sizes
        if batch * max(m * k, k * n, m * n) <= 2**22
    ]  # fmt: skip


def _conv_grid(dtype: str) -> list[Op]:
    ops = []
    sizes = itertools.product(
        (4, 16), (3, 16, 64), (16, 64), (8, 16, 32), (1, 3, 5), ("forward", "grad_input", "grad_weight")
    )
    for batch, channels, out_channels, size, kernel, role in sizes:
        for groups in {1, channels if channels == out_channels else 1}:
            attrs: dict[str, Attr] = {
                "batch": batch, "in_channels": channels, "out_channels": out_channels, "groups": groups,
                "in_size": f"{size}x{size}", "out_size": f"{size}x{size}", "kernel": f"{kernel}x{kernel}",
                "stride": "1x1", "pass": role,
            }  # fmt: skip
            source, target = batch * channels * size * size, batch * out_channels * size * size
            weight = channels * out_channels * kernel**2 // groups
            flop = 2 * batch * size * size * weight
            phase = "forward" if role == "forward" else "backward"
            whole = source + target + weight
            written = {"forward": target, "grad_input": source, "grad_weight": weight}[role]
            ops.append(_op("conv", dtype, attrs, flop=flop, read=whole - written, written=written, phase=phase))
    return ops


def _elementwise_grid(dtype: str) -> list[Op]:
    ops = []
    for function, numel in itertools.product(ELEMENTWISE, (2**10, 2**13, 2**16, 2**18, 2**20)):
        inputs = ELEMENTWISE[function][0]
        flop = numel * (4 if ELEMENTWISE[function][2] else 1)
        attrs: dict[str, Attr] = {"function": function, "numel": numel, "num_inputs": inputs}
        phase = "backward" if function.endswith("_backward") else "forward"
        ops.append(_op("elementwise", dtype, attrs, flop=flop, read=inputs * numel, written=numel, phase=phase))
    return ops


def _row_grid(dtype: str) -> list[Op]:
    ops = []
    for rows, cols in itertools.product((16, 128, 1024, 8192), (16, 64, 256, 1024)):
        numel = rows * cols
        if numel > 2**21:
            continue
        sizes: dict[str, Attr] = {"rows": rows, "cols": cols}
        for phase, per_element, reads in (("forward", 5, 1), ("backward", 4, 2)):
            ops.append(
                _op("softmax", dtype, sizes, flop=per_element * numel, read=reads * numel, written=numel, phase=phase)
            )
        for function, (phase, per_element, reads) in itertools.product(NORMS, (("forward", 8, 1), ("backward", 12, 2))):
            attrs: dict[str, Attr] = {"function": function, **sizes}
            ops.append(
                _op("norm", dtype, attrs, flop=per_element * numel, read=reads * numel, written=numel, phase=phase)
            )
        for function in ("sum", "mean", "amax"):
            attrs = {"function": function, **sizes}
            ops.append(_op("reduce", dtype, attrs, flop=numel, read=numel, written=rows, phase="forward"))
    return ops


def _memory_grid(dtype: str) -> list[Op]:
    ops = []
    for function, numel in itertools.product(("clone", "copy", "fill", "cat"), (2**10, 2**14, 2**17, 2**20)):
        read = 0 if function == "fill" else numel
        attrs: dict[str, Attr] = {"function": function, "numel": numel}
        ops.append(_op("copy", dtype, attrs, flop=0, read=read, written=numel, phase="forward"))
    for rows, cols, vocab in itertools.product((64, 1024, 8192), (16, 64, 256), (1000, 30000)):
        for phase, written in (("forward", rows * cols), ("backward", vocab * cols)):
            attrs = {"rows": rows, "cols": cols, "vocab": vocab}
            ops.append(_op("embedding", dtype, attrs, flop=0, read=rows * cols, written=written, phase=phase))
    for kernel, numel in itertools.product((2, 3), (2**12, 2**16, 2**18)):
        for function in ("max", "avg"):
            attrs = {"function": function, "numel": numel, "kernel": f"{kernel}x{kernel}"}
            read = numel * kernel * kernel
            ops.append(_op("pool", dtype, attrs, flop=read, read=read, written=numel, phase="forward"))
    return ops


def _attention_grid(dtype: str) -> list[Op]:
    ops = []
    for batch, heads, length, head_dim, causal in itertools.product(
        (2, 8), (2, 4), (16, 64, 256), (16, 64), (False, True)
    ):
        attrs: dict[str, Attr] = {
            "batch": batch, "heads": heads, "kv_heads": heads, "q_len": length, "kv_len": length, "head_dim": head_dim,
            "causal": causal,
        }  # fmt: skip
        flop = 4.0 * batch * heads * length**2 * head_dim / (2 if causal else 1)
        numel = batch * heads * length * head_dim
        for phase, factor, read, written in (("forward", 1.0, 3, 1), ("backward", 2.5, 5, 3)):
            ops.append(
                _op(
                    "attention",
                    dtype,
                    attrs,
                    flop=factor * flop,
                    read=read * numel,
                    written=written * numel,
                    phase=phase,
                )
            )
    return ops


# How to run each kind


def _inputs_of(attrs: Attrs) -> int:
    return int(attrs.get("num_inputs", 1))


def _is_backward(attrs: Attrs) -> bool:
    return attrs.get("phase") == "backward"


def _sizes(text: Attr) -> list[int]:
    return [int(word) for word in str(text).split("x")]


def _backward(torch: Any, function: Callable[..., Any], *inputs: Any) -> Callable[[], object]:
    """The backward pass of a function alone: its graph is kept and run again and again."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        output = function(*leaves)
    gradient = torch.ones_like(output)

    def run() -> object:
        return torch.autograd.grad(output, leaves, gradient, retain_graph=True)

    return run


def _matmul(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    batch, m, n, k = (int(attrs[name]) for name in ("batch", "m", "n", "k"))
    layout = str(attrs["layout"])
    lead = (batch,) if batch > 1 else ()
    first = (
        torch.rand(*lead, k, m, **options).transpose(-1, -2) if layout == "nt" else torch.rand(*lead, m, k, **options)
    )
    second = (
        torch.rand(*lead, n, k, **options).transpose(-1, -2) if layout == "tn" else torch.rand(*lead, k, n, **options)
    )
    product = torch.bmm if batch > 1 else torch.mm
    return lambda: product(first, second)


def _attention(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    batch, heads, kv_heads = (int(attrs[name]) for name in ("batch", "heads", "kv_heads"))
    q_len, kv_len, head_dim = (int(attrs[name]) for name in ("q_len", "kv_len", "head_dim"))
    query = torch.rand(batch, heads, q_len, head_dim, **options)
    key, value = (torch.rand(batch, kv_heads, kv_len, head_dim, **options) for _ in range(2))
    causal, grouped = bool(attrs["causal"]), heads != kv_heads

    def attend(query: Any, key: Any, value: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)

    if _is_backward(attrs):
        return _backward(torch, attend, query, key, value)
    return lambda: attend(query, key, value)


def _conv(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    batch, channels, out_channels, groups = (
        int(attrs[name]) for name in ("batch", "in_channels", "out_channels", "groups")
    )
    in_size, out_size, kernel, stride = (_sizes(attrs[name]) for name in ("in_size", "out_size", "kernel", "stride"))
    # The padding is not recorded; it follows from the sizes, up to what the stride rounds away.
    padding = [
        max(0, math.ceil(((out - 1) * step + width - size) / 2))
        for size, out, width, step in zip(in_size, out_size, kernel, stride, strict=True)
    ]
    data = torch.rand(batch, channels, *in_size, **options)
    weight = torch.rand(out_channels, channels // groups, *kernel, **options)
    ones, zeros = [1] * len(kernel), [0] * len(kernel)

    def forward() -> Any:
        return torch.ops.aten.convolution(data, weight, None, stride, padding, ones, False, zeros, groups)

    role = str(attrs["pass"])
    if role == "forward":
        return forward
    gradient = torch.rand_like(forward())
    mask = [role == "grad_input", role == "grad_weight", False]
    return lambda: torch.ops.aten.convolution_backward(
        gradient, data, weight, None, stride, padding, ones, False, zeros, groups, mask
    )


ELEMENTWISE: dict[str, tuple[int, Callable[..., Any], bool]] = {
    "add": (2, lambda torch, a, b: torch.add(a, b), False),
    "mul": (2, lambda torch, a, b: torch.mul(a, b), False),
    "sub": (2, lambda torch, a, b: torch.sub(a, b), False),
    "div": (2, lambda torch, a, b: torch.div(a, b), False),
    "relu": (1, lambda torch, a: torch.relu(a), False),
    "gelu": (1, lambda torch, a: torch.nn.functional.gelu(a), True),
    "silu": (1, lambda torch, a: torch.nn.functional.silu(a), True),
    "tanh": (1, lambda torch, a: torch.tanh(a), True),
    "sigmoid": (1, lambda torch, a: torch.sigmoid(a), True),
    "exp": (1, lambda torch, a: torch.exp(a), True),
    "sqrt": (1, lambda torch, a: torch.sqrt(a), True),
    "pow": (1, lambda torch, a: torch.pow(a, 2), True),
    "hardtanh": (1, lambda torch, a: torch.nn.functional.hardtanh(a), False),
    "hardswish": (1, lambda torch, a: torch.nn.functional.hardswish(a), True),
    "leaky_relu": (1, lambda torch, a: torch.nn.functional.leaky_relu(a), False),
    "threshold_backward": (2, lambda torch, a, b: torch.ops.aten.threshold_backward(a, b, 0), False),
    "gelu_backward": (2, lambda torch, a, b: torch.ops.aten.gelu_backward(a, b), True),
    "silu_backward": (2, lambda torch, a, b: torch.ops.aten.silu_backward(a, b), True),
    "tanh_backward": (2, lambda torch, a, b: torch.ops.aten.tanh_backward(a, b), True),
    "sigmoid_backward": (2, lambda torch, a, b: torch.ops.aten.sigmoid_backward(a, b), True),
    "hardtanh_backward": (2, lambda torch, a, b: torch.ops.aten.hardtanh_backward(a, b, -1, 1), False),
    "addcmul": (3, lambda torch, a, b, c: torch.addcmul(a, b, c), False),
    "addcdiv": (3, lambda torch, a, b, c: torch.addcdiv(a, b, c), False),
    "lerp": (2, lambda torch, a, b: torch.lerp(a, b, 0.1), False),
}
"""Function: how many tensors it reads, how to run it, whether it is transcendental."""


def _elementwise(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    usual, function, _ = ELEMENTWISE[str(attrs["function"])]
    count = int(attrs["numel"])
    # A captured op may read a scalar instead of a second tensor; then its inputs are fewer than usual.
    tensors = [torch.rand(count, **options) + 0.5 for _ in range(min(usual, _inputs_of(attrs)))]
    scalars = [torch.tensor(1.5, dtype=options["dtype"])] * (usual - len(tensors))
    return lambda: function(torch, *tensors, *scalars)


def _softmax(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    data = torch.rand(int(attrs["rows"]), int(attrs["cols"]), **options)
    if not _is_backward(attrs):
        return lambda: torch.softmax(data, -1)
    output, gradient = torch.softmax(data, -1), torch.rand_like(data)
    return lambda: torch.ops.aten._softmax_backward_data(gradient, output, -1, data.dtype)


NORMS = ("layer_norm", "batch_norm", "group_norm", "rms_norm")


def _norm(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    rows, cols = int(attrs["rows"]), int(attrs["cols"])
    function = str(attrs["function"])
    nn = torch.nn.functional
    if function == "batch_norm":
        # rows = channels, cols = batch x positions.
        batch = max(size for size in (16, 8, 4, 2, 1) if cols % size == 0)
        data, weight = torch.rand(batch, rows, cols // batch, **options), torch.rand(rows, **options)

        def forward(data: Any, weight: Any) -> Any:
            return nn.batch_norm(data, None, None, weight, weight, training=True)
    elif function == "group_norm":
        data, weight = torch.rand(1, rows, cols, **options), torch.rand(rows, **options)

        def forward(data: Any, weight: Any) -> Any:
            return nn.group_norm(data, rows, weight, weight)
    else:
        data, weight = torch.rand(rows, cols, **options), torch.rand(cols, **options)

        def forward(data: Any, weight: Any) -> Any:
            if function == "rms_norm":
                return nn.rms_norm(data, (cols,), weight)
            return nn.layer_norm(data, (cols,), weight, weight)

    return _backward(torch, forward, data, weight) if _is_backward(attrs) else lambda: forward(data, weight)


REDUCTIONS = ("sum", "mean", "amax", "max", "norm", "var_mean", "linalg_vector_norm")


def _reduce(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    rows, cols = int(attrs["rows"]), int(attrs["cols"])
    data = torch.rand(rows, cols, **options)
    function = {
        "norm": torch.linalg.vector_norm,
        "linalg_vector_norm": torch.linalg.vector_norm,
        "sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "max": torch.amax, "var_mean": torch.var_mean,
    }[str(attrs["function"])]  # fmt: skip
    return lambda: function(data, dim=-1)


def _embedding(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    rows, cols, vocab = (int(attrs[name]) for name in ("rows", "cols", "vocab"))
    indices = torch.randint(vocab, (rows,), device=options["device"])
    if _is_backward(attrs):
        gradient = torch.rand(rows, cols, **options)
        return lambda: torch.ops.aten.embedding_dense_backward(gradient, indices, vocab, -1, False)
    table = torch.rand(vocab, cols, **options)
    return lambda: torch.nn.functional.embedding(indices, table)


COPIES = ("clone", "copy", "fill", "cat", "to_copy", "contiguous", "constant_pad_nd")


def _copy(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    count, function = int(attrs["numel"]), str(attrs["function"])
    source = torch.rand(count, **options)
    if function == "fill":
        return lambda: source.zero_()
    if function == "cat":
        halves = [source[: count // 2].clone(), source[count // 2 :].clone()]
        return lambda: torch.cat(halves)
    if function == "copy":
        target = torch.empty_like(source)
        return lambda: target.copy_(source)
    return lambda: source.clone()


def _pool(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    kernel = _sizes(attrs["kernel"])
    outputs = int(attrs["numel"])
    if _is_backward(attrs):
        outputs = max(1, outputs // math.prod(kernel))
    side = max(1, math.isqrt(min(outputs, 256)))
    lead = max(1, outputs // side**2)
    if len(kernel) != 2:
        raise InvalidInput(f"pooling over {len(kernel)} dims cannot be run alone; two are known")
    data = torch.rand(1, lead, side * kernel[0], side * kernel[1], **options)
    pool = torch.nn.functional.max_pool2d if attrs["function"] == "max" else torch.nn.functional.avg_pool2d
    if _is_backward(attrs):
        return _backward(torch, lambda data: pool(data, kernel), data)
    return lambda: pool(data, kernel)


def _rnn(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    batch, length, inputs, hidden = (int(attrs[name]) for name in ("batch", "length", "inputs", "hidden"))
    cells = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "tanh": torch.nn.RNN}
    layer = cells[str(attrs["cell"])](
        inputs, hidden, int(attrs["layers"]), bidirectional=int(attrs["directions"]) == 2, **options
    )
    data = torch.rand(length, batch, inputs, **options)
    if _is_backward(attrs):
        with torch.enable_grad():
            output = layer(data)[0]
        gradient, weights = torch.rand_like(output), list(layer.parameters())
        return lambda: torch.autograd.grad(output, weights, gradient, retain_graph=True)
    layer.requires_grad_(False)
    return lambda: layer(data)


def _optimizer(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    count, tensors = int(attrs["numel"]), int(attrs["num_tensors"])
    weights = [torch.rand(max(1, count // tensors), **options).requires_grad_() for _ in range(tensors)]
    for weight in weights:
        weight.grad = torch.rand_like(weight)
    # On a CPU torch updates tensor by tensor unless told otherwise, whatever the graph was captured for.
    foreach = attrs["implementation"] == "foreach" if options["device"] == "cuda" else None
    kind, settings = find_optimizer(torch, str(attrs["algorithm"]))
    optimizer = kind(weights, foreach=foreach, **settings)
    return lambda: optimizer.step()


def _dropout(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    data = torch.rand(int(attrs["numel"]), **options)
    return lambda: torch.nn.functional.dropout(data, 0.1)


def _sort(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    data = torch.rand(int(attrs["rows"]), int(attrs["cols"]), **options)
    return lambda: torch.sort(data)


def _random(torch: Any, attrs: Attrs, options: Any) -> Callable[[], object]:
    return lambda: torch.rand(int(attrs["numel"]), **options)


MAKERS: dict[str, Maker] = {
    "matmul": _matmul,
    "attention": _attention,
    "conv": _conv,
    "elementwise": _elementwise,
    "softmax": _softmax,
    "norm": _norm,
    "reduce": _reduce,
    "embedding": _embedding,
    "copy": _copy,
    "pool": _pool,
    "rnn": _rnn,
    "optimizer": _optimizer,
    "dropout": _dropout,
    "sort": _sort,
    "random": _random,
}
