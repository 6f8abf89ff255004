"""A question to one without gaps, on its cluster and with its plan: names are looked up, habits filled in, assumptions listed."""

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from traincast.noun import noun
from traincast.resolve._defaults import is_saved, with_defaults
from traincast.resolve._habits import check_passes, fill_in_plan, for_optimizer, read_precision, spell_recompute
from traincast.resolve._place import place
from traincast.resolve._plan import AXES, decode_plan, share_batch, with_replicas
from traincast.resolve._precision import fit_precision, written_precision
from traincast.resolve._question import fill_in
from traincast.resolve._regimes import describe_images
from traincast.resolve._source import find_length
from traincast.resolve._stack import choose_stack, say_stack
from traincast.spec import (
    JOB_FIELDS,
    PLAN_FIELDS,
    WORKLOAD_FIELDS,
    Calibration,
    Cluster,
    Graph,
    Job,
    Notes,
    Parallelism,
    Question,
    Stack,
)


@noun
class Resolved:
    """A question after every name was looked up and every gap filled."""

    question: Question
    """With every gap filled."""
    job: Job
    cluster: Cluster
    parallelism: Parallelism
    assumptions: Notes = ()
    """What nobody said and was filled in, a sentence each."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the answer is for: precision, sequence length, batches, stack."""
    calibration: Calibration | None = None
    """What the question says was learnt."""
    frugal: Job | None = None
    """Where it is left open whether layers are run again: the same job with all of them run again."""


@noun
class Prepared:
    """A question on its cluster, with its number format and length; its plan and its batch may still be open."""

    question: Question
    cluster: Cluster
    stack: Stack
    """What it is run with as far as its plan is known."""
    asked: Question
    """The question as it was asked, with the values of its files."""
    assumptions: Notes = ()
    choice: str = ""
    """What was chosen where no plan is named, and how good it is."""


@noun
class Completed:
    """A question with every word said, and its plan with every degree."""

    question: Question
    cluster: Cluster
    parallelism: Parallelism
    asked: Question
    assumptions: Notes = ()
    choice: str = ""


def prepare(question: Question, cluster: Cluster | None = None) -> Prepared:
    """Look up every name of a question; the job file's own values are filled in first. What is said always wins. `cluster`:
    where it is known, of a question that is filled in."""
    asked, notes = question, Notes()
    if cluster is None:
        asked = fill_in(question)
        question, cluster, notes = _place_annotated(asked) if _may_be_annotated(asked) else (asked, *place(asked))
    stack = choose_stack(question, num_devices=cluster.num_devices)
    filled, assumed = with_defaults(question, [group.device for group in cluster.groups], stack)
    notes = (*notes, *question.said, *assumed)
    return Prepared(question=filled, cluster=cluster, stack=stack, assumptions=notes, asked=asked)


def _may_be_annotated(question: Question) -> bool:
    """A program may say its own plan where the question names no axis of one."""
    return bool(question.source) and not any(axis in question.parallelism for axis in AXES) and is_saved(question)


def _place_annotated(question: Question) -> tuple[Question, Cluster, Notes]:
    from traincast.resolve._annotated import find_annotated, spread_annotated, take_annotated

    annotated = find_annotated(question)
    taken = take_annotated(question, annotated)
    cluster, placed = place(taken)
    spread, told = spread_annotated(taken, annotated, cluster)
    return spread, cluster, (*placed, *told)


def complete(prepared: Prepared) -> Completed:
    """The question with its batch, and its plan with every degree, its passes and the habits of its stack. What is still open is
    the simplest: a replica on every device."""
    question, cluster = prepared.question, prepared.cluster
    stack = choose_stack(question, num_devices=cluster.num_devices)
    values = with_replicas(question.parallelism, num_devices=cluster.num_devices)
    batch, values["micro_batches"], shared = share_batch(question, values)
    filled, habits = fill_in_plan(values, for_optimizer(stack, question.workload.optimizer))
    plan = decode_plan(filled)
    check_passes(plan, stack)
    options = question.workload if batch is None else dataclasses.replace(question.workload, batch=batch)
    options, formats = fit_precision(options, cluster)
    return Completed(
        question=dataclasses.replace(question, workload=options), cluster=cluster, parallelism=plan, asked=prepared.asked,
        assumptions=(*say_stack(question, stack), *prepared.assumptions, *shared, *habits, *formats), choice=prepared.choice,
    )  # fmt: skip


def describe_settings(
    question: Question, job: Job, plan: Parallelism, *, asked: Question | None = None, choice: str = ""
) -> dict[str, Any]:
    """What the answer is for, by name. `asked`: the question before its gaps were filled, so that flags say how."""
    options, batch = question.workload, job.graph.batch_size
    is_written = options.precision is None and is_saved(question)
    return {
        "precision": written_precision(job.graph)
        if is_written
        else read_precision(options.precision, job.stack, sharded=plan.zero == 3),
        "seq": (job.regime.seq if job.regime else None) or find_length(question.source, options),
        "images": describe_images(job.graph),
        "batch": batch,
        "micro_batches": plan.micro_batches,
        "global_batch": batch * plan.micro_batches * plan.data,
        "recompute": plan.recompute,
        "stack": job.stack.spelling,
        "compiled": job.compiled,
        "checkpoint_bytes_per_s": job.checkpoint_bytes_per_s,
        "choice": choice,
        "flags": () if asked is None else list_assumed(asked, question, job, plan),
    }


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
            said = values[item.name]
            words += item.words_for(spell_recompute(said, job.stack) if item.name == "recompute" else said)
    for item in JOB_FIELDS:
        if item.name == "stack" and "stack" not in asked.job:
            words += item.words_for(job.stack.name)
    return tuple(words)


def _recipe_of(graph: Graph) -> dict[str, str]:
    """What updates the weights, where a graph says it."""
    named = next((op.name for op in graph.ops if op.kind == "optimizer"), "")
    found = named.removeprefix("optimizer.").split("[")[0].split(".")[0]
    return {"optimizer": found} if named.startswith("optimizer.") else {}
