"""Steps of image models on two GPUs, physics alone: python benchmarks/image_models.py [--sample NAME] [--fast DIR].

Needs the measured steps and captured graphs in ../shared/data/timm. Every graph is priced op by op with the shipped laws, under
the software of the rows: training ran PyTorch 1.12 (the stack document `pytorch-1`), inference 2.4 and 2.9.1 (today's). "one
factor": divided by the median ratio of the other families (five folds of whole families).

Samples are drawn by a fixed seed: `chosen` (150 models of all families; constants were chosen on it), `fresh` (100 others,
looked at once after all choices), `all`, and `unseen` (120 models of inference that have no captured graph in the data, going
round the families; training has none left). Inference was measured with timm's fast norm, which the captured graphs lack:
`--capture DIR` records the models again with it (needs timm; torchvision may be absent), `--fast DIR` reads what was recorded.
"""

import argparse
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from traincast import catalog
from traincast.cost import load_learned
from traincast.cost._pricing import mark_software
from traincast.files import load_graph, save_graph
from traincast.lower import mark_evaluation, mark_orders
from traincast.lower._fuse import fuse
from traincast.spec import Graph, Op, Stage

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "timm" / "graphs"
FAST_NORM_MODULES = (
    "convnext", "davit", "maxxvit", "edgenext", "mobilevit", "metaformer", "tiny_vit", "inception_next", "fastvit",
)  # fmt: skip
"""Families whose norms ran in fp16 without casts with torch 2.4, beside nets with group norm; with 2.9.1 all that use timm's."""
REPARAMETERISED = ("repvgg", "mobileone")
"""Captured models whose branches were folded into one when they were measured with torch 2.9.1, as of all that can be."""
FOLDS = 5
SEED, NUM_CHOSEN, NUM_FRESH, NUM_UNSEEN = 21, 150, 100, 120
PLAIN, FOLDED = "plain", "folded"
"""Folders, inside that of the recorded graphs, of the same models without fast norms, and with branches folded into one."""
INFERENCE = ("3090_e_2.4", "3090_l_2.4", "4090_e_2.4", "4090_e_2.9.1", "4090_c_2.4", "4090_c_2.9.1")
"""GPU, how it ran (eager, eager with channels last, compiled) and version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    condition: str
    family: str
    model: str
    seconds: float
    measured: float


def read_graph(path: Path) -> Graph:
    found = load_graph(path)
    return found if isinstance(found, Graph) else found.small


def draw(rows: Sequence[dict[str, Any]], sample: str) -> list[dict[str, Any]]:
    """Half of the chosen models go round the families, so that each is seen; the rest and the fresh ones are drawn at random."""
    if sample == "all":
        return list(rows)
    rng = np.random.default_rng(SEED)
    first = go_round(rows, rng)[: NUM_CHOSEN // 2]
    kept = set(first)
    rest = [int(index) for index in rng.permutation([index for index in range(len(rows)) if index not in kept])]
    split = NUM_CHOSEN - len(first)
    picked = first + rest[:split] if sample == "chosen" else rest[split : split + NUM_FRESH]
    return [rows[index] for index in picked]


def go_round(rows: Sequence[dict[str, Any]], rng: np.random.Generator) -> list[int]:
    """Places of all rows, a family after the other in turns."""
    by_family: dict[str, list[int]] = {}
    for index in rng.permutation(len(rows)):
        by_family.setdefault(rows[index]["module"], []).append(int(index))
    names, order, turn = sorted(by_family), [], 0
    while any(len(members) > turn for members in by_family.values()):
        for name in rng.permutation(names):
            if len(by_family[name]) > turn:
                order.append(by_family[name][turn])
        turn += 1
    return order


def draw_unseen(indexed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measured inference of models without a captured graph, in the form of the index; one size and batch of each model."""
    from pyarrow import parquet

    known = {row["model"] for row in indexed}
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in parquet.read_table(DATA.parent / "steps.parquet").to_pylist():
        model = row["model"].split(".")[0]
        how = ("c" if row["compiled"] else "e") + f"_{row['torch']}"
        condition = f"{row['gpu'].removeprefix('rtx-')}_{how}"
        if row["mode"] != "inference" or row["layout"] != "contiguous" or model in known or condition not in INFERENCE:
            continue
        about = {"model": model, "module": row["module"], "image": int(row["image"]), "batch": int(row["batch"])}
        entry = found.setdefault((model, about["image"], about["batch"]), about)
        entry[condition] = row["step_s"]
    most: dict[str, dict[str, Any]] = {}
    for key in sorted(found):
        # The size and batch that most conditions share.
        if key[0] not in most or len(found[key]) > len(most[key[0]]):
            most[key[0]] = found[key]
    rows = [most[name] for name in sorted(most)]
    return [rows[index] for index in go_round(rows, np.random.default_rng(SEED))[:NUM_UNSEEN]]


def without_norm_casts(graph: Graph) -> Graph:
    """An inference graph with fp16 norms, for want of one that was recorded with them: casts beside norms cost nothing."""
    normed: set[int] = set()
    ops: list[Op] = []
    for op in graph.ops:
        if op.kind == "norm" and "batch" not in str(op.attrs["function"]) and op.dtype == "fp32":
            op = replace(op, dtype="fp16", bytes_read=op.bytes_read / 2, bytes_written=op.bytes_written / 2)
            normed.update((*op.reads, *op.writes))
        ops.append(op)
    free = {"bytes_read": 0.0, "bytes_written": 0.0, "num_kernels": 0, "num_calls": 0}
    casts = (op.name == "aten._to_copy" and bool(normed & {*op.reads, *op.writes}) for op in ops)
    return replace(graph, ops=tuple(replace(op, **free) if cast else op for op, cast in zip(ops, casts, strict=True)))


def with_layout(graph: Graph) -> Graph:
    ops = tuple(replace(op, attrs={**op.attrs, "channels_last": True}) if op.kind == "conv" else op for op in graph.ops)
    return replace(graph, ops=ops)


def price(graph: Graph, device_name: str, *, stack: str = "pytorch", compiled: bool = False) -> float:
    graph = mark_orders(graph)
    ops, counts = graph.ops, np.array(graph.counts())
    if compiled:
        fused = fuse(Stage(tasks=graph.ops, tensors=graph.tensors, repeats=graph.repeats))
        ops = tuple(task for task in fused.tasks if isinstance(task, Op))
        counts = np.array(replace(graph, ops=ops, repeats=fused.repeats).counts())
    ops = mark_software(ops, catalog.stack(stack))
    seconds = load_learned().predict(ops, catalog.device(device_name)).seconds
    there = np.array([op.num_kernels > 0 for op in ops])
    return float((seconds * counts * there).sum())


def price_training(row: dict[str, Any]) -> Iterator[Row]:
    graph = read_graph(DATA / row["graph"])
    about = {"family": row["module"], "model": row["model"]}
    yield Row(
        condition="nchw", seconds=price(graph, "rtx-3090", stack="pytorch-1"), measured=row["nchw"], **about
    )  # fmt: skip
    if row["batch_nhwc"] == row["batch"] and row["nhwc"]:
        seconds = price(with_layout(graph), "rtx-3090", stack="pytorch-1")
        yield Row(condition="nhwc", seconds=seconds, measured=row["nhwc"], **about)


def price_inference(row: dict[str, Any], fast: Path | None, layouts: dict[tuple[Any, ...], float]) -> Iterator[Row]:
    name = f"{row['model']}_{row['image']}_{row['batch']}.json.gz"
    recorded = None if fast is None else fast / name
    captured = DATA / row["graph"] if "graph" in row or recorded is None else recorded.parent / PLAIN / name
    if not captured.is_file():
        return
    plain = mark_evaluation(read_graph(captured))
    if recorded is not None and recorded.is_file():
        new = mark_evaluation(read_graph(recorded))
    else:
        new = without_norm_casts(plain)
    folded = None if fast is None else fast / FOLDED / name
    late = mark_evaluation(read_graph(folded)) if folded is not None and folded.is_file() else None
    grouped = any("group_norm" in op.name for op in plain.ops)
    old = new if grouped or row["module"].startswith(FAST_NORM_MODULES) else plain
    for condition in INFERENCE:
        gpu, how, version = condition.split("_")
        measured = row.get(condition) if how != "l" else layouts.get(
            (row["model"], f"rtx-{gpu}", version, row["batch"], row["image"])
        )  # fmt: skip
        if not measured or (version == "2.9.1" and late is None and row["model"].startswith(REPARAMETERISED)):
            continue
        graph = (late or new) if version == "2.9.1" else old
        seconds = price(graph if how != "l" else with_layout(graph), f"rtx-{gpu}", compiled=how == "c")
        yield Row(
            condition=condition, family=row["module"], model=row["model"], seconds=seconds, measured=measured
        )  # fmt: skip


def read_layouts() -> dict[tuple[Any, ...], float]:
    """Measured eager inference with channels last, by model, GPU, version, batch and image."""
    from pyarrow import parquet

    rows = parquet.read_table(DATA.parent / "steps.parquet").to_pylist()
    keys = ("gpu", "torch", "batch", "image")
    return {
        (row["model"].split(".")[0], *(row[key] for key in keys)): row["step_s"]
        for row in rows
        if row["mode"] == "inference" and row["layout"] == "channels_last" and not row["compiled"]
    }


def show(title: str, rows: Sequence[Row]) -> None:
    ratio = np.array([row.seconds / row.measured for row in rows])
    families = sorted({row.family for row in rows})
    fold = np.array([families.index(row.family) % FOLDS for row in rows])
    others = [ratio[fold != one] for one in fold]
    factor = np.array([np.median(part) if len(part) else 1.0 for part in others])
    plain, scaled = np.abs(ratio - 1), np.abs(ratio / factor - 1)
    print(
        f"{title:34} n {len(rows):4}  mean {plain.mean():6.1%}  median {np.median(plain):6.1%}"
        f"  p90 {np.quantile(plain, 0.9):6.1%}"
        f"  bias {np.median(ratio) - 1:+6.1%} | one factor: mean {scaled.mean():6.1%}  median {np.median(scaled):6.1%}"
        f"  p90 {np.quantile(scaled, 0.9):6.1%}"
    )


def show_families(rows: Sequence[Row], most: int = 16) -> None:
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row.family, []).append(row.seconds / row.measured - 1)
    worst = sorted(found.items(), key=lambda item: -np.abs(item[1]).sum())[:most]
    print("   ", "  ".join(f"{name} {np.mean(values):+.0%} x{len(values)}" for name, values in worst))


def capture_fast(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Record inference graphs with timm's fast norm, and without it those that the data lack; those that cannot be are named
    and left to the rule."""
    from traincast.capture._timm import import_timm

    timm = import_timm()
    fold = importlib.import_module("timm.utils").reparameterize_model
    timm.layers.set_fast_norm(True)
    branched = [row for row in rows if _has_branches(row["module"])]
    _capture_all(timm, rows, folder)
    _capture_all(timm, branched, folder / FOLDED, change=fold)
    timm.layers.set_fast_norm(False)
    _capture_all(timm, [row for row in rows if "graph" not in row], folder / PLAIN)


def _has_branches(module: str) -> bool:
    """Whether a family's models, or the blocks that they take from others, can fold branches into one."""
    source = inspect.getsource(importlib.import_module(f"timm.models.{module}"))
    return any(word in source for word in ("def fuse(", "def reparameterize(", "MobileOneBlock", "RepVggBlock"))


def _build(timm: Any, name: str, change: Callable[[Any], Any] | None) -> Any:
    """A recipe of the model; where its weights must be folded first, the model itself."""
    if change is not None:
        return change(timm.create_model(name).eval())
    return lambda: timm.create_model(name).eval()


def _capture_all(
    timm: Any, rows: Sequence[dict[str, Any]], folder: Path, change: Callable[[Any], Any] | None = None
) -> None:
    import torch

    from traincast.capture import capture
    from traincast.errors import TraincastError

    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        path = folder / f"{row['model']}_{row['image']}_{row['batch']}.json.gz"
        if path.is_file():
            continue
        images = torch.empty(row["batch"], 3, row["image"], row["image"], device="meta")
        try:
            graph = capture(
                _build(timm, row["model"], change),
                (images,),
                mode="inference",
                precision="fp16-amp",
            )
        except TraincastError as error:
            print(f"{row['model']}: {error}")
            continue
        save_graph(graph, path)


def main() -> None:
    from pyarrow import parquet

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", choices=("chosen", "fresh", "unseen", "all"), default="chosen")
    parser.add_argument("--only", choices=("training", "inference"))
    parser.add_argument("--families", action="store_true", help="name the families with the largest errors")
    parser.add_argument("--fast", type=Path, help="folder of graphs recorded with fast norms")
    parser.add_argument("--capture", type=Path, help="record graphs with fast norms into this folder and stop")
    options = parser.parse_args()
    tables = [parquet.read_table(DATA / f"{name}_index.parquet").to_pylist() for name in ("train", "infer")]
    if options.sample == "unseen":
        training, inference = [], draw_unseen(tables[1])
    else:
        training, inference = (draw(table, options.sample) for table in tables)
    if options.capture:
        capture_fast(inference, options.capture)
        return
    found: list[Row] = []
    if options.only != "inference":
        found += [priced for row in training for priced in price_training(row)]
    if options.only != "training":
        layouts = read_layouts()
        found += [priced for row in inference for priced in price_inference(row, options.fast, layouts)]
    for condition in ("nchw", "nhwc", *INFERENCE):
        rows = [row for row in found if row.condition == condition]
        if rows:
            show(condition if "_" in condition else f"training {condition.upper()}", rows)
            if options.families:
                show_families(rows)


if __name__ == "__main__":
    main()
