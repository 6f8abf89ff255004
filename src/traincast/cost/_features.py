"""Shapes of kernels and a data sheet to their bound in seconds and to features without units.

No feature is a raw number of the device: each relates the kernel to it (waves, ratios of times, shares of a cache), and
each saturates, because real models always lie outside the measured range of sizes.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincast.catalog import read_constants
from traincast.cost._bounds import CONSTANTS as BOUNDS
from traincast.cost._bounds import (
    PowerLaw,
    generation,
    l2_bytes_per_s,
    product_flop_per_s,
    usable_share,
    uses_matrix_units,
)
from traincast.noun import noun
from traincast.spec import Device

Array = NDArray[np.float64]

FAMILIES: dict[str, tuple[str, ...]] = {
    "matmul": ("batch", "m", "n", "k", "transposed", "item_bytes", "bytes"),
    "conv": (
        "batch",
        "in_channels",
        "out_channels",
        "groups",
        "in_numel",
        "out_numel",
        "taps",
        "strided",
        "item_bytes",
    ),
    "pointwise": ("bytes", "inputs", "heavy", "aligned"),
    "softmax": ("rows", "cols", "bytes"),
    "norm": ("rows", "cols", "bytes"),
}
"""The fitted families of kernels and the columns that describe one kernel of each."""

TILES = ((128, 128), (64, 64), (32, 128))


@noun
class OperatorConstants:
    """Of the document `operators`, which says what each is."""

    max_utilization: float
    winograd: float
    longest_log2: float
    short_s: float
    maxwell_strip: int
    volta_strip: int
    unknown_l2_bytes: float
    unknown_sm: int
    repeated_share: float
    repeated_until: float
    repeated_width: float
    recent: float
    unlike: float
    slack: float
    reach: float
    nearest: float
    chip: float
    memory: float
    other_vendor: float
    streamed_generations: float
    least_voice: float
    outside_factor: float


CONSTANTS = read_constants(OperatorConstants, "operators")


@noun
class Bounded:
    """Kernels of one family on one device: the seconds no kernel can beat, and what the utilisation depends on."""

    features: Array
    bound_s: Array
    """With the clock that the power cap is expected to leave."""
    floor_s: Array
    """With the full clock: what no kernel was seen to beat, whatever the cap."""
    compute_s: Array
    memory_s: Array


class Shapes:
    """Kernels of one family, and what follows from their shapes alone: it is the same for every device that is asked."""

    def __init__(self, family: str, columns: Array) -> None:
        self.columns = dict(
            zip(FAMILIES[family], np.ascontiguousarray(np.asarray(columns, dtype=np.float64).T), strict=True)
        )
        self.tiled: _Tiled | None = None


@noun
class _Tiled:
    """Products by shape alone."""

    sizes: list[Array]
    """Features: the sum, and the shorter side of the output."""
    tiles: list[tuple[Array, Array]]
    """By size of a tile: how many there are, and how full they are."""
    last: list[Array]
    """Features: alignment and order of operands."""


def describe(family: str, columns: Array | Shapes, device: Device, law: PowerLaw, *, dtype: str = "fp32",
             soak: Array | float = 0.0, resident: Array | None = None) -> Bounded:  # fmt: skip
    """`resident`: share of each kernel's bytes that are in L2 when it starts; None: as in a benchmark that repeats a call."""
    shapes = columns if isinstance(columns, Shapes) else Shapes(family, columns)
    return _DESCRIBE[family](shapes, _Machine(device, law, dtype, soak), resident)


class _Machine:
    """The few numbers of a device that bounds need, resolved once."""

    def __init__(self, device: Device, law: PowerLaw, dtype: str, soak: Array | float) -> None:
        peak, real = product_flop_per_s(device, dtype)
        self.peak_flop_per_s = peak
        self.product_flop_per_s = peak * usable_share(device, dtype, law, soak=soak)
        self.wide_flop_per_s = product_flop_per_s(device, "fp32")[0] * usable_share(device, "fp32", law, soak=soak)
        self.dram_bytes_per_s = device.memory_bytes_per_s
        self.l2_bytes_per_s = l2_bytes_per_s(device)
        self.l2_bytes = device.l2_bytes or CONSTANTS.unknown_l2_bytes
        self.num_sm = float(device.num_sm or CONSTANTS.unknown_sm)
        self.maxwell = generation(device) < 1.0
        self.matrix = uses_matrix_units(device, real)

    def memory_s(self, num_bytes: Array, resident: Array | None) -> Array:
        if resident is None:
            c, caches = CONSTANTS, num_bytes / self.l2_bytes
            resident = c.repeated_share * np.clip((c.repeated_until - caches) / c.repeated_width, 0.0, 1.0)
        return num_bytes * ((1.0 - resident) / self.dram_bytes_per_s + resident / self.l2_bytes_per_s)


def _log2(x: Array, low: float, high: float) -> Array:
    return np.clip(np.log2(np.maximum(x, 1e-12)), low, high)


def _join_limits(compute_s: Array, memory_s: Array) -> Array:
    """A 4-norm, not a maximum: arithmetic and traffic near balance do not overlap fully."""
    compute_s = np.maximum(compute_s, 1e-12)
    return np.asarray(
        np.sqrt(np.sqrt(np.square(compute_s * compute_s) + np.square(memory_s * memory_s))), dtype=np.float64
    )


def _is_multiple(x: Array, of: float) -> NDArray[np.bool_]:
    """As a remainder of zero, without a division for each."""
    share = x * (1.0 / of)
    return np.asarray(share == np.floor(share))


def _tile(batch: Array, m: Array, n: Array, k: Array, transposed: Array) -> _Tiled:
    tiles = []
    for rows, cols in TILES:
        upright = np.ceil(m / rows) * np.ceil(n / cols)
        lying = np.ceil(m / cols) * np.ceil(n / rows)
        number = np.maximum(batch * np.minimum(upright, lying), 1.0)
        tiles.append((number, batch * m * n / (number * rows * cols)))
    aligned = _is_multiple(k, 4).astype(np.float64)
    log_k = _log2(k, 3, 12)
    last = [
        aligned * _is_multiple(n, 4) * _is_multiple(m, 4), aligned, _is_multiple(k, 2).astype(np.float64), transposed,
        transposed * log_k,
    ]  # fmt: skip
    return _Tiled(sizes=[log_k, _log2(np.minimum(m, n), 3, 11)], tiles=tiles, last=last)


def _product(batch: Array, m: Array, n: Array, k: Array, transposed: Array, num_bytes: Array, item_bytes: Array, work: Array,
             machine: _Machine, resident: Array | None, shapes: Shapes) -> Bounded:  # fmt: skip
    compute_s = work / machine.product_flop_per_s
    compulsory_s = machine.memory_s(num_bytes, resident)
    panel = item_bytes * np.minimum(m * k, k * n)
    missing = np.clip(np.log2(np.maximum(panel / (0.5 * machine.l2_bytes), 1e-9)) / 2, 0.0, 1.0)
    strip = (
        np.where(transposed > 0, CONSTANTS.maxwell_strip, 2 * CONSTANTS.maxwell_strip)
        if machine.maxwell
        else float(CONSTANTS.volta_strip)
    )
    again = missing * item_bytes * batch * m * n * k / np.minimum(strip, np.maximum(np.maximum(m, n), 1.0))
    memory_s = compulsory_s + again / machine.dram_bytes_per_s
    bound_s = _join_limits(compute_s, memory_s)
    # Utilisation was measured in fp32 only: other formats ask for that of the same product in fp32, so that a fast matrix
    # unit does not make a large product look like a small one.
    wide_s = work / machine.wide_flop_per_s
    wide_bytes = 4 / item_bytes
    wide_memory_s = memory_s * wide_bytes
    tiled = shapes.tiled = shapes.tiled or _tile(batch, m, n, k, transposed)
    features = [
        _log2(wide_s / np.maximum(wide_memory_s, 1e-12), -4, 6),
        _log2(_join_limits(wide_s, wide_memory_s) / CONSTANTS.short_s, -2, 8),
        *tiled.sizes,
        _log2(wide_bytes * num_bytes / machine.l2_bytes, -4, 6),
    ]
    for tiles, full in tiled.tiles:
        waves = tiles / machine.num_sm
        features += [_log2(waves, -4, 5), waves / np.ceil(waves), full]
    features += tiled.last
    return Bounded(
        features=np.stack(features).T,
        bound_s=bound_s,
        floor_s=np.maximum(work / (CONSTANTS.max_utilization * machine.peak_flop_per_s), compulsory_s),
        compute_s=compute_s,
        memory_s=memory_s,
    )


def _describe_matmul(shapes: Shapes, machine: _Machine, resident: Array | None) -> Bounded:
    shape = shapes.columns
    batch, m, n, k = shape["batch"], shape["m"], shape["n"], shape["k"]
    num_bytes = shape["bytes"]
    work = 2.0 * batch * m * n * k
    return _product(
        batch, m, n, k, shape["transposed"], num_bytes, shape["item_bytes"], work, machine, resident, shapes
    )


def _describe_conv(shapes: Shapes, machine: _Machine, resident: Array | None) -> Bounded:
    """As the implicit product it runs as: positions x out_channels x (in_channels x taps), one per group."""
    shape = shapes.columns
    groups = shape["groups"]
    m = shape["batch"] * shape["out_numel"]
    n = shape["out_channels"] / groups
    k = shape["in_channels"] / groups * shape["taps"]
    weights = shape["out_channels"] * k
    item = shape["item_bytes"]
    images = shape["batch"] * (shape["in_channels"] * shape["in_numel"] + shape["out_channels"] * shape["out_numel"])
    winograd = (shape["taps"] == 9) & (shape["strided"] == 0) & (groups == 1) & (not machine.matrix)
    work = 2.0 * groups * m * n * k / np.where(winograd, CONSTANTS.winograd, 1.0)
    nothing = np.zeros_like(m)
    base = _product(groups, m, n, k, nothing, item * (images + weights), item, work, machine, resident, shapes)
    extra = np.stack(
        [
            _log2(shape["in_channels"] / groups, 1, 11),
            _log2(shape["out_numel"], 2, 14),
            _log2(shape["batch"], 0, 7),
            (shape["in_channels"] % 4 == 0).astype(np.float64),
        ],
        axis=1,
    )
    features = np.concatenate([base.features, extra], axis=1)
    return replace(base, features=features)


def _describe_pointwise(shapes: Shapes, machine: _Machine, resident: Array | None) -> Bounded:
    shape = shapes.columns
    memory_s = machine.memory_s(shape["bytes"], resident)
    bound_s = np.maximum(memory_s, BOUNDS.kernel_floor_s / 2)
    features = np.stack(
        [
            _log2(bound_s / CONSTANTS.short_s, -1, CONSTANTS.longest_log2),
            np.minimum(bound_s, CONSTANTS.short_s) / bound_s,
            np.minimum(shape["inputs"], 3),
            shape["heavy"],
            shape["aligned"],
        ],
        axis=1,
    )
    return _streaming(features, bound_s, memory_s)


def _describe_rows(shapes: Shapes, machine: _Machine, resident: Array | None) -> Bounded:
    shape = shapes.columns
    memory_s = machine.memory_s(shape["bytes"], resident)
    bound_s = np.maximum(memory_s, BOUNDS.kernel_floor_s / 2)
    rows, cols = shape["rows"], shape["cols"]
    # One warp holds rows of up to 1024 in registers; wider rows take a block each and a second pass.
    per_warp = (cols <= 1024).astype(np.float64)
    features = np.stack(
        [
            _log2(bound_s / CONSTANTS.short_s, -1, CONSTANTS.longest_log2),
            np.minimum(bound_s, CONSTANTS.short_s) / bound_s,
            _log2(cols, 4, 13),
            per_warp,
            per_warp * cols / 2.0 ** np.ceil(np.log2(np.maximum(cols, 1.0))),
            (cols % 4 == 0).astype(np.float64),
            _log2(rows / (8 * machine.num_sm), -2, 8),
        ],
        axis=1,
    )
    return _streaming(features, bound_s, memory_s)


def saturate(features: Array) -> Array:
    """The same streaming kernels, so long that neither start nor end shows."""
    long = features.copy()
    long[:, 0], long[:, 1] = CONSTANTS.longest_log2, 2.0**-CONSTANTS.longest_log2
    return long


def _streaming(features: Array, bound_s: Array, memory_s: Array) -> Bounded:
    return Bounded(
        features=features, bound_s=bound_s, floor_s=memory_s, compute_s=np.zeros_like(bound_s), memory_s=memory_s
    )


_DESCRIBE = {
    "matmul": _describe_matmul,
    "conv": _describe_conv,
    "pointwise": _describe_pointwise,
    "softmax": _describe_rows,
    "norm": _describe_rows,
}
