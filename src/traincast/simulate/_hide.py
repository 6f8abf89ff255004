"""All-to-alls of experts that run beside another micro-batch's computation: what remains to wait for."""

from collections.abc import Sequence
from dataclasses import replace

from traincast.spec import Collective, Estimate, Op, Stage, segments


def hide_exchanges(stage: Stage, estimates: Sequence[Estimate]) -> Sequence[Estimate]:
    """In each layer and direction, what an exchange takes longer than the computation of the other micro-batch beside it
    (DualPipe, DeepSeek-AI 2024): with equal micro-batches, that of the same layer."""
    if not any(_is_beside(task) for task in stage.tasks):
        return estimates
    shown = list(estimates)
    for part in segments(stage.repeats, num_tasks=len(stage.tasks)):
        for forward in (True, False):
            places = [at for at in range(part.start, part.stop) if (stage.tasks[at].phase == "forward") == forward]
            sent = [at for at in places if _is_beside(stage.tasks[at])]
            sent_s = sum(estimates[at].seconds for at in sent)
            busy_s = sum(estimates[at].seconds for at in places if isinstance(stage.tasks[at], Op))
            left = max(0.0, 1 - busy_s / sent_s) if sent_s else 1.0
            for at in sent:
                whole = estimates[at]
                shown[at] = replace(
                    whole, seconds=whole.seconds * left, low_s=whole.low_s * left, high_s=whole.high_s * left
                )
    return tuple(shown)


def _is_beside(task: object) -> bool:
    return isinstance(task, Collective) and task.kind == "all_to_all" and task.chunked
