"""TRL's yaml or command: TrainingArguments with a model, adapters and the method."""

from traincast.configs._documents import make_format
from traincast.configs._models import name_source
from traincast.configs._nouns import Draft
from traincast.configs._trainer import (
    read_adapter,
    read_lengths,
    read_recompute,
    read_trainer,
)


def _read(draft: Draft) -> None:
    program = str(draft.keys.values.get("program", ""))
    if draft.keys.flag("use_peft") or "lora_r" in draft.keys:
        read_adapter(draft, "lora_r", "lora_target_modules")
        draft.assume("workload.adapter_rank", 16, "lora_r is not said, so TRL takes 16")
    read_recompute(draft, "gradient_checkpointing")
    draft.assume("parallelism.recompute", "full", "gradient_checkpointing is not said, so TRL runs layers again")
    read_trainer(draft)
    if draft.keys.first("bf16", "fp16") is None:
        draft.assume("workload.precision", "bf16-amp", "neither bf16 nor fp16 is said, so TRL takes bf16")
    if (
        draft.keys.word("dtype", "torch_dtype") in ("bfloat16", "float16")
        and draft.get("workload.precision") == "bf16-amp"
    ):
        adapted = draft.get("workload.adapter_rank")
        draft.put("workload.precision", "bf16" if adapted else "bf16-pure", "dtype")
    if draft.keys.flag("packing") and draft.get("workload.seq"):
        draft.notes.append("packing: every sample is taken to be full")
    if draft.keys.values.get("padding_free") is True:
        draft.refuse("padding_free", "no field")
    _read_method(draft, program)


def _read_method(draft: Draft, program: str) -> None:
    """Supervised, preference or reinforcement learning: by the command, or by keys that only one of them has."""
    keys = draft.keys
    teacher = keys.word("teacher_model_name_or_path")
    if teacher is not None:
        draft.put("job.regime", "distillation", "teacher_model_name_or_path")
        draft.put("job.teacher", name_source(teacher), "teacher_model_name_or_path")
        draft.notes.append("completions that TRL has its student generate first are not in the step")
        return
    word = next((name for name in ("grpo", "dpo", "kto", "rloo", "reward") if name in program.lower()), None)
    if word is None and any(key in keys for key in ("num_generations", "max_completion_length", "reward_funcs")):
        word = "grpo"
    if word is None and (loss := keys.values.get("loss_type")) in _PREFERENCES:
        keys.take("loss_type")
        word = _PREFERENCES[loss]
    if word is None:
        return
    draft.put("job.regime", word, program or "num_generations")
    if keys.flag("precompute_ref_log_probs"):
        draft.put("job.reference", "precomputed", "precompute_ref_log_probs")
    if word in ("grpo", "rloo"):
        _read_rounds(draft, word)


def _read_rounds(draft: Draft, word: str) -> None:
    """Who generates how many answers, and what they are compared with."""
    keys = draft.keys
    group = draft.take("job.group_size", "num_generations", least=1) or 8
    made = keys.whole("generation_batch_size")
    if made and made % group == 0:
        draft.put("job.prompts", made // group, "generation_batch_size")
    read_lengths(draft, keys.whole("max_prompt_length"), keys.whole("max_completion_length"))
    beta = keys.number("beta")
    if word == "grpo" and not beta:
        draft.put("job.reference", "none", "beta")
    draft.take("job.rollout_epochs", "num_iterations", least=1)
    served = keys.flag("use_vllm")
    if served is False or (served is None and not any(key.startswith("vllm_") for key in keys.values)):
        draft.put("job.rollout_engine", "plain", "use_vllm")
    draft.take("job.rollout_tp", "vllm_tensor_parallel_size", least=1)
    draft.take("job.rollout_memory", "vllm_gpu_memory_utilization")


_PREFERENCES = {"sigmoid": "dpo", "ipo": "ipo", "kto": "kto"}
"""Losses of preference learning that name a regime."""


TRL = make_format("trl", _read)
