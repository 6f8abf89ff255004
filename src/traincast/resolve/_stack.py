"""The framework that a question names, or that a practitioner would run it with."""

import dataclasses

from traincast.catalog import large_stack, plain_stack
from traincast.errors import InvalidInput
from traincast.resolve._defaults import entry_of, reads_text
from traincast.spec import Notes, Parallelism, Question, Stack

MANY_DEVICES = 256
"""From so many on, language models are trained with frameworks made for it, whatever the plan; sharded data parallelism alone
is run with PyTorch's own modules at any size."""
CUT_AXES = ("tensor", "pipeline", "expert")
"""Plain PyTorch cuts no layer and no pipeline by itself."""


def choose_stack(question: Question, *, plan: Parallelism | None = None, num_devices: int | None = None) -> Stack:
    """The stack that a question names, else the one that its plan (or `plan`, where one was made or is tried) is usually run
    with; without its habits where they are not wanted."""
    from traincast.catalog import stack

    job = question.job
    name = job.get("stack")
    if name is None:
        found = _assume_stack(question, plan=plan, num_devices=num_devices)
    elif isinstance(name, (str, Stack)):
        found = stack(name)
    else:
        raise InvalidInput(f"job.stack is {name!r}; it must be a name")
    wanted = job.get("stack_defaults")
    if wanted not in (None, True, False):
        raise InvalidInput(f"job.stack_defaults is {wanted!r}; it must be true or false")
    return found.without_habits() if wanted is False else _for_quantised(found, question)


def _assume_stack(question: Question, *, plan: Parallelism | None = None, num_devices: int | None = None) -> Stack:
    """What a practitioner would run a question with that names no stack: a framework for large models where a language model
    is cut by layers, stages or experts or runs on hundreds of devices unsharded, else plain PyTorch. `plan`: instead of what
    the question names of one. `num_devices`: where neither says it."""
    options = question.workload
    is_built = options.has_shape or bool(entry_of(question.source))
    if _is_tensorflow(question):
        from traincast.catalog import stack

        return stack("tensorflow")
    if options.mode == "inference" or not is_built or not reads_text(question.source, options):
        return plain_stack()

    def degree(name: str) -> int:
        found = question.parallelism.get(name, 1) if plan is None else getattr(plan, name)
        return found if isinstance(found, int) else 1

    if any(degree(name) > 1 for name in CUT_AXES):
        return large_stack()
    many = (plan.num_devices if plan is not None else num_devices or degree("data")) >= MANY_DEVICES
    return large_stack() if many and degree("zero") < 2 else plain_stack()


def _is_tensorflow(question: Question) -> bool:
    if entry_of(question.source):
        return False
    from traincast.capture import is_tensorflow

    return is_tensorflow(question.source)


def _for_quantised(stack: Stack, question: Question) -> Stack:
    """The stack as it trains adapters of a model whose weights are quantised."""
    habit = stack.plan.recomputes("quantised")
    if habit is None or (question.job.get("regime") != "qlora" and question.workload.frozen_dtype is None):
        return stack
    again = {**dict(stack.plan.recompute), "usual": habit}
    return dataclasses.replace(stack, plan=dataclasses.replace(stack.plan, recompute=tuple(again.items())))


def say_stack(question: Question, stack: Stack) -> Notes:
    """What is assumed where no stack is named, and how much is known of one that nobody measured."""
    if question.job.get("stack") is None:
        return (_say_assumed(question, stack),)
    is_told = question.job.get("stack_defaults") is not False and not stack.num_steps and not stack.is_plain
    return (f"{stack.name}: {stack.provenance}",) if is_told and stack.provenance else ()


def _say_assumed(question: Question, stack: Stack) -> str:
    if stack.is_plain:
        return "no framework is named; plain PyTorch is assumed"
    if _is_tensorflow(question):
        return f"no framework is named; a TensorFlow graph is run by {stack.title}"
    return (
        f"no framework is named; {stack.title[0].lower()}{stack.title[1:]} is assumed, with fused kernels and split sequences, "
        f"as such plans are usually run (--framework to change); {stack.provenance}"
    )
