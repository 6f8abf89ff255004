"""The model and recipe columns of a case to the workload part of a question."""

import re
from typing import Any

from traincast.accuracy._cases import Case
from traincast.catalog import load_facts, log_facts, name_style, style_of_task
from traincast.errors import InvalidInput, UnknownName
from traincast.spec import MODES, Stack
from traincast.units import GIGA, MEGA

PRECISIONS = {
    "fp32": "fp32", "tf32": "tf32", "fp16_amp": "fp16-amp", "bf16_amp": "bf16-amp", "fp16": "fp16", "bf16": "bf16",
    "fp8": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4",
}  # fmt: skip
DTYPE_WORDS = {
    "float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float8": "fp8", "fp4": "nvfp4",
    "amp": "fp16_amp", "amp_fp16": "fp16_amp", "amp_bf16": "bf16", "amp_fp8": "fp8", "fp8_cs": "fp8", "fp8_mx": "mxfp8",
    "bf16_mixed": "bf16_amp", "fp16_mixed": "fp16_amp",
}  # fmt: skip
"""Other words for a column's values, as sources spell them."""
ATTENTIONS = {
    "eager": "eager", "unfused": "eager", "math": "eager", "naive": "eager", "flash": "flash", "sdpa-flash": "flash",
    "sdpa": "flash", "fused": "flash", "xformers": "efficient", "flash1": "flash-1", "flash2": "flash-2", "flash3": "flash-3",
    "cudnn": "cudnn", "cudnn_flash_te": "cudnn", "flash-1": "flash-1", "flash-2": "flash-2", "flash-3": "flash-3",
}  # fmt: skip
LATENT_CHANNELS, LATENT_SCALE = 4, 8
USUAL_RANK = 32
"""Of low-rank adapters, where a recipe does not say."""
_NAMED_SHAPE = re.compile(r"(?:^|[-_])h(\d{3,6})[-_]?l(\d{1,3})(?:$|[-_])")
_NAMED_SIZE = re.compile(r"(?<![\d.a-z])(\d+(?:\.\d+)?)\s*([bm])(?![a-z0-9])")


def read_workload(case: Case, stack: Stack, *, batch: int, zero: int, said: list[str]) -> tuple[str, dict[str, Any]]:
    """What the model is called, and its sizes and recipe as a question says them."""
    source, sizes = _read_model(case, said)
    return source, {"batch": batch, **sizes, **read_recipe(case, stack, zero=zero, said=said)}


def read_recipe(case: Case, stack: Stack, *, zero: int, said: list[str]) -> dict[str, Any]:
    """Precision, attention, optimizer and adapters."""
    mode = case.mode or "training_step"
    if mode not in MODES:
        raise InvalidInput(f"mode is {mode!r}; allowed: {', '.join(MODES)}")
    recipe: dict[str, Any] = {"precision": read_precision(case, stack, zero=zero, said=said)}
    attention = _read_attention(case, stack, said)
    recipe |= {} if attention is None else {"attention": attention}
    optimizer = re.sub(r"\(.*\)", "", case.optimizer or "").strip().lower()
    if mode != "training_step":
        # What such a step measures is the model: no update, and the gradient of the outputs is given.
        recipe |= {"mode": mode, "optimizer": "none", "loss": False}
    elif optimizer:
        recipe["optimizer"] = optimizer
    else:
        said.append("the optimizer is not known; the usual one of the model is assumed")
    return recipe | read_adapters(case, stack, said)


def read_precision(case: Case, stack: Stack, *, zero: int, said: list[str]) -> str:
    """A source that says fp32 but left PyTorch's old default on ran TF32 where the device has it."""
    if case.dtype is None:
        said.append("the precision is not known; fp32 assumed")
        return "fp32"
    plain = case.dtype.lower().replace("-", "_")
    plain = DTYPE_WORDS.get(plain, plain)
    if plain not in PRECISIONS:
        raise UnknownName("dtype", case.dtype, PRECISIONS)
    precision = PRECISIONS[plain]
    for setting, meant in log_facts(stack.name).precision_settings:
        if precision == "fp8" and setting in case.settings:
            said.append(f"{setting} ran no faster than {meant} in the versions that were measured; {meant} taken")
            return meant
    transformer = (case.family or "").startswith(("transformer", "recsys"))
    precision = stack.precision_of(precision, transformer=transformer, sharded=zero == 3)
    return "tf32" if precision == "fp32" and "tf32 probably on" in (case.undetermined or "") else precision


def _read_attention(case: Case, stack: Stack, said: list[str]) -> str | None:
    if case.attention is None:
        if (case.family or "").startswith("transformer"):
            said.append(f"how attention runs is not known; {stack.recipe.option('attention')} assumed")
        return None
    spelling = case.attention.lower()
    # Flash attention has versions and libraries; a spelling that names none (te-flash) leaves it to the device.
    found = ATTENTIONS.get(spelling) or ("flash" if "flash" in spelling else None)
    if found is None:
        raise UnknownName("attention", case.attention, ATTENTIONS)
    return found


def read_adapters(case: Case, stack: Stack, said: list[str]) -> dict[str, Any]:
    """Low-rank adapters, on weights stored in 4 bits where the recipe says so."""
    words = case.settings | {case.strategy or ""}
    if any("adapter" in word for word in words) and not any("lora" in word for word in words):
        said.append("what an adapter trains is taken as of rank 1 beside all dense layers; the rest is frozen")
        return {"adapter_rank": 1}
    if not any("lora" in word for word in words):
        return {}
    stated = next(
        (int(found[1]) for word in words if (found := re.fullmatch(r"(?:lora_)?r(?:ank)?=?(\d+)", word))), None
    )
    if stated is None:
        said.append(f"the rank of the adapters is not known; {USUAL_RANK} assumed")
    adapters: dict[str, Any] = {"adapter_rank": stated or USUAL_RANK}
    if log_facts(stack.name).adapter_targets:
        said.append(f"recipes of {stack.name} are taken to adapt the layers: {log_facts(stack.name).adapter_targets}")
        adapters["adapter_targets"] = log_facts(stack.name).adapter_targets
    if any("qlora" in word for word in words):
        adapters["frozen_dtype"] = "fp4"
    return adapters


def _read_model(case: Case, said: list[str]) -> tuple[str, dict[str, Any]]:
    """By its shape where the columns hold all of it; else by its name; else by what is left of its shape; else by the name of
    its network."""
    if is_transformer(case) and all((case.n_layers, case.hidden, case.n_heads, case.vocab, case.seq_len)):
        shape = _shape(case, _name_arch(case, said))
        return case.model or f"{shape['arch']}-h{case.hidden}-l{case.n_layers}", shape
    names = [name for name in (case.model, case.arch) if name]
    if not names:
        raise InvalidInput("neither the model nor its architecture is named")
    facts = load_facts("model")
    if facts.get(names[0]) is not None:
        return names[0], _sample_sizes(case)
    guessed = _partial_shape(case)
    if guessed is not None:
        return case.model or guessed["arch"], guessed
    known = next((name for name in names[1:] if facts.get(name) is not None), None)
    if known is None:
        facts.find(names[0])  # complains, with what the name may have meant
    said.append(f"the model {case.model} is not known; {facts.find(str(known))} taken for its architecture {known}")
    return str(known), _sample_sizes(case)


def _partial_shape(case: Case) -> dict[str, Any] | None:
    """What is known of a transformer's sizes, its name included; None where nothing can be guessed from it."""
    if not is_transformer(case):
        return None
    arch = find_arch(case)
    values = _shape(case, arch)
    if arch == "vit" and case.vocab is None and case.num_classes:
        values["vocab"] = case.num_classes
    named = _NAMED_SHAPE.search((case.model or "").lower())
    if named and not (case.n_layers and case.hidden):
        values |= {"hidden": int(named[1]), "n_layers": int(named[2])}
    if not (values.get("n_layers") and values.get("hidden")):
        size = case.params or read_size(case.model or "")
        if not size:
            return None
        values = {name: value for name, value in values.items() if name not in ("n_layers", "hidden")}
        values["params"] = size
    return values


def _shape(case: Case, arch: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "arch": arch, "n_layers": case.n_layers, "hidden": case.hidden, "heads": case.n_heads, "vocab": case.vocab,
        "seq": case.seq_len, "kv_heads": case.n_kv_heads, "head_dim": case.head_dim, "ffn": case.ffn,
        "gated": case.ffn_gated, "tied": case.tied_embeddings, "experts": case.n_experts,
        "experts_per_token": case.experts_per_token, "moe_ffn": case.moe_ffn,
    }  # fmt: skip
    return {name: value for name, value in values.items() if value is not None}


def _name_arch(case: Case, said: list[str]) -> str:
    arch = find_arch(case)
    if case.arch and known_arch(case) is None:
        said.append(f"the architecture {case.arch} is not known; layers as of {arch} are assumed")
    return style_of_task(arch, dataset=f"{case.model or ''} {case.dataset or ''}", mode=case.mode or "")


def is_transformer(case: Case) -> bool:
    if case.family:
        return case.family.startswith("transformer")
    # Only language models are named by their billions.
    return known_arch(case) is not None or (not case.input_shape and bool(read_size(case.model or "")))


def find_arch(case: Case) -> str:
    """The case's architecture where it is one; else what its family and its MLP usually go with."""
    known = known_arch(case)
    if known is not None:
        return known
    if case.family == "transformer-enc":
        return "bert"
    return "gpt-neox" if case.ffn_gated is False and not case.n_experts else "llama"


def known_arch(case: Case) -> str | None:
    return name_style((case.arch or "").strip().lower())


def read_size(name: str) -> float | None:
    """Parameters that a name states: 'nous-hermes-13b', 'custom 350m'."""
    found = _NAMED_SIZE.search(name.lower())
    return float(found[1]) * (GIGA if found[2] == "b" else MEGA) if found else None


def _sample_sizes(case: Case) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    if case.seq_len:
        sizes["seq"] = case.seq_len
    image = re.fullmatch(r"(\d+)x(\d+)x(\d+)", case.input_shape or "")
    # The rectangle of a detector is the largest of many.
    if image and (image[2] == image[3] or case.family != "detection"):
        # Four channels are latents, an eighth as wide as the image that they stand for.
        scale = LATENT_SCALE if int(image[1]) == LATENT_CHANNELS else 1
        sizes["input_size"] = f"{scale * int(image[2])}x{scale * int(image[3])}"
    if case.num_classes and case.family in ("cnn", "detection", "segmentation"):
        sizes["num_classes"] = case.num_classes
    return sizes
