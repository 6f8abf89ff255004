"""A fitted correction and a few runs of a setting it never saw to one for that setting: the transfer Driple tunes layers for.

What the network misses in the new setting is one shift for all runs and, where runs are many, a smooth function of what they are
made of: a Gaussian process over both, with the noise of a single measured run. Two runs move the shift alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from traincast.errors import InvalidInput
from traincast.resources.correction import BOUNDS, Array, Corrected, GraphCorrection, Nodes, describe_place
from traincast.resources.learned import OUTPUTS, Expected, Place, Run, aim_at, compose, expect

SHIFT, BEND, NOISE = 1.0, 0.5, 0.7
"""Standard deviations of the common shift, of the smooth function and of one run, over one another. First guesses, not tuned."""
REACH = 1.5
"""In standard deviations of each feature, per square root of their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """Predicts as its source does, corrected once more by runs of one setting."""

    source: GraphCorrection
    points: Array = field(repr=False)
    weights: Array = field(repr=False)

    def predict(self, nodes: Nodes, place: Place) -> Corrected:
        expected = expect(self.source.rates, nodes.work, place)
        answers, near = self.source.answer(nodes, place, expected)
        shifts = _covariance(_point(self.source, nodes, place, expected)[None], self.points)[0] @ self.weights
        both = {
            name: float(np.clip(answers[name] + shift, -2 * BOUNDS[name], 2 * BOUNDS[name]))
            for name, shift in zip(OUTPUTS, shifts, strict=True)
        }
        step_s, twelve = compose(both, expected, place)
        return Corrected(
            step_s=step_s, twelve=twelve, ranges=self.source.ranges_of(step_s, twelve, near), nearness=near
        )


def adapt(source: GraphCorrection, runs: Sequence[tuple[Nodes, Run]]) -> Adapted:
    if not runs:
        raise InvalidInput("there is no run of the new setting to adapt to")
    points, missed = [], []
    for nodes, run in runs:
        expected = expect(source.rates, nodes.work, run.place)
        answers, _ = source.answer(nodes, run.place, expected)
        wanted = aim_at(run, expected)
        points.append(_point(source, nodes, run.place, expected))
        missed.append([aim - answers[name] for name, aim in zip(OUTPUTS, wanted, strict=True)])
    table, rest = np.array(points), np.array(missed)
    # A share that is full says that the burst is at least so long, and one stray run is not a setting.
    middle = np.median(rest, axis=0)
    spread = np.maximum(1.4826 * np.median(np.abs(rest - middle), axis=0), 0.1)
    cut = np.clip(rest, middle - 3 * spread, middle + 3 * spread)
    covariance = _covariance(table, table) + NOISE**2 * np.eye(len(runs))
    return Adapted(source=source, points=table, weights=np.linalg.solve(covariance, cut))


def _point(source: GraphCorrection, nodes: Nodes, place: Place, expected: Expected) -> Array:
    point = (describe_place(nodes.work, place, expected) - source.centre) / source.scale
    return np.asarray(point / (REACH * np.sqrt(len(point))))


def _covariance(left: Array, right: Array) -> Array:
    squared = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=2)
    distance = np.sqrt(3 * squared)
    return np.asarray(SHIFT**2 + BEND**2 * (1 + distance) * np.exp(-distance))
