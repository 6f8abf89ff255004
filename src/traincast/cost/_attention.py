"""Fused attention to seconds: blocks of queries that walk over keys, exponentials beside products, by generation of the kernel.

Blocks of queries are dealt to multiprocessors; the longest block bounds the rest. Every term falls or stays where a rate, a
bandwidth or the clock of the device grows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincast.catalog import read_constants
from traincast.cost._bounds import product_flop_per_s
from traincast.cost._products import CONSTANTS as MATMULS
from traincast.cost._products import ProductLaw, Timed, held_share, step_share, traffic_s
from traincast.noun import noun
from traincast.spec import Device

Array = NDArray[np.float64]


@noun
class AttentionConstants:
    """Of the document `attention`, which says what each is."""

    kernels: Mapping[str, float]
    register_fed_kernels: tuple[str, ...]
    register_fed_flop_per_sm_cycle: float
    exponentials_per_sm_cycle: float
    doubled_exponentials: str
    rows: tuple[float, float]
    splits: tuple[float, ...]
    backward_flop: float
    head_multiple: float
    longest_norm: float
    unknown_clock_hz: float


CONSTANTS = read_constants(AttentionConstants, "attention")


@noun
class AttentionLaw:
    """Fitted by research/fits/kernels to forward kernels in bf16."""

    cap: float
    """Best share of the peak of long heads at full clock."""
    power_need: float
    """Power beside that of plain products: the units wait for exponentials."""
    head_waste: float
    """Columns by which a head looks longer: what each product of a head costs besides."""
    exponential_share: float
    """Of the special function units' rate."""
    join: float
    wave_loss: float
    block_cycles: float
    diagonal: float
    """Of a block's keys that are computed and masked at each edge of a mask, in widths of a block."""
    half_block: float
    """Time per pair of blocks of 64 queries beside those of 128."""
    merge: float
    merge_s: float
    """Adding up parts of a split sum: passes over its output and one more kernel."""
    memory_join: float
    start_s: float
    backward_share: float
    """Of the rate of the forward's products that the five of the backward pass reach; they wait for one exponential, too."""
    log_sigma: float
    level_log_sigma: float = 0.1


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One entry per kernel."""

    sequences: Array
    """Sequences times heads of queries."""
    queries: Array
    keys: Array
    size: Array
    """Mean width of the two products: head size of keys and of values."""
    causal: Array
    window: Array
    """Keys a query sees at most; as many as there are keys where there is no window."""
    backward: Array
    slowdown: Array
    """Of the kernel's generation, beside the law's."""
    register_fed: Array
    num_bytes: Array


def mean_keys(shape: AttentionShape) -> Array:
    """Keys that a query attends to on average; queries are the last of the sequence where the mask is causal."""
    window = np.minimum(shape.window, shape.keys)
    full = np.maximum(shape.keys - shape.queries, 0.0)
    # Rows start with `full` + 1 keys and gain one each until the window is reached.
    growing = np.clip(window - full, 0.0, shape.queries)
    seen = growing * (full + (growing + 1.0) / 2.0) + (shape.queries - growing) * window
    return np.where(shape.causal > 0, seen / np.maximum(shape.queries, 1.0), window)


def time_attention(law: AttentionLaw, products: ProductLaw, shape: AttentionShape, device: Device, dtype: str, *,
                   lone: bool = False) -> Timed:  # fmt: skip
    """Seconds of each fused kernel in `dtype`."""
    num_sm = float(device.num_sm or MATMULS.unknown_sm)
    clock_hz = device.clock_hz or CONSTANTS.unknown_clock_hz
    pair_s = _pair_s(law, products, shape, device, dtype, lone=lone)
    # The backward pass deals out blocks of keys, each of which walks over the queries that see it.
    back = shape.backward > 0
    dealt, walked = np.where(back, shape.keys, shape.queries), np.where(back, shape.queries, shape.keys)
    met = np.where(back, mean_keys(shape) * shape.queries / np.maximum(shape.keys, 1.0), mean_keys(shape))
    window = np.minimum(shape.window, walked)
    edges = (shape.causal > 0) * (1.0 + (shape.window < shape.keys))
    best: Array | None = None
    for rows, slower in zip(CONSTANTS.rows, (1.0, law.half_block), strict=True):
        edge = law.diagonal * rows
        visited = np.minimum(met + edges * edge, walked)
        longest = np.minimum(window + edges * edge, walked)
        for parts in CONSTANTS.splits:
            waves = shape.sequences * np.ceil(dealt / rows) * (parts / num_sm)
            filled = np.maximum(waves + law.wave_loss * (np.ceil(waves) - waves), 1.0)
            per_key_s = pair_s * (rows * slower / parts)
            start_s = law.block_cycles / clock_hz
            body_s = (
                (filled * (visited * per_key_s + start_s)) ** CONSTANTS.longest_norm
                + (longest * per_key_s + start_s) ** CONSTANTS.longest_norm
            ) ** (1.0 / CONSTANTS.longest_norm)
            if parts > 1:
                merged = 8 * parts * shape.sequences * dealt * shape.size
                body_s = body_s + law.merge * merged / device.memory_bytes_per_s + law.merge_s
            best = body_s if best is None else np.minimum(best, body_s)
    memory_s = traffic_s(products, shape.num_bytes, device, resident=None if lone else np.zeros_like(shape.num_bytes))
    body_s = np.zeros_like(memory_s) if best is None else best
    joined = (body_s**law.memory_join + memory_s**law.memory_join) ** (1.0 / law.memory_join)
    launch_s = law.start_s * np.where(back, 2.0, 1.0)
    return Timed(seconds=launch_s + joined, compute_s=body_s, memory_s=memory_s)


def _pair_s(law: AttentionLaw, products: ProductLaw, shape: AttentionShape, device: Device, dtype: str, *,
            lone: bool) -> Array:  # fmt: skip
    """Seconds of one multiprocessor for one query and one key: two products and an exponential."""
    num_sm = float(device.num_sm or MATMULS.unknown_sm)
    clock_hz = device.clock_hz or CONSTANTS.unknown_clock_hz
    peak, _ = product_flop_per_s(device, dtype)
    need = law.power_need
    held = (
        held_share(products, device, dtype, load=0.0, need=need)
        if lone
        else step_share(products, device, dtype, need=need)
    )
    share = law.cap / products.cap * held
    rate = peak / num_sm * share
    old_rate = min(float(rate), law.cap * CONSTANTS.register_fed_flop_per_sm_cycle * clock_hz)
    padded = np.ceil(shape.size / CONSTANTS.head_multiple / 2.0) * (CONSTANTS.head_multiple * 2.0) + law.head_waste
    product_s = 4 * padded / np.where(shape.register_fed > 0, old_rate, rate)
    product_s = product_s * np.where(shape.backward > 0, CONSTANTS.backward_flop / law.backward_share, 1.0)
    units = CONSTANTS.exponentials_per_sm_cycle * (
        2.0 if CONSTANTS.doubled_exponentials in device.architecture.lower() else 1.0
    )
    exponential_s = 1.0 / (units * clock_hz * law.exponential_share)
    joined = (product_s**law.join + exponential_s**law.join) ** (1.0 / law.join)
    return np.asarray(joined * shape.slowdown, dtype=np.float64)
