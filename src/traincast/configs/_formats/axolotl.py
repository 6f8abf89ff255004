"""Axolotl's yaml: model, adapters, batches, packing, FSDP or DeepSpeed."""

from traincast.configs._documents import make_format
from traincast.configs._nouns import Draft
from traincast.configs._trainer import (
    assume_plain,
    read_adapter,
    read_cadence,
    read_deepspeed_name,
    read_fsdp,
    read_recompute,
)


def _read(draft: Draft) -> None:
    read_recompute(draft, "gradient_checkpointing", "activation_checkpointing")
    read_cadence(draft)
    _read_adapters(draft)
    _read_precision(draft)
    read_fsdp(draft)
    read_deepspeed_name(draft, "deepspeed")
    if draft.keys.flag("sample_packing"):
        draft.notes.append("sample_packing: every sample is taken to be full")
    else:
        draft.notes.append("samples are taken to be as long as sequence_len; shorter ones take less")
    assume_plain(draft)


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


AXOLOTL = make_format("axolotl", _read)
