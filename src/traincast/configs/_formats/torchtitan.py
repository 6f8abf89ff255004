"""torchtitan's toml and its registry in Python: model flavour, degrees of parallelism, activation checkpointing, float8."""

from traincast.configs._documents import make_format
from traincast.configs._models import find_model
from traincast.configs._nouns import LOOSE, Draft, Sheet

_SCHEDULES = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "zbvzerobubble": "zero-bubble",
    "interleavedzerobubble": "zero-bubble",
}  # fmt: skip
_CONVERTERS = {"Float8": "float8", "MXFP8": "mx", "NVFP4": "nvfp4"}
"""What the classes that convert layers in the registry begin with."""
_LINEAR = "quantize.linear."
"""How releases of today begin the names of converters of linear layers."""
_FLAVORS = {"deepseek-v3": ("deepseek_v3", "671B")}
"""Models whose name in the catalogue does not end in torchtitan's flavour."""


def _read(draft: Draft) -> None:
    keys = draft.keys
    _read_model(draft)
    if draft.get("parallelism.expert", 1) == 1:
        draft.settings.pop("parallelism.expert_tensor", None)
    _read_sharding(draft)
    _read_batch(draft)
    _read_recomputation(draft)
    _read_compiled(draft)
    if keys.flag("checkpoint.enable_checkpoint", "checkpoint.enable"):
        draft.take("job.checkpoint_every_steps", "checkpoint.interval", least=1)
        if keys.word("checkpoint.async_mode") in ("async", "async_with_pinned_mem"):
            draft.put("job.checkpoint_async", True, "checkpoint.async_mode")
    else:
        keys.take("checkpoint.interval")
    if keys.flag("validation.enable", "validation.enabled", "validator.enable"):
        draft.take("job.evaluation_every_steps", "validation.freq", "validator.freq", least=1)
    _read_graphs(draft)
    if keys.word("loss._target_") == "ChunkedLossWrapper":
        draft.put("workload.loss_chunks", keys.whole("loss.num_chunks") or 8, "loss._target_")
    _read_precision(draft)
    if keys.word("optimizer._target_") == "default_adamw":
        draft.put("workload.optimizer", "adamw", "optimizer._target_")
    implementation = keys.word("optimizer.implementation")
    draft.put(
        "workload.implementation",
        {"for-loop": "loop"}.get(str(implementation), implementation),
        "optimizer.implementation",
    )


def _read_recomputation(draft: Draft) -> None:
    """By a mode, or in the registry by the class of the policy; without one nothing runs again there."""
    keys = draft.keys
    policy = keys.word("activation_checkpoint._target_")
    if policy is not None or "recipe" in keys:
        known = {"FullAC": "full", "SelectiveAC": "selective", "None": "none"}
        if str(policy) in known:
            draft.put("parallelism.recompute", known[str(policy)], "activation_checkpoint")
        else:
            draft.unmapped["activation_checkpoint"] = f"{policy} is not known"
        return
    mode = str(keys.values.get("activation_checkpoint.mode", "selective"))
    keys.take("activation_checkpoint.mode")
    if mode in ("none", "full", "selective"):
        draft.put("parallelism.recompute", mode, "activation_checkpoint.mode")
    option = keys.word("activation_checkpoint.selective_ac_option")
    if mode == "selective" and option not in (None, "op"):
        draft.unmapped["activation_checkpoint.selective_ac_option"] = (
            f"every layer of {option} runs again; by op is taken"
        )


def _read_graphs(draft: Draft) -> None:
    """Since 0.3 a step is captured and replayed unless the file says no, or stages or experts forbid it."""
    off = draft.keys.flag("training.disable_cuda_graphs")
    if off is None and "recipe" not in draft.keys:
        return
    alone = draft.get("parallelism.pipeline", 1) == 1 and draft.get("parallelism.expert", 1) == 1
    draft.put("job.cuda_graphs", not off and alone, "training.disable_cuda_graphs")


def _read_compiled(draft: Draft) -> None:
    """A list of components without the model leaves the model as it is."""
    parts = draft.keys.values.get("compile.components")
    if draft.keys.flag("training.compile", "compile.enable") is None:
        return
    on = bool(draft.keys.flag("training.compile", "compile.enable"))
    draft.put("job.compiled", on and (not isinstance(parts, list) or "model" in parts), "compile.enable")


def _read_registered(draft: Draft) -> None:
    """The registry names the flavour and, by the folder of its assets or by its own name, the family."""
    keys = draft.keys
    given = keys.take("model_spec._args_")
    flavor = str(given[0]) if isinstance(given, list) and given else ""
    assets, recipe = keys.word("hf_assets_path") or "", keys.word("recipe") or ""
    for key in list(keys.under("loss.loss_fn")):
        keys.take(key)
    words = recipe.split("_")
    names = (assets, "-".join(words), f"{words[0]}-{flavor}", "-".join(words[:2]))
    found = None if flavor == "debugmodel" else next((one for one in map(find_model, names) if one is not None), None)
    if found is None:
        draft.unmapped["model_spec"] = f"{recipe} ({flavor}) is not in the catalogue; name a model"
        return
    draft.put("source", found, "model_spec")
    draft.notes.append(f"{recipe} ({flavor}) is taken to be {found} of the catalogue")


def _read_model(draft: Draft) -> None:
    if any(draft.keys.under("model_spec")):
        _read_registered(draft)
        return
    name, flavor = draft.keys.word("model.name"), draft.keys.word("model.flavor")
    found = next((ours for ours, theirs in _FLAVORS.items() if theirs == (name, flavor)), None)
    if found is None and name and flavor:
        found = find_model(f"{name}-{flavor}")
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


def _read_converters(draft: Draft) -> list[str]:
    keys = draft.keys
    converters = keys.take("model.converters")
    listed = [
        str(word).removeprefix(_LINEAR) for word in (converters if isinstance(converters, list) else [converters])
    ]
    for word in listed:
        if word not in ("None", *_CONVERTERS.values()):
            draft.unmapped[f"model.converters = {word}"] = "is not known"
    made = sorted({key.split(".")[2] for key in keys.under("model_spec.converters") if key.count(".") > 1})
    listed += [word for name in made for start, word in _CONVERTERS.items() if name.startswith(start)]
    for name in made:
        if name.startswith("LoRA"):
            draft.take("workload.adapter_rank", f"model_spec.converters.{name}.rank", least=1)
        elif not name.startswith(tuple(_CONVERTERS)):
            draft.unmapped[f"model_spec.converters.{name}"] = "is not known"
    return listed


def _read_precision(draft: Draft) -> None:
    keys, listed = draft.keys, _read_converters(draft)
    recipe = keys.word("quantize.linear.float8.recipe_name") or keys.word("float8.recipe_name")
    if "float8" in listed or keys.flag("float8.enable_float8_linear"):
        by_row = recipe is not None and recipe.startswith("rowwise")
        draft.put("workload.precision", "fp8-row" if by_row else "fp8", "model.converters")
    elif "mx" in listed:
        draft.put("workload.precision", "mxfp8", "model.converters")
    elif "nvfp4" in listed:
        draft.put("workload.precision", "nvfp4", "model.converters")
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


def _write(sheet: Sheet) -> None:
    source = str(sheet.get("source", ""))
    family, _, flavor = source.rpartition("-")
    sheet.put("job", {"dump_folder": "./outputs", "description": f"{source} training"})
    name, flavor = _FLAVORS.get(source, (family.replace("-", "").replace(".1", ""), flavor.upper()))
    sheet.put("model", {"name": name, "flavor": flavor})
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
        {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16"},
        "training.mixed_precision_reduce",
    )
    _write_plan(sheet, stages, batch)
    mode = sheet.get("parallelism.recompute", "none")
    sheet.put("activation_checkpoint.mode", {"selective-op": "selective"}.get(mode, mode))
    if mode in ("selective-op", "selective"):
        sheet.put("activation_checkpoint.selective_ac_option", "op")
    sheet.copy("job.compiled", "compile.enable")
    if sheet.get("job.checkpoint_every_steps"):
        sheet.put("checkpoint", {"enable": True, "interval": sheet.get("job.checkpoint_every_steps")})
        if sheet.get("job.checkpoint_async"):
            sheet.put("checkpoint.async_mode", "async")
    if sheet.get("job.evaluation_every_steps"):
        sheet.put("validation", {"enable": True, "freq": sheet.get("job.evaluation_every_steps")})
    if sheet.fields.get("parallelism.offload_optimizer") and sheet.fields.get("parallelism.offload_weights"):
        sheet.told |= {"parallelism.offload_optimizer", "parallelism.offload_weights"}
        sheet.put("training.enable_cpu_offload", True)
    if sheet.get("job.cuda_graphs") is not None:
        sheet.put("training.disable_cuda_graphs", not sheet.get("job.cuda_graphs"))
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


REGISTRY = make_format("torchtitan-registry", _read)
TORCHTITAN = make_format("torchtitan", _read, _write)
