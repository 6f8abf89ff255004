"""Nodes of a training step to one vector by gated message passing: the encoder of a graph hyper-network (Knyazev et al. 2021).

Each node hears its neighbours and, weaker with distance, what lies behind them (virtual edges, weight 1 / distance), once from
the first operation to the last and once back. Trained by `embed.train`; here only its exported weights run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from traincast.embed.features import Array, Describe, Nodes, Places, describe
from traincast.errors import InvalidInput
from traincast.files import read_json, write_json
from traincast.spec.graph import Graph

FOLDER = Path(__file__).parent / "weights"
SIZE = 32
"""Of a node's state and of the vector, as in GHN-2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Weights by the names that torch gave them; a matrix is stored outputs x inputs."""

    weights: Mapping[str, Array]

    def encode(self, nodes: Nodes) -> Array:
        """The vector of a whole step."""
        return self.pool(self.spread(nodes))

    def embed(self, graph: Graph, *, how: Describe = describe) -> Array:
        return self.encode(how(graph))

    def spread(self, nodes: Nodes) -> Array:
        """States of the nodes after one traversal forwards and one backwards."""
        if not nodes.num_nodes:
            raise InvalidInput("a graph without operations has no embedding; capture a step that does something")
        states = self._linear("enter", nodes.features)
        states = self._traverse(states, nodes.sources, nodes.distances, range(nodes.num_nodes))
        heard_by = reverse(nodes)
        return self._traverse(states, *heard_by, range(nodes.num_nodes - 1, -1, -1))

    def pool(self, states: Array) -> Array:
        whole = np.concatenate([states.mean(axis=0), states.max(axis=0), [np.log(len(states))]])
        return self._linear("leave", whole)

    def _traverse(
        self, states: Array, sources: tuple[Places, ...], distances: tuple[Array, ...], order: range
    ) -> Array:
        states = states.copy()
        near, far = np.zeros_like(states), np.zeros_like(states)
        into, back = self.weights["gate.weight_ih"], self.weights["gate.weight_hh"]
        into_bias, back_bias = self.weights["gate.bias_ih"], self.weights["gate.bias_hh"]
        for node in order:
            heard, distance = sources[node], distances[node]
            message = np.zeros(states.shape[1])
            if len(heard):
                direct = distance == 1
                message = near[heard[direct]].sum(axis=0)
                if not direct.all():
                    weight = 1 / distance[~direct]
                    message = message + weight @ far[heard[~direct]] / weight.sum()
            state = states[node]
            reset_in, update_in, new_in = np.split(into @ message + into_bias, 3)
            reset_back, update_back, new_back = np.split(back @ state + back_bias, 3)
            update = _sigmoid(update_in + update_back)
            new = np.tanh(new_in + _sigmoid(reset_in + reset_back) * new_back)
            state = (1 - update) * new + update * state
            states[node] = state
            near[node] = np.maximum(self._linear("near", state), 0.0)
            far[node] = np.maximum(self._linear("far", state), 0.0)
        return states

    def _linear(self, name: str, values: Array) -> Array:
        result: Array = values @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return result


def reverse(nodes: Nodes) -> tuple[tuple[Places, ...], tuple[Array, ...]]:
    """For the way back: each node hears the later ones that heard it."""
    sources: list[list[int]] = [[] for _ in range(nodes.num_nodes)]
    distances: list[list[float]] = [[] for _ in range(nodes.num_nodes)]
    for node, (heard, distance) in enumerate(zip(nodes.sources, nodes.distances, strict=True)):
        for source, steps in zip(heard.tolist(), distance.tolist(), strict=True):
            sources[source].append(node)
            distances[source].append(steps)
    return tuple(np.array(each, dtype=np.intp) for each in sources), tuple(np.array(each) for each in distances)


def save_encoder(encoder: Encoder, path: Path) -> None:
    # Seven digits hold all that a 32-bit number knows.
    write_json(path, {name: {"shape": list(values.shape), "values": [float(f"{value:.7g}") for value in values.ravel()]}
                      for name, values in sorted(encoder.weights.items())})  # fmt: skip


@cache
def load_encoder(path: Path = FOLDER / "encoder.json.gz") -> Encoder:
    return Encoder(
        weights={name: np.array(entry["values"]).reshape(entry["shape"]) for name, entry in read_json(path).items()}
    )


def _sigmoid(values: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * values)))
