"""The constants of products of experts in one launch, from measured feed-forward layers with experts."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.fits.kernels.solve import Array, Constants, Problem
from research.fits.kernels.tables import THROTTLED_S, Table, find_device, read_table
from traincast.cost._products import GroupLaw, ProductLaw, ProductShape, time_groups

FORMATS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8"}
MOST_ROWS, FEWEST_TOKENS, NARROWEST, WIDTH_MULTIPLE = 1500, 4096, 256, 64
"""Layers as trainers run them: thousands of tokens, and experts that are not cut into slices narrower than a tile."""
NOT_GATED = ((2688, 1856), (2048, 5120), (8192, 5120), (1024, 2688), (4096, 2688))
START: Constants = {"share": 0.9, "padding": 0.6, "row_passes": 2.5, "gate_passes": 0.5, "start_s": 2e-5}
PRIORS = {
    "share": (0.9, 0.1), "padding": (0.5, 0.4), "row_passes": (2.5, 0.3), "gate_passes": (0.5, 0.5), "start_s": (2e-5, 0.5),
}  # fmt: skip
"""`row_passes`: how often rows as wide as the model are moved besides (permute, unpermute, sum); `gate_passes`: the same of what
lies between the products. Both belong to ops of their own in a graph."""
OLD_KERNELS = ("a100-sxm4-80g",)
"""Devices measured with runtimes of 2025 only, whose kernels run at half of the rate of a plain product: scored, not fitted."""
LIMITS = {"share": 1.0, "padding": 1.0}


def read_rows(folder: Path, dtype: str) -> Table:
    """The fastest kernel of every shape, on ranks that hold all experts.

    Kernels that a general compiler made for serving are left aside on devices whose matrix units it does not use (Blackwell).
    """
    table = read_table(folder / "moe_grouped_gemm.parquet")
    width = table["ffn"] / table["tp"]
    keep = (table["dtype"] == dtype) & (table["ep"] == 1) & (table["tokens"] >= FEWEST_TOKENS)
    keep &= (width >= NARROWEST) & (width % WIDTH_MULTIPLE == 0)
    keep &= ~((np.char.find(table["kernel"], "triton") >= 0) & (np.char.find(table["device"], "b200") >= 0))
    late = np.char.startswith(table["runtime"], "VLLM") & (table["device"] == "gb200") & (table["time_s"] > THROTTLED_S)
    table = table.where(keep & ~late)
    names = ("device", "tokens", "hidden", "ffn", "top_k", "experts", "tp", "routing")
    fastest: dict[tuple[Any, ...], int] = {}
    for place in np.argsort(table["time_s"], kind="stable"):
        fastest.setdefault(tuple(table[name][place] for name in names), int(place))
    chosen = table.where(np.array(sorted(fastest.values())))
    rng = np.random.default_rng(0)
    kept = [
        rng.permutation(np.flatnonzero(chosen["device"] == name))[:MOST_ROWS] for name in np.unique(chosen["device"])
    ]
    chosen = chosen.where(np.sort(np.concatenate(kept)))
    gated = [(hidden, ffn) not in NOT_GATED for hidden, ffn in zip(chosen["hidden"], chosen["ffn"], strict=True)]
    return chosen.with_columns(gated=np.array(gated, dtype=np.float64), scored=np.ones(len(chosen), dtype=bool))


def read_law(values: Constants, *, log_sigma: float = 0.15) -> GroupLaw:
    return GroupLaw(share=values["share"], padding=values["padding"], log_sigma=log_sigma)


def pose(table: Table, products: ProductLaw, dtype: str) -> Problem:
    def predict(values: Constants, chosen: NDArray[np.bool_]) -> Array:
        rows = table.where(chosen)
        seconds = np.zeros(len(rows))
        for name in np.unique(rows["device"]):
            found = rows["device"] == name
            seconds[found] = _layer_s(values, products, rows.where(found), name, dtype)
        return seconds

    return Problem(
        predict=predict, seconds=table["time_s"], device=table["device"], weight=np.ones(len(table)), priors=PRIORS,
        limits=LIMITS, level_log_sigma=0.1,
    )  # fmt: skip


def _layer_s(values: Constants, products: ProductLaw, rows: Table, name: str, dtype: str) -> Array:
    """Both products of a layer, and what moves rows before, between and after them."""
    device, law = find_device(name), read_law(values)
    item = 1.0 if dtype == "fp8" else 2.0
    copies = rows["tokens"] * rows["top_k"]
    experts = np.minimum(rows["experts"], copies)
    hidden, width = rows["hidden"], rows["ffn"] / rows["tp"]
    inner = width * (1.0 + rows["gated"])
    uneven = (rows["routing"] != "balanced").astype(np.float64)
    total = np.full(len(rows), values["start_s"])
    for n, k in ((inner, hidden), (hidden, width)):
        moved = item * (copies * k + experts * k * n) + 2.0 * copies * n
        shape = ProductShape(batch=experts, m=copies / experts, n=n, k=k, num_bytes=moved, resident=None)
        total = total + time_groups(law, products, shape, device, dtype, uneven=uneven, lone=True).seconds
    streamed = copies * (values["row_passes"] * 2.0 * hidden + values["gate_passes"] * 2.0 * (inner + width))
    return np.asarray(total + streamed / (products.dram_share * device.memory_bytes_per_s), dtype=np.float64)
