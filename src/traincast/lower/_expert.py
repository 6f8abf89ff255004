"""Expert parallelism: each rank holds some experts; tokens travel to theirs and back."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from traincast.errors import IllegalPlan
from traincast.lower._rewrite import find_owners, find_trained, is_expert, map_tasks, resize_matmul, scale_op
from traincast.spec import Collective, Op, Parallelism, Stage, Task, Tensor, segments


def spread_experts(stage: Stage, plan: Parallelism) -> Stage:
    """Expert weights are divided over `plan.expert` ranks; with balanced routing each computes as much as before, and else
    the busiest rank, which the others await, as much more as it has tokens."""
    if plan.expert == 1 and not plan.folds_experts and plan.expert_load == 1:
        return stage
    expert_ops = {i for i, task in enumerate(stage.tasks) if isinstance(task, Op) and is_expert(task.layer)}
    if not expert_ops:
        asked = f"expert = {plan.expert}" if plan.expert > 1 else f"expert_capacity = {plan.expert_capacity}"
        raise IllegalPlan(f"{asked}: the model has no experts; allowed: expert = 1 without a capacity")
    stage = load_experts(stage, expert_ops, plan.expert_load)
    parts = plan.tensor if plan.folds_experts else 1
    before, after = _transfers(stage, plan, expert_ops) if plan.expert > 1 else ({}, {})

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if index in before:
            yield before[index]
        yield _own_experts(task, plan.expert, parts) if index in expert_ops and isinstance(task, Op) else task
        if index in after:
            yield after[index]

    share = _kept_share(stage, plan.expert)
    owners = find_owners(stage)
    tensors = tuple(
        _own_share(tensor, plan.expert, share if tensor.role == "optimizer_state" and place not in owners else None)
        for place, tensor in enumerate(stage.tensors)
    )
    return _scale_optimizer(replace(map_tasks(stage, rewrite), tensors=tensors), share)


def _kept_share(stage: Stage, ranks: int) -> float:
    """The part of all weights that train which one rank holds."""
    weights = [stage.tensors[place] for place in find_trained(stage)]
    whole = sum(t.numel * t.copies for t in weights)
    moved = sum(t.numel * t.copies for t in weights if is_expert(t.name))
    return 1 - moved / whole * (1 - 1 / ranks) if whole else 1.0


def _own_share(tensor: Tensor, ranks: int, share: float | None) -> Tensor:
    """`share`: of a state that is no single weight's."""
    if tensor.role in ("parameter", "gradient", "optimizer_state") and share is None and is_expert(tensor.name):
        return replace(tensor, shape=(max(1, -(-tensor.numel // ranks)),))
    if tensor.role == "optimizer_state" and share is not None and tensor.numel:
        return replace(tensor, shape=(max(1, round(tensor.numel * share)),))
    return tensor


def load_experts(stage: Stage, expert_ops: set[int], load: float) -> Stage:
    """The tokens of every expert scaled: products have more rows, all else more elements; weights stay."""
    if load == 1:
        return stage

    def rewrite(index: int, task: Task) -> Iterator[Task]:
        if index not in expert_ops or not isinstance(task, Op):
            yield task
        elif task.kind == "matmul":
            yield _with_tokens(task, own=int(task.attrs["batch"]), tokens=load)
        else:
            yield scale_op(task, load, attrs=("numel", "rows"))

    moved = {
        tensor
        for index in expert_ops
        if isinstance(task := stage.tasks[index], Op)
        for tensor in (*task.reads, *task.writes)
        if stage.tensors[tensor].role in ("activation", "temporary")
    }
    tensors = tuple(
        replace(tensor, shape=(max(1, round(tensor.numel * load)),)) if index in moved and tensor.numel else tensor
        for index, tensor in enumerate(stage.tensors)
    )
    return replace(map_tasks(stage, rewrite), tensors=tensors)


def _transfers(
    stage: Stage, plan: Parallelism, expert_ops: set[int]
) -> tuple[dict[int, Collective], dict[int, Collective]]:
    """What travels before the first and after the last of every run of expert ops; several layers may stand in one part."""
    before: dict[int, Collective] = {}
    after: dict[int, Collective] = {}
    copies = _copies_per_token(stage, expert_ops) if plan.dispatch_once else 1.0
    for part in segments(stage.repeats, num_tasks=len(stage.tasks)):
        run: list[int] = []
        for index in range(part.start, part.stop + 1):
            goes_on = index < part.stop and index in expert_ops
            if run and not (goes_on and stage.tasks[index].phase == stage.tasks[run[-1]].phase):
                ops = [op for i in run if isinstance(op := stage.tasks[i], Op)]
                before[run[0]] = _all_to_all(stage, plan, ops[0], (t for op in ops for t in op.reads), copies=copies)
                written = (t for op in ops for t in op.writes)
                after[run[-1]] = _all_to_all(stage, plan, ops[-1], written, copies=copies, made=True)
                run = []
            if goes_on:
                run.append(index)
    return before, after


def _copies_per_token(stage: Stage, expert_ops: set[int]) -> float:
    """Experts that a token goes to: how much larger what the first expert op reads is than what it was gathered from."""
    first = stage.tasks[min(expert_ops)]
    read = next((t for t in first.reads if _is_tokens(stage, t)), None) if isinstance(first, Op) else None
    for task in reversed(stage.tasks[: min(expert_ops)]):
        if isinstance(task, Op) and read in task.writes:
            sources = [stage.tensors[t].numel for t in task.reads if _is_tokens(stage, t)]
            return max(1.0, stage.tensors[read].numel / max(sources)) if read is not None and sources else 1.0
    return 1.0


def _is_tokens(stage: Stage, tensor: int) -> bool:
    kept = stage.tensors[tensor].role in ("parameter", "gradient", "optimizer_state")
    return not kept and stage.tensors[tensor].dtype.startswith(("fp", "bf"))


def _all_to_all(
    stage: Stage, plan: Parallelism, op: Op, tensors: Iterable[int], *, copies: float, made: bool = False
) -> Collective:
    """Tokens as wide as the model: the first activation that the run reads, or the last that it writes."""
    # Counts and places of tokens travel too, but weigh nothing.
    widths = [stage.tensors[t].num_bytes for t in tensors if _is_tokens(stage, t)]
    return Collective(
        kind="all_to_all",
        num_bytes=(widths[-1] if made else widths[0]) if widths else 0.0,
        axis="expert",
        num_ranks=plan.expert,
        stride=plan.stride("expert"),
        phase=op.phase,
        layer=op.layer,
        copies=copies,
        chunked=plan.overlap_experts,
    )


def _own_experts(op: Op, ranks: int, parts: int) -> Op:
    """Fewer experts, more tokens for each: the same FLOP, fewer bytes of weights. `parts`: what is still to be divided of the
    tokens because each rank has only its part of the sequence."""
    if op.kind != "matmul" or int(op.attrs["batch"]) < ranks:
        return op
    own = max(1, int(op.attrs["batch"]) // ranks)
    return _with_tokens(op, own=own, tokens=int(op.attrs["batch"]) / own / parts)


def _with_tokens(op: Op, *, own: int, tokens: float) -> Op:
    """The product of `own` experts, each with `tokens` times as many tokens: rows, or what a weight gradient sums over."""
    rows = "k" if op.attrs["layout"] == "nt" else "m"
    more = max(1, int(int(op.attrs[rows]) * tokens + 1e-6))
    return resize_matmul(op, own * tokens / int(op.attrs["batch"]), batch=own, **{rows: more})


def _scale_optimizer(stage: Stage, share: float) -> Stage:
    def rewrite(index: int, task: Task) -> Iterator[Task]:
        yield scale_op(task, share, attrs=("numel",)) if isinstance(task, Op) and task.kind == "optimizer" else task

    return map_tasks(stage, rewrite)
