"""Trains the graph network that corrects the twelve numbers, on the error they are judged by: relative, mean over the twelve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from traincast.errors import InvalidInput
from traincast.resources import (
    BOUNDS,
    FLOOR,
    KIND_GROUPS,
    NUM_NODE_FEATURES,
    NUM_ROUNDS,
    OUTPUTS,
    TIMED,
    TWELVE,
    Array,
    Expected,
    GraphCorrection,
    Nodes,
    Places,
    Rates,
    Run,
    describe_place,
    expect,
    fit_rates,
    in_step,
    node_shares,
)
from traincast.spec import RESOURCES

LEAK = 0.03
"""In training a share beyond 0 or 1 still moves a little, or it could never come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One measured rank with the operators of its step."""

    nodes: Nodes
    run: Run
    step_s: float | None = None
    """Of a cost model that knows better than rates; it is kept, and what happens in it is learned."""
    weight: float = 1.0
    """How much its errors count: the number of visits its numbers come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Chosen among nine on two of five folds of the corpus, by architecture and by family; see docs/theory/resources.md."""

    width: int = 8
    hidden: int = 32
    num_epochs: int = 60
    batch: int = 48
    """Graphs of one update, each with all its runs."""
    rate: float = 4e-3
    decay: float = 0.02
    num_members: int = 2
    dropout: float = 0.1
    towards_physics: float = 0.3
    """Penalty on the squared correction of the step: what rates give carries over to a family never seen."""
    seed: int = 0


class _Network(nn.Module):  # type: ignore[misc]
    def __init__(self, num_flat: int, training: Training) -> None:
        super().__init__()
        width, hidden = training.width, training.hidden
        sizes = {"in": (NUM_NODE_FEATURES, width), "hidden": (2 * width + num_flat, hidden), "second": (hidden, hidden)}
        sizes["out"] = (hidden, len(OUTPUTS))
        for number in range(NUM_ROUNDS):
            sizes |= {f"{name}{number}": (width, width) for name in ("own", "from", "to")}
        self.table = nn.ParameterDict()
        for name, (rows, columns) in sizes.items():
            self.table[name] = nn.Parameter(torch.randn(rows, columns) / rows**0.5 * (0.1 if name == "out" else 1.0))
        for name, (_, columns) in sizes.items():
            if name in ("in", "hidden", "second", "out"):
                self.table[f"{name}_bias"] = nn.Parameter(torch.zeros(columns))
        for number in range(NUM_ROUNDS):
            self.table[f"round{number}_bias"] = nn.Parameter(torch.zeros(width))
        self.drop = nn.Dropout(training.dropout)

    def pool(self, graphs: "_Graphs") -> Tensor:
        table = self.table
        states = torch.tanh(graphs.features @ table["in"] + table["in_bias"])
        for number in range(NUM_ROUNDS):
            said, heard = torch.sparse.mm(graphs.said, states), torch.sparse.mm(graphs.heard, states)
            total = states @ table[f"own{number}"] + said @ table[f"from{number}"] + heard @ table[f"to{number}"]
            states = states + torch.tanh(total + table[f"round{number}_bias"])
        return torch.cat([torch.sparse.mm(graphs.by_share, states), torch.sparse.mm(graphs.by_mean, states)], dim=1)

    def forward(self, pooled: Tensor, flat: Tensor) -> Tensor:
        table = self.table
        whole = self.drop(torch.cat([pooled, flat], dim=1))
        hidden = torch.tanh(whole @ table["hidden"] + table["hidden_bias"])
        hidden = self.drop(torch.tanh(hidden @ table["second"] + table["second_bias"]))
        return torch.tanh(hidden @ table["out"] + table["out_bias"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graphs:
    """All graphs as one: matrices of listeners x speakers, and of graphs x operators."""

    features: Tensor
    said: Tensor
    heard: Tensor
    by_share: Tensor
    by_mean: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    graph: Tensor
    flat: Tensor
    step_s: Tensor
    """Expected; so are the shares and peaks."""
    moves: Tensor
    """Whether the step may be corrected: 0 where a cost model gave it, 1 elsewhere."""
    shares: Tensor
    peaks: Tensor
    measured: Tensor
    units: Tensor
    """What each error is judged against; infinite for what does not count."""
    weights: Tensor


def fit_correction(examples: Sequence[Example], *, training: Training | None = None, rates: Rates | None = None,
                   start: GraphCorrection | None = None) -> GraphCorrection:  # fmt: skip
    """`start`: go on from networks of other settings, their scales kept, and tune the perceptron alone."""
    chosen = training or Training()
    if not examples:
        raise InvalidInput("there is no run to learn from")
    torch.set_num_threads(1)
    rates = start.rates if start is not None else rates or fit_rates([example.run for example in examples])
    expected = [_expect(rates, example) for example in examples]
    points = np.array(
        [describe_place(one.run.work, one.run.place, given) for one, given in zip(examples, expected, strict=True)]
    )
    if start is None:
        centre, scale = points.mean(axis=0), np.maximum(points.std(axis=0), 0.1)
    else:
        centre, scale = start.centre, start.scale
    flat = (points - centre) / scale
    members = []
    for number in range(chosen.num_members if start is None else len(start.members)):
        seed = 1000 * chosen.seed + number
        parts = _part(examples, expected, flat, rates, chosen, seed=seed)
        members.append(_train(parts, chosen, seed=seed, start=None if start is None else start.members[number]))
    low, high = np.percentile(points, [1, 99], axis=0)
    groups = tuple(any(one.run.work.num_bytes[group] > 0 for one in examples) for group in range(len(KIND_GROUPS)))
    return GraphCorrection(
        rates=rates, centre=centre, scale=scale, low=low, high=high, members=tuple(members), known_groups=groups
    )


def _expect(rates: Rates, example: Example) -> Expected:
    expected = expect(rates, example.run.work, example.run.place)
    return expected if example.step_s is None else in_step(expected, example.step_s)


def _part(examples: Sequence[Example], expected: Sequence[Expected], flat: Array, rates: Rates, chosen: Training, *,
          seed: int) -> "list[tuple[_Graphs, _Rows]]":  # fmt: skip
    """Updates see whole graphs: a graph is passed over once for all its runs."""
    distinct = list({id(example.nodes): example.nodes for example in examples}.values())
    owners: dict[int, list[int]] = {}
    for index, example in enumerate(examples):
        owners.setdefault(id(example.nodes), []).append(index)
    order = np.random.default_rng(seed).permutation(len(distinct))
    parts = []
    for picked in np.array_split(order, max(1, round(len(order) / chosen.batch))):
        graphs = [distinct[index] for index in picked]
        rows = [index for nodes in graphs for index in owners[id(nodes)]]
        table = _tabulate([examples[row] for row in rows], [expected[row] for row in rows], flat[rows], graphs)
        parts.append((_join(graphs, rates), table))
    return parts


def _train(parts: "list[tuple[_Graphs, _Rows]]", chosen: Training, *, seed: int,
           start: Mapping[str, Array] | None = None) -> dict[str, Array]:  # fmt: skip
    torch.manual_seed(seed)
    network = _Network(parts[0][1].flat.shape[1], chosen)
    tuned = list(network.parameters())
    if start is not None:
        with torch.no_grad():
            for name, values in start.items():
                network.table[name].copy_(torch.from_numpy(np.asarray(values)))
        tuned = [network.table[name] for name in ("second", "second_bias", "out", "out_bias")]
    optimizer = torch.optim.AdamW(tuned, lr=chosen.rate, weight_decay=chosen.decay)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, chosen.rate, total_steps=chosen.num_epochs * len(parts))
    for _ in range(chosen.num_epochs):
        for number in torch.randperm(len(parts)).tolist():
            graphs, rows = parts[number]
            optimizer.zero_grad()
            raw = network(network.pool(graphs)[rows.graph], rows.flat)
            loss = _loss(raw, rows) + chosen.towards_physics * (raw[:, OUTPUTS.index("step")] ** 2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(tuned, 1.0)
            optimizer.step()
            rate.step()
    return {name: values.detach().numpy().astype(np.float64) for name, values in network.table.items()}


def _loss(raw: Tensor, rows: _Rows) -> Tensor:
    error = (_compose(raw, rows) - rows.measured).abs() / rows.units
    weights = rows.weights[:, None] * torch.isfinite(rows.units)
    return (error * weights).sum() / weights.sum()


def _compose(raw: Tensor, rows: _Rows) -> Tensor:
    """As resources.correction.compose, for many rows at once."""
    step_s, shares, peaks = rows.step_s, rows.shares, rows.peaks
    out = {name: BOUNDS[name] * raw[:, index] for index, name in enumerate(OUTPUTS)}
    whole_s = step_s * torch.exp(rows.moves * out["step"])
    columns = []
    for index, resource in enumerate(RESOURCES):
        learned = out[f"{resource}_share"]
        if resource in TIMED:
            share = shares[:, index] * torch.exp(learned) * step_s / whole_s
        else:
            share = shares[:, index] + learned
        inside = share.clamp(0.0, 1.0)
        share = inside + LEAK * (share - inside).clamp(-1.0, 1.0)
        columns += [(1 - share) * whole_s, share * whole_s, peaks[:, index] * torch.exp(out[f"{resource}_peak"])]
    return torch.stack(columns, dim=1)


def _tabulate(
    examples: Sequence[Example], expected: Sequence[Expected], flat: Array, distinct: Sequence[Nodes]
) -> _Rows:
    home = {id(nodes): index for index, nodes in enumerate(distinct)}
    measured = np.array([[one.run.twelve[name] for name in TWELVE] for one in examples])
    steps = np.array([one.run.step_s for one in examples])
    units = np.empty_like(measured)
    for index, name in enumerate(TWELVE):
        units[:, index] = np.maximum(measured[:, index], FLOOR * steps if name.endswith("_s") else 1e-12)
        units[np.isnan(measured[:, index]), index] = np.inf
        if name.startswith(TIMED):
            units[[one.run.place.num_ranks == 1 for one in examples], index] = np.inf

    def tensor(values: Array) -> Tensor:
        return torch.tensor(values, dtype=torch.float32)

    return _Rows(
        graph=torch.tensor([home[id(one.nodes)] for one in examples]), flat=tensor(flat),
        step_s=tensor(np.array([given.step_s for given in expected])),
        moves=tensor(np.array([one.step_s is None for one in examples])),
        shares=tensor(np.array([[given.shares[name] for name in RESOURCES] for given in expected])),
        peaks=tensor(np.array([[given.peaks[name] for name in RESOURCES] for given in expected])),
        measured=tensor(np.nan_to_num(measured)), units=tensor(units),
        weights=tensor(np.array([one.weight for one in examples])),
    )  # fmt: skip


def _join(graphs: Sequence[Nodes], rates: Rates) -> _Graphs:
    sizes = [len(nodes.features) for nodes in graphs]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    whole = int(starts[-1])
    writers = np.concatenate([nodes.writers + start for nodes, start in zip(graphs, starts, strict=False)])
    readers = np.concatenate([nodes.readers + start for nodes, start in zip(graphs, starts, strict=False)])
    owner = np.repeat(np.arange(len(graphs)), sizes)
    share = np.concatenate([node_shares(nodes, rates) for nodes in graphs])
    return _Graphs(
        features=torch.tensor(np.concatenate([nodes.features for nodes in graphs]), dtype=torch.float32),
        said=_mean_of(readers, writers, whole), heard=_mean_of(writers, readers, whole),
        by_share=_sparse(owner, np.arange(whole), share, (len(graphs), whole)),
        by_mean=_sparse(owner, np.arange(whole), 1 / np.repeat(sizes, sizes), (len(graphs), whole)),
    )  # fmt: skip


def _mean_of(listeners: Places, speakers: Places, whole: int) -> Tensor:
    counts = np.maximum(np.bincount(listeners, minlength=whole), 1)
    return _sparse(listeners, speakers, 1 / counts[listeners], (whole, whole))


def _sparse(left: Places, right: Places, values: Array, shape: tuple[int, int]) -> Tensor:
    places = torch.tensor(np.stack([left, right]))
    found = torch.sparse_coo_tensor(places, torch.tensor(values, dtype=torch.float32), shape, check_invariants=False)
    return found.coalesce()
