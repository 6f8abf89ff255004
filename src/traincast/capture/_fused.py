"""Attention, root-mean-square norms and recurrent layers as the single operations that an accelerator runs, with their gradients.

The CPU build of PyTorch splits them into many small operations (attention as soon as it has dropout), which would be
recorded with a memory and a cost that no accelerator has.
"""

from typing import Any

import torch

from traincast.capture._operators import RNN_GATES

depth = [0]
"""Above zero while a fused operation runs forward: gradients are switched off there even if it is recomputed."""

_LIBRARY = torch.library.Library("traincast", "DEF")
_LIBRARY.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, bool is_causal, float dropout, float density) "
    "-> (Tensor, Tensor)"
)
_LIBRARY.define(
    "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor output, "
    "Tensor logsumexp, bool is_causal, bool bias_wanted, float density) -> Tensor[]"
)
_LIBRARY.define("rms_norm(Tensor input, int[] normalized_shape, Tensor? weight) -> (Tensor, Tensor)")
_LIBRARY.define(
    "rms_norm_backward(Tensor gradient, Tensor input, int[] normalized_shape, Tensor statistics, Tensor? weight) -> Tensor[]"
)
_LIBRARY.define(
    "rnn(Tensor input, Tensor[] states, Tensor[] weights, str cell, int hidden, int layers, int directions, int length, "
    "int projected, bool train) -> Tensor[]"
)
_LIBRARY.define(
    "rnn_backward(Tensor[] gradients, Tensor input, Tensor[] states, Tensor[] weights, Tensor output, Tensor reserve, "
    "str cell, int hidden, int layers, int directions, int length, int projected) -> Tensor[]"
)


def _attention(
    query: Any, key: Any, value: Any, bias: Any, is_causal: bool, dropout: float, density: float
) -> tuple[Any, Any]:
    batch, heads, q_len, _ = query.shape
    # The kernels write (batch, position, head, dim), so that merging the heads afterwards is a view.
    output = query.new_empty(batch, q_len, heads, value.shape[-1]).transpose(1, 2)
    return output, query.new_empty(batch, heads, q_len, dtype=torch.float32)


def _attention_backward(
    gradient: Any, query: Any, key: Any, value: Any, bias: Any, output: Any, logsumexp: Any, is_causal: bool,
    bias_wanted: bool, density: float,
) -> list[Any]:  # fmt: skip
    gradients = [torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)]
    return [*gradients, torch.empty_like(bias)] if bias_wanted else gradients


def _rms_norm(data: Any, shape: list[int], weight: Any) -> tuple[Any, Any]:
    rows = data.shape[: data.dim() - len(shape)]
    return torch.empty_like(data, memory_format=torch.contiguous_format), data.new_empty(rows, dtype=torch.float32)


def _rms_norm_backward(gradient: Any, data: Any, shape: list[int], statistics: Any, weight: Any) -> list[Any]:
    return [torch.empty_like(tensor) for tensor in (data, weight) if tensor is not None]


def _rnn(
    data: Any, states: list[Any], weights: list[Any], cell: str, hidden: int, layers: int, directions: int, length: int,
    projected: int, train: bool,
) -> list[Any]:  # fmt: skip
    width = (projected or hidden) * directions
    steps = data.numel() // max(1, data.shape[-1])
    # Kept for the backward pass: every gate, the cell state and the output of each step.
    kept = steps * layers * directions * hidden * (RNN_GATES[cell] + (2 if cell == "lstm" else 1)) if train else 0
    return [
        data.new_empty(*data.shape[:-1], width),
        *(torch.empty_like(state) for state in states),
        data.new_empty(kept),
    ]


def _rnn_backward(
    gradients: list[Any], data: Any, states: list[Any], weights: list[Any], output: Any, reserve: Any, cell: str, hidden: int,
    layers: int, directions: int, length: int, projected: int,
) -> list[Any]:  # fmt: skip
    return [torch.empty_like(tensor) for tensor in (data, *states, *weights)]


_LIBRARY.impl("attention", _attention, "CompositeExplicitAutograd")
_LIBRARY.impl("attention_backward", _attention_backward, "CompositeExplicitAutograd")
_LIBRARY.impl("rms_norm", _rms_norm, "CompositeExplicitAutograd")
_LIBRARY.impl("rms_norm_backward", _rms_norm_backward, "CompositeExplicitAutograd")
_LIBRARY.impl("rnn", _rnn, "CompositeExplicitAutograd")
_LIBRARY.impl("rnn_backward", _rnn_backward, "CompositeExplicitAutograd")


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, query: Any, key: Any, value: Any, bias: Any, is_causal: bool, dropout: float, density: float
    ) -> Any:
        depth[0] += 1
        try:
            output, logsumexp = torch.ops.traincast.attention(query, key, value, bias, is_causal, dropout, density)
        finally:
            depth[0] -= 1
        ctx.save_for_backward(query, key, value, bias, output, logsumexp)
        ctx.is_causal, ctx.density = is_causal, density
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, bias, output, logsumexp = ctx.saved_tensors
        bias_wanted = bool(ctx.needs_input_grad[3])
        gradients = torch.ops.traincast.attention_backward(
            gradient, query, key, value, bias, output, logsumexp, ctx.is_causal, bias_wanted, ctx.density
        )
        return gradients[0], gradients[1], gradients[2], gradients[3] if bias_wanted else None, None, None, None


class _RmsNorm(torch.autograd.Function):  # type: ignore[misc]
    """One kernel each way on an accelerator; the CPU has none and writes every step of it."""

    @staticmethod
    def forward(ctx: Any, data: Any, shape: Any, weight: Any) -> Any:
        depth[0] += 1
        try:
            output, statistics = torch.ops.traincast.rms_norm(data, shape, weight)
        finally:
            depth[0] -= 1
        ctx.save_for_backward(data, statistics, weight)
        ctx.shape = shape
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        data, statistics, weight = ctx.saved_tensors
        given = torch.ops.traincast.rms_norm_backward(gradient, data, ctx.shape, statistics, weight)
        return given[0], None, given[1] if weight is not None else None


class _Recurrent(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, options: tuple[Any, ...], num_states: int, data: Any, *tensors: Any) -> Any:
        states, weights = list(tensors[:num_states]), list(tensors[num_states:])
        train = any(ctx.needs_input_grad)
        depth[0] += 1
        try:
            output, *rest = torch.ops.traincast.rnn(data, states, weights, *options, train)
        finally:
            depth[0] -= 1
        ctx.save_for_backward(data, *tensors, output, rest[-1])
        ctx.options, ctx.num_states = options, num_states
        return (output, *rest[:-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        data, *tensors, output, reserve = ctx.saved_tensors
        states, weights = tensors[: ctx.num_states], tensors[ctx.num_states :]
        given = [gradient for gradient in gradients if gradient is not None]
        results = torch.ops.traincast.rnn_backward(given, data, states, weights, output, reserve, *ctx.options)
        return (None, None, *results)


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False, density: float = 1.0,
) -> Any:  # fmt: skip
    """scaled_dot_product_attention as one fused operation, whatever the mask and the dropout.

    `density` is the share of the square that a mask leaves, where a kernel skips the rest.
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
    lead = query.shape[:-3]
    if query.dim() > 2 and query.shape[-3] % max(1, key.shape[-3]):
        raise RuntimeError(
            f"attention has {query.shape[-3]} heads and {key.shape[-3]} of keys, which do not divide them"
        )
    if query.dim() < 4:
        query, key, value = (tensor[(None,) * (4 - tensor.dim())] for tensor in (query, key, value))
    elif query.dim() > 4:
        query, key, value = (tensor.flatten(0, -4) for tensor in (query, key, value))
    output = _Attention.apply(query, key, value, attn_mask, is_causal, float(dropout_p), density)
    if len(lead) == 1:
        return output
    return output.reshape(*lead, *output.shape[1:]) if lead else output.squeeze(0)


def rms_norm(data: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    if weight is not None and weight.dtype != data.dtype:
        # The kernel takes one format; of two, the steps are run in the wider one.
        dtype = torch.promote_types(data.dtype, weight.dtype)
        data, weight = data.to(dtype), weight.to(dtype)
    return _RmsNorm.apply(data, [int(size) for size in normalized_shape], weight)


def recurrent(cell: str, *arguments: Any) -> Any:
    """torch.lstm, gru, rnn_tanh and rnn_relu, for padded and for packed sequences."""
    packed = isinstance(arguments[3], (list, tuple))
    if packed:
        data, batch_sizes, states, weights, _biases, layers, _dropout, _train, both_ways = arguments[:9]
        length, batch_first = int(batch_sizes.numel()), False
    else:
        data, states, weights, _biases, layers, _dropout, _train, both_ways, batch_first = arguments[:9]
        length = int(data.shape[1 if batch_first else 0])
    states = list(states) if isinstance(states, (list, tuple)) else [states]
    weights = list(weights)
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        data, states, weights = data.to(dtype), [s.to(dtype) for s in states], [w.to(dtype) for w in weights]
    hidden = int(weights[0].shape[0]) // RNN_GATES[cell]
    projected = int(weights[1].shape[1]) if int(weights[1].shape[1]) != hidden else 0
    options = (cell, hidden, int(layers), 2 if both_ways else 1, length, projected)
    return _Recurrent.apply(options, len(states), data, *states, *weights)


class _Packed(torch.autograd.Function):  # type: ignore[misc]
    """torch._pack_padded_sequence, whose gradient loops over memory that fake tensors do not have."""

    @staticmethod
    def forward(ctx: Any, data: Any, lengths: Any, batch_first: bool) -> Any:
        packed, sizes = torch.ops.aten._pack_padded_sequence(data, lengths, batch_first)
        ctx.shape = data.shape
        ctx.mark_non_differentiable(sizes)
        return packed, sizes

    @staticmethod
    def backward(ctx: Any, gradient: Any, _sizes: Any) -> Any:
        rows = gradient.new_zeros(ctx.shape).view(-1, *ctx.shape[2:])
        return rows.index_copy(0, torch.arange(len(gradient)), gradient).view(ctx.shape), None, None


def pack_padded(data: Any, lengths: Any, batch_first: bool) -> Any:
    return _Packed.apply(data, lengths, batch_first)


def pad_packed(
    data: Any, batch_sizes: Any, batch_first: bool, padding_value: float = 0.0, total_length: int = -1
) -> tuple[Any, Any]:
    """torch._pad_packed_sequence, whose own loop over the steps reads memory that fake tensors do not have."""
    sizes = [int(size) for size in batch_sizes.tolist()]
    length, batch = max(len(sizes), total_length), sizes[0]
    places = torch.tensor([step * batch + row for step, size in enumerate(sizes) for row in range(size)])
    padded = data.new_full((length * batch, *data.shape[1:]), padding_value).index_copy(0, places, data)
    padded = padded.view(length, batch, *data.shape[1:])
    lengths = torch.tensor([sum(size > row for size in sizes) for row in range(batch)])
    return (padded.transpose(0, 1) if batch_first else padded), lengths
