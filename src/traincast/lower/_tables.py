"""Embedding tables with sparse gradients: spread over the replicas, which exchange looked-up rows instead of gradients."""

from collections.abc import Iterator
from dataclasses import replace

from traincast.lower._rewrite import map_tasks
from traincast.spec import HOST, Collective, Op, Parallelism, Stage, Task
from traincast.units import DTYPE_BYTES

HOST_GATHER = "host_gather"
"""The function of an index op whose source lies in host memory, as the features of a large graph do."""


def is_table(task: Task) -> bool:
    """Whether a task looks rows of a sparse table up, or makes the gradient of those rows."""
    return isinstance(task, Op) and task.kind == "embedding" and bool(task.attrs.get("sparse"))


def table_gradients(stage: Stage) -> frozenset[int]:
    """The gradients of sparse tables: each rank updates the rows it holds, so nothing of them is reduced."""
    return frozenset(
        tensor
        for task in stage.tasks
        if is_table(task) and isinstance(task, Op)
        for tensor in task.writes
        if stage.tensors[tensor].role == "gradient"
    )


def spread_tables(stage: Stage, plan: Parallelism) -> Stage:
    """Each replica holds an equal share of every table (row-wise, or whole tables dealt out: the same bytes on average).

    It looks up its share for the samples of all replicas, as many rows as before, and sends each replica its vectors
    (Naumov et al. 2019, Mudigere et al. 2022); in the backward pass their gradients come back the same way. A table with fewer
    rows than a replica has samples stays whole on all of them: reducing its gradient sends less than its vectors would.
    """
    stage = fetch_from_host(stage)
    num_ranks = plan.data * plan.context
    if num_ranks == 1 or not any(map(is_table, stage.tasks)):
        return stage
    shared = _find_tables(stage)

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if not is_table(task) or not isinstance(task, Op):
            yield task
        elif task.phase != "backward":
            yield task
            yield _exchange(stage, plan, task, num_ranks)
        else:
            yield _exchange(stage, plan, task, num_ranks)
            yield task
            if task.attrs.get("replicated_rows"):
                yield _reduce_replicated(stage, plan, task, num_ranks)

    tensors = tuple(
        replace(tensor, shape=(-(-tensor.numel // num_ranks),)) if index in shared else tensor
        for index, tensor in enumerate(stage.tensors)
    )
    return replace(map_tasks(stage, rewrite), tensors=tensors)


def _find_tables(stage: Stage) -> frozenset[int]:
    """The sparse tables among the tensors, and what the optimizer keeps of them."""
    read = {t for task in stage.tasks if is_table(task) and isinstance(task, Op) for t in task.reads}
    tables = {t for t in read if stage.tensors[t].role == "parameter"}
    names = {stage.tensors[t].name for t in tables}
    state = {
        index
        for index, tensor in enumerate(stage.tensors)
        if tensor.role == "optimizer_state" and tensor.name.rpartition(".")[0] in names
    }
    return frozenset(tables | state)


def _exchange(stage: Stage, plan: Parallelism, op: Op, num_ranks: int) -> Collective:
    """The vectors of one replica's samples, after those of one sample and table were summed."""
    moved = next(
        (
            t
            for t in (op.writes if op.phase != "backward" else op.reads)
            if stage.tensors[t].dtype.startswith(("fp", "bf"))
        ),
        None,
    )
    num_bytes = stage.tensors[moved].num_bytes if moved is not None else op.bytes_written
    return Collective(
        kind="all_to_all",
        num_bytes=num_bytes * float(op.attrs.get("spread_share", 1.0)),
        axis="data",
        num_ranks=num_ranks,
        stride=plan.stride("data") if plan.context == 1 else plan.tensor,
        phase=op.phase,
        layer=op.layer,
    )


def _reduce_replicated(stage: Stage, plan: Parallelism, op: Op, num_ranks: int) -> Collective:
    """The dense gradients of tables that every replica holds."""
    gradient = next(stage.tensors[t] for t in op.writes if stage.tensors[t].role == "gradient")
    numel = float(op.attrs["replicated_rows"]) * float(op.attrs["cols"])
    return Collective(
        kind="all_reduce", num_bytes=numel * DTYPE_BYTES[gradient.dtype], axis="data", num_ranks=num_ranks,
        stride=plan.tensor, phase="gradient", overlapped=plan.overlap, layer=op.layer,
    )  # fmt: skip


def fetch_from_host(stage: Stage) -> Stage:
    """Rows gathered from host memory cross the device's link to its host, and the next task waits for them."""
    if not any(isinstance(task, Op) and task.attrs.get("function") == HOST_GATHER for task in stage.tasks):
        return stage

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if isinstance(task, Op) and task.attrs.get("function") == HOST_GATHER:
            yield Collective(
                kind="copy_in", num_bytes=task.bytes_written, axis=HOST, num_ranks=1, stride=1, phase=task.phase,
                layer=task.layer,
            )  # fmt: skip
        yield task

    return map_tasks(stage, rewrite)
