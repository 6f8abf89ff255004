"""What a stack decides by itself, filled in where the user says nothing; every such decision becomes a sentence."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from traincast.catalog import FUSED_ATTENTIONS, PRECISIONS, precision_name
from traincast.errors import IllegalPlan, UnknownName
from traincast.spec import Parallelism, Stack, WorkloadOptions

UNKNOWN = "unknown"
"""A recomputation that nobody knows: none is assumed, and a job that fits only with it is said to fit."""


SHARDED = {1: "optimizer state", 2: "optimizer state and gradients", 3: "weights, gradients and optimizer state"}
"""By stage of ZeRO."""


def for_optimizer(stack: Stack, optimizer: str | None) -> Stack:
    """The stack as it runs a job with this optimizer."""
    if optimizer is None or optimizer.lower() not in stack.plan.reduces_after:
        return stack
    return replace(stack, plan=replace(stack.plan, overlap=False))


def fill_in_plan(values: Mapping[str, Any], stack: Stack, said: list[str]) -> dict[str, Any]:
    """The plan's values, whose data degree is known, with the stack's habits. What is said wins."""
    plan = dict(values)
    degrees = {axis: _whole(plan.get(axis, 1)) for axis in ("data", "tensor", "pipeline", "context", "expert")}
    replicas = degrees["data"] * degrees["context"]
    if "zero" not in plan and stack.plan.zero and replicas > 1 and not plan.get("servers"):
        plan["zero"] = stack.plan.zero
        said.append(f"{stack.name} shards {SHARDED[stack.plan.zero]} over replicas (--zero 0 to change)")
    _fill_in_sharding(plan, stack, said, pipeline=degrees["pipeline"])
    _fill_in_recomputation(plan, stack, said)
    _fill_in_experts(plan, said, expert=degrees["expert"], replicas=replicas, tensor=degrees["tensor"])
    habits = (*_axis_habits(plan, stack, degrees), *_reduction_habits(plan, stack, replicas=replicas))
    for habit in habits:
        if habit.holds and habit.name not in plan:
            plan[habit.name] = habit.value
            if habit.matters:
                said.append(habit.sentence)
    return plan


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
        "async_tensor", True, bool(does.async_tensor and splits), True,
        f"{name} runs transfers of the tensor axis beside its products (--no-async-tensor to change)",
    )  # fmt: skip
    yield _Habit(
        "dispatch_once", True, does.dispatch_once and degrees["expert"] > 1, True,
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
    reduces, in_buckets = replicas > 1, replicas > 1 and zero < 2
    yield _Habit(
        "overlap", False, not (does.overlap and (does.overlap_sharded or not zero)), reduces,
        f"{name} reduces gradients with nothing beside it (--overlap to change)",
    )  # fmt: skip
    yield _Habit(
        "bucket_bytes", does.bucket_bytes, bool(does.bucket_bytes), in_buckets,
        f"{name} reduces gradients in buckets of {(does.bucket_bytes or 0) / 1e6:.0f} MB",
    )  # fmt: skip
    yield _Habit(
        "bucket_copies", False, not does.bucket_copies, in_buckets,
        f"{name} reduces gradients in place, without copies in buckets (--bucket-copies to change)",
    )  # fmt: skip
    yield _Habit(
        "reduce_dtype", does.reduce_dtype, bool(does.reduce_dtype), reduces,
        f"{name} reduces gradients in {does.reduce_dtype}",
    )  # fmt: skip


def plan_habits(stack: Stack) -> dict[str, Any]:
    """What a stack decides for every plan, whatever its degrees."""
    habits: dict[str, Any] = {
        "overlap": stack.plan.overlap, "bucket_copies": stack.plan.bucket_copies, "balance": stack.plan.balance,
        "reduce_dtype": stack.plan.reduce_dtype, "bucket_bytes": stack.plan.bucket_bytes,
        "async_tensor": stack.plan.async_tensor or None,
    }  # fmt: skip
    return {name: value for name, value in habits.items() if value is not None}


def check_passes(plan: Parallelism, stack: Stack) -> None:
    if stack.plan.fills_pipeline and plan.micro_batches < plan.pipeline - 1:
        raise IllegalPlan(
            f"{stack.name} runs no pipeline of {plan.pipeline} stages with {plan.micro_batches} passes; it asks for "
            f"{plan.pipeline - 1} or more"
        )


def _fill_in_sharding(plan: dict[str, Any], stack: Stack, said: list[str], *, pipeline: int) -> None:
    reshard = plan.pop("reshard", None)
    if plan.get("zero") != 3 or pipeline == 1:
        return
    if reshard is False or (reshard is None and not stack.plan.reshard_in_pipeline):
        plan["zero"] = 2
        if reshard is None:
            said.append(
                f"{stack.name} keeps weights gathered in a pipeline, so only gradients and state are sharded "
                "(--reshard to change)"
            )


def _fill_in_recomputation(plan: dict[str, Any], stack: Stack, said: list[str]) -> None:
    word = plan.get("recompute")
    if word == UNKNOWN:
        said.append("whether activations are recomputed is not known; none assumed")
        plan["recompute"] = "none"
        return
    meaning = dict(stack.plan.recompute_words).get(word) if isinstance(word, str) else None
    if meaning is not None and meaning != word:
        said.append(f"{stack.name} means by {word} recomputation what we call {meaning}")
        plan["recompute"] = meaning
    elif word is None and plan.get("zero") == 3 and stack.plan.sharded_recompute:
        said.append(
            f"{stack.name} recomputes {stack.plan.sharded_recompute} layers where weights are sharded "
            "(--recompute to change)"
        )
        plan["recompute"] = stack.plan.sharded_recompute
    elif word is None and stack.plan.recompute:
        said.append(f"{stack.name} recomputes {stack.plan.recompute} layers by default (--recompute to change)")
        plan["recompute"] = stack.plan.recompute


def _fill_in_experts(plan: dict[str, Any], said: list[str], *, expert: int, replicas: int, tensor: int) -> None:
    """More ranks for experts than there are replicas: they can only lie along the tensor axis too, each expert whole."""
    if "expert_tensor" not in plan and replicas % expert and (replicas * tensor) % expert == 0:
        plan["expert_tensor"] = 1
        said.append(f"ep = {expert} over {replicas} replicas: experts are spread over tensor {tensor} too, each whole")
    if plan.get("expert_tensor") == 1 and tensor > 1 and "sequence_parallel" not in plan:
        plan["sequence_parallel"] = True


def _whole(value: Any, least: int = 1) -> int:
    """A degree as far as it is one; what is not is left to the plan to refuse."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= least else least


def _recipe_habits(stack: Stack, mode: str | None) -> dict[str, Any]:
    recipe = stack.recipe
    values: dict[str, Any] = {
        "implementation": recipe.implementation, "attention": recipe.attention, "fused": recipe.fused,
        "fused_gate": recipe.fused_gate, "fused_loss": recipe.fused_loss, "fused_sums": recipe.fused_sums,
        "channels_last": recipe.channels_last, "dropout": recipe.dropout, "predicted_share": recipe.predicted_share,
        "keeps_keys": recipe.keeps_keys if mode == "inference" else None, "host_masks": recipe.host_masks,
        "one_size": recipe.whole_program or recipe.static_shapes,
    }  # fmt: skip
    return {name: value for name, value in values.items() if value is not None}


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
    options: WorkloadOptions, plan: Parallelism, stack: Stack, *, heads: int | None, said: list[str]
) -> dict[str, Any]:
    """How the catalogue's builders run a step: what the user says, then what the stack does."""
    recipe = stack.recipe
    values = _recipe_habits(stack, options.mode)
    batch = options.batch or 1
    if recipe.softmax_multiple > 1 and heads and (batch * heads / plan.tensor) % recipe.softmax_multiple:
        values["fused_softmax"] = False
    asked = {name: value for name, value in options.given().items() if name in _RECIPE}
    filled = {name: value for name, value in values.items() if name not in asked and _changes(name, value)}
    if filled and not stack.is_plain:
        said.append(f"{stack.name} runs the model with {_list(filled)}")
    if "attention" in asked:
        asked["attention"] = _read_attention(asked["attention"], recipe.attention)
    values.update(asked)
    targets = options.adapter_targets or recipe.adapter_targets
    if options.adapter_rank and targets:
        values["adapted"] = read_targets(targets)
    values["precision"] = read_precision(options.precision, stack, sharded=plan.zero == 3)
    values["recompute"] = "none" if plan.recompute == "products" else plan.recompute
    if options.recompute_layers is not None:
        values["recompute_stages"] = plan.pipeline * plan.virtual_stages
    values["accumulate"] = plan.micro_batches > 1 and options.mode != "inference"
    return values


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
