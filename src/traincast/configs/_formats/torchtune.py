"""torchtune's yaml: a component for the model, with or without adapters, and how its recipe trains it."""

import re

from traincast.configs._documents import make_format
from traincast.configs._models import find_model
from traincast.configs._nouns import Draft
from traincast.configs._words import words_of


def _read(draft: Draft) -> None:
    keys = draft.keys
    single = "single_device" in keys.where or "single_device" in str(keys.values.get("program", ""))
    _read_model(draft)
    if draft.get("workload.seq") is None:
        draft.notes.append("tokenizer.max_seq_len is not set, so samples are as long as the data have them; give --seq")
    if keys.flag("optimizer_in_bwd"):
        draft.unmapped["optimizer_in_bwd"] = (
            "each weight is updated as soon as its gradient is there, which saves memory"
        )
    if keys.values.get("compile") is True or keys.flag("compile.model"):
        draft.put("job.compiled", True, "compile")
    keys.take("compile")
    reshard = keys.flag("fsdp_reshard_after_forward")
    shard = keys.whole("data_parallel_shard_dim")
    if single:
        draft.put("parallelism.zero", 0, "a recipe for a single device")
    elif reshard is False:
        draft.put("parallelism.zero", 2, "fsdp_reshard_after_forward")
    else:
        draft.assume("parallelism.zero", 3, "torchtune's distributed recipes shard with FSDP")
    if shard is not None and shard > 1:
        draft.put("parallelism.shard", shard, "data_parallel_shard_dim")
    if "dpo" in str(keys.values.get("loss._component_", "")).lower():
        draft.put("job.regime", "dpo", "loss._component_")


def _read_model(draft: Draft) -> None:
    keys = draft.keys
    component = keys.word("model._component_")
    if component is None:
        return
    builder = component.rpartition(".")[2]
    adapted = re.match(r"(q?lora)_", builder)
    found = find_model(builder.removeprefix("q" if builder.startswith("qlora_") else "").removeprefix("lora_"))
    if found is None:
        draft.unmapped["model._component_"] = f"{builder} is not in the catalogue; name a model"
    else:
        draft.put("source", found, "model._component_")
        draft.notes.append(f"{builder} is taken to be {found} of the catalogue")
    if adapted is None:
        return
    draft.take("workload.adapter_rank", "model.lora_rank", least=1)
    modules, known = keys.take("model.lora_attn_modules"), words_of("modules")
    listed = [known[name] for name in modules if name in known] if isinstance(modules, list) else []
    if keys.flag("model.apply_lora_to_mlp"):
        listed += ["gate", "up", "down"]
    if keys.flag("model.apply_lora_to_output"):
        draft.unmapped["model.apply_lora_to_output"] = "adapters beside the output layer have no field"
    if listed:
        words = "all" if len(set(listed)) == 7 else ",".join(dict.fromkeys(listed))
        draft.put("workload.adapter_targets", words, "model.lora_attn_modules")
    if adapted[1] == "qlora" or keys.flag("model.quantize_base"):
        draft.put("workload.frozen_dtype", "fp4", "model._component_")
    if keys.flag("model.use_dora"):
        draft.put("workload.adapter_norm", True, "model.use_dora")


TORCHTUNE = make_format("torchtune", _read)
