"""verl's yaml or Hydra overrides: supervised fine-tuning, and rounds of PPO and GRPO."""

from traincast.configs._documents import make_format
from traincast.configs._models import find_model
from traincast.configs._nouns import Draft
from traincast.configs._trainer import (
    read_adapter,
    read_lengths,
    read_model,
)

_ACTOR = "actor_rollout_ref.actor"
_MODEL = "actor_rollout_ref.model"


def _read(draft: Draft) -> None:
    keys = draft.keys
    learns = any(keys.under("actor_rollout_ref"))
    model = _MODEL if learns else "model"
    engine = next(
        (table for table in (f"{_ACTOR}.fsdp_config", "engine", "model.fsdp_config") if any(keys.under(table))),
        "engine",
    )
    read_model(draft, f"{model}.path", "model.partial_pretrain")
    if learns:
        _read_actor(draft)
    else:
        draft.take("workload.batch", "data.micro_batch_size_per_gpu", "data.micro_batch_size", least=1)
        draft.take("job.global_batch", "data.train_batch_size", least=1)
        draft.take("workload.seq", "data.max_length", least=1)
    if draft.keys.flag("data.use_dynamic_bsz", f"{_ACTOR}.use_dynamic_bsz"):
        draft.notes.append("use_dynamic_bsz: passes are filled by tokens; a fixed number of full samples is taken")
    on = keys.flag(f"{model}.enable_gradient_checkpointing")
    if on is not None:
        draft.put("parallelism.recompute", "full" if on else "none", f"{model}.enable_gradient_checkpointing")
    if keys.flag(f"{model}.enable_activation_offload"):
        draft.put("parallelism.offload_activations", True, f"{model}.enable_activation_offload")
    if (keys.values.get(f"{model}.lora_rank") or 0) > 0:
        read_adapter(draft, f"{model}.lora_rank", f"{model}.target_modules")
    for key in (f"{model}.lora_rank", f"{model}.target_modules"):
        keys.take(key)
    _read_engine(draft, engine)


_ESTIMATORS = {"gae": "ppo", "grpo": "grpo", "rloo": "rloo", "grpo_vectorized": "grpo", "rloo_vectorized": "rloo"}
_ROLLOUT = "actor_rollout_ref.rollout"


def _read_actor(draft: Draft) -> None:
    """A round: prompts are answered, scored and trained on in mini-batches, each cut into passes."""
    keys = draft.keys
    draft.take("workload.batch", f"{_ACTOR}.ppo_micro_batch_size_per_gpu", least=1)
    draft.assume("workload.batch", 1, "ppo_micro_batch_size_per_gpu is not said; one sample is taken")
    samples = keys.whole(f"{_ROLLOUT}.n") or 1
    prompts = keys.whole(f"{_ACTOR}.ppo_mini_batch_size")
    if prompts:
        draft.put("job.global_batch", prompts * samples, f"{_ACTOR}.ppo_mini_batch_size")
    draft.put("job.group_size", samples, f"{_ROLLOUT}.n")
    draft.take("job.prompts", "data.train_batch_size", least=1)
    word = keys.word("algorithm.adv_estimator") or "gae"
    if word in _ESTIMATORS:
        draft.put("job.regime", _ESTIMATORS[word], "algorithm.adv_estimator")
    else:
        draft.put("job.regime", "grpo", "algorithm.adv_estimator")
        draft.unmapped["algorithm.adv_estimator"] = f"{word!r} is not known; its rounds are taken to be those of grpo"
    question, answer = keys.whole("data.max_prompt_length"), keys.whole("data.max_response_length")
    read_lengths(draft, question, answer)
    if keys.flag(f"{_MODEL}.use_remove_padding") is False and question and answer:
        draft.put("workload.seq", question + answer, "data.max_response_length")
    referred = [keys.flag(f"{_ACTOR}.use_kl_loss"), keys.flag("algorithm.use_kl_in_reward")]
    draft.put("job.reference", "frozen" if any(referred) else "none", f"{_ACTOR}.use_kl_loss")
    reward = keys.word("reward_model.model.path") if keys.flag("reward_model.enable") else None
    known = find_model(reward) if reward else None
    if reward and known is None:
        draft.unmapped["reward_model.model.path"] = f"{reward} is not in the catalogue"
    draft.put("job.reward_model", known, "reward_model.model.path")
    critic = keys.word("critic.model.path") if draft.get("job.regime") == "ppo" else None
    if critic and find_model(critic) is None:
        draft.unmapped["critic.model.path"] = f"{critic} is not in the catalogue"
    elif critic and find_model(critic) != draft.get("source"):
        draft.put("job.critic", find_model(critic), "critic.model.path")


def _read_engine(draft: Draft, engine: str) -> None:
    keys = draft.keys
    strategy = keys.word(f"{engine}.strategy", f"{_ACTOR}.strategy") or "fsdp"
    if strategy not in ("fsdp", "fsdp2"):
        draft.unmapped[f"{engine}.strategy"] = f"{strategy!r}: its degrees are not read"
    kept = keys.flag(f"{engine}.reshard_after_forward")
    draft.put("parallelism.zero", 2 if kept is False else 3, f"{engine}.reshard_after_forward")
    size = keys.whole(f"{engine}.fsdp_size")
    if size is not None and size > 1:
        draft.put("parallelism.shard", size, f"{engine}.fsdp_size")
    draft.take(
        "parallelism.context",
        f"{engine}.ulysses_sequence_parallel_size",
        f"{_ACTOR}.ulysses_sequence_parallel_size",
        least=1,
    )
    if draft.get("parallelism.context", 1) > 1:
        draft.put("parallelism.context_method", "ulysses", f"{engine}.ulysses_sequence_parallel_size")
    moved = [name for name in ("optimizer_offload", "param_offload") if keys.flag(f"{engine}.{name}")]
    if "job.regime" in draft.settings and moved:
        # State lies in host memory while the same devices generate.
        draft.put("job.rollout_offload", True, f"{engine}.{moved[0]}")
    elif moved:
        draft.put("parallelism.offload_optimizer", "optimizer_offload" in moved or None, f"{engine}.optimizer_offload")
        draft.put("parallelism.offload_weights", "param_offload" in moved or None, f"{engine}.param_offload")
    word = keys.word(f"{engine}.dtype") or "bfloat16"
    pure = keys.word(f"{engine}.model_dtype") in ("bf16", "bfloat16")
    if word in ("bfloat16", "bf16"):
        draft.put("workload.precision", "bf16-pure" if pure else "bf16", f"{engine}.dtype")
    for key in ("wrap_policy.min_num_params", "use_orig_params", "forward_prefetch"):
        keys.take(f"{engine}.{key}")


VERL = make_format("verl", _read)
