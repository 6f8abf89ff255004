"""A question that names no plan or no batch to one with a plan and a batch that fit, and to the words that say so."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from traincast.forecast._defaults import is_saved, reads_text
from traincast.forecast._engine import Engine
from traincast.forecast._habits import UNKNOWN
from traincast.forecast._ladder import AXES, TOLERANCE, Choice, Open, Pose, choose_plan
from traincast.forecast._plain import plain_engine
from traincast.forecast._resolve import choose_stack, complete_plan, load_source, pose_job, record_any_batch
from traincast.spec import JOB_FIELDS, PLAN_FIELDS, WORKLOAD_FIELDS, Cluster, Graph, Job, Parallelism, Question, Stack

_ALWAYS = ("data", "zero", "recompute", "micro_batches")
"""Of a plan that we choose; other fields are said where they differ from one device's."""
_RECORDED = (".py", ".onnx", ".pb", ".pbtxt", ".meta", ".keras", ".mlir", ".stablehlo", ".jaxpr")


def choose_open(
    question: Question, cluster: Cluster, stack: Stack, said: list[str], *, pose: Pose | None = None,
    engine: Engine | None = None,
) -> Question:  # fmt: skip
    """The question with a plan and a batch that fit, where it names none. What it names is kept."""
    asked = _read(question, cluster, stack)
    if asked is None or (pose is None and not question.source and not question.workload.has_shape):
        return question

    judge = engine or plain_engine()
    choice = _choose_under(stack, question, asked, pose, judge)
    if choice is None:
        return question
    own = choose_stack(_take(question, choice), num_devices=cluster.num_devices)
    if pose is None and own.name != stack.name and not _fits_under(own, choice, question, asked, judge):
        # What holds less under the software that such a plan is usually run with is chosen again under it.
        choice = _choose_under(own, question, asked, pose, judge) or choice
    said.extend(_say(choice, asked))
    return _take(question, choice)


def _choose_under(stack: Stack, question: Question, asked: Open, pose: Pose | None, engine: Engine) -> Choice | None:
    """Plans are compared under one stack, so that what is compared is plans."""
    cluster = asked.cluster

    def pose_here(plan: Parallelism, size: int | None) -> Job:
        return pose_job(question, plan, cluster=cluster, stack=stack, batch=size)

    def complete(values: Mapping[str, Any]) -> Parallelism:
        return complete_plan(values, num_devices=cluster.num_devices, stack=stack)

    return choose_plan(asked, pose or pose_here, complete, engine)


def _fits_under(stack: Stack, choice: Choice, question: Question, asked: Open, engine: Engine) -> bool:
    if not choice.fits:
        return True
    plan = choice.taken.plan
    job = pose_job(question, plan, cluster=asked.cluster, stack=stack, batch=choice.taken.batch)
    return asked.takes(engine.memory(engine.lower(job, asked.cluster, plan), job, asked.cluster))


def _read(question: Question, cluster: Cluster, stack: Stack) -> Open | None:
    """What is open; None: nothing, or nothing that can be chosen."""
    values, options = question.parallelism, question.workload
    is_whole = all(isinstance(values.get(axis, 1), (int, str, bool)) for axis in AXES) and all(
        isinstance(values.get(axis, 1), int) for axis in ("data", "tensor", "pipeline", "context", "zero")
    )
    if options.mode == "inference" or values.get("recompute") == UNKNOWN or not is_whole:
        return None
    if options.batch is not None and any(axis in values for axis in AXES):
        return None
    batch = options.batch
    if batch is None:
        batch = _fixed_batch(question, stack)
    whole = question.job.get("global_batch")
    return Open(
        values=values, cluster=cluster, text=reads_text(question.source, options), batch=batch,
        names_batch=options.batch is not None,
        global_batch=whole if isinstance(whole, int) and not isinstance(whole, bool) and whole >= 1 else None,
        sharded_recompute=stack.plan.sharded_recompute, usual_recompute=stack.plan.recompute,
        usual_zero=None if question.job.get("stack") is None else stack.plan.zero,
    )  # fmt: skip


def _fixed_batch(question: Question, stack: Stack) -> int | None:
    """Of a model that is recorded: recording it again at other batches would take as long each time."""
    source = question.source
    if not source or question.workload.has_shape or not (is_saved(question) or is_recorded(source)):
        return None
    if not is_saved(question) and record_any_batch(source, question.workload) is not None:
        return None
    return load_source(source, question.workload, stack=stack).batch_size


def is_recorded(source: str) -> bool:
    """Whether a model is run to be known."""
    from traincast.catalog import load_facts

    return load_facts("model").get(source) is None and (
        ".py:" in source or source.endswith((*_RECORDED, ".json", ".json.gz")) or "/" in source
    )


def _take(question: Question, choice: Choice) -> Question:
    plan, plain = choice.taken.plan, Parallelism()
    names = (*_ALWAYS, *(name for name in AXES if getattr(plan, name) != getattr(plain, name)))
    values = {**question.parallelism, **{name: getattr(plan, name) for name in names}}
    options = dataclasses.replace(question.workload, batch=choice.taken.batch)
    return dataclasses.replace(question, workload=options, parallelism=values)


def _say(choice: Choice, asked: Open) -> Iterator[str]:
    taken, plan = choice.taken, choice.taken.plan
    if not asked.names_plan and asked.cluster.num_devices > 1:
        yield _say_plan(choice)
    if not asked.names_batch:
        passes = f"{plan.micro_batches} passes of " if plan.micro_batches > 1 else ""
        samples = f"{taken.batch:,} sample{'s' if taken.batch > 1 else ''}"
        where = f" on each of {plan.data} replicas" if plan.data > 1 else ""
        total = taken.batch * plan.micro_batches * plan.data
        yield f"a step of {total:,} samples is assumed: {passes}{samples}{where}"
    if plan.recompute != "none" and "recompute" not in asked.values:
        what = {"products": "every second product and the cheap operations", "full": "whole layers"}[plan.recompute]
        yield (
            f"{what} of a layer are run again in the backward pass, to save memory"
            if plan.recompute == "products"
            else (f"{what} are run again in the backward pass, to save memory")
        )


def _say_plan(choice: Choice) -> str:
    taken = choice.taken
    if not choice.fits:
        return f"no plan is named, and none of {choice.num_tried} that were tried fits; the nearest is {taken.title}"
    tried = f"no plan is named; {taken.title} is the simplest of {choice.num_tried} tried that fits"
    if choice.price < 0.001:
        return f"{tried}, and none of them is faster"
    return f"{tried} within {TOLERANCE:.0%} of the fastest ({choice.fastest.title}: {choice.price:.1%} less time)"


def list_assumed(asked: Question, whole: Question, job: Job, plan: Parallelism) -> tuple[str, ...]:
    """The flags that say what was assumed; with them a command asks for exactly this answer."""
    words: list[str] = []
    made = {**whole.workload.given(), **_recipe_of(job.graph)}
    before, saved = asked.workload.given(), is_saved(asked)
    for item in WORKLOAD_FIELDS:
        if item.name in made and item.name not in before and not saved:
            words += item.words_for(made[item.name])
    values = {**whole.parallelism, "micro_batches": plan.micro_batches, "zero": plan.zero, "recompute": plan.recompute}
    for item in PLAN_FIELDS:
        if item.name in values and item.name not in asked.parallelism:
            words += item.words_for(values[item.name])
    for item in JOB_FIELDS:
        if item.name == "stack" and "stack" not in asked.job:
            words += item.words_for(job.stack.name)
    return tuple(words)


def _recipe_of(graph: Graph) -> dict[str, str]:
    """What updates the weights, where a graph says it."""
    named = next((op.name for op in graph.ops if op.kind == "optimizer"), "")
    found = named.removeprefix("optimizer.").split("[")[0].split(".")[0]
    return {"optimizer": found} if named.startswith("optimizer.") else {}
