"""Context parallelism: every rank holds a part of the sequence; attention gathers the keys and values of the others."""

from collections.abc import Iterator
from dataclasses import replace

from traincast.lower._rewrite import map_tasks, scale_op
from traincast.spec import Collective, Op, Parallelism, Stage, Task

_TOKENS: dict[str, tuple[str, ...]] = {
    "elementwise": ("numel",), "dropout": ("numel",), "copy": ("numel",), "index": ("numel",), "random": ("numel",),
    "softmax": ("rows",), "norm": ("rows",), "reduce": ("rows",), "embedding": ("rows",), "attention": ("q_len",),
}  # fmt: skip


_ALONG_TOKENS = ("activation", "temporary", "input")


def split_context(stage: Stage, plan: Parallelism) -> Stage:
    """All work on activations shrinks; weights and the optimizer stay whole."""
    if plan.context == 1:
        return stage
    ranks = plan.context

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if not isinstance(task, Op) or task.phase == "optimizer" or not _touches_activations(task, stage):
            yield task
            return
        if task.kind == "attention":
            yield from _exchange(task, plan)
        if task.kind == "matmul":
            yield _shrink_matmul(task, stage, ranks)
            return
        yield scale_op(task, 1 / ranks, attrs=_TOKENS.get(task.kind, ()))

    tensors = tuple(
        replace(tensor, shape=(max(1, tensor.numel // ranks),))
        if tensor.role in _ALONG_TOKENS and tensor.numel
        else tensor
        for tensor in stage.tensors
    )
    return replace(map_tasks(stage, rewrite), tensors=tensors)


def _touches_activations(op: Op, stage: Stage) -> bool:
    return any(stage.tensors[tensor].role in _ALONG_TOKENS for tensor in (*op.reads, *op.writes))


def _exchange(op: Op, plan: Parallelism) -> Iterator[Collective]:
    """Keys and values of the whole sequence pass every rank once, and their gradients once back (Liu et al. 2023)."""
    width = 2 * int(op.attrs["batch"]) * int(op.attrs["kv_heads"]) * int(op.attrs["kv_len"]) * int(op.attrs["head_dim"])
    size = width * (2 if op.dtype in ("fp16", "bf16", "fp8") else 4)
    yield Collective(
        kind="all_gather" if op.phase != "backward" else "reduce_scatter",
        num_bytes=float(size),
        axis="context",
        num_ranks=plan.context,
        stride=plan.stride("context"),
        phase=op.phase,
        layer=op.layer,
    )


def _shrink_matmul(op: Op, stage: Stage, ranks: int) -> Op:
    """Tokens are the rows of a product, or what a weight gradient sums over."""
    gradient = any(stage.tensors[tensor].role == "gradient" for tensor in op.writes)
    tokens = (
        "k"
        if gradient or (op.attrs["layout"] == "nt" and int(op.attrs["batch"]) == 1 and op.phase == "backward")
        else "m"
    )
    batch, m, n, k = (int(op.attrs[name]) for name in ("batch", "m", "n", "k"))
    size = op.num_bytes / max(1.0, batch * (m * k + k * n + m * n))
    m2, k2 = (max(1, m // ranks), k) if tokens == "m" else (m, max(1, k // ranks))
    return replace(
        op,
        flop=None if op.flop is None else op.flop / ranks,
        bytes_read=size * batch * (m2 * k2 + k2 * n),
        bytes_written=size * batch * m2 * n,
        attrs={**op.attrs, "m": m2, "k": k2},
    )
