"""What practitioners try, simplest first: replicas, shards, experts, tensor parallelism inside a node, context, pipelines."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from traincast.catalog import Training
from traincast.noun import noun
from traincast.plan._space import Shape
from traincast.resolve import AXES
from traincast.spec import Cluster, Graph, MemoryProfile

SURE = 0.95
"""How likely a plan with a batch that we choose must be to fit."""
RECOMPUTES = ("none", "selective-op", "full")
MOST_STAGES = 64
MOST_CONTEXT = 16
MIDDLE_STAGES = 16
LONG_SAMPLE = 32_768
"""Tokens from which on splitting a sample over devices is tried."""


@noun
class Open:
    """What a question says of its plan and its batches; the rest is to be chosen."""

    values: Mapping[str, Any]
    """Of the plan, as named."""
    cluster: Cluster
    training: Training
    """What it is a case of, with what its trainers offer."""
    batch: int | None = None
    """Samples of one pass, where they are named or cannot be chosen."""
    names_batch: bool = False
    """Whether somebody named them; a batch that only cannot be chosen is accumulated to a usual step."""
    global_batch: int | None = None
    sharded_recompute: str | None = None
    """What the stack runs again wherever weights are sharded."""
    usual_zero: int | None = None
    """What a stack that somebody named always shards over replicas; None: no stack was named, or it shards what one likes."""
    cuts: bool = False
    """Whether only plans that cut layers, stages or experts are asked for."""
    usual_recompute: str | None = None
    """What it runs again unless somebody says otherwise; more where memory needs it, never less."""

    @property
    def names_plan(self) -> bool:
        return any(axis in self.values for axis in AXES)

    def takes(self, memory: MemoryProfile) -> bool:
        """Whether a plan of such memory is sure enough to fit. Whoever names a batch has often seen it run, so the verdict
        that the answer prints is enough; running layers again to be safer would answer another question."""
        return memory.fits if self.names_batch else memory.fit_probability >= SURE

    def shards(self, *usual: int) -> tuple[int, ...]:
        """Stages of ZeRO to try."""
        return usual if self.usual_zero is None else (self.usual_zero,)

    @property
    def passes(self) -> int | None:
        found = self.values.get("micro_batches")
        return found if isinstance(found, int) else None


_SHARDED = {0: "data parallel (DDP)", 1: "data parallel with ZeRO 1", 2: "data parallel with ZeRO 2",
            3: "fully sharded data parallel (FSDP)"}  # fmt: skip


def list_usual(asked: Open, graph: Graph) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what it is called, its values), simplest first; of a mixture of experts those that spread its experts first."""
    count = asked.cluster.num_devices
    if asked.names_plan:
        inner = math.prod(degree(asked.values.get(axis)) for axis in ("tensor", "pipeline", "context"))
        yield "the plan as named", {"data": max(1, count // inner), **asked.values}
        return
    if count == 1:
        yield "one device", {**asked.values, "data": 1}
        return
    mixed = len(asked.cluster.groups) > 1
    experts = 0 if mixed or "expert" not in asked.training.axes else _count_experts(graph)
    yield from _spread_experts(asked, experts)
    for zero in asked.shards(0, 1, 2, 3) if not asked.cuts else ():
        yield _SHARDED[zero], {**asked.values, "data": count, "zero": zero}
    cuts = {"tensor", "context", "pipeline"} & set(asked.training.axes)
    if mixed or not cuts or not any(op.kind == "attention" for op in graph.ops):
        return
    yield from _split_arrangements(asked, graph.tokens_per_sample, experts, Shape.of(graph).layers)


def _count_experts(graph: Graph) -> int:
    spread = (op for op in graph.ops if op.kind == "matmul" and "experts" in op.layer.split("."))
    return max((int(op.attrs["batch"]) for op in spread), default=0)


def _spread_experts(asked: Open, experts: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Experts over devices, the rest of the model as replicas."""
    count = asked.cluster.num_devices
    for expert in _powers(math.gcd(experts, count) if experts else 1):
        for zero in asked.shards(1, 3) if expert > 1 else ():
            values = {**asked.values, "data": count, "expert": expert, "zero": zero}
            yield f"experts over {expert} devices, {_SHORT[zero]}", values


def list_brief(cluster: Cluster, graph: Graph, training: Training) -> Iterator[dict[str, Any]]:
    """The few of them that tell clusters apart: sharded replicas, and a node as one replica."""
    for _, values in list_usual(Open(values={}, cluster=cluster, training=training), graph):
        whole = values.get("tensor", 1) in (1, cluster.devices_per_domain)
        plain = not {"pipeline", "context", "expert"} & values.keys()
        if whole and plain and (values.get("zero", 0) > 1 or "zero" not in values or values["data"] == 1):
            yield {"zero": 0, **values}


_SHORT = {0: "replicas", 1: "ZeRO 1", 2: "ZeRO 2", 3: "FSDP"}


def _split_arrangements(asked: Open, tokens: int, experts: int, layers: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Layers split over the devices of a node, samples over devices, layers over stages."""
    count, axes = asked.cluster.num_devices, asked.training.axes
    node = asked.cluster.devices_per_domain if "tensor" in axes else 1
    for tensor in _powers(min(node, count)):
        for zero in asked.shards(1, 2, 3) if tensor > 1 else ():
            data = count // tensor
            values = {**asked.values, "data": data, "tensor": tensor, "sequence_parallel": tokens % tensor == 0}
            how = f"{_SHORT[zero]} over {data}" if data > 1 else "one replica"
            yield f"tensor parallel {tensor} inside a node, {how}", {**values, "zero": zero if data > 1 else 0}
            if data == 1:
                break
    yield from _split_samples(asked, tokens, node) if "context" in axes and tokens >= LONG_SAMPLE else ()
    yield from _cut_stages(asked, tokens, experts, layers) if "pipeline" in axes else ()


def _cut_stages(asked: Open, tokens: int, experts: int, layers: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Layers over stages, each stage over the devices of a node or with experts over devices."""
    count = asked.cluster.num_devices
    node = asked.cluster.devices_per_domain if "tensor" in asked.training.axes else 1
    for pipeline in _stages(count, layers):
        for tensor in _powers(math.gcd(node, count // pipeline)):
            data = count // pipeline // tensor
            inside = f", tensor parallel {tensor}" if tensor > 1 else ""
            zero = asked.shards(1)[0] if data > 1 else 0
            values = {**asked.values, "data": data, "tensor": tensor, "pipeline": pipeline, "zero": zero,
                      "sequence_parallel": tensor > 1 and tokens % tensor == 0}  # fmt: skip
            replicas = "one replica" if data == 1 else f"{data} replicas"
            yield f"pipeline of {pipeline} stages{inside}, {replicas}", values
            for expert in _powers(math.gcd(experts, data) if experts and tensor == 1 else 1)[1:]:
                yield f"pipeline of {pipeline} stages, experts over {expert} devices", {**values, "expert": expert}


def _stages(count: int, layers: int) -> list[int]:
    """Powers of two, and what else divides both the devices and the layers or takes an odd factor out of the devices."""
    odd = count // (count & -count)
    return [
        stages
        for stages in range(2, min(MOST_STAGES, layers, count) + 1)
        if count % stages == 0
        and (stages & (stages - 1) == 0 or layers % stages == 0 or (odd > 1 and stages % odd == 0))
    ]


def _split_samples(asked: Open, tokens: int, node: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """A sample over devices, alone and with every layer over a node."""
    count = asked.cluster.num_devices
    for tensor in dict.fromkeys((1, node)):
        for context in _powers(min(MOST_CONTEXT, count // tensor)):
            if context > 1 and tokens % (2 * context * tensor) == 0:
                inside = f", tensor parallel {tensor}" if tensor > 1 else ""
                yield f"samples split over {context} devices (context parallel){inside}, FSDP", {
                    **asked.values, "data": count // context // tensor, "context": context, "tensor": tensor, "zero": 3,
                    "sequence_parallel": tensor > 1,
                }  # fmt: skip
                for stages in _powers(min(MIDDLE_STAGES, count // context // tensor))[1:] if tensor > 1 else ():
                    yield f"context parallel {context}, tensor parallel {tensor}, pipeline of {stages} stages", {
                        **asked.values, "data": count // context // tensor // stages, "context": context, "tensor": tensor,
                        "pipeline": stages, "zero": 1, "sequence_parallel": True,
                    }  # fmt: skip


def _powers(most: int) -> list[int]:
    """Powers of two that divide a number."""
    return [2**power for power in range(most.bit_length()) if 2**power <= most and most % 2**power == 0]


def degree(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else 1
