"""Widths that matrix units cannot load in whole vectors: what they cost, and the sentences that say so."""

import math
from collections.abc import Sequence
from dataclasses import replace

from traincast.cost import OpModel
from traincast.cost._bounds import product_flop_per_s
from traincast.cost._silicon import find_silicon
from traincast.spec import Device, Op
from traincast.units import DTYPE_BYTES

VECTOR_BYTES = 16
SLOWER: dict[int, float] = {16: 1.0, 8: 1.7, 4: 2.4, 2: 2.8, 1: 3.2}
"""Time of a product whose rows start at multiples of so many bytes only, beside whole vectors, on units that take their operands
from shared memory or need whole vectors (data-centre chips). From public runs, recalled: a vocabulary of 50,257 instead of 50,304
costs a small language model a quarter of its rate on A100; head sizes that are no multiple of 8 cost whole runs 20 to 40%."""
SLOWER_GRAPHICS: dict[int, float] = {16: 1.0, 8: 1.12, 4: 1.25, 2: 1.45, 1: 1.9}
SLOWER_BATCHED = 1.65
"""The same on graphics chips, whose units wait for less: of one product, and of any product of many small matrices (196 or 197
tokens of image transformers on RTX 3090, families left out: 1.5 to 1.8 whatever the remainder)."""
GRAPHICS = ("ga10x", "ada", "gb20x")
DOUBT = 0.25
HEAD_MULTIPLE = 8
WORTH_SAYING = 0.02
"""Share of all the ops' time below which a width is not worth a sentence."""


def row_alignment(op: Op) -> int:
    """Bytes, up to a vector, that the rows of a product's operands and result start at multiples of."""
    attrs = op.attrs
    first = attrs["m"] if attrs["layout"] == "nt" else attrs["k"]
    item = DTYPE_BYTES[op.dtype]
    return math.gcd(math.gcd(int(first * item), int(attrs["n"] * item)), VECTOR_BYTES)  # type: ignore[operator]


def misalignment(op: Op, device: Device) -> tuple[float, float]:
    """How much slower a product on matrix units is for its widths, and how sure that is (log_sigma)."""
    found = row_alignment(op)
    if found == VECTOR_BYTES or op.attrs.get("padded"):
        return 1.0, 0.0
    slower, doubt = _slowdown(op, device, found)
    return (1.0, doubt) if copied_bytes(op, device) else (slower, doubt)


def copied_bytes(op: Op, device: Device) -> float:
    """Bytes that a compiler moves to give a product whole vectors; 0.0 where it has none to give or waiting is quicker. It
    times both and takes the faster."""
    found = row_alignment(op)
    if found == VECTOR_BYTES or op.attrs.get("padded") or not op.attrs.get("pads"):
        return 0.0
    batch, m, n, k = (float(op.attrs[key]) for key in ("batch", "m", "n", "k"))
    operands = ((m * k, m if op.attrs["layout"] == "nt" else k), (k * n, n))
    item = DTYPE_BYTES[op.dtype]
    moved = 2.0 * batch * item * sum(size for size, width in operands if int(width * item) % VECTOR_BYTES)
    slower, _ = _slowdown(op, device, found)
    lost_s = (slower - 1.0) * 2.0 * batch * m * n * k / product_flop_per_s(device, op.dtype)[0]
    return moved if moved / device.memory_bytes_per_s < lost_s else 0.0


def _slowdown(op: Op, device: Device, found: int) -> tuple[float, float]:
    if find_silicon(device).name not in GRAPHICS:
        return SLOWER[found], DOUBT
    many = float(op.attrs["batch"]) > 1
    return (max(SLOWER_BATCHED, SLOWER_GRAPHICS[found]) if many else SLOWER_GRAPHICS[found]), DOUBT


def warn_alignment(
    ops: Sequence[Op], device: Device, model: OpModel, counts: Sequence[float] | None = None
) -> tuple[str, ...]:
    """One sentence per width that costs time: what it is, what it costs, and the nearest widths that would not.

    `counts`: how often each op runs; once where it is not given.
    """
    weights = dict(zip(map(id, ops), counts, strict=True)) if counts is not None else {}
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

    def total_s(asked: Sequence[Op], owners: Sequence[Op]) -> float:
        estimates = model.estimate_ops(asked, device)
        return sum(one.seconds * weights.get(id(op), 1.0) for one, op in zip(estimates, owners, strict=True))

    whole_s = total_s(ops, ops)
    sentences = []
    for (word, width), touched in sorted(found.items()):
        now_s, then_s = total_s(touched, touched), total_s([_rounded(op, width) for op in touched], touched)
        lost_s = now_s - then_s
        if lost_s >= WORTH_SAYING * whole_s:
            low, high = width // HEAD_MULTIPLE * HEAD_MULTIPLE, -(-width // HEAD_MULTIPLE) * HEAD_MULTIPLE
            sentences.append(
                f"{word} {width} is no multiple of {HEAD_MULTIPLE}: about {_percent(lost_s / (whole_s - lost_s))} slower "
                f"(its own products {_percent(lost_s / then_s)}); {f'{low} or {high}' if low else high} would not be"
            )
    return tuple(sentences)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _odd_widths(op: Op) -> list[tuple[str, int]]:
    if op.attrs.get("padded"):
        return []
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
