"""torch.compile finds attention written out in products and a softmax, and runs it as one kernel, forward and backward."""

from collections.abc import Sequence
from dataclasses import replace

from traincast.lower._rewrite import map_tasks
from traincast.spec import Op, Stage, Task, segments

BETWEEN = ("elementwise", "copy", "dropout", "softmax")
UNMATCHED = ("where", "masked_fill")
"""Masks that the compiler's patterns do not hold (GPT-2 as Hugging Face writes it)."""
BACKWARD_FLOP = 2.5
"""Five products instead of two (Dao et al. 2022)."""


def find_attention(stage: Stage) -> Stage:
    """The stage with every written-out attention as one op. Its scores are neither written nor kept."""
    found: dict[int, tuple[list[int], Op]] = {}
    for part in segments(stage.repeats, num_tasks=len(stage.tasks)):
        index = part.start
        while index < part.stop:
            chain = _forward_chain(stage, index, part.stop) or _backward_chain(stage, index, part.stop)
            if chain:
                found[chain[-1]] = (chain, _merge(stage, chain))
                index = chain[-1]
            index += 1
    gone = {index for chain, _ in found.values() for index in chain}
    return map_tasks(stage, lambda index, task: _replace(index, task, found, gone)) if found else stage


def _replace(index: int, task: Task, found: dict[int, tuple[list[int], Op]], gone: set[int]) -> list[Task]:
    if index in found:
        return [found[index][1]]
    return [] if index in gone else [task]


def _is_product(task: Task) -> bool:
    return isinstance(task, Op) and task.kind == "matmul" and int(task.attrs["batch"]) > 1


def _between(stage: Stage, start: int, stop: int) -> int | None:
    """The end of a run of pointwise ops that holds one softmax; None where the run holds none, or a mask unknown to us."""
    softmaxes = 0
    index = start
    while index < stop and isinstance(op := stage.tasks[index], Op) and op.kind in BETWEEN:
        if str(op.attrs.get("function", "")) in UNMATCHED:
            return None
        softmaxes += op.kind == "softmax"
        index += 1
    return index if softmaxes == 1 else None


def _forward_chain(stage: Stage, start: int, stop: int) -> list[int]:
    """Query-key product, scale, mask, softmax, dropout, value product."""
    first = stage.tasks[start]
    if not (_is_product(first) and first.phase != "backward"):
        return []
    end = _between(stage, start + 1, stop)
    if end is None or end >= stop or not _is_product(stage.tasks[end]) or not _linked(stage, end - 1, end):
        return []
    return list(range(start, end + 1))


def _backward_chain(stage: Stage, start: int, stop: int) -> list[int]:
    """Two products, softmax and what surrounds it, two products."""
    if not (start + 1 < stop and stage.tasks[start].phase == "backward"):
        return []
    if not (_is_product(stage.tasks[start]) and _is_product(stage.tasks[start + 1])):
        return []
    end = _between(stage, start + 2, stop)
    if end is None or end + 1 >= stop or not (_is_product(stage.tasks[end]) and _is_product(stage.tasks[end + 1])):
        return []
    return list(range(start, end + 2)) if _linked(stage, end - 1, end) else []


def _linked(stage: Stage, before: int, after: int) -> bool:
    one, other = stage.tasks[before], stage.tasks[after]
    return isinstance(one, Op) and isinstance(other, Op) and any(tensor in other.reads for tensor in one.writes)


def _merge(stage: Stage, chain: Sequence[int]) -> Op:
    ops = [op for index in chain if isinstance(op := stage.tasks[index], Op)]
    products = [op for op in ops if op.kind == "matmul"]
    backward = ops[0].phase == "backward"
    widths = sorted(int(products[-1].attrs[name]) for name in ("m", "n", "k"))
    batch, head_dim, length, other = int(products[-1].attrs["batch"]), *widths
    results = products if backward else products[-1:]
    reads, writes = _outer_tensors(stage, ops, results, score_numel=batch * length * other)
    flop = 4.0 * batch * length * other * head_dim
    return replace(
        products[0],
        name="fused.attention_backward" if backward else "fused.attention",
        kind="attention",
        flop=flop * (BACKWARD_FLOP if backward else 1.0),
        bytes_read=sum(stage.tensors[t].num_bytes for t in reads),
        bytes_written=sum(stage.tensors[t].num_bytes for t in writes),
        reads=reads,
        writes=writes,
        attrs={
            "batch": 1, "heads": batch, "kv_heads": batch, "q_len": length, "kv_len": other, "head_dim": head_dim,
            "causal": False,
        },
        num_kernels=2 if backward else 1,
        num_calls=1,
    )  # fmt: skip


def _outer_tensors(
    stage: Stage, ops: Sequence[Op], results: Sequence[Op], *, score_numel: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the one kernel reads and writes: neither what only its parts exchange nor anything as large as the scores."""
    made = {tensor for op in ops for tensor in op.writes}
    score_like = {numel for t in made if (numel := stage.tensors[t].numel) >= score_numel}
    kept = {tensor for op in results for tensor in op.writes}
    reads = (t for op in ops for t in op.reads if t not in made and stage.tensors[t].numel not in score_like)
    writes = (t for op in ops for t in op.writes if t in kept and stage.tensors[t].numel not in score_like)
    return tuple(dict.fromkeys(reads)), tuple(dict.fromkeys(writes))
