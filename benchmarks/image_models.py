"""Steps of image models on two GPUs, physics alone: python benchmarks/image_models.py [NUM_MODELS].

Needs the measured steps and captured graphs in ../shared/data/timm. Every graph is priced op by op with the shipped laws. "one
factor": divided by the median ratio of the other families (five folds of whole families).
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from traincast import catalog
from traincast.cost import load_learned
from traincast.files import load_graph
from traincast.lower import fuse, mark_evaluation
from traincast.spec import Graph, Op, Stage

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "timm" / "graphs"
FAST_NORM_MODULES = (
    "convnext", "davit", "maxxvit", "edgenext", "mobilevit", "metaformer", "tiny_vit", "inception_next", "fastvit",
)  # fmt: skip
"""Families whose norms ran in fp16 without casts when inference was measured; the graphs were captured without that switch."""
REPARAMETERISED = ("repvgg", "mobileone")
"""Models whose branches were folded into one when they were measured with torch 2.9.1; their graphs were captured unfolded."""
FOLDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    family: str
    model: str
    seconds: dict[str, float]
    measured: dict[str, float]


def read_graph(path: Path) -> Graph:
    found = load_graph(path)
    return found if isinstance(found, Graph) else found.small


def as_run(graph: Graph, family: str, *, new_norms: bool) -> Graph:
    """The inference graph with fp16 norms where the fast switch took them, and norms that only apply their statistics."""
    fast = any(family.startswith(name) for name in FAST_NORM_MODULES) or new_norms
    normed: set[int] = set()
    ops: list[Op] = []
    for op in mark_evaluation(graph).ops:
        if op.kind == "norm" and "batch" not in str(op.attrs["function"]) and fast and op.dtype == "fp32":
            op = replace(op, dtype="fp16", bytes_read=op.bytes_read / 2, bytes_written=op.bytes_written / 2)
            normed.update((*op.reads, *op.writes))
        ops.append(op)
    casts = [op for op in ops if op.kind == "copy" and op.name == "aten._to_copy" and normed & {*op.reads, *op.writes}]
    dropped = {id(op) for op in casts}
    return _without(graph, ops, dropped) if dropped else replace(graph, ops=tuple(ops))


def _without(graph: Graph, ops: list[Op], dropped: set[int]) -> Graph:
    """Ops that are dropped cost nothing but keep their place, so that repeats stay as they are."""
    free = {"bytes_read": 0.0, "bytes_written": 0.0, "num_kernels": 0, "num_calls": 0}
    return replace(graph, ops=tuple(replace(op, **free) if id(op) in dropped else op for op in ops))


def with_layout(graph: Graph) -> Graph:
    ops = tuple(replace(op, attrs={**op.attrs, "channels_last": True}) if op.kind == "conv" else op for op in graph.ops)
    return replace(graph, ops=ops)


def price(graph: Graph, device_name: str, *, compiled: bool = False) -> float:
    device = catalog.device(device_name)
    ops, counts = graph.ops, np.array(graph.counts())
    if compiled:
        stage = Stage(tasks=graph.ops, tensors=graph.tensors, repeats=graph.repeats)
        fused = fuse(stage)
        ops = tuple(task for task in fused.tasks if isinstance(task, Op))
        counts = np.array(replace(graph, ops=ops, repeats=fused.repeats).counts())
    seconds = load_learned().predict(ops, device).seconds
    there = np.array([op.num_kernels > 0 for op in ops])
    return float((seconds * counts * there).sum())


def read_rows(limit: int) -> tuple[list[Row], list[Row]]:
    from pyarrow import parquet

    training, inference = [], []
    for row in _some(parquet.read_table(DATA / "train_index.parquet").to_pylist(), limit):
        graph = read_graph(DATA / row["graph"])
        seconds = {"nchw": price(graph, "rtx-3090"), "nhwc": price(with_layout(graph), "rtx-3090")}
        measured = {"nchw": row["nchw"]}
        if row["batch_nhwc"] == row["batch"]:
            measured["nhwc"] = row["nhwc"]
        training.append(Row(family=row["module"], model=row["model"], seconds=seconds, measured=measured))
    for row in _some(parquet.read_table(DATA / "infer_index.parquet").to_pylist(), limit):
        graph = read_graph(DATA / row["graph"])
        old, new = (as_run(graph, row["module"], new_norms=flag) for flag in (False, True))
        seconds = {
            "3090_e_2.4": price(old, "rtx-3090"), "4090_e_2.4": price(old, "rtx-4090"), "4090_e_2.9.1": price(new, "rtx-4090"),
            "4090_c_2.4": price(with_layout(old), "rtx-4090", compiled=True),
            "4090_c_2.9.1": price(with_layout(new), "rtx-4090", compiled=True),
        }  # fmt: skip
        folded = row["model"].startswith(REPARAMETERISED)
        measured = {key: row[key] for key in seconds if not (folded and key.endswith("2.9.1"))}
        inference.append(Row(family=row["module"], model=row["model"], seconds=seconds, measured=measured))
    return training, inference


def _some(rows: list[dict[str, Any]], limit: int) -> Iterable[dict[str, Any]]:
    if limit >= len(rows):
        return rows
    return [rows[index] for index in np.random.default_rng(0).choice(len(rows), limit, replace=False)]


def show(title: str, rows: list[Row], key: str) -> None:
    kept = [row for row in rows if row.measured.get(key)]
    ratio = np.array([row.seconds[key] / row.measured[key] for row in kept])
    families = sorted({row.family for row in kept})
    fold = np.array([families.index(row.family) % FOLDS for row in kept])
    factor = np.array([np.median(ratio[fold != one]) for one in fold])
    plain, scaled = np.abs(ratio - 1), np.abs(ratio / factor - 1)
    print(
        f"{title:34} n {len(kept):4}  mean {plain.mean():6.1%}  median {np.median(plain):6.1%}"
        f"  p90 {np.quantile(plain, 0.9):6.1%}"
        f"  bias {np.median(ratio) - 1:+6.1%} | one factor: mean {scaled.mean():6.1%}  median {np.median(scaled):6.1%}"
        f"  p90 {np.quantile(scaled, 0.9):6.1%}"
    )


def main() -> None:
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    training, inference = read_rows(limit)
    show("training NCHW, RTX 3090", training, "nchw")
    show("training NHWC, RTX 3090", training, "nhwc")
    for key in ("3090_e_2.4", "4090_e_2.4", "4090_e_2.9.1", "4090_c_2.4", "4090_c_2.9.1"):
        gpu, how, version = key.split("_")
        show(f"inference {'compiled' if how == 'c' else 'eager'}, {gpu}, torch {version}", inference, key)
    if len(sys.argv) > 2:
        for rows, key in (
            (training, "nchw"),
            (training, "nhwc"),
            (inference, "4090_e_2.9.1"),
            (inference, "4090_c_2.9.1"),
        ):
            found: dict[str, list[float]] = {}
            for row in rows:
                if row.measured.get(key):
                    found.setdefault(row.family, []).append(row.seconds[key] / row.measured[key] - 1)
            worst = sorted(found.items(), key=lambda item: -abs(np.mean(item[1])) * len(item[1]))[:14]
            print(key, "  ".join(f"{name} {np.mean(values):+.0%} x{len(values)}" for name, values in worst))


if __name__ == "__main__":
    main()
