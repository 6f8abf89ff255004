"""Fits the reuse predictor on GPUs: python -m research.fits.interaction_gpu.reuse (after research.fits.interaction_gpu).

The label of a program is the median over its measured rows of log measured over priced time, the layers alone. Five folds of
whole families, as everywhere; the rival is the ensemble, left out alike. The reach is the best of three on the left-out families.
"""

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.__main__ import FAMILY_FOLDS, fold_programs, recall_left_out, spread_out
from research.fits.interaction_gpu.blend import cross_fit
from research.fits.interaction_gpu.data import TIMM, Data, image_models, read_everything
from research.fits.interaction_gpu.members import Table
from traincast.embed import FOLDER, ON_GPUS, describe, load_encoder
from traincast.files import write_json

Array = NDArray[np.float64]
REACHES = (0.5, 1.0, 2.0)
SPREAD, NOISE, LARGEST = 0.15, 0.1, 0.4
MOST = 220


def embed_images(data: Data) -> Array:
    """Of each program of an image model, by the graph it was captured as; rows of nothing for the rest. Vectors are kept in the
    temporary folder, by the encoder that made them."""
    from pyarrow import parquet

    encoder = load_encoder()
    code = hashlib.sha256((FOLDER / "encoder.json.gz").read_bytes()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"traincast-vectors-{code}.npz"
    kept: dict[str, Array] = dict(np.load(path)) if path.is_file() else {}
    vectors: dict[tuple[bool, str], Array] = {}
    for index, training in (("train_index", True), ("infer_index", False)):
        for row in parquet.read_table(TIMM / "graphs" / f"{index}.parquet").to_pylist():
            if row["graph"] not in kept:
                kept[row["graph"]] = encoder.encode(describe(image_models.read_graph(TIMM / "graphs" / row["graph"])))
            vectors[training, row["model"]] = kept[row["graph"]]
    with path.open("wb") as stream:
        np.savez(stream, **kept)  # type: ignore[arg-type]
    nothing = np.full(len(next(iter(vectors.values()))), np.nan)
    return np.array([vectors.get((" train" in one.name, one.name.split()[0]), nothing) for one in data.programs])


def label_programs(data: Data) -> Array:
    found: dict[int, list[float]] = {}
    for row in data.rows:
        found.setdefault(row.program, []).append(float(np.log(row.measured_s / (row.seconds.sum() + row.rest_s))))
    return np.array([float(np.median(found[place])) for place in range(len(data.programs))])


def kernel(one: Array, other: Array) -> Array:
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None] - 2 * one @ other.T
    return np.asarray(SPREAD**2 * np.exp(-0.5 * np.maximum(squares, 0.0)))


def solve(points: Array, logs: Array) -> Array:
    clipped = np.clip(logs, -LARGEST, LARGEST)
    return np.asarray(np.linalg.solve(kernel(points, points) + NOISE**2 * np.eye(len(points)), clipped))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=ON_GPUS)
    asked = parser.parse_args(arguments)
    data = read_everything()
    table = Table.of(data)
    left_out = recall_left_out(data, table, seed=0)
    vectors, labels, fold = embed_images(data), label_programs(data), fold_programs(data)
    there = np.isfinite(vectors).all(axis=1) & (fold < FAMILY_FOLDS)
    center, scale = vectors[there].mean(axis=0), vectors[there].std(axis=0) + 1e-6
    standard = (vectors - center) / scale / vectors.shape[1] ** 0.5
    behaviours = np.array([one.behaviour for one in data.programs])
    best = min(REACHES, key=lambda reach: _mean_error(table, standard / reach, labels, fold, behaviours, there))
    known: dict[str, Any] = {}
    for behaviour in sorted(set(behaviours[there].tolist())):
        mine = there & (behaviours == behaviour)
        errors = _left_out_errors(table, standard / best, labels, fold, mine)
        rows = left_out.behaviour == behaviour
        rival = cross_fit(table, left_out, rows)[1][left_out.fold[rows] < FAMILY_FOLDS]
        sys.stdout.write(
            f"{behaviour}: GHN on the anchor {100 * errors.mean():.1f}%, ensemble {100 * rival.mean():.1f}%\n"
        )
        places = np.flatnonzero(mine)
        kept = places[spread_out(standard[places], MOST)]
        points = standard[kept] / best
        apart = [_nearest_other(points, fold[kept], place) for place in range(len(kept))]
        known[behaviour] = {
            "names": [data.programs[place].name.split()[0] for place in kept.tolist()], "vectors": _round(points),
            "weights": _round(solve(points, labels[kept])), "ordinary": round(float(np.median(apart)), 4),
            "error": round(float(errors.mean()), 4), "rival_error": round(float(rival.mean()), 4),
        }  # fmt: skip
    document = {"center": _round(center), "scale": _round(scale), "reach": best, "spread": SPREAD, "known": known}
    write_json(asked.output, document)
    sys.stdout.write(f"{asked.output}: reach {best}, {asked.output.stat().st_size / 1e3:.0f} kB\n")


def _nearest_other(points: Array, fold: NDArray[np.intp], place: int) -> float:
    others = points[fold != fold[place]]
    return float(np.sqrt(((others - points[place]) ** 2).sum(axis=1).min()))


def _left_out_errors(
    table: Table, points: Array, labels: Array, fold: NDArray[np.intp], mine: NDArray[np.bool_]
) -> Array:
    """Of each measured row of some programs."""
    logs = np.zeros(len(labels))
    for one in range(FAMILY_FOLDS):
        known, asked = np.flatnonzero(mine & (fold != one)), np.flatnonzero(mine & (fold == one))
        logs[asked] = kernel(points[asked], points[known]) @ solve(points[known], labels[known])
    rows = mine[table.row_program]
    priced = table.log_step(np.zeros(len(table.node_class)))[rows]
    return np.abs(np.expm1(priced + logs[table.row_program[rows]] - table.log_measured[rows]))


def _mean_error(table: Table, points: Array, labels: Array, fold: NDArray[np.intp], behaviours: NDArray[np.str_],
                there: NDArray[np.bool_]) -> float:  # fmt: skip
    parts = [there & (behaviours == one) for one in sorted(set(behaviours[there].tolist()))]
    return float(np.mean([_left_out_errors(table, points, labels, fold, mine).mean() for mine in parts]))


def _round(values: Array) -> Any:
    if values.ndim > 1:
        return [_round(row) for row in values]
    return [float(f"{value:.4g}") for value in values.tolist()]


if __name__ == "__main__":
    main()
