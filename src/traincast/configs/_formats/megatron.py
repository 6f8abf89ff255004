"""Megatron-LM's arguments, as its example scripts pass them to pretrain_gpt.py, pretrain_bert.py and their kin."""

from typing import Any

from traincast.configs._documents import make_format
from traincast.configs._models import find_sizes
from traincast.configs._nouns import Draft, Sheet

_SIZES = {
    "n_layers": "num_layers", "hidden": "hidden_size", "heads": "num_attention_heads", "ffn": "ffn_hidden_size",
    "head_dim": "kv_channels", "vocab": "vocab_size", "experts": "num_experts", "experts_per_token": "moe_router_topk",
    "moe_ffn": "moe_ffn_hidden_size",
}  # fmt: skip
_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def _read(draft: Draft) -> None:
    keys = draft.keys
    legacy = keys.flag("use_legacy_models")
    draft.put("job.stack", "megatron-lm" if legacy else "megatron-core", "a script of Megatron-LM")
    _read_sizes(draft)
    read_rampup(draft, "rampup_batch_size")
    draft.put("parallelism.sequence_parallel", bool(draft.keys.flag("sequence_parallel")), "sequence_parallel")
    _read_pipeline(draft)
    _read_sharding(draft)
    _read_recompute(draft)
    _read_precision(draft)
    every = draft.get("job.evaluation_every_steps")
    rounds, whole = keys.whole("eval_iters"), draft.get("job.global_batch")
    if every and rounds and whole:
        draft.put("job.evaluation_samples", float(rounds * whole), "eval_iters")
    if keys.word("cuda_graph_impl") in ("local", "transformer_engine"):
        draft.put("job.cuda_graphs", True, "cuda_graph_impl")


def read_rampup(draft: Draft, key: str) -> None:
    """Start, increment and samples of a batch that grows."""
    value = draft.keys.take(key)
    words = value if isinstance(value, list) else str(value or "").split()
    if len(words) != 3 or not all(str(word).isdigit() for word in words):
        if value is not None:
            draft.unmapped[key] = f"{value!r} is not start, increment and samples"
        return
    start, increment, samples = (int(word) for word in words)
    draft.put("job.rampup_batch", start, key)
    draft.put("job.rampup_increment", increment, key)
    draft.put("job.rampup_samples", float(samples), key)


def write_rampup(sheet: Sheet, key: str) -> None:
    start, samples = sheet.get("job.rampup_batch"), sheet.get("job.rampup_samples")
    if start and samples:
        sheet.put(key, [start, sheet.get("job.rampup_increment") or start, round(samples)])


def _read_sizes(draft: Draft) -> None:
    keys = draft.keys
    found: dict[str, Any] = {name: keys.whole(key) for name, key in _SIZES.items() if key in keys}
    groups = keys.whole("num_query_groups")
    if keys.flag("group_query_attention") and groups:
        found["kv_heads"] = groups
    gated = keys.flag("swiglu")
    found["arch"] = _read_architecture(draft, gated=bool(gated), experts=found.get("experts"))
    if found.get("experts"):
        found.setdefault("moe_ffn", found.get("ffn"))
    untied = keys.flag("untie_embeddings_and_output_weights")
    if not found.get("n_layers") or not found.get("hidden"):
        return
    if found.get("head_dim", 0) * found.get("heads", 0) == found["hidden"]:
        found.pop("head_dim")
    # Names of the GPT-3 family are told by layers and width; others share them and differ in their vocabulary.
    known = find_sizes(found) if found.get("vocab") or found["arch"] == "gpt" else None
    if known is not None:
        draft.put("source", known, "num_layers")
        draft.notes.append(f"{keys.where} has the sizes of {known} of the catalogue")
        return
    if gated:
        found["gated"] = True
    if untied is not None:
        found["tied"] = not untied
    draft.put("source", f"{found['arch']}-h{found['hidden']}-l{found['n_layers']}", "num_layers")
    for name, value in found.items():
        draft.put(f"workload.{name}", value, _SIZES.get(name, "num_layers"))


def _read_architecture(draft: Draft, *, gated: bool, experts: Any) -> str:
    """Which of the catalogue's architectures the arguments describe."""
    keys = draft.keys
    rotary = keys.word("position_embedding_type") == "rope" or keys.flag("use_rotary_position_embeddings")
    rms = (keys.word("normalization") or "").lower() == "rmsnorm"
    for key in ("disable_bias_linear", "max_position_embeddings", "rotary_percent", "rotary_base",
                "make_vocab_size_divisible_by"):  # fmt: skip
        keys.take(key)
    if experts:
        return "mixtral"
    if rotary and (gated or rms):
        return "llama"
    return "bert" if "bert" in str(keys.values.get("program", "")) else "gpt"


def _read_pipeline(draft: Draft) -> None:
    keys = draft.keys
    stages = draft.get("parallelism.pipeline", 1)
    layers = keys.whole("num_layers_per_virtual_pipeline_stage")
    total = keys.whole("num_layers")
    virtual = keys.whole("num_virtual_stages_per_pipeline_rank")
    if layers and total and stages > 1 and total % (stages * layers) == 0:
        virtual = total // (stages * layers)
    if virtual and virtual > 1 and stages > 1:
        draft.put("parallelism.virtual_stages", virtual, "num_layers_per_virtual_pipeline_stage")
        draft.put("parallelism.order", "interleaved", "num_layers_per_virtual_pipeline_stage")


def _read_sharding(draft: Draft) -> None:
    keys = draft.keys
    if keys.flag("use_torch_fsdp2"):
        draft.put("parallelism.zero", 3, "use_torch_fsdp2")
    elif keys.flag("use_megatron_fsdp", "use_custom_fsdp"):
        draft.translate("parallelism.zero", _SHARDING, "data_parallel_sharding_strategy")
        draft.assume("parallelism.zero", 3, "use_megatron_fsdp shards everything unless it is told otherwise")
    elif keys.flag("use_distributed_optimizer"):
        draft.put("parallelism.zero", 1, "use_distributed_optimizer")


def _read_recompute(draft: Draft) -> None:
    keys = draft.keys
    if keys.flag("recompute_activations"):
        draft.put("parallelism.recompute", "selective", "recompute_activations")
    count = keys.whole("recompute_num_layers")
    method = keys.word("recompute_method")
    if method == "block" and count is not None:
        draft.unmapped["recompute_num_layers"] = f"only {count} layers of a stage run again; all are taken"
    modules = keys.take("recompute_modules")
    if modules not in (None, "core_attn", ["core_attn"]):
        draft.unmapped["recompute_modules"] = "other parts than the core of attention run again"


def _read_precision(draft: Draft) -> None:
    keys = draft.keys
    for word in ("bf16", "fp16"):
        if keys.flag(word):
            draft.put("workload.precision", word, word)
    if keys.word("fp8_format") is not None:
        recipe = (keys.word("fp8_recipe") or "").lower()
        draft.put("workload.precision", "mxfp8" if recipe == "mxfp8" else "fp8", "fp8_format")
    elif keys.word("fp4_format") is not None:
        draft.put("workload.precision", "fp4", "fp4_format")


def _write(sheet: Sheet) -> None:
    sheet.program = "pretrain_gpt.py"
    for name, key in _SIZES.items():
        sheet.put(key, sheet.fields.get(f"shape.{name}"))
    heads, groups = sheet.fields.get("shape.heads"), sheet.fields.get("shape.kv_heads")
    if groups and groups != heads:
        sheet.put("group_query_attention", True)
        sheet.put("num_query_groups", groups)
    if sheet.fields.get("shape.rotary"):
        sheet.put("position_embedding_type", "rope")
    if sheet.fields.get("shape.gated"):
        sheet.put("swiglu", True)
    if sheet.fields.get("shape.rms_norm"):
        sheet.put("normalization", "RMSNorm")
    if sheet.fields.get("shape.tied") is False:
        sheet.put("untie_embeddings_and_output_weights", True)
    sheet.told.add("source")
    sheet.copy("workload.seq", "seq_length")
    sheet.copy("workload.seq", "max_position_embeddings")
    sheet.copy("workload.batch", "micro_batch_size")
    sheet.copy("job.global_batch", "global_batch_size")
    write_rampup(sheet, "rampup_batch_size")
    sheet.told.add("parallelism.micro_batches")
    sheet.copy("job.steps", "train_iters")
    sheet.copy("job.samples", "train_samples")
    write_degrees(sheet)
    zero = sheet.get("parallelism.zero", 0)
    if zero == 1:
        sheet.put("use_distributed_optimizer", True)
    elif zero > 1:
        sheet.put("use_megatron_fsdp", True)
        sheet.put("data_parallel_sharding_strategy", {value: key for key, value in _SHARDING.items()}[zero])
    sheet.translate("parallelism.recompute", {"full": "full", "selective": "selective"}, "recompute_granularity")
    precision = str(sheet.get("workload.precision", "fp32"))
    if precision.startswith(("bf16", "fp16")):
        sheet.put(precision[:4], True)
    elif precision.startswith(("fp8", "mxfp8")):
        sheet.put("bf16", True)
        sheet.put("fp8_format", "hybrid")
        sheet.put("fp8_recipe", "mxfp8" if precision.startswith("mx") else None)
    if sheet.fields.get("parallelism.reduce_dtype") == "fp32":
        sheet.put("accumulate_allreduce_grads_in_fp32", True)
    if sheet.get("parallelism.overlap"):
        sheet.put("overlap_grad_reduce", True)
    if sheet.get("parallelism.offload_optimizer"):
        sheet.put("optimizer_cpu_offload", True)
    sheet.translate("workload.optimizer", {"adam": "adam", "adamw": "adam", "sgd": "sgd", "muon": "muon"}, "optimizer")
    sheet.copy("job.checkpoint_every_steps", "save_interval")
    sheet.copy("job.evaluation_every_steps", "eval_interval")
    samples, each = sheet.get("job.evaluation_samples"), sheet.get("job.global_batch")
    if samples and each:
        sheet.put("eval_iters", round(samples / each))


def write_degrees(sheet: Sheet, prefix: str = "") -> None:
    """Degrees under the names that Megatron-LM and what is built on it share."""
    for axis, key in (("tensor", "tensor_model_parallel_size"), ("pipeline", "pipeline_model_parallel_size"),
                      ("context", "context_parallel_size"), ("expert", "expert_model_parallel_size")):  # fmt: skip
        sheet.put(f"{prefix}{key}", sheet.get(f"parallelism.{axis}", 1))
    if sheet.get("parallelism.context_method") == "ulysses":
        sheet.put(f"{prefix}cp_comm_type", "a2a")
    if sheet.get("parallelism.expert_tensor") is not None:
        sheet.copy("parallelism.expert_tensor", f"{prefix}expert_tensor_parallel_size")
    if sheet.get("parallelism.sequence_parallel") or prefix:
        sheet.put(f"{prefix}sequence_parallel", bool(sheet.get("parallelism.sequence_parallel")))
    virtual = sheet.get("parallelism.virtual_stages", 1)
    if virtual > 1:
        key = "num_virtual_stages_per_pipeline_rank" if not prefix else "virtual_pipeline_model_parallel_size"
        sheet.put(f"{prefix}{key}", virtual)
    if sheet.fields.get("parallelism.order") in ("1f1b", "interleaved"):
        sheet.told.add("parallelism.order")


MEGATRON = make_format("megatron-lm", _read, _write)
