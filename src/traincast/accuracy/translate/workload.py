"""The model and recipe columns of a case to a Job."""

import functools
import re
from typing import Any

from traincast import catalog
from traincast.accuracy.cases import Case
from traincast.accuracy.translate.guess import find_arch, guess_shape, is_transformer, known_arch
from traincast.accuracy.translate.plan import read_micro_batch, shards_recipe
from traincast.catalog.workloads import from_shape, workload
from traincast.cost.stack import load_stacks
from traincast.errors import InvalidInput, UnknownName
from traincast.spec import Graph, Job, Parallelism

PRECISIONS = {
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16_amp": "fp16-amp",
    "bf16_amp": "bf16-amp",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
}
DTYPE_WORDS = {
    "float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float8": "fp8", "fp4": "nvfp4", "mxfp4": "nvfp4",
    "amp": "fp16_amp", "amp_fp16": "fp16_amp", "amp_bf16": "bf16", "amp_fp8": "fp8", "fp8_cs": "fp8", "fp8_mx": "mxfp8",
    "bf16_mixed": "bf16_amp", "fp16_mixed": "fp16_amp",
}  # fmt: skip
"""Other words for a column's values, as frameworks spell them."""
ATTENTIONS = {
    "eager": "eager", "unfused": "eager", "math": "eager", "naive": "eager", "flash": "flash", "sdpa-flash": "flash",
    "sdpa": "flash", "fused": "flash", "xformers": "efficient", "flash1": "flash-1", "flash2": "flash-2", "flash3": "flash-3",
    "cudnn": "cudnn", "cudnn_flash_te": "cudnn", "flash-1": "flash-1", "flash-2": "flash-2", "flash-3": "flash-3",
}  # fmt: skip
MODES = ("training_step", "forward_backward", "inference")

FUSED_STACKS = ("megatron", "nanotron", "maxtext", "jax")
"""Stacks whose layers run fused kernels (norms, bias and activation, masked softmax)."""
HALF_STACKS = ("nvidia-dle-pytorch",)
"""Stacks whose mixed precision turns whole transformers to half (apex O2) instead of casting around each op."""
CHANNELS_LAST_STACKS = ("nvidia-dle-tensorflow",)
"""Stacks that store images with channels last."""
SEPARATE_GATE_STACKS = ("nanotron",)
"""Fused stacks that still run the activation of a gated MLP and its product one after the other."""
FUSED_LOSS_STACKS = ("composer",)
"""Stacks whose language models use flash-attn's cross entropy (llm-foundry's default)."""
SEPARATE_SUM_STACKS = ("megatron-deepspeed",)
"""Fused stacks whose engine adds up gradients in kernels of their own."""
PURE_STACKS = ("litgpt",)
"""Stacks that train with weights, gradients and optimizer state all in bf16 (LitGPT's "bf16-true")."""
UPDATES = {
    "megatron": "fused",
    "nanotron": "fused",
    "torchtitan": "fused",
    "composer": "loop",
    "adaptdl": "loop",
    "pytorch-ddp": "loop",
    "nvidia-dle": "fused",
    "maxtext": "fused",
    "jax": "fused",
}
"""How the measured versions of a stack ran the optimizer: one fused kernel, or one call for each tensor."""
WHOLE_PROGRAM_STACKS = ("maxtext", "jax")
"""Stacks that compile the step to one program, so that the host starts it once."""
USUAL_RANK = 32
"""Of low-rank adapters, where a recipe does not say: that of most of LitGPT's."""
OLD_STACKS = ("nvidia-dle", "adaptdl", "pytorch-ddp", "pytorch-1")
"""Stacks from before fused attention came to PyTorch."""

STACKS = {
    "megatron-deepspeed": "megatron-deepspeed",
    "megatron-core": "megatron-core",
    "megatron-lm": "megatron-lm",
    "composer": "composer",
    "torchtitan": "torchtitan",
    "nanotron": "nanotron",
    "adaptdl": "adaptdl",
    "nvidia-dle-pytorch": "nvidia-dle-pytorch",
    "nvidia-dle-tensorflow": "nvidia-dle-tensorflow",
    "litgpt": "litgpt",
    "maxtext": "xla",
    "jax": "xla",
}
"""Part of a framework's spelling to the name under which the cost model may know it, most particular first."""


def build_job(case: Case, plan: Parallelism, assumptions: list[str]) -> Job:
    """The step that one replica runs, and how the host runs it."""
    batch = read_micro_batch(case, plan, assumptions)
    recipe = read_recipe(case, plan, assumptions)
    if _has_shape(case):
        graph = _from_shape(tuple(sorted({**_shape(case, assumptions), **recipe, "batch": batch}.items())))
    else:
        graph = _without_shape(case, recipe, batch, assumptions)
    settings = case.settings
    if case.undetermined:
        assumptions.append(f"the source leaves open: {case.undetermined}")
    return Job(
        graph=graph,
        stack=read_stack(case, assumptions),
        compiled=bool(case.compiled) or "xla" in settings,
        cuda_graphs=bool(settings & {"cuda_graphs", "cudagraph", "cuda-graphs"})
        or _is_one_of(case, WHOLE_PROGRAM_STACKS),
    )


def read_stack(case: Case, assumptions: list[str]) -> str:
    """The software as the cost model knows it; plain eager PyTorch where it does not."""
    name = stack_name(case)
    if name in load_stacks():
        return name
    assumptions.append(f"no constants of the stack {name} are known; those of pytorch taken")
    return "pytorch"


def stack_name(case: Case) -> str:
    """The canonical name of the software a case ran on, known to the cost model or not."""
    spelling = (case.framework or "").lower()
    return next((name for part, name in STACKS.items() if part in spelling), "pytorch")


def read_recipe(case: Case, plan: Parallelism, assumptions: list[str]) -> dict[str, Any]:
    """Precision, attention, recomputation and optimizer as the catalogue's builders take them."""
    stack = (case.framework or "").lower()
    mode = case.mode or "training_step"
    if mode not in MODES:
        raise InvalidInput(f"mode is {mode!r}; allowed: {', '.join(MODES)}")
    recipe: dict[str, Any] = {
        "precision": read_precision(case, assumptions),
        "mode": mode,
        "attention": _read_attention(case, stack, assumptions),
        "recompute": "none" if plan.recompute == "products" else plan.recompute,
        "loss": mode == "training_step",
        "accumulate": plan.micro_batches > 1 and mode != "inference",
        "implementation": next((how for name, how in UPDATES.items() if name in stack), "foreach"),
    }
    optimizer = re.sub(r"\(.*\)", "", case.optimizer or "").strip().lower()
    if mode != "training_step":
        recipe["optimizer"] = "none"
    elif optimizer:
        recipe["optimizer"] = optimizer
    else:
        assumptions.append("the optimizer is not known; the usual one of the model is assumed")
    recipe.update(read_adapters(case, assumptions))
    if _is_one_of(case, FUSED_STACKS):
        recipe["fused"] = True
    if _is_one_of(case, ("megatron",)) and case.n_heads and (case.micro_batch or 1) * case.n_heads / plan.tensor % 4:
        # Megatron-LM's is_kernel_available: its masked softmax works on four samples and heads at a time, or not at all.
        recipe["fused_softmax"] = False
    if _is_one_of(case, CHANNELS_LAST_STACKS):
        recipe["channels_last"] = True
    if any(name in stack for name in FUSED_LOSS_STACKS):
        recipe["fused_loss"] = True
    if _is_one_of(case, SEPARATE_SUM_STACKS):
        recipe["fused_sums"] = False
    if stack in SEPARATE_GATE_STACKS:
        recipe["fused_gate"] = False
    return recipe


def _is_one_of(case: Case, stacks: tuple[str, ...]) -> bool:
    return (case.framework or "").lower().startswith(stacks)


def read_precision(case: Case, assumptions: list[str]) -> str:
    """A source that says fp32 but left PyTorch's old default on ran TF32 where the device has it."""
    dtype = case.dtype
    if dtype is None:
        assumptions.append("the precision is not known; fp32 assumed")
        return "fp32"
    plain = dtype.lower().replace("-", "_")
    plain = DTYPE_WORDS.get(plain, plain)
    if plain not in PRECISIONS:
        raise UnknownName("dtype", dtype, PRECISIONS)
    precision = PRECISIONS[plain]
    if precision == "fp8" and "float8_rowwise" in case.settings:
        assumptions.append("products scaled by rows ran no faster in fp8 than in bf16 (kernels of 2024); bf16 taken")
        return "bf16"
    if precision == "bf16" and (case.framework or "").lower() in PURE_STACKS and not shards_recipe(case):
        precision = "bf16-pure"
    if precision == "fp16-amp" and (case.family or "").startswith("transformer") and _is_one_of(case, HALF_STACKS):
        precision = "fp16"
    if precision == "fp32" and "tf32 probably on" in (case.undetermined or ""):
        precision = "tf32"
    if precision == "tf32" and catalog.device(case.gpu).peak_flop_per_s("tf32") is None:
        assumptions.append(f"{case.gpu} has no TF32; fp32 taken")
        return "fp32"
    return precision


def _read_attention(case: Case, stack: str, assumptions: list[str]) -> str:
    if case.attention is None:
        old = any(name in stack for name in OLD_STACKS)
        if (case.family or "").startswith("transformer"):
            assumptions.append(f"how attention runs is not known; {'eager' if old else 'flash'} assumed")
        return "eager" if old else "flash"
    spelling = case.attention.lower()
    # Flash attention has versions and libraries; a spelling that names none (te-flash) leaves it to the device.
    found = ATTENTIONS.get(spelling) or ("flash" if "flash" in spelling else None)
    if found is None:
        raise UnknownName("attention", case.attention, ATTENTIONS)
    return found


def read_adapters(case: Case, assumptions: list[str]) -> dict[str, Any]:
    """Low-rank adapters, on weights stored in 4 bits where the recipe says so."""
    words = case.settings | {case.strategy or ""}
    if any("adapter" in word for word in words) and not any("lora" in word for word in words):
        assumptions.append("what an adapter trains is taken as of rank 1 beside all dense layers; the rest is frozen")
        return {"adapter_rank": 1}
    if not any("lora" in word for word in words):
        return {}
    stated = next(
        (int(found[1]) for word in words if (found := re.fullmatch(r"(?:lora_)?r(?:ank)?=?(\d+)", word))), None
    )
    if stated is None:
        assumptions.append(f"the rank of the adapters is not known; {USUAL_RANK} assumed, beside all dense layers")
    quantized = any("qlora" in word for word in words)
    return {"adapter_rank": stated or USUAL_RANK, **({"frozen_dtype": "fp4"} if quantized else {})}


def _has_shape(case: Case) -> bool:
    sizes = (case.n_layers, case.hidden, case.n_heads, case.vocab, case.seq_len)
    return is_transformer(case) and all(sizes)


def _shape(case: Case, assumptions: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "arch": _arch(case, assumptions),
        "name": case.model or "",
        "n_layers": case.n_layers,
        "hidden": case.hidden,
        "heads": case.n_heads,
        "vocab": case.vocab,
        "seq": case.seq_len,
        "kv_heads": case.n_kv_heads,
        "head_dim": case.head_dim,
        "ffn": case.ffn,
        "gated": case.ffn_gated,
        "tied": case.tied_embeddings,
        "experts": case.n_experts,
        "experts_per_token": case.experts_per_token,
        "moe_ffn": case.moe_ffn,
    }
    return {name: value for name, value in values.items() if value is not None}


def _arch(case: Case, assumptions: list[str]) -> str:
    arch = find_arch(case)
    if case.arch and known_arch(case) is None:
        assumptions.append(f"the architecture {case.arch} is not known; layers as of {arch} are assumed")
    if arch == "bert" and ("squad" in (case.model or "") or "squad" in (case.dataset or "")):
        return "bert-squad"
    if arch == "bert" and case.mode == "inference":
        return "bert-squad"  # served with a small task head, not with those of pre-training
    return arch


@functools.lru_cache(maxsize=512)
def _from_shape(arguments: tuple[tuple[str, Any], ...]) -> Graph:
    return from_shape(**dict(arguments))


def _without_shape(case: Case, recipe: dict[str, Any], batch: int, assumptions: list[str]) -> Graph:
    """The model by its name; else by what is left of its shape; else by the name of its network."""
    names = [name for name in (case.model, case.arch) if name]
    if not names:
        raise InvalidInput("neither the model nor its architecture is named")
    arguments = {**recipe, **_sample_sizes(case), "batch": batch}
    try:
        return _workload(names[0], tuple(sorted(arguments.items())))
    except UnknownName as error:
        complaint = error
    guessed = guess_shape(case, assumptions)
    if guessed is not None:
        return _from_shape(tuple(sorted({**_shape(case, assumptions), **guessed, **recipe, "batch": batch}.items())))
    for name in names[1:]:
        try:
            graph = _workload(name, tuple(sorted(arguments.items())))
        except UnknownName:
            continue
        if graph.name != case.model:
            assumptions.append(f"the model {case.model} is not known; {graph.name} taken for its architecture {name}")
        return graph
    raise complaint


def _sample_sizes(case: Case) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    if case.seq_len:
        sizes["seq"] = case.seq_len
    square = re.fullmatch(r"\d+x(\d+)x(\d+)", case.input_shape or "")
    if square and square[1] == square[2]:
        sizes["input_size"] = int(square[1])
    if case.num_classes and case.family in ("cnn", "detection", "segmentation"):
        sizes["num_classes"] = case.num_classes
    return sizes


@functools.lru_cache(maxsize=512)
def _workload(name: str, arguments: tuple[tuple[str, Any], ...]) -> Graph:
    return workload(name, **dict(arguments))
