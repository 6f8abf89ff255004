"""The document `power` to what devices draw: by what they compute and move, while they wait, and how a limit stretches a step."""

import functools
from collections.abc import Mapping

from traincast.catalog import read_constants
from traincast.cost._bounds import product_flop_per_s, relative_energy, uses_matrix_units
from traincast.cost._interaction.classes import is_gpu
from traincast.noun import noun
from traincast.spec import MATMULS, Device, Graph


@noun
class Power:
    """Shares of the rated power where the document names no other unit."""

    idle: float
    full: float
    lane_joules_per_flop: float
    traffic: float
    static: float
    kept: float
    least_left: float
    follows: float
    drawn_low: float
    drawn_high: float

    def draw(self, busy: float, limit: float | None = None) -> float:
        """Mean share of the rated power, of a device that runs kernels nobody knows for a share `busy` of the time."""
        return self.hold(self.idle + (self.full - self.idle) * min(1.0, busy), limit)

    def draw_at_work(self, device: Device, needs: "Needs", limit: float | None = None) -> float:
        """The same of a device of which it is known what it computes and moves in a second."""
        arithmetic = self.lane_joules_per_flop * needs.lane_flop_per_s / (device.power_watts or 1.0)
        return self.hold(min(1.0, self.idle + arithmetic + self.traffic * needs.bandwidth_share), limit)

    def hold(self, free: float, limit: float | None) -> float:
        return free if limit is None else min(free, self.kept * limit)

    def stretch(self, limit: float) -> float:
        """How many times longer kernels take where the limit (a share of the rated power) holds a busy device: its clock follows
        what is left above the static draw."""
        free, held = self.draw(1.0), self.draw(1.0, limit)
        if held >= free:
            return 1.0
        left = max(held - self.static, self.least_left * (free - self.static))
        return 1.0 + self.follows * ((free - self.static) / left - 1.0)


@noun
class Work:
    """What one pass over a graph computes and moves."""

    flop: Mapping[str, float]
    """Of matmuls, by number format."""
    other_flop: float
    num_bytes: float


@noun
class Needs:
    """What a device computes and moves in a second."""

    lane_flop_per_s: float
    """FLOP that draw as much, in fp32 on the CUDA cores of a 16 to 7 nm chip."""
    bandwidth_share: float


@functools.cache
def power() -> Power:
    return read_constants(Power, "power")


def draw_share(device: Device, graph: Graph | None, *, busy: float, limit: float | None, passes_per_s: float) -> float:
    """Mean share of the rated power during a step: by the work of its graph where that is known, else by how long kernels run."""
    needs = None if graph is None else needs_of(device, work_of(graph), passes_per_s=passes_per_s)
    return power().draw(busy, limit) if needs is None else power().draw_at_work(device, needs, limit)


def needs_of(device: Device, work: Work, *, passes_per_s: float) -> Needs | None:
    """None for what is no GPU: nobody measured what its arithmetic draws."""
    if not is_gpu(device):
        return None
    flop = work.other_flop * relative_energy(device, "fp32", matrix=False)
    for dtype, amount in work.flop.items():
        _, real = product_flop_per_s(device, dtype)
        flop += amount * relative_energy(device, real, matrix=uses_matrix_units(device, real))
    share = work.num_bytes * passes_per_s / device.memory_bytes_per_s
    return Needs(lane_flop_per_s=flop * passes_per_s, bandwidth_share=min(1.0, share))


_KNOWN: dict[int, tuple[Graph, Work]] = {}
_MOST_KNOWN = 64


def work_of(graph: Graph) -> Work:
    """Kept for the last graphs: every plan of a search asks."""
    found = _KNOWN.get(id(graph))
    if found is None:
        products: dict[str, float] = {}
        other_flop = num_bytes = 0.0
        for op, count in zip(graph.ops, graph.counts(), strict=True):
            num_bytes += count * op.num_bytes
            if op.kind in MATMULS:
                products[op.dtype] = products.get(op.dtype, 0.0) + count * (op.flop or 0.0)
            else:
                other_flop += count * (op.flop or 0.0)
        while len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.pop(next(iter(_KNOWN)))
        # The graph is kept with its work, so no other can come by its identity.
        found = _KNOWN[id(graph)] = graph, Work(flop=products, other_flop=other_flop, num_bytes=num_bytes)
    return found[1]
