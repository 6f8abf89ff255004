"""Axolotl's yaml: model, adapters, batches, packing, FSDP or DeepSpeed."""

from traincast.configs._nouns import ConfigFormat, Draft
from traincast.configs._trainer import (
    ATTENTIONS,
    assume_plain,
    read_adapter,
    read_cadence,
    read_deepspeed_name,
    read_fsdp,
    read_launcher,
    read_model,
    read_optimizer,
    read_recompute,
)


def _read(draft: Draft) -> None:
    keys = draft.keys
    read_launcher(draft)
    read_model(draft, "base_model")
    draft.take("workload.seq", "sequence_len", least=1)
    draft.take("workload.batch", "micro_batch_size", least=1)
    draft.take("parallelism.micro_batches", "gradient_accumulation_steps", least=1)
    if draft.take("job.steps", "max_steps", least=1) is None:
        draft.take("job.epochs", "num_epochs", least=1e-9)
    else:
        keys.take("num_epochs")
    read_recompute(draft, "gradient_checkpointing", "activation_checkpointing")
    read_optimizer(draft, "optimizer")
    read_cadence(draft)
    draft.take("parallelism.context", "context_parallel_size", "sequence_parallel_degree", least=1)
    draft.take("parallelism.tensor", "tensor_parallel_size", least=1)
    draft.take("parallelism.expert", "expert_parallel_size", least=1)
    _read_adapters(draft)
    _read_precision(draft)
    read_fsdp(draft)
    read_deepspeed_name(draft, "deepspeed")
    if keys.flag("torch_compile"):
        draft.put("job.compiled", True, "torch_compile")
    _read_attention(draft)
    if keys.flag("sample_packing"):
        draft.notes.append("sample_packing: every sample is taken to be full")
    else:
        draft.notes.append("samples are taken to be as long as sequence_len; shorter ones take less")
    keys.take("pad_to_sequence_len", "eval_sample_packing")
    if keys.flag("activation_offloading"):
        draft.put("parallelism.offload_activations", True, "activation_offloading")
    draft.translate("job.regime", {word: word for word in _REGIMES}, "rl")
    assume_plain(draft)
    draft.assume("workload.batch", 1, "micro_batch_size is not said, so Axolotl takes 1")
    draft.assume("parallelism.micro_batches", 1, "gradient_accumulation_steps is not said, so Axolotl takes 1")
    draft.assume("job.stack", "hf-trainer", "Axolotl trains with Hugging Face's Trainer")


def _read_adapters(draft: Draft) -> None:
    kind = draft.keys.word("adapter")
    if kind not in (None, "lora", "qlora"):
        draft.unmapped["adapter"] = f"{kind!r} is not known"
    if kind in ("lora", "qlora"):
        if draft.keys.flag("lora_target_linear"):
            draft.put("workload.adapter_targets", "all", "lora_target_linear")
        read_adapter(draft, "lora_r", "lora_target_modules")
        if draft.keys.flag("peft_use_dora"):
            draft.put("workload.adapter_norm", True, "peft_use_dora")
    else:
        for key in ("lora_r", "lora_target_modules", "lora_target_linear"):
            draft.keys.take(key)
    four, eight = draft.keys.flag("load_in_4bit"), draft.keys.flag("load_in_8bit")
    if four:
        draft.put("workload.frozen_dtype", "fp4", "load_in_4bit")
    elif eight:
        draft.put("workload.frozen_dtype", "int8", "load_in_8bit")


def _read_precision(draft: Draft) -> None:
    """The base model is loaded in the same format as it computes in, so a full fine-tuning keeps no fp32 copy."""
    keys = draft.keys
    word = str(keys.values.get("bf16", "")).lower()
    adapted = draft.get("workload.adapter_rank") is not None
    if word in ("true", "auto", "full"):
        keys.take("bf16")
        draft.put("workload.precision", "bf16" if adapted else "bf16-pure", "bf16")
        if word == "auto":
            draft.notes.append("bf16: auto is bf16 on the devices that have it")
    elif keys.flag("fp16"):
        draft.put("workload.precision", "fp16" if adapted else "fp16-amp", "fp16")
    elif keys.flag("fp8"):
        draft.put("workload.precision", "fp8", "fp8")
    elif keys.flag("tf32"):
        draft.put("workload.precision", "tf32", "tf32")
    keys.take("bf16", "fp16", "tf32", "float16", "bfloat16")


def _read_attention(draft: Draft) -> None:
    draft.translate("workload.attention", ATTENTIONS, "attn_implementation")
    for key, word in (("flash_attention", "flash-2"), ("sdp_attention", "flash"), ("eager_attention", "eager")):
        if draft.keys.flag(key):
            draft.put("workload.attention", word, key)


_REGIMES = ("dpo", "ipo", "orpo", "simpo", "kto", "grpo")

AXOLOTL = ConfigFormat(
    name="axolotl",
    title="Axolotl",
    syntax="yaml",
    telling=("base_model", "sequence_len", "micro_batch_size", "lora_target_linear", "sample_packing", "adapter", "num_epochs"),
    read=_read,
    sure="base_model",
    harmless=("datasets", "val_set_size", "evals_per_epoch", "saves_per_epoch", "model_type", "train_on_inputs", "plugins",
              "eval_", "fsdp_version", "is_llama_derived_model", "is_mistral_derived_model",
              "early_stopping_patience", "lora_model_dir", "chat_template",
              "auto_resume_from_checkpoints", "hf_use_auth_token"),
    script="axolotl",
)  # fmt: skip
