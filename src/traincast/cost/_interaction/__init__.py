"""What tasks do to each other: a graph network scales each task of a priced stage, within bounds, by what it sees around it.

Wraps any cost model and fits the same slot. Evaluated with numpy; `cost.interaction.fit` trains it.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
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
    Places,
    describe,
    look_at,
)
from traincast.cost._learned import read_safetensors, write_safetensors
from traincast.spec import Cluster, Estimate, Stage

WEIGHTS = Path(__file__).resolve().parents[1] / "weights" / "interaction.safetensors"
BOUND = 0.7
"""The logarithm of the largest correction: between half and twice what the model below says."""
FAR = 3.0
"""Standard deviations outside of the training data at which a correction has faded to less than 0.01%."""
NEGLIGIBLE = 1e-4
NUM_ROUNDS = 2
NEIGHBOURS = ("self", "before", "after", "sources", "targets")


@dataclass(frozen=True, slots=True, kw_only=True)
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
    bound: float = BOUND

    def inputs(self, seen: Neighbourhood) -> Array:
        of_kind, of_pass = _one_hot(seen.sorts, len(SORTS)), _one_hot(seen.passes, NUM_PASSES)
        return np.concatenate([of_kind, of_pass, self._scaled(seen)], axis=1)

    def _enter(self, seen: Neighbourhood) -> Array:
        """`inputs` times the first weights; of a column of ones and zeros only the ones are looked up."""
        weights = self.weights["in"]
        found = weights[seen.sorts] + weights[len(SORTS) + seen.passes]
        found += self._scaled(seen) @ weights[len(SORTS) + NUM_PASSES :] + self.weights["in_bias"]
        return np.asarray(found)

    def _scaled(self, seen: Neighbourhood) -> Array:
        return np.minimum(np.maximum((seen.numeric - self.centre) / self.scale, -4.0), 4.0)

    def knows(self, totals: Array) -> bool:
        """Whether any task of a stage could be corrected: its totals alone may lie too far from the training data."""
        last = slice(len(NUMERIC) - len(OF_STAGE), len(NUMERIC))
        outside = np.maximum(self.low[last] - totals, 0.0) + np.maximum(totals - self.high[last], 0.0)
        return bool((outside / self.scale[last]).sum() < FAR)

    def nearness(self, seen: Neighbourhood) -> Array:
        """1 inside the range of the training data, falling to 0 outside of it: there the correction fades."""
        outside = np.maximum(self.low - seen.numeric, 0.0) + np.maximum(seen.numeric - self.high, 0.0)
        distance = (outside / self.scale).sum(axis=1)
        return np.asarray(np.exp(-(distance**2)) * self.known_sorts[seen.sorts], dtype=np.float64)

    def factors(self, seen: Neighbourhood) -> Array:
        if seen.num_tasks == 0:
            return np.ones(0)
        nearness = self.nearness(seen)
        if nearness.max() < NEGLIGIBLE:
            return np.ones(seen.num_tasks)
        gather = seen.gather()
        state = np.tanh(self._enter(seen))
        for number in range(NUM_ROUNDS):
            weights = np.concatenate([self.weights[f"round{number}_{name}"] for name in NEIGHBOURS])
            state = state + np.tanh(gather(state) @ weights + self.weights[f"round{number}_bias"])
        answer = np.tanh(state @ self.weights["out"] + self.weights["out_bias"])[:, 0]
        return np.asarray(np.exp(self.bound * nearness * answer), dtype=np.float64)


def _one_hot(places: Places, size: int) -> Array:
    found = np.zeros((len(places), size))
    found[np.arange(len(places)), places] = 1.0
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
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


def save_network(network: Network, path: Path, notes: Mapping[str, str]) -> None:
    ranges = {name: getattr(network, name) for name in ("centre", "scale", "low", "high", "known_sorts")}
    arrays = {**{f"weights.{name}": value for name, value in network.weights.items()}, **ranges}
    write_safetensors(path, arrays, {**notes, "bound": repr(network.bound), "features": ",".join(NUMERIC)})


@functools.cache
def load_network(path: Path = WEIGHTS) -> Network:
    arrays, notes = read_safetensors(path)
    weights = {name.removeprefix("weights."): value for name, value in arrays.items() if name.startswith("weights.")}
    return Network(
        weights=weights, centre=arrays["centre"], scale=arrays["scale"], low=arrays["low"], high=arrays["high"],
        known_sorts=arrays["known_sorts"], bound=float(notes["bound"]),
    )  # fmt: skip
