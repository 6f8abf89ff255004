"""Left-out corrections of the members to weights and reach of each behaviour, and what they are worth.

The rule: candidates are the weights of a simplex in quarters and six reaches, up to the largest distances of left-out families;
the best has the lowest mean error on the image models of a behaviour, families left out, and none is allowed that makes a source
of the cases worse by more than a tenth. A behaviour that no image model was measured in is left to physics. (First every
condition counted alike, and conditions of six rows chose for all, so rows count alike now. The model card lists
what else was chosen with results in view.)
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.fits.interaction_gpu.members import Table
from traincast.cost._interaction.ensemble import MEMBERS, Blend

Array = NDArray[np.float64]
QUARTERS = 4
REACHES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
MOST_WORSE = 1.1
LEAST_ROWS = 8
"""Of a source that guards."""
MOST_COUNTED = 1.0
"""An error beyond this counts as this: one row must not choose for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Of every row: corrections by members that saw nothing of its fold, and its distance from what they saw."""

    logs: Mapping[str, Array]
    """Of each member, of every node."""
    distance: Array
    """Of every program."""
    group: NDArray[np.str_]
    """Of every row: condition of the image models, or source."""
    fold: NDArray[np.intp]
    """The last one are the cases, which nothing is learned from."""
    behaviour: NDArray[np.str_]


def candidates() -> list[Blend]:
    shares = [one for one in itertools.product(range(QUARTERS + 1), repeat=len(MEMBERS)) if 0 < sum(one) <= QUARTERS]
    return [Blend(weights=tuple(a / QUARTERS for a in one), reach=reach) for one in shares for reach in REACHES]


NOTHING = Blend(weights=(0.0,) * len(MEMBERS), reach=REACHES[0])


def correct(table: Table, left_out: LeftOut, blend: Blend) -> Array:
    """Of each node, as the engine would."""
    total = sum(
        (weight * left_out.logs[name] for name, weight in zip(MEMBERS, blend.weights, strict=True)), np.zeros(1)
    )
    fade = 1.0 / (1.0 + (left_out.distance / blend.reach) ** 2)
    return np.asarray(total * fade[table.node_program])


def score_candidates(
    table: Table, left_out: LeftOut, rows: NDArray[np.bool_], blends: Sequence[Blend] | None = None
) -> tuple[list[Blend], Array]:
    """The error of every candidate on some rows; the first is physics alone."""
    listed = [NOTHING, *(candidates() if blends is None else blends)]
    part = _Part.of(table, np.flatnonzero(rows))
    logs = {name: np.asarray(left_out.logs[name])[part.node] for name in MEMBERS}
    distance = left_out.distance[table.node_program[part.node]]
    fades = {one.reach: 1.0 / (1.0 + (distance / one.reach) ** 2) for one in listed}
    found = np.empty((len(listed), int(rows.sum())))
    for place, blend in enumerate(listed):
        total = sum(
            (weight * logs[name] for name, weight in zip(MEMBERS, blend.weights, strict=True) if weight), np.zeros(1)
        )
        found[place] = part.errors(total * fades[blend.reach])
    return listed, found


def choose(blends: Sequence[Blend], errors: Array, groups: NDArray[np.str_], guards: NDArray[np.bool_]) -> Blend:
    """`guards`: rows that nothing was learned from; they may forbid a candidate and choose none."""
    capped = np.minimum(errors, MOST_COUNTED)
    allowed = np.ones(len(blends), dtype=bool)
    for name in sorted(set(groups[guards].tolist())):
        there = guards & (groups == name)
        if there.sum() >= LEAST_ROWS:
            mean = capped[:, there].mean(axis=1)
            allowed &= mean <= MOST_WORSE * mean[0]
    return blends[int(np.where(allowed, capped[:, ~guards].mean(axis=1), np.inf).argmin())]


def cross_fit(
    table: Table, left_out: LeftOut, rows: NDArray[np.bool_], among: Sequence[Blend] | None = None
) -> tuple[Blend, Array]:
    """The blend of all rows, and the error of each row under the blend that the other folds choose. `among`: candidates."""
    blends, errors = score_candidates(table, left_out, rows, among)
    chosen = _choose_by_fold(blends, errors, left_out, rows)
    index = {id(blend): place for place, blend in enumerate(blends)}
    fold = left_out.fold[rows]
    answer = np.empty(len(fold))
    for one, blend in chosen.items():
        answer[fold == one] = errors[index[id(blend)], fold == one]
    return choose(blends, errors, left_out.group[rows], fold == max(left_out.fold)), answer


def _choose_by_fold(
    blends: Sequence[Blend], errors: Array, left_out: LeftOut, rows: NDArray[np.bool_]
) -> dict[int, Blend]:
    group, fold = left_out.group[rows], left_out.fold[rows]
    guards = fold == max(left_out.fold)
    return {
        one: choose(blends, errors[:, fold != one], group[fold != one], guards[fold != one])
        for one in sorted(set(fold.tolist()))
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    node: NDArray[np.intp]
    row: NDArray[np.intp]
    seconds: Array
    rest_s: Array
    measured_s: Array

    @staticmethod
    def of(table: Table, rows: NDArray[np.intp]) -> "_Part":
        entries = np.concatenate([np.arange(table.entry_first[row], table.entry_first[row + 1]) for row in rows])
        sizes = table.entry_first[rows + 1] - table.entry_first[rows]
        return _Part(
            node=table.entry_node[entries], row=np.repeat(np.arange(len(rows)), sizes), seconds=table.entry_s[entries],
            rest_s=table.rest_s[rows], measured_s=np.exp(table.log_measured[rows]),
        )  # fmt: skip

    def errors(self, logs: Array) -> Array:
        """`logs`: of each entry."""
        spent = self.seconds * np.exp(logs)
        step = np.bincount(self.row, weights=spent, minlength=len(self.rest_s)) + self.rest_s
        return np.abs(step / self.measured_s - 1)
