"""Operations of XLA programs to the work they mean, by their names in jaxprs and StableHLO, and what both recordings share."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from traincast.capture._phases import Leaf, find_roles, mark_gradients, mark_kept, name_leaves, tell_mode
from traincast.noun import noun
from traincast.spec import Attr, Graph, Op, Parallelism, Repeat, Tensor

Described = tuple[str, float | None, dict[str, Attr]]
_TRANSCENDENTAL = {
    "exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "erf", "erf_inv", "erfc", "sqrt", "rsqrt", "pow", "sin", "cos",
    "tan", "atan2", "cbrt", "exponential", "exponential_minus_one", "log_plus_one", "power", "sine", "cosine",
}  # fmt: skip
_POINTWISE = _TRANSCENDENTAL | {
    "add", "sub", "mul", "div", "max", "min", "neg", "abs", "sign", "floor", "ceil", "round", "select_n", "clamp", "integer_pow",
    "square", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "is_finite", "rem", "add_any", "nextafter",
    "shift_left", "shift_right_logical", "shift_right_arithmetic", "real", "imag", "complex", "conj", "population_count",
    "subtract", "multiply", "divide", "maximum", "minimum", "negate", "round_nearest_even", "round_nearest_afz", "select",
    "compare", "remainder", "popcnt",
}  # fmt: skip
_REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin", "reduce",
               "cumsum", "cumprod", "cummax", "cumlogsumexp"}  # fmt: skip
_MOVES = {"concatenate", "pad", "slice", "rev", "transpose", "convert_element_type", "bitcast_convert_type", "iota", "full",
          "reduce_precision", "split", "copy_start", "empty", "reverse", "convert"}  # fmt: skip
_INDEXING = {"gather", "scatter", "scatter-add", "scatter_add", "scatter_mul", "dynamic_slice", "dynamic_update_slice",
             "dynamic_gather"}  # fmt: skip
_RANDOM = {"random_bits", "random_seed", "random_wrap", "random_unwrap", "random_fold_in", "random_split", "threefry2x32",
           "random_gamma", "rng_bit_generator", "rng_uniform", "rng"}  # fmt: skip
_SCOPE = re.compile(r"(?:transpose|jvp|jit|vmap|remat|checkpoint|rematted_computation)\(|\)")


def describe_op(
    op: str, inputs: Sequence[tuple[int, ...]], outputs: Sequence[tuple[int, ...]], *, window: Sequence[int] = (1,), adds: bool
) -> Described:  # fmt: skip
    """Kind, FLOP and attributes of an operation that is neither a matmul nor a convolution; `adds`: a scatter sums."""
    numel = max((math.prod(shape) for shape in outputs), default=0)
    largest = max((math.prod(shape) for shape in inputs), default=0)
    if op in _POINTWISE:
        per_element = 4 if op in _TRANSCENDENTAL else 1
        return "elementwise", float(per_element * numel), {"function": op, "numel": numel, "num_inputs": len(inputs)}
    if op in _REDUCTIONS:
        rows = max(1, numel if not op.startswith("cum") else 1)
        return "reduce", float(largest), {"function": op, "rows": rows, "cols": largest // rows}
    if op in _MOVES:
        return "copy", 0.0, {"function": op, "numel": numel}
    if op in _INDEXING:
        return "index", float(math.prod(inputs[-1])) if adds else 0.0, {"function": op, "numel": numel}
    if op in _RANDOM:
        return "random", float(numel), {"numel": numel}
    if op in ("sort", "top_k", "approx_top_k"):
        columns = inputs[0][-1] if inputs[0] else 1
        rows = math.prod(inputs[0]) // max(1, columns)
        return "sort", largest * max(1.0, math.log2(max(2, columns))), {"rows": rows, "cols": columns}
    if op.startswith(("reduce_window", "select_and")):
        kernel = "x".join(str(size) for size in window if size > 1) or "1"
        return "pool", float(numel * math.prod(window)), {"function": op, "numel": numel, "kernel": kernel}
    return "other", None, {}


Pair = tuple[Sequence[int], Sequence[int]]
"""Dims of the left and of the right operand."""


def describe_dot(left: tuple[int, ...], right: tuple[int, ...], *, batch_dims: Pair, contracted: Pair) -> Described:
    batch, k = math.prod(left[dim] for dim in batch_dims[0]), math.prod(left[dim] for dim in contracted[0])
    m = math.prod(size for dim, size in enumerate(left) if dim not in (*batch_dims[0], *contracted[0]))
    n = math.prod(size for dim, size in enumerate(right) if dim not in (*batch_dims[1], *contracted[1]))
    layout = "nn"
    if contracted[0] and max(contracted[0]) < len(left) - 1:
        layout = "nt"
    elif contracted[1] and max(contracted[1]) == len(right) - 1:
        layout = "tn"
    return "matmul", 2.0 * batch * m * n * k, {"batch": batch, "m": m, "n": n, "k": k, "layout": layout}


@noun
class Convolution:
    """Shapes and, for each, the dims of batch (or outputs), features (or inputs) and space, in this order."""

    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    dims: tuple[Sequence[int], Sequence[int], Sequence[int]]
    groups: int
    strides: Sequence[int]
    left_dilation: Sequence[int]
    right_dilation: Sequence[int]
    is_reversed: bool
    """The kernel is turned round, or the operation stands in a backward pass."""

    def describe(self) -> Described:
        """The gradients are convolutions too. That of the weight takes channels for samples, so features come first; that of the
        input spreads what it reads or turns its kernel round. A transposed convolution is the input gradient of the one that it
        mirrors. Products with the zeros between spread elements are not counted."""
        (left, right, _), (data, kernel, _) = self.shapes, self.dims
        sizes, taps, outs = (
            [shape[dim] for dim in dims[2:]] for shape, dims in zip(self.shapes, self.dims, strict=True)
        )
        batch, channels, features = left[data[0]], left[data[1]], right[kernel[0]]
        role, strides, is_spread = "forward", self.strides, any(amount > 1 for amount in self.left_dilation)
        products = math.prod(outs) * math.prod(taps)
        if data[1] == 0 and data[0] > 0:
            batch, channels, taps, outs, role, strides = channels, batch, outs, taps, "grad_weight", self.right_dilation
            if is_spread:
                products = math.prod(sizes) * math.prod(taps)
                channels, features, sizes, outs, strides = features, channels, outs, sizes, self.left_dilation
        elif is_spread or (self.is_reversed and all(amount == 1 for amount in self.strides)):
            products = math.prod(sizes if is_spread else map(min, sizes, outs)) * math.prod(taps)
            channels, features, sizes, outs = features, channels, outs, sizes
            role, strides = "grad_input", self.left_dilation
        flop = 2.0 * batch * products * channels * features / self.groups
        attrs: dict[str, Attr] = {
            "batch": batch, "in_channels": channels, "out_channels": features, "groups": self.groups, "in_size": _text(sizes),
            "out_size": _text(outs), "kernel": _text(taps), "stride": _text(strides), "pass": role,
        }  # fmt: skip
        if len(left) - 1 in data[:2]:
            attrs["channels_last"] = True
        return "conv", flop, attrs


def _text(values: Sequence[int]) -> str:
    return "x".join(str(value) for value in values) or "1"


def layer_of(place: str, *, ends_in_op: bool = False) -> str:
    """'transpose(jvp(GPT))/Block_0/Dense_1' is the layer GPT.Block_0.Dense_1."""
    parts = _SCOPE.sub("", place).split("/")
    return ".".join(part for part in parts[: -1 if ends_in_op else None] if part)


def float_dtype(dtypes: Sequence[str]) -> str:
    """What an operation computes in: the first floating type that it touches."""
    return next((each for each in dtypes if each.startswith(("fp", "bf", "complex"))), dtypes[0] if dtypes else "fp32")


@dataclass(slots=True, kw_only=True)
class Recording:
    """Operations and tensors of a program, phases told by the scopes in which JAX made them."""

    source: str
    assumptions: dict[str, None]
    ops: list[Op] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    stacked: dict[int, int] = field(default_factory=dict)
    """Tensors of a loop's body of which the loop returns one per round."""
    in_loop: bool = False
    _seen_backward: bool = False

    def phase(self, place: str) -> str:
        if "rematted_computation" in place:
            return "recompute"
        if "transpose(" in place:
            self._seen_backward = True
            return "backward"
        return "optimizer" if self._seen_backward and "jvp(" not in place else "forward"

    def give_roles(self, leaves: Sequence[Leaf], named: dict[int, str] | None = None) -> None:
        """Roles and names of the inputs, once it is known what reads them; `named` are those of arguments that were said."""
        roles = {} if named else find_roles(leaves, self.tensors, self.ops)
        if not roles and named is not None:
            roles = {leaf.tensor: (named or {0: "parameter"}).get(leaf.argument, "input") for leaf in leaves}
        for index, role in roles.items():
            self.tensors[index] = replace(self.tensors[index], role=role)
        for index, name in name_leaves(leaves, self.tensors).items():
            self.tensors[index] = replace(self.tensors[index], name=name)

    def graph(self, *, name: str, batch_size: int, plan: Parallelism | None = None) -> Graph:
        return Graph(
            name=name, ops=tuple(self.ops), batch_size=batch_size, repeats=tuple(self.repeats), mode=tell_mode(self.ops),
            tensors=mark_gradients(mark_kept(self.tensors, self.ops), self.ops, self.stacked), source=self.source,
            assumptions=tuple(self.assumptions), plan=plan,
        )  # fmt: skip
