"""Functions that an accelerator runs as one fast kernel, and a CPU as a loop of small operations, recorded as that kernel.

A kernel is found by the name of the function that falls back to the loop. It does the arithmetic of the paper that describes it,
and touches its inputs and outputs only.
"""

import contextlib
import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from traincast.capture import _fused as fused
from traincast.noun import noun

CHOICES = ("fast", "plain")

_LIBRARY = torch.library.Library("traincast_kernels", "DEF")
_LIBRARY.define("forward(Tensor[] inputs, int[] shape, ScalarType dtype, str name, float flop, int kept) -> Tensor[]")
_LIBRARY.define("backward(Tensor gradient, Tensor[] inputs, Tensor[] kept, str name, float flop) -> Tensor[]")
_DENSITY_POINTS = 512


def _forward(inputs: list[Any], shape: list[int], dtype: Any, name: str, flop: float, kept: int) -> list[Any]:
    return [inputs[0].new_empty(shape, dtype=dtype), inputs[0].new_empty(kept, dtype=torch.float32)]


def _backward(gradient: Any, inputs: list[Any], kept: list[Any], name: str, flop: float) -> list[Any]:
    return [torch.empty_like(tensor) for tensor in inputs]


_LIBRARY.impl("forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("backward", _backward, "CompositeExplicitAutograd")


class _Kernel(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, name: str, shape: Any, dtype: Any, flop: float, kept: int, *inputs: Any) -> Any:
        fused.depth[0] += 1
        try:
            output, saved = torch.ops.traincast_kernels.forward(list(inputs), list(shape), dtype, name, flop, kept)
        finally:
            fused.depth[0] -= 1
        ctx.save_for_backward(saved, *inputs)
        ctx.name, ctx.flop = name, flop
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        saved, *inputs = ctx.saved_tensors
        # Both factors of every product need a gradient.
        results = torch.ops.traincast_kernels.backward(gradient, inputs, [saved], ctx.name, 2.0 * ctx.flop)
        floats = [r if tensor.dtype.is_floating_point else None for r, tensor in zip(results, inputs, strict=True)]
        return (None, None, None, None, None, *floats)


def run_kernel(name: str, inputs: list[Any], *, shape: Any, dtype: Any, flop: float, kept: int = 0) -> Any:
    """One operation over all inputs; `kept` numbers of fp32 are saved for the backward pass beside them."""
    return _Kernel.apply(name, tuple(shape), dtype, float(flop), int(kept), *inputs)


@noun
class Kernel:
    """A fast kernel: the library that has it, which argument its output is like, and its arithmetic."""

    library: str
    like: str
    flop: Callable[[Mapping[str, Any]], float]
    state: Callable[[Mapping[str, Any]], Any] | None = None
    """The last state, for functions that return it beside the output."""
    always_state: bool = False


def _scan_flop(a: Mapping[str, Any]) -> float:
    """Gu and Dao (2023), section 3.3: nine operations per state and position."""
    return 9.0 * int(a["hidden_states"].numel()) * int(a["A"].shape[-1])


def _chunk_scan_flop(a: Mapping[str, Any]) -> float:
    """Dao and Gu (2024), section 6: in each chunk two products over pairs of positions, and two with the states."""
    heads_by_places, width, states = (
        a["hidden_states"].shape[:-1].numel(),
        a["hidden_states"].shape[-1],
        a["B"].shape[-1],
    )
    return float(2.0 * heads_by_places * (int(a["chunk_size"]) * (states + width) + 2 * states * width))


def _conv_flop(a: Mapping[str, Any]) -> float:
    return 2.0 * int(a["hidden_states"].numel()) * int(a["weight"].shape[-1])


def _delta_flop(a: Mapping[str, Any]) -> float:
    """Yang et al. (2024): per chunk the products of queries, keys and values with each other and with the state."""
    value, key = a["value"], a["key"]
    heads, width, k_width = int(value.shape[-2]), int(value.shape[-1]), int(key.shape[-1])
    positions = int(value.numel()) / (heads * width)
    chunk = int(a.get("chunk_size") or 64)
    return positions * heads * (6.0 * k_width * width + 2.0 * chunk * (2 * k_width + 2 * width))


def _delta_state(a: Mapping[str, Any]) -> Any:
    if not a.get("output_final_state"):
        return None
    value, key = a["value"], a["key"]
    return value.new_zeros(value.shape[0], value.shape[-2], key.shape[-1], value.shape[-1])


KERNELS: dict[str, Kernel] = {
    "mamba_selective_scan": Kernel(
        library="mamba-ssm", like="hidden_states", flop=_scan_flop,
        state=lambda a: a["hidden_states"].new_zeros(*a["hidden_states"].shape[:2], a["A"].shape[-1])
        if a.get("return_last_state") else None,
    ),
    "mamba2_chunk_scan": Kernel(
        library="mamba-ssm", like="hidden_states", flop=_chunk_scan_flop,
        state=lambda a: a["hidden_states"].new_zeros(a["B"].shape[0], *a["hidden_states"].shape[2:], a["B"].shape[-1])
        if a.get("return_final_states") else None,
    ),
    "causal_conv1d_fn": Kernel(library="causal-conv1d", like="hidden_states", flop=_conv_flop),
    "rwkv_linear_attention": Kernel(
        library="rwkv", like="key", flop=lambda a: 30.0 * a["key"].numel(), state=lambda a: a.get("state"), always_state=True
    ),
    **dict.fromkeys(
        ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention"),
        Kernel(library="flash-linear-attention", like="value", flop=_delta_flop, state=_delta_state, always_state=True),
    ),
}  # fmt: skip
"""Functions that fall back to a loop, by name; the module they live in does not matter."""


def replace_kernels(patch: Callable[[Any, str, Any], None], assume: Callable[[str], None]) -> None:
    """Put the kernels in the place of their loops, in every module of a model zoo that has one."""
    for module in list(sys.modules.values()):
        if not isinstance(module, types.ModuleType) or ".models." not in module.__name__:
            continue
        for name, kernel in KERNELS.items():
            found = vars(module).get(name)
            if found is not None and callable(found) and not hasattr(found, "_traincast"):
                patch(module, name, _standing_in(name, kernel, found, assume))


def _standing_in(name: str, kernel: Kernel, reference: Any, assume: Callable[[str], None]) -> Any:
    signature = inspect.signature(reference)

    @functools.wraps(reference)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        like = given[kernel.like]
        assume(f"{name} is counted as the kernel of {kernel.library}; --kernels plain records its loop instead")
        inputs = [value for value in given.values() if isinstance(value, torch.Tensor)]
        output = run_kernel(kernel.library, inputs, shape=like.shape, dtype=like.dtype, flop=kernel.flop(given))
        state = kernel.state(given) if kernel.state is not None else None
        return (output, state) if kernel.always_state or state is not None else output

    run._traincast = True  # type: ignore[attr-defined]
    return run


def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: Any = "mean",
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """The forward-backward algorithm of Graves et al. (2006): three terms per position of the widened target."""
    length, batch = int(log_probs.shape[0]), int(log_probs.shape[1]) if log_probs.dim() == 3 else 1
    width = int(targets.shape[-1]) if targets.dim() == 2 else math.ceil(targets.numel() / batch)
    table = length * batch * (2 * width + 1)
    inputs = [log_probs, targets] if isinstance(targets, torch.Tensor) else [log_probs]
    losses = run_kernel("ctc_loss", inputs, shape=(batch,), dtype=log_probs.dtype, flop=12.0 * table, kept=table)
    if reduction in ("none", 0):
        return losses
    return losses.sum() if reduction in ("sum", 2) else losses.mean()


def flex_attention(
    query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, scale: Any = None,
    enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None, *, return_aux: Any = None,
) -> Any:  # fmt: skip
    """Fused attention over the part of the square that the mask keeps."""
    density = mask_density(block_mask, int(query.shape[-2]), int(key.shape[-2]))
    output = fused.attention(query, key, value, density=density)
    logsumexp = query.new_zeros(query.shape[:-1], dtype=torch.float32) if return_lse or return_aux is not None else None
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return output, AuxOutput(lse=logsumexp)
    return (output, logsumexp) if return_lse else output


def mask_density(block_mask: Any, q_len: int, kv_len: int) -> float:
    """The share of pairs that a mask keeps, from a grid of positions."""
    if block_mask is None or getattr(block_mask, "mask_mod", None) is None:
        return 1.0
    with _disable_current_modes(), torch.no_grad():
        try:
            rows = torch.linspace(0, q_len - 1, min(q_len, _DENSITY_POINTS)).long()
            columns = torch.linspace(0, kv_len - 1, min(kv_len, _DENSITY_POINTS)).long()
            zero = torch.zeros((), dtype=torch.int64)
            kept = block_mask.mask_mod(zero, zero, rows[:, None], columns[None, :])
            return float(kept.expand(len(rows), len(columns)).double().mean())
        except Exception:
            # A mask over data that is not known here; half of the square is what most masks keep.
            return 0.5


def _trampoline(*args: Any, **kwargs: Any) -> Any:
    from traincast.capture._kernels import flex_attention as run

    return run(*args, **kwargs)


@contextlib.contextmanager
def replaced_flex_attention() -> Iterator[None]:
    """Whoever imported the function by name holds the same object, so its body is exchanged."""
    module = sys.modules.get("torch.nn.attention.flex_attention")
    target = getattr(module, "flex_attention", None)
    if target is None or not isinstance(target, types.FunctionType) or target.__code__.co_freevars:
        yield
        return
    code, defaults, keywords = target.__code__, target.__defaults__, target.__kwdefaults__
    target.__code__, target.__defaults__, target.__kwdefaults__ = _trampoline.__code__, None, None
    try:
        yield
    finally:
        target.__code__, target.__defaults__, target.__kwdefaults__ = code, defaults, keywords


def replace_losses(patch: Callable[[Any, str, Any], None]) -> None:
    patch(F, "ctc_loss", ctc_loss)
    patch(torch, "ctc_loss", ctc_loss)
