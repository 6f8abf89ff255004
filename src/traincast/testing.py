"""Contract checks for cost models, lowering and policies, for our own tests over every registry entry and for plug-in authors."""

import math
from collections.abc import Iterable
from dataclasses import replace

from traincast.cost import CostModel
from traincast.errors import InvalidInput
from traincast.lower import check_program, lower
from traincast.simulate import replay_memory, simulate_step
from traincast.spec import Cluster, Device, Graph, Op, Parallelism, Schedule

__all__ = ["BrokenContract", "check_cost_model", "check_lowering", "check_policy"]


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


def check_policy(name: str, *, num_jobs: int = 60, seed: int = 0) -> None:
    """A scheduling policy by its name, ours or one of another package: on a crowded small cluster every job ends exactly once
    or is refused with a reason, nobody starts before submission, no node holds more than it has, work is done in full,
    a job alone on the cluster starts at once, and the same jobs give the same schedule."""
    from traincast.schedule import Mix, Setting, generate_jobs, parse_fleet, run_policy

    if not isinstance(name, str):
        raise InvalidInput(
            f"check_policy takes the name by which `traincast schedule --policy` finds a policy, such as 'sjf', not a "
            f"{type(name).__name__}; an entry point of the group traincast.policies names yours (docs/extend/policy.md)"
        )
    setting = Setting(fleet=parse_fleet("3x4"), record=True)
    mix = Mix(sizes={1: 4, 2: 2, 3: 1, 4: 2, 8: 1}, load=1.5, median_s=900.0, sigma=1.0, deadline_slack=1.0)
    jobs = generate_jobs(num_jobs, num_gpus=12, mix=mix, seed=seed)
    found, again = (run_policy(name, jobs, setting) for _ in range(2))
    for job in range(len(jobs)):
        outcome = found.outcome(job)
        if job in found.rejected:
            _require(bool(found.rejected[job]), f"{name}: job {outcome.job_id} is refused without a reason")
            continue
        _require(outcome.end_s is not None, f"{name}: job {outcome.job_id} never ends")
        _require(
            outcome.start_s is not None and outcome.start_s >= outcome.submit_s,
            f"{name}: job {outcome.job_id} starts before it was submitted",
        )
    _check_nodes(name, found)
    _require(
        all(a == b or (a != a and b != b) for a, b in zip(found.end_s, again.end_s, strict=True)),
        f"{name}: the same jobs gave another schedule",
    )
    alone = run_policy(name, jobs.select([0]), setting)
    _require(float(alone.start_s[0]) == float(jobs.submit_s[0]), f"{name}: a job that is alone has to wait")


def _check_nodes(name: str, schedule: Schedule) -> None:
    """No node holds more GPUs than it has."""
    sizes = [pool.gpus_per_node for pool in schedule.fleet.pools for _ in range(pool.num_nodes)]
    by_type = any(held.nodes and held.nodes[0][1] > max(sizes) for held in schedule.occupations)
    if by_type or any(held.nodes[0][0] >= len(sizes) for held in schedule.occupations):
        return
    changes = sorted(
        (time_s, sign, node, count)
        for held in schedule.occupations
        for node, count in held.nodes
        for time_s, sign in ((held.start_s, 1), (held.end_s, -1))
    )
    used = [0.0] * len(sizes)
    for _, sign, node, count in changes:
        used[node] += sign * count
        _require(used[node] <= sizes[node] + 1e-9, f"{name}: node {node} holds {used[node]:g} of {sizes[node]} GPUs")


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
