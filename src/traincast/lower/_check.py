"""Verifies a program before anyone puts a price on it."""

from traincast.errors import IllegalPlan, InvalidInput
from traincast.memo import Remember, compute
from traincast.spec import AXES, HOST, PHASES, Collective, Program, Stage


def check_program(program: Program) -> Program:
    """The program itself, if every stage keeps the rules of the intermediate form."""
    check_stages(program.stages)
    return program


def check_stages(stages: tuple[Stage, ...], *, remember: Remember = compute) -> tuple[Stage, ...]:
    """The stages themselves, if each keeps the rules of the intermediate form."""
    if not stages:
        raise IllegalPlan("the plan leaves no stage to run")
    for stage in stages:
        remember(_check_stage, stage)
    return stages


_AXES = frozenset((*AXES, HOST))
_PHASES = frozenset((*PHASES, "gradient"))


def _check_stage(stage: Stage) -> None:
    in_optimizer = False
    num_tensors = len(stage.tensors)
    for index, task in enumerate(stage.tasks):
        if isinstance(task, Collective):
            if task.axis not in _AXES or task.phase not in _PHASES:
                raise InvalidInput(f"task {index} is a collective on axis {task.axis!r} in phase {task.phase!r}")
            if task.num_ranks < 2 and task.axis != HOST:
                raise InvalidInput(f"task {index}, {task.name}, has {task.num_ranks} rank; a collective needs two")
            continue
        in_optimizer = in_optimizer or task.phase == "optimizer"
        if in_optimizer and task.phase != "optimizer":
            raise InvalidInput(f"task {index}, {task.name!r} ({task.phase}), comes after the optimizer")
        named = task.reads + task.writes
        if named and not (min(named) >= 0 and max(named) < num_tensors):
            raise InvalidInput(f"task {index}, {task.name!r}, names a tensor that stage {stage.index} does not have")
