"""Driple (Yang et al., SIGMETRICS 2022), re-implemented: a graph of grouped ops to the twelve resource numbers of one setting.

The network follows the released code: a graph convolution 3 -> 64, one shared 64 -> 64 convolution repeated to fifty layers with
a gated recurrent unit, Set2Set pooling in a hundred steps, and a perceptron 128-64-64-12; 92,236 parameters. Where we know
only the paper's outcome we chose what helps it: output sizes include the batch, which is lost in the released data, and node
features are scaled by their maximum as the labels are.

Needs torch (and networkx, which torch brings); nothing imports this module unless the baseline is asked for.
"""

import copy
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx
import torch
from torch import Tensor, nn

from traincast.errors import InvalidInput
from traincast.spec import Graph, segments

NUM_GROUPS = 100
NUM_TARGETS = 12
SEED = 42
FEATURE_UNIT, LABEL_UNIT = 1e-4, 1e-2
"""Of the largest, where logarithms are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Groups of ops: (summed output elements, number of ops, summed op codes) of each, and the pairs that touch."""

    nodes: tuple[tuple[float, float, float], ...]
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One measured run: its graph and its twelve numbers, in any fixed order."""

    graph: Grouped
    targets: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.targets) != NUM_TARGETS:
            raise InvalidInput(f"{len(self.targets)} targets; Driple predicts {NUM_TARGETS}")


def count_codes(graphs: Sequence[Graph]) -> dict[str, float]:
    """The code of an op is how often its sort occurs in the corpus; an op and its gradient are one sort."""
    counts: Counter[str] = Counter()
    for graph in graphs:
        for op, times in zip(graph.ops, graph.counts(), strict=True):
            counts[_sort(op.name)] += times
    whole = sum(counts.values())
    return {name: count / whole for name, count in counts.items()}


def unroll(graph: Graph) -> tuple[list[int], set[tuple[int, int]]]:
    """Every run of every op in order (its place in graph.ops), and the undirected pairs that hand a tensor over."""
    runs: list[int] = []
    edges: set[tuple[int, int]] = set()
    writers: dict[int, int] = {}
    kept: dict[int, list[int]] = {}
    """Writers of a tensor in each repetition of a layer, which the backward pass reads in reverse."""
    for part in segments(graph.repeats, num_tasks=len(graph.ops)):
        own = {tensor for place in range(part.start, part.stop) for tensor in graph.ops[place].writes}
        written: dict[int, list[int]] = {}
        for number in range(part.count):
            for place in range(part.start, part.stop):
                run = len(runs)
                for tensor in graph.ops[place].reads:
                    copies = kept.get(tensor, [])
                    saved = part.count > 1 and len(copies) == part.count and tensor not in own
                    writer = copies[-1 - number] if saved else writers.get(tensor)
                    if writer is not None and writer != run:
                        edges.add((writer, run))
                for tensor in graph.ops[place].writes:
                    writers[tensor] = run
                    written.setdefault(tensor, []).append(run)
                runs.append(place)
        kept.update({tensor: found for tensor, found in written.items() if part.count > 1})
    return runs, edges


def group(graph: Graph, codes: Mapping[str, float], *, num_groups: int = NUM_GROUPS, seed: int = SEED) -> Grouped:
    """The largest connected part of the op graph, cut into fluid communities (Pares et al. 2017). An op that the corpus of
    the codes does not have counts as code 0, as one that never occurs."""
    runs, pairs = unroll(graph)
    whole = networkx.Graph()
    whole.add_nodes_from(range(len(runs)))
    whole.add_edges_from(pairs)
    largest = max(networkx.connected_components(whole), key=lambda part: (len(part), -min(part)))
    connected = networkx.Graph()
    connected.add_nodes_from(sorted(largest))
    connected.add_edges_from(sorted(pair for pair in pairs if pair[0] in largest))
    if len(largest) > num_groups:
        found = networkx.algorithms.community.asyn_fluidc(connected, num_groups, seed=seed)
        members = sorted((sorted(part) for part in found), key=lambda part: part[0])
    else:
        members = [[run] for run in sorted(largest)]
    home = {run: index for index, part in enumerate(members) for run in part}
    nodes = []
    for part in members:
        ops = [graph.ops[runs[run]] for run in part]
        size = sum(graph.tensors[tensor].numel for op in ops for tensor in op.writes)
        nodes.append((float(size), float(len(ops)), sum(codes.get(_sort(op.name), 0.0) for op in ops)))
    edges = {(min(home[a], home[b]), max(home[a], home[b])) for a, b in pairs if a in home and home[a] != home[b]}
    return Grouped(nodes=tuple(nodes), edges=tuple(sorted(edges)))


@dataclass(frozen=True, slots=True)
class Batch:
    """Several graphs side by side: features, the normalised adjacency, and which graph each node belongs to."""

    features: Tensor
    adjacency: Tensor
    owner: Tensor
    num_graphs: int


def batch_graphs(graphs: Sequence[Grouped], *, scale: Tensor | None = None, logarithms: bool = False) -> Batch:
    """Adjacency D^-1/2 (A + I) D^-1/2 (Kipf and Welling 2017)."""
    if not graphs:
        raise InvalidInput("there is no graph to predict for")
    features: list[tuple[float, float, float]] = []
    owner: list[int] = []
    left: list[int] = []
    right: list[int] = []
    for number, graph in enumerate(graphs):
        start = len(features)
        features.extend(graph.nodes)
        owner.extend([number] * len(graph.nodes))
        loops = [(node, node) for node in range(len(graph.nodes))]
        for a, b in (*graph.edges, *((b, a) for a, b in graph.edges), *loops):
            left.append(start + a)
            right.append(start + b)
    indices = torch.tensor([left, right])
    degree = torch.zeros(len(features)).index_add_(0, indices[0], torch.ones(len(left)))
    weights = (degree[indices[0]] * degree[indices[1]]).rsqrt()
    table = torch.tensor(features, dtype=torch.float32)
    return Batch(
        features=table if scale is None else _flatten(table / scale, FEATURE_UNIT) if logarithms else table / scale,
        adjacency=_rows(indices, weights, len(features)),
        owner=torch.tensor(owner),
        num_graphs=len(graphs),
    )


def _rows(indices: Tensor, weights: Tensor, size: int) -> Tensor:
    with warnings.catch_warnings():
        # torch calls this layout a beta; the product is all we use.
        warnings.simplefilter("ignore", UserWarning)
        whole = torch.sparse_coo_tensor(indices, weights, (size, size), check_invariants=False)
        return whole.coalesce().to_sparse_csr()


class _Spread(torch.autograd.Function):  # type: ignore[misc]
    """Features over the edges. The adjacency is symmetric, so the way back is the same product: no transposing."""

    @staticmethod
    def forward(ctx: Any, adjacency: Tensor, features: Tensor) -> Tensor:
        ctx.adjacency = adjacency
        return adjacency @ features

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[None, Tensor]:
        return None, ctx.adjacency @ slopes[0]


class Convolution(nn.Module):  # type: ignore[misc]
    """Graph convolution (Kipf and Welling 2017)."""

    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size_in, size_out, bias=False)
        # As the released code's library begins: smaller weights would die out over fifty layers.
        nn.init.xavier_uniform_(self.linear.weight)
        self.bias = nn.Parameter(torch.zeros(size_out))

    def forward(self, features: Tensor, adjacency: Tensor) -> Tensor:
        return _Spread.apply(adjacency, self.linear(features)) + self.bias


class Set2Set(nn.Module):  # type: ignore[misc]
    """A vector for a set of nodes, read step by step with attention (Vinyals et al. 2016)."""

    def __init__(self, size: int, *, num_steps: int) -> None:
        super().__init__()
        self.size, self.num_steps = size, num_steps
        self.cell = nn.LSTMCell(2 * size, size)

    def forward(self, nodes: Tensor, owner: Tensor, num_graphs: int) -> Tensor:
        state = nodes.new_zeros(num_graphs, self.size), nodes.new_zeros(num_graphs, self.size)
        answer = nodes.new_zeros(num_graphs, 2 * self.size)
        padded, absent = _pad(nodes, owner, num_graphs)
        for _ in range(self.num_steps):
            state = self.cell(answer, state)
            query = state[0]
            energy = torch.bmm(padded, query[:, :, None])[:, :, 0] + absent
            read = torch.bmm(energy.softmax(dim=1)[:, None, :], padded)[:, 0]
            answer = torch.cat([query, read], dim=1)
        return answer


def _pad(nodes: Tensor, owner: Tensor, num_graphs: int) -> tuple[Tensor, Tensor]:
    """Graphs x the most nodes x features, and minus infinity where a graph has no node: a hundred readings of rows that lie
    side by side are ten times faster than of rows that are looked up."""
    counts = torch.bincount(owner, minlength=num_graphs)
    place = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
    padded = nodes.new_zeros(num_graphs, int(counts.max()), nodes.shape[1]).index_put((owner, place), nodes)
    absent = nodes.new_full(padded.shape[:2], -torch.inf).index_put((owner, place), nodes.new_zeros(len(owner)))
    return padded, absent


class Network(nn.Module):  # type: ignore[misc]
    """The released architecture."""

    def __init__(self, *, size: int = 64, num_layers: int = 50, num_steps: int = 100) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.first = Convolution(3, size)
        self.shared = Convolution(size, size)
        self.gate = nn.GRUCell(size, size)
        self.pool = Set2Set(size, num_steps=num_steps)
        self.head = nn.Sequential(
            nn.Linear(2 * size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, NUM_TARGETS)
        )

    def forward(self, batch: Batch) -> Tensor:
        state = torch.relu(self.first(batch.features, batch.adjacency))
        for _ in range(self.num_layers - 1):
            state = self.gate(torch.relu(self.shared(state, batch.adjacency)), state)
        return self.head(self.pool(state, batch.owner, batch.num_graphs))


@dataclass(frozen=True, slots=True)
class Driple:
    """A network fitted to one setting, with the scales of its features and labels."""

    network: Network
    feature_scale: Tensor
    label_scale: Tensor
    logarithms: bool = False
    """Of features and labels: ours, to help it; the released code has none."""
    num_epochs: int = 0
    """Trained before it stopped."""
    best_epoch: int = 0
    """Of the lowest validation error, whose weights are kept."""

    def predict(self, graphs: Sequence[Grouped]) -> list[tuple[float, ...]]:
        self.network.eval()
        with torch.no_grad():
            batch = batch_graphs(graphs, scale=self.feature_scale, logarithms=self.logarithms)
            answers = self.network(batch)
            if self.logarithms:
                answers = LABEL_UNIT * torch.expm1(answers.clamp(min=0.0) * math.log1p(1 / LABEL_UNIT))
            answers = answers * self.label_scale
        return [tuple(row) for row in answers.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """As released: mean squared error of labels over their maximum, Adam, stop when validation no longer improves."""

    learning_rate: float = 3e-3
    patience: int = 1000
    max_epochs: int = 10_000
    batch: int | None = None
    """Graphs of one update; None: all of them."""
    logarithms: bool = False
    seed: int = SEED


def fit(known: Sequence[Example], validation: Sequence[Example], *, training: Training | None = None,
        network: Network | None = None) -> Driple:  # fmt: skip
    """One setting from scratch."""
    if not known or not validation:
        raise InvalidInput(
            f"{len(known)} training and {len(validation)} validation examples; give at least one of each"
        )
    training = training or Training()
    torch.manual_seed(training.seed)
    model = Driple(
        network or Network(),
        _largest([node for example in known for node in example.graph.nodes]),
        _largest([example.targets for example in known]),
        logarithms=training.logarithms,
    )
    return _train(model, known, validation, training)


def _train(model: Driple, known: Sequence[Example], validation: Sequence[Example], training: Training) -> Driple:
    network = model.network
    optimizer = torch.optim.Adam(network.parameters(), lr=training.learning_rate)
    size = training.batch or len(known)
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(training.seed)).tolist()
    mixed = [known[index] for index in order]
    parts = [_prepare(model, mixed[start : start + size]) for start in range(0, len(mixed), size)]
    check = _prepare(model, validation)
    best, best_loss, best_epoch, epoch = copy.deepcopy(network.state_dict()), float("inf"), 0, 0
    while epoch < training.max_epochs and epoch - best_epoch < training.patience:
        epoch += 1
        network.train()
        for batch, labels in parts:
            optimizer.zero_grad()
            nn.functional.mse_loss(network(batch), labels).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            loss = float(nn.functional.mse_loss(network(check[0]), check[1]))
        if loss < best_loss:
            best, best_loss, best_epoch = copy.deepcopy(network.state_dict()), loss, epoch
    network.load_state_dict(best)
    return replace(model, num_epochs=epoch, best_epoch=best_epoch)


def _prepare(model: Driple, examples: Sequence[Example]) -> tuple[Batch, Tensor]:
    graphs = batch_graphs([one.graph for one in examples], scale=model.feature_scale, logarithms=model.logarithms)
    labels = torch.tensor([one.targets for one in examples]) / model.label_scale
    return graphs, _flatten(labels, LABEL_UNIT) if model.logarithms else labels


def _flatten(shares: Tensor, unit: float) -> Tensor:
    """Shares of the largest as logarithms, 0 to 0 and 1 to 1; what is below the unit hardly counts."""
    return torch.log1p(shares / unit) / math.log1p(1 / unit)


def _largest(rows: Sequence[Sequence[float]]) -> Tensor:
    """The largest value of each column; one that is always zero is left as it is."""
    largest = torch.tensor(rows, dtype=torch.float32).amax(dim=0)
    return torch.where(largest > 0, largest, torch.ones_like(largest))


def _sort(name: str) -> str:
    return name.removesuffix("_backward")
