"""What the phases of recorded operations say about the whole recording."""

from collections.abc import Iterable
from dataclasses import replace

from traincast.spec.graph import Op, Tensor


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
