"""LLaMA-Factory's yaml or command: TrainingArguments with a stage, a kind of fine-tuning and a cut-off length."""

from traincast.configs._nouns import ConfigFormat, Draft
from traincast.configs._trainer import (
    ATTENTIONS,
    read_adapter,
    read_launcher,
    read_model,
    read_trainer,
)


def _read(draft: Draft) -> None:
    keys = draft.keys
    read_launcher(draft)
    read_model(draft, "model_name_or_path", "model")
    draft.take("workload.seq", "cutoff_len", least=1)
    draft.take("workload.batch", "micro_batch_size", least=1)
    kind = keys.word("finetuning_type") or "lora"
    if kind == "lora":
        read_adapter(draft, "lora_rank", "lora_target")
        draft.assume("workload.adapter_rank", 8, "lora_rank is not said, so LLaMA-Factory takes 8")
        draft.assume("workload.adapter_targets", "all", "lora_target is not said, so LLaMA-Factory takes all")
        if keys.flag("use_dora"):
            draft.put("workload.adapter_norm", True, "use_dora")
    elif kind != "full":
        draft.unmapped["finetuning_type"] = f"{kind!r} is not known; full fine-tuning is taken"
    bits = keys.whole("quantization_bit")
    if bits in (4, 8):
        draft.put("workload.frozen_dtype", "fp4" if bits == 4 else "int8", "quantization_bit")
    draft.translate("workload.attention", {**ATTENTIONS, "disabled": "eager"}, "flash_attn")
    if keys.flag("disable_gradient_checkpointing"):
        draft.put("parallelism.recompute", "none", "disable_gradient_checkpointing")
    draft.assume(
        "parallelism.recompute", "full", "LLaMA-Factory runs layers again unless disable_gradient_checkpointing is set"
    )
    read_trainer(draft)
    # Adapters are kept in fp32 and the frozen model in half; a full fine-tuning without sharding casts its weights to fp32.
    word = draft.get("workload.precision")
    if word == "bf16-amp" and kind == "lora":
        draft.put("workload.precision", "bf16", "bf16")
    if keys.flag("pure_bf16"):
        draft.put("workload.precision", "bf16-pure", "pure_bf16")
    if keys.word("dist_config.name") == "fsdp2":
        draft.put("parallelism.zero", 3, "dist_config.name")
    stage = keys.word("stage")
    if stage in _STAGES:
        draft.put("job.regime", _STAGES[stage], "stage")
        loss = keys.word("pref_loss")
        if stage == "dpo" and loss in ("ipo", "orpo", "simpo"):
            draft.put("job.regime", loss, "pref_loss")
    elif stage not in (None, "sft", "pt"):
        draft.unmapped["stage"] = f"{stage}: one training step of the model alone is forecast"
    for name in (
        "use_galore",
        "use_apollo",
        "use_badam",
        "use_muon",
        "use_adam_mini",
        "mixture_of_depths",
        "use_unsloth",
    ):
        if keys.values.get(name):
            draft.refuse(name, "no field")


_STAGES = {"dpo": "dpo", "kto": "kto", "rm": "reward", "ppo": "ppo"}


LLAMA_FACTORY = ConfigFormat(
    name="llama-factory",
    title="LLaMA-Factory",
    syntax="yaml",
    telling=("bf16", "model_name_or_path",
             "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps",
             "gradient_checkpointing",
             "finetuning_type", "cutoff_len", "stage", "template", "lora_target", "lora_rank", "preprocessing_num_workers",
             "dist_config.", "quantization_bit"),
    read=_read,
    sure="finetuning_type",
    harmless=("dataset", "max_samples", "preprocessing_", "dataloader_", "overwrite_cache", "val_size", "eval_", "sample_backend",
              "per_device_eval_batch_size", "max_new_tokens", "train_dataset", "model_class", "quantization_method",
              "bnb_config", "ray_", "resources_per_worker", "placement_strategy", "kernel_config", "save_steps"),
    script="llamafactory-cli",
)  # fmt: skip
