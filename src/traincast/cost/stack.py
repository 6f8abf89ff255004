"""What a software stack adds to the hardware: host time per call, and how far its kernels and links stay from our models."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from traincast.cost.collectives import RINGS
from traincast.cost.host import Host
from traincast.errors import UnknownName
from traincast.spec import HOST, Collective, Estimate, Op

FITTED = Path(__file__).parent / "weights" / "stacks.json"
PRODUCTS = ("matmul", "attention", "conv", "rnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Constants of one framework, as multiples of what the op and collective models say. 1 and 0 change nothing."""

    name: str = "pytorch"
    host: Host = field(default_factory=Host)
    collective_call_s: float = 1e-5
    """Host time to issue a collective."""
    product_factor: float = 1.0
    """Time of matmul, convolution and attention beside the op model's."""
    memory_factor: float = 1.0
    """The same of every other op."""
    intra_factor: float = 1.0
    """Time of collectives inside a node beside the collective model's."""
    inter_factor: float = 1.0
    ring_step_s: float = 1e-6
    """What every step of a ring between nodes adds to an all-gather or reduce-scatter that kernels wait for: the latency of
    transport and library, beside the collective model's own hops. Gradients follow each other through the network without
    a kernel between them, and were not seen to pay it."""
    pass_s: float = 0.0
    """Time per micro-batch that no op accounts for: data, logging, checks."""
    spread: float = 0.06
    """One standard deviation of the log error of a step that remains with these constants: of composition alone for a prior
    (fp32 steps of GPUs left out: 0.07 with the errors of the ops), of everything for a stack that was fitted."""
    num_steps: int = 0
    """Measured steps the constants were fitted to; 0: a prior."""

    def price_op(self, op: Op, estimate: Estimate) -> Estimate:
        factor = self.product_factor if op.kind in PRODUCTS else self.memory_factor
        return Estimate(
            seconds=estimate.seconds * factor,
            low_s=estimate.low_s * factor,
            high_s=estimate.high_s * factor,
            host_s=self.host.issue_s(op),
            limit=estimate.limit,
            ground=estimate.ground,
        )

    def price_collective(self, task: Collective, estimate: Estimate, *, crosses_nodes: bool) -> Estimate:
        factor = self.inter_factor if crosses_nodes else self.intra_factor
        if task.axis == HOST:
            factor = 1.0
        scaled = replace(estimate.scaled(factor), host_s=self.collective_call_s)
        if not crosses_nodes or task.kind not in RINGS or task.phase == "gradient":
            return scaled
        # A gradient that travels in a bucket with others pays its part of the bucket's steps.
        part = min(1.0, task.num_bytes / task.bucket_bytes) if task.bucket_bytes else 1.0
        steps_s = part * (task.num_ranks - 1) * self.ring_step_s
        return replace(
            scaled,
            seconds=scaled.seconds + steps_s,
            low_s=scaled.low_s + steps_s,
            high_s=scaled.high_s + steps_s,
        )


TUNABLE: Mapping[str, float] = {
    "forward_call_s": 0.9, "backward_call_s": 0.9, "optimizer_call_s": 1.2, "launch_s": 0.5, "collective_call_s": 0.7,
    "product_factor": 0.2, "memory_factor": 0.3, "intra_factor": 0.4, "inter_factor": 0.5, "ring_step_s": 1.5,
}  # fmt: skip
"""What measurements may move, and by how much before we doubt them: one standard deviation of the log."""


def read_constants(stack: Stack) -> dict[str, float]:
    """The tunable constants by name."""
    return {name: getattr(stack.host if hasattr(stack.host, name) else stack, name) for name in TUNABLE}


def with_constants(stack: Stack, values: Mapping[str, float]) -> Stack:
    """The stack with some tunable constants changed."""
    of_host = {field.name for field in fields(Host)}
    host = replace(stack.host, **{name: value for name, value in values.items() if name in of_host})
    others: dict[str, Any] = {name: value for name, value in values.items() if name not in of_host}
    return replace(stack, host=host, **others)


@functools.cache
def load_stacks() -> Mapping[str, Stack]:
    """The stacks that ship with the package: a prior for eager PyTorch, and those fitted to measured steps."""
    stacks = {"pytorch": Stack()}
    if FITTED.is_file():
        for name, values in json.loads(FITTED.read_text())["stacks"].items():
            constants = {key: values[key] for key in TUNABLE if key in values}
            base = Stack(name=name, pass_s=values["pass_s"], spread=values["spread"], num_steps=values["num_steps"])
            stacks[name] = with_constants(base, constants)
    return stacks


def stack(name: str) -> Stack:
    stacks = load_stacks()
    if name not in stacks:
        raise UnknownName("stack", name, stacks)
    return stacks[name]
