"""The default cost model: an op model for what devices do, a collective model for what links do, a stack between them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

from traincast.cost import OpModel
from traincast.cost._alignment import VECTOR_BYTES, row_alignment
from traincast.cost._collectives import Pipelined, find_route
from traincast.cost._interaction.ensemble import Ensemble, default_ensemble
from traincast.cost._learned import WEIGHTS, load_learned
from traincast.cost._roofline import Roofline
from traincast.cost._routes import part_replicas
from traincast.cost._stack import price_collective, price_op
from traincast.errors import InvalidInput
from traincast.memo import Remember, compute
from traincast.spec import Cluster, Collective, Device, Estimate, Op, Stack, Stage
from traincast.units import DTYPE_BYTES

CONVOLUTION_FACTS = ("turned_images", "grouped_gradients_on_lanes", "wide_tiles")
STREAMED = ("elementwise", "dropout", "copy")
"""Kinds of ops that frameworks run with their kernels for elementwise functions."""


class CollectiveModel(Protocol):
    def estimate(self, task: Collective, cluster: Cluster) -> Estimate: ...


def default_ops() -> OpModel:
    """The fitted operator models where they are installed, else the bound alone."""
    return load_learned() if WEIGHTS.is_file() else Roofline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """Prices each task by its sort. On mixed devices every op takes as long as on the slowest, which the others await."""

    ops: OpModel = field(default_factory=default_ops)
    collectives: CollectiveModel = field(default_factory=Pipelined)
    stack: Stack = field(default_factory=Stack)
    interaction: "Ensemble | None" = field(default_factory=default_ensemble)
    """What corrects the operators of a whole program on GPUs; an engine asks it once for each program."""

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]:
        return self.estimate_parts(stage, cluster, remember=compute)

    def estimate_parts(self, stage: Stage, cluster: Cluster, *, remember: Remember) -> tuple[Estimate, ...]:
        """The passes and the update are priced apart, so that plans which share one of them share its prices."""
        ops = [task for task in stage.tasks if isinstance(task, Op)]
        end = next((place for place, op in enumerate(ops) if op.phase == "optimizer"), len(ops))
        passes, update = tuple(ops[:end]), tuple(ops[end:])
        devices = _distinct_devices(cluster)
        flat = [value for pair in devices for value in pair]
        priced = list(remember(_price_ops, self.ops, self.stack, (), passes, *flat))
        if update:
            first = remember(_open_ops, self.ops)
            update = tuple([first.setdefault(_value_of(op), op) for op in update])
            cached = recent_ops(passes, update, max(device.l2_bytes or 0.0 for device, _ in devices))
            priced += remember(_price_ops, self.ops, self.stack, cached, update, *flat)
        known: dict[Collective, Estimate] = remember(_open_table, self.collectives, self.stack, cluster)
        following = iter(priced)
        estimates: list[Estimate] = []
        for task in stage.tasks:
            if isinstance(task, Op):
                estimates.append(next(following))
                continue
            found = known.get(task)
            if found is None:
                found = known[task] = remember(_price_collective, self.collectives, self.stack, task, cluster)
            estimates.append(found)
        return tuple(estimates)


def _open_ops(model: OpModel) -> dict[Hashable, Op]:
    """The first of equal ops of updates, by value: replicas that share state in other ways may update the same share of it."""
    return {}


def _value_of(op: Op) -> Hashable:
    """Everything that is said of an op."""
    said = [getattr(op, name) for name in _OP_FIELDS]
    return (*said, *op.attrs.items())


_OP_FIELDS = tuple(item.name for item in fields(Op) if item.name != "attrs")


def _open_table(model: CollectiveModel, stack: Stack, cluster: Cluster) -> dict[Collective, Estimate]:
    """Collectives of a cluster that were priced before, by their values: plans of one search send the same ones again."""
    return {}


def _price_collective(model: CollectiveModel, stack: Stack, task: Collective, cluster: Cluster) -> Estimate:
    if stack.plan.own_containers:
        cluster = part_replicas(cluster)
    crosses = find_route(task, cluster).num_nodes > 1
    return price_collective(stack, task, model.estimate(task, cluster), crosses_nodes=crosses)


def _price_ops(
    model: OpModel, stack: Stack, cached: tuple[Op, ...], ops: tuple[Op, ...], *devices: Device | float
) -> tuple[Estimate, ...]:
    """`cached`: ops that ran before and may have left something in a cache. `devices`: each followed by its speed."""
    ops = mark_software(ops, stack)
    slowest: tuple[Estimate, ...] = ()
    worst_s = -1.0
    for device, speed in zip(devices[::2], devices[1::2], strict=True):
        if not isinstance(device, Device) or isinstance(speed, Device):
            raise InvalidInput("devices must be given in turn with their speeds")
        estimates = model.estimate_ops((*cached, *ops), device)[len(cached) :]
        if speed != 1.0:
            estimates = tuple([estimate.scaled(1 / speed) for estimate in estimates])
        total_s = sum(estimate.seconds for estimate in estimates)
        if total_s > worst_s:
            slowest, worst_s = estimates, total_s
    return tuple([price_op(stack, op, estimate) for op, estimate in zip(ops, slowest, strict=True)])


def mark_software(ops: tuple[Op, ...], stack: Stack) -> tuple[Op, ...]:
    """Convolutions, norms and products of odd widths say what the stack's code and its libraries do with them."""
    kernels = stack.kernels
    if kernels.pads_vocabulary or kernels.pads_heads:
        ops = tuple([_mark_padded(op, stack) if op.kind == "matmul" else op for op in ops])
    facts = {name: True for name in CONVOLUTION_FACTS if getattr(kernels, name)}
    if kernels.products_by_sample:
        ops = tuple([_mark_sampled(op) if "by_sample" in op.attrs else op for op in ops])
    if kernels.short_vectors:
        ops = tuple([_mark_short(op) if DTYPE_BYTES[op.dtype] == 2.0 and is_streamed(op) else op for op in ops])
    given = {"given_statistics": True} if kernels.statistics_in_convolutions else {}
    if not facts and not given:
        return ops
    marks = {"conv": facts, "norm": given}
    return tuple([replace(op, attrs={**op.attrs, **marks[op.kind]}) if marks.get(op.kind) else op for op in ops])


def is_streamed(op: Op) -> bool:
    """Gradients of tables are sums of sorted rows, with kernels of their own."""
    return op.kind in STREAMED or (op.kind == "embedding" and op.phase != "backward")


def _mark_short(op: Op) -> Op:
    return replace(op, attrs={**op.attrs, "short_vectors": True})


def _mark_sampled(op: Op) -> Op:
    return replace(op, attrs={**op.attrs, "products_by_sample": True})


def _mark_padded(op: Op, stack: Stack) -> Op:
    padded = stack.kernels.pads_heads if op.attrs["batch"] != 1 else stack.kernels.pads_vocabulary
    return replace(op, attrs={**op.attrs, "padded": True}) if padded and row_alignment(op) < VECTOR_BYTES else op


def recent_ops(before: Sequence[Op], ops: Sequence[Op], cache_bytes: float) -> tuple[Op, ...]:
    """The last ops whose results may still be cached when the next ones read them; none where nothing that is read is."""
    read = {tensor for op in ops for tensor in op.reads}
    recent: list[Op] = []
    touched = 0.0
    cached = False
    for op in reversed(before):
        if touched > cache_bytes:
            break
        recent.append(op)
        small = op.bytes_written <= cache_bytes * max(1, len(op.writes))
        cached = cached or (small and any(tensor in read for tensor in op.writes))
        touched += op.num_bytes
    return tuple(reversed(recent)) if cached else ()


def _distinct_devices(cluster: Cluster) -> list[tuple[Device, float]]:
    seen: list[tuple[Device, float]] = []
    for group in cluster.groups:
        if (group.device, group.speed) not in seen:
            seen.append((group.device, group.speed))
    return seen
