"""What one optimizer step reads, writes and computes, per element, as PyTorch's multi-tensor kernels run it.

Counted from the passes of `torch.optim` (foreach): AdamW scales the parameter (1 read, 1 write), blends the first moment (2, 1),
scales the second (1, 1) and adds to it (2, 1), takes the root into a temporary (1, 1), scales that (1, 1), adds epsilon (1, 1)
and updates the parameter (3, 1): 12 reads and 8 writes. The fused kernel reads four values and writes three.
"""

import math

from traincast.noun import noun


@noun
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
    is_fused: bool = False
    """Exists as one kernel per tensor only, whose traffic follows from the sizes of its states."""
    block: int = 0
    """Elements per block of a quantised state, each with one fp32 scale; 0: states are as wide as the parameter."""
    min_quantised: int = 4096
    history: int = 0
    """Past steps that are kept whole."""

    def state_shapes(self, shape: tuple[int, ...], dtype: str) -> list[tuple[str, tuple[int, ...], str]]:
        """(name, shape, dtype) of everything that is kept for a parameter."""
        numel = math.prod(shape)
        if self.block and numel >= self.min_quantised:
            scales = (math.ceil(numel / self.block),)
            return [
                entry
                for state in self.states
                for entry in ((state, shape, "uint8"), (f"{state}_scale", scales, "fp32"))
            ]
        if self.block:
            return [(state, shape, "fp32") for state in self.states]
        return [(state, (self.history, numel) if self.history else shape, dtype) for state in self.states]


UPDATES: dict[str, Update] = {
    "adamw": Update(states=("exp_avg", "exp_avg_sq"), passes=8, reads=12, writes=8, fused_reads=4, fused_writes=3, flop=14),
    "adam": Update(states=("exp_avg", "exp_avg_sq"), passes=7, reads=11, writes=7, fused_reads=4, fused_writes=3, flop=13),
    "lamb": Update(states=("exp_avg", "exp_avg_sq"), passes=11, reads=16, writes=9, fused_reads=7, fused_writes=4, flop=20),
    "lion": Update(states=("exp_avg",), passes=5, reads=8, writes=5, fused_reads=3, fused_writes=2, flop=9),
    "sgd": Update(
        states=(), passes=1, reads=2, writes=1, fused_reads=2, fused_writes=1, flop=2, has_temporary=False
    ),
    "momentum": Update(
        states=("momentum_buffer",), passes=3, reads=5, writes=3, fused_reads=3, fused_writes=2, flop=4, has_temporary=False
    ),
    "adagrad": Update(states=("sum",), passes=5, reads=8, writes=5, fused_reads=3, fused_writes=2, flop=10),
    "rmsprop": Update(states=("square_avg",), passes=5, reads=8, writes=5, fused_reads=3, fused_writes=2, flop=10),
    # Dettmers et al. 2022: moments in blocks of 256 with one scale each; small parameters keep fp32.
    **{
        name: Update(
            states=("exp_avg", "exp_avg_sq"), passes=1, reads=4, writes=3, fused_reads=4, fused_writes=3, flop=20,
            has_temporary=False, is_fused=True, block=256,
        )
        for name in ("adam8bit", "adamw8bit", "pagedadam8bit", "pagedadamw8bit")
    },
    "lion8bit": Update(
        states=("exp_avg",), passes=1, reads=3, writes=2, fused_reads=3, fused_writes=2, flop=14, has_temporary=False,
        is_fused=True, block=256,
    ),
    # The two-loop recursion of Nocedal (1980) reads both histories twice.
    "lbfgs": Update(
        states=("old_directions", "old_steps"), passes=400, reads=800, writes=200, fused_reads=800, fused_writes=200, flop=800,
        history=100,
    ),
}  # fmt: skip
"""One line per algorithm; `momentum` is SGD with momentum."""

IMPLEMENTATIONS = ("foreach", "fused")

# Limits of one multi-tensor launch in PyTorch: 320 blocks of 65536 elements, and about 50 tensors for two to three lists.
_ELEMENTS_PER_LAUNCH = 320 * 65536
_TENSORS_PER_LAUNCH = 50


def num_launches(*, numel: int, num_tensors: int) -> int:
    """Kernels of one pass over all tensors."""
    return max(1, math.ceil(num_tensors / _TENSORS_PER_LAUNCH), math.ceil(numel / _ELEMENTS_PER_LAUNCH))
