"""A completed question to the job that the engine is asked: its model's graph as its data and its compiler change it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from traincast.cost import is_systolic
from traincast.errors import InvalidInput, did_you_mean
from traincast.files import read_calibration
from traincast.resolve import (
    REGIME_FIELDS,
    UNKNOWN,
    Completed,
    Load,
    Resolved,
    choose_stack,
    describe_settings,
    find_length,
    fit_precision,
    load_model,
    pose_regime,
    read_lengths,
    without_data,
)
from traincast.spec import (
    JOB_FIELDS,
    Asked,
    Cluster,
    Graph,
    Job,
    JobOptions,
    Notes,
    Parallelism,
    Question,
    Stack,
    WorkloadOptions,
)

_JOB_ONLY = (*(item.name for item in dataclasses.fields(JobOptions)), *REGIME_FIELDS)


def pose(completed: Completed) -> Resolved:
    """The job, cluster and plan that a question asks for."""
    whole, cluster, plan = completed.question, completed.cluster, completed.parallelism
    stack = choose_stack(whole, plan=plan)
    job, notes = _pose(whole, plan, cluster=cluster, stack=stack)
    frugal = None
    if whole.parallelism.get("recompute") == UNKNOWN:
        full = dataclasses.replace(plan, recompute="full")
        frugal = pose_job(whole, full, cluster=cluster, stack=stack)
    return Resolved(
        question=whole, job=job, cluster=cluster, parallelism=plan, frugal=frugal,
        assumptions=tuple(dict.fromkeys((*completed.assumptions, *notes))),
        settings=describe_settings(whole, job, plan, asked=completed.asked, choice=completed.choice),
        calibration=read_calibration(whole.calibration),
    )  # fmt: skip


def pose_job(
    question: Question, plan: Parallelism, *, cluster: Cluster | None = None, stack: Stack | None = None,
    batch: int | None = None, seq: int | None = None,
) -> Job:  # fmt: skip
    """The job that a filled-in question asks for under a plan, at its own batch and length or at others."""
    options = question.workload
    if batch is not None:
        options = dataclasses.replace(options, batch=batch)
    if seq is not None:
        options = dataclasses.replace(options, seq=seq)
    question = dataclasses.replace(question, workload=options)
    return _pose(question, plan, cluster=cluster, stack=stack or choose_stack(question, plan=plan))[0]


def _pose(question: Question, plan: Parallelism, *, cluster: Cluster | None, stack: Stack) -> tuple[Job, Notes]:
    options, formats = fit_precision(question.workload, cluster)
    if options.recompute_layers is not None and plan.recompute != "full":
        raise InvalidInput(f"recompute_layers goes with --recompute full; recompute is {plan.recompute}")
    heard: list[str] = []

    def load(wanted: WorkloadOptions, source: str | None = None, /) -> Graph:
        # What only runs forward runs nothing again.
        own = plan if wanted.mode == options.mode else dataclasses.replace(plan, recompute="none")
        graph, notes = load_graph(source or question.source, wanted, plan=own, stack=stack)
        heard.extend(notes)
        return graph

    job, notes = pose_with(load, question, options, plan=plan, stack=stack)
    job, compiled = _compile_programs(job, question, cluster)
    return job, (*formats, *heard, *notes, *compiled)


def _compile_programs(job: Job, question: Question, cluster: Cluster | None) -> tuple[Job, Notes]:
    """Chips with systolic arrays run programs that their vendor's compiler made of a whole step, whatever wrote the step."""
    if cluster is None or job.compiled or "compiled" in question.job:
        return job, ()
    if not all(is_systolic(group.device) for group in cluster.groups):
        return job, ()
    told = f"a step on {cluster.groups[0].device.name} is one compiled program (--no-compiled to change)"
    return dataclasses.replace(job, compiled=True, cuda_graphs=True), (told,)


def pose_with(
    load: Load, question: Question, options: WorkloadOptions, *, plan: Parallelism, stack: Stack
) -> tuple[Job, Notes]:
    """The job of a question whose graphs are loaded in the caller's own way, and what is assumed of it."""
    usual = find_length(question.source, options)
    posed = pose_regime(question.job, options, load, plan=plan, usual_seq=usual)
    seq = posed.regime.seq if posed.regime else None
    if seq is None:
        seq = usual if posed.options is options else find_length(question.source, posed.options)
    values, notes = _complete_epochs(question)
    job = build_job(values, posed.graph, stack=stack, seq=seq)
    job = job if posed.regime is None else dataclasses.replace(job, regime=posed.regime)
    return job, (*posed.assumptions, *notes)


def _complete_epochs(question: Question) -> tuple[Mapping[str, Any], Notes]:
    """The samples of an epoch where nobody says them: those of the data set that a workload of the catalogue is trained on."""
    values = question.job
    if values.get("epochs") is None or values.get("epoch_samples") is not None:
        return values, ()
    from traincast.catalog import usual_dataset

    known = usual_dataset(question.source)
    if known is None or known.num_train_samples is None:
        return values, ()
    count = known.num_train_samples
    told = f"an epoch of {count:,} samples is assumed, the data set {known.name} (--epoch-samples to change)"
    return {**values, "epoch_samples": count}, (told,)


def build_job(values: Mapping[str, Any], graph: Graph, *, stack: Stack | None = None, seq: int | None = None) -> Job:
    """A job from what a question says about it. `seq`: tokens of a sample, where they are known."""
    table = dict(values)
    software = stack or choose_stack(Question(source="", job=table))
    known = {item.name: item for item in JOB_FIELDS}
    for key, value in table.items():
        if key not in known:
            raise InvalidInput(
                f"job has the unknown key {key!r}; allowed: {', '.join(known)}{did_you_mean(key, known)}"
            )
        _check_kind(known[key], value)
    for one, other in (("loader_cores", "decode_samples_per_s"), ("sample_bytes", "storage_bytes_per_s")):
        if (table.get(one) is None) != (table.get(other) is None):
            raise InvalidInput(f"{one} and {other} go together; give both or neither")
    amounts = _count_samples(table, seq)
    named = {name: value for name, value in table.items() if name not in (*_JOB_ONLY, "stack")}
    if named.get("max_autotune"):
        from traincast.lower import mark_autotuned

        graph = mark_autotuned(graph)
        named = {"compiled": True, "cuda_graphs": True} | named
    named.setdefault("compiled", "step" in software.recipe.compiles)
    named.setdefault("cuda_graphs", "program" in software.recipe.compiles)
    if named["compiled"] and "loss" not in software.recipe.compiles:
        from traincast.lower import leave_eager

        graph = leave_eager(graph, "loss")
    if named["compiled"] and "kept" in software.recipe.compiles:
        from traincast.lower import choose_kept

        graph = choose_kept(graph)
    return Job(graph=graph, stack=software, **{**named, **amounts})


def _check_kind(item: Asked, value: Any) -> None:
    if item.kind is bool:
        right, wanted = isinstance(value, bool), "true or false"
    elif item.kind is str:
        right, wanted = isinstance(value, (str, Stack)), "a name"
    else:
        right, wanted = isinstance(value, (int, float)) and not isinstance(value, bool), "a number"
    if not right:
        raise InvalidInput(f"job.{item.name} is {value!r}; it must be {wanted}")


def _count_samples(table: Mapping[str, Any], seq: int | None) -> dict[str, float]:
    """The samples of a job that is given in epochs or in tokens."""
    ways = [name for name in ("steps", "samples", "epochs", "tokens") if table.get(name) is not None]
    if len(ways) > 1:
        raise InvalidInput("give steps, samples, epochs or tokens, not two of them")
    for name in ("epochs", "tokens"):
        amount = table.get(name)
        if amount is not None and not (amount > 0 and math.isfinite(amount)):
            raise InvalidInput(f"{name} = {amount}; it must be a finite number above 0")
    if table.get("epochs") is not None:
        if table.get("epoch_samples") is None:
            raise InvalidInput("epochs needs the samples of one epoch; give --epoch-samples")
        return {"samples": table["epochs"] * table["epoch_samples"]}
    if table.get("tokens") is not None:
        if not seq:
            raise InvalidInput("tokens needs the length of a sample; give --seq")
        return {"samples": table["tokens"] / seq}
    return {}


def load_source(
    source: str,
    options: WorkloadOptions,
    *,
    recompute: str = "none",
    plan: Parallelism | None = None,
    stack: Stack | None = None,
) -> Graph:
    """The step that a source names, at the asked batch."""
    return load_graph(source, options, plan=plan or Parallelism(recompute=recompute), stack=stack or Stack())[0]


def load_graph(source: str, options: WorkloadOptions, *, plan: Parallelism, stack: Stack) -> tuple[Graph, Notes]:
    """The same with what the question says of its data, and what is assumed of both."""
    graph, notes = load_model(source, options, plan, stack)
    if without_data(options) is options:
        return graph, notes
    from traincast.lower import use_data

    graph, told = use_data(graph, options, read_lengths(options, graph.tokens_per_sample))
    return graph, (*notes, *told)
