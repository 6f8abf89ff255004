"""The verbs of a model: each writes the kernels eager PyTorch launches forward and registers those it launches backward."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from traincast.catalog._models.recipe import OPTIMIZERS, Recipe
from traincast.catalog._models.tape import Gradients, Tape, Value
from traincast.noun import noun
from traincast.spec import Attr, Graph
from traincast.units import DTYPE_BYTES

FROZEN_BLOCK, SCALE_BLOCK = 64, 256
"""Frozen 4-bit weights that share a scale, and scales that share one where they are quantised too (Dettmers et al. 2023)."""


L2_OVER_DRAM = 3.0
"""How much faster rows are that a kernel has read before and finds in the cache."""


def count_distinct(rows: Sequence[int], lookups: float) -> float:
    """Rows that so many lookups in each table reach, if all rows are as likely: n (1 - exp(-k / n))."""
    return sum(-number * math.expm1(-lookups / number) for number in rows)


@noun
class Window:
    """How a convolution moves over its input, one number for each of its dimensions."""

    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilation: int = 1
    transposed: bool = False

    @classmethod
    def over(
        cls, dims: int, kernel_size: int | Sequence[int], *, stride: int | Sequence[int],
        padding: int | Sequence[int] | None, dilation: int, transposed: bool,
    ) -> "Window":  # fmt: skip
        """From numbers that stand for every dimension; padding None: 'same' for a stride of 1."""
        kernels = _each(kernel_size, dims)
        pads = tuple(dilation * (k - 1) // 2 for k in kernels) if padding is None else _each(padding, dims)
        return cls(kernels=kernels, strides=_each(stride, dims), pads=pads, dilation=dilation, transposed=transposed)

    def out_size(self, size: Sequence[int]) -> list[int]:
        places = zip(size, self.kernels, self.strides, self.pads, strict=True)
        if self.transposed:
            return [(s - 1) * st - 2 * p + k for s, k, st, p in places]
        return [(s + 2 * p - self.dilation * (k - 1) - 1) // st + 1 for s, k, st, p in places]


def _each(amount: int | Sequence[int], dims: int) -> tuple[int, ...]:
    return (amount,) * dims if isinstance(amount, int) else tuple(amount)


MIRRORED = {"forward": "grad_input", "grad_input": "forward", "grad_weight": "grad_weight"}
"""A transposed convolution runs the kernels of the convolution that it mirrors, whose input is its output: its forward pass is
that one's gradient of the input."""


def _sizes(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


class Net(Tape):
    """A tape with every layer as a method: each writes its forward kernels and registers its backward ones."""

    def __init__(self, recipe: Recipe, *, name: str = "", source: str = "", batch: int = 1) -> None:
        super().__init__(recipe)
        self.name, self.source, self.batch = name, source, batch

    def close(self, outputs: Sequence[Value], loss: Callable[[], Value] | None = None, **more: Any) -> Graph:
        """The graph of a network with these outputs, or with its loss where one is computed."""
        ends = [loss()] if loss is not None and self.recipe.has_loss else outputs
        return self.finish(ends, name=self.name, batch_size=self.batch, source=self.source, **more)

    # Pointwise

    def pointwise(
        self, function: str, *inputs: Value, backward: Callable[[Value, Value], Gradients] | None = None,
        shape: Sequence[int] | None = None, dtype: str = "", inplace: bool = False, bytes_read: float | None = None,
        flop_per_element: float = 1.0,
    ) -> Value:  # fmt: skip
        """One elementwise kernel. `backward` gets (gradient, output); without it the gradient passes unchanged to every input."""
        if inplace:
            out = self.seen_as(inputs[0], inputs[0].shape)
        else:
            out = self.new(shape if shape is not None else inputs[0].shape, dtype or inputs[0].dtype)
        attrs: dict[str, Attr] = {"function": function, "numel": out.numel, "num_inputs": len(inputs)}
        self.op(
            f"aten.{function}{'_' if inplace else ''}", "elementwise", inputs, (out,), attrs,
            flop=flop_per_element * out.numel, bytes_read=bytes_read,
        )  # fmt: skip
        if backward is None:
            return self.register(out, inputs, lambda g: [self.fit(g, value) for value in inputs])
        rule = backward
        return self.register(out, inputs, lambda g: rule(g, out))

    def kernel(
        self, function: str, reads: Sequence[Value], like: Value, *, inplace: bool = False, calls: int = 1
    ) -> Value:
        """One more elementwise kernel of a backward formula, with a result shaped like `like`."""
        out = reads[0] if inplace else self.gradient_like(like)
        attrs: dict[str, Attr] = {"function": function, "numel": out.numel, "num_inputs": len(reads)}
        self.op(f"aten.{function}", "elementwise", reads, (out,), attrs, flop=out.numel, calls=calls)
        return out

    def fit(self, gradient: Value, value: Value) -> Value | None:
        """The gradient in the shape and format of a value that was broadcast or promoted."""
        if not value.needs_gradient:
            return None
        if gradient.numel != value.numel:
            gradient = self.sum_to(gradient, value)
        if gradient.dtype != value.dtype:
            gradient = self.cast_back(gradient, value)
        return gradient

    def sum_to(self, gradient: Value, value: Value) -> Value:
        """Sum what was broadcast: the gradient of a bias, of a scale, of a repeated head."""
        out = self.new(value.shape, gradient.dtype)
        if value.parameter and gradient.dtype == value.dtype:
            out = self.gradient_like(value)
        attrs: dict[str, Attr] = {"function": "sum", "rows": value.numel, "cols": gradient.numel // max(1, value.numel)}
        self.op("aten.sum", "reduce", (gradient,), (out,), attrs, flop=gradient.numel, calls=2)
        return out

    def add(self, left: Value, right: Value, *, inplace: bool = False) -> Value:
        """A sum; mixed formats are promoted to the wider one. Its backward pass costs no kernel unless one was broadcast."""
        wide = left if left.numel >= right.numel else right
        dtype = "fp32" if "fp32" in (left.dtype, right.dtype) else left.dtype
        return self.pointwise("add", left, right, shape=wide.shape, dtype=dtype, inplace=inplace)

    def multiply(self, left: Value, right: Value) -> Value:
        wide = left if left.numel >= right.numel else right
        dtype = "fp32" if "fp32" in (left.dtype, right.dtype) else left.dtype

        def backward(g: Value, out: Value) -> Gradients:
            gradients: list[Value | None] = []
            for value, other in ((left, right), (right, left)):
                if not value.needs_gradient:
                    gradients.append(None)
                    continue
                # Promoted and broadcast operands get their share in the wide form first.
                direct = value.numel == g.numel and value.dtype == dtype
                product = self.gradient_like(value) if direct else self.new(wide.shape, dtype)
                attrs: dict[str, Attr] = {"function": "mul", "numel": wide.numel, "num_inputs": 2}
                self.op("aten.mul", "elementwise", (g, other), (product,), attrs, flop=wide.numel)
                gradients.append(self.fit(product, value))
            return gradients

        return self.pointwise("mul", left, right, shape=wide.shape, dtype=dtype, backward=backward)

    def scale(self, value: Value, function: str = "mul") -> Value:
        """Times or over a number."""
        return self.pointwise(function, value, backward=lambda g, out: (self.kernel(function, (g,), value),))

    def shift(self, value: Value) -> Value:
        """Plus a number: no backward kernel."""
        return self.pointwise("add", value)

    def activation(self, function: str, value: Value, *, inplace: bool = False) -> Value:
        """One fused activation kernel each way. Those with a derivative of their output keep the output, the others the input."""
        if function == "gelu_new":
            return self.gelu_new(value)
        keeps_output = function in ("relu", "tanh", "sigmoid")
        inplace = inplace and function in ("relu", "relu6", "hardswish", "silu", "leaky_relu", "elu")
        if inplace and not keeps_output and function != "leaky_relu":
            # Autograd keeps the input of these, so overwriting it costs a copy: they are written out of place.
            inplace = function == "relu6"
        name = {"relu6": "hardtanh"}.get(function, function)

        def backward(g: Value, out: Value) -> Gradients:
            kept = out if keeps_output or inplace else value
            return (self.kernel(f"{'threshold' if function == 'relu' else name}_backward", (g, kept), value),)

        cost = 1.0 if function in ("relu", "relu6", "leaky_relu") else 8.0
        return self.pointwise(name, value, backward=backward, inplace=inplace, flop_per_element=cost)

    def gelu_new(self, value: Value) -> Value:
        """The tanh approximation as Hugging Face writes it in Python: eight kernels."""
        half = self.scale(value)
        # Autocast runs powers in fp32, and all that follows is promoted.
        wide = self.for_stable(value)

        def pow_backward(g: Value, out: Value) -> Gradients:
            slope = self.kernel("mul", (self.kernel("pow", (wide,), wide),), wide)
            return (self.kernel("mul", (g, slope), wide),)

        cube = self.pointwise("pow", wide, backward=pow_backward)
        inner = self.scale(self.add(value, self.scale(cube)))
        return self.multiply(half, self.shift(self.activation("tanh", inner)))

    def dropout(self, value: Value, rate: float) -> Value:
        """Keeps a mask of one byte per element. A rate of 0 launches nothing."""
        if rate <= 0 or not self.recipe.trains:
            return value
        out = self.new(value.shape, value.dtype)
        mask = self.new(value.shape, "bool")
        attrs: dict[str, Attr] = {"numel": value.numel}
        self.op("aten.native_dropout", "dropout", (value,), (out, mask), attrs, flop=2 * value.numel)

        def backward(g: Value) -> Gradients:
            result = self.gradient_like(value)
            self.op("aten.native_dropout_backward", "dropout", (g, mask), (result,), attrs, flop=2 * value.numel)
            return (result,)

        return self.register(out, (value,), backward)

    def copy(
        self, value: Value, shape: Sequence[int] | None = None, *, function: str = "contiguous", back: bool = False
    ) -> Value:
        """A transposed or strided view made contiguous. Its gradient arrives as a view, or is copied as well (`back`)."""
        out = self.new(shape if shape is not None else value.shape, value.dtype)
        attrs: dict[str, Attr] = {"function": function, "numel": value.numel}
        self.op("aten.clone", "copy", (value,), (out,), attrs, calls=2)

        def backward(g: Value) -> Gradients:
            if not back:
                return (self.seen_as(g, value.shape),)
            result = self.gradient_like(value)
            self.op("aten.clone", "copy", (g,), (result,), attrs, calls=2)
            return (result,)

        return self.register(out, (value,), backward)

    def copy_back(self, value: Value) -> Value:
        """A view whose gradient has to be copied into the order of the value."""
        out = self.seen_as(value, value.shape)
        attrs: dict[str, Attr] = {"function": "contiguous", "numel": value.numel}

        def backward(g: Value) -> Gradients:
            result = self.gradient_like(value)
            self.op("aten.clone", "copy", (g,), (result,), attrs, calls=2)
            return (result,)

        return self.register(out, (value,), backward)

    def split(self, value: Value, shapes: Sequence[Sequence[int]]) -> list[Value]:
        """Parts of a tensor as views; backward concatenates their gradients."""
        parts = [self.part(value, shape) for shape in shapes]

        def backward(gradients: Gradients) -> Gradients:
            out = self.gradient_like(value)
            arrived = [g for g in gradients if g is not None]
            attrs: dict[str, Attr] = {"function": "cat", "numel": out.numel}
            self.op("aten.cat", "copy", arrived, (out,), attrs, calls=2)
            return (out,)

        self.register_many(tuple(parts), (value,), backward)
        return parts

    def concat(self, values: Sequence[Value], shape: Sequence[int]) -> Value:
        """One copy forward; backward gives views."""
        values = tuple(values)
        out = self.new(shape, values[0].dtype)
        self.op("aten.cat", "copy", values, (out,), {"function": "cat", "numel": out.numel})

        def backward(g: Value) -> Gradients:
            return [self.part(g, value.shape) for value in values]

        return self.register(out, values, backward)

    def take(self, value: Value, shape: Sequence[int]) -> Value:
        """A slice as a view; backward fills zeros and copies the slice's gradient in."""
        out = self.part(value, shape)

        def backward(g: Value) -> Gradients:
            whole = self.gradient_like(value)
            attrs: dict[str, Attr] = {"function": "slice_backward", "numel": whole.numel}
            self.op(
                "aten.slice_backward", "copy", (g,), (whole,), attrs,
                bytes_written=whole.num_bytes + g.num_bytes, kernels=2, calls=3,
            )  # fmt: skip
            return (whole,)

        return self.register(out, (value,), backward)

    # Products

    def product_op(
        self, name: str, reads: Sequence[Value], out: Value, *, batch: int, m: int, n: int, k: int, layout: str,
        calls: int = 1,
    ) -> None:  # fmt: skip
        attrs: dict[str, Attr] = {"batch": batch, "m": m, "n": n, "k": k, "layout": layout}
        dtype = self.product_dtype(out.dtype)
        read = None
        if self.numbers.block and dtype == self.numbers.product:
            if self.numbers.software_scales:
                attrs["scale_block"] = self.numbers.block
            scales = batch * (m + n) * k / self.numbers.block
            read = sum([value.num_bytes for value in reads]) + scales
        self.op(
            name, "matmul", reads, (out,), attrs, flop=2.0 * batch * m * n * k, dtype=dtype, bytes_read=read,
            calls=calls,
        )  # fmt: skip

    def product_dtype(self, stored: str) -> str:
        """The arithmetic of a product: tf32 and fp8 are set by the recipe, else as stored."""
        numbers = self.numbers
        return numbers.product if stored == numbers.compute else stored

    def quantize(self, value: Value) -> None:
        """Transformer Engine's cast of an operand to fp8, stored in both layouts. Where blocks have scales, those of rows and of
        columns differ, so two sets of them are written and then laid out as the matrix units read them."""
        numbers = self.numbers
        if numbers.block:
            self._quantize_blocks(value)
        elif numbers.product in ("fp8", "fp4"):
            size = 1.0 if numbers.product == "fp8" else 0.5
            if numbers.dynamic:
                rows = value.numel // value.shape[-1]
                found: dict[str, Attr] = {"function": "amax", "rows": rows, "cols": value.shape[-1]}
                self.op("aten.amax", "reduce", (value,), (self.new((rows,), "fp32"),), found, flop=value.numel)
            small = self.new(value.shape, self.numbers.product)
            attrs: dict[str, Attr] = {"function": "quantize", "numel": value.numel}
            self.op("te.cast_transpose", "copy", (value,), (small,), attrs, bytes_written=2 * size * value.numel)

    def _quantize_blocks(self, value: Value) -> None:
        numbers = self.numbers
        scales = 2 * -(-value.numel // numbers.block)
        if numbers.rotates:
            # Pieces of 16 numbers are multiplied by a matrix of signs before they are rounded for the weight's gradient.
            turned: dict[str, Attr] = {"function": "hadamard", "numel": value.numel}
            self.op("te.hadamard_transform", "copy", (value,), (value,), turned, flop=32.0 * value.numel)
        small = self.new(value.shape, numbers.product)
        written = 2 * DTYPE_BYTES[numbers.product] * value.numel + scales
        attrs: dict[str, Attr] = {"function": "quantize", "numel": value.numel}
        self.op("te.quantize_blocks", "copy", (value,), (small,), attrs, bytes_written=written)
        if numbers.software_scales:
            return
        table = self.new((scales,), "uint8")
        order: dict[str, Attr] = {"function": "swizzle", "numel": scales}
        self.op("te.swizzle_scales", "copy", (table,), (table,), order)

    def linear(
        self, x: Value, features: int, *, bias: bool = True, name: str = "", weight: Value | None = None,
        layout: str = "tn", inputs: int | None = None,
    ) -> Value:  # fmt: skip
        """A dense layer. `layout` "tn" is torch.nn.Linear, "nn" Hugging Face's Conv1D; `weight` shares one that exists."""
        if name:
            with self.scope(name):
                return self.linear(x, features, bias=bias, weight=weight, layout=layout, inputs=inputs)
        width = inputs or x.shape[-1]
        rows = x.numel // width
        shape = (features, width) if layout == "tn" else (width, features)
        frozen, small = self._stored_dtypes() if weight is None else (None, None)
        weight_value = self.parameter("weight", shape, dtype=frozen or small or "") if weight is None else weight
        scales = self._make_scales(features * width) if frozen == "fp4" else []
        bias_value = self.parameter("bias", (features,)) if bias else None
        operands = self._operands(x, weight_value, bias_value)
        out = self.new((*x.shape[:-1], features), operands[0].dtype)
        # Quantised products (bitsandbytes) keep an fp32 copy of their input, though nothing needs it later.
        kept = [self.cast(operands[0], "fp32", cached=True)] if frozen else []
        as_stored = small is not None and small == self.numbers.product
        stored = [weight_value, *scales] if frozen or (small and not as_stored) else []
        plain = self._quantize_operands(operands, stored, as_stored=as_stored)
        self.product_op("aten.addmm" if bias else "aten.mm", [operands[0], plain, *operands[2:]], out,
            batch=1, m=rows, n=features, k=width, layout=layout, calls=4,
        )  # fmt: skip
        self._register_linear(out, operands, layout=layout, stored=stored, kept=kept)
        if self.recipe.adapter_rank and self.layer.rpartition(".")[2] in self.recipe.adapted:
            adapted = self.add(out, self.adapt(x, features))
            return self.rescale(adapted, plain) if self.recipe.adapter_norm else adapted
        return out

    def _stored_dtypes(self) -> tuple[str | None, str | None]:
        """(format of a frozen weight, of a trained one) of a layer, where it is another than the precision says."""
        if not self.in_layers:
            return None, None
        frozen = self.recipe.frozen_format
        return frozen, None if frozen else self.recipe.weight_dtype

    def _make_scales(self, weights: int) -> list[Value]:
        """Of frozen 4-bit weights."""
        number = -(-weights // FROZEN_BLOCK)
        name = f"{self.layer}.scales"
        if self.recipe.frozen_dtype != "nf4-dq":
            return [self.buffer(name, (number,))]
        return [self.buffer(name, (number,), "uint8"), self.buffer(f"{name}.scales", (-(-number // SCALE_BLOCK),))]

    def _quantize_operands(self, operands: Sequence[Value], stored: Sequence[Value], *, as_stored: bool) -> Value:
        """The weight as the product reads it. `as_stored`: in the format of the stored weights, without any cast (NVIDIA's fp8
        primary weights)."""
        plain = self.dequantize(stored, operands[0].dtype) if stored else operands[1]
        self.quantize(operands[0])
        if not as_stored:
            self.quantize(plain)
        return plain

    def _operands(self, x: Value, weight: Value, bias: Value | None) -> list[Value]:
        """What a product reads, in the format it reads it in."""
        operands = [self.for_product(x), self.for_product(weight)]
        if bias is not None:
            operands.append(self.for_product(bias))
        return operands

    def dequantize(self, stored: Sequence[Value], dtype: str) -> Value:
        """Frozen weights written out in the format of the product; done again in the backward pass."""
        out = self.new(stored[0].shape, dtype, role="temporary")
        attrs: dict[str, Attr] = {"function": "dequantize", "numel": out.numel}
        self.op("bitsandbytes.dequantize", "copy", stored, (out,), attrs, flop=out.numel)
        return out

    def _register_linear(
        self, out: Value, operands: Sequence[Value], *, layout: str, stored: Sequence[Value], kept: Sequence[Value]
    ) -> None:
        """How the gradient of a dense layer goes back: one product each for its input and its weight, a sum for its bias.

        `stored` is a frozen weight with its scales, `kept` what the layer holds without need.
        """
        x, weight = operands[:2]
        features, width = weight.shape if layout == "tn" else weight.shape[::-1]
        rows = x.numel // width

        def backward(g: Value) -> Gradients:
            self.quantize(g)
            gradients: list[Value | None] = [None] * len(operands)
            if x.needs_gradient:
                gradients[0] = gx = self.gradient_like(x)
                back = "nn" if layout == "tn" else "tn"
                plain = self.dequantize(stored, x.dtype) if stored else weight
                reads = (g, plain, *kept)
                self.product_op("aten.mm", reads, gx, batch=1, m=rows, n=width, k=features, layout=back, calls=3)
            if weight.needs_gradient:
                gradients[1] = gw = self.gradient_like(weight)
                m, n = weight.shape
                self.product_op("aten.mm", (g, x), gw, batch=1, m=m, n=n, k=rows, layout="nt", calls=4)
            if len(operands) == 3 and operands[2].needs_gradient:
                gradients[2] = self.sum_to(g, operands[2])
            return gradients

        self.register(out, tuple(operands), backward)

    def adapt(self, x: Value, features: int) -> Value:
        """The low-rank path beside a frozen layer: down to the rank and up again (Hu et al. 2021)."""

        def narrow(value: Value, name: str, size: int) -> Value:
            width = value.shape[-1]
            rows = value.numel // width
            weight = self.parameter(name, (size, width), adapter=True)
            value, used = self.for_product(value), self.for_product(weight)
            out = self.new((*value.shape[:-1], size), value.dtype)
            self.product_op("aten.mm", (value, used), out, batch=1, m=rows, n=size, k=width, layout="tn", calls=4)

            def backward(g: Value) -> Gradients:
                gx, gw = self.gradient_like(value), self.gradient_like(used)
                self.product_op("aten.mm", (g, used), gx, batch=1, m=rows, n=width, k=size, layout="nn", calls=3)
                self.product_op("aten.mm", (g, value), gw, batch=1, m=size, n=width, k=rows, layout="nt", calls=4)
                return gx, gw

            return self.register(out, (value, used), backward)

        return self.scale(narrow(narrow(x, "adapter_down", self.recipe.adapter_rank), "adapter_up", features))

    def rescale(self, out: Value, weight: Value) -> Value:
        """Outputs scaled by a trained length over that of each row of the adapted weight, which is worked out anew in every pass
        and has no gradient of its own (DoRA, Liu et al. 2024, section 4.3)."""
        features = out.shape[-1]
        width = weight.numel // features
        merged = self.new((features, width), weight.dtype, role="temporary")
        rank = self.recipe.adapter_rank
        self.product_op("aten.mm", (weight,), merged, batch=1, m=features, n=width, k=rank, layout="nn", calls=3)
        attrs: dict[str, Attr] = {"function": "add", "numel": merged.numel, "num_inputs": 2}
        self.op("aten.add", "elementwise", (weight, merged), (merged,), attrs, flop=merged.numel)
        norms = self.new((features,), weight.dtype, role="temporary")
        sizes: dict[str, Attr] = {"function": "norm", "rows": features, "cols": width}
        self.op("aten.linalg_vector_norm", "reduce", (merged,), (norms,), sizes, flop=2 * merged.numel)
        length = self.parameter("adapter_norm", (features,), adapter=True)
        return self.multiply(out, self.for_product(length))

    def matmul(
        self, a: Value, b: Value, *, batch: int, m: int, n: int, k: int, layout: str, shape: Sequence[int]
    ) -> Value:
        """A batched product of two activations."""
        a, b = self.for_product(a), self.for_product(b)
        out = self.new(shape, a.dtype)
        self.product_op("aten.bmm", (a, b), out, batch=batch, m=m, n=n, k=k, layout=layout, calls=4)

        def backward(g: Value) -> Gradients:
            ga = gb = None
            if b.needs_gradient:
                gb = self.gradient_like(b)
                self.product_op("aten.bmm", (a, g), gb, batch=batch, m=k, n=n, k=m, layout="nt", calls=2)
            if a.needs_gradient:
                ga = self.gradient_like(a)
                back = "nn" if layout == "tn" else "tn"
                self.product_op("aten.bmm", (g, b), ga, batch=batch, m=m, n=k, k=n, layout=back, calls=2)
            return ga, gb

        return self.register(out, (a, b), backward)

    # Normalisation

    def layer_norm(self, x: Value, *, name: str = "norm", affine: bool = True, bias: bool = True) -> Value:
        """Keeps its input and two statistics per row; backward is two kernels (input, weights)."""
        cols = x.shape[-1]
        rows = x.numel // cols
        with self.scope(name):
            weights = [self.parameter("weight", (cols,))] if affine else []
            if affine and bias:
                weights.append(self.parameter("bias", (cols,)))
            x = self.for_stable(x)
            return self._norm("layer_norm", x, weights, rows=rows, cols=cols, num_statistics=2)

    def _norm(
        self, function: str, x: Value, weights: list[Value], *, rows: int, cols: int, num_statistics: int
    ) -> Value:
        out = self.new(x.shape, x.dtype)
        statistics = [self.new((rows,), "fp32") for _ in range(num_statistics)]
        attrs: dict[str, Attr] = {"function": function, "rows": rows, "cols": cols}
        if self.recipe.fused:
            attrs["fused"] = True
        self.op(f"aten.native_{function}", "norm", (x, *weights), (out, *statistics), attrs, flop=8.0 * x.numel)

        def backward(g: Value) -> Gradients:
            gx = self.gradient_like(x)
            given = [self.gradient_like(weight) for weight in weights]
            passes = 2 if weights else 1
            self.op(
                f"aten.native_{function}_backward", "norm", (g, x, *statistics, *weights), (gx, *given), attrs,
                flop=12.0 * x.numel, kernels=passes,
            )  # fmt: skip
            return (gx, *given)

        return self.register(out, (x, *weights), backward)

    def rms_norm(self, x: Value, *, name: str = "norm", fused: bool = False, width: int | None = None) -> Value:
        """As Hugging Face writes it in Python (cast, square, mean, rsqrt, two products), or fused as one kernel."""
        cols = width or x.shape[-1]
        rows = x.numel // cols
        with self.scope(name):
            weight = self.parameter("weight", (cols,))
            if fused:
                return self._norm("rms_norm", x, [weight], rows=rows, cols=cols, num_statistics=1)
            stored = x.dtype
            wide = self.cast(x, "fp32")

            def pow_backward(g: Value, out: Value) -> Gradients:
                twice = self.kernel("mul", (self.kernel("pow", (wide,), wide),), wide)
                return (self.kernel("mul", (g, twice), wide),)

            square = self.pointwise("pow", wide, backward=pow_backward)
            mean = self.reduce_mean(square, rows=rows, cols=cols)

            def rsqrt_backward(g: Value, out: Value) -> Gradients:
                cube = self.kernel("pow", (out,), mean)
                return (self.kernel("mul", (self.kernel("mul", (g,), mean), cube), mean),)

            inverse = self.pointwise("rsqrt", self.shift(mean), backward=rsqrt_backward)
            normal = self.cast(self.multiply(wide, inverse), stored)
            return self.multiply(normal, weight)

    def reduce_mean(self, x: Value, *, rows: int, cols: int) -> Value:
        out = self.new((rows,), x.dtype)
        attrs: dict[str, Attr] = {"function": "mean", "rows": rows, "cols": cols}
        self.op("aten.mean", "reduce", (x,), (out,), attrs, flop=x.numel)
        return self.register(out, (x,), lambda g: (self.kernel("div", (g,), x, calls=2),))

    def batch_norm(self, x: Value, *, name: str = "bn", channels: int | None = None) -> Value:
        """cuDNN keeps its input and the batch statistics; weights and statistics stay fp32."""
        channels = channels or x.shape[1]
        cols = x.numel // channels
        with self.scope(name):
            weights = [
                self.parameter("weight", (channels,), dtype="fp32"),
                self.parameter("bias", (channels,), dtype="fp32"),
            ]
            running = [self.buffer(f"{self.layer}.running_{kind}", (channels,)) for kind in ("mean", "var")]
            out = self.new(x.shape, x.dtype)
            attrs: dict[str, Attr] = {"function": "batch_norm", "rows": channels, "cols": cols}
            if not self.recipe.trains:
                self.op("aten.native_batch_norm", "norm", (x, *weights, *running), (out,), attrs, flop=2.0 * x.numel)
                return out
            statistics = [self.new((channels,), "fp32") for _ in range(2)]
            self.op(
                "aten.native_batch_norm", "norm", (x, *weights, *running), (out, *statistics, *running), attrs,
                flop=8.0 * x.numel,
            )  # fmt: skip
            self.op(
                "aten.add_", "elementwise", (), (self.new((1,), "int64", role="buffer"),),
                {"function": "add", "numel": 1, "num_inputs": 1}, flop=1.0,
            )  # fmt: skip

            def backward(g: Value) -> Gradients:
                gx = self.gradient_like(x)
                given = [self.gradient_like(weight) for weight in weights]
                self.op(
                    "aten.native_batch_norm_backward", "norm", (g, x, *statistics, weights[0]), (gx, *given), attrs,
                    flop=12.0 * x.numel, kernels=2,
                )  # fmt: skip
                return (gx, *given)

            return self.register(out, (x, *weights), backward)

    def frozen_norm(self, x: Value, *, name: str = "bn") -> Value:
        """Batch normalisation with fixed statistics, written as one product and one sum (detectron and torchvision)."""
        channels = x.shape[1]
        with self.scope(name):
            for kind in ("weight", "bias", "running_mean", "running_var"):
                self.buffer(f"{self.layer}.{kind}", (channels,))
            factor, offset = self.new((channels,), x.dtype), self.new((channels,), x.dtype)
            self.op(
                "aten.mul", "elementwise", (), (factor, offset), {"function": "mul", "numel": 5 * channels, "num_inputs": 4},
                flop=5.0 * channels, bytes_read=16.0 * channels, kernels=4, calls=8,
            )  # fmt: skip
            return self.add(self.multiply(x, factor), offset)

    def group_norm(self, x: Value, *, groups: int = 32, name: str = "norm", function: str = "group_norm") -> Value:
        """Rows are samples x groups."""
        channels = x.shape[1]
        rows = x.shape[0] * groups
        with self.scope(name):
            weights = [self.parameter("weight", (channels,)), self.parameter("bias", (channels,))]
            # Autocast widens group norm; instance norm is not on its list and runs on halves, with statistics in fp32.
            x = self.for_stable(x) if function == "group_norm" else x
            return self._norm(function, x, weights, rows=rows, cols=x.numel // rows, num_statistics=2)

    # Softmax and loss

    def softmax(self, x: Value, *, fused: bool = False) -> Value:
        """Keeps its output. The CUDA backward first writes gradient x output: two kernels, unless fused."""
        x = x if fused else self.for_stable(x)
        cols = x.shape[-1]
        rows = x.numel // cols
        out = self.new(x.shape, x.dtype)
        attrs: dict[str, Attr] = {"rows": rows, "cols": cols}
        self.op(
            "aten._softmax" if not fused else "megatron.scaled_masked_softmax", "softmax", (x,), (out,), attrs,
            flop=5.0 * x.numel,
        )  # fmt: skip

        def backward(g: Value) -> Gradients:
            gx = self.gradient_like(x)
            if fused:
                self.op(
                    "megatron.scaled_masked_softmax_backward", "softmax", (g, out), (gx,), attrs, flop=5.0 * x.numel
                )
                return (gx,)
            self.op(
                "aten._softmax_backward_data", "softmax", (g, out), (gx,), attrs, flop=4.0 * x.numel, kernels=2,
            )  # fmt: skip
            return (gx,)

        return self.register(out, (x,), backward)

    def cross_entropy(
        self, logits: Value, *, classes: int | None = None, in_place: bool = False, fused: bool = False
    ) -> Value:
        """Log-softmax and negative log-likelihood, in fp32 as Hugging Face and autocast do. `in_place`: the gradient is written
        over what came, as the loss over a split vocabulary does, so two copies of the scores exist and not three.
        `fused`: one kernel that reads the scores in their own format and keeps them (flash-attn's cross entropy). With
        `Recipe.loss_in_place` gradients take the place of scores: no second copy of all of them exists."""
        cols = classes or logits.shape[-1]
        rows = logits.numel // cols
        if fused:
            return self._fused_cross_entropy(logits, rows=rows, cols=cols)
        if in_place:
            return self._split_cross_entropy(logits, rows=rows, cols=cols)
        with self.scope("loss"):
            labels = self.input("labels", (rows,), "int64")
            over = self.recipe.loss_in_place
            kept = self.recipe.wide_scores
            wide = self.cast(logits, "fp32") if kept or not over else logits
            log = self.new(wide.shape, wide.dtype)
            attrs: dict[str, Attr] = {"rows": rows, "cols": cols}
            self.op("aten._log_softmax", "softmax", (wide,), (log,), attrs, flop=5.0 * wide.numel)

            def log_backward(g: Value) -> Gradients:
                gx = log if over else self.gradient_like(wide)
                read = (wide if kept else g, log)
                self.op("aten._log_softmax_backward_data", "softmax", read, (gx,), attrs, flop=5.0 * wide.numel)
                return (gx,)

            self.register(log, (wide,), log_backward)
            loss = self.new((1,), "fp32")
            nll: dict[str, Attr] = {"function": "nll_loss", "numel": rows}
            self.op("aten.nll_loss_forward", "index", (log, labels), (loss,), nll, flop=rows, bytes_read=12.0 * rows)

            def nll_backward(g: Value) -> Gradients:
                gx = log if over else self.new(log.shape, "fp32")
                self.op("aten.nll_loss_backward", "index", (g, labels), (gx,), nll, flop=rows, kernels=2)
                return (gx,)

            return self.register(loss, (log,), nll_backward)

    def _split_cross_entropy(self, logits: Value, *, rows: int, cols: int) -> Value:
        """The loss over a split vocabulary: ranks exchange the largest score and the sum of exponentials of a row, so that
        every step up to the probabilities is a kernel of its own. Their buffer becomes the gradient."""
        with self.scope("loss"):
            labels = self.input("labels", (rows,), "int64")
            wide = self.cast(logits, "fp32")
            found = self.new((rows,), "fp32")
            chances = wide if self.recipe.loss_in_place else self.new(wide.shape, "fp32")
            sizes: dict[str, Attr] = {"function": "reduce", "rows": rows, "cols": cols}

            def run(function: str, source: Value) -> None:
                attrs: dict[str, Attr] = {"function": function, "numel": wide.numel, "num_inputs": 1}
                self.op(f"aten.{function}", "elementwise", (source,), (chances,), attrs, flop=wide.numel)

            self.op("aten.amax", "reduce", (wide,), (found,), sizes, flop=wide.numel)
            run("sub", wide)
            run("exp", chances)
            self.op("aten.sum", "reduce", (chances,), (found,), sizes, flop=wide.numel)
            run("div", chances)
            loss = self.new((1,), "fp32")
            own: dict[str, Attr] = {"function": "gather", "numel": rows}
            self.op("aten.gather", "index", (chances, labels), (loss,), own, flop=rows, bytes_read=12.0 * rows)

            def backward(g: Value) -> Gradients:
                gx = chances if self.recipe.loss_in_place else self.gradient_like(wide)
                attrs: dict[str, Attr] = {"function": "mul", "numel": wide.numel, "num_inputs": 1}
                self.op("aten.mul", "elementwise", (chances, g), (gx,), attrs, flop=wide.numel)
                return (gx,)

            return self.register(loss, (wide,), backward)

    def _fused_cross_entropy(self, logits: Value, *, rows: int, cols: int) -> Value:
        with self.scope("loss"):
            labels = self.input("labels", (rows,), "int64")
            loss = self.new((rows,), "fp32")
            attrs: dict[str, Attr] = {"rows": rows, "cols": cols}
            self.op("flash_attn.cross_entropy", "softmax", (logits, labels), (loss,), attrs, flop=5.0 * logits.numel)

            def backward(g: Value) -> Gradients:
                gx = logits if self.recipe.loss_in_place else self.gradient_like(logits)
                reads = (g, logits, labels)
                self.op("flash_attn.cross_entropy_backward", "softmax", reads, (gx,), attrs, flop=5.0 * logits.numel)
                return (gx,)

            return self.register(loss, (logits,), backward)

    def mean_loss(self, prediction: Value, function: str = "mse_loss") -> Value:
        """An elementwise loss against a target of the same shape, averaged; in fp32."""
        with self.scope("loss"):
            wide = self.cast(prediction, "fp32")
            target = self.input("target", wide.shape, "fp32")
            loss = self.new((1,), "fp32")
            attrs: dict[str, Attr] = {"function": function, "rows": 1, "cols": wide.numel}
            self.op(f"aten.{function}", "reduce", (wide, target), (loss,), attrs, flop=3.0 * wide.numel, kernels=2)

            def backward(g: Value) -> Gradients:
                return (self.kernel(f"{function}_backward", (g, wide, target), wide),)

            return self.register(loss, (wide,), backward)

    # Lookups

    def embedding(
        self, ids: Value, *, vocab: int, width: int, name: str = "embedding", weight: Value | None = None,
        sparse: bool = False,
    ) -> Value:  # fmt: skip
        """Gather rows; backward fills a dense gradient with zeros, sorts the ids and adds the rows up.

        `sparse`: the gradient holds only the rows that were read, and so the optimizer touches only those.
        """
        with self.scope(name):
            table = self.parameter("weight", (vocab, width)) if weight is None else weight
            out = self.new((*ids.shape, width), table.dtype)
            attrs: dict[str, Attr] = {"rows": ids.numel, "cols": width, "vocab": vocab}
            if sparse:
                attrs["sparse"] = True
            self.op(
                "aten.embedding", "embedding", (table, ids), (out,), attrs, bytes_read=out.num_bytes + ids.num_bytes
            )

            def backward(g: Value) -> Gradients:
                if sparse:
                    rows = self.new((ids.numel, width), table.dtype, role="gradient", name=f"{name}.grad")
                    self.op("aten.embedding_sparse_backward", "embedding", (g, ids), (rows,), attrs, kernels=2, calls=3)
                    return (rows,)
                gradient = self.gradient_like(table)
                self.op(
                    "aten.embedding_dense_backward", "embedding", (g, ids), (gradient,), attrs, flop=g.numel,
                    kernels=6 if ids.numel > 3072 else 2,
                )  # fmt: skip
                return (gradient,)

            return self.register(out, (table,), backward)

    def table_lookup(self, ids: Value, *, rows: Sequence[int], width: int, bags: int, name: str = "tables") -> Value:
        """All tables of a recommendation model in one kernel each way (FBGEMM's table-batched embedding, HugeCTR).

        The vectors of the ids of one sample and table are summed and leave in the format of the products. In the backward pass
        the gradients of equal ids are added up and every distinct row is updated in the same kernel (Mudigere et al. 2022).
        """
        with self.scope(name):
            table = self.parameter("weight", (sum(rows), width))
            half = self.numbers.autocast
            out = self.new((bags, width), self.numbers.compute if half else table.dtype)
            small = [number for number in rows if number * len(rows) <= bags]
            attrs: dict[str, Attr] = {
                "rows": ids.numel, "cols": width, "vocab": sum(rows), "sparse": True,
                "replicated_rows": sum(small), "spread_share": 1 - len(small) / len(rows), "num_tables": len(rows),
                "largest_rows": max(rows),
            }  # fmt: skip
            row_bytes = width * DTYPE_BYTES[table.dtype]
            distinct = count_distinct(rows, ids.numel / len(rows))
            self.op(
                "fbgemm.embedding_bag", "embedding", (table, ids), (out,), attrs, flop=ids.numel * width,
                bytes_read=(distinct + (ids.numel - distinct) / L2_OVER_DRAM) * row_bytes + ids.num_bytes,
            )  # fmt: skip

            def backward(g: Value) -> Gradients:
                update = OPTIMIZERS.get(self.recipe.update_name)
                read, written = (update.fused_reads - 1, update.fused_writes) if update else (0, 1)
                # What is left for the optimizer is one row, so that the table keeps its state.
                gradient = self.new((1, width), table.dtype, role="gradient", name=f"{name}.grad")
                self.op(
                    "fbgemm.embedding_bag_backward", "embedding", (g, ids), (gradient,), attrs, flop=ids.numel * width,
                    bytes_read=g.num_bytes + 3 * ids.num_bytes + read * distinct * row_bytes,
                    bytes_written=written * distinct * row_bytes, kernels=4, calls=4,
                )  # fmt: skip
                return (gradient,)

            return self.register(out, (table,), backward)

    def position_table(self, *, length: int, width: int, rows: int | None = None, name: str = "positions") -> Value:
        """A learned position embedding, looked up once for all samples."""
        ids = self.input("position_ids", (length,), "int64")
        return self.embedding(ids, vocab=rows or length, width=width, name=name)

    def gather_rows(self, x: Value, rows: int, *, function: str = "index_select") -> Value:
        """Pick or permute rows of a matrix by index; backward adds them back."""
        width = x.shape[-1]
        out = self.new((rows, width), x.dtype)
        attrs: dict[str, Attr] = {"function": function, "numel": out.numel}
        self.op(f"aten.{function}", "index", (x,), (out,), attrs, bytes_read=out.num_bytes + 8.0 * rows)

        def backward(g: Value) -> Gradients:
            gx = self.gradient_like(x)
            self.op(
                "aten.index_add_", "index", (g,), (gx,), attrs, flop=g.numel,
                bytes_read=2 * g.num_bytes, bytes_written=gx.num_bytes + g.num_bytes, kernels=2, calls=2,
            )  # fmt: skip
            return (gx,)

        return self.register(out, (x,), backward)

    def scatter_rows(self, x: Value, rows: int) -> Value:
        """Add rows into fewer rows by index; backward gathers."""
        width = x.shape[-1]
        out = self.new((rows, width), x.dtype)
        attrs: dict[str, Attr] = {"function": "index_add", "numel": x.numel}
        self.op(
            "aten.index_add_", "index", (x,), (out,), attrs, flop=x.numel,
            bytes_read=2 * x.num_bytes, bytes_written=out.num_bytes + x.num_bytes, kernels=2, calls=2,
        )  # fmt: skip

        def backward(g: Value) -> Gradients:
            gx = self.gradient_like(x)
            self.op(
                "aten.index_select", "index", (g,), (gx,), {"function": "index_select", "numel": gx.numel},
                bytes_read=gx.num_bytes,
            )  # fmt: skip
            return (gx,)

        return self.register(out, (x,), backward)

    def conv(
        self, x: Value, channels: int, kernel_size: int | Sequence[int], *, stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | None = None, dilation: int = 1, groups: int = 1, bias: bool = False,
        name: str = "conv", transposed: bool = False, trained: bool = True,
    ) -> Value:  # fmt: skip
        """A convolution of any dimension on (batch, channels, *size), with weights of its own; `trained` False: fixed ones.
        Padding defaults to 'same' for stride 1."""
        window = Window.over(
            len(x.shape) - 2, kernel_size, stride=stride, padding=padding, dilation=dilation, transposed=transposed
        )
        with self.scope(name):
            in_channels = x.shape[1]
            first, second = (in_channels, channels // groups) if transposed else (channels, in_channels // groups)
            weight = self.parameter("weight", (first, second, *window.kernels), trained=trained)
            bias_value = self.parameter("bias", (channels,), trained=trained) if bias else None
            return self._convolve(x, weight, bias_value, channels=channels, window=window, groups=groups)

    def conv_with(
        self, x: Value, weights: tuple[Value, Value | None], kernel_size: int, *, name: str = "conv"
    ) -> Value:
        """A convolution with a weight and bias that exist already, padded to keep its size."""
        window = Window.over(len(x.shape) - 2, kernel_size, stride=1, padding=None, dilation=1, transposed=False)
        with self.scope(name):
            return self._convolve(x, *weights, channels=weights[0].shape[0], window=window, groups=1)

    def _convolve(
        self, x: Value, weight: Value, bias: Value | None, *, channels: int, window: Window, groups: int
    ) -> Value:
        batch, in_channels, *size = x.shape
        out_size = window.out_size(size)
        operands = self._operands(x, weight, bias)
        x_used, w_used = operands[:2]
        out = self.new((batch, channels, *out_size), x_used.dtype)
        each = math.prod(window.kernels)
        macs = (
            x.numel * (channels // groups) * each if window.transposed else out.numel * (in_channels // groups) * each
        )
        dtype = self.product_dtype(x_used.dtype)
        ends = [(in_channels, size), (channels, out_size)]
        (read_channels, read_size), (made_channels, made_size) = reversed(ends) if window.transposed else ends
        sizes: dict[str, Attr] = {
            "batch": batch, "in_channels": read_channels, "out_channels": made_channels, "groups": groups,
            "in_size": _sizes(read_size), "out_size": _sizes(made_size), "kernel": _sizes(window.kernels),
            "stride": _sizes(window.strides),
        }  # fmt: skip
        if self.recipe.channels_last:
            sizes["channels_last"] = True

        def write(direction: str, reads: Sequence[Value], result: Value) -> None:
            name = "aten.convolution" if direction == "forward" else f"aten.convolution_backward.{direction}"
            pass_ = MIRRORED[direction] if window.transposed else direction
            self.op(name, "conv", reads, (result,), {**sizes, "pass": pass_}, flop=2.0 * macs, dtype=dtype)

        write("forward", operands[:2], out)
        if bias is not None:
            # cuDNN adds the bias in a kernel of its own.
            attrs: dict[str, Attr] = {"function": "add", "numel": out.numel, "num_inputs": 2}
            self.op("aten.add_", "elementwise", (out, operands[2]), (out,), attrs, flop=out.numel, calls=0)

        def backward(g: Value) -> Gradients:
            gradients: list[Value | None] = [None] * len(operands)
            if x_used.needs_gradient:
                gradients[0] = gx = self.gradient_like(x_used)
                write("grad_input", (g, w_used), gx)
            if w_used.needs_gradient:
                gradients[1] = gw = self.gradient_like(w_used)
                write("grad_weight", (g, x_used), gw)
            if len(operands) == 3 and operands[2].needs_gradient:
                gradients[2] = self.sum_to(g, operands[2])
            return gradients

        return self.register(out, tuple(operands), backward)

    def pool(
        self, x: Value, kernel_size: int | Sequence[int], *, stride: int | Sequence[int] | None = None,
        padding: int = 0, function: str = "max", ceil: bool = False,
    ) -> Value:  # fmt: skip
        """Max pooling keeps its input and the indices; average pooling its input."""
        size = x.shape[2:]
        kernels = [kernel_size] * len(size) if isinstance(kernel_size, int) else list(kernel_size)
        if stride is None:
            strides = kernels
        else:
            strides = [stride] * len(size) if isinstance(stride, int) else list(stride)
        extra = [st - 1 if ceil else 0 for st in strides]
        out_size = [
            (s + 2 * padding - k + e) // st + 1 for s, k, st, e in zip(size, kernels, strides, extra, strict=True)
        ]
        out = self.new((*x.shape[:2], *out_size), x.dtype)
        writes = (out, self.new(out.shape, "int64")) if function == "max" else (out,)
        attrs: dict[str, Attr] = {"function": function, "numel": out.numel, "kernel": _sizes(kernels)}
        cost = out.numel * math.prod(kernels)
        self.op(f"aten.{function}_pool", "pool", (x,), writes, attrs, flop=float(cost))

        def backward(g: Value) -> Gradients:
            gx = self.gradient_like(x)
            # The backward kernels take the saved input for its shape; max pooling reads its indices only.
            kept = (*writes[1:], x)
            size_read = g.num_bytes + sum(value.num_bytes for value in writes[1:])
            self.op(
                f"aten.{function}_pool_backward", "pool", (g, *kept), (gx,), attrs, flop=float(cost),
                bytes_read=size_read,
            )  # fmt: skip
            return (gx,)

        return self.register(out, (x,), backward)

    def global_pool(self, x: Value) -> Value:
        """The mean over all positions, as adaptive_avg_pool(1) and flatten; backward expands and divides."""
        rows = x.shape[0] * x.shape[1]
        mean = self.reduce_mean(x, rows=rows, cols=x.numel // rows)
        return self.view(mean, x.shape[:2])

    def upsample(self, x: Value, factor: int = 2, *, function: str = "nearest") -> Value:
        out = self.new((*x.shape[:2], *[size * factor for size in x.shape[2:]]), x.dtype)
        attrs: dict[str, Attr] = {"function": f"upsample_{function}", "numel": out.numel, "kernel": str(factor)}
        self.op(f"aten.upsample_{function}", "pool", (x,), (out,), attrs, flop=float(out.numel))

        def backward(g: Value) -> Gradients:
            gx = self.gradient_like(x)
            self.op(f"aten.upsample_{function}_backward", "pool", (g,), (gx,), attrs, flop=float(out.numel))
            return (gx,)

        return self.register(out, (x,), backward)

    # Recurrent

    def rnn(
        self, x: Value, hidden: int, *, layers: int = 1, directions: int = 1, cell: str = "lstm", name: str = "rnn",
        bias: bool = True,
    ) -> Value:  # fmt: skip
        """A cuDNN recurrent stack on (length, batch, features): one op, with the gates it keeps for backward."""
        length, batch, inputs = x.shape
        gates = {"lstm": 4, "gru": 3, "rnn": 1}[cell]
        with self.scope(name):
            weights = []
            flop = 0.0
            width = inputs
            for layer in range(layers):
                for direction in range(directions):
                    suffix = f"l{layer}{'_reverse' if direction else ''}"
                    weights.append(self.parameter(f"weight_ih_{suffix}", (gates * hidden, width)))
                    weights.append(self.parameter(f"weight_hh_{suffix}", (gates * hidden, hidden)))
                    if bias:
                        weights.append(self.parameter(f"bias_ih_{suffix}", (gates * hidden,)))
                        weights.append(self.parameter(f"bias_hh_{suffix}", (gates * hidden,)))
                flop += directions * 2.0 * length * batch * gates * hidden * (width + hidden)
                width = hidden * directions
            used = [self.for_product(weight) for weight in weights]
            x = self.for_product(x)
            out = self.new((length, batch, hidden * directions), x.dtype)
            # cuDNN's reserve holds the gates, cell states and the outputs of inner layers.
            kept = length * batch * hidden * directions * (layers * (gates + (1 if cell == "lstm" else 0)) + layers - 1)
            reserve = self.new((kept,), x.dtype)
            attrs: dict[str, Attr] = {
                "cell": cell, "batch": batch, "length": length, "inputs": inputs, "hidden": hidden, "layers": layers,
                "directions": directions,
            }  # fmt: skip
            size = sum(weight.num_bytes for weight in used)
            dtype = self.product_dtype(x.dtype)
            # Input products run once per layer, recurrent ones once per time step, each with a pointwise kernel.
            steps = layers * directions * (1 + 2 * length)
            self.op(
                "aten._cudnn_rnn", "rnn", (x, *used), (out, reserve), attrs, flop=flop, dtype=dtype,
                bytes_read=x.num_bytes + size + layers * out.num_bytes, kernels=steps,
            )  # fmt: skip

            def backward(g: Value) -> Gradients:
                gx = self.gradient_like(x)
                given = [self.gradient_like(weight) for weight in used]
                self.op(
                    "aten._cudnn_rnn_backward", "rnn", (g, x, out, reserve, *used), (gx, *given), attrs, flop=2 * flop,
                    dtype=dtype,
                    bytes_read=g.num_bytes + x.num_bytes + out.num_bytes + 2 * reserve.num_bytes + 2 * size,
                    bytes_written=gx.num_bytes + size + reserve.num_bytes, kernels=steps + layers * directions * 3,
                )  # fmt: skip
                return (gx, *given)

            return self.register(out, (x, *used), backward)
