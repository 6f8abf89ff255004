"""A question to a job, a cluster and a plan: names are looked up, the stack's habits filled in, every assumption said."""

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincast.catalog import BLOCK_SCALED, precision_name
from traincast.cost import is_systolic
from traincast.errors import CaptureFailed, IllegalPlan, InvalidInput, did_you_mean
from traincast.forecast._annotated import find_annotated, spread_annotated, take_annotated
from traincast.forecast._defaults import assume_stack, say_assumed, with_defaults
from traincast.forecast._engine import Engine
from traincast.forecast._habits import (
    UNKNOWN,
    check_passes,
    fill_in_plan,
    fill_in_recipe,
    for_optimizer,
    read_precision,
)
from traincast.forecast._ladder import Pose
from traincast.forecast._place import build_cluster as _build_place
from traincast.forecast._pose import REGIME_FIELDS, Load, pose_regime
from traincast.forecast._samples import check_data, use_data, without_data
from traincast.forecast._words import read_amount
from traincast.spec import (
    CLUSTER_FIELDS,
    JOB_FIELDS,
    PLAN_FIELDS,
    SAMPLED,
    SHAPE,
    Asked,
    Calibration,
    Cluster,
    ConfigText,
    Graph,
    Job,
    JobOptions,
    Parallelism,
    Question,
    Scalable,
    Stack,
    WorkloadOptions,
    implied_micro_batches,
)

MODEL_FOLDERS = ("saved_model.pb", "config.json")
"""A folder that holds one of these is a model."""
_JOB_ONLY = (*(item.name for item in dataclasses.fields(JobOptions)), *REGIME_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A question after every name was looked up and every gap filled."""

    job: Job
    cluster: Cluster
    parallelism: Parallelism
    assumptions: tuple[str, ...] = ()
    """What nobody said and was filled in, a sentence each."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the answer is for: precision, sequence length, batches, stack."""
    calibration: Calibration | None = None
    """What the question says was learnt."""
    frugal: Job | None = None
    """Where it is left open whether layers are run again: the same job with all of them run again."""


def resolve(question: Question) -> Resolved:
    """Look up every name of a question; the job file's own values are filled in first. What is said always wins."""
    whole = fill_in(question)
    said: list[str] = []
    asked = whole
    annotated = find_annotated(whole)
    whole = take_annotated(whole, annotated)
    cluster = build_cluster(whole, said=said)
    whole = spread_annotated(whole, annotated, cluster, said)
    whole, plan = complete_question(whole, cluster, said)
    stack = choose_stack(whole, plan=plan)
    job = pose_job(whole, plan, cluster=cluster, stack=stack, said=said)
    frugal = None
    if whole.parallelism.get("recompute") == UNKNOWN:
        full = dataclasses.replace(plan, recompute="full")
        frugal = pose_job(whole, full, cluster=cluster, stack=stack)
    return Resolved(
        job=job, cluster=cluster, parallelism=plan, assumptions=tuple(dict.fromkeys(said)), frugal=frugal,
        settings=describe_settings(whole, job, plan, asked=asked), calibration=read_calibration(whole.calibration),
    )  # fmt: skip


def read_calibration(named: str | Calibration | None) -> Calibration | None:
    """What a question names as learnt: by its name, its file, or itself."""
    if not isinstance(named, str):
        return named
    from traincast.files import load_calibration

    return load_calibration(named)


def fill_in(question: Question) -> Question:
    """The question with the values of its job file, where it names one; what the question says itself wins."""
    whole = _merge_job_file(question) if question.source.endswith(".toml") else question
    if whole.configs or whole.source.startswith("hf:") or whole.source.endswith(".json"):
        from traincast.configs import merge_configs

        whole = merge_configs(whole)
    return dataclasses.replace(
        whole,
        cluster=_read_units(whole.cluster, CLUSTER_FIELDS),
        parallelism=_read_units(whole.parallelism, PLAN_FIELDS),
        job=_read_units(whole.job, JOB_FIELDS),
    )


def choose_stack(question: Question, *, plan: Parallelism | None = None, num_devices: int | None = None) -> Stack:
    """The stack that a question names, else the one that its plan (or `plan`, where one was made or is tried) is usually run
    with; without its habits where they are not wanted."""
    from traincast.catalog import stack

    job = question.job
    _check_costs(job.get("cost_model"))
    name = job.get("stack")
    if name is None:
        found = assume_stack(question, plan=plan, num_devices=num_devices)
    elif isinstance(name, (str, Stack)):
        found = stack(name)
    else:
        raise InvalidInput(f"job.stack is {name!r}; it must be a name")
    wanted = job.get("stack_defaults")
    if wanted not in (None, True, False):
        raise InvalidInput(f"job.stack_defaults is {wanted!r}; it must be true or false")
    return found.without_habits() if wanted is False else _for_quantised(found, question)


def _for_quantised(stack: Stack, question: Question) -> Stack:
    """The stack as it trains adapters of a model whose weights are quantised."""
    habit = stack.plan.quantised_recompute
    if habit is None or (question.job.get("regime") != "qlora" and question.workload.frozen_dtype is None):
        return stack
    return dataclasses.replace(stack, plan=dataclasses.replace(stack.plan, recompute=habit))


def _say_stack(question: Question, stack: Stack) -> list[str]:
    """What is assumed where no stack is named, and how much is known of one that nobody measured."""
    if question.job.get("stack") is None:
        return [say_assumed(stack)]
    is_told = question.job.get("stack_defaults") is not False and not stack.num_steps and not stack.is_plain
    return [f"{stack.name}: {stack.provenance}"] if is_told and stack.provenance else []


def _check_costs(named: Any) -> None:
    """An unknown name is refused before plans are tried with it."""
    if named is None:
        return
    from traincast.cost import COST_MODELS

    if not isinstance(named, str):
        raise InvalidInput(f"job.cost_model is {named!r}; it must be a name")
    COST_MODELS.find(named)


def build_cluster(question: Question, *, said: list[str] | None = None) -> Cluster:
    return _build_place(question.cluster, num_wanted=_wanted_devices(question.parallelism), said=said)


def _wanted_devices(parallelism: Mapping[str, Any]) -> int:
    """As many as the plan names; one where it names none."""
    degrees = [parallelism.get(axis, 1) for axis in ("data", "tensor", "pipeline", "context")]
    return math.prod(degree for degree in degrees if isinstance(degree, int) and degree >= 1)


def complete_question(
    question: Question,
    cluster: Cluster,
    said: list[str],
    *,
    pose: Pose | None = None,
    engine: Engine | None = None,
) -> tuple[Question, Parallelism]:
    """The question with its number format, length and batch, and its plan with every degree, its passes and the stack's habits.
    `pose`: the job of a plan at a batch, where the question's source does not say it (an uploaded model).
    `engine`: what judges plans, where one has answered before."""
    from traincast.forecast._choose import choose_open

    said += question.said
    usual = choose_stack(question, num_devices=cluster.num_devices)
    question = with_defaults(question, [group.device for group in cluster.groups], usual, said)
    question = choose_open(question, cluster, usual, said, pose=pose, engine=engine)
    stack = choose_stack(question, num_devices=cluster.num_devices)
    said[:0] = _say_stack(question, stack)
    values = dict(question.parallelism)
    if "data" not in values:
        values["data"] = _left_over(values, num_devices=cluster.num_devices)
    batch, passes = share_batch(question, values, said)
    values["micro_batches"] = passes
    plan = _decode_plan(fill_in_plan(values, for_optimizer(stack, question.workload.optimizer), said))
    check_passes(plan, stack)
    options = question.workload if batch is None else dataclasses.replace(question.workload, batch=batch)
    return dataclasses.replace(question, workload=_without_tf32(options, cluster, said)), plan


def complete_plan(
    values: Mapping[str, Any], *, num_devices: int, stack: Stack | None = None, said: list[str] | None = None
) -> Parallelism:
    """The plan with its data degree filled in, every device that the other axes leave holding a replica, and with the
    habits of its stack."""
    table = dict(values)
    if "data" not in table:
        table["data"] = _left_over(table, num_devices=num_devices)
    return _decode_plan(fill_in_plan(table, stack or Stack(), [] if said is None else said))


def _left_over(values: Mapping[str, Any], *, num_devices: int) -> int:
    # What must divide the data degree is checked once that is known.
    plan = _decode_plan({name: value for name, value in values.items() if name in ("tensor", "pipeline", "context")})
    inner = plan.tensor * plan.pipeline * plan.context
    if num_devices % inner:
        raise IllegalPlan(
            f"{num_devices} devices cannot be split into tensor {plan.tensor} x pipeline {plan.pipeline} x context "
            f"{plan.context} = {inner}; use a multiple of {inner} devices or other degrees"
        )
    return num_devices // inner


def _decode_plan(values: Mapping[str, Any]) -> Parallelism:
    from traincast.files import decode

    return decode(Parallelism, dict(values), where="parallelism")


def _imply_passes(batch: int | None, data: Any, stages: Any, said: list[str]) -> int:
    if not all(isinstance(degree, int) and degree >= 1 for degree in (data, stages)):
        return 1
    implied = implied_micro_batches(micro_batch=batch or 1, data=data, pipeline=stages)
    said.append(implied.reason or "one pass per optimizer step is assumed")
    return implied.count


def _check_global_batch(whole: Any) -> None:
    if isinstance(whole, bool) or not isinstance(whole, int) or whole < 1:
        raise InvalidInput(f"global_batch = {whole!r}; it must be a whole number of at least 1")


def share_batch(question: Question, plan: Mapping[str, Any], said: list[str]) -> tuple[int | None, Any]:
    """Samples of a pass (None: as the source has them) and passes of a step. A global batch says what is left open."""
    batch, passes, whole = question.workload.batch, plan.get("micro_batches"), question.job.get("global_batch")
    data, stages = plan.get("data", 1), plan.get("pipeline", 1)
    if whole is None:
        return batch, passes if passes is not None else _imply_passes(batch, data, stages, said)
    _check_global_batch(whole)
    if not isinstance(data, int) or data < 1 or not isinstance(passes or 1, int):
        return batch, passes or 1
    if batch is not None and passes is not None:
        if batch * passes * data != whole:
            raise InvalidInput(
                f"global_batch = {whole} is not batch {batch} x micro_batches {passes} x data {data} = {batch * passes * data}"
            )
        return batch, passes
    if passes is None and batch is None and stages != 1:
        batch = 1
    if batch is not None:
        return batch, _divide(whole, batch * data, f"batch {batch} x data {data}")
    share = _divide(whole, data * (passes or 1), f"data {data} x micro_batches {passes or 1}")
    said.append(f"{share} samples in each of {passes or 1} passes of each replica make up the global batch")
    return share, passes or 1


def _divide(whole: int, parts: int, words: str) -> int:
    if whole % parts:
        raise InvalidInput(f"global_batch = {whole} is not a multiple of {words} = {parts}")
    return whole // parts


def pose_job(
    question: Question, plan: Parallelism, *, cluster: Cluster | None = None, stack: Stack | None = None,
    batch: int | None = None, seq: int | None = None, said: list[str] | None = None,
) -> Job:  # fmt: skip
    """The job that a filled-in question asks for under a plan, at its own batch and length or at others."""
    assumptions: list[str] = [] if said is None else said
    software = stack or choose_stack(question, plan=plan)
    options = question.workload
    if batch is not None:
        options = dataclasses.replace(options, batch=batch)
    if seq is not None:
        options = dataclasses.replace(options, seq=seq)
    options = _without_tf32(options, cluster, assumptions)
    if options.recompute_layers is not None and plan.recompute != "full":
        raise InvalidInput(f"recompute_layers goes with --recompute full; recompute is {plan.recompute}")

    def load(wanted: WorkloadOptions, source: str | None = None, /) -> Graph:
        # What only runs forward runs nothing again.
        own = plan if wanted.mode == options.mode else dataclasses.replace(plan, recompute="none")
        return load_source(source or question.source, wanted, plan=own, stack=software, said=assumptions)

    job = pose_with(load, question, options, plan=plan, stack=software, said=assumptions)
    return _compile_programs(job, question, cluster, assumptions)


def _compile_programs(job: Job, question: Question, cluster: Cluster | None, said: list[str]) -> Job:
    """Chips with systolic arrays run programs that their vendor's compiler made of a whole step, whatever wrote the step."""
    if cluster is None or job.compiled or "compiled" in question.job:
        return job
    if not all(is_systolic(group.device) for group in cluster.groups):
        return job
    said.append(f"a step on {cluster.groups[0].device.name} is one compiled program (--no-compiled to change)")
    return dataclasses.replace(job, compiled=True, cuda_graphs=True)


def pose_with(
    load: Load, question: Question, options: WorkloadOptions, *, plan: Parallelism, stack: Stack, said: list[str]
) -> Job:
    """The job of a question whose graphs are loaded in the caller's own way."""
    usual = find_length(question.source, options)
    posed = pose_regime(question.job, options, load, plan=plan, said=said, usual_seq=usual)
    seq = (posed.regime.seq if posed.regime else None) or find_length(question.source, posed.options)
    job = build_job(_complete_epochs(question, said), posed.graph, stack=stack, seq=seq)
    return job if posed.regime is None else dataclasses.replace(job, regime=posed.regime)


def _complete_epochs(question: Question, said: list[str]) -> Mapping[str, Any]:
    """The samples of an epoch where nobody says them: those of the data set that a workload of the catalogue is trained on."""
    values = question.job
    if values.get("epochs") is None or values.get("epoch_samples") is not None:
        return values
    from traincast.catalog import usual_dataset

    known = usual_dataset(question.source)
    if known is None or known.num_train_samples is None:
        return values
    said.append(
        f"an epoch of {known.num_train_samples:,} samples is assumed, the data set {known.name} (--epoch-samples to change)"
    )
    return {**values, "epoch_samples": known.num_train_samples}


def _without_blocks(options: WorkloadOptions, cluster: Cluster | None, said: list[str]) -> WorkloadOptions:
    """Formats with scales for blocks need matrix units that multiply by them, which came with those for fp4."""
    if (
        cluster is None
        or not isinstance(options.precision, str)
        or precision_name(options.precision) not in BLOCK_SCALED
    ):
        return options
    lacking = [group.device.name for group in cluster.groups if group.device.peak_flop_per_s("fp4") is None]
    if not lacking:
        return options
    said.append(f"{lacking[0]} has no matrix units with scales for blocks; {options.precision} runs as bf16 there")
    return dataclasses.replace(options, precision="bf16")


_WIDER = {"fp8": ("bf16", "fp16"), "bf16": (), "fp16": ()}
"""Formats in which products of another are run where a device has no units for that one; else on ordinary cores in fp32."""


def _say_wider(options: WorkloadOptions, cluster: Cluster | None, said: list[str]) -> None:
    if cluster is None or not isinstance(options.precision, str):
        return
    dtype = precision_name(options.precision).partition("-")[0]
    for device in (group.device for group in cluster.groups):
        if dtype not in _WIDER or device.peak_flop_per_s(dtype) is not None or not device.matrix_flop_per_s:
            continue
        wider = next((name for name in _WIDER[dtype] if device.peak_flop_per_s(name) is not None), None)
        how = f"in {wider}" if wider else "in fp32 on ordinary cores"
        said.append(f"{device.name} has no matrix units for {dtype}; its products run {how}")
        return


def _without_tf32(options: WorkloadOptions, cluster: Cluster | None, said: list[str]) -> WorkloadOptions:
    options = _without_blocks(options, cluster, said)
    _say_wider(options, cluster, said)
    if cluster is None or options.precision != "tf32":
        return options
    lacking = [group.device.name for group in cluster.groups if group.device.peak_flop_per_s("tf32") is None]
    if not lacking:
        return options
    said.append(f"{lacking[0]} has no TF32; fp32 taken")
    return dataclasses.replace(options, precision="fp32")


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
    named.setdefault("compiled", software.recipe.compiled)
    named.setdefault("cuda_graphs", software.recipe.whole_program)
    if named["compiled"] and not software.recipe.compiled_loss:
        from traincast.lower import leave_eager

        graph = leave_eager(graph, "loss")
    if named["compiled"] and software.recipe.partitions:
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
    source: str, options: WorkloadOptions, *, recompute: str = "none", plan: Parallelism | None = None,
    stack: Stack | None = None, said: list[str] | None = None,
) -> Graph:  # fmt: skip
    """The step that a source names, at the asked batch. A catalogue workload recomputes and runs as its stack would; what is
    recorded is rewritten by the plan."""
    arrangement = plan or Parallelism(recompute=recompute)
    software = stack or Stack()
    assumptions: list[str] = [] if said is None else said
    check_data(options)
    bare = without_data(options)
    graph = _load_bare(source, bare, arrangement, software, assumptions)
    return graph if bare is options else use_data(graph, options, assumptions)


def _load_bare(
    source: str, options: WorkloadOptions, arrangement: Parallelism, software: Stack, assumptions: list[str]
) -> Graph:
    from traincast.forecast._shape import changes_sizes

    if options.has_shape or changes_sizes(source, options):
        return _build_shape(source, options, arrangement, software, assumptions)
    path = Path(source)
    if source.startswith("timm:"):
        return _capture(source, options, software)
    if source.endswith((".json", ".json.gz")):
        return _load_json(path, options, software)
    if path.suffix in (".toml", ".parquet", ".csv", ".pt", ".pth", ".safetensors"):
        raise InvalidInput(
            f"{source} is not a model; use a catalogue name, my_file.py:build, model.onnx, config.json, a saved graph or "
            "a job file (TOML)"
        )
    if _is_model_file(source, path):
        file = Path(source.rpartition(":")[0] if ".py:" in source else source)
        if not file.exists():
            raise InvalidInput(f"there is no file {file}")
        return _capture(source, options, software)
    return _catalogue_workload(source, options, arrangement, software, assumptions)


def find_length(source: str, options: WorkloadOptions) -> int | None:
    """Tokens of a sample: as asked, or as the model was published; None where it is not known."""
    if options.seq is not None:
        return options.seq
    from traincast.catalog import load_facts

    facts = load_facts("model")
    name = facts.get(source)
    found = facts.entries[name].get("shape", {}).get("seq") if name else None
    return found if isinstance(found, int) else None


def describe_settings(
    question: Question, job: Job, plan: Parallelism, *, asked: Question | None = None
) -> dict[str, Any]:
    """What the answer is for, by name. `asked`: the question before its gaps were filled, so that flags say how."""
    from traincast.forecast._choose import list_assumed

    options, batch = question.workload, job.graph.batch_size
    return {
        "precision": read_precision(options.precision, job.stack, sharded=plan.zero == 3),
        "seq": (job.regime.seq if job.regime else None) or find_length(question.source, options),
        "batch": batch,
        "micro_batches": plan.micro_batches,
        "global_batch": batch * plan.micro_batches * plan.data,
        "recompute": plan.recompute,
        "stack": job.stack.spelling,
        "compiled": job.compiled,
        "flags": () if asked is None else list_assumed(asked, question, job, plan),
    }


def _is_model_file(source: str, path: Path) -> bool:
    is_python = source.endswith(".py") or ".py:" in source
    return (
        is_python
        or path.suffix in (".onnx", ".pb", ".pbtxt", ".meta", ".keras", ".mlir", ".stablehlo", ".jaxpr")
        or any((path / name).is_file() for name in MODEL_FOLDERS)
    )


def _merge_job_file(question: Question) -> Question:
    from traincast.files import decode, read_toml

    data = read_toml(question.source)
    if isinstance(data.get("workload"), Mapping):
        from traincast.spec import WORKLOAD_FIELDS

        data["workload"] = _read_units(data["workload"], WORKLOAD_FIELDS)
    file = decode(Question, data, where=question.source)
    if file.source.endswith(".toml"):
        raise InvalidInput(f"{question.source} names the job file {file.source}; its source must be a model")
    local = Path(question.source).parent / file.source.split(":")[0]
    try:
        found = str(Path(question.source).parent / file.source) if local.is_file() else file.source
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{question.source} names the source {file.source[:80]!r}, which no file can have"
        ) from error
    return Question(
        source=found,
        workload=dataclasses.replace(file.workload, **question.workload.given()),
        cluster=_override_cluster(file.cluster, question.cluster),
        parallelism={**file.parallelism, **question.parallelism},
        job=_override_job(file.job, question.job),
        configs=(*(_beside(config, question.source) for config in file.configs), *question.configs),
        calibration=_calibration_beside(file.calibration, question.source)
        if question.calibration is None
        else question.calibration,
        said=question.said,
    )


def _calibration_beside(named: str | Calibration | None, job_file: str) -> str | Calibration | None:
    """A file that a job file names stands beside it; a name of a kept calibration stays one."""
    if not isinstance(named, str):
        return named
    near = Path(job_file).parent / named
    return str(near) if near.is_file() else named


def _beside(config: str | ConfigText, job_file: str) -> str | ConfigText:
    """A configuration that a job file names stands beside it; 'format:FILE' keeps its format."""
    if not isinstance(config, str):
        return config
    chosen, colon, path = (
        config.rpartition(":") if not config.endswith(".py") and ".py:" not in config else ("", "", config)
    )
    return f"{chosen}{colon}{Path(job_file).parent / path}"


def _override_cluster(table: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    if flags and "groups" in table:
        raise InvalidInput("the job file describes groups of nodes; edit them there instead of using cluster flags")
    merged = {**table, **flags}
    if "device" in flags:
        merged.pop("node", None)
    if "node" in flags:
        merged.pop("device", None)
    return merged


_LENGTHS = ("steps", "samples", "epochs", "tokens")


def _override_job(table: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """What a flag says about the length of the job replaces what the file says about it."""
    kept = {
        name: value
        for name, value in table.items()
        if name not in _LENGTHS or not any(length in flags for length in _LENGTHS)
    }
    return {**kept, **flags}


def _read_units(values: Mapping[str, Any], fields: Iterable[Asked]) -> dict[str, Any]:
    """Amounts that a person wrote with a unit (80GB, 10k, 36h) as numbers."""
    read = dict(values)
    for item in fields:
        if item.name in read:
            read[item.name] = read_amount(item, read[item.name])
    return read


def _load_json(path: Path, options: WorkloadOptions, stack: Stack) -> Graph:
    from traincast.files import GRAPH_FORMAT, load_graph, read_json

    data = read_json(path)
    if isinstance(data, dict) and data.get("format") == GRAPH_FORMAT:
        loaded = load_graph(path)
        _refuse_changes(path, options)
        if isinstance(loaded, Scalable):
            return loaded.at(options.batch) if options.batch is not None else loaded.small
        if options.batch is not None and options.batch != loaded.batch_size:
            raise InvalidInput(
                f"{path} was captured at a batch of {loaded.batch_size}, not {options.batch}; capture it again at "
                f"{options.batch}, or at two batch sizes to use any"
            )
        return loaded
    return _capture(str(path), options, stack)


def _refuse_changes(path: Path, options: WorkloadOptions) -> None:
    changed = [name for name in options.given() if name != "batch"]
    if changed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise InvalidInput(f"{path} is a captured graph, so {flags} cannot change it; capture the model again")


_WITHOUT_TOKENS = ("cnn", "detection", "segmentation", "recsys", "gnn")
_SIZES = ("seq", "input_size", "num_classes", *SAMPLED)


def _catalogue_workload(
    source: str, options: WorkloadOptions, plan: Parallelism, stack: Stack, said: list[str]
) -> Graph:
    if ("/" in source or "\\" in source) and Path(source).exists():
        raise InvalidInput(f"{source} is neither a model file nor a catalogue name")
    from traincast.catalog import load_facts, workload

    given = options.given()
    facts = load_facts("model")
    sizes = [name for name in SHAPE if name in given]
    if sizes:
        facts.find(source)
        raise InvalidInput(
            f"{source} is no plain transformer, so it has its own {', '.join(sizes)}; leave them out, or build a transformer "
            "with --arch, --layers and --hidden"
        )
    name = facts.get(source)
    if "seq" in given and name and facts.entries[name]["family"] in _WITHOUT_TOKENS:
        raise InvalidInput(
            f"{source} takes no sequences, so a length of {given['seq']} (--seq, or what a regime generates) cannot change it; "
            "leave it out"
        )
    heads = facts.entries[name].get("shape", {}).get("heads") if name else None
    recipe = fill_in_recipe(options, plan, stack, heads=heads, said=said)
    more = {key: given[key] for key in ("batch", *_SIZES) if key in given}
    return workload(source, **recipe, **more, **read_head(options.head))


def _build_shape(title: str, options: WorkloadOptions, plan: Parallelism, stack: Stack, said: list[str]) -> Graph:
    from traincast.forecast._shape import build_shape, complete_shape

    unused = [name for name in ("input_size", "num_classes", *SAMPLED) if getattr(options, name) is not None]
    if unused:
        raise InvalidInput(f"a transformer given by its sizes has no {', '.join(unused)}")
    shape = complete_shape(title, options, said)
    recipe = fill_in_recipe(options, plan, stack, heads=shape.get("heads"), said=said)
    style = read_head(options.head)
    return build_shape(title, shape, recipe, batch=1 if options.batch is None else options.batch, style=style)


def read_head(word: str | None) -> dict[str, Any]:
    """What a language model ends in, as its shape says it."""
    if word in (None, "lm"):
        return {}
    if word != "value":
        raise InvalidInput(f"head = {word!r}; allowed: lm, value")
    return {"head": "classes", "num_classes": 1}


_CAPTURED = ("batch", "seq", "precision", "mode", "optimizer", "attention")
"""What can be said about a model that is recorded."""


@functools.lru_cache(maxsize=4)
def _record(source: str, given: tuple[tuple[str, Any], ...], _date_ns: int) -> Graph | Scalable:
    """One question looks at its model more than once; it is recorded again when its file has changed."""
    from traincast.forecast._recorded import recall

    def record() -> Graph | Scalable:
        from traincast.capture import load_source as capture_source

        try:
            # What a model prints must not end up inside the answer.
            with contextlib.redirect_stdout(sys.stderr):
                return capture_source(source, **dict(given))
        except SystemExit as error:
            raise CaptureFailed(f"{source} called sys.exit({error.code!r}) while it was recorded") from error

    path = Path(source)
    if source.startswith("timm:"):
        return recall(source.encode(), dict(given), record)
    if path.suffix == ".json" and path.is_file():
        return recall(str(path.resolve()).encode() + path.read_bytes(), dict(given), record)
    # A program of somebody's may read whatever it likes, so it is run again.
    return record()


def _date_of(source: str) -> int:
    path = Path(source.rpartition(":")[0] if ".py:" in source else source)
    inner = [path / name for name in MODEL_FOLDERS if (path / name).is_file()]
    return max((each.stat().st_mtime_ns for each in (path, *inner) if each.exists()), default=0)


def _capture(source: str, options: WorkloadOptions, stack: Stack) -> Graph:
    """Record a model from its file; this is the only way that may need PyTorch."""
    if options.adapter_rank or options.frozen_dtype:
        raise InvalidInput(
            f"adapters are added to workloads of the catalogue only; build them into the model of {source}"
        )
    given = options.given()
    fixed = [f"--{name.replace('_', '-')}" for name in given if name not in _CAPTURED]
    if fixed:
        raise InvalidInput(f"{source} is recorded as it is, so {', '.join(fixed)} cannot change it")
    loaded = record_any_batch(source, options)
    if loaded is None:
        loaded = _record(source, tuple(sorted(given.items())), _date_of(source))
    if isinstance(loaded, Scalable):
        return loaded.at(options.batch) if options.batch is not None else loaded.small
    return loaded


def record_any_batch(source: str, options: WorkloadOptions) -> Graph | Scalable | None:
    """A config.json or a name in timm, whose inputs are made here for any batch. None for a file of somebody's, which makes its
    own, and for a model that runs other operations at another batch."""
    if not source.startswith("timm:") and not source.endswith(".json"):
        return None
    rest = {name: value for name, value in options.given().items() if name != "batch"}
    return _try_any_batch(source, tuple(sorted(rest.items())), _date_of(source))


@functools.lru_cache(maxsize=8)
def _try_any_batch(source: str, given: tuple[tuple[str, Any], ...], date_ns: int) -> Graph | Scalable | None:
    try:
        return _record(source, (*given, ("scalable", True)), date_ns)
    except CaptureFailed:
        return None
