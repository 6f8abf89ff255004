"""torch.compile: chains of pointwise ops, and the reductions they feed, become one kernel each; what only they read is
never written."""

from dataclasses import replace

from traincast.lower.rewrite import map_tasks
from traincast.spec import Op, Stage, Task
from traincast.spec.graph import segments

FUSIBLE = ("elementwise", "copy", "dropout", "norm", "softmax", "reduce", "random", "index", "embedding")
LEADING = ("softmax", "norm", "reduce", "embedding", "index")
"""A fused kernel is priced as the least regular of its members, the first of these that it holds."""
LOSS = "loss"
"""Of the layer that models are compiled without: training loops compute it outside of them."""
MAX_MEMBERS = 32


def fuse(stage: Stage) -> Stage:
    """The stage with every chain of neighbouring fusible ops, linked by what they hand on, run as one kernel."""
    last_read = _last_reads(stage)
    groups: dict[int, list[int]] = {}
    member: set[int] = set()
    for part in segments(stage.repeats, num_tasks=len(stage.tasks)):
        for chain in _chains(stage, part.start, part.stop):
            groups[chain[-1]] = chain
            member.update(chain)

    def rewrite(index: int, task: Task) -> list[Task]:
        if index in groups:
            return [_merge(stage, groups[index], last_read)]
        return [] if index in member else [task]

    return map_tasks(stage, rewrite)


def _last_reads(stage: Stage) -> dict[int, int]:
    """Where each tensor is read last; a carried one is read by the next repetition, which counts as the end."""
    last: dict[int, int] = {}
    for index, task in enumerate(stage.tasks):
        if isinstance(task, Op):
            last.update(dict.fromkeys(task.reads, index))
    for part in segments(stage.repeats, num_tasks=len(stage.tasks)):
        seen: set[int] = set()
        for task in stage.tasks[part.start : part.stop]:
            if isinstance(task, Op):
                seen.update(task.reads)
                last.update({tensor: len(stage.tasks) for tensor in task.writes if tensor in seen and part.count > 1})
    return last


def _chains(stage: Stage, start: int, stop: int) -> list[list[int]]:
    chains: list[list[int]] = []
    current: list[int] = []
    made: set[int] = set()

    def close() -> None:
        if len(current) > 1:
            chains.append(list(current))
        current.clear()
        made.clear()

    for index in range(start, stop):
        task = stage.tasks[index]
        if not isinstance(task, Op) or task.kind not in FUSIBLE or task.phase == "optimizer" or task.layer == LOSS:
            close()
            continue
        linked = any(tensor in made for tensor in task.reads)
        same_phase = not current or stage.tasks[current[-1]].phase == task.phase
        if current and not (linked and same_phase and len(current) < MAX_MEMBERS):
            close()
        current.append(index)
        made.update(task.writes)
    close()
    return chains


def _merge(stage: Stage, chain: list[int], last_read: dict[int, int]) -> Op:
    ops = [op for index in chain if isinstance(op := stage.tasks[index], Op)]
    inside = {tensor for op in ops for tensor in op.writes}
    reads = tuple(dict.fromkeys(tensor for op in ops for tensor in op.reads if tensor not in inside))
    kept_roles = ("gradient", "parameter", "buffer")
    writes = tuple(
        dict.fromkeys(
            tensor
            for op in ops
            for tensor in op.writes
            if last_read.get(tensor, -1) > chain[-1] or stage.tensors[tensor].role in kept_roles or op is ops[-1]
        )
    )
    lead = next((op for kind in LEADING for op in ops if op.kind == kind), ops[-1])
    known = [op.flop for op in ops if op.flop is not None]
    return replace(
        lead,
        name=f"fused[{'+'.join(op.name.removeprefix('aten.') for op in ops[:4])}{'+...' if len(ops) > 4 else ''}]",
        flop=sum(known) if len(known) == len(ops) else None,
        bytes_read=_moved(ops, set(reads), reading=True),
        bytes_written=_moved(ops, set(writes), reading=False),
        reads=reads,
        writes=writes,
        num_kernels=1,
        num_calls=1,
    )


def _moved(ops: list[Op], kept: set[int], *, reading: bool) -> float:
    """Bytes of the members that still move: each kept tensor once, at the share its op had for it."""
    total = 0.0
    seen: set[int] = set()
    for op in ops:
        tensors = op.reads if reading else op.writes
        amount = op.bytes_read if reading else op.bytes_written
        fresh = [tensor for tensor in tensors if tensor in kept and tensor not in seen]
        seen.update(fresh)
        if tensors:
            total += amount * len(fresh) / len(tensors)
    return total
