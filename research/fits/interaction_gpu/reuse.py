"""Fits the reuse predictors on GPUs: python -m research.fits.interaction_gpu.reuse (after research.fits.interaction_gpu).

Images: the label of a program is the median over its measured rows of log measured over priced time, the layers alone; it lies
where its shares of operator classes lie. It is judged twice beside the ensemble: architectures left out (three folds, equal
programs together, members of the ensemble fitted without the fold), which is what it is for, and whole families left out,
where it must do no harm. The vector of the graph hyper-network in the place of the shares, or beside them, was tried: no better.

Other types of data (detection and segmentation, tokens, speech, recommendation): runs of ../shared/cases; the label is what the
whole forecast misses, publishers are left out in turn, points are the encoder's vectors. A weight is chosen on what was left out,
with the fading by distance that a forecast applies; it is 0 unless it lowers the mean error by a fiftieth and makes no publisher
worse by a tenth.
"""

import argparse
import hashlib
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.__main__ import (
    FAMILY_FOLDS,
    apply_members,
    fit_members,
    fold_programs,
    mean_nearest,
    recall_left_out,
    share_table,
    spread_out,
    teaching_rows,
)
from research.fits.interaction_gpu.blend import LeftOut, correct, cross_fit
from research.fits.interaction_gpu.data import CASES, SHARED, TIMM, Data, cache_file, image_models, read_everything
from research.fits.interaction_gpu.members import Table
from traincast.accuracy import hide_results, parse_case, read_rows, translate
from traincast.certainty._arbitrate import describe_run
from traincast.cost import is_gpu
from traincast.cost._interaction.ensemble import MEMBERS, Blend
from traincast.embed import ON_GPUS, summarize
from traincast.embed._encoder import FOLDER, load_encoder
from traincast.embed._features import describe
from traincast.embed._on_gpus import SHARE_HALF, SHARE_REACH, SHARE_SCALE
from traincast.errors import TraincastError
from traincast.files import write_json
from traincast.forecast import Engine

Array = NDArray[np.float64]
REACH = 1.0
SPREAD, NOISE, LARGEST = 0.15, 0.05, 0.8
MOST = 450
LEAST_SHARE = 2e-3
ARCHITECTURE_FOLDS = 3
MOST_HARM = 1.01
"""On families left out a blend may be worse than the ensemble by a hundredth of its error, and no more."""
MOST_OF_MODEL = 8
"""Steps of one model of one publisher."""
LEAST_STEPS, LEAST_PUBLISHERS = 6, 3
"""That a type needs for a predictor, and for a weight above 0."""
WEIGHTS = (0.25, 0.5, 0.75, 1.0)
LEAST_GAIN, MOST_WORSE = 0.02, 1.1


def embed_images(data: Data) -> Array:
    """Of each program of an image model, by the graph it was captured as; rows of nothing for the rest. Vectors are kept in the
    temporary folder, by the encoder that made them."""
    from pyarrow import parquet

    encoder = load_encoder()
    code = hashlib.sha256((FOLDER / "encoder.safetensors").read_bytes()).hexdigest()[:16]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseStep:
    """One measured step of the cases, with the vector of its graph and the forecast."""

    name: str
    publisher: str
    run: str
    """How it is run and on what type of data."""
    vector: Array
    log_missed: float
    """Log of measured over forecast time."""


def read_case_steps() -> list[CaseStep]:
    """Of each publisher and model some rows, evenly over the tables."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for table in CASES:
        for row in read_rows(str(SHARED / "cases" / f"{table}.parquet")):
            if row.get("quality") in (None, "clean") and row.get("measured_step_s"):
                groups.setdefault((str(row["source"]).partition("_")[0], str(row["model"])), []).append(row)
    engine = Engine(costs=None, most=500)
    found = []
    for (publisher, model), rows in groups.items():
        places = sorted({round(x) for x in np.linspace(0, len(rows) - 1, MOST_OF_MODEL)})
        for place in places:
            try:
                question = translate(parse_case(hide_results([rows[place]])[0]))
                job = question.job
                answer = engine.forecast(job, question.cluster, question.parallelism)
            except TraincastError:
                continue
            if not all(is_gpu(group.device) for group in question.cluster.groups):
                continue
            found.append(
                CaseStep(
                    name=model,
                    publisher=publisher,
                    run=describe_run(job.graph, compiled=job.compiled),
                    vector=summarize(job.graph).vector,
                    log_missed=math.log(rows[place]["measured_step_s"] / answer.step.seconds),
                )
            )
    return found


def fit_types(steps: Sequence[CaseStep], center: Array, scale: Array, reach: float) -> dict[str, Any]:
    """The predictors of types other than images, by how they are run."""
    known: dict[str, Any] = {}
    for run in sorted({one.run for one in steps}):
        own = [one for one in steps if one.run == run]
        publishers = np.array([one.publisher for one in own])
        if run.endswith(("images", "vectors")) or len(own) < LEAST_STEPS:
            continue
        points = (np.array([one.vector for one in own]) - center) / scale / (reach * len(center) ** 0.5)
        missed = np.array([one.log_missed for one in own])
        apart = [
            _nearest_other(points, np.unique(publishers, return_inverse=True)[1], place) for place in range(len(own))
        ]
        ordinary = float(np.median([one for one in apart if math.isfinite(one)] or [1.0]))
        told, far = _leave_publishers_out(points, missed, publishers)
        weight = _choose_weight(told / (1.0 + (far / max(ordinary, 1e-9)) ** 2), missed, publishers)
        plain, alone = (float(np.abs(np.expm1(one - missed)).mean()) for one in (np.zeros(len(own)), told))
        blend = float(np.abs(np.expm1(weight * told / (1.0 + (far / max(ordinary, 1e-9)) ** 2) - missed)).mean())
        sys.stdout.write(
            f"{run}: {len(own)} steps, {len(set(publishers.tolist()))} publishers, {len({one.name for one in own})} models; "
            f"publishers left out: forecast {100 * plain:.1f}%, vector on it {100 * alone:.1f}%, weight {weight}, "
            f"blend {100 * blend:.1f}%\n"
        )
        kept = spread_out(points, MOST)
        known[run] = {
            "names": [own[place].name for place in kept], "vectors": _round(points[kept]),
            "weights": _round(solve(points[kept], missed[kept])), "ordinary": round(ordinary, 4),
            "error": round(alone, 4), "rival_error": round(plain, 4), "weight": weight, "blended_error": round(blend, 4),
            "left_out": "publishers", "num_steps": len(own), "on_layers": False,
        }  # fmt: skip
    return known


def _leave_publishers_out(points: Array, missed: Array, publishers: NDArray[np.str_]) -> tuple[Array, Array]:
    """What the steps of others say of each, and how far the nearest of them is."""
    told, far = np.zeros(len(missed)), np.full(len(missed), np.inf)
    for name in sorted(set(publishers.tolist())):
        asked, known = publishers == name, publishers != name
        if known.any():
            told[asked] = kernel(points[asked], points[known]) @ solve(points[known], missed[known])
            apart = ((points[asked][:, None] - points[known][None]) ** 2).sum(axis=2)
            far[asked] = np.sqrt(apart.min(axis=1))
    return told, far


def _choose_weight(told: Array, missed: Array, publishers: NDArray[np.str_]) -> float:
    def errors(weight: float) -> Array:
        return np.asarray(np.minimum(np.abs(np.expm1(weight * told - missed)), 1.0))

    if len(set(publishers.tolist())) < LEAST_PUBLISHERS:
        return 0.0
    plain = errors(0.0)
    best, lowest = 0.0, (1 - LEAST_GAIN) * float(plain.mean())
    for weight in WEIGHTS:
        found = errors(weight)
        harmed = any(
            found[publishers == name].mean() > MOST_WORSE * plain[publishers == name].mean()
            for name in sorted(set(publishers.tolist()))
        )
        if not harmed and float(found.mean()) < lowest:
            best, lowest = weight, float(found.mean())
    return best


def fit_images(data: Data, table: Table) -> dict[str, Any]:
    """The predictors of image models, by how they are run."""
    labels, families = label_programs(data), fold_programs(data)
    shares = share_table(data, table)
    points = shares / (SHARE_SCALE * SHARE_REACH)
    behaviours = np.array([one.behaviour for one in data.programs])
    left_out = recall_left_out(data, table, seed=0)
    near = leave_architectures_out(data, table, left_out)
    known: dict[str, Any] = {}
    for behaviour in sorted(set(behaviours[families < FAMILY_FOLDS].tolist())):
        mine = (families < FAMILY_FOLDS) & (behaviours == behaviour)
        blend, _ = cross_fit(table, left_out, left_out.behaviour == behaviour)
        plain, ensemble, alone, blended = _judge(
            table, near, points, labels, fold_architectures(data, table), mine, blend
        )
        _, strange, _, harmed = _judge(table, left_out, points, labels, families, mine, blend)
        weight = 1.0 if blended < (1 - LEAST_GAIN) * ensemble and harmed <= MOST_HARM * strange else 0.0
        sys.stdout.write(
            f"{behaviour}: architectures left out: layers {100 * plain:.1f}%, ensemble {100 * ensemble:.1f}%, reuse alone "
            f"{100 * alone:.1f}%, blend {100 * blended:.1f}%; families left out: ensemble {100 * strange:.1f}%, blend "
            f"{100 * harmed:.1f}%; weight {weight}\n"
        )
        places = np.flatnonzero(mine)
        kept = places[spread_out(points[places], MOST)]
        apart = [_nearest_other(points[kept], families[kept], place) for place in range(len(kept))]
        columns = np.flatnonzero(shares[kept].max(axis=0) >= LEAST_SHARE)
        known[behaviour] = {
            "names": [data.programs[place].name.split()[0] for place in kept.tolist()],
            "classes": [table.classes[column] for column in columns.tolist()],
            "shares": [_pairs(shares[place, columns]) for place in kept.tolist()],
            "weights": _round(solve(points[kept], labels[kept])), "ordinary": round(float(np.median(apart)), 4),
            "error": round(blended, 4), "rival_error": round(ensemble, 4), "weight": weight,
            "blended_error": round(blended, 4), "left_out": "architectures", "num_steps": int(mine[table.row_program].sum()),
            "half_at": SHARE_HALF / SHARE_REACH,
        }  # fmt: skip
    return known


def _pairs(shares: Array) -> list[float]:
    there = np.flatnonzero(shares >= LEAST_SHARE).tolist()
    return [value for place in there for value in (place, round(1000 * float(shares[place]), 1))]


def _judge(
    table: Table, left_out: LeftOut, points: Array, labels: Array, fold: NDArray[np.intp], mine: NDArray[np.bool_],
    blend: Blend,
) -> tuple[float, float, float, float]:  # fmt: skip
    """Mean errors of the layers, the ensemble, the predictor alone and the blend on programs whose fold was left out."""
    told, far = np.zeros(len(labels)), np.full(len(labels), np.inf)
    for one in sorted(set(fold[mine].tolist())):
        known, asked = np.flatnonzero(mine & (fold != one)), np.flatnonzero(mine & (fold == one))
        told[asked] = kernel(points[asked], points[known]) @ solve(points[known], labels[known])
        squares = (points[asked] ** 2).sum(axis=1)[:, None] + (points[known] ** 2).sum(axis=1)[None]
        far[asked] = np.sqrt(np.maximum(squares - 2 * points[asked] @ points[known].T, 0.0).min(axis=1))
    left = 1.0 / (1.0 + (far * SHARE_REACH / SHARE_HALF) ** 2)
    rows = mine[table.row_program]
    programs, measured = table.row_program[rows], table.log_measured[rows]
    plain = table.log_step(np.zeros(len(table.node_class)))[rows]
    ensemble = table.log_step(correct(table, left_out, blend))[rows]
    alone = plain + told[programs]
    both = (1 - left[programs]) * ensemble + left[programs] * alone
    plain_error, of_ensemble, of_reuse, of_both = (
        float(np.abs(np.expm1(one - measured)).mean()) for one in (plain, ensemble, alone, both)
    )
    return plain_error, of_ensemble, of_reuse, of_both


def fold_architectures(data: Data, table: Table) -> NDArray[np.intp]:
    """0 to 2 by the name of an architecture; those with equal programs are one. The cases are in no fold."""
    shares = share_table(data, table)
    first: dict[str, str] = {}
    same: dict[tuple[str, bytes], str] = {}
    for place, program in enumerate(data.programs):
        name = program.name.split()[0]
        key = program.behaviour, np.round(shares[place], 3).tobytes()
        first.setdefault(name, name)
        if program.source == "timm":
            twin = same.setdefault(key, name)
            first = (
                {one: first[twin] if of == first[name] else of for one, of in first.items()}
                if first[twin] != first[name]
                else first
            )
    number = {
        name: int(hashlib.sha256(of.encode()).hexdigest()[:8], 16) % ARCHITECTURE_FOLDS for name, of in first.items()
    }
    return np.array(
        [number[one.name.split()[0]] if one.source == "timm" else ARCHITECTURE_FOLDS for one in data.programs],
        dtype=np.intp,
    )


def leave_architectures_out(data: Data, table: Table, left_out: LeftOut) -> LeftOut:
    """As `left_out`, by members that saw nothing of a row's architecture; kept beside it in the temporary folder."""
    path = cache_file().with_suffix(".architectures.npz")
    if path.is_file():
        with np.load(path) as found:
            return replace(left_out, logs={name: found[name] for name in MEMBERS}, distance=found["distance"])
    fold, teaches, shares = fold_architectures(data, table), teaching_rows(data), share_table(data, table)
    behaviour = np.array([one.behaviour for one in data.programs])
    logs = {name: np.zeros(len(table.node_class)) for name in MEMBERS}
    distance = np.zeros(len(data.programs))
    for one in range(ARCHITECTURE_FOLDS):
        rows = teaches & (fold[table.row_program] != one)
        found = apply_members(table, fit_members(table, rows))
        asked = fold[table.node_program] == one
        for name in MEMBERS:
            logs[name][asked] = found[name][asked]
        known = np.zeros(len(data.programs), dtype=bool)
        known[table.row_program[rows]] = True
        for place in np.flatnonzero(fold == one).tolist():
            distance[place] = mean_nearest(shares[known & (behaviour == behaviour[place])], shares[place])
    kinds, operators, graph = (logs[name].astype(np.float32) for name in MEMBERS)
    np.savez_compressed(path, distance=distance, kinds=kinds, operators=operators, graph=graph)
    return replace(left_out, logs=logs, distance=distance)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=ON_GPUS)
    asked = parser.parse_args(arguments)
    data = read_everything()
    table = Table.of(data)
    known = fit_images(data, table)
    steps = read_case_steps()
    vectors = np.array([one.vector for one in steps])
    center, scale = vectors.mean(axis=0), vectors.std(axis=0) + 1e-6
    known |= fit_types(steps, center, scale, REACH)
    document = {"center": _round(center), "scale": _round(scale), "reach": REACH, "spread": SPREAD, "known": known}
    write_json(asked.output, document)
    sys.stdout.write(f"{asked.output}: {asked.output.stat().st_size / 1e3:.0f} kB\n")


def _nearest_other(points: Array, fold: NDArray[np.intp], place: int) -> float:
    others = points[fold != fold[place]]
    return float(np.sqrt(((others - points[place]) ** 2).sum(axis=1).min())) if len(others) else math.inf


def _round(values: Array) -> Any:
    if values.ndim > 1:
        return [_round(row) for row in values]
    return [float(f"{value:.4g}") for value in values.tolist()]


if __name__ == "__main__":
    main()
