"""LitGPT's yaml: full, LoRA and QLoRA fine-tuning and pretraining."""

from traincast.configs._nouns import ConfigFormat, Draft
from traincast.configs._trainer import read_launcher, read_model, read_optimizer, world_of

_ADAPTED = {
    "lora_query": "query", "lora_key": "key", "lora_value": "value", "lora_projection": "output", "lora_mlp": "mlp",
}  # fmt: skip


def _read(draft: Draft) -> None:
    keys = draft.keys
    read_launcher(draft)
    draft.put("job.stack", "litgpt", "a LitGPT file")
    read_model(draft, "model_name", "checkpoint_dir")
    nodes = keys.whole("num_nodes") or 1
    devices = keys.take("devices")
    per_node = devices if isinstance(devices, int) and devices > 0 else 1 if devices is None else None
    if per_node is not None:
        world_of(draft, per_node * nodes, nodes, "devices")
    several = per_node is None or per_node * nodes > 1
    draft.take("workload.batch", "train.micro_batch_size", least=1)
    draft.take("job.global_batch", "train.global_batch_size", least=1)
    draft.take("workload.seq", "train.max_seq_length", least=1)
    if not draft.take("job.steps", "train.max_steps", least=1) and not draft.take(
        "job.tokens", "train.max_tokens", least=1
    ):
        draft.take("job.epochs", "train.epochs", least=1e-9)
    for key in ("train.epochs", "train.max_tokens"):
        keys.take(key)
    draft.take("job.checkpoint_every_steps", "train.save_interval", least=1)
    draft.take("job.evaluation_every_steps", "eval.interval", least=1)
    _read_precision(draft, several=several)
    _read_adapters(draft)
    read_optimizer(draft, "optimizer.class_path", "optimizer")
    if several:
        draft.put("parallelism.zero", 3, "devices")
        if nodes > 1 and "model_name" in keys:
            draft.notes.append("pretraining shards within a node (HYBRID_SHARD)")
            if per_node is not None:
                draft.put("parallelism.shard", per_node, "devices")
    else:
        draft.put("parallelism.zero", 0, "devices")
        draft.assume("parallelism.recompute", "none", "one device runs nothing again")


def _read_adapters(draft: Draft) -> None:
    keys = draft.keys
    draft.take("workload.adapter_rank", "lora_r", least=1)
    listed = [ours for key, ours in _ADAPTED.items() if keys.flag(key)]
    if draft.get("workload.adapter_rank") and listed:
        every = len(listed) == len(_ADAPTED)
        draft.put("workload.adapter_targets", "all" if every else ",".join(listed), "lora_query")
    if keys.flag("lora_head"):
        draft.unmapped["lora_head"] = "adapters beside the output layer have no field"
    quantized = keys.word("quantize")
    if quantized is not None:
        four = any(word in quantized for word in ("nf4", "fp4"))
        draft.put("workload.frozen_dtype", "fp4" if four else "int8", "quantize")


def _read_precision(draft: Draft, *, several: bool) -> None:
    word = draft.keys.word("precision") or ""
    # By their peaks, shards of FSDP are kept in fp32 (the stack's own document says so).
    words = {"bf16-true": "bf16" if several else "bf16-pure", "bf16-mixed": "bf16-amp", "16-mixed": "fp16-amp", "32-true": "fp32",
             "16-true": "fp16"}  # fmt: skip
    if word in words:
        draft.put("workload.precision", words[word], "precision")
    elif word:
        draft.unmapped["precision"] = f"{word!r} is not known"
    else:
        draft.assume(
            "workload.precision", words["bf16-true"], "precision is not said, so LitGPT takes bf16-true where it can"
        )


LITGPT = ConfigFormat(
    name="litgpt",
    title="LitGPT",
    syntax="yaml",
    telling=("checkpoint_dir", "train.micro_batch_size", "train.global_batch_size", "lora_query", "train.lr_warmup_steps",
             "train.max_seq_length", "initial_checkpoint_dir", "train.save_interval"),
    read=_read,
    sure="checkpoint_dir",
    harmless=("data", "train.", "eval.", "optimizer.init_args", "out_dir", "access_token", "logger_name",
              "model_config", "tokenizer_dir"),
    nodes_by_launcher=False,
    script="litgpt",
)  # fmt: skip
