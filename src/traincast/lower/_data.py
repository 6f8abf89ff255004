"""Data parallelism: reduces each gradient over the replicas, and shards state over them (ZeRO, FSDP)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from traincast.lower._rewrite import alter, find_owners, is_expert, is_table, last_writers, map_tasks, scale_op
from traincast.spec import Collective, Op, Parallelism, PlanHabits, Stage, Task, Tensor, segments
from traincast.units import DTYPE_BYTES

Writers = Mapping[int, Sequence[int]]
"""Gradients that replicas reduce, by the task that writes them last."""


def find_writers(stage: Stage) -> Writers:
    """Which task ends each gradient that replicas reduce; those of sparse tables stay with the rows."""
    own_rows = {
        tensor
        for task in stage.ops()
        if is_table(task)
        for tensor in task.writes
        if stage.tensors[tensor].role == "gradient"
    }
    found = {
        index: [tensor for tensor in tensors if tensor not in own_rows]
        for index, tensors in last_writers(stage, "gradient").items()
    }
    return {index: tensors for index, tensors in found.items() if tensors}


def sync_gradients(stage: Stage, writers: Writers, plan: Parallelism) -> Stage:
    """Issue one reduction right after the op that writes each gradient, where buckets merge the small ones; or, where gradients
    are sharded, one for each unit (one repetition of a layer) after the last gradient of it, as FSDP does."""
    num_ranks = plan.data * plan.context
    # Folded experts have replicas along the tensor axis too.
    if num_ranks == 1 and (plan.expert == 1 or plan.expert_ranks == plan.expert):
        return stage
    if plan.zero >= 2:
        writers = _by_unit(stage, writers)

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        yield task
        # Experts that are spread are replicated over fewer ranks, which lie further apart.
        for spread in (1, plan.expert) if plan.expert > 1 else (1,):
            own = [t for t in writers[index] if is_expert(stage.tensors[t].name) == (spread > 1) or plan.expert == 1]
            ranks, stride = num_ranks // spread, plan.tensor * spread
            if spread > 1 and plan.folds_experts:
                ranks, stride = plan.expert_ranks // spread, spread
            if own and ranks > 1:
                yield from _reduce(stage, plan, own, task.layer, num_ranks=ranks, stride=stride)

    return map_tasks(stage, rewrite, at=writers)


def name_last_bucket(stage: Stage, habits: PlanHabits) -> Stage:
    """Reductions in buckets say how much the last of these holds, where the stack does not leave it to chance."""
    last_bytes = habits.amount("last_bucket_bytes")
    if last_bytes is None:
        return stage
    tasks = tuple(
        replace(task, last_bucket_bytes=last_bytes)
        if isinstance(task, Collective) and task.bucket_bytes is not None
        else task
        for task in stage.tasks
    )
    return replace(stage, tasks=tasks)


def send_at_once(stage: Stage) -> Stage:
    """Gradients are reduced when the last of them is there, all in one bucket."""
    sent = [task for task in stage.tasks if isinstance(task, Collective) and task.bucket_bytes is not None]
    counts = dict(zip(map(id, stage.tasks), stage.counts(), strict=True))
    whole = sum(task.num_bytes * counts[id(task)] for task in sent)
    return replace(
        stage,
        tasks=tuple(
            replace(task, bucket_bytes=max(task.bucket_bytes, 2 * whole), last_bucket_bytes=None)
            if isinstance(task, Collective) and task.bucket_bytes is not None
            else task
            for task in stage.tasks
        ),
    )


def _by_unit(stage: Stage, writers: Writers) -> Writers:
    """All gradients of a unit at the task that writes the last of them."""
    merged: dict[int, list[int]] = {}
    for part in segments(stage.repeats, num_tasks=len(stage.tasks)):
        own = [index for index in writers if part.start <= index < part.stop]
        if own:
            merged[max(own)] = [tensor for index in sorted(own) for tensor in writers[index]]
    return merged


def _reduce(
    stage: Stage, plan: Parallelism, tensors: Sequence[int], layer: str, *, num_ranks: int, stride: int
) -> Iterator[Collective]:
    """One reduction; in a hybrid shard each group scatters its sum, and the groups add up the shards they hold alike."""
    whole = Collective(
        kind="push" if plan.servers else "all_reduce" if plan.zero == 0 else "reduce_scatter",
        num_bytes=sum(_sent_bytes(stage.tensors[tensor], plan) for tensor in tensors),
        axis="data",
        num_ranks=2 if plan.asynchronous else num_ranks,
        stride=stride,
        phase="gradient" if _waits_for_last(plan) else "backward",
        overlapped=plan.overlap,
        bucket_bytes=plan.bucket_bytes if plan.zero < 2 else None,
        layer=layer,
        num_servers=_num_servers(plan),
    )
    if plan.shard is None:
        yield whole
        return
    shards = plan.num_shards
    if shards > 1:
        yield replace(whole, num_ranks=shards)
    if num_ranks > shards:
        yield replace(
            whole,
            kind="all_reduce",
            num_bytes=whole.num_bytes / shards,
            num_ranks=num_ranks // shards,
            stride=stride * shards,
            bucket_bytes=plan.bucket_bytes / shards if plan.zero < 2 else None,
        )


def _waits_for_last(plan: Parallelism) -> bool:
    """Whole gradients add up over the micro-batches and are reduced once; shards of them must be reduced every time, but for
    the stages of a pipeline, which keep whole ones until their last backward pass."""
    return plan.zero < 2 or (plan.zero == 2 and plan.pipeline > 1)


def _sent_bytes(gradient: Tensor, plan: Parallelism) -> float:
    return gradient.numel * DTYPE_BYTES[plan.reduce_dtype] if plan.reduce_dtype else gradient.num_bytes


def _gathered_bytes(weight: Tensor, plan: Parallelism) -> float:
    return weight.numel * DTYPE_BYTES[plan.gather_dtype] if plan.gather_dtype else weight.num_bytes


def use_servers(stage: Stage, plan: Parallelism) -> Stage:
    """Parameter servers hold and update the weights: workers push gradients, then pull what the servers made of them.

    Synchronous workers push at once and share the servers' links; asynchronous ones come one by one.
    """
    if plan.servers == 0:
        return stage
    weights = sum(t.num_bytes * t.copies for t in stage.tensors if t.role == "parameter")
    # A program may say itself what it reads and writes of variables: it may read one for every use, and write its moments too.
    said = any(isinstance(task, Op) and "pulled_bytes" in task.attrs for task in stage.tasks)

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if isinstance(task, Op) and task.kind == "optimizer":
            moved = (
                ("pull", task.attrs.get("pulled_bytes", 0 if said else weights)),
                ("push", task.attrs.get("pushed_bytes", 0)),
            )
            yield from (_exchange(kind, float(amount), plan) for kind, amount in moved if amount)
        elif not (said and isinstance(task, Collective) and task.kind == "push"):
            yield task

    tensors = tuple(alter(t, shape=(0,), copies=1) if t.role == "optimizer_state" else t for t in stage.tensors)
    return map_tasks(alter(stage, tensors=tensors), rewrite)


def _exchange(kind: str, num_bytes: float, plan: Parallelism) -> Collective:
    num_ranks = 2 if plan.asynchronous else max(2, plan.data)
    return Collective(
        kind=kind, num_bytes=num_bytes, axis="data", num_ranks=num_ranks, stride=1, phase="optimizer",
        num_servers=_num_servers(plan),
    )  # fmt: skip


def _num_servers(plan: Parallelism) -> int:
    """A worker that comes by itself shares no link; an exchange has two ends at least."""
    return max(2, plan.servers) if plan.asynchronous else plan.servers


def shard_state(stage: Stage, plan: Parallelism) -> Stage:
    """Each replica keeps and updates its share; under ZeRO 1 the new weights are gathered after it."""
    if not _has_shards(plan):
        return stage
    shares, owners = _update_shares(stage, plan), find_owners(stage)

    def shard(place: int, tensor: Tensor) -> Tensor:
        if tensor.role == "gradient" and plan.zero >= 2:
            return alter(tensor, shape=_shard(tensor.shape, shards_of(tensor.name, plan)))
        if tensor.role == "optimizer_state" and place in owners:
            return alter(tensor, shape=_shard(tensor.shape, shards_of(tensor.name, plan)))
        if tensor.role == "optimizer_state":
            return alter(tensor, shape=(math.ceil(tensor.numel * shares.get(place, 1 / plan.num_shards)),))
        return tensor

    updates = [index for index, task in enumerate(stage.tasks) if task.kind == "optimizer"]

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if not isinstance(task, Op):
            yield task
            return
        yield scale_op(task, _share_of(stage, task, plan), attrs=("numel",))
        gathered = [stage.tensors[tensor] for tensor in task.writes if stage.tensors[tensor].role == "parameter"]
        if not _gathers_ahead(plan) and gathered:
            yield from _gather(gathered, plan, Collective(
                kind="all_gather", num_bytes=0.0, axis="data", num_ranks=1, stride=1, phase="optimizer",
            ), copies=True)  # fmt: skip

    tensors = tuple(shard(place, tensor) for place, tensor in enumerate(stage.tensors))
    return map_tasks(alter(stage, tensors=tensors), rewrite, at=updates)


def _has_shards(plan: Parallelism) -> bool:
    """Folded experts have replicas along the tensor axis where nothing else has any."""
    return plan.num_shards > 1 or (plan.zero > 0 and plan.expert > 1 and plan.expert_ranks > plan.expert)


def shards_of(name: str, plan: Parallelism) -> int:
    """Parts in which ZeRO cuts a weight and its state: dense ones over all replicas, experts over those that hold the same."""
    spread = plan.zero > 0 and plan.expert > 1 and is_expert(name)
    return max(1, plan.expert_ranks // plan.expert) if spread else plan.num_shards


def _share_of(stage: Stage, update: Op, plan: Parallelism) -> float:
    """Of what one rank's update works on, the part that is left once ZeRO has dealt it out."""
    weights = [stage.tensors[t] for t in update.writes if stage.tensors[t].role == "parameter"]
    # ZeRO 3 has sharded the weights themselves already.
    held = [t.numel * t.copies * (shards_of(t.name, plan) if plan.zero == 3 else 1) for t in weights]
    whole = sum(held)
    kept = sum(numel / shards_of(t.name, plan) for t, numel in zip(weights, held, strict=True))
    return kept / whole if whole else 1 / plan.num_shards


def _update_shares(stage: Stage, plan: Parallelism) -> dict[int, float]:
    """The part of each optimizer state that a rank keeps."""
    return {
        tensor: share
        for task in stage.ops()
        if task.kind == "optimizer"
        for share in [_share_of(stage, task, plan)]
        for tensor in (*task.reads, *task.writes)
        if stage.tensors[tensor].role == "optimizer_state"
    }


def _gather(
    weights: Sequence[Tensor], plan: Parallelism, like: Collective, *, most: int | None = None, copies: bool = False
) -> Iterator[Collective]:
    """Gathers of weights, those of spread experts in their own group; in groups of at most `most` ranks."""
    for experts in (False, True):
        own = [t for t in weights if (plan.expert > 1 and is_expert(t.name)) == experts]
        num_bytes = sum(_gathered_bytes(t, plan) * (t.copies if copies else 1) for t in own)
        ranks = min(shards_of(own[0].name, plan), most or math.inf) if own else 1
        if ranks > 1 and num_bytes:
            stride = _expert_stride(plan) if experts else plan.tensor
            yield replace(like, num_bytes=num_bytes, num_ranks=int(ranks), stride=stride)


def _expert_stride(plan: Parallelism) -> int:
    return plan.expert if plan.folds_experts else plan.tensor * plan.expert


def share_updates(stage: Stage, plan: Parallelism, habits: PlanHabits) -> Stage:
    """Some optimizers update a part of replicated weights on each device of a node, whatever ZeRO says."""
    shares = dict(habits.shared_updates)
    updates = [
        index
        for index, task in enumerate(stage.tasks)
        if isinstance(task, Op) and task.attrs.get("algorithm") in shares
    ]
    num_shares = min(*shares.values(), plan.data * plan.context) if updates else 1
    if num_shares == 1 or plan.zero:
        return stage

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        yield scale_op(task, 1 / num_shares, attrs=("numel",)) if isinstance(task, Op) else task

    return map_tasks(stage, rewrite, at=updates)


def shrink_temporaries(stage: Stage) -> Stage:
    """What the optimizer writes and forgets is as large as the weights it updates on this rank."""
    sizes = {
        tensor: int(task.attrs["numel"])
        for task in stage.ops()
        if task.kind == "optimizer"
        for tensor in task.writes
        if stage.tensors[tensor].role == "temporary"
    }
    if not sizes:
        return stage
    tensors = list(stage.tensors)
    for index, size in sizes.items():
        tensors[index] = alter(tensors[index], shape=(min(tensors[index].numel, size),))
    return alter(stage, tensors=tuple(tensors))


def gather_weights(stage: Stage, plan: Parallelism) -> Stage:
    """The weights of each unit (one repetition of a layer) are gathered before it runs: by FSDP's full shard in every pass, and
    again before its backward; by its shard_grad_op (ZeRO 2) once in a step."""
    if not _gathers_ahead(plan) or not _has_shards(plan):
        return stage
    full = plan.zero == 3
    starts, phases = _find_units(stage, plan)
    tensors = tuple(
        alter(tensor, shape=_shard(tensor.shape, shards_of(tensor.name, plan)))
        if full and tensor.role == "parameter"
        else tensor
        for tensor in stage.tensors
    )
    if plan.regather and plan.regather < plan.num_shards:
        tensors = (*tensors, _second_copy(stage, plan.regather))

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        yield from _gather(starts[index], plan, Collective(
            kind="all_gather",
            num_bytes=0.0,
            axis="data",
            num_ranks=1,
            stride=1,
            phase="backward" if phases[index] == "recompute" else phases[index],
            overlapped=plan.overlap or not full,
            layer=task.layer,
            once=not full,
        ), most=None if phases[index] == "forward" else plan.regather)  # fmt: skip
        yield task

    return alter(map_tasks(stage, rewrite, at=starts), tensors=tensors)


def _find_units(stage: Stage, plan: Parallelism) -> tuple[dict[int, list[Tensor]], dict[int, str]]:
    """(weights, phase) of each unit whose weights are gathered, by its first task."""
    starts: dict[int, list[Tensor]] = {}
    phases: dict[int, str] = {}
    trained = {t for task in stage.ops() if task.kind == "optimizer" for t in task.writes}
    sources = _weight_sources(stage)
    for part in segments(stage.repeats, num_tasks=len(stage.tasks)):
        ops = [task for task in stage.ops(part) if task.phase != "optimizer"]
        # Whatever reads a cast copy of a weight needs the weight: the copy is no longer there.
        read = dict.fromkeys(sources[t] for op in ops for t in op.reads if t in sources)
        # Weights that no update changes are gathered only where they are sharded.
        used = [tensor for tensor in read if plan.zero == 3 or tensor in trained]
        if used and (plan.zero == 3 or ops[0].phase == "forward"):
            starts[part.start] = [stage.tensors[tensor] for tensor in used]
            phases[part.start] = ops[0].phase
    return starts, phases


def _weight_sources(stage: Stage) -> dict[int, int]:
    """The weight behind each weight and each cast copy of one."""
    sources = {place: place for place, tensor in enumerate(stage.tensors) if tensor.role == "parameter"}
    for task in stage.tasks:
        if isinstance(task, Op) and task.kind == "copy" and len(task.reads) == 1 and task.reads[0] in sources:
            sources.update((t, sources[task.reads[0]]) for t in task.writes if t not in sources)
    return sources


def _second_copy(stage: Stage, num_ranks: int) -> Tensor:
    """What each of so many replicas holds of all weights, beside its share of them among all replicas."""
    weights = [tensor for tensor in stage.tensors if tensor.role == "parameter"]
    num_bytes = sum(tensor.num_bytes * tensor.copies for tensor in weights)
    return Tensor(
        shape=(math.ceil(num_bytes / num_ranks),), dtype="uint8", role="buffer", name="second copy of weights"
    )


def _gathers_ahead(plan: Parallelism) -> bool:
    """Whether weights come unit by unit before they are used. State on the host is updated and sent back as a whole."""
    return plan.zero == 3 or ((plan.zero == 2 or plan.gather_ahead) and not plan.offload_optimizer)


def _shard(shape: tuple[int, ...], num_ranks: int) -> tuple[int, ...]:
    return (-(-math.prod(shape) // num_ranks),)
