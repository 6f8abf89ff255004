"""A graph and a set of ranks to the numbers a predictor works with: the work by sort of operation, traits, and the vector."""

import math
from dataclasses import dataclass

import numpy as np

from traincast.embed._encoder import Encoder, load_encoder
from traincast.embed._features import Array, dataset_type, describe
from traincast.errors import InvalidInput
from traincast.spec import Graph

SORTS: dict[str, str] = {
    "matmul": "matmul", "conv": "conv", "attention": "attention", "rnn": "rnn", "optimizer": "optimizer", "norm": "norm",
    "embedding": "index", "index": "index", "elementwise": "elementwise", "copy": "copy", "dropout": "random",
    "random": "random", "softmax": "reduce", "reduce": "reduce", "pool": "reduce",
}  # fmt: skip
SORT_NAMES = (*dict.fromkeys(SORTS.values()), "rest")
"""Sorts of operations that reach different rates; kinds that are not named are the rest."""

NOMINAL_FLOP_PER_S, NOMINAL_BYTES_PER_S, NOMINAL_CALL_S = 40e9, 10e9, 10e-6
"""Of one CPU core, to say roughly how much of a step is communication; no forecast rests on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The machines of a data-parallel job, as its slowest parts: what a synchronous step waits for."""

    num_ranks: int
    bits_per_s: float
    """Of the slowest link; of no meaning with one rank."""
    share: float
    """Of the weakest node, in cores."""

    def __post_init__(self) -> None:
        if not (self.num_ranks >= 1 and self.bits_per_s > 0 and self.share > 0):
            raise InvalidInput(
                f"{self.num_ranks} ranks with {self.bits_per_s} bit/s and {self.share} cores; all must be above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a predictor needs to know of one workload at one batch."""

    name: str
    dataset_type: str
    batch_size: int
    work: Array
    """GFLOP, GB and thousands of calls of each sort, one after the other."""
    gradient_bytes: float
    num_gradients: int
    traits: Array
    vector: Array


def summarize(graph: Graph, *, encoder: Encoder | None = None) -> Summary:
    work = np.zeros((len(SORT_NAMES), 3))
    depthwise_flop = 0.0
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        sort = SORT_NAMES.index(SORTS.get(op.kind, "rest"))
        work[sort] += count * np.array([(op.flop or 0.0) / 1e9, op.num_bytes / 1e9, op.num_calls / 1e3])
        if op.kind == "conv" and int(op.attrs["groups"]) > 1:
            depthwise_flop += count * (op.flop or 0.0)
    parameters = [tensor for tensor in graph.tensors if tensor.role == "parameter"]
    num_gradients = sum(tensor.copies for tensor in parameters)
    # The optimizer is one call to the framework for all tensors, or one for each: its host time goes with the tensors.
    work[SORT_NAMES.index("optimizer"), 2] = num_gradients / 1e3
    return Summary(
        name=graph.name,
        dataset_type=dataset_type(graph),
        batch_size=graph.batch_size,
        work=work.ravel(),
        gradient_bytes=sum(tensor.num_bytes * tensor.copies for tensor in parameters),
        num_gradients=num_gradients,
        traits=_traits(graph, work, depthwise_flop),
        vector=(encoder or load_encoder()).encode(describe(graph)),
    )


def _traits(graph: Graph, work: Array, depthwise_flop: float) -> Array:
    """Sizes of the step as logarithms, and how its arithmetic and its calls are shared out."""
    flop, moved, calls = work.sum(axis=0)
    amounts = (flop, moved, calls, graph.num_parameters / 1e6, graph.role_bytes("activation") / 1e9, graph.batch_size)
    shares = [*(work[:, 0] / max(flop, 1e-12)), *(work[:, 2] / max(calls, 1e-12)), depthwise_flop / max(flop * 1e9, 1)]
    intensity = math.log((flop + 1e-6) / (moved + 1e-6))
    return np.array([*(math.log(amount + 1e-6) for amount in amounts), intensity, *shares])


def physical_columns(summary: Summary, ranks: Ranks) -> Array:
    """What a step is a sum of: work at the weakest node's share, the host's part of all-reduce, and time on the slowest link."""
    many = float(ranks.num_ranks > 1)
    ring_bytes = ring_share(ranks.num_ranks) * summary.gradient_bytes
    return np.concatenate([
        summary.work / ranks.share,
        [
            many / ranks.share, many * ranks.num_ranks, ring_bytes / 1e9 / ranks.share, many * wire_s(summary, ranks),
            many * summary.num_gradients / 1e3 / ranks.share, 1.0,
        ],
    ])  # fmt: skip


def ring_share(num_ranks: int) -> float:
    """Bytes each rank sends in a ring all-reduce, per byte of gradient."""
    return 2 * (num_ranks - 1) / num_ranks


def wire_s(summary: Summary, ranks: Ranks) -> float:
    return ring_share(ranks.num_ranks) * summary.gradient_bytes * 8 / ranks.bits_per_s


def place(summary: Summary, ranks: Ranks) -> Array:
    """Where a run stands between computing and communicating, by nominal rates."""
    flop, moved, calls = summary.work.reshape(-1, 3).sum(axis=0)
    compute_s = (
        flop * 1e9 / NOMINAL_FLOP_PER_S + moved * 1e9 / NOMINAL_BYTES_PER_S + calls * 1e3 * NOMINAL_CALL_S
    ) / ranks.share
    wire = wire_s(summary, ranks)
    rate = math.log10(ranks.bits_per_s / 1e9) if ranks.num_ranks > 1 else 0.0
    return np.array(
        [
            2 * wire / (wire + compute_s),
            float(ranks.num_ranks > 1),
            ranks.num_ranks / 4,
            rate / 2,
            math.log(ranks.share),
        ]
    )
