"""Decides what may run beside what: from what a collective sends, who needs the result, and the link that it is on.

The device runs its kernels in order. A collective that is `overlapped` has a stream of its own, one for each link, and starts
when what it sends is there. What remains to wait for of those that are sent in pieces (`chunked`) is settled here before a pass
is run; how long a queue on a link is, the clocks of the pass say.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from traincast.spec import Collective, Estimate, Op, Repeat, Stage, Task, segments


class Runs(Enum):
    """When a task runs, beside the kernels of its pass."""

    IN_ORDER = "the device runs it, or waits for it, before the next kernel"
    AHEAD = "it must have ended before its unit starts, and starts with the unit before (weights)"
    BESIDE = "it starts when what it sends is there, and the update waits for it"
    BESIDE_LAST = "the same, in the last micro-batch alone (gradients that add up over micro-batches)"
    AT_END = "it starts when the last backward pass has ended"
    BETWEEN_STAGES = "the order of the pipeline places it"


def when_it_runs(task: Task) -> Runs:
    if not isinstance(task, Collective):
        return Runs.IN_ORDER
    if task.axis == "pipeline":
        return Runs.BETWEEN_STAGES
    adds_up = task.phase == "gradient"
    if not task.overlapped:
        return Runs.AT_END if adds_up else Runs.IN_ORDER
    if task.kind == "all_gather" or (task.kind == "copy_in" and task.phase != "optimizer"):
        return Runs.AHEAD
    return Runs.BESIDE_LAST if adds_up else Runs.BESIDE


def pass_of(task: Task) -> str:
    """What is recomputed, and gradients, belong to the backward pass."""
    return "backward" if task.phase in ("recompute", "gradient") else task.phase


def follows(tasks: Sequence[Task], place: int) -> bool:
    """Whether the task sums between groups what the task right before it has scattered inside them (hybrid shard)."""
    task, one = tasks[place], tasks[place - 1] if place else None
    return (
        isinstance(task, Collective)
        and isinstance(one, Collective)
        and task.overlapped
        and (task.kind, one.kind, task.axis, one.axis) == ("all_reduce", "reduce_scatter", "data", "data")
    )


def hide_pieces(stage: Stage, estimates: Sequence[Estimate]) -> Sequence[Estimate]:
    """What remains to wait for of collectives that are sent in pieces: beside a matmul (Wang et al. 2023) or attention (Liu et
    al. 2023) the first or last piece and all by which it is longer; of exchanges of experts what is longer than the computation
    of the other micro-batch (DualPipe, DeepSeek-AI 2024), with equal micro-batches that of the same layer and direction."""
    tasks = stage.tasks
    if not any(isinstance(task, Collective) and task.chunked for task in tasks):
        return estimates
    shown = list(estimates)
    for part in segments(stage.repeats, num_tasks=len(tasks)):
        for index in range(part.start, part.stop):
            task = tasks[index]
            if isinstance(task, Collective) and task.chunked and task.num_ranks > 1 and estimates[index].seconds:
                hidden_s = _hidden_s(stage, estimates, task, index, part)
                left = max(0.0, 1 - hidden_s / estimates[index].seconds)
                shown[index] = replace(estimates[index].scaled(left), host_s=estimates[index].host_s)
    return tuple(shown)


def _hidden_s(stage: Stage, estimates: Sequence[Estimate], task: Collective, index: int, part: Repeat) -> float:
    whole_s = estimates[index].seconds
    if task.kind == "all_to_all":
        forward = task.phase == "forward"
        places = [at for at in range(part.start, part.stop) if (stage.tasks[at].phase == "forward") == forward]
        sent_s = sum(estimates[at].seconds for at in places if _is_exchange(stage.tasks[at]))
        busy_s = sum(estimates[at].seconds for at in places if isinstance(stage.tasks[at], Op))
        return whole_s * busy_s / sent_s
    partner = _find_partner(stage.tasks, index, part)
    return 0.0 if partner is None else (1 - 1 / task.num_ranks) * min(whole_s, estimates[partner].seconds)


def _is_exchange(task: Task) -> bool:
    return isinstance(task, Collective) and task.kind == "all_to_all" and task.chunked


def _find_partner(tasks: Sequence[Task], index: int, part: Repeat) -> int | None:
    """A gather feeds the matmul behind it, a reduction sends what the matmul before it makes; keys, values and their gradients go
    round beside the attention behind them. The neighbour of what ends or begins a repeated layer is in the next or the last
    repetition. Transfers between them do not part the two."""
    sent = tasks[index]
    around = isinstance(sent, Collective) and sent.axis == "context"
    ahead = around or sent.kind == "all_gather"
    places: list[int] = [*range(index + 1, part.stop)] if ahead else [*range(index - 1, part.start - 1, -1)]
    if part.count > 1:
        places += range(part.start, index) if ahead else range(part.stop - 1, index, -1)
    wanted = "attention" if around else "matmul"
    own = pass_of(sent)
    return next((at for at in places if tasks[at].kind == wanted and pass_of(tasks[at]) == own), None)


def last_bucket_bytes(task: Collective, num_bytes: float) -> float:
    """What the last bucket of so many bytes of gradients holds: it is sent when its last gradient is there. Where its size is not
    known, it is half full on average; and all gradients that fill no more than one bucket leave together."""
    whole = task.bucket_bytes or 0.0
    if task.last_bucket_bytes is None:
        return whole / 2
    return num_bytes if num_bytes <= whole else task.last_bucket_bytes


def after_chunks(left_s: float, pass_s: float, *, stages: int, virtual: int) -> float:
    """What is left of transfers behind a pass when virtual stages take turns: while a rank runs a chunk of its layers for as many
    micro-batches as there are stages, it sends what the chunk before it has made. The transfers of one chunk have only that
    chunk to hide behind."""
    return max(left_s / virtual, left_s - (virtual - 1) * (stages - 1) / virtual * pass_s)
