"""Context parallelism: every rank holds a part of the sequence; for attention it gets keys and values of the others, or all
tokens of some heads."""

import math
from collections.abc import Iterator
from dataclasses import replace

from traincast.errors import IllegalPlan
from traincast.lower._rewrite import SIZES, map_tasks, resize_matmul, scale_op
from traincast.spec import Collective, Op, Parallelism, Stage, Task

_TOKENS = {**SIZES, "embedding": ("rows",), "attention": ("q_len",)}
_ALONG_TOKENS = ("activation", "temporary", "input")


def split_context(stage: Stage, plan: Parallelism) -> Stage:
    """All work on activations shrinks; weights and the optimizer stay whole."""
    if plan.context == 1:
        return stage
    ranks = plan.context
    whole = weight_like(stage)
    split = frozenset(
        place for place, tensor in enumerate(stage.tensors) if tensor.role in _ALONG_TOKENS and place not in whole
    )

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if not isinstance(task, Op) or task.phase == "optimizer" or split.isdisjoint((*task.reads, *task.writes)):
            yield task
            return
        if task.kind == "attention" and plan.context_method == "ulysses":
            yield from _swap_heads(task, plan)
            return
        if task.kind == "attention":
            yield from _exchange(task, plan)
            task = _balance_mask(task)
        if task.kind == "matmul":
            yield _shrink_matmul(task, stage, whole, ranks)
            return
        yield scale_op(task, 1 / ranks, attrs=_TOKENS.get(task.kind, ()))

    tensors = tuple(
        replace(tensor, shape=_shrink_shape(tensor.shape, ranks)) if place in split and tensor.numel else tensor
        for place, tensor in enumerate(stage.tensors)
    )
    return replace(map_tasks(stage, rewrite), tensors=tensors)


def _shrink_shape(shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """Along one dimension but the last, which is a width, where one divides; else only the number of elements counts."""
    for place, size in enumerate(shape[:-1]):
        if size % ranks == 0:
            return (*shape[:place], size // ranks, *shape[place + 1 :])
    return (max(1, math.prod(shape) // ranks),)


def weight_like(stage: Stage) -> frozenset[int]:
    """Tensors that are as large as a weight, not as the tokens: copies of weights in another format, and gradients before they
    are cast or added to a sum of gradients."""
    found: set[int] = set()
    for task in (task for task in stage.ops() if task.kind == "copy" and task.reads):
        if all(stage.tensors[t].role == "parameter" or t in found for t in task.reads):
            found.update(t for t in task.writes if stage.tensors[t].role in _ALONG_TOKENS)
    return _with_gradients(stage, found)


def _with_gradients(stage: Stage, found: set[int]) -> frozenset[int]:
    for task in reversed(stage.tasks):
        if isinstance(task, Op) and task.phase == "backward" and task.kind in ("copy", "elementwise"):
            sizes = {stage.tensors[t].numel for t in task.writes if stage.tensors[t].role == "gradient" or t in found}
            read = (t for t in task.reads if stage.tensors[t].role in _ALONG_TOKENS)
            found.update(t for t in read if stage.tensors[t].numel in sizes)
    return frozenset(found)


def _balance_mask(op: Op) -> Op:
    """A causal mask leaves the first queries little to do, so frameworks give every rank an early and a late chunk of the
    sequence: each query of a rank then sees half of the keys on average, as in the whole sequence."""
    if not op.attrs.get("causal"):
        return op
    seen = min(float(op.attrs.get("window") or op.attrs["kv_len"]), (float(op.attrs["kv_len"]) + 1) / 2)
    return replace(op, attrs={**op.attrs, "kv_len": max(1, round(seen)), "causal": False})


def _exchange(op: Op, plan: Parallelism) -> Iterator[Collective]:
    """Keys and values of the whole sequence pass every rank in the forward pass and again in the backward pass, where their
    gradients go with them (Liu et al. 2023). The tensor axis has divided the heads already; it copies keys and values of which
    there are fewer than ranks. A ring passes them on one chunk at a time beside the attention to the chunk before."""
    heads = max(1.0, int(op.attrs["kv_heads"]) / plan.tensor)
    width = 2 * int(op.attrs["batch"]) * heads * int(op.attrs["kv_len"]) * int(op.attrs["head_dim"])
    size = width * (2 if op.dtype in ("fp16", "bf16", "fp8") else 4)
    yield Collective(
        kind="all_gather", num_bytes=float(size) * (2 if op.phase == "backward" else 1), axis="context",
        num_ranks=plan.context, stride=plan.stride("context"), phase=op.phase, layer=op.layer, chunked=plan.async_context,
    )  # fmt: skip


def _swap_heads(op: Op, plan: Parallelism) -> Iterator[Task]:
    """Attention to all tokens with a rank's share of the heads (Jacobs et al. 2023). Before it all-to-alls swap tokens for heads
    of queries, keys and values, behind it they swap the result back; the backward pass does both to gradients. Keys and values
    of which a tensor rank has fewer heads than there are context ranks are copied first."""
    ranks = plan.context
    heads, kv_heads = (max(1.0, int(op.attrs[name]) / plan.tensor) for name in ("heads", "kv_heads"))
    if heads % ranks:
        raise IllegalPlan(
            f"context_method = 'ulysses' deals {heads:g} attention heads to context = {ranks} ranks; it must divide them, or "
            f"use 'ring'"
        )
    one_head = int(op.attrs["batch"]) * int(op.attrs["kv_len"]) / ranks * int(op.attrs["head_dim"])
    size = one_head * (2 if op.dtype in ("fp16", "bf16", "fp8") else 4)

    def swap(num_heads: float) -> Collective:
        return Collective(
            kind="all_to_all", num_bytes=num_heads * size, axis="context", num_ranks=ranks, stride=plan.stride("context"),
            phase=op.phase, layer=op.layer,
        )  # fmt: skip

    before, after = heads + 2 * max(kv_heads, ranks), heads
    yield swap(after if op.phase == "backward" else before)
    shared = {name: max(1, int(op.attrs[name]) // ranks) for name in ("heads", "kv_heads")}
    yield replace(scale_op(op, 1 / ranks), attrs={**op.attrs, **shared})
    yield swap(before if op.phase == "backward" else after)


def _shrink_matmul(op: Op, stage: Stage, whole: frozenset[int], ranks: int) -> Op:
    """Tokens are the rows of a product, or what a weight gradient sums over."""
    gradient = any(stage.tensors[tensor].role == "gradient" or tensor in whole for tensor in op.writes)
    gradient = gradient or (op.attrs["layout"] == "nt" and int(op.attrs["batch"]) == 1 and op.phase == "backward")
    tokens = "k" if gradient else "m"
    return resize_matmul(op, 1 / ranks, **{tokens: max(1, int(op.attrs[tokens]) // ranks)})
