"""OpenRLHF's commands: fine-tuning, reward models and PPO on DeepSpeed, in the spelling with dots and the older one without."""

from traincast.configs._documents import make_format
from traincast.configs._models import find_model
from traincast.configs._nouns import Draft
from traincast.configs._trainer import (
    read_adapter,
    read_lengths,
)


def _read(draft: Draft) -> None:
    keys = draft.keys
    program = str(keys.values.get("program", ""))
    rank = keys.first("lora.rank", "lora_rank", "ds.lora.rank", "actor.lora.rank")
    if rank is not None and (keys.values.get(rank) or 0) > 0:
        read_adapter(
            draft, rank, "target_modules" if "target_modules" in keys else rank.replace("rank", "target_modules")
        )
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


OPENRLHF = make_format("openrlhf", _read)
