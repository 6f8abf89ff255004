"""NeMo's and Megatron-Bridge's recipes: yaml of either, and recipe functions in Python, whose syntax is read and not run."""

from typing import Any

from traincast.configs._documents import make_format
from traincast.configs._models import find_config_class, find_model, find_sizes
from traincast.configs._nouns import Draft
from traincast.configs._trainer import read_model


def _read(draft: Draft) -> None:
    _read_model(draft)
    if draft.get("parallelism.virtual_stages", 1) > 1:
        draft.put("parallelism.order", "interleaved", "virtual_pipeline_model_parallel_size")
    devices = draft.keys.take("trainer.devices", "trainer.num_gpus_per_node")
    if isinstance(devices, int) and devices > 0:
        draft.put("cluster.devices_per_node", devices, "trainer.devices")
    _read_sharding(draft)
    _read_rest(draft)


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


def _read_rest(draft: Draft) -> None:
    keys = draft.keys
    fp8 = [key for key in keys.ending("fp8") if str(keys.take(key)).lower() in ("hybrid", "e4m3", "true")]
    if fp8:
        draft.put("workload.precision", "fp8", fp8[0])
    rank = keys.first("peft.dim", "model.peft.lora_tuning.adapter_dim", "peft.lora_tuning.adapter_dim")
    scheme = str(keys.values.get("model.peft.peft_scheme") or keys.values.get("peft._target_") or "").lower()
    if rank is not None and ("lora" in scheme or "default_peft_config" in scheme or not scheme):
        draft.take("workload.adapter_rank", rank, least=1)
    for key in keys.ending("cuda_graph_impl"):
        if keys.word(key) in ("local", "transformer_engine"):
            draft.put("job.cuda_graphs", True, key)


NEMO = make_format("nemo", _read)
