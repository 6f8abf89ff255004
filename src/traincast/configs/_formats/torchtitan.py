"""torchtitan's toml: model flavour, degrees of parallelism, activation checkpointing, float8."""

from traincast.configs._models import find_model
from traincast.configs._nouns import LOOSE, ConfigFormat, Draft, Sheet
from traincast.configs._trainer import read_launcher, read_optimizer

_SCHEDULES = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "zbvzerobubble": "zero-bubble",
    "interleavedzerobubble": "zero-bubble",
}  # fmt: skip
_DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}


def _read(draft: Draft) -> None:
    keys = draft.keys
    read_launcher(draft)
    draft.put("job.stack", "torchtitan", "a torchtitan file")
    _read_model(draft)
    draft.take("workload.seq", "training.seq_len", least=1)
    draft.take("job.steps", "training.steps", least=1)
    draft.take("job.global_batch", "training.global_batch_size", least=1)
    for axis, key in (("tensor", "tensor"), ("pipeline", "pipeline"), ("context", "context"), ("expert", "expert")):
        draft.take(f"parallelism.{axis}", f"parallelism.{key}_parallel_degree", least=1)
    draft.take("parallelism.expert_tensor", "parallelism.expert_tensor_parallel_degree", least=1)
    if draft.get("parallelism.expert", 1) == 1:
        draft.settings.pop("parallelism.expert_tensor", None)
    _read_sharding(draft)
    _read_batch(draft)
    mode = str(keys.values.get("activation_checkpoint.mode", "selective"))
    keys.take("activation_checkpoint.mode")
    if mode in ("none", "full", "selective"):
        draft.put("parallelism.recompute", mode, "activation_checkpoint.mode")
    option = keys.word("activation_checkpoint.selective_ac_option")
    if mode == "selective" and option not in (None, "op"):
        draft.unmapped["activation_checkpoint.selective_ac_option"] = (
            f"every layer of {option} runs again; by op is taken"
        )
    draft.take("job.compiled", "training.compile", "compile.enable")
    draft.take(
        "parallelism.async_tensor",
        "parallelism.enable_async_tensor_parallel",
        "experimental.enable_async_tensor_parallel",
    )
    if keys.flag("checkpoint.enable_checkpoint", "checkpoint.enable"):
        draft.take("job.checkpoint_every_steps", "checkpoint.interval", least=1)
    else:
        keys.take("checkpoint.interval")
    if keys.flag("validation.enable", "validation.enabled"):
        draft.take("job.evaluation_every_steps", "validation.freq", least=1)
    _read_precision(draft)
    read_optimizer(draft, "optimizer.name")
    implementation = keys.word("optimizer.implementation")
    draft.put(
        "workload.implementation",
        {"for-loop": "loop"}.get(str(implementation), implementation),
        "optimizer.implementation",
    )
    draft.assume("workload.seq", 2048, "training.seq_len is not said, so torchtitan takes 2048")


def _read_model(draft: Draft) -> None:
    name, flavor = draft.keys.word("model.name"), draft.keys.word("model.flavor")
    found = find_model(f"{name}-{flavor}") if name and flavor else None
    if found is None and name and flavor:
        found = find_model(f"{name.replace('_', '-')}-{flavor}")
    if found is not None:
        draft.put("source", found, "model.flavor")
        draft.notes.append(f"{name} {flavor} is taken to be {found} of the catalogue")
    elif flavor is not None:
        draft.unmapped["model.flavor"] = f"{name} {flavor} is not in the catalogue; name a model"


def _read_sharding(draft: Draft) -> None:
    keys = draft.keys
    shard = keys.whole("parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree")
    replicate = keys.whole("parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree") or 1
    shard = -1 if shard is None else shard
    kept = keys.word("parallelism.fsdp_reshard_after_forward") or "default"
    origin = "parallelism.data_parallel_shard_degree"
    if shard == 1 and draft.get("parallelism.context", 1) == 1:
        draft.put("parallelism.zero", 0, origin)
        if replicate > 1:
            draft.put("parallelism.data", replicate, "parallelism.data_parallel_replicate_degree", strength=LOOSE)
        return
    draft.put("parallelism.zero", 2 if kept == "never" else 3, origin)
    if kept == "always":
        draft.put("parallelism.reshard", True, "parallelism.fsdp_reshard_after_forward")
    if shard >= 1:
        context = draft.get("parallelism.context", 1)
        draft.put("parallelism.data", shard * replicate, origin, strength=LOOSE)
        if replicate > 1:
            draft.put("parallelism.shard", shard * context, origin)
    elif replicate > 1:
        draft.unmapped["parallelism.data_parallel_replicate_degree"] = "with shards over all that is left; say --shard"


def _read_batch(draft: Draft) -> None:
    """With a pipeline the local batch is cut into micro-batches, of one sample unless the file says otherwise."""
    keys = draft.keys
    local = keys.whole("training.local_batch_size", "training.batch_size")
    origin = keys.first("training.local_batch_size", "training.batch_size") or ""
    if local is None:
        local, origin = 8, "training.local_batch_size is not said, so torchtitan takes 8"
        draft.assume("workload.batch", local, origin)
    word = (
        keys.word("parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule") or "1f1b"
    ).lower()
    size = keys.whole("parallelism.pipeline_parallel_microbatch_size") or 1
    if draft.get("parallelism.pipeline", 1) == 1:
        draft.put("workload.batch", local, origin)
        if "job.global_batch" not in draft.settings:
            draft.assume(
                "parallelism.micro_batches", 1, "training.global_batch_size is not said, so nothing is accumulated"
            )
        return
    if local % size == 0:
        draft.put("workload.batch", size, "parallelism.pipeline_parallel_microbatch_size")
        draft.put("parallelism.micro_batches", local // size, origin)
    if word in _SCHEDULES:
        draft.put("parallelism.order", _SCHEDULES[word], "parallelism.pipeline_parallel_schedule")
        if _SCHEDULES[word] == "interleaved":
            draft.put("parallelism.virtual_stages", 2, "parallelism.pipeline_parallel_schedule")
            draft.notes.append("torchtitan gives two stages to each rank of an interleaved schedule")
    else:
        draft.unmapped["parallelism.pipeline_parallel_schedule"] = f"{word!r} is not known"


def _read_precision(draft: Draft) -> None:
    keys = draft.keys
    converters = keys.take("model.converters")
    listed = converters if isinstance(converters, list) else [converters]
    if "float8" in listed or keys.flag("float8.enable_float8_linear"):
        draft.put("workload.precision", "fp8", "model.converters")
    elif "mx" in listed:
        draft.put("workload.precision", "mxfp8", "model.converters")
    else:
        word = keys.word("training.mixed_precision_param") or "bfloat16"
        if word == "bfloat16":
            whole = draft.get("parallelism.zero") != 0
            draft.put("workload.precision", "bf16" if whole else "bf16-amp", "training.mixed_precision_param")
        elif word == "float32":
            draft.put("workload.precision", "fp32", "training.mixed_precision_param")
    keys.take("training.mixed_precision_param")
    if keys.word("training.dtype") == "bfloat16":
        draft.put("workload.precision", "bf16-pure", "training.dtype")
    draft.translate("parallelism.reduce_dtype", _DTYPES, "training.mixed_precision_reduce")


def _write(sheet: Sheet) -> None:
    source = str(sheet.get("source", ""))
    family, _, flavor = source.rpartition("-")
    sheet.put("job", {"dump_folder": "./outputs", "description": f"{source} training"})
    sheet.put("model", {"name": family.replace("-", "").replace(".1", ""), "flavor": flavor.upper()})
    words = {"adamw": "AdamW", "adam": "Adam"}
    sheet.translate("workload.optimizer", words, "optimizer.name")
    stages, batch = sheet.get("parallelism.pipeline", 1), sheet.get("workload.batch", 1)
    passes = sheet.get("parallelism.micro_batches", 1)
    sheet.put("training.local_batch_size", batch if stages == 1 else batch * passes)
    if stages == 1 and passes > 1:
        sheet.copy("job.global_batch", "training.global_batch_size")
    sheet.told.add("job.global_batch")
    sheet.copy("workload.seq", "training.seq_len")
    sheet.copy("job.steps", "training.steps")
    sheet.translate(
        "parallelism.reduce_dtype",
        {ours: theirs for theirs, ours in _DTYPES.items()},
        "training.mixed_precision_reduce",
    )
    _write_plan(sheet, stages, batch)
    mode = sheet.get("parallelism.recompute", "none")
    sheet.put("activation_checkpoint.mode", {"products": "selective"}.get(mode, mode))
    if mode in ("products", "selective"):
        sheet.put("activation_checkpoint.selective_ac_option", "op")
    sheet.copy("job.compiled", "compile.enable")
    if sheet.get("job.checkpoint_every_steps"):
        sheet.put("checkpoint", {"enable": True, "interval": sheet.get("job.checkpoint_every_steps")})
    precision = str(sheet.get("workload.precision", "bf16"))
    if precision.startswith(("fp8", "mxfp8")):
        sheet.put("model.converters", ["mx" if precision.startswith("mx") else "float8"])
    elif precision == "bf16-pure":
        sheet.put("training.dtype", "bfloat16")
    else:
        sheet.put("training.mixed_precision_param", "bfloat16" if precision.startswith("bf16") else "float32")


def _write_plan(sheet: Sheet, stages: int, batch: int) -> None:
    for axis in ("tensor", "pipeline", "context", "expert"):
        sheet.put(f"parallelism.{axis}_parallel_degree", sheet.get(f"parallelism.{axis}", 1))
    data, shard = sheet.get("parallelism.data", 1), sheet.get("parallelism.shard")
    zero = sheet.fields.get("parallelism.zero", 0)
    context = sheet.get("parallelism.context", 1)
    if zero in (2, 3) or (zero == 0 and context == 1):
        sheet.told.add("parallelism.zero")
    elif zero == 0:
        # Ranks of one sequence share their weights too.
        sheet.lost.add("zero")
    shards = 1 if zero == 0 else data if shard is None else max(1, shard // context)
    sheet.put("parallelism.data_parallel_replicate_degree", data // shards)
    sheet.put("parallelism.data_parallel_shard_degree", shards)
    if zero == 2 and stages == 1:
        sheet.put("parallelism.fsdp_reshard_after_forward", "never")
    elif zero == 3 and stages > 1:
        sheet.put("parallelism.fsdp_reshard_after_forward", "always")
    if stages > 1:
        words = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zero-bubble": "ZBVZeroBubble"}
        sheet.translate("parallelism.order", words, "parallelism.pipeline_parallel_schedule")
        sheet.put("parallelism.pipeline_parallel_microbatch_size", batch)
        if sheet.fields.get("parallelism.virtual_stages") == 2:
            sheet.told.add("parallelism.virtual_stages")
    if sheet.get("parallelism.async_tensor"):
        sheet.put("parallelism.enable_async_tensor_parallel", True)


TORCHTITAN = ConfigFormat(
    name="torchtitan",
    title="torchtitan",
    syntax="toml",
    telling=("model.flavor", "training.seq_len", "training.local_batch_size", "activation_checkpoint.", "job.dump_folder",
             "parallelism.data_parallel_shard_degree", "parallelism.tensor_parallel_degree", "lr_scheduler."),
    read=_read,
    sure="model.flavor",
    write=_write,
    harmless=("job.", "profiling.", "metrics.", "lr_scheduler.", "training.dataset", "training.max_norm",
              "training.deterministic",
              "checkpoint.", "float8.filter_fqns", "quantize.", "compile.components", "model.hf_assets_path",
              "comm.", "validation.",
              "training.gc_freq", "fault_tolerance."),
)  # fmt: skip
