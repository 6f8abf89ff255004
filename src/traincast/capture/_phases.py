"""What the phases of recorded operations say about the whole recording."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from traincast.noun import noun
from traincast.spec import Op, Tensor


def tell_mode(ops: Iterable[Op]) -> str:
    phases = {op.phase for op in ops}
    if "backward" not in phases:
        return "inference"
    return "training_step" if "optimizer" in phases else "forward_backward"


def mark_kept(tensors: Iterable[Tensor], ops: Iterable[Op]) -> tuple[Tensor, ...]:
    """Temporaries that a forward pass writes and a backward pass reads are activations."""
    kept = list(tensors)
    written: set[int] = set()
    for op in ops:
        if op.phase in ("forward", "recompute"):
            written.update(op.writes)
        elif op.phase == "backward":
            for index in written.intersection(op.reads):
                if kept[index].role == "temporary":
                    kept[index] = replace(kept[index], role="activation")
    return tuple(kept)


@noun
class Leaf:
    """An array that a training step takes: its tensor, and the argument and the path in it by which it was given."""

    tensor: int
    argument: int
    path: tuple[str, ...]
    is_returned: bool
    """The step returns an array of its shape and dtype."""
    is_passed_on: bool
    """The step returns the very array."""


def find_roles(leaves: Sequence[Leaf], tensors: Sequence[Tensor], ops: Iterable[Op]) -> dict[int, str]:
    """Parameters, moments, buffers and data by how the phases use them; empty where nothing is updated.

    The passes and the update read a parameter. The update alone reads a moment. What shares an argument with parameters and is
    neither is a frozen weight if it is handed on unchanged, else a buffer.
    """
    read: dict[str, set[int]] = defaultdict(set)
    for op in ops:
        read["update" if op.phase == "optimizer" else "pass"].update(op.reads)
    roles: dict[int, str] = {}
    for leaf in leaves:
        in_pass, in_update = leaf.tensor in read["pass"], leaf.tensor in read["update"]
        if in_update and leaf.is_returned and _is_float(tensors[leaf.tensor]):
            roles[leaf.tensor] = "parameter" if in_pass else "optimizer_state"
    if "parameter" not in roles.values():
        return {}
    owners = {leaf.argument for leaf in leaves if roles.get(leaf.tensor) == "parameter"}
    for leaf in leaves:
        if leaf.tensor not in roles:
            is_kept = leaf.argument in owners or (leaf.is_returned and _is_float(tensors[leaf.tensor]))
            is_frozen = leaf.argument in owners and leaf.is_passed_on and _is_float(tensors[leaf.tensor])
            used = leaf.tensor in read["pass"]
            roles[leaf.tensor] = "parameter" if is_frozen and used else "buffer" if is_kept else "input"
    return roles


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype.startswith(("fp", "bf", "complex")) and bool(tensor.shape)


def name_leaves(leaves: Sequence[Leaf], tensors: Sequence[Tensor]) -> dict[int, str]:
    """Names by path; a moment is named after the parameter whose path its own ends in: `layers.0.kernel.mu`."""
    names: dict[int, str] = {}
    owners: dict[tuple[tuple[str, ...], tuple[int, ...]], str] = {}
    for leaf in leaves:
        if tensors[leaf.tensor].role == "parameter":
            names[leaf.tensor] = ".".join(leaf.path)
            for start in range(len(leaf.path)):
                owners.setdefault((leaf.path[start:], tensors[leaf.tensor].shape), names[leaf.tensor])
    for leaf in leaves:
        if leaf.tensor in names:
            continue
        names[leaf.tensor] = ".".join(leaf.path)
        if tensors[leaf.tensor].role == "optimizer_state":
            for start in range(len(leaf.path)):
                owner = owners.get((leaf.path[start:], tensors[leaf.tensor].shape))
                if owner is not None:
                    names[leaf.tensor] = f"{owner}.{'_'.join(leaf.path[:start]) or 'state'}"
                    break
    return names


def mark_gradients(
    tensors: Iterable[Tensor], ops: Iterable[Op], stacked: Mapping[int, int] | None = None
) -> tuple[Tensor, ...]:
    """What a backward pass writes and the update reads, as large as a parameter, is a gradient.

    `stacked` says of which tensors there is one per round of a loop.
    """
    stacked = stacked or {}
    marked = list(tensors)
    sizes = {tensor.numel for tensor in marked if tensor.role == "parameter"}
    written: set[int] = set()
    for op in ops:
        if op.phase == "backward":
            written.update(op.writes)
        elif op.phase == "optimizer":
            for index in written.intersection(op.reads):
                count = stacked.get(index, 1)
                if marked[index].role in ("temporary", "activation") and marked[index].numel * count in sizes:
                    marked[index] = replace(marked[index], role="gradient", copies=count)
    return tuple(marked)
