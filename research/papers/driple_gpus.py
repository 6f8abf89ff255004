"""Driple's graph network on GPU splits, beside ours.

GPU utilisation of watched runs of ../shared/cases, GPU types in five folds, then each workload, left out; and training steps of
image models, families left out (folds of `research.fits.interaction_gpu`). The network is `research.baselines.driple` with
logarithms of sizes and labels, which helps it, at a fifth of its groups and a tenth of its depth: the published size takes
hours of this machine for one fold. As published it knows the graph and nothing of the GPU.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from research.baselines.driple import NUM_TARGETS, Example, Grouped, Network, Training, count_codes, fit, group
from research.fits.interaction_gpu.__main__ import fold_programs
from research.fits.interaction_gpu.data import TIMM, Data, image_models
from research.fits.resources.gpus import Watched, fit_busy
from traincast.files import read_json, write_json
from traincast.spec import Graph

Array = NDArray[np.float64]
GROUPS, LAYERS, READINGS, WIDTH = 20, 5, 8, 32
EPOCHS, PATIENCE, BATCH = 40, 15, 16
NUM_FOLDS = 5
CONDITION = "train NCHW"
NAME = f"Driple's GCN ({LAYERS} of 50 layers, {GROUPS} of 100 groups)"


def predict_left_out(
    graphs: Sequence[Grouped], targets: Array, fold: NDArray[np.intp], *, seed: int, epochs: int = EPOCHS
) -> Array:
    """What the network says of every graph when its fold is left out; the fold before it says when to stop."""
    said = np.zeros(len(targets))
    folds = sorted(set(fold.tolist()))
    for place, one in enumerate(folds):
        check = folds[place - 1]
        known, held = ([
            Example(graph=graphs[at], targets=(float(targets[at]), *(0.0,) * (NUM_TARGETS - 1)))
            for at in np.flatnonzero(mask).tolist()
        ] for mask in ((fold != one) & (fold != check), fold == check))  # fmt: skip
        training = Training(max_epochs=epochs, patience=PATIENCE, batch=BATCH, logarithms=True, seed=seed)
        network = Network(size=WIDTH, num_layers=LAYERS, num_steps=READINGS)
        fitted = fit(known, held, training=training, network=network)
        asked = np.flatnonzero(fold == one).tolist()
        said[asked] = [row[0] for row in fitted.predict([graphs[at] for at in asked])]
    return said


def group_graphs(graphs: Sequence[Graph]) -> list[Grouped]:
    codes = count_codes(graphs)
    made: dict[int, Grouped] = {}
    for graph in graphs:
        if id(graph) not in made:
            made[id(graph)] = group(graph, codes, num_groups=GROUPS)
    return [made[id(graph)] for graph in graphs]


def compare_utilization(runs: Sequence[Watched], *, seeds: Sequence[int]) -> str:
    """Markdown: points of GPU utilisation that each method misses on clean runs."""
    runs = [run for run in runs if run.teaches]
    grouped = group_graphs([run.graph for run in runs])
    measured = np.array([run.measured for run in runs])
    clean = np.array([run.quality == "clean" for run in runs])
    devices = sorted({run.device for run in runs})
    splits: dict[str, Callable[[Watched], object]] = {
        "GPU types, five folds": lambda run: devices.index(run.device) % NUM_FOLDS,
        "workload": lambda run: run.workload,
    }
    lines = [
        "| left out | method | n | mean points | median | p90 | ± seeds | x ours |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for split, key in splits.items():
        fold = np.unique([str(key(run)) for run in runs], return_inverse=True)[1].astype(np.intp)
        ours, constant = np.zeros(len(runs)), np.zeros(len(runs))
        for one in sorted(set(fold.tolist())):
            known = [run for run, mine in zip(runs, fold != one, strict=True) if mine]
            network = fit_busy(known)
            constant[fold == one] = np.median([run.measured for run in known])
            for place in np.flatnonzero(fold == one).tolist():
                told = runs[place].derived + float(network.answer(runs[place].point)[0][0])
                ours[place] = min(max(told, 0.0), 1.0)
        found: dict[str, list[Array]] = {
            "constant": [constant], "timeline": [np.array([run.derived for run in runs])],
            NAME: [predict_left_out(grouped, measured, fold, seed=seed) for seed in seeds], "ours": [ours],
        }  # fmt: skip
        best = float(np.abs(ours - measured)[clean].mean())
        for name, each in found.items():
            missed = [100 * np.abs(said - measured)[clean] for said in each]
            mean = np.mean(missed, axis=0)
            spread = float(np.std([one.mean() for one in missed]))
            lines.append(
                f"| {split} | {name} | {int(clean.sum())} | {mean.mean():.1f} | {np.median(mean):.1f} | "
                f"{np.quantile(mean, 0.9):.1f} | {spread:.1f} | {mean.mean() / 100 / best:.1f} |"
            )
    return "\n".join(lines)


def predict_images(data: Data, *, seed: int) -> tuple[NDArray[np.intp], Array]:
    """Places of the rows of CONDITION, and seconds by the network; kept in the temporary folder, as no physics enters."""
    places = np.array([place for place, row in enumerate(data.rows) if row.condition == CONDITION], dtype=np.intp)
    path = Path(tempfile.gettempdir()) / f"traincast-driple-{GROUPS}-{LAYERS}-{EPOCHS}-{len(places)}-{seed}.json.gz"
    if path.is_file():
        return places, np.array(read_json(path))
    fold = fold_programs(data)[[data.rows[place].program for place in places]]
    measured = np.array([data.rows[place].measured_s for place in places])
    said = predict_left_out(_group_images(data, places), measured, fold, seed=seed)
    write_json(path, said.tolist())
    return places, said


def _group_images(data: Data, places: NDArray[np.intp]) -> list[Grouped]:
    from pyarrow import parquet

    path = Path(tempfile.gettempdir()) / f"traincast-groups-{GROUPS}-{len(places)}.json.gz"
    if path.is_file():
        return [
            Grouped(nodes=tuple((a, b, c) for a, b, c in nodes), edges=tuple((a, b) for a, b in edges))
            for nodes, edges in read_json(path)
        ]
    folder = TIMM / "graphs"
    file_of = {row["model"]: row["graph"] for row in parquet.read_table(folder / "train_index.parquet").to_pylist()}
    names = [data.programs[data.rows[place].program].name.split()[0] for place in places.tolist()]
    made = group_graphs([image_models.read_graph(folder / file_of[name]) for name in names])
    write_json(path, [[one.nodes, one.edges] for one in made])
    return made
