"""The parallelism columns of a case to the plan part of a question."""

from typing import Any

from traincast.accuracy._cases import Case
from traincast.catalog import log_facts
from traincast.errors import InvalidInput, UnknownName
from traincast.resolve import UNKNOWN
from traincast.spec import RECOMPUTES, Stack, implied_micro_batches


def read_plan(case: Case, stack: Stack, said: list[str]) -> dict[str, Any]:
    """Degrees, passes and sharding; missing degrees are 1 and the rest of the devices hold replicas."""
    num_gpus = case.n_gpus or 1
    if num_gpus < 1:
        raise InvalidInput(f"n_gpus is {num_gpus}; it must be at least 1")
    tensor, pipeline, context, expert = case.tp or 1, case.pp or 1, case.cp or 1, case.ep or 1
    inner = tensor * pipeline * context
    data = _read_replicas(case, num_gpus=num_gpus, inner=inner)
    virtual, zero = (case.vp or 1) if pipeline > 1 else 1, read_sharding(case, stack)
    degrees = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert, "virtual_stages": virtual}
    plan: dict[str, Any] = {"data": data, **{axis: degree for axis, degree in degrees.items() if degree != 1}}
    plan["micro_batches"] = read_passes(case, data=data, pipeline=pipeline, said=said)
    if zero:
        plan["zero"] = zero
        shard = _read_hybrid_shard(case, data=data, inner=inner) if expert == 1 else None
        plan |= {} if shard is None else {"shard": shard}
    plan |= {"zero": 0} if _shards_nothing(case) else {}
    if tensor > 1 and "sequence_parallel" in case.settings:
        plan["sequence_parallel"] = True
    order = _read_order(case)
    plan |= {} if order is None else {"order": order}
    recompute = read_recomputation(case, stack, zero=zero)
    return plan | ({} if recompute is None else {"recompute": recompute})


def _read_replicas(case: Case, *, num_gpus: int, inner: int) -> int:
    if case.dp is None and num_gpus % inner:
        raise InvalidInput(f"{num_gpus} GPUs cannot hold tp x pp x cp = {inner}; dp would not be whole")
    data = num_gpus // inner if case.dp is None else case.dp
    if data * inner != num_gpus:
        degrees = f"{data} x {case.tp or 1} x {case.pp or 1} x {case.cp or 1}"
        raise InvalidInput(f"dp x tp x pp x cp = {degrees} is not n_gpus = {num_gpus}")
    return data


def _read_order(case: Case) -> str | None:
    if case.settings & {"zero_bubble", "zero-bubble"}:
        return "zero-bubble"
    return "interleaved" if (case.vp or 1) > 1 else None


def read_passes(case: Case, *, data: int, said: list[str], pipeline: int = 1) -> int:
    """Passes per optimizer step. Where a pipeline's are not given, they are what global batch, replicas and micro-batch imply,
    else what a practitioner would set, as for a question."""
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
    passes, reason = _imply_passes(case, data=data, pipeline=pipeline)
    said.append(reason or "one pass per optimizer step is assumed")
    return passes


def _imply_passes(case: Case, *, data: int, pipeline: int) -> tuple[int, str]:
    """Their number and why; a pipeline with nothing but a global batch runs samples one by one, as for a question."""
    whole = None if case.micro_batch else case.global_batch
    if case.micro_batch is None and (whole is None or pipeline == 1 or whole % data):
        return 1, ""
    size = case.micro_batch or 1
    implied = implied_micro_batches(micro_batch=size, data=data, pipeline=pipeline, global_batch=whole)
    return implied.count, implied.reason


def read_micro_batch(case: Case, *, data: int, passes: int, said: list[str]) -> int:
    """Samples of one pass of one replica, as a whole number."""
    batch = case.micro_batch
    if batch is None:
        if case.global_batch is None:
            raise InvalidInput("neither micro_batch nor global_batch is known")
        batch = case.global_batch / (data * passes)
    if batch <= 0:
        raise InvalidInput(f"micro_batch is {batch:g}; it must be above 0")
    whole = max(1, round(batch))
    if abs(whole - batch) > 1e-9:
        said.append(f"a batch of {batch:g} per replica is taken as {whole}")
    return whole


def read_recomputation(case: Case, stack: Stack, *, zero: int) -> str | None:
    """The source's word; None where the stack decides, whatever the column says."""
    if zero == 3 and stack.plan.recomputes("sharded") and case.act_ckpt in (None, "none", UNKNOWN):
        return None
    if case.act_ckpt in (None, UNKNOWN) and stack.plan.recomputes():
        return None
    if case.act_ckpt is None or case.act_ckpt == "none":
        return "none"
    if case.act_ckpt not in (*RECOMPUTES, UNKNOWN):
        raise UnknownName("act_ckpt", case.act_ckpt, (*RECOMPUTES, UNKNOWN))
    return case.act_ckpt


def read_sharding(case: Case, stack: Stack) -> int:
    """A strategy that names FSDP shards everything, even where the column is empty."""
    strategy = case.strategy or ""
    if log_facts(stack.name).unsharded_adapters and "lora" in strategy:
        return 0
    full = strategy.startswith(("fsdp", "hsdp")) and "gradop" not in strategy
    return case.zero or (3 if full else 0)


def _shards_nothing(case: Case) -> bool:
    """Plain data parallelism that is said to be so, whatever the framework does by itself."""
    return case.strategy == "dp" and case.zero == 0


def _read_hybrid_shard(case: Case, *, data: int, inner: int) -> int | None:
    """Hybrid sharding cuts inside a node (or a slice of a TPU pod) and copies across; its usual names say so."""
    words = {(case.strategy or "").lower(), *(word.lower() for word in case.settings)}
    if not any("hsdp" in word or "hybrid" in word for word in words):
        return None
    per_node = case.gpus_per_node or (case.n_gpus or 1) // (case.n_nodes or 1)
    shard = per_node // inner if per_node % inner == 0 else 0
    return shard if shard > 1 and data % shard == 0 else None
