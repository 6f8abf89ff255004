"""A fitted correction and a few runs of a setting it never saw to one for that setting: the transfer Driple tunes layers for.

What the network misses in the new setting is taken to be one shift of each output for all its runs: nine numbers, which two runs
can tell. They are chosen by the error that forecasts are judged by, and have to be worth their size.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.errors import InvalidInput
from traincast.resources._correction import FLOOR, TWELVE, Corrected, GraphCorrection, Nodes, describe_place
from traincast.resources._learned import OUTPUTS, TIMED, Expected, Place, Run, compose, expect
from traincast.spec import RESOURCES

PRICE = 6.0
"""What a shift of 1, squared, must save in relative errors, summed over the runs. Of 0.5, 2 and 6 the best for two, five and ten
runs, on average over eleven settings each left out of the source; without any one of them it would have been the same."""
LEAST_S = 0.1
"""Starting a run costs as much as a step of this length at least: the shortest steps are not free."""
STEPS = (0.8, 0.4, 0.2, 0.1, 0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """Predicts as its source does, shifted by what runs of one setting showed."""

    source: GraphCorrection
    shifts: Mapping[str, float]

    def predict(self, nodes: Nodes, place: Place) -> Corrected:
        expected = expect(self.source.rates, nodes.work, place)
        answers, near = self.source.answer(nodes, place, expected)
        step_s, twelve = compose(_shift(answers, self.shifts), expected, place)
        return Corrected(
            step_s=step_s, twelve=twelve, ranges=self.source.ranges_of(step_s, twelve, near), nearness=near
        )


def adapt(source: GraphCorrection, runs: Sequence[tuple[Nodes, Run]]) -> Adapted:
    if not runs:
        raise InvalidInput("there is no run of the new setting to adapt to")
    seen = []
    for nodes, run in runs:
        expected = expect(source.rates, nodes.work, run.place)
        seen.append((source.answer(nodes, run.place, expected)[0], expected, run))
    shifts = dict.fromkeys(OUTPUTS, 0.0)
    # Down the hill, one output after the other; the step comes first because all durations are shares of it.
    for size in STEPS:
        for name in OUTPUTS:
            moved = [{**shifts, name: shifts[name] + move * size} for move in (-2, -1, 0, 1, 2)]
            shifts = min(moved, key=lambda tried: _cost(seen, tried, name))
    return Adapted(source=source, shifts=shifts)


def choose_runs(source: GraphCorrection, candidates: Sequence[tuple[Nodes, Place]], *, num_runs: int) -> list[int]:
    """Which runs of a new setting to measure, in order: each adds the most information about what a shift could depend on
    (D-optimality, Fedorov 1972) for the seconds that physics expects it to take."""
    points, seconds = [], []
    for nodes, place in candidates:
        expected = expect(source.rates, nodes.work, place)
        points.append(describe_place(nodes.work, place, expected))
        seconds.append(max(expected.step_s, LEAST_S))
    table = np.array(points)
    spread = table.std(axis=0)
    varied = spread > 1e-9
    scaled = (table[:, varied] - table[:, varied].mean(axis=0)) / spread[varied]
    rows = np.column_stack([np.ones(len(table)), scaled])
    inverse = np.eye(rows.shape[1])
    left = list(range(len(candidates)))
    chosen: list[int] = []
    while left and len(chosen) < num_runs:
        gains = np.log1p(np.einsum("ij,jk,ik->i", rows[left], inverse, rows[left])) / np.array(seconds)[left]
        best = left.pop(int(np.argmax(gains)))
        chosen.append(best)
        along = inverse @ rows[best]
        inverse -= np.outer(along, along) / (1 + rows[best] @ along)
    return chosen


def _cost(seen: Sequence[tuple[Mapping[str, float], Expected, Run]], shifts: Mapping[str, float], name: str) -> float:
    """Of the numbers that one output moves."""
    resource = name.partition("_")[0]
    concerned = [each for each in TWELVE if name == "step" or each.startswith(resource)]
    total = PRICE * shifts[name] ** 2
    for answers, expected, run in seen:
        if resource in TIMED and run.place.num_ranks == 1:
            continue
        twelve = compose(_shift(answers, shifts), expected, run.place)[1]
        missed = []
        for each in concerned:
            if math.isnan(run.twelve[each]):
                continue
            unit = max(run.twelve[each], FLOOR * run.step_s if each.endswith("_s") else 1e-12)
            missed.append(abs(twelve[each] - run.twelve[each]) / unit)
        if missed:
            total += float(np.mean(missed)) * (len(RESOURCES) if name == "step" else 1)
    return total


def _shift(answers: Mapping[str, float], shifts: Mapping[str, float]) -> dict[str, float]:
    return {name: value + shifts[name] for name, value in answers.items()}
