"""Steps of image models on GPUs, families left out: ours beside the papers' baselines.

Needs ../shared/data/timm. Folds are those of `research.fits.interaction_gpu`, fixed before any result. Every method is fitted to
the same rows of one condition (GPU, layout, software), one row for each model.

| method | what it is |
|---|---|
| Ernest, no own run | a + b samples, one line for every network (Venkataraman 2016): its answer for one that never ran |
| black box | Gaussian kernel ridge regression on FLOP, bytes, calls and batch |
| additive linear | FLOP, bytes and calls of each kind of operators, no weight below zero |
| additive non-linear | the same with powers 1/2 and 3/4 |
| roofline | the data sheet's rates, one after the other |
| GNN only | the graph network on time itself, without physics below |
| Driple's GCN | its network of grouped operators on time (`research.papers.driple_gpus`) |
| GHN + regression | the graph hyper-network's vector to log time, kernel ridge (PredictDDL's way) |
| GHN on the anchor | the same vector to what physics misses |
| GNN on the layers | the graph network above the layers, without conditions (ScaleDL's way) |
| layers | our physics, nothing fitted to whole steps: what ships for training |
| ours | for inference the factors by class that ship, fitted without the fold |
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from research.fits.interaction_gpu.__main__ import fold_programs, inference_rows, leave_out
from research.fits.interaction_gpu.data import Data, cache_file
from research.fits.interaction_gpu.members import Table, fit_network
from research.papers.driple_gpus import CONDITION as OF_DRIPLE
from research.papers.driple_gpus import predict_images
from traincast import catalog
from traincast.cost._interaction.nodes import OWN

Array = NDArray[np.float64]
CONDITIONS = ("train NCHW", "train NHWC", "3090 eager 2.4", "4090 eager 2.4", "4090 compiled 2.9.1")
ALONE = ("train NCHW", "3090 eager 2.4")
"""Conditions that the graph network without physics is fitted to; a fit of each seed takes half a minute."""
VECTOR = 32
"""Numbers of the graph hyper-network's vector."""
FREE = 9.0
"""The bound on log factors of a network that has no physics below."""
Answer = Callable[[NDArray[np.bool_], NDArray[np.bool_]], Array]
"""Known rows and asked rows to the seconds of the asked ones."""


def nonnegative(columns: Array, seconds: Array) -> Callable[[Array], Array]:
    """Least squares on relative errors with no weight below zero."""
    scale = columns.max(axis=0) + 1e-30
    weights, _ = optimize.nnls(columns / scale / seconds[:, None], np.ones(len(seconds)))
    return lambda asked: np.maximum(asked / scale @ weights, 1e-6)


def kernel_ridge(points: Array, logs: Array, *, reach: float, noise: float = 0.1) -> Callable[[Array], Array]:
    centre, scale, middle = points.mean(axis=0), points.std(axis=0) + 1e-9, logs.mean()
    known = (points - centre) / scale / (reach * points.shape[1] ** 0.5)
    spread = logs.std() + 1e-9

    def kernel(one: Array, other: Array) -> Array:
        squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None] - 2 * one @ other.T
        return np.asarray(spread**2 * np.exp(-0.5 * np.maximum(squares, 0.0)))

    weights = np.linalg.solve(kernel(known, known) + noise**2 * np.eye(len(known)), logs - middle)
    return lambda asked: middle + kernel((asked - centre) / scale / (reach * points.shape[1] ** 0.5), known) @ weights


class Rows:
    """The rows of one condition, with what each baseline is told of them."""

    def __init__(self, data: Data, table: Table, condition: str) -> None:
        self.places = np.array([place for place, row in enumerate(data.rows) if row.condition == condition])
        programs = [data.programs[data.rows[place].program] for place in self.places]
        self.families = np.array([one.family for one in programs])
        self.names = [one.name for one in programs]
        self.measured_s = np.array([data.rows[place].measured_s for place in self.places])
        self.layers_s = np.array([data.rows[p].seconds.sum() + data.rows[p].rest_s for p in self.places])
        kinds = sorted({kind for one in programs for kind in one.totals})
        self.sums = np.array([[v for kind in kinds for v in one.totals.get(kind, (0.0, 0.0, 0.0))] for one in programs])
        self.batch = np.array([float(one.batch) for one in programs])
        flop, moved, calls = (self.sums[:, place::3].sum(axis=1) for place in range(3))
        self.sizes = np.log(np.stack([flop, moved, calls, self.batch], axis=1))
        chip = catalog.device("rtx-4090" if condition.startswith("4090") else "rtx-3090")
        peak = chip.peak_flop_per_s("fp16") or 1.0
        self.roofline_s = np.array(
            [sum(max(f / peak, b / chip.memory_bytes_per_s) for f, b, _ in one.totals.values()) for one in programs]
        )
        powers = [self.sums, self.sums**0.75, self.sums**0.5]
        self.powers = np.concatenate(powers, axis=1)


def baselines(rows: Rows, vectors: Array) -> dict[str, Answer]:
    y, logs = rows.measured_s, np.log(rows.measured_s)
    ones = np.ones(len(y))
    missed = logs - np.log(rows.layers_s)
    return {
        "Ernest, no own run": lambda k, a: nonnegative(np.stack([ones, rows.batch], axis=1)[k], y[k])(
            np.stack([ones, rows.batch], axis=1)[a]
        ),
        "black box": lambda k, a: np.exp(kernel_ridge(rows.sizes[k], logs[k], reach=1.0)(rows.sizes[a])),
        "additive linear": lambda k, a: nonnegative(rows.sums[k], y[k])(rows.sums[a]),
        "additive non-linear": lambda k, a: nonnegative(rows.powers[k], y[k])(rows.powers[a]),
        "roofline": lambda _, a: rows.roofline_s[a],
        "GHN + regression": lambda k, a: np.exp(kernel_ridge(vectors[k], logs[k], reach=1.0)(vectors[a])),
        "GHN on the anchor": lambda k, a: (
            rows.layers_s[a] * np.exp(kernel_ridge(vectors[k], missed[k], reach=1.0)(vectors[a]))
        ),
    }


def network_alone(data: Data, table: Table, rows: Rows, fold: NDArray[np.intp], seed: int) -> Array:
    """The graph network on time itself: every operator starts at the same time."""
    here = np.zeros(len(data.rows), dtype=bool)
    here[rows.places] = True
    runs = 10.0 ** table.numbers[:, OWN.index("log_count")]
    start = float(np.median(rows.measured_s)) / 100
    bare = replace(table, entry_s=start * runs[table.entry_node], rest_s=np.full(len(data.rows), 1e-6))
    path = cache_file().with_suffix(f".alone.{rows.places[0]}.{seed}.npz")
    if path.is_file():
        return np.asarray(np.load(path)["seconds"])
    found = np.zeros(len(rows.places))
    row_fold = fold[table.row_program]
    for one in sorted(set(row_fold[rows.places].tolist())):
        trained = fit_network(bare, here & (row_fold != one), seed=seed, bound=FREE, keep_small=0.0)
        asked = row_fold[rows.places] == one
        found[asked] = np.exp(bare.log_step(trained.apply(bare)))[rows.places][asked]
    np.savez_compressed(path, seconds=found)
    return found


def network_above(data: Data, table: Table, fold: NDArray[np.intp], seed: int) -> Array:
    """Logarithms of all steps by the graph network above the layers, taught by image models of other folds."""
    path = cache_file().with_suffix(f".above.{len(data.rows)}.{seed}.npz")
    if path.is_file():
        return np.asarray(np.load(path)["logs"])
    row_fold = fold[table.row_program]
    taught = np.array([data.programs[row.program].source == "timm" for row in data.rows])
    found = np.zeros(len(data.rows))
    for one in sorted(set(row_fold[taught].tolist())):
        trained = fit_network(table, taught & (row_fold != one), seed=seed)
        found[row_fold == one] = table.log_step(trained.apply(table))[row_fold == one]
    np.savez_compressed(path, logs=found)
    return found


def describe_errors(errors: Array, seconds: Array, best: Array, families: NDArray[np.str_]) -> list[str]:
    rmse = float(np.sqrt(np.mean((errors * seconds) ** 2)))
    ratio = errors.mean() / best.mean()
    names = sorted(set(families.tolist()))
    most = max(errors[families == name].mean() / max(best[families == name].mean(), 0.01) for name in names)
    cells = [f"{100 * value:.1f}" for value in (errors.mean(), np.median(errors), np.quantile(errors, 0.9))]
    return [*cells, f"{1000 * rmse:.0f}", f"{ratio:.1f}", f"{most:.0f}"]


def tabulate(data: Data, table: Table, seeds: Sequence[int]) -> str:
    """Markdown, one table for each condition."""
    fold, lines = fold_programs(data), []
    for condition in CONDITIONS:
        rows = Rows(data, table, condition)
        families = len(set(rows.families.tolist()))
        lines += [
            f"**{condition}, families left out, n = {len(rows.places)}, {families} families, {len(seeds)} seeds**\n",
            "| method | mean % | median % | p90 % | RMSE ms | x ours | up to | ± seeds |",
            "|---|--:|--:|--:|--:|--:|--:|--:|",
        ]
        for name, cells, spread in compare(data, table, rows, fold, seeds, condition):
            lines.append(f"| {name} | {' | '.join(cells)} | {spread} |")
        lines.append("")
    return "\n".join(lines)


def compare(
    data: Data, table: Table, rows: Rows, fold: NDArray[np.intp], seeds: Sequence[int], condition: str
) -> list[tuple[str, list[str], str]]:
    best = np.abs(np.expm1(leave_out(data, table, inference_rows(data)) - table.log_measured))[rows.places]
    row_fold = fold[table.row_program][rows.places]
    vectors = np.array([data.programs[place].embedding[-VECTOR:] for place in table.row_program[rows.places]])
    found: dict[str, list[Array]] = {}
    for name, answer in baselines(rows, vectors).items():
        seconds = np.zeros(len(rows.places))
        for one in sorted(set(row_fold.tolist())):
            seconds[row_fold == one] = answer(row_fold != one, row_fold == one)
        found[name] = [np.abs(seconds / rows.measured_s - 1)]
    if seeds and condition in ALONE:
        found["GNN only"] = [
            np.abs(network_alone(data, table, rows, fold, seed) / rows.measured_s - 1) for seed in seeds
        ]
    if seeds and condition == OF_DRIPLE:
        found["Driple's GCN"] = [np.abs(predict_images(data, seed=seed)[1] / rows.measured_s - 1) for seed in seeds]
    found["layers"] = [np.abs(rows.layers_s / rows.measured_s - 1)]
    if seeds:
        found["GNN on the layers"] = [
            np.abs(np.expm1(network_above(data, table, fold, seed) - table.log_measured))[rows.places] for seed in seeds
        ]
    found["ours"] = [best]
    lines: list[tuple[str, list[str], str]] = []
    for name, each in found.items():
        cells: Any = describe_errors(np.mean(each, axis=0), rows.measured_s, best, rows.families)
        spread = np.std([one.mean() for one in each]) if len(each) > 1 else 0.0
        lines.append((name, cells, f"{100 * spread:.1f}"))
    return lines
