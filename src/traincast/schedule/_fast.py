"""From a table of jobs to the hot loops and back: which runs they can take, and their working arrays."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traincast.schedule import _kernels as kernels
from traincast.schedule._estimators import Fixed
from traincast.schedule._hazards import Overheads
from traincast.schedule._jobs import Floats, Ints, JobTable, find_per_gpu
from traincast.schedule._kernels import ends, preempt, queue, reserve, shadow
from traincast.schedule._kernels import order as lines
from traincast.schedule._kernels.nodes import Nodes
from traincast.schedule._lines import Key
from traincast.schedule._occupations import Occupations
from traincast.schedule._placement import AnyGpus, Consolidated
from traincast.schedule._policies import (
    ByKey,
    ByScore,
    LeastAttained,
    Policy,
    by_deadline,
    by_estimate,
    by_expected_service,
    by_priority,
    by_remaining,
    by_remaining_service,
    by_submission,
)
from traincast.schedule._protocols import CLEAN, Conditions, RoundPolicy
from traincast.schedule._speeds import SameSpeed
from traincast.spec import Fleet, Schedule

_MOVING_KEYS: dict[Key, int] = {by_remaining: kernels.BY_REMAINING, by_remaining_service: kernels.BY_SERVICE}


def is_covered(policy: Any, *, jobs: JobTable, given: Conditions, beliefs: Fixed) -> bool:
    """Whether the hot loops know this policy under these conditions."""
    return _are_plain(jobs, given) and _is_known(policy, jobs=jobs, given=given, beliefs=beliefs)


def _are_plain(jobs: JobTable, given: Conditions) -> bool:
    """Conditions that the hot loops know: one pool of nodes that do not fail, jobs of whole GPUs at one speed."""
    placer, fleet = given.placer, given.fleet
    if given.failures is not None or given.network is not None or replace(given.compat, coalesce=True) != CLEAN:
        return False
    if not isinstance(given.perf, SameSpeed) or given.overheads.useful_share != 1.0 or given.kill_at_limit:
        return False
    by_nodes = isinstance(placer, Consolidated) and placer.rest == "tightest"
    if len(fleet.pools) != 1 or not (by_nodes or isinstance(placer, AnyGpus)):
        return False
    if len(jobs) and (jobs.num_gpus < 1).any():
        return False
    return not any(jobs.dependencies) and not find_per_gpu(jobs, fleet)


def _is_known(policy: Any, *, jobs: JobTable, given: Conditions, beliefs: Fixed) -> bool:
    if isinstance(policy, LeastAttained):
        return policy.lists == "clean" and given.compat == CLEAN
    if isinstance(policy, ByScore):
        return not policy.preemptive
    if not isinstance(policy, ByKey) or policy.ties != "submit":
        return False
    if policy.preemptive:
        known = policy.key in _MOVING_KEYS or policy.key in (by_deadline, by_priority)
        return known and policy.wakeup is None and given.compat == CLEAN
    if policy.fit == "conservative":
        by_count = isinstance(given.placer, AnyGpus) or given.fleet.pools[0].num_nodes <= 1
        # With estimates that are not met, promises must be kept, and only the general plan does that.
        return by_count and policy.key is by_submission and np.array_equal(beliefs.values_s, jobs.duration_s)
    return policy.key in _FIXED_KEYS


def loop_for(policy: Policy | RoundPolicy) -> str:
    """The loop that would run this policy, if any does."""
    return "run_preemptive" if not isinstance(policy, RoundPolicy) and policy.preemptive else "run_queue"


_FIXED_KEYS: dict[Key, Callable[[JobTable, Floats], Floats]] = {
    by_submission: lambda jobs, estimate: jobs.submit_s,
    by_estimate: lambda jobs, estimate: estimate,
    by_priority: lambda jobs, estimate: -jobs.priority,
    by_deadline: lambda jobs, estimate: np.where(np.isnan(jobs.deadline_s), np.inf, jobs.deadline_s),
    by_expected_service: lambda jobs, estimate: estimate * jobs.num_gpus,
}
"""Keys that do not change while a job waits, as columns."""


def _key_column(policy: Policy, jobs: JobTable, estimate: Floats) -> Floats:
    if isinstance(policy, ByScore):
        return policy.column(jobs, estimate)
    return _FIXED_KEYS[policy.key](jobs, estimate) if isinstance(policy, ByKey) else jobs.submit_s


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
    nodes: Nodes

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
    occupations: Occupations | tuple[()] = ()
    if policy.preemptive:
        passes, run_s, preempted, occupations = _run_preemptive(desk, policy, given)
        lost = preempted * _costs(overheads, gpus) * gpus
    else:
        passes, run_s, occupations = _run_queue(desk, policy, given)
    began = np.array(desk.start, dtype=np.float64)
    began[began < 0] = math.nan
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
            if jobs.submit_s[job] <= given.until_s
        },
        until_s=given.until_s if math.isfinite(given.until_s) else math.nan,
        pool_gpu_s=np.array([float((run_s * jobs.num_gpus).sum())]),
        occupations=occupations,
        num_passes=passes,
    )


def _lay_out(fleet: Fleet, count: int, shell: Callable[[Any], Any], *, by_count: bool) -> Nodes:
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
    return Nodes(
        free=shell(free),
        bits=shell(bits),
        words=words,
        hist=shell(state),
        width=width,
        held=shell(held),
        chain=shell(chain),
        last=shell(last),
    )


def _lay_classes(desk: _Desk, rank: Ints) -> queue.Classes:
    """Classes of the jobs that have a rank; none where the loop keeps no classes."""
    shell = desk.shell
    count = len(rank)
    class_gpus, class_of = np.unique(desk.gpus[:count], return_inverse=True)
    sizes = np.bincount(class_of, minlength=len(class_gpus))
    place_of = np.empty(count, dtype=np.int64)
    firsts = _offsets(sizes)
    job_at = np.lexsort((rank, class_of)).astype(np.int64)
    place_of[job_at] = np.arange(count) - firsts[class_of[job_at]]
    leaves = np.array([1 << max(int(size) - 1, 0).bit_length() for size in sizes], dtype=np.int64)
    return queue.Classes(
        of_job=shell(class_of.astype(np.int64)),
        place_of=shell(place_of),
        job_at=shell(job_at),
        rank=shell(rank),
        gpus=shell(class_gpus),
        base=shell(_offsets(2 * leaves)),
        leaves=shell(leaves),
        first=shell(firsts),
        tree=desk.floats(int(2 * leaves.sum()), math.inf),
        failed=desk.ints(len(class_gpus) + 1),
    )


def _lay_shadow(desk: _Desk) -> shadow.Shadow:
    nodes = desk.nodes
    return shadow.Shadow(
        spare=desk.ints(len(nodes.free)),
        hist=desk.ints(len(nodes.hist)),
        mask=nodes._replace(
            free=desk.ints(len(nodes.free)), bits=desk.ints(len(nodes.bits)), hist=desk.ints(len(nodes.hist))
        ),
        state=desk.ints(2),
        begin=desk.floats(1),
    )


def _run_queue(desk: _Desk, policy: Policy, given: Conditions) -> tuple[int, Floats, Occupations | tuple[()]]:
    """The loop of policies without preemption: passes, run times and, if wanted, who held what."""
    jobs, count, shell = desk.jobs, len(desk.jobs), desk.shell
    fit = {"head": queue.HEAD_ONLY, "skip": queue.SKIP, "easy": queue.EASY, "conservative": queue.CONSERVATIVE}[
        policy.fit
    ]
    keys = _key_column(policy, jobs, desk.estimate)
    by_key = keys is not jobs.submit_s
    rank = np.arange(count)
    if by_key:
        rank[np.lexsort((np.arange(count), jobs.submit_s, keys))] = np.arange(count)
    in_classes, planned = fit in (queue.SKIP, queue.EASY), fit == queue.CONSERVATIVE
    waiting = count if by_key and fit == queue.HEAD_ONLY else 1
    work = _lay_work(desk, waiting, record=given.record)
    passes: int = desk.loops["run_queue"](
        queue.Rules(
            fit=fit,
            by_key=int(by_key),
            one_by_one=int(not given.compat.coalesce),
            until_s=float(given.until_s),
            record=int(given.record),
        ),
        queue.Jobs(
            submit=shell(jobs.submit_s),
            gpus=shell(desk.gpus),
            duration=shell(jobs.duration_s),
            estimate=shell(desk.estimate),
            keys=shell(rank.astype(np.float64) if by_key else jobs.submit_s),
            start=desk.start,
            end=desk.end,
        ),
        desk.nodes,
        _lay_classes(desk, rank if in_classes else rank[:0]),
        # Believed ends are kept for backfill only.
        _lay_ends(desk, count + 1 if fit == queue.EASY else 1),
        _lay_shadow(desk),
        _lay_profile(desk, planned=planned),
        work,
    )
    start, end = np.asarray(desk.start, dtype=np.float64), np.asarray(desk.end, dtype=np.float64)
    run_s = np.where(start >= 0, np.where(np.isnan(end), given.until_s, end) - start, 0.0)
    return passes, run_s, _occupations(desk, work, start, run_s) if given.record else ()


def _lay_work(desk: _Desk, waiting: int, *, record: bool) -> queue.Desk:
    width = desk.nodes.width
    sizes = desk.gpus // width + 1 if record and width else np.zeros(len(desk.gpus), dtype=np.int64)
    return queue.Desk(
        end_keys=desk.floats(desk.most_running + 1),
        end_jobs=desk.ints(desk.most_running + 1),
        end_size=desk.ints(1),
        wait_keys=desk.floats(waiting),
        wait_jobs=desk.ints(waiting),
        wait_size=desk.ints(1),
        place_first=desk.shell(_offsets(sizes) if len(sizes) else sizes),
        place_nodes=desk.ints(int(sizes.sum()) + 1, -1),
        counts=desk.ints(5),
    )


def _lay_ends(desk: _Desk, entries: int) -> ends.Ends:
    return ends.Ends(
        at=desk.floats(entries),
        gpus=desk.shell(desk.gpus),
        lower=desk.ints(entries, -1),
        upper=desk.ints(entries, -1),
        total=desk.ints(entries),
        root=desk.ints(1, -1),
        path=desk.ints(desk.most_running + 1),
    )


def _lay_profile(desk: _Desk, *, planned: bool) -> reserve.Profile:
    most, count = desk.most_running + 1, len(desk.jobs)
    return reserve.Profile(
        waiting=desk.ints(count + 1 if planned else 1),
        run_ends=desk.floats(most if planned else 1),
        run_gpus=desk.ints(most if planned else 1),
        times=desk.floats(most + count + 1 if planned else 1),
        room=desk.ints(most + count + 1 if planned else 1),
    )


def _occupations(desk: _Desk, work: queue.Desk, start_s: Floats, run_s: Floats) -> Occupations:
    """Every job ran once, from its start on, on the nodes that were written down."""
    ran = np.flatnonzero((start_s >= 0) & (run_s > 0))
    ran = ran[np.argsort(start_s[ran] + run_s[ran], kind="stable")]
    gpus, width = desk.gpus[ran], desk.nodes.width
    if not width:
        return Occupations.of_single_nodes(
            jobs=ran, start_s=start_s[ran], end_s=start_s[ran] + run_s[ran], nodes=np.zeros(len(ran), dtype=np.int64),
            num_gpus=gpus.astype(np.float64),
        )  # fmt: skip
    full = np.where(gpus > width, gpus // width, 0)
    rest = gpus - full * width
    parts = full + (rest > 0)
    first = np.concatenate([[0], np.cumsum(parts)]).astype(np.int64)
    entry = np.repeat(np.arange(len(ran)), parts)
    at = np.arange(int(first[-1])) - first[entry]
    nodes = np.asarray(work.place_nodes, dtype=np.int64)[np.asarray(work.place_first, dtype=np.int64)[ran][entry] + at]
    return Occupations(
        jobs=ran,
        start_s=start_s[ran],
        end_s=start_s[ran] + run_s[ran],
        num_gpus=gpus.astype(np.float64),
        first=first,
        nodes=nodes,
        counts=np.where(at < full[entry], width, rest[entry]).astype(np.float64),
    )


_RUNS_AT_ONCE = 65536


def _run_preemptive(
    desk: _Desk, policy: Policy, given: Conditions
) -> tuple[int, Floats, Ints, Occupations | tuple[()]]:
    """The loop of preemptive policies: passes, run times, preemptions and, if wanted, who held what."""
    count, shell = len(desk.jobs), desk.shell
    levels = policy if isinstance(policy, LeastAttained) else None
    order = kernels.BY_LEVEL
    score = np.zeros(1)
    if isinstance(policy, ByKey):
        order = _MOVING_KEYS.get(policy.key, kernels.BY_SCORE)
    if order == kernels.BY_SCORE:
        keys = _key_column(policy, desk.jobs, desk.estimate)
        score = np.empty(count)
        score[np.lexsort((np.arange(count), desk.jobs.submit_s, keys))] = np.arange(count)
    line = lines.Line(
        order=order,
        by_gpu=int(levels is not None and levels.by_gpu),
        limits=shell(np.array(levels.limits) if levels is not None else np.zeros(0)),
        score=shell(score),
        until_s=float(given.until_s),
        counts=desk.ints(7),
    )
    jobs, events, log = _lay_jobs(desk), _lay_events(desk), _lay_log(desk, wanted=given.record)
    waiting, running = _lay_waiting(desk), _lay_running(desk)
    kept: list[tuple[Ints, Floats, Ints, Ints]] = []
    answer = preempt.FULL
    while answer == preempt.FULL:
        answer = desk.loops["run_preemptive"](line, jobs, waiting, running, events, desk.nodes, log)
        runs, used = line.counts[lines.LOGGED], line.counts[lines.LOGGED_NODES]
        firsts = np.append(np.array(log.first[:runs], dtype=np.int64), used)
        kept.append(
            (
                np.array(log.jobs[:runs], dtype=np.int64),
                np.array(log.spans[: 2 * runs], dtype=np.float64).reshape(-1, 2),
                np.diff(firsts),
                np.array(log.nodes[:used], dtype=np.int64),
            )
        )
        line.counts[lines.LOGGED] = line.counts[lines.LOGGED_NODES] = 0
    attained = np.array(jobs.attained, dtype=np.float64)
    places = _logged(desk, kept) if given.record else ()
    return int(line.counts[lines.PASSES]), attained, np.array(jobs.preemptions, dtype=np.int64), places


def _logged(desk: _Desk, kept: list[tuple[Ints, Floats, Ints, Ints]]) -> Occupations:
    """The runs of the log as columns; a place of -1 stands for no part of a node."""
    who, spans, parts, nodes = (np.concatenate(column) for column in zip(*kept, strict=True))
    gpus, width = desk.gpus[who], desk.nodes.width
    entry = np.repeat(np.arange(len(who)), parts)
    at = np.arange(len(nodes)) - (np.cumsum(parts) - parts)[entry]
    last = at == parts[entry] - 1
    rest = np.where(gpus > width, gpus % max(width, 1), gpus) if width else gpus
    counts = np.where(last, rest[entry], width).astype(np.float64)
    real = nodes >= 0
    sizes = np.bincount(entry[real], minlength=len(who))
    return Occupations(
        jobs=who,
        start_s=spans[:, 0],
        end_s=spans[:, 1],
        num_gpus=gpus.astype(np.float64),
        first=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        nodes=nodes[real],
        counts=counts[real],
    )


def _lay_jobs(desk: _Desk) -> lines.Jobs:
    jobs, count, shell = desk.jobs, len(desk.jobs), desk.shell
    return lines.Jobs(
        submit=shell(jobs.submit_s),
        gpus=shell(desk.gpus),
        left=shell(jobs.duration_s.copy()),
        guess=shell(desk.estimate.copy()),
        cost=shell(_costs(desk.overheads, desk.gpus)),
        start=desk.start,
        end=desk.end,
        since=desk.floats(count),
        attained=desk.floats(count),
        level=desk.ints(count),
        position=desk.floats(count),
        preemptions=desk.ints(count),
    )


def _lay_waiting(desk: _Desk) -> lines.Waiting:
    class_gpus, class_of = np.unique(desk.gpus, return_inverse=True)
    sizes = np.bincount(class_of, minlength=len(class_gpus))
    return lines.Waiting(
        of_job=desk.shell(class_of.astype(np.int64)),
        gpus=desk.shell(class_gpus),
        base=desk.shell(_offsets(sizes)),
        keys=desk.floats(len(desk.jobs)),
        jobs=desk.ints(len(desk.jobs)),
        size=desk.ints(len(class_gpus)),
        dead=desk.ints(len(class_gpus)),
    )


def _lay_running(desk: _Desk) -> lines.Running:
    most = desk.most_running + 1
    return lines.Running(
        keys=desk.floats(most),
        jobs=desk.ints(most),
        losers=desk.ints(most),
        chosen=desk.ints(most),
        gain=desk.ints(len(desk.nodes.free) + desk.nodes.width + 1),
    )


def _lay_events(desk: _Desk) -> preempt.Events:
    room = 4 * desk.most_running + 2 * len(desk.jobs) + 64
    return preempt.Events(
        keys=desk.floats(room),
        tokens=desk.ints(room),
        size=desk.ints(1),
        expect=desk.floats(2 * len(desk.jobs) + 2, -1.0),
    )


def _lay_log(desk: _Desk, *, wanted: bool) -> preempt.Log:
    runs = _RUNS_AT_ONCE + desk.most_running if wanted else 1
    return preempt.Log(
        wanted=int(wanted),
        jobs=desk.ints(runs),
        spans=desk.floats(2 * runs),
        first=desk.ints(runs),
        nodes=desk.ints(2 * runs + 2 * len(desk.nodes.free) if wanted else 1),
    )


def _costs(overheads: Overheads, gpus: Ints) -> Floats:
    by_size = {int(size): overheads.preemption_s(float(size)) for size in np.unique(gpus)}
    return np.array([by_size[int(size)] for size in gpus], dtype=np.float64)


def _offsets(sizes: Any) -> Ints:
    offsets = np.zeros(len(sizes), dtype=np.int64)
    np.cumsum(sizes[:-1], out=offsets[1:])
    return offsets
