"""The name that a configuration gives to a model to what the catalogue calls it, by the words that say what it is."""

import re
from collections.abc import Mapping
from typing import Any

from traincast.catalog import STYLES, load_facts, name_style

_DECORATIONS = re.compile(
    r"instruct|chat|base|hf|it|pt|sft|dpo|rlhf|mixture|fp16|bf16|fp8|fp4|nvfp4|4bit|8bit|bnb|awq|gptq|gguf|int4|int8|unsloth|"
    r"pretrain|pretrained|finetune|finetuned|original|2[3-6]\d\d|v\d+(\.\d+)?|rm|\d+k|thinking|preview|latest|model|config|"
    r"lora|qlora|dora|full|single|device|distributed|default"
)
"""Words that say how a model was trained or is stored, not what its sizes are."""
_CONFIG_CLASS = re.compile(r"(?P<family>[A-Za-z]+?)(?P<version>\d*)Config(?P<size>[\dxX]+B)?(?:Config)?")


def find_model(name: str) -> str | None:
    """The workload of the catalogue that a name means: 'NousResearch/Meta-Llama-3.1-8B-Instruct' is llama-3.1-8b."""
    facts = load_facts("model")
    found = facts.get(name)
    if found is not None:
        return found
    plain = name.strip().rstrip("/").rpartition("/")[2].lower()
    plain = re.sub(r"\.(json|safetensors|pth?|bin)$", "", plain)
    words = [word for word in re.split(r"[-_ ]+", plain) if word]
    if words[:1] in (["meta"], ["hf"], ["lora"], ["qlora"], ["open"]) and len(words) > 1:
        found = find_model("-".join(words[1:]))
        if found is not None:
            return found
    while len(words) > 1 and _DECORATIONS.fullmatch(words[-1]):
        words.pop()
        found = facts.get("-".join(words))
        if found is not None:
            return found
    kept = [word for word in words if not _DECORATIONS.fullmatch(word)]
    return facts.get("-".join(kept)) if kept and kept != words else None


def name_source(name: str) -> str | None:
    """The source of a question: a workload of the catalogue, or a name to be looked for on this machine; None for a folder of
    somebody's."""
    known = find_model(name)
    if known is not None or name.startswith(("hf:", "timm:")):
        return known or name
    plain = name.removeprefix("checkpoints/").strip("/")
    return f"hf:{plain}" if plain.count("/") <= 1 and not name.startswith(("/", "~", ".")) else None


def find_config_class(name: str) -> str | None:
    """'Llama3Config8B' and 'Llama31Config70B' by the words in them."""
    matched = _CONFIG_CLASS.fullmatch(name)
    if matched is None or not matched["size"]:
        return None
    version = ".".join(matched["version"])
    return find_model("-".join(part for part in (matched["family"].lower(), version, matched["size"].lower()) if part))


_SIZES = {
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"), "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "n_head_kv"), "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"), "vocab": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"), "experts_per_token": ("num_experts_per_tok",),
    "moe_ffn": ("moe_intermediate_size",), "tied": ("tie_word_embeddings",),
}  # fmt: skip
"""Sizes of a transformer as config.json spells them."""


def read_sizes(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The sizes that a Hugging Face config.json gives, where its architecture is one that the catalogue can build."""
    style = name_style(str(config.get("model_type", "")))
    if style is None or style not in STYLES:
        return None
    sizes: dict[str, Any] = {"arch": style}
    for name, spellings in _SIZES.items():
        value = next((config[key] for key in spellings if config.get(key) is not None), None)
        if isinstance(value, (int, bool)):
            sizes[name] = value
    if sizes.get("experts") and "moe_ffn" not in sizes and "ffn" in sizes:
        sizes["moe_ffn"] = sizes["ffn"]
    usual = sizes.get("heads") and sizes.get("hidden") == sizes.get("head_dim", 0) * sizes["heads"]
    if usual:
        sizes.pop("head_dim")
    return sizes if all(name in sizes for name in ("n_layers", "hidden", "heads", "vocab")) else None


DESCRIBED = frozenset(
    {"bloom", "gemma", "gemma2", "gpt_neox", "gpt_oss", "gptj", "llama", "mistral", "mixtral", "mpt", "nemotron", "olmo", "phi",
     "qwen2", "qwen3", "qwen3_moe", "stablelm"}
)  # fmt: skip
"""Model types whose sizes describe every parameter: the catalogue's model has as many as that of transformers (a test counts)."""
_ADDITIONS = ("attention_bias", "mlp_bias", "use_qkv_bias", "qk_layernorm", "use_qk_norm", "use_parallel_residual")
"""Keys that add to a model what its sizes do not say."""
_USUAL_ADDITIONS = {"gpt_neox": frozenset({"attention_bias", "use_parallel_residual"})}


def describes_whole(config: Mapping[str, Any]) -> bool:
    """Whether the sizes of a config.json say all there is to the model, so that nothing need be recorded."""
    kind = str(config.get("model_type", ""))
    added = {key for key in _ADDITIONS if config.get(key)} - _USUAL_ADDITIONS.get(kind, frozenset())
    return kind in DESCRIBED and not added


def own_context(config: Mapping[str, Any]) -> int | None:
    """The tokens that a model of text takes at most; None where its samples are not of text alone."""
    if not config.get("vocab_size") or any("vision" in key or "image" in key or "audio" in key for key in config):
        return None
    found = next(
        (config[key] for key in ("max_position_embeddings", "n_positions", "max_seq_len") if config.get(key)), None
    )
    return found if isinstance(found, int) and found > 1 else None


def find_sizes(sizes: Mapping[str, Any]) -> str | None:
    """The workload of the catalogue that has exactly these sizes."""
    wanted = {name: value for name, value in sizes.items() if name not in ("arch", "tied")}
    wanted.setdefault("kv_heads", wanted.get("heads"))
    for name, entry in load_facts("model").entries.items():
        shape = entry.get("shape")
        if not isinstance(shape, Mapping) or entry.get("style") != sizes.get("arch"):
            continue
        known = {"kv_heads": shape.get("heads"), **shape}
        if all(known.get(size) == value for size, value in wanted.items()):
            return name
    return None
