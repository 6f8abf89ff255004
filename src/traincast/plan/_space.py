"""A space and a cluster to every candidate in it."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from traincast.errors import IllegalPlan
from traincast.noun import noun
from traincast.plan._nouns import Candidate, Space
from traincast.spec import Cluster, Graph, Op, Parallelism, segments

MOST_TENSOR, MOST_CONTEXT = 64, 16
LONG_SAMPLE = 16_384
"""Tokens from which on samples are split over devices by default."""
VIRTUAL_STAGES = (2, 4)
STATE_BYTES = 16
"""Of a parameter in mixed precision: weight, gradient, master copy and two moments."""


@noun
class Shape:
    """What of a model says how it can be spread."""

    layers: int
    """Pieces that a pipeline can be cut into: repetitions of layers, or ops where none repeats."""
    heads: tuple[int, ...]
    """Heads of queries, and of keys and values, of every attention."""
    tokens: int
    num_experts: int
    has_attention: bool
    trains: bool
    state_bytes: float = 0.0
    """Weights, gradients and optimizer state of a whole replica in mixed precision."""

    @classmethod
    def of(cls, graph: Graph) -> "Shape":
        attention = [op for op in graph.ops if op.kind == "attention"]
        heads = {int(op.attrs[name]) for op in attention for name in ("heads", "kv_heads")}
        experts = [
            int(op.attrs["batch"]) for op in graph.ops if op.kind == "matmul" and "experts" in op.layer.split(".")
        ]
        return cls(
            layers=_count_layers(graph),
            heads=tuple(sorted(heads)),
            tokens=graph.tokens_per_sample,
            num_experts=min(experts, default=0),
            has_attention=bool(attention),
            trains=graph.mode != "inference",
            state_bytes=STATE_BYTES * graph.num_parameters,
        )


def _count_layers(graph: Graph) -> int:
    repeated, single = 0, 0
    for part in segments(graph.repeats, num_tasks=len(graph.ops)):
        forward = sum(_is_forward(op) for op in graph.ops[part.start : part.stop])
        if forward and part.count > 1:
            repeated += part.count
        elif forward:
            single += forward
    return repeated or single


def _is_forward(op: Op) -> bool:
    return op.phase == "forward"


def is_small(state_bytes: float, cluster: Cluster) -> bool:
    """Whether weights, gradients and optimizer state fill no more than half of a device. Nobody cuts the layers of such a model,
    though a slow link would make it pay."""
    return state_bytes <= min(group.device.memory_bytes for group in cluster.groups) / 2


def leave_whole(space: Space, cluster: Cluster, shape: Shape) -> Space:
    """The space without cuts of the layers of a small model; degrees that somebody named are tried."""
    if not shape.trains or not is_small(shape.state_bytes, cluster):
        return space
    return replace(space, tensor=space.tensor or (1,), pipeline=space.pipeline or (1,))


def list_candidates(space: Space, cluster: Cluster, shape: Shape) -> Iterator[Candidate]:
    """Every plan of the space that uses the whole cluster. Degrees that cannot split this model evenly are no candidates."""
    for batch, plan in list_plans(space, cluster.num_devices, cluster.devices_per_domain, shape):
        yield Candidate(cluster=cluster, parallelism=plan, batch=batch)


def list_plans(
    space: Space, num_devices: int, devices_per_node: int, shape: Shape
) -> Iterator[tuple[int, Parallelism]]:
    """(samples of one pass, plan), grouped so that neighbours share most of their work."""
    for tensor in _degrees(space.tensor, num_devices, _tensor_default(shape, devices_per_node)):
        if not _splits_heads(tensor, shape):
            continue
        rest = num_devices // tensor
        for context in _degrees(space.context, rest, _context_default(shape)):
            if context > 1 and (not shape.has_attention or shape.tokens % (2 * context)):
                continue
            for pipeline in _degrees(space.pipeline, rest // context, shape.layers):
                data = rest // context // pipeline
                if space.global_batch % data:
                    continue
                for batch in _batches(space, space.global_batch // data):
                    micro = space.global_batch // data // batch
                    degrees = {"data": data, "tensor": tensor, "pipeline": pipeline, "context": context}
                    yield from _arrangements(space, shape, batch, degrees, micro)


def _arrangements(
    space: Space, shape: Shape, batch: int, degrees: dict[str, int], micro: int
) -> Iterator[tuple[int, Parallelism]]:
    replicas = degrees["data"] * degrees["context"]
    tensor, pipeline = degrees["tensor"], degrees["pipeline"]
    sequence = [split for split in space.sequence_parallel if not split or (tensor > 1 and shape.tokens % tensor == 0)]
    for expert in _experts(space, replicas, shape):
        for recompute in space.recompute if shape.trains else ("none",):
            for split in sequence or [False]:
                for zero in _zeros(space, replicas, shape, pipeline=pipeline):
                    for order, virtual in _orders(space, pipeline, micro, shape):
                        with contextlib.suppress(IllegalPlan):
                            # What the base fixes (a group of shards, folded experts) does not go with every degree.
                            base = _base_of(space, zero, context=degrees["context"])
                            yield batch, replace(
                                base, data=degrees["data"], tensor=tensor, pipeline=pipeline, context=degrees["context"],
                                expert=expert, micro_batches=micro, zero=zero, sequence_parallel=split, recompute=recompute,
                                order=order, virtual_stages=virtual, async_tensor=base.async_tensor and split,
                                dispatch_once=base.dispatch_once or (space.dispatch_once and expert > 1),
                            )  # fmt: skip


def _degrees(asked: tuple[int, ...] | None, available: int, default_limit: int) -> list[int]:
    if asked is not None:
        return [degree for degree in sorted(set(asked)) if available % degree == 0]
    return [degree for degree in range(1, min(available, default_limit) + 1) if available % degree == 0]


def _tensor_default(shape: Shape, devices_per_node: int) -> int:
    """Beyond a node the network makes it slow; it is tried only where asked for."""
    return min(MOST_TENSOR, devices_per_node)


def _context_default(shape: Shape) -> int:
    """Shorter samples gain little from being split, and few training scripts can; it is tried where asked for."""
    return MOST_CONTEXT if shape.has_attention and shape.tokens >= LONG_SAMPLE else 1


def _splits_heads(tensor: int, shape: Shape) -> bool:
    """Each rank holds whole heads; heads of keys and values may be shared by ranks."""
    most = max(shape.heads, default=0)
    return not most or (most % tensor == 0 and all(heads % tensor == 0 or tensor % heads == 0 for heads in shape.heads))


def _batches(space: Space, per_replica: int) -> Iterable[int]:
    if space.batches is not None:
        return [batch for batch in sorted(set(space.batches)) if per_replica % batch == 0]
    return [
        2**power
        for power in range(space.most_samples.bit_length())
        if 2**power <= space.most_samples and per_replica % 2**power == 0
    ]


def _experts(space: Space, replicas: int, shape: Shape) -> list[int]:
    if not shape.num_experts:
        return [1]
    return [
        degree for degree in _degrees(space.expert, replicas, shape.num_experts) if shape.num_experts % degree == 0
    ] or [1]


def _base_of(space: Space, zero: int, *, context: int) -> Parallelism:
    """What the request says of every plan, without what plans of these degrees do not do."""
    base = space.base or Parallelism()
    waits = zero in (1, 2) and not space.overlap_sharded
    if waits and space.sharded_bucket is not None:
        base = replace(base, bucket_bytes=space.sharded_bucket)
    return replace(
        base, overlap=base.overlap and (zero in (0, 3) or space.overlap_sharded),
        gather_ahead=base.gather_ahead and zero == 1, async_context=base.async_context and context > 1,
    )  # fmt: skip


def _zeros(space: Space, replicas: int, shape: Shape, *, pipeline: int) -> tuple[int, ...]:
    if replicas == 1 or not shape.trains:
        return (0,)
    if pipeline > 1 and space.plain_pipelines:
        return tuple(dict.fromkeys(min(zero, 1) for zero in space.zero))
    if pipeline == 1 or space.reshard_in_pipeline:
        return space.zero
    # Weights that stay gathered between passes are not sharded: what is called ZeRO 3 is ZeRO 2.
    return tuple(dict.fromkeys(min(zero, 2) for zero in space.zero))


def _orders(space: Space, pipeline: int, micro: int, shape: Shape) -> Iterator[tuple[str, int]]:
    """One order where there is nothing to order; interleaving needs whole chunks and rounds (Narayanan et al. 2021)."""
    if pipeline == 1:
        yield "1f1b", 1
        return
    for order in space.orders:
        if order != "interleaved":
            yield order, 1
            continue
        for virtual in space.virtual_stages or VIRTUAL_STAGES:
            if virtual > 1 and shape.layers % (pipeline * virtual) == 0 and micro % pipeline == 0:
                yield order, virtual
