"""LLaMA-Factory's yaml or command: TrainingArguments with a stage, a kind of fine-tuning and a cut-off length."""

from traincast.configs._documents import make_format
from traincast.configs._nouns import Draft
from traincast.configs._trainer import (
    read_adapter,
    read_trainer,
)


def _read(draft: Draft) -> None:
    keys = draft.keys
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
    draft.assume(
        "parallelism.recompute", "full", "LLaMA-Factory runs layers again unless disable_gradient_checkpointing is set"
    )
    read_trainer(draft)
    # Adapters are kept in fp32 and the frozen model in half; a full fine-tuning without sharding casts its weights to fp32.
    word = draft.get("workload.precision")
    if word == "bf16-amp" and kind == "lora":
        draft.put("workload.precision", "bf16", "bf16")
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


LLAMA_FACTORY = make_format("llama-factory", _read)
