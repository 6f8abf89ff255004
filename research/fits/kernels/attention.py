"""The constants of fused attention, from measured forward kernels in bf16."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.fits.kernels.solve import Array, Constants, Problem
from research.fits.kernels.tables import Table, find_device, read_attention
from traincast.cost._attention import AttentionLaw, AttentionShape, time_attention
from traincast.cost._products import ProductLaw

UNSKIPPED = 1024.0
SHORTEST = 1024
"""Tokens of the sequences that are scored."""
START: Constants = {
    "cap": 0.7, "power_need": 0.4, "head_waste": 8.0, "exponential_share": 0.7, "join": 3.0, "wave_loss": 0.5,
    "block_cycles": 2500.0, "diagonal": 0.5, "half_block": 1.15, "merge": 1.0, "merge_s": 5e-6, "memory_join": 1.2,
    "start_s": 1e-5,
}  # fmt: skip
PRIORS = {
    "cap": (0.7, 0.1), "wave_loss": (0.5, 0.3), "power_need": (0.4, 0.4), "exponential_share": (0.7, 0.2),
    "memory_join": (1.5, 0.3), "half_block": (1.15, 0.1), "merge": (1.0, 0.5), "merge_s": (5e-6, 0.5), "diagonal": (0.5, 0.2),
}  # fmt: skip
LIMITS = {"cap": 0.95, "exponential_share": 1.0, "wave_loss": 1.0}
BACKWARD_SHARE = 0.84
"""By published rates of both passes, not measured here: FlashAttention-2 on A100, heads of 128, 187 beside 224
TFLOP/s (Dao 2023); FlashAttention-3 on H100, heads of 64, 474 beside 497, of 128, 561 beside 648 (Shah et al. 2024)."""
CACHED = 3.0
"""How often keys and values move in the tables' kernels, which also write them to a cache and read them from there."""


def read_law(values: Constants, *, log_sigma: float = 0.12) -> AttentionLaw:
    return AttentionLaw(**values, backward_share=BACKWARD_SHARE, log_sigma=log_sigma)


def read_rows(folder: Path) -> Table:
    large = read_attention(folder, num_rows=1500, shortest=SHORTEST)
    small = read_attention(folder, num_rows=500, shortest=128, seed=1)
    narrow = read_windows(folder)
    scored = np.arange(len(large) + len(small) + len(narrow)) < len(large)
    return large.joined(small).joined(narrow).with_columns(scored=scored)


def read_windows(folder: Path) -> Table:
    """Kernels with sliding windows, without the one that computes what it masks."""
    rows = read_attention(folder, num_rows=700, shortest=SHORTEST, windows=True)
    rows = rows.where(~((rows["kernel"] == "flashinfer") & (rows["window"] == UNSKIPPED)))
    return rows.with_columns(scored=np.zeros(len(rows), dtype=bool))


def shape_of(rows: Table) -> AttentionShape:
    batch, length, heads, size = rows["batch"], rows["seq"], rows["heads"], rows["head_dim"]
    ones = np.ones_like(batch)
    moves = np.where(rows["causal"] > 0, CACHED, 1.0)
    moved = 2.0 * batch * length * size * (2.0 * heads + 2.0 * moves * rows["kv_heads"])
    return AttentionShape(
        sequences=batch * heads, queries=length, keys=length, size=size, causal=rows["causal"],
        window=np.where(rows["window"] > 0, rows["window"], length), backward=0.0 * ones, slowdown=ones,
        register_fed=0.0 * ones, num_bytes=moved,
    )  # fmt: skip


def pose(table: Table, products: ProductLaw) -> Problem:
    def predict(values: Constants, chosen: NDArray[np.bool_]) -> Array:
        rows = table.where(chosen)
        law, seconds = read_law(values), np.zeros(len(rows))
        for name in np.unique(rows["device"]):
            found = rows["device"] == name
            part = shape_of(rows.where(found))
            seconds[found] = time_attention(law, products, part, find_device(name), "bf16", lone=True).seconds
        return seconds

    call: Callable[[Constants, NDArray[np.bool_]], Array] = predict
    return Problem(
        predict=call, seconds=table["time_s"], device=table["device"], weight=np.where(table["scored"], 1.0, 0.4),
        priors=PRIORS, limits=LIMITS, level_log_sigma=0.1,
    )  # fmt: skip
