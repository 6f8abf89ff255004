"""The bound every other model refines: time from FLOP, bytes and the data sheet, with one efficiency per kind."""

import math
from collections.abc import Mapping, Sequence

from traincast.catalog import read_constants
from traincast.cost._bounds import CONSTANTS as BOUNDS
from traincast.cost._bounds import lanes_flop_per_s, product_flop_per_s
from traincast.noun import noun
from traincast.spec import Device, Estimate, Op
from traincast.units import NORMAL_90


@noun
class RooflineConstants:
    """Of the document `roofline`, which says what each is."""

    compute_efficiency: Mapping[str, float]
    memory_efficiency: Mapping[str, float]
    other_memory_efficiency: float
    lane_share: float
    log_sigma: Mapping[str, float]
    other_log_sigma: float
    unknown_log_sigma: float


CONSTANTS = read_constants(RooflineConstants, "roofline")


@noun
class Roofline:
    """max(FLOP / peak, bytes / bandwidth) at a fixed efficiency per kind (Williams et al. 2009)."""

    def estimate_ops(self, ops: Sequence[Op], device: Device) -> tuple[Estimate, ...]:
        return tuple(self._estimate(op, device) for op in ops)

    def _estimate(self, op: Op, device: Device) -> Estimate:
        bandwidth = device.memory_bytes_per_s * CONSTANTS.memory_efficiency.get(
            op.kind, CONSTANTS.other_memory_efficiency
        )
        memory_s = op.num_bytes / bandwidth
        compute_s = (op.flop or 0.0) / usable_flop_per_s(op, device)
        seconds = max(memory_s, compute_s, BOUNDS.kernel_floor_s * op.num_kernels)
        spread = CONSTANTS.log_sigma.get(op.kind, CONSTANTS.other_log_sigma)
        if op.flop is None:
            spread = CONSTANTS.unknown_log_sigma
        factor = math.exp(NORMAL_90 * spread)
        return Estimate(
            seconds=seconds,
            low_s=seconds / factor,
            high_s=seconds * factor,
            limit="compute" if compute_s > memory_s else "memory",
            ground="bound",
        )


def usable_flop_per_s(op: Op, device: Device) -> float:
    """What the device offers this op: matrix units for matmuls, lanes for the rest; the next wider type if it lacks one."""
    efficiency = CONSTANTS.compute_efficiency.get(op.kind)
    if efficiency is None:
        return CONSTANTS.lane_share * lanes_flop_per_s(device)
    return product_flop_per_s(device, op.dtype)[0] * efficiency
