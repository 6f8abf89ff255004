"""OpenRLHF's commands: fine-tuning, reward models and PPO on DeepSpeed, in the spelling with dots and the older one without."""

from traincast.configs._models import publish_name
from traincast.configs._nouns import ConfigFormat, Draft, Sheet
from traincast.configs._trainer import ATTENTIONS, MODULES, read_adapter, read_launcher, read_model


def _read(draft: Draft) -> None:
    keys = draft.keys
    program = str(keys.values.get("program", ""))
    read_launcher(draft)
    draft.put("job.stack", "deepspeed", "OpenRLHF trains with DeepSpeed")
    read_model(draft, "actor.model_name_or_path", "pretrain", "model.model_name_or_path")
    draft.take("workload.batch", "train.micro_batch_size", "micro_train_batch_size", least=1)
    draft.take("job.global_batch", "train.batch_size", "train_batch_size", least=1)
    draft.take("workload.seq", "data.max_len", "max_len", least=1)
    question, answer = (
        keys.whole("prompt_max_len", "data.prompt_max_len"),
        keys.whole("generate_max_len", "rollout.max_new_tokens"),
    )
    if question and answer and "workload.seq" not in draft.settings:
        draft.put("workload.seq", question + answer, "generate_max_len")
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
        _read_actor(draft)
    elif any(word in program for word in ("dpo", "rm", "kto")):
        draft.notes.append(f"{program.rpartition('.')[2]}: one training step of the model alone is forecast")


def _read_actor(draft: Draft) -> None:
    keys = draft.keys
    draft.take("cluster.nodes", "actor.num_nodes", "actor_num_nodes", least=1)
    draft.take("cluster.devices_per_node", "actor.num_gpus_per_node", "actor_num_gpus_per_node", least=1)
    for part in ("vllm", "ref", "reward", "critic", "rollout"):
        found = [key for key in keys.values if key.startswith((f"{part}.", f"{part}_"))]
        for key in found:
            keys.take(key)
        if found:
            draft.unmapped[f"{part}.*"] = "only updates of the actor are forecast"
    draft.notes.append("one update of the actor is forecast; rollouts, rewards and reference passes come on top")


def _write(sheet: Sheet) -> None:
    sheet.program = "deepspeed --module openrlhf.cli.train_sft"
    source = sheet.get("source")
    sheet.tree["actor.model_name_or_path"] = publish_name(str(source or ""))
    pairs = {"data.max_len": "workload.seq", "train.batch_size": "job.global_batch", "train.micro_batch_size": "workload.batch",
             "train.max_epochs": "job.epochs", "ckpt.save_steps": "job.checkpoint_every_steps",
             "eval.steps": "job.evaluation_every_steps"}  # fmt: skip
    for key, name in pairs.items():
        value = sheet.get(name)
        if value is not None:
            sheet.tree[key] = value
    sheet.told.add("parallelism.micro_batches")
    sheet.tree["ds.zero_stage"] = sheet.get("parallelism.zero", 0)
    precision = str(sheet.get("workload.precision", ""))
    if precision.startswith(("bf16", "fp16")):
        sheet.tree["ds.param_dtype"] = precision[:4]
    if sheet.fields.get("parallelism.recompute") == "full":
        sheet.told.add("parallelism.recompute")
        sheet.tree["actor.gradient_checkpointing_enable"] = True
    if sheet.get("parallelism.offload_optimizer"):
        sheet.tree["ds.adam_offload"] = True
    for axis, key in (("context", "ds.ring_attn_size"), ("tensor", "ds.tensor_parallel_size")):
        if sheet.get(f"parallelism.{axis}", 1) > 1:
            sheet.tree[key] = sheet.get(f"parallelism.{axis}")
    if sheet.get("workload.adapter_rank"):
        sheet.tree["lora.rank"] = sheet.get("workload.adapter_rank")
        targets = str(sheet.get("workload.adapter_targets", "all"))
        names = {ours: theirs for theirs, ours in reversed(list(MODULES.items()))}
        sheet.tree["lora.target_modules"] = (
            "all-linear" if targets == "all" else [names.get(word, word) for word in targets.split(",")]
        )


OPENRLHF = ConfigFormat(
    name="openrlhf",
    title="OpenRLHF",
    syntax="shell",
    telling=("train.batch_size", "train.micro_batch_size", "actor.", "ds.zero_stage", "micro_train_batch_size", "zero_stage",
             "ds.param_dtype", "data.max_len", "micro_rollout_batch_size"),
    read=_read,
    write=_write,
    harmless=("algo.", "adam.", "actor.adam.", "critic.adam.", "data.", "ckpt.", "eval.", "chosen_", "rejected_",
              "input_", "output_",
              "apply_chat_template", "actor_learning_rate", "critic_learning_rate", "normalize_reward",
              "max_samples", "use_wandb", "advantage_"),
    script="openrlhf",
)  # fmt: skip
