"""A question that names no plan or no batch to one with a plan and a batch that fit, and to the words that say so."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from traincast.cost import COST_MODELS
from traincast.forecast import Engine, load_source, plain_engine, pose_job
from traincast.plan._judge import Judge
from traincast.plan._ladder import TOLERANCE, Choice, climb
from traincast.plan._nouns import JobAt
from traincast.plan._usual import Open
from traincast.resolve import AXES, Prepared, choose_stack, complete_plan, find_training, is_saved, record_any_batch
from traincast.spec import Cluster, Job, Parallelism, Question, Stack

_ALWAYS = ("data", "zero", "recompute", "micro_batches")
"""Of a plan that we choose; other fields are said where they differ from one device's."""
_RECORDED = (".py", ".onnx", ".pb", ".pbtxt", ".meta", ".keras", ".mlir", ".stablehlo", ".jaxpr")


def choose(prepared: Prepared, *, job_at: JobAt | None = None, engine: Engine | None = None) -> Prepared:
    """The question with a plan and a batch that fit, where it names none. What it names is kept.
    `job_at`: the job of a plan at a batch, where the question's source does not say it (an uploaded model).
    `engine`: what judges plans, where one has answered before."""
    question, cluster, stack = prepared.question, prepared.cluster, prepared.stack
    if job_at is None and not question.source and not question.workload.has_shape:
        return prepared
    if question.job.get("cost_model") is not None:
        # An unknown name is refused before plans are tried with it.
        COST_MODELS.find(str(question.job["cost_model"]))
    asked = _read(question, cluster, stack)
    judge = engine or plain_engine()
    choice = _choose_under(stack, question, asked, job_at, judge)
    if choice is None:
        return prepared
    own = choose_stack(_take(question, choice), num_devices=cluster.num_devices)
    if job_at is None and own.name != stack.name and not _fits_under(own, choice, question, asked, judge):
        # What holds less under the software that such a plan is usually run with is chosen again under it.
        choice = _choose_under(own, question, asked, job_at, judge) or choice
    beside = None if job_at is not None else _faster_beside(own, choice, question, asked, judge)
    told = "" if asked.names_plan or cluster.num_devices == 1 else _say_plan(choice, beside)
    said = (*prepared.assumptions, *((told,) if told else ()), *_say(choice, asked))
    return dataclasses.replace(prepared, question=_take(question, choice), assumptions=said, choice=told)


def _faster_beside(
    own: Stack, choice: Choice, question: Question, asked: Open, engine: Engine
) -> tuple[str, float] | None:
    """(what, share of the time less) of the best plan that another framework is assumed for, where it is worth naming."""
    other = choose_stack(question, plan=Parallelism(tensor=2))
    if asked.names_plan or asked.cluster.num_devices == 1 or not choice.fits or other.name == own.name:
        return None
    found = _choose_under(other, question, dataclasses.replace(asked, cuts=True), None, engine)
    if found is None or not found.fits or not found.fastest.samples_per_s:
        return None
    less = 1 - choice.taken.samples_per_s / found.fastest.samples_per_s
    return (f"{found.fastest.title} with the framework {other.name}", less) if less > TOLERANCE else None


def _choose_under(stack: Stack, question: Question, asked: Open, job_at: JobAt | None, engine: Engine) -> Choice | None:
    """Plans are compared under one stack, so that what is compared is plans."""
    cluster = asked.cluster

    def pose_here(size: int, plan: Parallelism) -> Job:
        return pose_job(question, plan, cluster=cluster, stack=stack, batch=size)

    def complete(values: Mapping[str, Any]) -> Parallelism:
        return complete_plan(values, num_devices=cluster.num_devices, stack=stack)

    return climb(asked, complete, Judge(engine=engine, cluster=cluster, job_at=job_at or pose_here))


def _fits_under(stack: Stack, choice: Choice, question: Question, asked: Open, engine: Engine) -> bool:
    if not choice.fits:
        return True
    plan = choice.taken.plan
    job = pose_job(question, plan, cluster=asked.cluster, stack=stack, batch=choice.taken.batch)
    return asked.takes(engine.memory(engine.lower(job, asked.cluster, plan), job, asked.cluster))


def _read(question: Question, cluster: Cluster, stack: Stack) -> Open:
    """What is named, and what is to be chosen."""
    values, options, training = question.parallelism, question.workload, find_training(question)
    batch = options.batch
    if batch is None:
        batch = _fixed_batch(question, stack)
    whole = question.job.get("global_batch")
    return Open(
        values=values, cluster=cluster, training=training, batch=batch,
        names_batch=options.batch is not None,
        global_batch=whole if isinstance(whole, int) and not isinstance(whole, bool) and whole >= 1 else None,
        sharded_recompute=stack.plan.recomputes("sharded"), usual_recompute=stack.plan.recomputes() or training.recompute,
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
    if not asked.names_batch:
        passes = f", gradient accumulation {plan.micro_batches}" if plan.micro_batches > 1 else ""
        where = f", data parallel {plan.data}" if plan.data > 1 else ""
        total = taken.batch * plan.micro_batches * plan.data
        usual = f", as {asked.training.title} is usually run" if asked.training.samples_per_step else ""
        yield f"a step of {total:,} samples is assumed: micro-batch {taken.batch}{passes}{where}{usual}"
    if plan.recompute != "none" and "recompute" not in asked.values:
        what = {"selective-op": "selective activation checkpointing (every second matmul and what is cheap)"}
        why = "to save memory" if asked.training.recompute is None else f"as usual in {asked.training.title}"
        yield f"{what.get(plan.recompute, f'{plan.recompute} activation checkpointing')} is assumed, {why}"


def _say_plan(choice: Choice, beside: tuple[str, float] | None) -> str:
    taken = choice.taken
    if not choice.fits:
        return f"no plan is named, and none of {choice.num_tried} that were tried fits; the nearest is {taken.title}"
    told = f"no plan is named: {taken.title}, the simplest of {choice.num_tried} tried"
    if beside is not None:
        return f"{told}; {beside[0]}: {beside[1]:.0%} less time (traincast plan)"
    if choice.price >= 0.001:
        told += f" within {TOLERANCE:.0%} of the fastest ({choice.fastest.title}: {choice.price:.1%} less time)"
    return f"{told}; traincast plan searches further"
