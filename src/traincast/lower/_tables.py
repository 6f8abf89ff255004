"""Embedding tables with sparse gradients: spread over the replicas, which exchange looked-up rows instead of gradients."""

import math
from collections.abc import Iterator
from dataclasses import replace

from traincast.errors import IllegalPlan
from traincast.lower._rewrite import is_table, map_tasks, reads_host, scale_op
from traincast.spec import HOST, Collective, Op, Parallelism, Stage, Task
from traincast.units import DTYPE_BYTES


def spread_tables(stage: Stage, plan: Parallelism) -> Stage:
    """Each replica holds an equal share of every table (row-wise, or whole tables dealt out: the same bytes on average).

    It looks up its share for the samples of all replicas, as many rows as before, and sends each replica its vectors
    (Naumov et al. 2019, Mudigere et al. 2022); in the backward pass their gradients come back the same way. A table with fewer
    rows than a replica has samples stays whole on all of them: reducing its gradient sends less than its vectors would.
    """
    stage = fetch_from_host(stage)
    tables = [task for task in stage.ops() if is_table(task)]
    if not tables:
        if plan.table_sharding is not None or plan.table_cache is not None:
            raise IllegalPlan("table_sharding and table_cache go with models that have sparse embedding tables")
        return stage
    num_ranks = plan.data * plan.context
    share, load = _shares(tables[0], plan.table_sharding, num_ranks)
    shared = _find_tables(stage)
    held = share * (plan.table_cache or 1.0)
    tensors = tuple(
        replace(tensor, shape=(max(1, math.ceil(tensor.numel * held)),)) if index in shared else tensor
        for index, tensor in enumerate(stage.tensors)
    )

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if not is_table(task) or not isinstance(task, Op):
            yield task
            return
        around = list(_exchange(stage, plan, task, num_ranks)) if num_ranks > 1 else []
        looked = _widen(scale_op(task, load), plan.table_sharding, num_ranks)
        if task.phase == "backward":
            yield from around
            yield looked
            yield from _swap(stage, plan, task, load, "copy_out")
        else:
            yield from _swap(stage, plan, task, load, "copy_in")
            yield looked
            yield from around
        if task.phase == "backward" and task.attrs.get("replicated_rows") and num_ranks > 1:
            yield _reduce_replicated(stage, plan, task, num_ranks)

    return replace(map_tasks(stage, rewrite), tensors=tensors)


SECTOR_BYTES = 32.0
"""The least that a device reads from its memory at once."""


def _shares(op: Op, how: str | None, num_ranks: int) -> tuple[float, float]:
    """(of all rows on the fullest replica, of its lookups over the mean)."""
    if num_ranks == 1 or how == "replicated":
        return 1.0, 1.0
    if how != "table":
        return 1 / num_ranks, 1.0
    tables, largest = int(op.attrs.get("num_tables", 1)), float(op.attrs.get("largest_rows", op.attrs["vocab"]))
    busiest = math.ceil(tables / num_ranks) * num_ranks / tables
    return max(1 / num_ranks, largest / float(op.attrs["vocab"])), busiest


def _widen(op: Op, how: str | None, num_ranks: int) -> Op:
    """A row of a few columns still takes a whole sector."""
    if how != "column" or num_ranks == 1:
        return op
    own = float(op.attrs["cols"]) / num_ranks * DTYPE_BYTES[op.dtype]
    wasted = max(1.0, SECTOR_BYTES / own)
    return replace(op, bytes_read=op.bytes_read * wasted, bytes_written=op.bytes_written * wasted)


def count_hits(rows: float, share: float) -> float:
    """Lookups that the most frequent rows answer, if the n-th is asked for 1 / n as often as the first."""
    return math.log1p(rows * share) / math.log1p(rows)


def _swap(stage: Stage, plan: Parallelism, op: Op, load: float, kind: str) -> Iterator[Collective]:
    """Rows that the cache lacks come from host memory, and as many go back with their new values and state."""
    if plan.table_cache is None or plan.table_cache == 1:
        return
    hits = plan.table_hits
    if hits is None:
        hits = count_hits(float(op.attrs["vocab"]), plan.table_cache)
    dtype = max((stage.tensors[t] for t in _find_tables(stage)), key=lambda tensor: tensor.numel).dtype
    missed = (1 - hits) * float(op.attrs["rows"]) * float(op.attrs["cols"]) * DTYPE_BYTES[dtype] * load
    if missed > 0:
        yield Collective(kind=kind, num_bytes=missed, axis=HOST, num_ranks=1, stride=1, phase=op.phase, layer=op.layer)


def _find_tables(stage: Stage) -> frozenset[int]:
    """The sparse tables among the tensors, and what the optimizer keeps of them."""
    read = {t for task in stage.ops() if is_table(task) for t in task.reads}
    tables = {t for t in read if stage.tensors[t].role == "parameter"}
    names = {stage.tensors[t].name for t in tables}
    state = {
        index
        for index, tensor in enumerate(stage.tensors)
        if tensor.role == "optimizer_state" and tensor.name.rpartition(".")[0] in names
    }
    return frozenset(tables | state)


def _exchange(stage: Stage, plan: Parallelism, op: Op, num_ranks: int) -> Iterator[Collective]:
    """The vectors of one replica's samples, after those of one sample and table were summed; or what another way of spreading
    tables sends."""
    moved = next(
        (
            t
            for t in (op.writes if op.phase != "backward" else op.reads)
            if stage.tensors[t].dtype.startswith(("fp", "bf"))
        ),
        None,
    )
    vectors = stage.tensors[moved].num_bytes if moved is not None else op.bytes_written
    vectors *= float(op.attrs.get("spread_share", 1.0))
    ids = 8.0 * float(op.attrs["rows"])
    forward = op.phase != "backward"

    def send(kind: str, num_bytes: float) -> Collective:
        return Collective(
            kind=kind, num_bytes=num_bytes, axis="data", num_ranks=num_ranks,
            stride=plan.stride("data") if plan.context == 1 else plan.tensor, phase=op.phase, layer=op.layer,
        )  # fmt: skip

    if plan.table_sharding == "replicated":
        if not forward:
            # Sparse gradients cannot be added up on the way: every replica gets the rows of all.
            yield send("all_gather", num_ranks * (ids + float(op.attrs["rows"]) * float(op.attrs["cols"]) * 4.0))
    elif plan.table_sharding == "row":
        yield send("reduce_scatter" if forward else "all_gather", num_ranks * vectors)
    else:
        if plan.table_sharding == "column" and forward:
            yield send("all_gather", num_ranks * ids)
        _, load = _shares(op, plan.table_sharding, num_ranks)
        yield send("all_to_all", vectors * load)


def _reduce_replicated(stage: Stage, plan: Parallelism, op: Op, num_ranks: int) -> Collective:
    """The dense gradients of tables that every replica holds."""
    dtype = next((stage.tensors[t].dtype for t in op.writes if stage.tensors[t].role == "gradient"), op.dtype)
    numel = float(op.attrs["replicated_rows"]) * float(op.attrs["cols"])
    return Collective(
        kind="all_reduce", num_bytes=numel * DTYPE_BYTES[dtype], axis="data", num_ranks=num_ranks,
        stride=plan.tensor, phase="gradient", overlapped=plan.overlap, layer=op.layer,
    )  # fmt: skip


def fetch_from_host(stage: Stage) -> Stage:
    """Rows gathered from host memory cross the device's link to its host, and the next task waits for them."""
    if not any(map(reads_host, stage.tasks)):
        return stage

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if isinstance(task, Op) and reads_host(task):
            yield Collective(
                kind="copy_in", num_bytes=task.bytes_written * float(task.attrs.get("host_share", 1.0)), axis=HOST,
                num_ranks=1, stride=1, phase=task.phase, layer=task.layer,
            )  # fmt: skip
        yield task

    return map_tasks(stage, rewrite)
