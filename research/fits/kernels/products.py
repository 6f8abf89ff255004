"""The constants of products on matrix units, from measured products in bf16 and fp8."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.fits.kernels.solve import Array, Constants, Problem
from research.fits.kernels.tables import Table, find_device, read_products, without_casts
from traincast.cost._bounds import CHIPS
from traincast.cost._laws import read_product
from traincast.cost._products import ProductLaw, ProductShape, time_products

TRAINING, SMALL = (1024, 512), (64, 64)
"""Smallest m; n and k of the rows that are scored, and of those that only keep the shape of small products in the fit."""

TILES: Constants = {
    "wave_loss": 0.5, "fill": 120.0, "split_fill": 6.0, "tile_128": 0.956, "tile_64": 0.9, "tile_32": 0.74,
}  # fmt: skip
REGISTERS = "_registers"
"""Ending of the same constants of units that threads feed from registers."""
START: Constants = {
    "cap": 0.9, "joules_per_flop": 0.5e-12, "ada": CHIPS["ada"].energy, "power_exponent": 0.75, "sustained": 0.4,
    "sustained_s": 8e-4, "idle_draw": 0.4, **TILES, **{name + REGISTERS: value for name, value in TILES.items()},
    "wave_loss" + REGISTERS: 0.95, "dram_share": 0.9, "l2_bytes_per_sm_cycle": 13.4, "l2_share": 0.46, "join": 2.0,
    "start_s": 2.4e-6,
}  # fmt: skip
PRIORS = {
    "cap": (0.9, 0.03), "power_exponent": (0.75, 0.15), "ada": (CHIPS["ada"].energy, 0.2), "dram_share": (0.9, 0.05),
    "idle_draw": (0.4, 0.4), **{name + ending: (TILES[name], 0.5) for name in TILES for ending in ("", REGISTERS)},
    "wave_loss" + REGISTERS: (0.95, 0.5),
}  # fmt: skip
"""`power_exponent` is that of the same chip at 250 and 300 watts, `dram_share` what copies reach; both were known before.
Constants of tiles start alike for both kinds of units but for waves: a
block that ends with its tile leaves its multiprocessor idle."""
LIMITS = {
    "cap": 0.97, "power_exponent": 1.0, "dram_share": 0.97, "idle_draw": 1.0,
    **{f"{name}{ending}": 1.0 for name in ("wave_loss", "tile_128", "tile_64", "tile_32") for ending in ("", REGISTERS)},
}  # fmt: skip

SHAPE_OF_FP8 = ("cap", *TILES, *(name + REGISTERS for name in TILES), "join", "start_s")
"""What fp8 kernels may differ in; power and memory are the device's."""


def read_law(
    values: Constants, *, log_sigma: float = 0.09, step_load: float = 1.5, step_share: float = 0.93
) -> ProductLaw:
    shipped = {
        **values, "log_sigma": log_sigma, "step_load": step_load, "step_share": step_share,
    }  # fmt: skip
    return read_product(shipped)


def read_rows(folder: Path, dtype: str) -> Table:
    """Rows to fit and score; `scored` marks the latter."""
    large = read_products(folder, dtype=dtype, num_rows=600, smallest=TRAINING)
    small = read_products(folder, dtype=dtype, num_rows=300, smallest=SMALL, seed=1)
    if dtype != "bfloat16":
        large, small = without_casts(large, folder), without_casts(small, folder)
    scored = np.concatenate([np.ones(len(large), dtype=bool), np.zeros(len(small), dtype=bool)])
    return large.joined(small).with_columns(scored=scored)


def predictor(table: Table, dtype: str) -> Callable[[Constants, NDArray[np.bool_]], Array]:
    """Seconds of the chosen rows as a benchmark of lone kernels reads them."""
    item = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}[dtype]

    def predict(values: Constants, chosen: NDArray[np.bool_]) -> Array:
        rows = table.where(chosen)
        law = read_law(values)
        seconds = np.zeros(len(rows))
        for name in np.unique(rows["device"]):
            for burst in (False, True):
                found = (rows["device"] == name) & (rows["burst"] == burst)
                if found.any():
                    # A runtime that times a few calls with pauses never warms the card.
                    law_here = law if burst else read_law({**values, "sustained": 0.0})
                    part = rows.where(found)
                    seconds[found] = time_products(
                        law_here, shape_of(part, item), find_device(name), dtype, lone=True
                    ).seconds
        return seconds

    return predict


def shape_of(rows: Table, item: float) -> ProductShape:
    m, n, k = rows["m"], rows["n"], rows["k"]
    num_bytes = item * (m * k + k * n) + 2.0 * m * n
    return ProductShape(batch=np.ones_like(m), m=m, n=n, k=k, num_bytes=num_bytes, resident=None)


def pose(table: Table, dtype: str) -> Problem:
    return Problem(
        predict=predictor(table, dtype), seconds=table["time_s"], device=table["device"],
        weight=np.where(table["scored"], 1.0, 0.4), priors=PRIORS, limits=LIMITS,
    )  # fmt: skip
