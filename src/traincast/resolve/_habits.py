"""What a stack decides by itself, filled in where the user says nothing; every such decision becomes a sentence."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from traincast.catalog import FUSED_ATTENTIONS, PRECISIONS, precision_name
from traincast.errors import IllegalPlan, UnknownName
from traincast.spec import Notes, Parallelism, Stack, WorkloadOptions
from traincast.units import DTYPE_BYTES

OLDER_WORDS = {"recompute": {"products": "selective-op"}, "balance": {"products": "matmuls"}}
"""Fields of a plan to values as earlier versions named them."""
UNKNOWN = "unknown"
"""A recomputation that nobody knows: none is assumed, and a job that fits only with it is said to fit."""


SHARDED = {1: "optimizer state", 2: "optimizer state and gradients", 3: "weights, gradients and optimizer state"}
"""By stage of ZeRO."""


def for_optimizer(stack: Stack, optimizer: str | None) -> Stack:
    """The stack as it runs a job with this optimizer."""
    if optimizer is None or optimizer.lower() not in dict(stack.plan.shared_updates):
        return stack
    kept = tuple(name for name in stack.plan.overlaps if name != "gradients")
    return replace(stack, plan=replace(stack.plan, overlaps=kept))


def fill_in_plan(values: Mapping[str, Any], stack: Stack) -> tuple[dict[str, Any], Notes]:
    """The plan's values, whose data degree is known, with the stack's habits. What is said wins."""
    values = {name: _rename(name, value) for name, value in values.items()}
    degrees = {axis: _whole(values.get(axis, 1)) for axis in ("data", "tensor", "pipeline", "context", "expert")}
    replicas = degrees["data"] * degrees["context"]
    plan, notes = _fill_in_sharding(values, stack, replicas=replicas, pipeline=degrees["pipeline"])
    again, told = _fill_in_recomputation(plan, stack)
    spread, said = _fill_in_experts(plan, expert=degrees["expert"], replicas=replicas, tensor=degrees["tensor"])
    plan, notes = {**plan, **again, **spread}, (*notes, *told, *said)
    for habit in (*_axis_habits(plan, stack, degrees), *_reduction_habits(plan, stack, replicas=replicas)):
        if habit.holds and habit.name not in plan:
            plan[habit.name] = habit.value
            if habit.matters:
                notes = (*notes, habit.sentence)
    return plan, notes


def spell_recompute(how: str, stack: Stack) -> str:
    """How a framework that has a word of its own is asked for a recomputation."""
    return next((word for word in ("selective",) if dict(stack.plan.recompute_words).get(word) == how), how)


def _rename(name: str, value: Any) -> Any:
    return OLDER_WORDS[name].get(value, value) if name in OLDER_WORDS and isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class _Habit:
    """A value that is filled in where it `holds`, and told where it `matters` for this plan."""

    name: str
    value: Any
    holds: bool
    matters: bool
    sentence: str


def _axis_habits(plan: Mapping[str, Any], stack: Stack, degrees: Mapping[str, int]) -> Iterator[_Habit]:
    name, does = stack.name, stack.plan
    in_pipeline = degrees["pipeline"] > 1
    yield _Habit(
        "sequence_parallel", True, does.sequence_parallel and degrees["tensor"] > 1, True,
        f"{name} splits the sequence along the tensor axis (--no-sequence-parallel to change)",
    )  # fmt: skip
    splits = plan.get("sequence_parallel", does.sequence_parallel) and degrees["tensor"] > 1
    yield _Habit(
        "async_tensor", True, bool("tensor" in does.overlaps and splits), True,
        f"{name} runs transfers of the tensor axis beside its matmuls (--no-async-tensor to change)",
    )  # fmt: skip
    yield _Habit(
        "context_method", "ulysses", "swapped_heads" in does.runs and degrees["context"] > 1, True,
        f"{name} swaps tokens for attention heads by all-to-all (--cp-method ring to change)",
    )  # fmt: skip
    rings = plan.get("context_method", "ring") == "ring" and "swapped_heads" not in does.runs
    yield _Habit(
        "async_context", True, "context" in does.overlaps and degrees["context"] > 1 and rings, True,
        f"{name} runs transfers of the context axis beside attention (--no-async-context to change)",
    )  # fmt: skip
    yield _Habit(
        "dispatch_once", True, "dispatch_once" in does.runs and degrees["expert"] > 1, True,
        f"{name} sends a token once to every node with experts for it (--no-dispatch-once to change)",
    )  # fmt: skip
    yield _Habit(
        "balance", does.balance, does.balance != "layers", in_pipeline,
        f"{name} cuts a pipeline by {does.balance} (--balance layers to change)",
    )  # fmt: skip
    yield _Habit(
        "order", "interleaved", in_pipeline and _whole(plan.get("virtual_stages", 1)) > 1, True,
        "virtual stages run in the interleaved order",
    )  # fmt: skip


def _reduction_habits(plan: Mapping[str, Any], stack: Stack, *, replicas: int) -> Iterator[_Habit]:
    name, does = stack.name, stack.plan
    zero = _whole(plan.get("zero", 0), 0)
    overlaps = "gradients" in does.overlaps and ("sharded_gradients" in does.overlaps or zero in (0, 3))
    bucket_bytes = usual_bucket(stack, replicas=replicas, overlaps=plan.get("overlap", overlaps))
    pieces = f"in buckets of {(bucket_bytes or 0) / 1e6:.0f} MB" if bucket_bytes != AT_ONCE else "all at once"
    reduces, in_buckets = replicas > 1, replicas > 1 and zero < 2
    yield _Habit(
        "overlap", False, not overlaps, reduces,
        f"{name} reduces gradients with nothing beside it (--overlap to change)",
    )  # fmt: skip
    yield _Habit(
        "bucket_bytes", bucket_bytes, bool(bucket_bytes), in_buckets,
        f"{name} reduces gradients {pieces}",
    )  # fmt: skip
    yield _Habit(
        "gather_ahead", True, "weights" in does.overlaps and zero == 1, reduces,
        f"{name} gathers updated weights beside the next forward pass (--no-gather-ahead to change)",
    )  # fmt: skip
    yield _Habit(
        "bucket_copies", False, "buckets" not in does.copies, in_buckets,
        f"{name} reduces gradients in place, without copies in buckets (--bucket-copies to change)",
    )  # fmt: skip
    yield _Habit(
        "reduce_dtype", does.reduce_dtype, bool(does.reduce_dtype), reduces,
        f"{name} reduces gradients in {does.reduce_dtype}",
    )  # fmt: skip


AT_ONCE = 1e15
"""Bytes that no gradients fill."""


def usual_bucket(stack: Stack, *, replicas: int = 1, overlaps: bool = True) -> float | None:
    """Bytes of gradients that the framework reduces at once; None: as PyTorch does. Buffers that are cut in buckets so that
    something may run beside them stay whole where nothing does."""
    elements = stack.plan.amount("bucket_elements")
    if elements is None:
        return stack.plan.amount("bucket_bytes")
    most = max(elements, (stack.plan.amount("bucket_elements_per_replica") or 0.0) * replicas)
    return DTYPE_BYTES[stack.plan.reduce_dtype or "fp32"] * most if overlaps else AT_ONCE


def plan_habits(stack: Stack) -> dict[str, Any]:
    """What a stack decides for every plan, whatever its degrees."""
    habits: dict[str, Any] = {
        "overlap": "gradients" in stack.plan.overlaps, "bucket_copies": "buckets" in stack.plan.copies,
        "balance": stack.plan.balance,
        "reduce_dtype": stack.plan.reduce_dtype, "bucket_bytes": usual_bucket(stack, overlaps="gradients" in stack.plan.overlaps),
        "async_tensor": "tensor" in stack.plan.overlaps or None, "async_context": "context" in stack.plan.overlaps or None,
        "gather_ahead": "weights" in stack.plan.overlaps or None,
    }  # fmt: skip
    return {name: value for name, value in habits.items() if value is not None}


def check_passes(plan: Parallelism, stack: Stack) -> None:
    """Refuse what the stack's pipeline does not run."""
    if "plain_pipelines" in stack.plan.runs and plan.pipeline > 1 and plan.zero > 1:
        raise IllegalPlan(
            f"{stack.name} runs no pipeline with ZeRO {plan.zero}: its stages add up whole gradients over micro-batches; use "
            f"zero = 1, or pipeline = 1"
        )
    if "full_pipelines" in stack.plan.runs and plan.micro_batches < plan.pipeline - 1:
        raise IllegalPlan(
            f"{stack.name} runs no pipeline of {plan.pipeline} stages with {plan.micro_batches} passes; it asks for "
            f"{plan.pipeline - 1} or more"
        )


def _fill_in_sharding(
    values: Mapping[str, Any], stack: Stack, *, replicas: int, pipeline: int
) -> tuple[dict[str, Any], Notes]:
    plan = dict(values)
    reshard = plan.pop("reshard", None)
    notes: Notes = ()
    if "zero" not in plan and stack.plan.zero and replicas > 1 and not plan.get("servers"):
        plan["zero"] = stack.plan.zero
        notes = (f"{stack.name} shards {SHARDED[stack.plan.zero]} over replicas (--zero 0 to change)",)
    if plan.get("zero") != 3 or pipeline == 1:
        return plan, notes
    if reshard is None and "gathered_pipelines" in stack.plan.runs:
        told = "keeps weights gathered in a pipeline, so only gradients and state are sharded (--reshard to change)"
        return {**plan, "zero": 2}, (*notes, f"{stack.name} {told}")
    return ({**plan, "zero": 2} if reshard is False else plan), notes


def _fill_in_recomputation(plan: Mapping[str, Any], stack: Stack) -> tuple[dict[str, Any], Notes]:
    word, does = plan.get("recompute"), stack.plan
    if word == UNKNOWN:
        return {"recompute": "none"}, ("whether activations are recomputed is not known; none assumed",)
    meaning = dict(does.recompute_words).get(word) if isinstance(word, str) else None
    if meaning is not None and meaning != word:
        return {"recompute": meaning}, (f"{word} activation checkpointing of {stack.name} is {meaning}",)
    if word is None and plan.get("zero") == 3 and (again := does.recomputes("sharded")):
        told = f"recomputes {again} layers where weights are sharded (--recompute to change)"
        return {"recompute": again}, (f"{stack.name} {told}",)
    if word is None and (again := does.recomputes()):
        told = f"{stack.name} recomputes {again} layers by default (--recompute to change)"
        return {"recompute": again}, (told,)
    return {}, ()


def _fill_in_experts(
    plan: Mapping[str, Any], *, expert: int, replicas: int, tensor: int
) -> tuple[dict[str, Any], Notes]:
    """More ranks for experts than there are replicas: they can only lie along the tensor axis too, each expert whole."""
    filled: dict[str, Any] = {}
    notes: Notes = ()
    if "expert_tensor" not in plan and replicas % expert and (replicas * tensor) % expert == 0:
        filled["expert_tensor"] = 1
        notes = (f"ep = {expert} over {replicas} replicas: experts are spread over tensor {tensor} too, each whole",)
    if {**plan, **filled}.get("expert_tensor") == 1 and tensor > 1 and "sequence_parallel" not in plan:
        filled["sequence_parallel"] = True
    return filled, notes


def _whole(value: Any, least: int = 1) -> int:
    """A degree as far as it is one; what is not is left to the plan to refuse."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= least else least


def _recipe_habits(stack: Stack, mode: str | None) -> dict[str, Any]:
    recipe = stack.recipe
    values: dict[str, Any] = {name: recipe.option(name) for name in _BUILDER_OPTIONS}
    if mode != "inference":
        del values["keeps_keys"]
    values["one_size"] = "program" in recipe.compiles or recipe.option("static_shapes")
    return {name: value for name, value in values.items() if value is not None}


_BUILDER_OPTIONS = (
    "implementation", "attention", "fused", "fused_gate", "fused_loss", "fused_sums", "channels_last", "dropout",
    "predicted_share", "keeps_keys", "host_masks", "loss_in_place", "wide_scores", "untied",
)  # fmt: skip


def _list(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_say(value)}" for name, value in values.items())


ATTENTION_WORDS = {"sdpa": "flash", "flash_attention_2": "flash-2", "flash_attention_3": "flash-3", "xformers": "efficient",
                   "math": "eager", "unfused": "eager"}  # fmt: skip
"""What other projects call kernels of attention."""


def _read_attention(word: str, usual: str) -> str:
    """The kernel that a word means. One that names no generation means that of the stack."""
    meant = ATTENTION_WORDS.get(word, word)
    return usual if meant == "flash" and usual in FUSED_ATTENTIONS else meant


def fill_in_recipe(
    options: WorkloadOptions, plan: Parallelism, stack: Stack, *, heads: int | None
) -> tuple[dict[str, Any], Notes]:
    """How the catalogue's builders run a step: what the user says, then what the stack does."""
    recipe = stack.recipe
    values = _recipe_habits(stack, options.mode)
    batch = options.batch or 1
    if heads and (batch * heads / plan.tensor) % int(recipe.option("softmax_multiple") or 1):
        values["fused_softmax"] = False
    asked = {name: value for name, value in options.given().items() if name in _RECIPE}
    filled = {name: value for name, value in values.items() if name not in asked and _changes(name, value)}
    notes = (f"{stack.name} runs the model with {_list(filled)}",) if filled and not stack.is_plain else ()
    if "attention" in asked:
        asked["attention"] = _read_attention(asked["attention"], str(recipe.option("attention")))
    values.update(asked)
    targets = options.adapter_targets or recipe.option("adapter_targets")
    if options.adapter_rank and targets:
        values["adapted"] = read_targets(str(targets))
    values["precision"] = read_precision(options.precision, stack, sharded=plan.zero == 3)
    values["recompute"] = "none" if plan.recompute == "selective-op" else plan.recompute
    if options.recompute_layers is not None:
        values["recompute_stages"] = plan.pipeline * plan.virtual_stages
    values["accumulate"] = plan.micro_batches > 1 and options.mode != "inference"
    return values, notes


ADAPTER_TARGETS = {
    "attention": ("query", "key", "value", "qkv", "output"),
    "mlp": ("gate", "up", "gate_up", "down"),
    "all": ("query", "key", "value", "qkv", "output", "gate", "up", "gate_up", "down"),
}
"""Groups of dense layers that adapters are put beside."""


def read_targets(text: str) -> tuple[str, ...]:
    """The layers that a list of names and groups means."""
    known = ADAPTER_TARGETS["all"]
    found: list[str] = []
    for word in (part.strip().lower() for part in text.split(",")):
        if word not in ADAPTER_TARGETS and word not in known:
            raise UnknownName("adapter target", word, (*ADAPTER_TARGETS, *known))
        found += ADAPTER_TARGETS.get(word, (word,))
    # A layer that computes queries and values at once is one of those that are asked for.
    if {"query", "value"} & set(found):
        found.append("qkv")
    return tuple(dict.fromkeys(found))


def read_precision(word: str | None, stack: Stack, *, sharded: bool) -> str:
    """Our words mean the same everywhere; only words that we do not have are the stack's own."""
    if word is None:
        return "fp32"
    if not isinstance(word, str) or precision_name(word) in PRECISIONS:
        return word
    return stack.precision_of(word.strip().lower(), transformer=True, sharded=sharded)


_RECIPE = frozenset(
    {"mode", "optimizer", "attention", "dropout", "loss", "fused", "fused_softmax", "fused_gate", "fused_loss", "fused_sums",
     "implementation", "channels_last", "master_weights", "gradient_dtype", "adapter_rank", "adapter_norm", "frozen_dtype",
     "recompute_layers", "weight_dtype"}
)  # fmt: skip
_USUAL: dict[str, Any] = {"implementation": "foreach", "attention": "flash", "keeps_keys": False}


def _changes(name: str, value: Any) -> bool:
    return bool(_USUAL.get(name) != value)


def _say(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
