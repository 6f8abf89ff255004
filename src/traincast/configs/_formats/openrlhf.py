"""OpenRLHF's commands: fine-tuning, reward models and PPO on DeepSpeed, in the spelling with dots and the older one without."""

from traincast.configs._models import find_model
from traincast.configs._nouns import ConfigFormat, Draft
from traincast.configs._trainer import (
    ATTENTIONS,
    read_adapter,
    read_launcher,
    read_lengths,
    read_model,
)


def _read(draft: Draft) -> None:
    keys = draft.keys
    program = str(keys.values.get("program", ""))
    read_launcher(draft)
    draft.put("job.stack", "deepspeed", "OpenRLHF trains with DeepSpeed")
    read_model(draft, "actor.model_name_or_path", "pretrain", "model.model_name_or_path")
    draft.take("workload.batch", "train.micro_batch_size", "micro_train_batch_size", least=1)
    draft.take("job.global_batch", "train.batch_size", "train_batch_size", least=1)
    draft.take("workload.seq", "data.max_len", "max_len", least=1)
    draft.take("job.epochs", "train.max_epochs", "max_epochs", least=1e-9)
    draft.take("parallelism.zero", "ds.zero_stage", "zero_stage")
    draft.assume("parallelism.zero", 2, "zero_stage is not said, so OpenRLHF takes 2")
    draft.translate("workload.precision", {"bf16": "bf16", "fp16": "fp16"}, "ds.param_dtype", "param_dtype")
    if keys.flag("bf16", "ds.bf16"):
        draft.put("workload.precision", "bf16", "bf16")
    draft.assume("workload.precision", "bf16", "the parameters' format is not said, so OpenRLHF takes bf16")
    if keys.flag(
        "actor.gradient_checkpointing_enable", "gradient_checkpointing", "model.gradient_checkpointing_enable"
    ):
        draft.put("parallelism.recompute", "full", "gradient_checkpointing")
    draft.assume("parallelism.recompute", "none", "gradient checkpointing is not said, so nothing runs again")
    if keys.flag("ds.adam_offload", "adam_offload"):
        draft.put("parallelism.offload_optimizer", True, "adam_offload")
    draft.take("parallelism.context", "ds.ring_attn_size", "ring_attn_size", least=1)
    draft.take("parallelism.tensor", "ds.tensor_parallel_size", "ds_tensor_parallel_size", least=1)
    rank = keys.first("lora.rank", "lora_rank", "ds.lora.rank", "actor.lora.rank")
    if rank is not None and (keys.values.get(rank) or 0) > 0:
        read_adapter(
            draft, rank, "target_modules" if "target_modules" in keys else rank.replace("rank", "target_modules")
        )
    if keys.flag("load_in_4bit", "ds.load_in_4bit"):
        draft.put("workload.frozen_dtype", "fp4", "load_in_4bit")
    draft.translate("workload.attention", ATTENTIONS, "attn_implementation", "ds.attn_implementation")
    if keys.flag("flash_attn"):
        draft.put("workload.attention", "flash-2", "flash_attn")
    draft.take("job.checkpoint_every_steps", "ckpt.save_steps", "save_steps", least=1)
    draft.take("job.evaluation_every_steps", "eval.steps", "eval_steps", least=1)
    if keys.flag("ds.packing_samples", "packing_samples"):
        draft.notes.append("packing_samples: every sample is taken to be full")
    if "ppo" in program or any(keys.under("vllm")):
        _read_rounds(draft)
        return
    word = {"train_dpo": "dpo", "train_rm": "reward", "train_kto": "kto"}.get(program.rpartition(".")[2])
    draft.put("job.regime", word, program)


_ESTIMATORS = {"gae": "ppo", "group_norm": "grpo", "dr_grpo": "grpo", "rloo": "rloo"}


def _read_rounds(draft: Draft) -> None:
    """Rounds of PPO and its kin: who generates, who scores, and how long answers are."""
    keys = draft.keys
    word = keys.word("algo.advantage.estimator", "advantage_estimator") or "gae"
    draft.put("job.regime", _ESTIMATORS.get(word, "rloo"), "algo.advantage.estimator")
    if word not in _ESTIMATORS:
        draft.unmapped["algo.advantage.estimator"] = f"{word!r} is not known; its rounds are taken to be those of rloo"
    draft.take("cluster.nodes", "actor.num_nodes", "actor_num_nodes", least=1)
    draft.take("cluster.devices_per_node", "actor.num_gpus_per_node", "actor_num_gpus_per_node", least=1)
    draft.take("job.prompts", "rollout.batch_size", "rollout_batch_size", least=1)
    draft.take("job.group_size", "rollout.n_samples_per_prompt", "n_samples_per_prompt", least=1)
    limit = keys.whole("prompt_max_len", "data.prompt_max_len")
    read_lengths(draft, limit, keys.whole("generate_max_len", "rollout.max_new_tokens"))
    engines = keys.whole("vllm.num_engines", "vllm_num_engines") or 0
    each = draft.take("job.rollout_tp", "vllm.tensor_parallel_size", "vllm_tensor_parallel_size", least=1) or 1
    if engines and not keys.flag("train.colocate_all", "colocate_all_models"):
        draft.put("job.rollout_gpus", engines * each, "vllm.num_engines")
    if keys.flag("train.async_enable", "async_train"):
        draft.put("job.rollout_lag", 1, "train.async_enable")
    draft.take("job.rollout_memory", "vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization")
    if keys.flag("ds.enable_sleep", "deepspeed_enable_sleep"):
        draft.put("job.rollout_offload", True, "ds.enable_sleep")
    if keys.number("algo.kl.init_coef", "init_kl_coef") == 0:
        draft.put("job.reference", "none", "algo.kl.init_coef")
    reward = keys.word("reward.model_name_or_path", "reward_pretrain")
    if reward:
        known = find_model(reward)
        draft.put("job.reward_model", known, "reward.model_name_or_path")
        if known is None:
            draft.unmapped["reward.model_name_or_path"] = f"{reward} is not in the catalogue"
    for part in ("ref", "reward", "critic"):
        for key in (f"{part}.num_nodes", f"{part}.num_gpus_per_node"):
            draft.refuse(key, "models beside the actor are taken to share its devices")


_NAMES = {"ppo": "gae", "grpo": "group_norm", "rloo": "rloo"}


OPENRLHF = ConfigFormat(
    name="openrlhf",
    title="OpenRLHF",
    syntax="shell",
    telling=("train.batch_size", "train.micro_batch_size", "actor.", "ds.zero_stage", "micro_train_batch_size", "zero_stage",
             "ds.param_dtype", "data.max_len", "micro_rollout_batch_size"),
    read=_read,
    harmless=("algo.", "adam.", "actor.adam.", "critic.adam.", "data.", "ckpt.", "eval.", "chosen_", "rejected_",
              "input_", "output_",
              "apply_chat_template", "actor_learning_rate", "critic_learning_rate", "normalize_reward",
              "max_samples", "use_wandb", "advantage_"),
    script="openrlhf",
)  # fmt: skip
