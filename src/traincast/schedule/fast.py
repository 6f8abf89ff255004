"""From a table of jobs to the hot loops and back: which runs they can take, and their working arrays."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from traincast.schedule import kernels
from traincast.schedule.estimators import Fixed
from traincast.schedule.hazards import Overheads
from traincast.schedule.jobs import Floats, Ints, JobTable
from traincast.schedule.lines import Key
from traincast.schedule.placement import AnyGpus, Consolidated
from traincast.schedule.policies import (
    ByKey,
    LeastAttained,
    Policy,
    by_estimate,
    by_remaining,
    by_remaining_service,
    by_submission,
)
from traincast.schedule.protocols import CLEAN, Conditions, RoundPolicy
from traincast.schedule.speeds import SameSpeed
from traincast.spec.fleet import Fleet, Schedule

_FITS = {"skip": 1, "easy": 2}
_MOVING_KEYS: dict[Key, int] = {by_remaining: kernels.BY_REMAINING, by_remaining_service: kernels.BY_SERVICE}


def is_covered(policy: Any, *, jobs: JobTable, given: Conditions) -> bool:
    """Whether the hot loops know this policy under these conditions."""
    fleet, placer = given.fleet, given.placer
    plain = given.failures is None and given.network is None and given.compat == CLEAN and not given.record
    same_speed = isinstance(given.perf, SameSpeed) and given.overheads.useful_share == 1.0
    if not plain or not same_speed or not math.isinf(given.until_s) or given.kill_at_limit or len(fleet.pools) != 1:
        return False
    if not (isinstance(placer, AnyGpus) or (isinstance(placer, Consolidated) and placer.rest == "tightest")):
        return False
    if len(jobs) and (jobs.num_gpus < 1).any():
        return False
    if isinstance(policy, LeastAttained):
        return policy.lists == "clean"
    if not isinstance(policy, ByKey) or policy.ties != "submit":
        return False
    if policy.preemptive:
        return policy.key in _MOVING_KEYS and policy.wakeup is None
    by_count = isinstance(placer, AnyGpus) or fleet.pools[0].num_nodes <= 1
    if policy.fit in ("easy", "conservative") and not by_count:
        return False
    if policy.fit == "conservative":
        return policy.key is by_submission
    return policy.key in (by_submission, by_estimate)


def loop_for(policy: Policy | RoundPolicy) -> str:
    """The loop that would run this policy, if any does."""
    if isinstance(policy, RoundPolicy):
        return "run_queue"
    if policy.preemptive:
        return "run_preemptive"
    return {"head": "run_head", "conservative": "run_conservative"}.get(policy.fit, "run_queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    """The columns that every loop reads and writes; `shell` makes them lists where the loops are interpreted."""

    jobs: JobTable
    gpus: Ints
    estimate: Floats
    total: int
    overheads: Overheads
    loops: kernels.Loops
    shell: Callable[[Any], Any]
    start: Any
    end: Any
    nodes: tuple[Any, ...]
    """Free GPUs by node, bitmaps, words of a bitmap, counts, width of a node, and what every job holds."""

    @property
    def most_running(self) -> int:
        return min(len(self.jobs), self.total) + 1

    def floats(self, count: int, value: float = 0.0) -> Any:
        return self.shell(np.full(count, value))

    def ints(self, count: int, value: int = 0) -> Any:
        return self.shell(np.full(count, value, dtype=np.int64))


def run(
    jobs: JobTable,
    policy: Policy,
    *,
    given: Conditions,
    beliefs: Fixed,
    loops: kernels.Loops,
    lists: bool,
) -> Schedule:
    """The schedule by the hot loops; `lists` hands them lists, which interpreted loops read faster than arrays."""
    fleet, placer, overheads = given.fleet, given.placer, given.overheads
    count = len(jobs)
    total = fleet.pools[0].num_gpus
    gpus = jobs.num_gpus.astype(np.int64)
    too_big = gpus > total
    shell: Callable[[Any], Any] = (lambda array: array.tolist()) if lists else (lambda array: array)
    desk = _Desk(
        jobs=jobs,
        gpus=gpus,
        estimate=beliefs.values_s,
        total=total,
        overheads=overheads,
        loops=loops,
        shell=shell,
        start=shell(np.where(too_big, -3.0, -1.0)),
        end=shell(np.full(count, np.nan)),
        nodes=_lay_out(fleet, count, shell, by_count=isinstance(placer, AnyGpus) or fleet.pools[0].num_nodes == 1),
    )
    preempted, lost = np.zeros(count, dtype=np.int64), np.zeros(count)
    if policy.preemptive:
        passes, run_s, preempted = _run_preemptive(desk, policy)
        lost = preempted * _costs(overheads, gpus) * gpus
    else:
        run_one = {"head": _run_head, "conservative": _run_conservative}.get(policy.fit, _run_queue)
        passes = run_one(desk, policy)
        run_s = np.where(too_big, 0.0, np.asarray(desk.end) - np.asarray(desk.start))
    began = np.array(desk.start, dtype=np.float64)
    began[too_big] = math.nan
    return jobs.scheduled(
        policy=policy.name,
        fleet=fleet,
        start_s=began,
        end_s=np.array(desk.end, dtype=np.float64),
        preemptions=preempted,
        failures=np.zeros(count, dtype=np.int64),
        run_s=run_s,
        gpu_s=run_s * jobs.num_gpus,
        lost_gpu_s=lost,
        rejected={
            job: f"needs {gpus[job]} GPUs of type {jobs.gpu_types[job] or 'any'}, "
            "which no pool of this fleet can ever give"
            for job in np.flatnonzero(too_big).tolist()
        },
        pool_gpu_s=np.array([float((run_s * jobs.num_gpus).sum())]),
        num_passes=passes,
    )


def _lay_out(fleet: Fleet, count: int, shell: Callable[[Any], Any], *, by_count: bool) -> tuple[Any, ...]:
    pool = fleet.pools[0]
    width = 0 if by_count else pool.gpus_per_node
    num_nodes = 1 if by_count else pool.num_nodes
    words = max(-(-num_nodes // kernels.BITS), 1)
    tops = -(-words // kernels.BITS)
    bits = np.zeros((width + 1) * (words + tops), dtype=np.int64)
    for node in range(num_nodes if width else 0):
        bits[width * words + node // kernels.BITS] |= 1 << (node % kernels.BITS)
    for word in np.flatnonzero(bits[width * words : (width + 1) * words]).tolist() if width else ():
        bits[(width + 1) * words + width * tops + word // kernels.BITS] |= 1 << (word % kernels.BITS)
    free = np.full(num_nodes, width, dtype=np.int64)
    state = np.zeros(width + 2, dtype=np.int64)
    state[0] = pool.num_gpus
    state[1 + width] += num_nodes if width else 0
    held, chain = np.full(count, -1, dtype=np.int64), np.full(num_nodes, -1, dtype=np.int64)
    last = np.full(count, -1, dtype=np.int64)
    return shell(free), shell(bits), words, shell(state), width, shell(held), shell(chain), shell(last)


def _run_head(desk: _Desk, policy: Policy) -> int:
    by_key = not (isinstance(policy, ByKey) and policy.key is by_submission)
    waiting = len(desk.jobs) if by_key else 1
    passes: int = desk.loops["run_head"](
        int(by_key),
        desk.shell(desk.jobs.submit_s),
        desk.shell(desk.gpus),
        desk.shell(desk.jobs.duration_s),
        desk.shell(desk.estimate),
        desk.floats(waiting),
        desk.ints(waiting),
        desk.ints(1),
        desk.floats(desk.most_running + 1),
        desk.ints(desk.most_running + 1),
        desk.ints(1),
        *desk.nodes,
        desk.start,
        desk.end,
    )
    return passes


def _run_conservative(desk: _Desk, policy: Policy) -> int:
    count = len(desk.jobs)
    passes: int = desk.loops["run_conservative"](
        desk.shell(desk.jobs.submit_s),
        desk.shell(desk.gpus),
        desk.shell(desk.jobs.duration_s),
        desk.shell(desk.estimate),
        desk.ints(count + 1),
        desk.floats(desk.most_running + 1),
        desk.ints(desk.most_running + 1),
        desk.ints(1),
        *desk.nodes,
        desk.floats(desk.most_running + 1),
        desk.ints(desk.most_running + 1),
        desk.floats(desk.most_running + count + 2),
        desk.ints(desk.most_running + count + 2),
        desk.start,
        desk.end,
    )
    return passes


def _run_queue(desk: _Desk, policy: Policy) -> int:
    jobs, count, shell = desk.jobs, len(desk.jobs), desk.shell
    class_gpus, class_of = np.unique(desk.gpus, return_inverse=True)
    sizes = np.bincount(class_of, minlength=len(class_gpus))
    keys = jobs.submit_s if isinstance(policy, ByKey) and policy.key is by_submission else desk.estimate
    rank = np.empty(count, dtype=np.int64)
    rank[np.lexsort((np.arange(count), jobs.submit_s, keys))] = np.arange(count)
    place_of = np.empty(count, dtype=np.int64)
    firsts = _offsets(sizes)
    job_at = np.lexsort((rank, class_of)).astype(np.int64)
    place_of[job_at] = np.arange(count) - firsts[class_of[job_at]]
    leaves = np.array([1 << max(int(size) - 1, 0).bit_length() for size in sizes], dtype=np.int64)
    # Believed ends are kept for backfill only.
    entries = count + 1 if policy.fit == "easy" else 1
    passes: int = desk.loops["run_queue"](
        _FITS[policy.fit],
        shell(jobs.submit_s),
        shell(desk.gpus),
        shell(jobs.duration_s),
        shell(desk.estimate),
        shell(class_of.astype(np.int64)),
        shell(place_of),
        shell(job_at),
        shell(rank),
        shell(class_gpus),
        shell(_offsets(2 * leaves)),
        shell(leaves),
        shell(firsts),
        desk.floats(int(2 * leaves.sum()), math.inf),
        desk.floats(desk.most_running + 1),
        desk.ints(desk.most_running + 1),
        desk.ints(1),
        *desk.nodes,
        desk.ints(len(class_gpus) + 1),
        desk.floats(entries),
        desk.ints(entries, -1),
        desk.ints(entries, -1),
        desk.ints(entries),
        desk.ints(1, -1),
        desk.ints(desk.most_running + 1),
        desk.start,
        desk.end,
    )
    return passes


def _run_preemptive(desk: _Desk, policy: Policy) -> tuple[int, Floats, Ints]:
    jobs, count, shell = desk.jobs, len(desk.jobs), desk.shell
    class_gpus, class_of = np.unique(desk.gpus, return_inverse=True)
    sizes = np.bincount(class_of, minlength=len(class_gpus))
    room = 4 * desk.most_running + 2 * count + 64
    attained, preemptions = desk.floats(count), desk.ints(count)
    levels = policy if isinstance(policy, LeastAttained) else None
    order = _MOVING_KEYS[policy.key] if isinstance(policy, ByKey) else kernels.BY_LEVEL
    passes = desk.loops["run_preemptive"](
        order,
        int(levels is not None and levels.by_gpu),
        shell(np.array(levels.limits) if levels is not None else np.zeros(0)),
        shell(jobs.submit_s),
        shell(desk.gpus),
        shell(jobs.duration_s.copy()),
        shell(desk.estimate.copy()),
        shell(_costs(desk.overheads, desk.gpus)),
        shell(class_of.astype(np.int64)),
        shell(class_gpus),
        shell(_offsets(sizes)),
        desk.floats(count),
        desk.ints(count),
        desk.ints(len(class_gpus)),
        desk.floats(room),
        desk.ints(room),
        desk.floats(2 * count + 2, -1.0),
        desk.ints(1),
        *desk.nodes,
        desk.ints(len(class_gpus) + 1),
        desk.floats(desk.most_running + 1),
        desk.ints(desk.most_running + 1),
        desk.ints(desk.most_running + 1),
        desk.ints(desk.most_running + 1),
        desk.ints(len(desk.nodes[0]) + desk.nodes[4] + 1),
        desk.floats(count),
        attained,
        desk.ints(count),
        desk.floats(count),
        preemptions,
        desk.start,
        desk.end,
    )
    return passes, np.array(attained, dtype=np.float64), np.array(preemptions, dtype=np.int64)


def _costs(overheads: Overheads, gpus: Ints) -> Floats:
    by_size = {int(size): overheads.preemption_s(float(size)) for size in np.unique(gpus)}
    return np.array([by_size[int(size)] for size in gpus], dtype=np.float64)


def _offsets(sizes: Any) -> Ints:
    offsets = np.zeros(len(sizes), dtype=np.int64)
    np.cumsum(sizes[:-1], out=offsets[1:])
    return offsets
