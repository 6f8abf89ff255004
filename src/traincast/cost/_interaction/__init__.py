"""What tasks do to each other: a graph network scales each task of a priced stage, within bounds, by what it sees around it.

Wraps any cost model and fits the same slot. Evaluated with numpy; `research.fits.interaction` trains it.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from traincast.cost import CostModel
from traincast.cost._interaction.features import (
    NUM_PASSES,
    NUMERIC,
    OF_STAGE,
    SORTS,
    Array,
    Neighbourhood,
    describe,
    look_at,
)
from traincast.cost._interaction.nodes import CONSTANTS
from traincast.files import read_safetensors
from traincast.noun import noun
from traincast.spec import Cluster, Estimate, Stage

WEIGHTS = Path(__file__).resolve().parents[1] / "weights" / "interaction.safetensors"
NUM_ROUNDS = 2
NEIGHBOURS = ("self", "before", "after", "sources", "targets")


@noun
class Network:
    """Weights of the graph network, and the range of features it was trained in."""

    weights: Mapping[str, Array]
    centre: Array
    scale: Array
    low: Array
    high: Array
    """Of each numeric feature in the training data, between its 1st and 99th percentile."""
    known_sorts: Array
    """1 for each sort of task that was seen in training."""
    bound: float = CONSTANTS.bound

    def _enter(self, seen: Neighbourhood) -> Array:
        """Sort, pass and numbers times the first weights; of a column of ones and zeros only the ones are looked up."""
        weights = self.weights["in"]
        found = weights[seen.sorts] + weights[len(SORTS) + seen.passes]
        found += self._scaled(seen) @ weights[len(SORTS) + NUM_PASSES :] + self.weights["in_bias"]
        return np.asarray(found)

    def _scaled(self, seen: Neighbourhood) -> Array:
        return np.minimum(np.maximum((seen.numeric - self.centre) / self.scale, -CONSTANTS.clip), CONSTANTS.clip)

    def knows(self, totals: Array) -> bool:
        """Whether any task of a stage could be corrected: its totals alone may lie too far from the training data."""
        last = slice(len(NUMERIC) - len(OF_STAGE), len(NUMERIC))
        outside = np.maximum(self.low[last] - totals, 0.0) + np.maximum(totals - self.high[last], 0.0)
        return bool((outside / self.scale[last]).sum() < CONSTANTS.far)

    def nearness(self, seen: Neighbourhood) -> Array:
        """1 inside the range of the training data, falling to 0 outside of it: there the correction fades."""
        outside = np.maximum(self.low - seen.numeric, 0.0) + np.maximum(seen.numeric - self.high, 0.0)
        distance = (outside / self.scale).sum(axis=1)
        return np.asarray(np.exp(-(distance**2)) * self.known_sorts[seen.sorts], dtype=np.float64)

    def factors(self, seen: Neighbourhood) -> Array:
        if seen.num_tasks == 0:
            return np.ones(0)
        nearness = self.nearness(seen)
        if nearness.max() < CONSTANTS.negligible:
            return np.ones(seen.num_tasks)
        gather = seen.gather()
        state = np.tanh(self._enter(seen))
        for number in range(NUM_ROUNDS):
            weights = np.concatenate([self.weights[f"round{number}_{name}"] for name in NEIGHBOURS])
            state = state + np.tanh(gather(state) @ weights + self.weights[f"round{number}_bias"])
        answer = np.tanh(state @ self.weights["out"] + self.weights["out_bias"])[:, 0]
        return np.asarray(np.exp(self.bound * nearness * answer), dtype=np.float64)


@noun
class Interacting:
    """Any cost model, with each task scaled by what its neighbours do to it."""

    source: ClassVar[str] = "interaction"
    """What a forecast says of who answered."""
    base: CostModel
    network: Network

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]:
        estimates = self.base.estimate(stage, cluster)
        look = look_at(stage)
        if not self.network.knows(look.totals):
            return estimates
        factors = self.network.factors(describe(stage, estimates, look=look))
        return tuple(
            estimate
            if factor == 1.0
            else Estimate(
                seconds=estimate.seconds * factor, low_s=estimate.low_s * factor, high_s=estimate.high_s * factor,
                host_s=estimate.host_s, limit=estimate.limit, ground=estimate.ground, slowdown=estimate.slowdown,
            )
            for estimate, factor in zip(estimates, factors.tolist(), strict=True)
        )  # fmt: skip


@functools.cache
def load_network(path: Path = WEIGHTS) -> Network:
    arrays, notes = read_safetensors(path)
    weights = {name.removeprefix("weights."): value for name, value in arrays.items() if name.startswith("weights.")}
    return Network(
        weights=weights, centre=arrays["centre"], scale=arrays["scale"], low=arrays["low"], high=arrays["high"],
        known_sorts=arrays["known_sorts"], bound=float(notes["bound"]),
    )  # fmt: skip
