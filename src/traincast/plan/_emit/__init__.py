"""A plan to a file that a scheduler or a launcher reads, its time limit at a chosen quantile."""

from collections.abc import Callable

from traincast.configs import writable
from traincast.plan._emit.launchers import emit_config, emit_torchrun
from traincast.plan._emit.recipe import Recipe, make_recipe
from traincast.plan._emit.schedulers import emit_kubernetes, emit_skypilot, emit_slurm, slurm_flags
from traincast.plan._nouns import Plan
from traincast.registry import Registry
from traincast.spec import Question

__all__ = ["EMITTERS", "Recipe", "emit", "make_recipe", "slurm_flags"]

EMITTERS: Registry[Callable[[Recipe], str]] = Registry(
    kind="emitter",
    entries={
        "slurm": emit_slurm,
        "skypilot": emit_skypilot,
        "torchrun": emit_torchrun,
        "k8s": emit_kubernetes,
        **{name: emit_config(name) for name in writable()},
    },
    aliases={"kubernetes": "k8s"},
)
"""A file format by its name; another package adds one through the entry-point group `traincast.emitters`."""


def emit(
    plan: Plan, kind: str, *, quantile: float = 0.95, command: str = "train.py", precision: str = "",
    question: Question | None = None,
) -> str:  # fmt: skip
    """The text of the file; `command` is what every rank runs, `precision` that of the job where the file has a place for it.

    `question`: what the plan answers, for files that hold the model, its length, its optimizer and the steps too.
    """
    write = EMITTERS.find(kind)
    return write(make_recipe(plan, quantile=quantile, command=command, precision=precision, question=question))
