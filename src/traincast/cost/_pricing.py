"""The default cost model: an op model for what devices do, a collective model for what links do, a stack between them."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Protocol

from traincast.cost import OpModel
from traincast.cost._alignment import CONSTANTS as ALIGNMENT
from traincast.cost._alignment import row_alignment, warn_alignment
from traincast.cost._bounds import name_unknown_silicon
from traincast.cost._collectives import Pipelined
from traincast.cost._interaction.classes import ClassFactors, load_class_factors
from traincast.cost._learned import WEIGHTS, load_learned
from traincast.cost._roofline import Roofline
from traincast.cost._routes import find_route, part_replicas
from traincast.cost._stack import price_collective, price_op
from traincast.errors import InvalidInput
from traincast.memo import Remember, compute
from traincast.noun import noun
from traincast.spec import Cluster, Collective, Device, Estimate, Op, Stack, Stage
from traincast.units import DTYPE_BYTES

STREAMED = ("elementwise", "dropout", "copy")
"""Kinds of ops that frameworks run with their kernels for elementwise functions."""


class CollectiveModel(Protocol):
    def estimate(self, task: Collective, cluster: Cluster) -> Estimate: ...


def default_ops() -> OpModel:
    """The fitted operator models where they are installed, else the bound alone."""
    return load_learned() if WEIGHTS.is_file() else Roofline()


@noun
class Pricing:
    """Prices each task by its sort. On mixed devices every op takes as long as on the slowest, which the others await."""

    ops: OpModel = field(default_factory=default_ops)
    collectives: CollectiveModel = field(default_factory=Pipelined)
    stack: Stack = field(default_factory=Stack)
    interaction: ClassFactors | None = field(default_factory=load_class_factors)
    """What corrects the operators of whole programs that infer images on GPUs; an engine applies it."""

    def estimate(self, stage: Stage, cluster: Cluster) -> tuple[Estimate, ...]:
        return self.estimate_parts(stage, cluster, remember=compute)

    def estimate_parts(self, stage: Stage, cluster: Cluster, *, remember: Remember) -> tuple[Estimate, ...]:
        """The passes and the update are priced apart, so that plans which share one of them share its prices."""
        ops = [task for task in stage.tasks if isinstance(task, Op)]
        end = next((place for place, op in enumerate(ops) if op.phase == "optimizer"), len(ops))
        passes, update = tuple(ops[:end]), tuple(ops[end:])
        devices = _distinct_devices(cluster)
        flat = [value for pair in devices for value in pair]
        priced = list(remember(_price_ops, self.ops, self.stack, passes, *flat))
        if update:
            update = remember(_FirstOps, self.ops).find(update)
            priced += remember(_price_ops, self.ops, self.stack, update, *flat)
        sent = remember(_Prices, self.collectives, self.stack, cluster)
        following = iter(priced)
        return tuple([next(following) if isinstance(task, Op) else sent.find(task, remember) for task in stage.tasks])


class _FirstOps:
    """The first of equal ops of updates: replicas that share state in other ways may update the same share of it."""

    def __init__(self, model: OpModel) -> None:
        self._first: dict[Hashable, Op] = {}

    def find(self, ops: Sequence[Op]) -> tuple[Op, ...]:
        return tuple([self._first.setdefault(_value_of(op), op) for op in ops])


def _value_of(op: Op) -> Hashable:
    """Everything that is said of an op."""
    said = [getattr(op, name) for name in _OP_FIELDS]
    return (*said, *op.attrs.items())


_OP_FIELDS = tuple(item.name for item in fields(Op) if item.name != "attrs")


class _Prices:
    """Of the collectives of one cluster that were priced before, by their values: plans of one search send the same again."""

    def __init__(self, model: CollectiveModel, stack: Stack, cluster: Cluster) -> None:
        self._model, self._stack, self._cluster = model, stack, cluster
        self._known: dict[Collective, Estimate] = {}

    def find(self, task: Collective, remember: Remember) -> Estimate:
        found = self._known.get(task)
        if found is None:
            found = remember(_price_collective, self._model, self._stack, task, self._cluster)
            self._known[task] = found
        return found


def _price_collective(model: CollectiveModel, stack: Stack, task: Collective, cluster: Cluster) -> Estimate:
    if "own_containers" in stack.plan.runs:
        cluster = part_replicas(cluster)
    nodes = find_route(task, cluster).num_nodes
    if task.kind == "all_to_all" and "staged_exchanges" in stack.plan.runs and 1 < nodes < task.num_ranks:
        estimate = _in_stages(model, task, cluster, nodes)
    else:
        estimate = model.estimate(task, cluster)
    return price_collective(stack, task, estimate, crosses_nodes=nodes > 1)


def _in_stages(model: CollectiveModel, task: Collective, cluster: Cluster, nodes: int) -> Estimate:
    """An exchange inside nodes that sorts by peers, then one of each device with its like on every other node."""
    own = task.num_ranks // nodes
    inside = model.estimate(replace(task, num_ranks=own), cluster)
    between = model.estimate(replace(task, num_ranks=nodes, stride=own * task.stride), cluster)
    return replace(
        between, seconds=inside.seconds + between.seconds, low_s=inside.low_s + between.low_s,
        high_s=inside.high_s + between.high_s,
    )  # fmt: skip


def _price_ops(model: OpModel, stack: Stack, ops: tuple[Op, ...], *devices: Device | float) -> tuple[Estimate, ...]:
    """`devices`: each followed by its speed."""
    ops = mark_software(ops, stack)
    slowest: tuple[Estimate, ...] = ()
    worst_s = -1.0
    for device, speed in zip(devices[::2], devices[1::2], strict=True):
        if not isinstance(device, Device) or isinstance(speed, Device):
            raise InvalidInput("devices must be given in turn with their speeds")
        estimates = model.estimate_ops(ops, device)
        if speed != 1.0:
            estimates = tuple([estimate.scaled(1 / speed) for estimate in estimates])
        total_s = sum(estimate.seconds for estimate in estimates)
        if total_s > worst_s:
            slowest, worst_s = estimates, total_s
    return tuple([price_op(stack, op, estimate) for op, estimate in zip(ops, slowest, strict=True)])


def mark_software(ops: tuple[Op, ...], stack: Stack) -> tuple[Op, ...]:
    """Operations say what the framework's code and its libraries do with them: what the framework's kernels are said to do
    stands among the attributes of the operations that it concerns."""
    concerned = [(_MARKS.get(name, name), CONCERNS[name]) for name in stack.kernels]
    if not concerned:
        return ops
    return tuple([_mark(op, concerned) for op in ops])


def note_kernels(
    ops: tuple[Op, ...], counts: Sequence[float], device: Device, model: OpModel, stack: Stack
) -> tuple[str, ...]:
    """What a user should know about the kernels of a step: silicon that nobody measured, widths that cost time."""
    unknown = name_unknown_silicon(device)
    marked = mark_software(ops, stack)
    return (*((unknown,) if unknown else ()), *warn_alignment(marked, device, model, counts))


def _mark(op: Op, concerned: Sequence[tuple[str, Callable[[Op], bool]]]) -> Op:
    marks = {name: True for name, concerns in concerned if concerns(op)}
    return replace(op, attrs={**op.attrs, **marks}) if marks else op


def is_streamed(op: Op) -> bool:
    """Gradients of tables are sums of sorted rows, with kernels of their own."""
    return op.kind in STREAMED or (op.kind == "embedding" and op.phase != "backward")


def _is_conv(op: Op) -> bool:
    return op.kind == "conv"


def _is_ragged(op: Op) -> bool:
    return op.kind == "matmul" and row_alignment(op) < ALIGNMENT.vector_bytes


CONCERNS: Mapping[str, Callable[[Op], bool]] = {
    "turned_images": _is_conv, "grouped_gradients_on_lanes": _is_conv, "wide_tiles": _is_conv,
    "statistics_in_convolutions": lambda op: op.kind == "norm",
    "products_by_sample": lambda op: "by_sample" in op.attrs,
    "short_vectors": lambda op: DTYPE_BYTES[op.dtype] == 2.0 and is_streamed(op),
    "pads_vocabulary": lambda op: _is_ragged(op) and op.attrs["batch"] == 1,
    "pads_heads": lambda op: _is_ragged(op) and op.attrs["batch"] != 1,
}  # fmt: skip
"""By what kernels of a framework may do: the operations that it concerns."""
_MARKS = {"pads_vocabulary": "padded", "pads_heads": "padded"}


def _distinct_devices(cluster: Cluster) -> list[tuple[Device, float]]:
    seen: list[tuple[Device, float]] = []
    for group in cluster.groups:
        if (group.device, group.speed) not in seen:
            seen.append((group.device, group.speed))
    return seen
