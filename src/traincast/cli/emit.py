"""An answer to the text of the file that starts the same job elsewhere."""

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.spec import Forecast, Question

if TYPE_CHECKING:
    from traincast.plan import Plan
    from traincast.resolve import Resolved


def emit_answer(question: Question, resolved: "Resolved", answer: Forecast, *, kind: str) -> str:
    from traincast.plan import Plan, emit
    from traincast.resolve import fill_in, spell_out

    plan = Plan.of(answer, resolved.cluster, resolved.parallelism, batch=resolved.job.graph.batch_size)
    whole = spell_out(_with_settings(fill_in(question), resolved), resolved.job)
    say_unwritten(whole, plan, kind)
    return emit(plan, kind, precision=whole.workload.precision or "fp32", question=whole).rstrip("\n")


def _with_settings(question: Question, resolved: "Resolved") -> Question:
    """The number format and the length that were assumed."""
    options, settings = question.workload, resolved.settings
    has_length = options.seq is not None or options.has_shape or (resolved.job.regime and resolved.job.regime.seq)
    return replace(
        question,
        workload=replace(
            options,
            precision=options.precision or settings.get("precision"),
            seq=options.seq if has_length else settings.get("seq"),
        ),
    )


def say_unwritten(question: Question, plan: "Plan", kind: str) -> None:
    """A file without comments cannot say what it leaves out, so the command does."""
    from traincast.configs import FORMATS, list_unwritten, writable
    from traincast.plan import make_recipe

    if kind not in writable() or FORMATS[kind].syntax != "json":
        return
    recipe = make_recipe(
        plan, quantile=0.95, command="train.py", precision=question.workload.precision or "fp32", question=question
    )
    lines = list_unwritten(
        recipe.question, recipe.plan, kind, num_nodes=recipe.num_nodes, devices_per_node=recipe.per_node
    )
    sys.stderr.write("".join(f"{kind}: {line}\n" for line in lines))
