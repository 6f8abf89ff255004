"""The parallelism columns of a case to a Parallelism."""

from traincast.accuracy.cases import Case
from traincast.errors import IllegalPlan, InvalidInput, UnknownName
from traincast.spec import RECOMPUTES, Parallelism

SEQUENCE_PARALLEL_STACKS = ("Megatron-Core", "nanotron", "torchtitan")
"""Stacks that always split the sequence along the tensor axis between products."""
SEPARATE_REDUCTION_STACKS = ("Megatron-DeepSpeed", "Megatron-LM")
"""Stacks (of the measured versions) that reduce gradients after the last backward pass and not beside it."""
SEPARATE_SCATTER_STACKS = ("nanotron",)
"""Stacks that scatter sharded gradients with nothing beside it: what ZeRO-1 adds to their steps is the same for a micro-batch of
one as for one of sixteen, while what all-reduces add shrinks as the backward pass gets longer."""

PRODUCT_SAVING_STACKS = ("torchtitan",)
"""Stacks whose selective recomputation keeps the result of attention and every second product."""
KEEPING_PIPELINE_STACKS = ("torchtitan",)
"""Stacks whose FSDP keeps weights gathered through a step once there is a pipeline, and scatters gradients after its last
micro-batch (torchtitan's fsdp_reshard_after_forward = "default"): gathering them for every micro-batch would not pay."""
PRODUCT_BALANCED_STACKS = ("nanotron",)
"""Stacks that cut a pipeline by the work in its products, the output layer included."""
FILLED_PIPELINE_STACKS = ("nanotron",)
"""Stacks whose one-forward-one-backward order refuses fewer passes than stages less one."""


def read_plan(case: Case, assumptions: list[str]) -> Parallelism:
    """Degrees, micro-batches and sharding; missing degrees are 1 and the rest of the devices hold replicas."""
    num_gpus = case.n_gpus or 1
    if num_gpus < 1:
        raise InvalidInput(f"n_gpus is {num_gpus}; it must be at least 1")
    tensor, pipeline, context, expert = case.tp or 1, case.pp or 1, case.cp or 1, case.ep or 1
    inner = tensor * pipeline * context
    data = case.dp
    if data is None:
        if num_gpus % inner:
            raise InvalidInput(f"{num_gpus} GPUs cannot hold tp x pp x cp = {inner}; dp would not be whole")
        data = num_gpus // inner
    if data * inner != num_gpus:
        raise InvalidInput(f"dp x tp x pp x cp = {data} x {tensor} x {pipeline} x {context} is not n_gpus = {num_gpus}")
    settings = case.settings
    virtual = case.vp or 1
    passes = read_passes(case, data=data, assumptions=assumptions)
    if case.framework in FILLED_PIPELINE_STACKS and passes < pipeline - 1:
        raise IllegalPlan(
            f"{case.framework} runs no pipeline of {pipeline} stages with {passes} passes; it asks for {pipeline - 1} or more"
        )
    zero = _read_sharding(case)
    if zero == 3 and pipeline > 1 and case.framework in KEEPING_PIPELINE_STACKS:
        assumptions.append(
            f"{case.framework} keeps weights gathered in a pipeline, so only gradients and state are sharded"
        )
        zero = 2
    folds = _folds_experts(expert, replicas=data * context, tensor=tensor, assumptions=assumptions)
    return Parallelism(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert,
        expert_tensor=1 if folds else None,
        virtual_stages=virtual if pipeline > 1 else 1,
        micro_batches=passes,
        zero=zero,
        shard=_read_hybrid_shard(case, data=data, inner=inner) if zero and expert == 1 else None,
        sequence_parallel=tensor > 1
        and (folds or "sequence_parallel" in settings or case.framework in SEQUENCE_PARALLEL_STACKS),
        recompute=read_recomputation(case, assumptions),
        order=_read_order(settings, virtual=virtual),
        balance="products" if case.framework in PRODUCT_BALANCED_STACKS else "layers",
        overlap=case.framework not in SEPARATE_REDUCTION_STACKS
        and not (zero and case.framework in SEPARATE_SCATTER_STACKS),
        bucket_copies=not (case.framework or "").startswith("Megatron"),
    )


def _folds_experts(expert: int, *, replicas: int, tensor: int, assumptions: list[str]) -> bool:
    """More ranks for experts than there are replicas: they can only lie along the tensor axis too, each expert whole."""
    if replicas % expert == 0 or (replicas * tensor) % expert:
        return False
    assumptions.append(
        f"ep = {expert} over {replicas} replicas: experts are spread over tensor {tensor} too, each whole"
    )
    return True


def read_passes(case: Case, *, data: int, assumptions: list[str]) -> int:
    """Passes per optimizer step."""
    if case.grad_accum is not None:
        if case.grad_accum < 1:
            raise InvalidInput(f"grad_accum is {case.grad_accum}; it must be at least 1")
        return case.grad_accum
    if case.micro_batch and case.global_batch:
        passes = case.global_batch / (case.micro_batch * data)
        if passes >= 1 and abs(passes - round(passes)) < 1e-6:
            return round(passes)
        raise InvalidInput(
            f"global_batch {case.global_batch:g} is not a multiple of micro_batch {case.micro_batch:g} x dp {data}"
        )
    assumptions.append("one pass per optimizer step is assumed")
    return 1


def read_micro_batch(case: Case, plan: Parallelism, assumptions: list[str]) -> int:
    """Samples of one pass of one replica, as a whole number."""
    batch = case.micro_batch
    if batch is None:
        if case.global_batch is None:
            raise InvalidInput("neither micro_batch nor global_batch is known")
        batch = case.global_batch / (plan.data * plan.micro_batches)
    if batch <= 0:
        raise InvalidInput(f"micro_batch is {batch:g}; it must be above 0")
    whole = max(1, round(batch))
    if abs(whole - batch) > 1e-9:
        assumptions.append(f"a batch of {batch:g} per replica is taken as {whole}")
    return whole


def read_recomputation(case: Case, assumptions: list[str]) -> str:
    if case.act_ckpt == "selective" and case.framework in PRODUCT_SAVING_STACKS:
        return "products"
    if shards_recipe(case):
        assumptions.append("LitGPT runs each block again wherever it shards the weights")
        return "full"
    if case.act_ckpt == "unknown":
        assumptions.append("whether activations are recomputed is not known; none assumed")
    if case.act_ckpt in (None, "unknown"):
        return "none"
    if case.act_ckpt not in RECOMPUTES:
        raise UnknownName("act_ckpt", case.act_ckpt, (*RECOMPUTES, "unknown"))
    return case.act_ckpt


def shards_recipe(case: Case) -> bool:
    """LitGPT's full fine-tuning on several devices: FSDP with recomputed blocks and, by its peaks, shards kept in fp32."""
    return (
        case.framework == "LitGPT" and (case.strategy or "").startswith("fsdp") and "lora" not in (case.strategy or "")
    )


def _read_sharding(case: Case) -> int:
    """A strategy that names FSDP shards everything, even where the column is empty.

    LitGPT's table has one peak per recipe, that of one device, also where adapters were trained on four.
    """
    if case.framework == "LitGPT" and "lora" in (case.strategy or ""):
        return 0
    full = (case.strategy or "").startswith(("fsdp", "hsdp")) and "gradop" not in (case.strategy or "")
    return case.zero or (3 if full else 0)


def _read_hybrid_shard(case: Case, *, data: int, inner: int) -> int | None:
    """Hybrid sharding cuts inside a node (or a slice of a TPU pod) and copies across; its usual names say so."""
    words = {(case.strategy or "").lower(), *(word.lower() for word in case.settings)}
    if not any("hsdp" in word or "hybrid" in word for word in words):
        return None
    per_node = case.gpus_per_node or (case.n_gpus or 1) // (case.n_nodes or 1)
    shard = per_node // inner if per_node % inner == 0 else 0
    return shard if shard > 1 and data % shard == 0 else None


def _read_order(settings: frozenset[str], *, virtual: int) -> str:
    if settings & {"zero_bubble", "zero-bubble"}:
        return "zero-bubble"
    return "interleaved" if virtual > 1 else "1f1b"
