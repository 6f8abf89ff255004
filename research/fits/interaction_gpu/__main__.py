"""Fits the ensemble above the layers to measured GPU steps: python -m research.fits.interaction_gpu [-o FILE].

Folds: five of whole families of image models (modules in alphabetical order, every fifth), fixed before any result was looked
at. The members see image models only, so every source of the cases is left out whole: it is asked of members that saw all image
models, and guards the blend. Members that also saw the cases of other publishers were tried once and were no better for either.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu import members as members_module
from research.fits.interaction_gpu.blend import NOTHING, LeftOut, cross_fit
from research.fits.interaction_gpu.data import Data, cache_file, read_everything
from research.fits.interaction_gpu.members import Table, Trained, apply_kinds, fit_kinds, fit_network
from traincast.cost._interaction.ensemble import ENSEMBLE, MEMBERS, Blend
from traincast.cost._interaction.nodes import BEHAVIOURS
from traincast.files import write_json

Array = NDArray[np.float64]
FAMILY_FOLDS = 5
NUM_NEAREST = 3
MOST_ATLAS = 260
"""Programs of each behaviour that are kept to measure distances from."""


def fold_programs(data: Data) -> NDArray[np.intp]:
    """0 to 4 for image models by family, 5 for all cases."""
    families = sorted({one.family for one in data.programs if one.source == "timm"})
    return np.array(
        [families.index(one.family) % FAMILY_FOLDS if one.source == "timm" else FAMILY_FOLDS for one in data.programs],
        dtype=np.intp,
    )


def teaching_rows(data: Data) -> NDArray[np.bool_]:
    return np.array([data.programs[row.program].source == "timm" for row in data.rows])


def fit_members(table: Table, rows: NDArray[np.bool_], *, seed: int = 0) -> tuple[Array, Trained, Trained]:
    return (
        fit_kinds(table, rows),
        fit_network(table, rows, hears=False, seed=seed),
        fit_network(table, rows, hears=True, seed=seed),
    )


def apply_members(table: Table, members: tuple[Array, Trained, Trained]) -> dict[str, Array]:
    kinds, operators, graph = members
    return dict(zip(MEMBERS, (apply_kinds(table, kinds), operators.apply(table), graph.apply(table)), strict=True))


def leave_out(data: Data, table: Table, *, seed: int = 0) -> tuple[LeftOut, tuple[Array, Trained, Trained]]:
    """Corrections by members that saw nothing of a row's fold, and the members that saw all image models."""
    fold = fold_programs(data)
    teaches = teaching_rows(data)
    logs = {name: np.zeros(len(table.node_class)) for name in MEMBERS}
    shares = share_table(data, table)
    behaviour = np.array([one.behaviour for one in data.programs])
    distance = np.zeros(len(data.programs))
    for one in sorted(set(fold.tolist())):
        began = time.process_time()
        rows = teaches & (fold[table.row_program] != one)
        members = fit_members(table, rows, seed=seed)
        found = apply_members(table, members)
        asked = fold[table.node_program] == one
        for name in MEMBERS:
            logs[name][asked] = found[name][asked]
        known = np.zeros(len(data.programs), dtype=bool)
        known[table.row_program[rows]] = True
        for place in np.flatnonzero(fold == one).tolist():
            near = known & (behaviour == behaviour[place])
            distance[place] = mean_nearest(shares[near], shares[place])
        sys.stderr.write(f"fold {one}: {int(rows.sum())} rows, {time.process_time() - began:.0f} CPU s\n")
    kinds, operators, graph = (logs[name].astype(np.float32) for name in MEMBERS)
    np.savez_compressed(_left_out_file(seed), distance=distance, kinds=kinds, operators=operators, graph=graph)
    # The last fold leaves no image model out.
    return _as_left_out(data, table, logs, distance), members


def recall_left_out(data: Data, table: Table, *, seed: int) -> LeftOut:
    """As `leave_out`, from the file that the last fit with this physics, these members and this seed left."""
    path = _left_out_file(seed)
    if not path.is_file():
        return leave_out(data, table, seed=seed)[0]
    with np.load(path) as found:
        return _as_left_out(data, table, {name: found[name] for name in MEMBERS}, found["distance"])


def _left_out_file(seed: int) -> Path:
    code = hashlib.sha256(Path(members_module.__file__).read_bytes()).hexdigest()[:8]
    return cache_file().with_suffix(f".{code}.{seed}.npz")


def _as_left_out(data: Data, table: Table, logs: dict[str, Array], distance: Array) -> LeftOut:
    behaviour = np.array([one.behaviour for one in data.programs])
    return LeftOut(
        logs=logs, distance=distance, group=np.array([row.condition for row in data.rows]),
        fold=fold_programs(data)[table.row_program], behaviour=behaviour[table.row_program],
    )  # fmt: skip


def share_table(data: Data, table: Table) -> Array:
    place_of = {name: place for place, name in enumerate(table.classes)}
    shares = np.zeros((len(data.programs), len(place_of)))
    for place, program in enumerate(data.programs):
        for name, share in program.shares.items():
            shares[place, place_of[name]] = share
    return shares


def mean_nearest(known: Array, point: Array) -> float:
    if not len(known):
        return float("inf")
    return float(np.sort(np.sqrt(((known - point) ** 2).sum(axis=1)))[:NUM_NEAREST].mean())


def report(data: Data, table: Table, left_out: LeftOut, answers: Array) -> None:
    """Errors on left-out rows; brackets: 90% paired bootstrap over families of the difference to the factors by class."""
    measured = table.log_measured
    found = {"layers": np.zeros(len(table.node_class)), **left_out.logs}
    errors = {name: np.abs(np.expm1(table.log_step(logs) - measured)) for name, logs in found.items()}
    errors["ensemble"] = answers
    families = np.array([data.programs[row.program].family for row in data.rows])
    for group in sorted(set(left_out.group.tolist())):
        there = left_out.group == group
        cells = [f"{name} {_describe(values[there])}" for name, values in errors.items()]
        against = [
            _paired(errors["ensemble"][there] - errors[name][there], families[there]) for name in ("layers", "kinds")
        ]
        sys.stdout.write(f"{group:22} n {int(there.sum()):4}  {'  '.join(cells)}  | {'  '.join(against)}\n")


def _describe(errors: Array) -> str:
    return f"{100 * errors.mean():.1f}/{100 * np.median(errors):.1f}/{100 * np.quantile(errors, 0.9):.1f}"


def _paired(difference: Array, families: NDArray[np.str_]) -> str:
    names = sorted(set(families.tolist()))
    sums = np.array([[difference[families == name].sum(), (families == name).sum()] for name in names])
    draw = np.random.default_rng(0).integers(0, len(names), size=(500, len(names)))
    means = sums[draw].sum(axis=1)
    low, high = np.quantile(100 * means[:, 0] / means[:, 1], [0.05, 0.95])
    return f"{100 * difference.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def export(
    data: Data, table: Table, members: tuple[Array, Trained, Trained], blends: dict[str, Blend], path: Path
) -> None:
    kinds, operators, graph = members
    known = np.zeros(len(data.programs), dtype=bool)
    known[table.row_program[teaching_rows(data)]] = True
    write_json(
        path,
        {
            "classes": list(table.classes),
            "kinds": [
                [behaviour, name, round(float(kinds[place, number]), 4)]
                for place, behaviour in enumerate(BEHAVIOURS)
                for number, name in enumerate(table.classes)
                if abs(kinds[place, number]) > 1e-3 and behaviour in blends
            ],
            "operators": _export_network(operators),
            "graph": _export_network(graph),
            "blends": {name: {"weights": list(one.weights), "reach": one.reach} for name, one in blends.items()},
            "atlas": _export_atlas(data, table, known, blends),
        },
    )


def _export_network(network: Trained) -> dict[str, Any]:
    names = ("centre", "scale", "enter", "enter_class", "middle", "middle_bias", "leave")
    return {"bound": network.bound, **{name: _round(getattr(network, name)) for name in names}}


def _round(values: Array) -> Any:
    if values.ndim > 1:
        return [_round(row) for row in values]
    return [float(f"{value:.4g}") for value in values.tolist()]


def _export_atlas(data: Data, table: Table, known: NDArray[np.bool_], blends: dict[str, Blend]) -> list[list[Any]]:
    """Of each behaviour the programs that lie farthest from each other, distinct ones first."""
    shares = share_table(data, table)
    rows: list[list[Any]] = []
    for behaviour in blends:
        places = [place for place, one in enumerate(data.programs) if known[place] and one.behaviour == behaviour]
        for place in spread_out(shares[places], MOST_ATLAS):
            program = data.programs[places[place]]
            row = [value for number in np.flatnonzero(shares[places[place]] >= 5e-4).tolist()
                   for value in (number, round(1000 * float(shares[places[place], number]), 1))]  # fmt: skip
            rows.append([program.name.split()[0], behaviour, row])
    return rows


def spread_out(points: Array, most: int) -> list[int]:
    """Farthest-point order, from the first, until all that are left lie within a hundredth of one that is kept."""
    if not len(points):
        return []
    chosen = [0]
    apart = np.sqrt(((points - points[0]) ** 2).sum(axis=1))
    while len(chosen) < most and apart.max() > 0.01:
        chosen.append(int(apart.argmax()))
        apart = np.minimum(apart, np.sqrt(((points - points[chosen[-1]]) ** 2).sum(axis=1)))
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=ENSEMBLE)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    data = read_everything()
    table = Table.of(data)
    left_out, members = leave_out(data, table, seed=asked.seed)
    answers, teaches = np.zeros(len(data.rows)), teaching_rows(data)
    blends: dict[str, Blend] = {}
    for behaviour in BEHAVIOURS:
        rows = left_out.behaviour == behaviour
        answers[rows] = np.abs(np.expm1(table.log_step(np.zeros(len(table.node_class))) - table.log_measured))[rows]
        if (rows & teaches).any():
            chosen, answers[rows] = cross_fit(table, left_out, rows)
            sys.stdout.write(f"{behaviour}: {int(rows.sum())} rows, weights {chosen.weights}, reach {chosen.reach}\n")
            if chosen is not NOTHING and any(chosen.weights):
                blends[behaviour] = chosen
    report(data, table, left_out, answers)
    export(data, table, members, blends, asked.output)
    sys.stdout.write(f"{asked.output}: {asked.output.stat().st_size / 1e3:.0f} kB\n")


if __name__ == "__main__":
    main()
