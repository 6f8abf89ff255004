"""Trains the encoder: graphs without any measurement to weights that numpy runs. Needs torch; nothing else here does.

It learns three things from a step with some operations hidden: what a hidden operation is and costs, where in the step each
operation stands, and what the whole step costs (FLOP, bytes, activations, parameters, calls). No measured time is among them: one
encoder then serves every split of the measurements without having seen an answer.
"""
# mypy: disallow-subclassing-any=False

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from traincast.embed.encoder import SIZE, Encoder, reverse
from traincast.embed.features import LOG_SCALE, Array, Describe, Nodes, describe
from traincast.errors import InvalidInput
from traincast.spec.graph import KINDS, Graph

NUM_KINDS = len(KINDS)
HIDDEN_SHARE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Fixed before any error was looked at, but for the number of epochs, which the time of a laptop decides."""

    epochs: int = 40
    batch: int = 32
    learning_rate: float = 3e-3
    seed: int = 0


def cost_targets(graph: Graph) -> list[float]:
    """Logarithms of what a whole step costs, as `embed.features` scales them."""
    counts = graph.counts()
    calls = sum(op.num_calls * count for op, count in zip(graph.ops, counts, strict=True))
    amounts = (graph.flop, graph.num_bytes, graph.role_bytes("activation"), graph.num_parameters, calls)
    return [math.log1p(amount) / LOG_SCALE for amount in amounts]


class Network(nn.Module):
    """The encoder and what is only needed to train it (`heads`)."""

    def __init__(self, num_features: int, *, num_targets: int) -> None:
        super().__init__()
        self.enter = nn.Linear(num_features, SIZE)
        self.near, self.far = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.gate = nn.GRUCell(SIZE, SIZE)
        self.leave = nn.Linear(2 * SIZE + 1, SIZE)
        self.heads = nn.ModuleDict({
            "node": nn.Linear(SIZE, num_features), "place": nn.Linear(SIZE, 1),
            "whole": nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, num_targets)),
        })  # fmt: skip

    def spread(self, batch: "Batch", features: Tensor) -> Tensor:
        states = self.enter(features)
        states = self._traverse(states, batch.near, batch.far, range(features.shape[1]))
        return self._traverse(states, batch.near_back, batch.far_back, range(features.shape[1] - 1, -1, -1))

    def pool(self, states: Tensor, present: Tensor) -> Tensor:
        count = present.sum(dim=1)
        mean = (states * present[:, :, None]).sum(dim=1) / count[:, None]
        largest = states.masked_fill(present[:, :, None] == 0, -torch.inf).amax(dim=1)
        return self.leave(torch.cat([mean, largest, count.log()[:, None]], dim=1))

    def _traverse(self, states: Tensor, near: Tensor, far: Tensor, order: range) -> Tensor:
        heard = torch.zeros_like(states)
        found: list[Tensor] = [states[:, 0]] * len(order)
        for node in order:
            state = self.gate(heard[:, node], states[:, node])
            found[node] = state
            direct, distant = torch.relu(self.near(state)), torch.relu(self.far(state))
            # What this node says reaches every listener at once; a column of the two matrices holds how loud.
            heard = heard + near[:, :, node, None] * direct[:, None] + far[:, :, node, None] * distant[:, None]
        return torch.stack(found, dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Graphs side by side, padded to the longest; matrices are listeners x speakers."""

    features: Tensor
    present: Tensor
    targets: Tensor
    near: Tensor
    far: Tensor
    near_back: Tensor
    far_back: Tensor


def stack(nodes: Sequence[Nodes], targets: Sequence[Sequence[float]]) -> Batch:
    longest = max(each.num_nodes for each in nodes)
    features = np.zeros((len(nodes), longest, nodes[0].features.shape[1]), dtype=np.float32)
    present = np.zeros((len(nodes), longest), dtype=np.float32)
    loud = np.zeros((4, len(nodes), longest, longest), dtype=np.float32)
    for index, each in enumerate(nodes):
        features[index, : each.num_nodes] = each.features
        present[index, : each.num_nodes] = 1
        for way, (sources, distances) in enumerate(((each.sources, each.distances), reverse(each))):
            for node, (heard, distance) in enumerate(zip(sources, distances, strict=True)):
                direct = distance == 1
                loud[2 * way, index, node, heard[direct]] = 1
                if len(heard) and not direct.all():
                    weight = 1 / distance[~direct]
                    loud[2 * way + 1, index, node, heard[~direct]] = weight / weight.sum()
    near, far, near_back, far_back = (torch.from_numpy(matrix) for matrix in loud)
    return Batch(
        features=torch.from_numpy(features), present=torch.from_numpy(present),
        targets=torch.tensor(targets, dtype=torch.float32), near=near, far=far, near_back=near_back, far_back=far_back,
    )  # fmt: skip


def train_encoder(graphs: Sequence[Graph], *, how: Describe = describe,
                  targets: Callable[[Graph], list[float]] = cost_targets, training: Training | None = None,
                  say: Callable[[str], None] = lambda line: None) -> Encoder:  # fmt: skip
    if not graphs:
        raise InvalidInput("no graphs to train the encoder on; give at least one")
    training = training or Training()
    torch.manual_seed(training.seed)
    choose = torch.Generator().manual_seed(training.seed)
    # Graphs of like size share a batch, so that little of it is padding.
    described = sorted(((how(graph), targets(graph)) for graph in graphs), key=lambda pair: pair[0].num_nodes)
    batches = [
        stack(*zip(*described[start : start + training.batch], strict=True))
        for start in range(0, len(described), training.batch)
    ]
    goals = torch.cat([batch.targets for batch in batches])
    center, spread = goals.mean(dim=0), goals.std(dim=0, correction=0) + 1e-3
    network = Network(batches[0].features.shape[2], num_targets=goals.shape[1])
    optimizer = torch.optim.Adam(network.parameters(), lr=training.learning_rate)
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, training.learning_rate, total_steps=training.epochs * len(batches)
    )
    for epoch in range(training.epochs):
        total = 0.0
        for index in torch.randperm(len(batches), generator=choose).tolist():
            batch = batches[index]
            loss = _loss(network, batch, (batch.targets - center) / spread, choose)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            rate.step()
            total += float(loss.detach())
        say(f"epoch {epoch + 1}/{training.epochs}: loss {total / len(batches):.3f}")
    return export(network)


def _loss(network: Network, batch: Batch, goals: Tensor, choose: torch.Generator) -> Tensor:
    hidden = (torch.rand(batch.present.shape, generator=choose) < HIDDEN_SHARE) & (batch.present > 0)
    states = network.spread(batch, batch.features.masked_fill(hidden[:, :, None], 0.0))
    guess, truth = network.heads["node"](states)[hidden], batch.features[hidden]
    loss = nn.functional.mse_loss(network.heads["whole"](network.pool(states, batch.present)), goals)
    if len(guess):
        loss = loss + nn.functional.cross_entropy(guess[:, :NUM_KINDS], truth[:, :NUM_KINDS])
        loss = loss + nn.functional.mse_loss(guess[:, NUM_KINDS:], truth[:, NUM_KINDS:])
    place = torch.arange(states.shape[1]) / batch.present.sum(dim=1, keepdim=True)
    missed = (network.heads["place"](states)[:, :, 0] - place) ** 2 * batch.present
    return loss + missed.sum() / batch.present.sum()


def export(network: Network) -> Encoder:
    """The weights that an encoding needs; the heads stay behind."""
    weights: dict[str, Array] = {
        name: values.detach().numpy().astype(np.float64)
        for name, values in network.state_dict().items()
        if not name.startswith("heads.")
    }
    return Encoder(weights=weights)
