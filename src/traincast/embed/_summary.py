"""A graph to the numbers by which workloads are compared: sizes and shares of its work, and the vector of the encoder."""

import math
from collections.abc import Mapping

import numpy as np

from traincast.embed._encoder import Encoder, load_encoder
from traincast.embed._features import Array, dataset_type, describe
from traincast.noun import noun
from traincast.spec import Graph, Op

SORTS: dict[str, str] = {
    "matmul": "matmul", "conv": "conv", "attention": "attention", "rnn": "rnn", "optimizer": "optimizer", "norm": "norm",
    "embedding": "index", "index": "index", "elementwise": "elementwise", "copy": "copy", "dropout": "random",
    "random": "random", "softmax": "reduce", "reduce": "reduce", "pool": "reduce",
}  # fmt: skip
SORT_NAMES = (*dict.fromkeys(SORTS.values()), "rest")
"""Sorts of operations that reach different rates; kinds that are not named are the rest."""


@noun
class Summary:
    """What makes one workload at one batch comparable with others."""

    name: str
    dataset_type: str
    batch_size: int
    traits: Array
    vector: Array
    mix: Mapping[str, tuple[float, float, float]]
    """Of each sort of operators (function, shape, pass): its shares of calls, FLOP and bytes."""
    num_parameters: int
    sample_flop: float


def summarize(graph: Graph, *, encoder: Encoder | None = None) -> Summary:
    work = np.zeros((len(SORT_NAMES), 3))
    depthwise_flop = 0.0
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        sort = SORT_NAMES.index(SORTS.get(op.kind, "rest"))
        work[sort] += count * np.array([(op.flop or 0.0) / 1e9, op.num_bytes / 1e9, op.num_calls / 1e3])
        if op.kind == "conv" and int(op.attrs["groups"]) > 1:
            depthwise_flop += count * (op.flop or 0.0)
    num_gradients = sum(tensor.copies for tensor in graph.tensors if tensor.role == "parameter")
    # The optimizer is one call to the framework for all tensors, or one for each: its host time goes with the tensors.
    work[SORT_NAMES.index("optimizer"), 2] = num_gradients / 1e3
    return Summary(
        name=graph.name,
        dataset_type=dataset_type(graph),
        batch_size=graph.batch_size,
        traits=_traits(graph, work, depthwise_flop),
        vector=(encoder or load_encoder()).encode(describe(graph)),
        mix=mix_operators(graph),
        num_parameters=graph.num_parameters,
        sample_flop=graph.flop / max(graph.batch_size, 1),
    )


def mix_operators(graph: Graph) -> dict[str, tuple[float, float, float]]:
    """What a person would tell architectures apart by: which operators they are made of, whatever the batch and the number
    format, so the casts of mixed precision are left out."""
    found: dict[str, Array] = {}
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        if op.phase != "optimizer" and op.attrs.get("function") != "cast":
            amounts = count * np.array([1.0, op.flop or 0.0, op.num_bytes])
            name = _name_sort(op)
            found[name] = found[name] + amounts if name in found else amounts
    whole = np.maximum(sum(found.values(), np.zeros(3)), 1e-30)
    return {
        name: (float(one[0]), float(one[1]), float(one[2])) for name, each in found.items() for one in [each / whole]
    }


def _name_sort(op: Op) -> str:
    words = str(op.attrs.get("function", ""))
    if op.kind == "conv":
        groups = int(op.attrs["groups"])
        grouped = "" if groups == 1 else "depthwise " if groups == op.attrs["in_channels"] else "grouped "
        words = f"{grouped}{op.attrs['kernel']}"
    return f"{op.kind} {words} {op.phase}"


def _traits(graph: Graph, work: Array, depthwise_flop: float) -> Array:
    """Sizes of the step as logarithms, and how its arithmetic and its calls are shared out."""
    flop, moved, calls = work.sum(axis=0)
    amounts = (flop, moved, calls, graph.num_parameters / 1e6, graph.role_bytes("activation") / 1e9, graph.batch_size)
    shares = [*(work[:, 0] / max(flop, 1e-12)), *(work[:, 2] / max(calls, 1e-12)), depthwise_flop / max(flop * 1e9, 1)]
    intensity = math.log((flop + 1e-6) / (moved + 1e-6))
    return np.array([*(math.log(amount + 1e-6) for amount in amounts), intensity, *shares])
