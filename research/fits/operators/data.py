"""The measured operators beside the repository to rows the models are fitted on: shapes, seconds, weights."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from traincast.catalog import device as find_device
from traincast.cost._bounds import PowerLaw
from traincast.cost._features import FAMILIES, describe
from traincast.errors import InvalidInput

Array = NDArray[np.float64]

DEVICE_OF: dict[str, str] = {
    "P4": "p4", "P100-PCIe-16GB": "p100-pcie-16g", "T4": "t4", "V100-PCIe-32GB": "v100-pcie-32g",
    "A100-PCIe-40GB": "a100-pcie-40g", "A100-PCIe-80GB": "a100-pcie-80g", "MI100": "mi100",
}  # fmt: skip
"""Names in the data to names in the catalogue."""

NUM_CALLS = 25
"""Calls of one operator in a row while it was timed: its burst is this many times its latency."""
FLOOR_FACTOR = 1.2
"""A row whose bound is shorter than this many dispatch floors may show the host instead of the kernel, and is dropped.

The bound decides, not the latency: dropping by what was measured would keep the slow rows of a size and lose the fast ones.
"""
NODE_WEIGHT = 20.0
TEST_FILE_WEIGHT = 4.0
"""Shapes of real models count more than the random ones of the train files."""
HEAVY = {"pow": 1.0, "powu": 1.0, "tanh": 0.5, "gelu": 0.5, "div": 0.3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Measured kernels of one family on one device."""

    columns: Array
    seconds: Array
    weight: Array
    model: NDArray[np.str_]
    """The model whose node a row is; empty for operators measured alone."""
    real: NDArray[np.bool_]
    """Sizes of real models, not random ones."""

    @property
    def burst_s(self) -> Array:
        return NUM_CALLS * self.seconds

    def where(self, keep: NDArray[np.bool_]) -> "Rows":
        return Rows(
            columns=self.columns[keep],
            seconds=self.seconds[keep],
            weight=self.weight[keep],
            model=self.model[keep],
            real=self.real[keep],
        )


def read_rows(directory: Path, *, max_rows: int = 4000, seed: int = 0) -> dict[tuple[str, str], Rows]:
    """All rows by (family, device)."""
    if not (directory / "gemm_linear.parquet").is_file():
        raise InvalidInput(f"no measured operators in {directory}; give the directory that holds gemm_linear.parquet")
    parts: dict[tuple[str, str], list[Rows]] = {}
    rng = np.random.default_rng(seed)
    for family, name, rows in [*_operators(directory, max_rows, rng), *_nodes(directory)]:
        parts.setdefault((family, name), []).append(rows)
    return {key: _join(found) for key, found in sorted(parts.items())}


def _join(parts: list[Rows]) -> Rows:
    return Rows(
        columns=np.concatenate([part.columns for part in parts]),
        seconds=np.concatenate([part.seconds for part in parts]),
        weight=np.concatenate([part.weight for part in parts]),
        model=np.concatenate([part.model for part in parts]),
        real=np.concatenate([part.real for part in parts]),
    )


def _read(path: Path) -> dict[str, NDArray[np.generic]]:
    table = pq.read_table(path)
    return {name: np.asarray(table[name].to_pylist()) for name in table.column_names}


def _operators(directory: Path, max_rows: int, rng: np.random.Generator) -> Iterator[tuple[str, str, Rows]]:
    for file, family in (
        ("gemm_linear", "matmul"),
        ("gemm_bmm", "matmul"),
        ("conv2d", "conv"),
        ("elementwise", "pointwise"),
        ("softmax", "softmax"),
        ("layernorm", "norm"),
    ):
        table = _read(directory / f"{file}.parquet")
        columns = _COLUMNS[file](table)
        latency_s = table["latency_ms"].astype(np.float64) * 1e-3
        tested = table["neusight_file_split"] == "test"
        foreign = np.char.startswith(table["kernel_name"].astype(str), "sgemm_")
        for gpu, name in DEVICE_OF.items():
            mine = table["gpu"] == gpu
            if not mine.any():
                continue
            floor_s = np.quantile(latency_s[mine], 0.002)
            bound_s = describe(family, columns[mine], find_device(name), PowerLaw()).bound_s
            keep = mine & ~foreign
            keep[mine] &= bound_s > FLOOR_FACTOR * floor_s
            chosen = np.concatenate(
                [_thin(np.flatnonzero(keep & ~tested), max_rows, rng), np.flatnonzero(keep & tested)]
            )
            real = tested[chosen]
            yield family, name, Rows(
                columns=columns[chosen],
                seconds=latency_s[chosen],
                weight=np.where(real, TEST_FILE_WEIGHT, 1.0),
                model=np.full(len(chosen), "", dtype=np.str_),
                real=real,
            )  # fmt: skip


def _thin(rows: NDArray[np.intp], limit: int, rng: np.random.Generator) -> NDArray[np.intp]:
    return rows if len(rows) <= limit else np.sort(rng.choice(rows, limit, replace=False))


def _stack(family: str, **columns: object) -> Array:
    return np.stack([np.asarray(columns[name], dtype=np.float64) for name in FAMILIES[family]], axis=1)


Table = Mapping[str, NDArray[np.generic]]


def _matmul_columns(table: Table) -> Array:
    four = np.full(len(table["m"]), 4.0)
    b, m, n, k = (table[name].astype(np.float64) for name in ("batch", "m", "n", "k"))
    return _stack(
        "matmul",
        batch=table["batch"],
        m=table["m"],
        n=table["n"],
        k=table["k"],
        transposed=table["layout"].astype(str) == "tn",
        item_bytes=four,
        bytes=four * b * (m * k + k * n + m * n),
    )


def _conv_columns(table: Table) -> Array:
    size = table["in_size"].astype(np.float64)
    one = np.ones_like(size)
    return _stack(
        "conv",
        batch=table["batch"],
        in_channels=table["in_channels"],
        out_channels=table["out_channels"],
        groups=one,
        in_numel=size**2,
        out_numel=size**2,
        taps=9 * one,
        strided=0 * one,
        item_bytes=4 * one,
    )


def _pointwise_columns(table: Table) -> Array:
    names = table["op"].astype(str)
    cols = table["cols"].astype(np.float64)
    return _stack(
        "pointwise",
        bytes=table["bytes_min"],
        inputs=np.isin(names, ("add", "mul", "div", "pow")) + 1.0,
        heavy=[HEAVY.get(name, 0.0) for name in names],
        aligned=(cols * table["rows"].astype(np.float64)) % 4 == 0,
    )


def _row_columns(table: Table) -> Array:
    return _stack("softmax", rows=table["rows"], cols=table["cols"], bytes=table["bytes_min"])


_COLUMNS = {
    "gemm_linear": _matmul_columns,
    "gemm_bmm": _matmul_columns,
    "conv2d": _conv_columns,
    "elementwise": _pointwise_columns,
    "softmax": _row_columns,
    "layernorm": _row_columns,
}

MIN_NODE_S = 1.5e-4


def _nodes(directory: Path) -> Iterator[tuple[str, str, Rows]]:
    """Forward nodes of real models, long enough that the host does not show."""
    found: dict[tuple[str, str], list[tuple[list[float], float, str]]] = {}
    for node in pq.read_table(directory / "gpu_nodes.parquet").to_pylist():
        if node["node_quality"] == "suspect" or node["gpu"] not in DEVICE_OF or node["fw_ms"] * 1e-3 < MIN_NODE_S:
            continue
        shape = _node_shape(node)
        if shape is not None:
            family, columns = shape
            row = ([float(columns[name]) for name in FAMILIES[family]], node["fw_ms"] * 1e-3, node["model"])
            found.setdefault((family, DEVICE_OF[node["gpu"]]), []).append(row)
            if family == "matmul" and node["bw_ms"] * 1e-3 > 2 * MIN_NODE_S:
                found[family, DEVICE_OF[node["gpu"]]] += _backward_products(
                    columns, node["bw_ms"] * 1e-3, node["model"]
                )
    for (family, name), rows in found.items():
        yield family, name, Rows(
            columns=np.array([row[0] for row in rows]),
            seconds=np.array([row[1] for row in rows]),
            weight=np.full(len(rows), NODE_WEIGHT),
            model=np.array([row[2] for row in rows]),
            real=np.ones(len(rows), dtype=np.bool_),
        )  # fmt: skip


def _backward_products(
    forward: Mapping[str, float], seconds: float, model: str
) -> list[tuple[list[float], float, str]]:
    """A linear layer's backward is two products of the same size, timed together with the sum that makes the bias gradient."""
    m, n, k = forward["m"], forward["n"], forward["k"]
    both: tuple[dict[str, float], ...] = (
        {**forward, "n": k, "k": n, "transposed": 1.0 - forward["transposed"]},
        {**forward, "m": n, "n": k, "k": m, "transposed": 0.0},
    )
    return [([float(columns[name]) for name in FAMILIES["matmul"]], 0.48 * seconds, model) for columns in both]


def _node_shape(node: Mapping[str, str]) -> tuple[str, dict[str, float]] | None:
    kind = node["op_kind"]
    inputs: list[list[int]] = ast.literal_eval(node["input_shapes"])
    output: tuple[int, ...] = ast.literal_eval(node["output_shape"])
    numel = float(np.prod(output))
    rows = float(np.prod(output[:-1]))
    if kind == "Linear":
        plain = len(inputs) == 1
        k = inputs[0][-1] if plain else inputs[1][-1]
        num_bytes = 4 * (rows * k + k * output[-1] + numel)
        return "matmul", {
            "batch": 1, "m": rows, "n": output[-1], "k": k, "transposed": plain, "item_bytes": 4, "bytes": num_bytes,
        }  # fmt: skip
    if kind == "VECsoftmax":
        return "softmax", {"rows": rows, "cols": output[-1], "bytes": 8 * numel}
    if kind == "VECln":
        return "norm", {"rows": rows, "cols": output[-1], "bytes": 8 * numel}
    if kind in _NODE_POINTWISE:
        num_inputs, heavy = _NODE_POINTWISE[kind]
        if kind == "VECadd" and len(inputs) == 2 and float(np.prod(inputs[1])) < numel:
            num_inputs = 1
        return "pointwise", {"bytes": 4 * (num_inputs + 1) * numel, "inputs": num_inputs, "heavy": heavy, "aligned": 1}
    return None


_NODE_POINTWISE: dict[str, tuple[int, float]] = {
    "VECadd": (2, 0.0), "VECmul": (2, 0.0), "VECmulu": (1, 0.0), "VECdivu": (1, 0.0), "VECaddu": (1, 0.0),
    "VECgelu": (1, 0.5), "VECtanh": (1, 0.5), "VECrelu": (1, 0.0),
}  # fmt: skip
