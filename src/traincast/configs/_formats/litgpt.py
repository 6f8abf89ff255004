"""LitGPT's yaml: full, LoRA and QLoRA fine-tuning and pretraining."""

from traincast.configs._documents import make_format
from traincast.configs._nouns import Draft
from traincast.configs._trainer import world_of

_ADAPTED = {
    "lora_query": "query", "lora_key": "key", "lora_value": "value", "lora_projection": "output", "lora_mlp": "mlp",
}  # fmt: skip


def _read(draft: Draft) -> None:
    keys = draft.keys
    nodes = keys.whole("num_nodes") or 1
    devices = keys.take("devices")
    per_node = devices if isinstance(devices, int) and devices > 0 else 1 if devices is None else None
    if per_node is not None:
        world_of(draft, per_node * nodes, nodes, "devices")
    several = per_node is None or per_node * nodes > 1
    _read_precision(draft, several=several)
    _read_adapters(draft)
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


LITGPT = make_format("litgpt", _read)
