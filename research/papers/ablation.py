"""What each learned part is worth on every split of GPU steps, everything else equal: python -m research.papers.ablation.

Members and weights are fitted without the fold that is asked; where a part is taken out, weights and reach are chosen again by
the other folds. *Host*: one factor on what of a step does not follow the operators (host, input, unhidden communication), from
the other folds, or the other publishers. *Faded by the embedding*: by the distance of the graph hyper-network's vectors in the
place of shares of operator classes, brought to the same median.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.__main__ import (
    NEWER,
    fold_programs,
    leave_newer_out,
    mean_nearest,
    recall_left_out,
    teaching_rows,
)
from research.fits.interaction_gpu.blend import LeftOut, candidates, choose_by_fold, correct, cross_fit
from research.fits.interaction_gpu.data import Data, read_everything
from research.fits.interaction_gpu.members import Table
from research.fits.interaction_gpu.reuse import embed_images
from research.output import say
from traincast.cost import MEMBERS, Blend

Array = NDArray[np.float64]
FAR = 1e6
"""A reach at which nothing fades."""
HOST_LOGS = np.linspace(-0.7, 0.7, 29)
COLUMNS = (
    "layers", "by class", "operators", "graph", "ensemble", "without by class", "without operators", "without graph",
    "without fading", "faded by the embedding", "equal weights", "with a host factor",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to blend: the candidates that may be chosen; None: all."""

    name: str
    among: tuple[Blend, ...] | None = None


def list_variants() -> list[Variant]:
    every = candidates()
    found = [Variant(name="ensemble")]
    for place, name in enumerate(("by class", "operators", "graph")):
        found.append(Variant(name=f"without {name}", among=tuple([one for one in every if not one.weights[place]])))
    unfaded = tuple([Blend(weights=one.weights, reach=FAR) for one in every if one.reach == every[0].reach])
    third = (1.0 / len(MEMBERS),) * len(MEMBERS)
    equal = tuple([Blend(weights=third, reach=reach) for reach in sorted({one.reach for one in every})])
    return [*found, Variant(name="without fading", among=unfaded), Variant(name="equal weights", among=equal)]


def errors_of(table: Table, logs: Array) -> Array:
    return np.asarray(np.abs(np.expm1(table.log_step(logs) - table.log_measured)))


def ablate(data: Data, table: Table, left_out: LeftOut, *, vectors: Array | None = None) -> dict[str, Array]:
    """Of each column the error of every row; rows of behaviours that nobody measured images in are the layers'. `vectors`: of
    each program, nan where there is none; without them the embedding's column is the ensemble's."""
    plain = errors_of(table, np.zeros(len(table.node_class)))
    found = {"layers": plain}
    for name, member in zip(("by class", "operators", "graph"), MEMBERS, strict=True):
        found[name] = errors_of(table, np.asarray(left_out.logs[member]))
    teaches = teaching_rows(data)
    for variant in list_variants():
        answer = plain.copy()
        for behaviour in sorted(set(left_out.behaviour[teaches].tolist())):
            rows = left_out.behaviour == behaviour
            answer[rows] = cross_fit(table, left_out, rows, variant.among)[1]
        found[variant.name] = answer
    found["with a host factor"] = correct_host(data, table, left_out)
    found["faded by the embedding"] = found["ensemble"].copy()
    if vectors is not None:
        moved = fade_by_vector(data, left_out, vectors)
        for behaviour in sorted(set(left_out.behaviour[teaches].tolist())):
            rows = left_out.behaviour == behaviour
            found["faded by the embedding"][rows] = cross_fit(table, moved, rows)[1]
    return found


def fade_by_vector(data: Data, left_out: LeftOut, vectors: Array) -> LeftOut:
    """The same corrections with the distance of vectors from those of other folds, of the same behaviour."""
    fold = fold_programs(data)
    behaviour = np.array([one.behaviour for one in data.programs])
    images = np.array([one.source == "timm" for one in data.programs]) & np.isfinite(vectors[:, 0])
    points = (vectors - vectors[images].mean(axis=0)) / (vectors[images].std(axis=0) + 1e-9)
    distance = left_out.distance.copy()
    for place in np.flatnonzero(images).tolist():
        known = images & (fold != fold[place]) & (behaviour == behaviour[place])
        distance[place] = mean_nearest(points[known], points[place])
    for name in sorted(set(behaviour[images].tolist())):
        mine = images & (behaviour == name)
        distance[mine] *= np.median(left_out.distance[mine]) / np.median(distance[mine])
    return replace(left_out, distance=distance)


def correct_host(data: Data, table: Table, left_out: LeftOut) -> Array:
    """Errors of the ensemble with one more factor for each fold, or publisher, chosen by the others of the same behaviour."""
    logs = np.zeros(len(table.node_class))
    teaches = teaching_rows(data)
    for behaviour in sorted(set(left_out.behaviour[teaches].tolist())):
        rows = left_out.behaviour == behaviour
        for fold, blend in choose_by_fold(table, left_out, rows).items():
            inside = (rows & (left_out.fold == fold))[table.entry_row]
            nodes = table.entry_node[inside]
            logs[nodes] = correct(table, left_out, blend)[nodes]
    busy = np.exp(table.log_step(logs)) - table.rest_s
    measured = np.exp(table.log_measured)
    tried = np.array([np.abs((busy + table.rest_s * np.exp(log)) / measured - 1) for log in HOST_LOGS])
    publishers = np.array([data.programs[row.program].source for row in data.rows])
    group = np.where(teaches, np.char.add("fold ", left_out.fold.astype(str)), publishers)
    answer = np.empty(len(measured))
    for behaviour in sorted(set(left_out.behaviour.tolist())):
        mine = left_out.behaviour == behaviour
        for name in sorted(set(group[mine].tolist())):
            known, asked = mine & (group != name) & (teaches == name.startswith("fold ")), mine & (group == name)
            place = int(tried[:, known].mean(axis=1).argmin()) if known.any() else int(np.abs(HOST_LOGS).argmin())
            answer[asked] = tried[place, asked]
    return answer


def tabulate(data: Data, seeds: Sequence[LeftOut], newer: Sequence[LeftOut], table: Table) -> str:
    """Markdown: one line for each split, means over the seeds."""
    lines = [f"| split | n | {' | '.join(COLUMNS)} |", f"|---|--:|{'--:|' * len(COLUMNS)}"]
    vectors = embed_images(data)
    found = [ablate(data, table, one, vectors=vectors) for one in seeds]
    away = [ablate(data, table, one, vectors=vectors) for one in newer]
    group = seeds[0].group
    images = [name for name in sorted(set(group.tolist())) if not name.startswith("cases")]
    for name in images:
        lines.append(_line(f"{name}, families left out", group == name, found))
    for name in images:
        if name.startswith(NEWER) and "compiled" not in name:
            lines.append(_line(f"{name}, families and this GPU left out", group == name, away))
    for name in sorted(set(group.tolist()) - set(images)):
        lines.append(_line(f"{name.removeprefix('cases ')}, source left out", group == name, found))
    return "\n".join(lines)


def _line(title: str, rows: NDArray[np.bool_], found: Sequence[Mapping[str, Array]]) -> str:
    cells = [f"{100 * float(np.mean([one[name][rows].mean() for one in found])):.1f}" for name in COLUMNS]
    return f"| {title} | {int(rows.sum())} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    data = read_everything()
    table = Table.of(data)
    seeds = [recall_left_out(data, table, seed=seed) for seed in range(options.seeds)]
    newer = [leave_newer_out(data, table, one, seed=seed) for seed, one in enumerate(seeds[:1])]
    say(tabulate(data, seeds, newer, table))


if __name__ == "__main__":
    main()
