"""NeMo's and Megatron-Bridge's recipes: yaml of either, and recipe functions in Python, whose syntax is read and not run."""

from typing import Any

from traincast.configs._models import find_config_class, find_model, find_sizes
from traincast.configs._nouns import ConfigFormat, Draft
from traincast.configs._trainer import read_launcher, read_model, read_optimizer

_PRECISIONS = {"bf16": "bf16", "bf16_mixed": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "fp16_mixed": "fp16",
               "32": "fp32", "32-true": "fp32", "bf16-true": "bf16-pure"}  # fmt: skip


def _read(draft: Draft) -> None:
    read_launcher(draft)
    draft.put("job.stack", "megatron-core", "NeMo runs on Megatron-Core")
    _read_model(draft)
    _last(draft, "parallelism.tensor", "tensor_model_parallel_size", "tensor_parallelism")
    _last(draft, "parallelism.pipeline", "pipeline_model_parallel_size", "pipeline_parallelism")
    _last(draft, "parallelism.context", "context_parallel_size", "context_parallelism")
    _last(draft, "parallelism.expert", "expert_model_parallel_size", "expert_parallelism")
    _last(draft, "parallelism.expert_tensor", "expert_tensor_parallel_size")
    _last(draft, "parallelism.virtual_stages", "virtual_pipeline_model_parallel_size", "virtual_pipeline_parallelism")
    if draft.get("parallelism.virtual_stages", 1) > 1:
        draft.put("parallelism.order", "interleaved", "virtual_pipeline_model_parallel_size")
    _last(draft, "parallelism.sequence_parallel", "sequence_parallel", "sequence_parallelism", least=None)
    _last(draft, "workload.batch", "micro_batch_size")
    _last(draft, "job.global_batch", "global_batch_size")
    _last(draft, "workload.seq", "encoder_seq_length", "seq_length")
    if not _last(draft, "job.steps", "train_iters", "max_steps"):
        _last(draft, "job.epochs", "max_epochs")
    _last(draft, "job.checkpoint_every_steps", "save_interval", "every_n_train_steps")
    _last(draft, "job.evaluation_every_steps", "eval_interval")
    _read_place(draft)
    _read_sharding(draft)
    _read_rest(draft)


def _last(draft: Draft, name: str, *words: str, least: float | None = 1) -> Any:
    """Whichever table holds a key of this name; the last one that says it counts."""
    found = [key for word in words for key in draft.keys.ending(word) if key in draft.keys]
    found = [key for key in found if not isinstance(draft.keys.values[key], str) or draft.keys.values[key].isdigit()]
    for key in found[1:]:
        draft.keys.take(key)
    return draft.take(name, found[0], least=least) if found else None


def _read_model(draft: Draft) -> None:
    keys = draft.keys
    for key in (
        "model.hf_path",
        "model._args_",
        "model.config._target_",
        "model.restore_from_path",
        "hf_path",
        "model.version",
    ):
        value = keys.take(key)
        word = value[0] if isinstance(value, list) and value else value
        found = (find_config_class(word) or find_model(word)) if isinstance(word, str) else None
        if found is not None:
            draft.put("source", found, key)
            draft.notes.append(f"{word} is taken to be {found} of the catalogue")
            return
    sizes = {
        "n_layers": keys.whole("model.num_layers"), "hidden": keys.whole("model.hidden_size"),
        "heads": keys.whole("model.num_attention_heads"), "kv_heads": keys.whole("model.num_query_groups"),
        "ffn": keys.whole("model.ffn_hidden_size"), "vocab": keys.whole("model.vocab_size"),
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
    if "n_layers" in given and "hidden" in given:
        gated = (keys.word("model.activation") or keys.word("model.mlp_activation") or "") in (
            "swiglu",
            "fast-swiglu",
            "silu",
        )
        gated = gated or bool(keys.flag("model.gated_linear_unit"))
        for arch in ("llama", "mistral", "qwen2", "qwen3", "gpt"):
            known = find_sizes({**given, "arch": arch})
            if known is not None:
                draft.put("source", known, "model.num_layers")
                draft.notes.append(f"{keys.where} has the sizes of {known} of the catalogue")
                return
        given["arch"] = "llama" if gated else "gpt"
        draft.put("source", f"{given['arch']}-h{given['hidden']}-l{given['n_layers']}", "model.num_layers")
        for name, value in given.items():
            draft.put(f"workload.{name}", value, "model.num_layers")
        return
    read_model(draft, "model.name", "model.pretrained_model_name_or_path")


def _read_place(draft: Draft) -> None:
    nodes = draft.keys.whole("trainer.num_nodes")
    devices = draft.keys.take("trainer.devices", "trainer.num_gpus_per_node")
    if nodes:
        draft.put("cluster.nodes", nodes, "trainer.num_nodes")
    if isinstance(devices, int) and devices > 0:
        draft.put("cluster.devices_per_node", devices, "trainer.devices")


def _read_sharding(draft: Draft) -> None:
    keys = draft.keys
    fsdp = [key for key in (*keys.ending("use_megatron_fsdp"), *keys.ending("use_custom_fsdp")) if keys.flag(key)]
    strategy = next(iter(keys.ending("data_parallel_sharding_strategy")), None)
    if fsdp and strategy is not None:
        draft.translate(
            "parallelism.zero", {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}, strategy
        )
    elif strategy is not None:
        keys.take(strategy)
    spread = [keys.flag(key) for key in keys.ending("use_distributed_optimizer")]
    named = str(keys.values.get("model.optim.name") or keys.values.get("optim._target_") or "").lower()
    if any(spread) or ("distributed" in named and False not in spread):
        draft.assume("parallelism.zero", 1, "the distributed optimizer shards its state")
    else:
        draft.assume("parallelism.zero", 0, "the distributed optimizer is not on")
    for key in keys.ending("overlap_grad_reduce"):
        draft.take("parallelism.overlap", key)
    for key in keys.ending("grad_reduce_in_fp32"):
        if keys.flag(key):
            draft.put("parallelism.reduce_dtype", "fp32", key)
    for key in keys.ending("tp_comm_overlap"):
        draft.take("parallelism.async_tensor", key)


def _read_rest(draft: Draft) -> None:
    keys = draft.keys
    origin = keys.first("mixed_precision", "trainer.precision", "mixed_precision._target_", "trainer.plugins._target_",
                        "model.precision")  # fmt: skip
    if origin is not None:
        draft.translate("workload.precision", _PRECISIONS, origin)
    fp8 = [key for key in keys.ending("fp8") if str(keys.take(key)).lower() in ("hybrid", "e4m3", "true")]
    if fp8:
        draft.put("workload.precision", "fp8", fp8[0])
    recompute = next(
        (
            key
            for key in (*keys.ending("recompute_granularity"), *keys.ending("activations_checkpoint_granularity"))
            if key in keys
        ),
        None,
    )
    if recompute is not None:
        draft.translate("parallelism.recompute", {"full": "full", "selective": "selective"}, recompute)
    draft.assume("parallelism.recompute", "none", "no recomputation is said")
    rank = keys.first("peft.dim", "model.peft.lora_tuning.adapter_dim", "peft.lora_tuning.adapter_dim")
    scheme = str(keys.values.get("model.peft.peft_scheme") or keys.values.get("peft._target_") or "").lower()
    if rank is not None and ("lora" in scheme or "default_peft_config" in scheme or not scheme):
        draft.take("workload.adapter_rank", rank, least=1)
    read_optimizer(draft, "model.optim.name", "optimizer.optimizer")
    draft.assume("workload.optimizer", "adam", "Megatron-Core's adam is taken")
    for key in (*keys.ending("cuda_graph_impl"),):
        if keys.word(key) in ("local", "transformer_engine"):
            draft.put("job.cuda_graphs", True, key)


NEMO = ConfigFormat(
    name="nemo",
    title="NeMo and Megatron-Bridge",
    syntax="yaml",
    telling=("model.tensor_model_parallel_size", "train.train_iters", "train.global_batch_size",
             "model.encoder_seq_length", "ddp.",
             "model.pipeline_model_parallel_size", "trainer.strategy.tensor_model_parallel_size", "model.optim.", "recipe",
             "model.micro_batch_size", "trainer.strategy.ddp."),
    read=_read,
    harmless=("_target_", "logger.", "log.", "scheduler.", "dataset.", "tokenizer.", "exp_manager.", "checkpoint.",
              "rng.", "resume.",
              "trainer.callbacks", "trainer.accelerator", "trainer.log", "trainer.limit_", "trainer.val_check_interval",
              "train.manual_gc",
              "train.eval_iters",
              "optimizer.", "optim.", "data.", "model._target_", "model.config.", "model.data.", "fn"),
    sure="recipe",
    aliases=("megatron-bridge",),
)  # fmt: skip
