"""Layers with a graph network above them: each operator is scaled by what it is, what surrounds it and what it runs on."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traincast.cost._interaction.classes import is_gpu, scale_estimate
from traincast.cost._interaction.nodes import CONSTANTS, Array, Nodes, describe_conditions, describe_nodes
from traincast.cost._pricing import Pricing
from traincast.errors import InvalidInput
from traincast.files import read_safetensors
from traincast.memo import Remember
from traincast.noun import noun
from traincast.spec import Cluster, Estimate, Stage

GRAPH = Path(__file__).resolve().parents[1] / "weights" / "graph.safetensors"
_ARRAYS = ("centre", "scale", "enter", "enter_class", "middle", "middle_bias", "leave")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeNetwork:
    """Two hidden layers on the numbers of an operator, of its neighbours and of what it runs on, with a row of weights for its
    class; the answer is bounded."""

    classes: Mapping[str, int]
    centre: Array
    scale: Array
    enter: Array
    enter_class: Array
    """One row for each class, and a last one for classes that were never seen."""
    middle: Array
    middle_bias: Array
    leave: Array
    bound: float

    def correct(self, nodes: Nodes, conditions: Array) -> Array:
        """The logarithm of a factor for each operator. `conditions`: of device and framework."""
        told = np.tile(conditions, (len(nodes.own), 1))
        numbers = np.concatenate([nodes.own, nodes.hear(), told], axis=1)
        scaled = np.clip((numbers - self.centre) / self.scale, -CONSTANTS.clip, CONSTANTS.clip)
        rows = np.array([self.classes.get(name, len(self.classes)) for name in nodes.names], dtype=np.intp)
        state = np.tanh(scaled @ self.enter + self.enter_class[rows[nodes.codes]])
        state = np.tanh(state @ self.middle + self.middle_bias)
        return np.asarray(self.bound * np.tanh(state @ self.leave / self.bound))


@noun
class GraphPricing(Pricing):
    """Prices of operators, each corrected by itself; collectives and the update stay as they are."""

    network: NodeNetwork

    def estimate_parts(self, stage: Stage, cluster: Cluster, *, remember: Remember) -> tuple[Estimate, ...]:
        # A class with slots is made anew, so `super` without arguments would not find it.
        priced = Pricing.estimate_parts(self, stage, cluster, remember=remember)
        other = next((group.device.name for group in cluster.groups if not is_gpu(group.device)), None)
        if other is not None:
            raise InvalidInput(
                f"the graph network above the layers was trained on GPUs and {other} is none; ask --method best"
            )
        nodes = describe_nodes(stage)
        if not len(nodes.places):
            return priced
        slowest = min((group.device for group in cluster.groups), key=lambda device: device.memory_bytes_per_s)
        logs = self.network.correct(nodes, describe_conditions(slowest, self.stack))
        found = list(priced)
        for place, factor in zip(nodes.places.tolist(), np.exp(logs).tolist(), strict=True):
            found[place] = scale_estimate(found[place], factor)
        return tuple(found)


@functools.cache
def load_graph_network(path: Path = GRAPH) -> NodeNetwork:
    arrays, notes = read_safetensors(path)
    classes = {name: place for place, name in enumerate(json.loads(notes["classes"]))}
    return NodeNetwork(classes=classes, bound=float(notes["bound"]), **{name: arrays[name] for name in _ARRAYS})
