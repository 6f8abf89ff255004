"""A job, a cluster and a plan to the labels by which runs are compared."""

import hashlib
from functools import lru_cache

from traincast.catalog import has_varying_inputs
from traincast.spec import MATMULS, MIX_KINDS, Cluster, Graph, Job, Parallelism, RunLabels

_SIGNATURE_LENGTH = 8
_REFERENCE_FLOP_PER_S, _REFERENCE_BYTES_PER_S = 1.5e14, 1e12
"""Of a device that stands for all, so that the shares of kinds depend on the step alone."""


def label_run(job: Job, cluster: Cluster, plan: Parallelism) -> RunLabels:
    """What says how alike this run is to others; read from the nouns alone, so that it is the same however they came in."""
    graph = job.graph
    group = cluster.groups[0]
    return RunLabels(
        model=graph.name,
        family=_family_of(graph),
        mode=graph.mode,
        precision=_precision_of(graph),
        device=group.device.name,
        stack=job.stack.name,
        recompute=plan.recompute,
        compiled=job.compiled,
        num_parameters=float(_count_parameters(graph)),
        num_layers=max((repeat.count for repeat in graph.repeats), default=1),
        pass_tokens=float(graph.batch_size * graph.tokens_per_sample),
        tensor=plan.tensor,
        pipeline=plan.pipeline,
        micro_batches=plan.micro_batches,
        num_devices=cluster.num_devices,
        num_nodes=cluster.num_nodes,
        network_bytes_per_s=group.inter.bytes_per_s,
        varying_inputs=has_varying_inputs(graph.name),
        mix=_read_mix(_ById(graph)),
    )


class _ById:
    """A graph that is told apart by identity: hashing its thousands of operations would cost more than looking at them."""

    __slots__ = ("graph",)

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __hash__(self) -> int:
        return id(self.graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.graph is self.graph


def _family_of(graph: Graph) -> str:
    return _read_family(_ById(graph))


def _precision_of(graph: Graph) -> str:
    return _read_precision(_ById(graph))


def _count_parameters(graph: Graph) -> int:
    return _read_parameters(_ById(graph))


@lru_cache(maxsize=512)
def _read_family(kept: _ById) -> str:
    """Of the kinds and functions of the operations in its forward pass."""
    forward = (op for op in kept.graph.ops if op.phase == "forward")
    parts = sorted({f"{op.kind}:{op.attrs.get('function', '')}" for op in forward})
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:_SIGNATURE_LENGTH]


@lru_cache(maxsize=512)
def _read_precision(kept: _ById) -> str:
    """What most products are computed in, and what the weights are kept in."""
    graph = kept.graph
    amounts: dict[str, float] = {}
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        if op.kind in MATMULS:
            amounts[op.dtype] = amounts.get(op.dtype, 0.0) + (op.flop or 0.0) * count
    products = max(amounts, key=lambda name: amounts[name], default="none")
    weights: dict[str, float] = {}
    for tensor in graph.tensors:
        if tensor.role == "parameter":
            weights[tensor.dtype] = weights.get(tensor.dtype, 0.0) + tensor.numel * tensor.copies
    stored = max(weights, key=lambda name: weights[name], default="none")
    return products if products == stored else f"{products}, weights {stored}"


@lru_cache(maxsize=512)
def _read_parameters(kept: _ById) -> int:
    return kept.graph.num_parameters


@lru_cache(maxsize=512)
def _read_mix(kept: _ById) -> tuple[float, ...]:
    spent = dict.fromkeys(MIX_KINDS, 0.0)
    for op, count in zip(kept.graph.ops, kept.graph.counts(), strict=True):
        seconds = max((op.flop or 0.0) / _REFERENCE_FLOP_PER_S, op.num_bytes / _REFERENCE_BYTES_PER_S)
        spent[op.kind if op.kind in spent else "other"] += count * seconds
    whole = sum(spent.values()) or 1.0
    return tuple(round(seconds / whole, 4) for seconds in spent.values())
