"""Nodes of a training step to one vector by gated message passing: the encoder of a graph hyper-network (Knyazev et al. 2021).

Each node hears its neighbours and, weaker with distance, what lies behind them (virtual edges, weight 1 / distance), once from
the first operation to the last and once back. Trained in `research/fits/embedding`; here only its exported weights run.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from traincast.embed._features import Array, Describe, GraphNodes, Places, describe
from traincast.errors import InvalidInput
from traincast.files import read_safetensors, write_safetensors
from traincast.noun import noun
from traincast.spec import Graph

FOLDER = Path(__file__).parent / "weights"
SIZE = 32
"""Of a node's state and of the vector, as in GHN-2."""


@noun
class Encoder:
    """Weights by the names that torch gave them; a matrix is stored outputs x inputs."""

    weights: Mapping[str, Array]

    def encode(self, nodes: GraphNodes) -> Array:
        """The vector of a whole step."""
        return self.pool(self.spread(nodes))

    def embed(self, graph: Graph, *, how: Describe = describe) -> Array:
        return self.encode(how(graph))

    def spread(self, nodes: GraphNodes) -> Array:
        """States of the nodes after one traversal forwards and one backwards."""
        if not nodes.num_nodes:
            raise InvalidInput("a graph without operations has no embedding; capture a step that does something")
        states = self._linear("enter", nodes.features)
        speakers, distances = np.concatenate(nodes.sources), np.concatenate(nodes.distances)
        listeners = np.repeat(np.arange(nodes.num_nodes), [len(heard) for heard in nodes.sources])
        there = _Edges.of(speakers, listeners, distances, nodes.num_nodes)
        back = _Edges.of(listeners, speakers, distances, nodes.num_nodes)
        states = self._traverse(states, there, range(nodes.num_nodes))
        return self._traverse(states, back, range(nodes.num_nodes - 1, -1, -1))

    def pool(self, states: Array) -> Array:
        whole = np.concatenate([states.mean(axis=0), states.max(axis=0), [np.log(len(states))]])
        return self._linear("leave", whole)

    def _traverse(self, states: Array, edges: "_Edges", order: range) -> Array:
        size, num_nodes = states.shape[1], len(states)
        # What each node tells its neighbours, and behind all of those what it tells whoever is farther away.
        said = np.zeros((2 * num_nodes, size))
        into, into_bias = self.weights["gate.weight_ih"], self.weights["gate.bias_ih"]
        speak = np.concatenate([self.weights["near.weight"], self.weights["far.weight"]])
        speak_bias = np.concatenate([self.weights["near.bias"], self.weights["far.bias"]])
        held = states @ self.weights["gate.weight_hh"].T + self.weights["gate.bias_hh"]
        found = np.empty_like(states)
        for node in order:
            given, kept = into_bias, held[node]
            first, last = edges.starts[node], edges.starts[node + 1]
            if last > first:
                given = into @ (edges.loud[first:last] @ said[edges.speakers[first:last]]) + into_bias
            gates = _sigmoid(given[: 2 * size] + kept[: 2 * size])
            new = np.tanh(given[2 * size :] + gates[:size] * kept[2 * size :])
            state = new + gates[size:] * (states[node] - new)
            found[node] = state
            spoken = np.maximum(speak @ state + speak_bias, 0.0)
            said[node], said[num_nodes + node] = spoken[:size], spoken[size:]
        return found

    def _linear(self, name: str, values: Array) -> Array:
        result: Array = values @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return result


@noun
class _Edges:
    """Who hears whom, sorted by listener: neighbours in full, whoever is farther away as a mean weighed by 1 / distance."""

    speakers: Places
    """Where what they say stands: to those farther away they speak from the second half of a table."""
    loud: Array
    starts: list[int]

    @staticmethod
    def of(speakers: Places, listeners: Places, distances: Array, num_nodes: int) -> "_Edges":
        order = np.argsort(listeners, kind="stable")
        speakers, listeners, distances = speakers[order], listeners[order], distances[order]
        farther = distances > 1
        inverse = farther / np.maximum(distances, 1.0)
        whole = np.bincount(listeners, weights=inverse, minlength=num_nodes)[listeners]
        loud = np.where(farther, inverse / np.maximum(whole, 1e-12), 1.0)
        counts = np.bincount(listeners, minlength=num_nodes)
        return _Edges(
            speakers=(speakers + farther * num_nodes).astype(np.intp),
            loud=loud,
            starts=[0, *np.cumsum(counts).tolist()],
        )


def reverse(nodes: GraphNodes) -> tuple[tuple[Places, ...], tuple[Array, ...]]:
    """For the way back: each node hears the later ones that heard it."""
    sources: list[list[int]] = [[] for _ in range(nodes.num_nodes)]
    distances: list[list[float]] = [[] for _ in range(nodes.num_nodes)]
    for node, (heard, distance) in enumerate(zip(nodes.sources, nodes.distances, strict=True)):
        for source, steps in zip(heard.tolist(), distance.tolist(), strict=True):
            sources[source].append(node)
            distances[source].append(steps)
    return tuple(np.array(each, dtype=np.intp) for each in sources), tuple(np.array(each) for each in distances)


def save_encoder(encoder: Encoder, path: Path) -> None:
    write_safetensors(path, encoder.weights, {"made by": "python -m research.fits.embedding --part encoder"})


@cache
def load_encoder(path: Path = FOLDER / "encoder.safetensors") -> Encoder:
    return Encoder(weights=read_safetensors(path)[0])


def _sigmoid(values: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * values)))
