"""Widths that matrix units cannot load in whole vectors: what they cost, and the sentences that say so."""

import math
from collections.abc import Sequence
from dataclasses import replace

from traincast.cost import OpModel
from traincast.cost._bounds import product_flop_per_s
from traincast.spec import Device, Op
from traincast.units import DTYPE_BYTES

VECTOR_BYTES = 16
SLOWER: dict[int, float] = {16: 1.0, 8: 1.12, 4: 1.25, 2: 1.45, 1: 1.9}
"""Time of a product whose rows start at multiples of so many bytes only, beside whole vectors. Public runs with such widths
take 20 to 40% longer; no kernel of ours was measured with them, so DOUBT is added."""
DOUBT = 0.12
HEAD_MULTIPLE = 8
WORTH_SAYING = 0.02
"""Share of all the ops' time below which a width is not worth a sentence."""


def row_alignment(op: Op) -> int:
    """Bytes, up to a vector, that the rows of a product's operands and result start at multiples of."""
    attrs = op.attrs
    first = attrs["m"] if attrs["layout"] == "nt" else attrs["k"]
    item = DTYPE_BYTES[op.dtype]
    return math.gcd(math.gcd(int(first * item), int(attrs["n"] * item)), VECTOR_BYTES)  # type: ignore[operator]


def misalignment(op: Op) -> tuple[float, float]:
    """How much slower a product on matrix units is for its widths, and how sure that is (log_sigma)."""
    slower = SLOWER[row_alignment(op)]
    return slower, 0.0 if slower == 1.0 else DOUBT


def warn_alignment(ops: Sequence[Op], device: Device, model: OpModel) -> tuple[str, ...]:
    """One sentence per width that costs time: what it is, what it costs, and the nearest widths that would not."""
    found: dict[tuple[str, int], list[Op]] = {}
    products = [op for op in ops if op.kind in ("matmul", "attention")]
    wide = {
        dtype for dtype in {op.dtype for op in products} if product_flop_per_s(device, dtype)[1] in ("fp32", "fp64")
    }
    for op in products:
        if op.dtype in wide:
            continue
        for word, width in _odd_widths(op):
            found.setdefault((word, width), []).append(op)
    if not found:
        return ()
    total_s = sum(estimate.seconds for estimate in model.estimate_ops(ops, device))
    sentences = []
    for (word, width), touched in sorted(found.items()):
        now_s, then_s = (
            sum(estimate.seconds for estimate in model.estimate_ops(asked, device))
            for asked in (touched, [_rounded(op, width) for op in touched])
        )
        if now_s - then_s >= WORTH_SAYING * total_s:
            low, high = width // HEAD_MULTIPLE * HEAD_MULTIPLE, -(-width // HEAD_MULTIPLE) * HEAD_MULTIPLE
            sentences.append(
                f"{word} {width} is no multiple of {HEAD_MULTIPLE}: its products are about "
                f"{100 * (now_s / then_s - 1):.0f}% slower; {f'{low} or {high}' if low else high} would not be"
            )
    return tuple(sentences)


def _odd_widths(op: Op) -> list[tuple[str, int]]:
    if op.kind == "attention":
        size = int(op.attrs["head_dim"])
        return [("head size", size)] if size % HEAD_MULTIPLE else []
    keys = ("m", "n") if op.attrs["layout"] == "nt" else ("k", "n")
    word = "head size or length" if int(op.attrs["batch"]) > 1 else "width"
    return [(word, int(op.attrs[key])) for key in keys if int(op.attrs[key]) % HEAD_MULTIPLE]


def _rounded(op: Op, width: int) -> Op:
    """The same op with whole vectors in that width, its work unchanged but for the rounding."""
    whole = -(-width // HEAD_MULTIPLE) * HEAD_MULTIPLE
    attrs = {
        key: whole if key in ("m", "n", "k", "head_dim") and value == width else value
        for key, value in op.attrs.items()
    }
    return replace(op, attrs=attrs)
