"""What one optimizer step reads, writes and computes, per element, as PyTorch's multi-tensor kernels run it.

Counted from the passes of `torch.optim` (foreach): AdamW scales the parameter (1 read, 1 write), blends the first moment (2, 1),
scales the second (1, 1) and adds to it (2, 1), takes the root into a temporary (1, 1), scales that (1, 1), adds epsilon (1, 1)
and updates the parameter (3, 1): 12 reads and 8 writes. The fused kernel reads four values and writes three.
"""

import math
from dataclasses import dataclass

from traincast.errors import UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The arithmetic of one algorithm per element of a parameter."""

    states: tuple[str, ...]
    passes: int
    reads: int
    writes: int
    fused_reads: int
    fused_writes: int
    flop: int
    has_temporary: bool = True


UPDATES: dict[str, Update] = {
    "adamw": Update(states=("exp_avg", "exp_avg_sq"), passes=8, reads=12, writes=8, fused_reads=4, fused_writes=3, flop=14),
    "adam": Update(states=("exp_avg", "exp_avg_sq"), passes=7, reads=11, writes=7, fused_reads=4, fused_writes=3, flop=13),
    "lamb": Update(states=("exp_avg", "exp_avg_sq"), passes=11, reads=16, writes=9, fused_reads=7, fused_writes=4, flop=20),
    "lion": Update(states=("exp_avg",), passes=5, reads=8, writes=5, fused_reads=3, fused_writes=2, flop=9),
    "sgd": Update(
        states=(), passes=1, reads=2, writes=1, fused_reads=2, fused_writes=1, flop=2, has_temporary=False
    ),
    "momentum": Update(
        states=("momentum_buffer",), passes=3, reads=5, writes=3, fused_reads=3, fused_writes=2, flop=5, has_temporary=False
    ),
    "adagrad": Update(states=("sum",), passes=5, reads=8, writes=5, fused_reads=3, fused_writes=2, flop=9),
    "rmsprop": Update(states=("square_avg",), passes=5, reads=8, writes=5, fused_reads=3, fused_writes=2, flop=9),
}  # fmt: skip
"""One line per algorithm; `momentum` is SGD with momentum."""

IMPLEMENTATIONS = ("foreach", "fused")

# Limits of one multi-tensor launch in PyTorch: 320 blocks of 65536 elements, and about 50 tensors for two to three lists.
_ELEMENTS_PER_LAUNCH = 320 * 65536
_TENSORS_PER_LAUNCH = 50


def find_update(algorithm: str) -> Update:
    update = UPDATES.get(algorithm.lower())
    if update is None:
        raise UnknownName("optimizer", algorithm, UPDATES)
    return update


def num_launches(*, numel: int, num_tensors: int) -> int:
    """Kernels of one pass over all tensors."""
    return max(1, math.ceil(num_tensors / _TENSORS_PER_LAUNCH), math.ceil(numel / _ELEMENTS_PER_LAUNCH))
