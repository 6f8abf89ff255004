"""The plan part of a question to a whole plan: replicas on what the other axes leave, passes that make up the batch, habits."""

from collections.abc import Mapping
from typing import Any

from traincast.errors import IllegalPlan, InvalidInput
from traincast.resolve._habits import UNKNOWN, fill_in_plan
from traincast.spec import Notes, Parallelism, Question, Stack, implied_micro_batches

AXES = (
    "data", "tensor", "pipeline", "context", "expert", "expert_tensor", "virtual_stages", "zero", "shard",
    "sequence_parallel", "order", "servers", "asynchronous",
)  # fmt: skip
"""Whoever names one of these has named a plan."""


def is_open(question: Question) -> bool:
    """Whether a question leaves a plan or a batch to be chosen."""
    values, options = question.parallelism, question.workload
    is_whole = all(isinstance(values.get(axis, 1), (int, str, bool)) for axis in AXES) and all(
        isinstance(values.get(axis, 1), int) for axis in ("data", "tensor", "pipeline", "context", "zero")
    )
    if options.mode == "inference" or values.get("recompute") == UNKNOWN or not is_whole:
        return False
    return options.batch is None or not any(axis in values for axis in AXES)


def complete_plan(values: Mapping[str, Any], *, num_devices: int, stack: Stack | None = None) -> Parallelism:
    """The plan with its data degree filled in, every device that the other axes leave holding a replica, and with the
    habits of its stack."""
    filled, _ = fill_in_plan(with_replicas(values, num_devices=num_devices), stack or Stack())
    return decode_plan(filled)


def with_replicas(values: Mapping[str, Any], *, num_devices: int) -> dict[str, Any]:
    return {**values, "data": values["data"] if "data" in values else _left_over(values, num_devices=num_devices)}


def _left_over(values: Mapping[str, Any], *, num_devices: int) -> int:
    # What must divide the data degree is checked once that is known.
    plan = decode_plan({name: value for name, value in values.items() if name in ("tensor", "pipeline", "context")})
    inner = plan.tensor * plan.pipeline * plan.context
    if num_devices % inner:
        raise IllegalPlan(
            f"{num_devices} devices cannot be split into tensor {plan.tensor} x pipeline {plan.pipeline} x context "
            f"{plan.context} = {inner}; use a multiple of {inner} devices or other degrees"
        )
    return num_devices // inner


def decode_plan(values: Mapping[str, Any]) -> Parallelism:
    from traincast.files import decode

    return decode(Parallelism, dict(values), where="parallelism")


def _imply_passes(batch: int | None, data: Any, stages: Any) -> tuple[int, Notes]:
    if not all(isinstance(degree, int) and degree >= 1 for degree in (data, stages)):
        return 1, ()
    implied = implied_micro_batches(micro_batch=batch or 1, data=data, pipeline=stages)
    return implied.count, (implied.reason or "one pass per optimizer step is assumed",)


def _check_global_batch(whole: Any) -> None:
    if isinstance(whole, bool) or not isinstance(whole, int) or whole < 1:
        raise InvalidInput(f"global_batch = {whole!r}; it must be a whole number of at least 1")


def share_batch(question: Question, plan: Mapping[str, Any]) -> tuple[int | None, Any, Notes]:
    """Samples of a pass (None: as the source has them) and passes of a step. A global batch says what is left open."""
    batch, passes, whole = question.workload.batch, plan.get("micro_batches"), question.job.get("global_batch")
    data, stages = plan.get("data", 1), plan.get("pipeline", 1)
    if whole is None:
        implied, notes = (passes, ()) if passes is not None else _imply_passes(batch, data, stages)
        return batch, implied, notes
    _check_global_batch(whole)
    if not isinstance(data, int) or data < 1 or not isinstance(passes or 1, int):
        return batch, passes or 1, ()
    if batch is not None and passes is not None:
        if batch * passes * data != whole:
            raise InvalidInput(
                f"global_batch = {whole} is not batch {batch} x micro_batches {passes} x data {data} = {batch * passes * data}"
            )
        return batch, passes, ()
    if passes is None and batch is None and stages != 1:
        batch = 1
    if batch is not None:
        return batch, _divide(whole, batch * data, f"batch {batch} x data {data}"), ()
    share = _divide(whole, data * (passes or 1), f"data {data} x micro_batches {passes or 1}")
    told = f"{share} samples in each of {passes or 1} passes of each replica make up the global batch"
    return share, passes or 1, (told,)


def _divide(whole: int, parts: int, words: str) -> int:
    if whole % parts:
        raise InvalidInput(f"global_batch = {whole} is not a multiple of {words} = {parts}")
    return whole // parts
