"""Contract checks for cost models and lowering: run by our own tests over every registry entry, and by plug-in authors."""

import math
from collections.abc import Iterable
from dataclasses import replace

from traincast.cost import CostModel
from traincast.lower import lower
from traincast.lower.check import check_program
from traincast.simulate import replay_memory, simulate_step
from traincast.spec import Cluster, Device, Graph, Op, Parallelism

__all__ = ["BrokenContract", "check_cost_model", "check_lowering"]


class BrokenContract(AssertionError):
    """A plug-in that does not keep what its slot promises."""


def check_cost_model(model: CostModel, graph: Graph, cluster: Cluster) -> None:
    """One estimate per task, in order, positive, inside its interval, the same each time, and no slower on a faster machine."""
    program = lower(graph, Parallelism(data=cluster.num_devices))
    for stage in program.stages:
        estimates = model.estimate(stage, cluster)
        _require(len(estimates) == len(stage.tasks), f"{len(estimates)} estimates for {len(stage.tasks)} tasks")
        for task, estimate in zip(stage.tasks, estimates, strict=True):
            _require(
                0 <= estimate.low_s <= estimate.seconds <= estimate.high_s < math.inf,
                f"{task.name}: {estimate.seconds} s outside {estimate.low_s} .. {estimate.high_s} s",
            )
            works = isinstance(task, Op) and task.num_bytes > 0
            _require(not works or estimate.seconds > 0, f"{task.name} moves bytes in no time")
        _require(model.estimate(stage, cluster) == estimates, "the same stage and cluster gave another answer")
    slow, fast = (_step_s(model, graph, _scaled(cluster, factor)) for factor in (1.0, 2.0))
    _require(fast <= slow * 1.02, f"all rates doubled, and the step went from {slow} s to {fast} s")


def check_lowering(graph: Graph, plans: Iterable[Parallelism]) -> None:
    """Every program is well formed, no rank does more than the whole, and its memory is never below what is resident."""
    whole = sum((op.flop or 0.0) * count for op, count in zip(graph.ops, graph.counts(), strict=True))
    for plan in plans:
        program = check_program(lower(graph, plan))
        _require(len(program.stages) == plan.pipeline, f"{plan}: {len(program.stages)} stages")
        for stage in program.stages:
            own = sum(
                (task.flop or 0.0) * count
                for task, count in zip(stage.tasks, stage.counts(), strict=True)
                if isinstance(task, Op) and task.phase != "recompute"
            )
            _require(own <= whole * 1.01, f"{plan}: a rank does {own} FLOP of {whole}")
            resident = sum(t.num_bytes * t.copies for t in stage.tensors if t.role == "parameter")
            peak = replay_memory(stage, capacity_bytes=1.0).peak_bytes
            _require(peak >= resident, f"{plan}: a peak of {peak} bytes below {resident} resident")


def _step_s(model: CostModel, graph: Graph, cluster: Cluster) -> float:
    program = lower(graph, Parallelism(data=cluster.num_devices))
    return simulate_step(program, [model.estimate(stage, cluster) for stage in program.stages]).duration_s


def _scaled(cluster: Cluster, factor: float) -> Cluster:
    """Every rate of every device and link times a factor; clocks too, so that data sheets stay consistent."""

    def faster(device: Device) -> Device:
        return replace(
            device,
            memory_bytes_per_s=device.memory_bytes_per_s * factor,
            matrix_flop_per_s={dtype: rate * factor for dtype, rate in device.matrix_flop_per_s.items()},
            vector_flop_per_s={dtype: rate * factor for dtype, rate in device.vector_flop_per_s.items()},
            clock_hz=None if device.clock_hz is None else device.clock_hz * factor,
            power_watts=None if device.power_watts is None else device.power_watts * factor,
        )

    groups = tuple(
        replace(
            group,
            device=faster(group.device),
            intra=replace(group.intra, bytes_per_s=group.intra.bytes_per_s * factor),
            inter=replace(group.inter, bytes_per_s=group.inter.bytes_per_s * factor),
        )
        for group in cluster.groups
    )
    return replace(cluster, groups=groups)


def _require(holds: bool, complaint: str) -> None:
    if not holds:
        raise BrokenContract(complaint)
