"""The arguments of Hugging Face's Trainer, which several projects share: read into fields and written back."""

import re
from collections.abc import Mapping
from typing import Any

from traincast.configs._models import name_source
from traincast.configs._nouns import LOOSE, Draft
from traincast.configs._words import words_of

_UNSAID = {"min_num_params", "xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "config"}
_SHARDING = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3, "hybrid_shard_zero2": 2}


def read_trainer(draft: Draft) -> None:
    """What TrainingArguments say about the batch, its length, precision, recomputation and sharding."""
    draft.take("workload.batch", "per_device_train_batch_size", least=1)
    draft.take("parallelism.micro_batches", "gradient_accumulation_steps", least=1)
    if draft.take("job.steps", "max_steps", least=1) is None:
        draft.take("job.epochs", "num_train_epochs", least=1e-9)
    else:
        draft.keys.take("num_train_epochs")
    read_recompute(draft, "gradient_checkpointing", "activation_checkpointing")
    read_cadence(draft)
    read_optimizer(draft, "optim")
    read_precision(draft)
    read_fsdp(draft)
    if draft.keys.flag("torch_compile"):
        draft.put("job.compiled", True, "torch_compile")
    read_liger(draft, "use_liger_kernel", "enable_liger_kernel")
    read_deepspeed_name(draft, "deepspeed")
    draft.assume("workload.batch", 8, "per_device_train_batch_size is not said, so Trainer takes 8")
    draft.assume("parallelism.micro_batches", 1, "gradient_accumulation_steps is not said, so Trainer takes 1")
    assume_plain(draft)
    draft.assume("job.stack", "hf-trainer", "Trainer runs it")


def read_lengths(draft: Draft, prompt: int | None, answer: int | None) -> None:
    """Limits of prompts and responses; files do not say how long they are on average."""
    if prompt:
        draft.put("job.prompt_tokens", max(1, prompt // 2), "the limit of prompts", strength=LOOSE)
    if answer:
        draft.put("job.response_max", answer, "the limit of responses")
        draft.put("job.response_tokens", max(1, answer // 2), "the limit of responses", strength=LOOSE)
    if prompt or answer:
        draft.notes.append(
            "mean lengths of prompts and responses are not in the file; half of their limits are assumed (--prompt-tokens, "
            "--response-tokens)"
        )


LIGER_CHUNKS = 8
"""Parts of a loss whose scores never exist at once (Hsu et al. 2024): the kernel keeps them about as large as its input."""


def read_liger(draft: Draft, *keys: str) -> None:
    """Liger's kernels: gates in one kernel, and a loss that is made in parts together with its product."""
    key = draft.keys.first(*keys)
    if key is None or not draft.keys.flag(*keys):
        return
    draft.put("workload.fused_gate", True, key)
    draft.put("workload.fused_loss", True, key)
    draft.put("workload.loss_chunks", LIGER_CHUNKS, key)


def assume_plain(draft: Draft) -> None:
    """What trainers do where nothing is said: replicas hold everything, and nothing runs again."""
    draft.assume("parallelism.zero", 0, "neither FSDP nor DeepSpeed is said, so replicas hold everything")
    draft.assume("parallelism.recompute", "none", "gradient checkpointing is not said, so nothing runs again")


def read_recompute(draft: Draft, *keys: str) -> None:
    origin = draft.keys.first(*keys)
    if origin is not None and str(draft.keys.values[origin]).lower() in ("unsloth", "offload", "offload_disk"):
        draft.put("parallelism.recompute", "full", origin)
        draft.put("parallelism.offload_activations", True, origin)
        draft.keys.take(origin)
        return
    on = draft.keys.flag(*keys)
    if on is not None and origin is not None:
        draft.put("parallelism.recompute", "full" if on else "none", origin)
    for key in draft.keys.under("gradient_checkpointing_kwargs"):
        draft.keys.take(key)


def read_cadence(draft: Draft) -> None:
    """Steps between checkpoints and evaluations, where they are counted in steps."""
    saves = draft.keys.word("save_strategy")
    if saves in (None, "steps"):
        draft.take("job.checkpoint_every_steps", "save_steps", least=1)
    when = draft.keys.word("eval_strategy", "evaluation_strategy")
    if when == "steps" or (when is None and "eval_steps" in draft.keys):
        draft.take("job.evaluation_every_steps", "eval_steps", least=1)


def read_optimizer(draft: Draft, *keys: str) -> None:
    origin = draft.keys.first(*keys)
    word = draft.keys.take(*keys)
    if origin is None or not isinstance(word, str):
        return
    name = word.rpartition(".")[2].lower()
    known = words_of("optimizers")
    found = known.get(name) or known.get(name.replace("-", "_"))
    if found is None:
        draft.unmapped[origin] = f"{word!r} is not known"
        return
    draft.put("workload.optimizer", found, origin)
    draft.put("workload.implementation", words_of("implementations").get(name), origin)


def read_precision(draft: Draft) -> None:
    """Mixed precision of a trainer: fp32 weights, cast around each op, unless an engine that shards keeps both copies."""
    if draft.keys.flag("bf16"):
        draft.put("workload.precision", "bf16-amp", "bf16", strength=LOOSE)
    elif draft.keys.flag("fp16"):
        draft.put("workload.precision", "fp16-amp", "fp16", strength=LOOSE)
    elif draft.keys.flag("tf32"):
        draft.put("workload.precision", "tf32", "tf32", strength=LOOSE)
    else:
        return
    draft.keys.take("fp16", "tf32")


def read_fsdp(draft: Draft) -> None:
    """`fsdp: full_shard auto_wrap` with its table of settings, as Trainer takes it."""
    words = draft.keys.take("fsdp")
    listed = words if isinstance(words, list) else str(words or "").split()
    table = {key.rpartition(".")[2].removeprefix("fsdp_"): key for key in draft.keys.under("fsdp_config")}
    if not listed and not set(table) - _UNSAID:
        # Trainer writes its defaults into the file where nothing is sharded.
        for key in table.values():
            draft.keys.take(key)
        return
    if listed == ["True"]:
        listed = ["full_shard"]
    for word in listed:
        if word in _SHARDING:
            draft.put("parallelism.zero", _SHARDING[word], "fsdp")
        elif word == "offload":
            draft.put("parallelism.offload_optimizer", True, "fsdp")
            draft.put("parallelism.offload_weights", True, "fsdp")
    read_fsdp_table(draft, table)
    _sharpen(draft)


def read_fsdp_table(draft: Draft, table: Mapping[str, str]) -> None:
    """The settings of FSDP, of its first or second version, wherever a project keeps them."""
    keys = draft.keys
    for name in ("version", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "cpu_ram_efficient_loading",
                 "sync_module_states", "use_orig_params", "state_dict_type", "final_state_dict_type",
                 "limit_all_gathers"):  # fmt: skip
        if name in table:
            keys.take(table[name])
    strategy = table.get("sharding_strategy") or table.get("reshard_after_forward")
    keys.take(*(table[name] for name in ("sharding_strategy", "reshard_after_forward") if name in table))
    if strategy is not None:
        value = keys.word(strategy)
        word = {
            "true": "full_shard", "false": "shard_grad_op", "1": "full_shard", "2": "shard_grad_op", "3": "no_shard",
        }.get(str(value).lower(), str(value).lower())  # fmt: skip
        if word in _SHARDING:
            draft.put("parallelism.zero", _SHARDING[word], strategy)
            if word.startswith("hybrid"):
                draft.notes.append(f"{strategy} = {value}: shards lie within a node (--shard says how many)")
    if "activation_checkpointing" in table and keys.flag(table["activation_checkpointing"]):
        draft.put("parallelism.recompute", "full", table["activation_checkpointing"])
    if "offload_params" in table and keys.flag(table["offload_params"]):
        draft.put("parallelism.offload_optimizer", True, table["offload_params"])
        draft.put("parallelism.offload_weights", True, table["offload_params"])
    if "forward_prefetch" in table:
        keys.take(table["forward_prefetch"])
    if "backward_prefetch" in table:
        word = str(keys.take(table["backward_prefetch"])).lower()
        if word in ("no_prefetch",):
            draft.put("parallelism.overlap", False, table["backward_prefetch"])
    draft.assume(
        "parallelism.zero", 3, "FSDP shards weights, gradients and optimizer state unless it is told otherwise"
    )


def _sharpen(draft: Draft) -> None:
    """FSDP with mixed precision computes in halves and keeps whole weights in its shards."""
    word = draft.get("workload.precision")
    if word in ("bf16-amp", "fp16-amp"):
        draft.put("workload.precision", word.removesuffix("-amp"), "fsdp")


def read_deepspeed_name(draft: Draft, key: str) -> None:
    """A trainer that names a DeepSpeed file: its stage stands in most of their names; the file itself may be given too."""
    word = draft.keys.word(key)
    if word is None:
        return
    matched = re.search(r"(?:zero|z|stage)[_-]?([0-3])", word.rpartition("/")[2].lower())
    draft.assume("job.stack", "deepspeed", f"{key} names {word}")
    mixed = draft.get("workload.precision")
    if mixed in ("bf16-amp", "fp16-amp", "bf16-pure"):
        # Its engine keeps fp32 copies of half-precision weights.
        draft.put("workload.precision", mixed.partition("-")[0], key)
    if matched is None:
        draft.unmapped[key] = f"give {word} with --config too"
        return
    draft.put("parallelism.zero", int(matched[1]), key, strength=LOOSE)
    if "offload" in word:
        draft.put("parallelism.offload_optimizer", True, key, strength=LOOSE)
    draft.notes.append(f"{word} was not read; its name says ZeRO {matched[1]} (give it with --config too)")


def read_model(draft: Draft, *keys: str) -> None:
    """The model that a file names."""
    origin = draft.keys.first(*keys)
    word = draft.keys.word(*keys)
    if word is None or origin is None:
        return
    source = name_source(word)
    if source is None:
        draft.unmapped[origin] = f"{word} is not known; name the model as the source"
        return
    draft.put("source", source, origin)
    if source != word and not source.startswith("hf:"):
        draft.notes.append(f"{word} is taken to be {source} of the catalogue")


def read_adapter(
    draft: Draft, rank: str, targets: str, *, every: tuple[str, ...] = ("all", "all-linear", "all_linear")
) -> None:
    """Low-rank adapters and the layers they stand beside."""
    draft.take("workload.adapter_rank", rank, least=1)
    value = draft.keys.take(targets)
    if value is None:
        return
    names = [str(part).strip() for part in (value if isinstance(value, list) else re.split(r"[,\s]+", str(value)))]
    names = [name for name in names if name]
    if any(name in every for name in names):
        draft.put("workload.adapter_targets", "all", targets)
        return
    modules = words_of("modules")
    known = [modules[name.rpartition(".")[2]] for name in names if name.rpartition(".")[2] in modules]
    others = [name for name in names if name.rpartition(".")[2] not in modules]
    if others:
        draft.unmapped[targets] = f"{', '.join(others[:4])} not known as layers"
    if known:
        draft.put("workload.adapter_targets", ",".join(dict.fromkeys(known)), targets)


def world_of(draft: Draft, devices: int | None, nodes: int | None, origin: str) -> None:
    """All devices of a job over its nodes."""
    if nodes is not None and nodes >= 1:
        draft.put("cluster.nodes", nodes, origin)
    if devices is not None and devices >= 1:
        per_node = devices // (nodes or 1)
        if per_node * (nodes or 1) == devices:
            draft.put("cluster.devices_per_node", per_node, origin)


def read_launcher(draft: Draft) -> None:
    """Nodes and processes that a launch script gives to torchrun, deepspeed or accelerate."""
    keys = draft.keys
    nodes = _count(keys.take("launch.nnodes", "launch.num_nodes", "launch.num_machines", "launch.nodes"))
    per_node = _count(
        keys.take("launch.nproc_per_node", "launch.num_gpus", "launch.gpus_per_node", "launch.ntasks_per_node")
    )
    everything = _count(keys.take("launch.num_processes"))
    if nodes:
        draft.put("cluster.nodes", nodes, "the launcher")
    if per_node:
        draft.put("cluster.devices_per_node", per_node, "the launcher")
    elif everything:
        world_of(draft, everything, nodes, "the launcher")
    for key in list(keys.under("launch")):
        keys.take(key)
    for key in ("program", "script.conditions", "recipe", "recipe.conditions"):
        said: Any = keys.take(key)
        if key.endswith("conditions") and said:
            draft.notes.append(str(said))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
