"""A stack's constants applied: estimates of ops and collectives in, estimates with host time and the stack's factors out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincast.catalog import read_constant_table
from traincast.spec import DYNAMIC, HOST, MATMULS, Collective, Estimate, Op, Stack, Task

TUNABLE: Mapping[str, float] = read_constant_table(float, "tunable")
"""What measurements may move, and by how much before we doubt them: one standard deviation of the log."""


def price_op(stack: Stack, op: Op, estimate: Estimate) -> Estimate:
    factor = stack.product_factor if op.kind in MATMULS else stack.memory_factor
    return Estimate(
        seconds=estimate.seconds * factor,
        low_s=estimate.low_s * factor,
        high_s=estimate.high_s * factor,
        host_s=issue_seconds(stack, op),
        limit=estimate.limit,
        ground=estimate.ground,
    )


def issue_seconds(stack: Stack, op: Op) -> float:
    """What the host spends on an op: framework calls by phase, and a launch for each kernel."""
    if op.phase in ("forward", "recompute"):
        call_s = stack.forward_call_s
    else:
        call_s = stack.optimizer_call_s if op.phase == "optimizer" else stack.backward_call_s
    return op.num_calls * call_s + op.num_kernels * stack.launch_s


def price_collective(stack: Stack, task: Collective, estimate: Estimate, *, crosses_nodes: bool) -> Estimate:
    factor = stack.inter_factor if crosses_nodes else stack.intra_factor
    if task.axis == HOST:
        factor = 1.0
    return replace(estimate.scaled(factor), host_s=stack.collective_call_s)


def replay(tasks: Sequence[Task], estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """A captured step (CUDA graphs): one launch, so the host issues nothing op by op, but what depends on the data. The host has
    read what came before it, so the device waits until it is issued."""
    return tuple(
        [
            _issue_late(estimate) if isinstance(task, Op) and task.attrs.get(DYNAMIC) else replace(estimate, host_s=0.0)
            for task, estimate in zip(tasks, estimates, strict=True)
        ]
    )


def _issue_late(estimate: Estimate) -> Estimate:
    host_s = estimate.host_s
    if host_s <= estimate.seconds:
        return replace(estimate, host_s=0.0)
    return replace(
        estimate,
        seconds=host_s,
        low_s=min(host_s, estimate.low_s),
        high_s=max(host_s, estimate.high_s),
        host_s=0.0,
        limit="host",
    )


def read_constants(stack: Stack) -> dict[str, float]:
    """The tunable constants by name."""
    return {name: getattr(stack, name) for name in TUNABLE}


def with_constants(stack: Stack, values: Mapping[str, float]) -> Stack:
    """The stack with some tunable constants changed."""
    changed: dict[str, Any] = dict(values)
    return replace(stack, **changed)
