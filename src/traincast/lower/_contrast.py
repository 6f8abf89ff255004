"""A contrastive loss over all replicas: embeddings are gathered before they are compared, their gradients scattered after."""

from collections.abc import Iterator

from traincast.lower._rewrite import GATHERED, alter, map_tasks
from traincast.spec import Collective, Op, Parallelism, Stage, Task


def exchange_embeddings(stage: Stage, plan: Parallelism) -> Stage:
    """Scores have a column for the samples of every replica. The device waits for the embeddings: nothing else is left to do at
    the ends of the towers."""
    marked = [task for task in stage.ops() if GATHERED in task.attrs]
    product = next((op for op in marked if op.attrs[GATHERED]), None)
    if plan.data == 1 or product is None:
        return stage
    batch = int(product.attrs["m"])
    scored = {
        tensor for op in marked for tensor in op.writes if stage.tensors[tensor].shape == (batch, batch)
    }  # fmt: skip
    tensors = tuple(
        alter(tensor, shape=(batch, batch * plan.data)) if index in scored else tensor
        for index, tensor in enumerate(stage.tensors)
    )

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if not isinstance(task, Op):
            yield task
            return
        gathers = bool(task.attrs.get(GATHERED))
        if gathers and task.phase == "forward":
            yield _exchange("all_gather", task, plan)
        yield _compare_all(task, plan.data) if scored & {*task.reads, *task.writes} else task
        if gathers and task.phase == "backward":
            yield _exchange("reduce_scatter", task, plan)

    return map_tasks(alter(stage, tensors=tensors), rewrite)


def _compare_all(op: Op, replicas: int) -> Op:
    """An op on the table of scores does as many times its work."""
    grown = [name for name in ("numel", "cols") if name in op.attrs]
    if op.kind == "matmul":
        # Forward the columns of the scores grow; backward one product sums over them and one makes a row for each.
        grown = ["n" if op.phase == "forward" or op.attrs["layout"] == "nt" else "k"]
    return alter(
        op,
        attrs={**op.attrs, **{name: int(op.attrs[name]) * replicas for name in grown}},
        flop=None if op.flop is None else op.flop * replicas,
        bytes_read=op.bytes_read * replicas,
        bytes_written=op.bytes_written * replicas,
    )


def _exchange(kind: str, op: Op, plan: Parallelism) -> Collective:
    return Collective(
        kind=kind, num_bytes=float(op.attrs[GATHERED]) * plan.data, axis="data", num_ranks=plan.data,
        stride=plan.tensor * plan.context, phase=op.phase, layer=op.layer,
    )  # fmt: skip
