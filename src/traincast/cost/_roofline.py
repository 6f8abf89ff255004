"""The bound every other model refines: time from FLOP, bytes and the data sheet, with one efficiency per kind."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from traincast.spec import Device, Estimate, Op
from traincast.units import NORMAL_90

COMPUTE_EFFICIENCY: dict[str, float] = {"matmul": 0.75, "attention": 0.55, "conv": 0.6, "rnn": 0.45}
"""Share of the peak FLOP rate that large ops of a kind reach; kinds not named are bound by memory in practice."""

MEMORY_EFFICIENCY: dict[str, float] = {
    "elementwise": 0.85, "copy": 0.8, "dropout": 0.8, "softmax": 0.75, "norm": 0.7, "reduce": 0.75, "optimizer": 0.8,
    "embedding": 0.5, "index": 0.4, "pool": 0.6, "sort": 0.1, "random": 0.8,
}  # fmt: skip

SPREAD: dict[str, float] = {
    "matmul": 0.35,
    "conv": 0.5,
    "attention": 0.5,
    "elementwise": 0.3,
    "norm": 0.4,
    "softmax": 0.4,
}
"""One standard deviation of log(measured / bound), wide on purpose where nothing was measured."""

UNKNOWN_SPREAD = 0.8
KERNEL_FLOOR_S = 2e-6
"""No kernel is shorter: start, drain and the first memory access."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """max(FLOP / peak, bytes / bandwidth) at a fixed efficiency per kind (Williams et al. 2009)."""

    def estimate_ops(self, ops: Sequence[Op], device: Device) -> tuple[Estimate, ...]:
        return tuple(self._estimate(op, device) for op in ops)

    def _estimate(self, op: Op, device: Device) -> Estimate:
        bandwidth = device.memory_bytes_per_s * MEMORY_EFFICIENCY.get(op.kind, 0.7)
        memory_s = op.num_bytes / bandwidth
        compute_s = (op.flop or 0.0) / usable_flop_per_s(op, device)
        seconds = max(memory_s, compute_s, KERNEL_FLOOR_S * op.num_kernels)
        spread = UNKNOWN_SPREAD if op.flop is None else SPREAD.get(op.kind, 0.5)
        factor = math.exp(NORMAL_90 * spread)
        return Estimate(
            seconds=seconds,
            low_s=seconds / factor,
            high_s=seconds * factor,
            limit="compute" if compute_s > memory_s else "memory",
            ground="bound",
        )


def usable_flop_per_s(op: Op, device: Device) -> float:
    """What the device offers this op: matrix units for products, lanes for the rest; the next wider type if it lacks one."""
    if op.kind not in COMPUTE_EFFICIENCY:
        return 0.5 * _lanes_flop_per_s(device)
    for dtype in _WIDER.get(op.dtype, (op.dtype, "fp32")):
        rate = device.peak_flop_per_s(dtype)
        if rate is not None:
            return rate * COMPUTE_EFFICIENCY[op.kind]
    return _lanes_flop_per_s(device) * COMPUTE_EFFICIENCY[op.kind]


def _lanes_flop_per_s(device: Device) -> float:
    rates = device.vector_flop_per_s or device.matrix_flop_per_s
    return rates.get("fp32") or min(rates.values())


_WIDER: dict[str, tuple[str, ...]] = {
    "fp4": ("fp4", "fp8", "bf16", "fp16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("int8", "fp16", "fp32"),
    "fp16": ("fp16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "tf32": ("tf32", "fp32"),
    "fp64": ("fp64", "fp32"),
}
