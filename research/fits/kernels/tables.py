"""The tables of measured kernels to arrays: which rows are read, and which are left aside and why."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincast import catalog
from traincast.spec import Device

Array = NDArray[np.float64]
Rows = Mapping[str, NDArray[Any]]

CATALOGUE_NAME = {"gb200": "gb200-186g"}
DEVICES = ("a100-sxm4-80g", "h100-sxm-80g", "l40s", "b200-sxm-180g", "gb200")
THROTTLED_S = 6e-4
"""Rows of one runtime on gb200 that last longer come from a throttled host."""
PLAIN_TEXT = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of one kind of kernel; every column has one entry per row."""

    columns: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.columns["time_s"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def where(self, chosen: NDArray[Any]) -> "Table":
        return Table(columns={name: values[chosen] for name, values in self.columns.items()})

    def with_columns(self, **columns: NDArray[Any]) -> "Table":
        return replace(self, columns={**self.columns, **columns})

    def joined(self, other: "Table") -> "Table":
        names = self.columns.keys() & other.columns.keys()
        return Table(columns={name: np.concatenate([self[name], other[name]]) for name in sorted(names)})


def find_device(name: str) -> Device:
    return catalog.device(CATALOGUE_NAME.get(name, name))


def read_table(path: Path) -> Table:
    from pyarrow import parquet

    table = parquet.read_table(path)
    columns = {}
    for name in table.column_names:
        values = table[name].to_numpy(zero_copy_only=False)
        columns[name] = values.astype(np.float64) if np.issubdtype(values.dtype, np.number) else values.astype(str)
    return Table(columns=columns)


def draw(table: Table, keep: NDArray[np.bool_], *, by: tuple[str, ...], num_rows: int, seed: int) -> Table:
    """At most `num_rows` rows of every group, the same for the same seed."""
    rng = np.random.default_rng(seed)
    groups = np.char.add(np.char.add(table[by[0]], "|"), table[by[1]]) if len(by) > 1 else table[by[0]]
    found = []
    for group in np.unique(groups[keep]):
        rows = np.flatnonzero(keep & (groups == group))
        found.append(rng.choice(rows, min(num_rows, len(rows)), replace=False))
    return table.where(np.sort(np.concatenate(found)))


def read_products(folder: Path, *, dtype: str, num_rows: int, smallest: tuple[int, int], seed: int = 0) -> Table:
    """Plain products of `dtype` with at least (m; n and k) as given; `burst` marks runtimes that repeat calls at length."""
    table = read_table(folder / "gemm.parquet")
    vllm = np.char.startswith(table["runtime"], "VLLM")
    keep = (table["dtype"] == dtype) & (table["m"] >= smallest[0])
    keep &= (table["n"] >= smallest[1]) & (table["k"] >= smallest[1])
    keep &= ~((table["device"] == "gb200") & vllm & (table["time_s"] > THROTTLED_S))
    if dtype != PLAIN_TEXT:
        keep &= ~vllm
    chosen = draw(table, keep, by=("device", "runtime"), num_rows=num_rows, seed=seed)
    burst = ~np.char.startswith(chosen["runtime"], "VLLM")
    return chosen.with_columns(burst=burst)


def without_casts(products: Table, folder: Path) -> Table:
    """Rows of fp8 products less the cast of their activation, where the cast was measured and is not most of the row."""
    casts = read_table(folder / "quantize.parquet")
    # The serving runtime whose products are read also timed the two kernels of the cast one by one.
    casts = casts.where(casts["runtime"] == "TRTLLM 1.3.0rc20")
    seconds: dict[tuple[str, float, float], float] = {}
    for device, m, k, cast_s in zip(casts["device"], casts["m"], casts["k"], casts["time_s"], strict=True):
        seconds[device, m, k] = seconds.get((device, m, k), 0.0) + float(cast_s)
    keys = zip(products["device"], products["m"], products["k"], strict=True)
    cast = np.array([seconds.get(key, np.nan) for key in keys])
    left = products["time_s"] - cast
    good = np.isfinite(cast) & (left > 0.2 * products["time_s"])
    return products.with_columns(time_s=left).where(good)


OTHER_ATTENTION = ("torch_flow", "triton", "vllm_triton_attn", "torch_flow_flashinfer")
"""Kernels that no trainer calls."""
LONGEST_HEAD = 256


def read_attention(folder: Path, *, num_rows: int, shortest: int, seed: int = 0, windows: bool = False) -> Table:
    """Forward kernels in bf16 that trainers also call, causal and not."""
    causal = read_table(folder / "attention_causal.parquet")
    other = np.isin(causal["kernel"], OTHER_ATTENTION)
    other |= (causal["kernel"] == "flashinfer") & (causal["device"] != "l40s")
    keep = (causal["dtype"] == PLAIN_TEXT) & (causal["cache_dtype"] == PLAIN_TEXT) & ~other
    keep &= (causal["seq"] >= shortest) & (causal["head_dim"] <= LONGEST_HEAD)
    keep &= (causal["window"] > 0) if windows else (causal["window"] == 0)
    first = draw(causal, keep, by=("device",), num_rows=num_rows, seed=seed)
    first = first.with_columns(causal=np.ones(len(first)))
    if windows:
        return first
    plain = read_table(folder / "attention_encoder.parquet")
    keep = ~np.isin(plain["kernel"], OTHER_ATTENTION) & (plain["seq"] >= shortest)
    second = draw(plain, keep, by=("device",), num_rows=num_rows // 3, seed=seed)
    zero = np.zeros(len(second))
    second = second.with_columns(causal=zero, window=zero, kv_heads=second["heads"])
    return first.joined(second)
