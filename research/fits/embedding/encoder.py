"""Trains the encoder: graphs without any measurement to weights that numpy runs. Needs torch; nothing else here does.

It learns three things from a step with some operations hidden: what a hidden operation is and costs, where in the step each
operation stands, and what the whole step costs (FLOP, bytes, activations, parameters, calls). No measured time is among them: one
encoder then serves every split of the measurements without having seen an answer.
"""
# mypy: disallow-subclassing-any=False

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from traincast.embed._encoder import SIZE, Encoder, reverse
from traincast.embed._features import LOG_SCALE, Array, Describe, GraphNodes, describe
from traincast.errors import InvalidInput
from traincast.spec import KINDS, Graph

NUM_KINDS = len(KINDS)
HIDDEN_SHARE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Fixed before any error was looked at, but for the number of epochs, which the time of a laptop decides."""

    epochs: int = 12
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
        gate = self.gate
        result: Tensor = Traversal.apply(
            states, near, far, order, gate.weight_ih, gate.bias_ih, gate.weight_hh, gate.bias_hh, self.near.weight,
            self.near.bias, self.far.weight, self.far.bias,
        )  # fmt: skip
        return result


class Traversal(torch.autograd.Function):
    """One sweep of gated message passing with its gradient written out: ten times faster than recording every step."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, near: Tensor, far: Tensor, order: range, *weights: Tensor) -> Tensor:
        into, into_bias, back, back_bias, near_weight, near_bias, far_weight, far_bias = weights
        size = states.shape[2]
        held = states @ back.T + back_bias
        messages, reset, update, new, out, said_near, said_far = (torch.zeros_like(states) for _ in range(7))
        for node in order:
            message = (near[:, node, None] @ said_near + far[:, node, None] @ said_far)[:, 0]
            given = message @ into.T + into_bias
            kept = held[:, node]
            r = torch.sigmoid(given[:, :size] + kept[:, :size])
            z = torch.sigmoid(given[:, size : 2 * size] + kept[:, size : 2 * size])
            n = torch.tanh(given[:, 2 * size :] + r * kept[:, 2 * size :])
            state = (1 - z) * n + z * states[:, node]
            messages[:, node], reset[:, node], update[:, node], new[:, node], out[:, node] = message, r, z, n, state
            said_near[:, node] = torch.relu(state @ near_weight.T + near_bias)
            said_far[:, node] = torch.relu(state @ far_weight.T + far_bias)
        ctx.order = order
        ctx.save_for_backward(states, near, far, *weights, held, messages, reset, update, new, out, said_near, said_far)
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (slope_out,) = slopes
        states, near, far, into, _, back, _, near_weight, _, far_weight, _, held, messages, *kept = ctx.saved_tensors
        reset, update, new, out, said_near, said_far = kept
        size = states.shape[2]
        slope_message, slope_near, slope_far, slope_states = (torch.zeros_like(states) for _ in range(4))
        slope_given, slope_held = torch.zeros_like(held), torch.zeros_like(held)
        for node in reversed(ctx.order):
            # Whoever heard this node was updated later, so its slopes are known by now.
            slope_near[:, node] = (near[:, :, node, None].mT @ slope_message)[:, 0] * (said_near[:, node] > 0)
            slope_far[:, node] = (far[:, :, node, None].mT @ slope_message)[:, 0] * (said_far[:, node] > 0)
            slope = slope_out[:, node] + slope_near[:, node] @ near_weight + slope_far[:, node] @ far_weight
            r, z, n = reset[:, node], update[:, node], new[:, node]
            slope_states[:, node] = slope * z
            slope_n = slope * (1 - z) * (1 - n * n)
            slope_z = slope * (states[:, node] - n) * z * (1 - z)
            slope_r = slope_n * held[:, node, 2 * size :] * r * (1 - r)
            slope_given[:, node] = torch.cat([slope_r, slope_z, slope_n], dim=1)
            slope_held[:, node] = torch.cat([slope_r, slope_z, slope_n * r], dim=1)
            slope_message[:, node] = slope_given[:, node] @ into

        def product(left: Tensor, right: Tensor) -> Tensor:
            return left.flatten(0, 1).T @ right.flatten(0, 1)

        return (
            slope_states + slope_held @ back, None, None, None,
            product(slope_given, messages), slope_given.sum(dim=(0, 1)),
            product(slope_held, states), slope_held.sum(dim=(0, 1)),
            product(slope_near, out), slope_near.sum(dim=(0, 1)),
            product(slope_far, out), slope_far.sum(dim=(0, 1)),
        )  # fmt: skip


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


def stack(nodes: Sequence[GraphNodes], targets: Sequence[Sequence[float]]) -> Batch:
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
