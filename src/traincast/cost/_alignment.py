"""Widths that matrix units cannot load in whole vectors: what they cost, and the sentences that say so."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from traincast.catalog import read_constants
from traincast.cost import OpModel
from traincast.cost._bounds import name_silicon, product_flop_per_s
from traincast.noun import noun
from traincast.spec import Device, Op
from traincast.units import DTYPE_BYTES


@noun
class AlignmentConstants:
    """Of the document `alignment`, which says what each is."""

    vector_bytes: int
    head_multiple: int
    slower: Mapping[str, float]
    batched: float
    graphics: tuple[str, ...]
    log_sigma: float
    worth_saying: float


CONSTANTS = read_constants(AlignmentConstants, "alignment")


def row_alignment(op: Op) -> int:
    """Bytes, up to a vector, that the rows of a product's operands and result start at multiples of."""
    attrs = op.attrs
    first = attrs["m"] if attrs["layout"] == "nt" else attrs["k"]
    item = DTYPE_BYTES[op.dtype]
    return math.gcd(math.gcd(int(first * item), int(attrs["n"] * item)), CONSTANTS.vector_bytes)  # type: ignore[operator]


def misalignment(op: Op, device: Device) -> tuple[float, float]:
    """How much slower a product on matrix units is for its widths, and the uncertainty of that (log_sigma)."""
    found = row_alignment(op)
    if found == CONSTANTS.vector_bytes or op.attrs.get("padded"):
        return 1.0, 0.0
    return (1.0 if copied_bytes(op, device) else _slowdown(op, device, found)), CONSTANTS.log_sigma


def copied_bytes(op: Op, device: Device) -> float:
    """Bytes that a compiler moves to give a product whole vectors; 0.0 where it has none to give or waiting is quicker. It
    times both and takes the faster."""
    found = row_alignment(op)
    if found == CONSTANTS.vector_bytes or op.attrs.get("padded") or not op.attrs.get("pads"):
        return 0.0
    batch, m, n, k = (float(op.attrs[key]) for key in ("batch", "m", "n", "k"))
    operands = ((m * k, m if op.attrs["layout"] == "nt" else k), (k * n, n))
    item = DTYPE_BYTES[op.dtype]
    moved = 2.0 * batch * item * sum(size for size, width in operands if int(width * item) % CONSTANTS.vector_bytes)
    lost_s = (_slowdown(op, device, found) - 1.0) * 2.0 * batch * m * n * k / product_flop_per_s(device, op.dtype)[0]
    return moved if moved / device.memory_bytes_per_s < lost_s else 0.0


def _slowdown(op: Op, device: Device, found: int) -> float:
    """Units of graphics chips are slow beside their memory and do not wait for it. Libraries have no kernels on matrix units for
    batches of matmuls (attention that is not fused) without whole vectors, and run them on CUDA cores."""
    if name_silicon(device) in CONSTANTS.graphics:
        return 1.0
    return max(CONSTANTS.slower[str(found)], CONSTANTS.batched if float(op.attrs["batch"]) > 1 else 1.0)


def warn_alignment(
    ops: Sequence[Op], device: Device, model: OpModel, counts: Sequence[float] | None = None
) -> tuple[str, ...]:
    """One sentence per width that costs time: what it is, what it costs, and the nearest widths that would not."""
    weights = dict(zip(map(id, ops), counts, strict=True)) if counts is not None else {}
    found: dict[tuple[str, int], list[Op]] = {}
    for op in ops:
        if op.kind in ("matmul", "attention") and product_flop_per_s(device, op.dtype)[1] not in ("fp32", "fp64"):
            for word, width in _odd_widths(op):
                found.setdefault((word, width), []).append(op)
    if not found:
        return ()

    def total_s(asked: Sequence[Op], owners: Sequence[Op]) -> float:
        estimates = model.estimate_ops(asked, device)
        return sum(one.seconds * weights.get(id(op), 1.0) for one, op in zip(estimates, owners, strict=True))

    whole_s = total_s(ops, ops)
    sentences, multiple = [], CONSTANTS.head_multiple
    for (word, width), touched in sorted(found.items()):
        now_s, then_s = total_s(touched, touched), total_s([_rounded(op, width) for op in touched], touched)
        lost_s = now_s - then_s
        if lost_s >= CONSTANTS.worth_saying * whole_s:
            low = width // multiple * multiple
            sentences.append(
                f"{word} {width} is no multiple of {multiple}: about {lost_s / (whole_s - lost_s):.0%} slower "
                f"(its own matmuls {lost_s / then_s:.0%}); {f'{low} or ' if low else ''}{low + multiple} would not be"
            )
    return tuple(sentences)


def _odd_widths(op: Op) -> list[tuple[str, int]]:
    if op.attrs.get("padded"):
        return []
    if op.kind == "attention":
        size = int(op.attrs["head_dim"])
        return [("head size", size)] if size % CONSTANTS.head_multiple else []
    keys = ("m", "n") if op.attrs["layout"] == "nt" else ("k", "n")
    word = "head size or length" if int(op.attrs["batch"]) > 1 else "width"
    return [(word, int(op.attrs[key])) for key in keys if int(op.attrs[key]) % CONSTANTS.head_multiple]


def _rounded(op: Op, width: int) -> Op:
    """The same op with whole vectors in that width, its work unchanged but for the rounding."""
    whole = -(-width // CONSTANTS.head_multiple) * CONSTANTS.head_multiple
    attrs = {
        key: whole if key in ("m", "n", "k", "head_dim") and value == width else value
        for key, value in op.attrs.items()
    }
    return replace(op, attrs=attrs)
