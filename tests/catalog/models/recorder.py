"""Records what eager PyTorch really does in one step, on fake tensors: the ground truth of the builders."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from traincast.spec._graph import Graph, segments

# Memory without a kernel, and values the host makes.
_FREE = {
    "aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default", "aten.empty_strided.default",
    "aten.detach.default", "aten.alias.default", "aten.lift_fresh.default", "aten.arange.default", "aten.arange.start",
    "aten._local_scalar_dense.default", "aten.is_same_size.default", "aten.scalar_tensor.default", "aten.ones_like.default",
}  # fmt: skip


@dataclass
class Record:
    """Totals of one step; kernels are calls of aten operators that are not views."""

    names: Counter[str] = field(default_factory=Counter)
    flop: float = 0.0
    num_bytes: float = 0.0
    saved_bytes: float = 0.0
    num_parameters: int = 0

    @property
    def num_kernels(self) -> int:
        """The backward of a convolution is one call for two kernels."""
        return sum(self.names.values()) + self.names["aten.convolution_backward.default"]


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.record = Record()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func._overloadpacket in flop_registry:
            self.record.flop += flop_registry[func._overloadpacket](*args, **kwargs, out_val=out)
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        storages = {leaf.untyped_storage()._cdata for leaf in inputs}
        is_view = all(leaf.untyped_storage()._cdata in storages for leaf in outputs) and not func._schema.is_mutable
        if not outputs or is_view or str(func) in _FREE:
            return out
        self.record.names[str(func)] += 1
        self.record.num_bytes += sum(leaf.numel() * leaf.element_size() for leaf in (*inputs, *outputs))
        return out


def record_step(build: Callable[[], Any], run: Callable[[Any], Any]) -> Record:
    """`build()` makes a model and `run(model)` its loss; forward and backward happen on fake tensors."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = build()
        model.train()
        held: dict[int, int] = {}
        parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

        def keep(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            if storage._cdata not in parameters:
                held[storage._cdata] = storage.nbytes()
            return tensor

        recorder = Recorder()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), recorder:
            loss = run(model)
        recorder.record.saved_bytes = float(sum(held.values()))
        with recorder:
            loss.backward()
        recorder.record.num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return recorder.record


def saved_bytes(graph: Graph) -> float:
    """What the forward pass of a graph leaves for its backward pass, every repetition counted."""
    births: dict[int, dict[int, int]] = {}
    for number, part in enumerate(segments(graph.repeats, num_tasks=len(graph.ops))):
        for op in graph.ops[part.start : part.stop]:
            for tensor in op.writes:
                if op.phase == "forward" and tensor not in op.reads:
                    births.setdefault(tensor, {})[number] = part.count
    return sum(
        graph.tensors[tensor].num_bytes * sum(counts.values())
        for tensor, counts in births.items()
        if graph.tensors[tensor].role == "activation"
    )


def product_flop(graph: Graph) -> float:
    """Multiply-adds of products only, as PyTorch counts."""
    kinds = ("matmul", "conv", "attention", "rnn")
    return sum(
        (op.flop or 0.0) * count for op, count in zip(graph.ops, graph.counts(), strict=True) if op.kind in kinds
    )
