"""A stack's constants applied: estimates of ops and collectives in, estimates with host time and the stack's factors out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincast.cost._collectives import RINGS
from traincast.spec import DYNAMIC, HOST, Collective, Estimate, Op, Stack, Task

PRODUCTS = ("matmul", "attention", "conv", "rnn")

TUNABLE: Mapping[str, float] = {
    "forward_call_s": 0.9, "backward_call_s": 0.9, "optimizer_call_s": 1.2, "launch_s": 0.5, "collective_call_s": 0.7,
    "product_factor": 0.2, "memory_factor": 0.3, "intra_factor": 0.4, "inter_factor": 0.5, "ring_step_s": 1.5,
}  # fmt: skip
"""What measurements may move, and by how much before we doubt them: one standard deviation of the log."""


def price_op(stack: Stack, op: Op, estimate: Estimate) -> Estimate:
    factor = stack.product_factor if op.kind in PRODUCTS else stack.memory_factor
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
    scaled = replace(estimate.scaled(factor), host_s=stack.collective_call_s)
    if not crosses_nodes or not pays_ring_steps(task):
        return scaled
    # A gradient that travels in a bucket with others pays its part of the bucket's steps.
    part = min(1.0, task.num_bytes / task.bucket_bytes) if task.bucket_bytes else 1.0
    steps_s = part * (task.num_ranks - 1) * stack.ring_step_s
    return replace(
        scaled,
        seconds=scaled.seconds + steps_s,
        low_s=scaled.low_s + steps_s,
        high_s=scaled.high_s + steps_s,
    )


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


def pays_ring_steps(task: Collective) -> bool:
    """Between nodes. Gradients follow each other through a network without a kernel between them, and what is gathered ahead
    starts before a kernel waits for it: neither pays any."""
    return task.kind in RINGS and task.phase != "gradient" and not task.overlapped


def read_constants(stack: Stack) -> dict[str, float]:
    """The tunable constants by name."""
    return {name: getattr(stack, name) for name in TUNABLE}


def with_constants(stack: Stack, values: Mapping[str, float]) -> Stack:
    """The stack with some tunable constants changed."""
    changed: dict[str, Any] = dict(values)
    return replace(stack, **changed)
