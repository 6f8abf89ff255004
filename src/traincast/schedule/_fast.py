"""From a table of jobs to the hot loops and back: which runs they can take, and their working arrays."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincast.schedule import _kernels as kernels
from traincast.schedule._estimators import Fixed
from traincast.schedule._floor import GIVEN_UP
from traincast.schedule._hazards import Overheads, WeibullFailures
from traincast.schedule._jobs import Floats, Ints, JobTable, find_per_gpu
from traincast.schedule._kernels import ends, hazards, preempt, queue, reserve, shadow
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
    """Conditions that the hot loops know: one pool of nodes, jobs of whole GPUs at one speed."""
    placer, fleet = given.placer, given.fleet
    if given.network is not None or replace(given.compat, coalesce=True) != CLEAN:
        return False
    if not isinstance(given.perf, SameSpeed) or given.overheads.useful_share != 1.0:
        return False
    by_nodes = isinstance(placer, Consolidated) and placer.rest == "tightest"
    if given.failures is not None and not (by_nodes and _knows_failures(given)):
        return False
    if len(fleet.pools) != 1 or not (by_nodes or isinstance(placer, AnyGpus)):
        return False
    if len(jobs) and (jobs.num_gpus < 1).any():
        return False
    return not any(jobs.dependencies) and not find_per_gpu(jobs, fleet)


def _knows_failures(given: Conditions) -> bool:
    """Failures of single nodes whose times can be drawn as a table."""
    whole = given.fleet.pools[0].num_nodes > 1 and given.compat == CLEAN
    return whole and isinstance(given.failures, WeibullFailures) and not given.failures.rack_share


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
        exact = np.array_equal(beliefs.values_s, jobs.duration_s) and not given.kill_at_limit
        return by_count and given.failures is None and policy.key is by_submission and exact
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
    limit: Any
    killed: Any
    attained: Any
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
    fleet, overheads, count = given.fleet, given.overheads, len(jobs)
    gpus = jobs.num_gpus.astype(np.int64)
    too_big = gpus > fleet.pools[0].num_gpus
    shell: Callable[[Any], Any] = (lambda array: array.tolist()) if lists else (lambda array: array)
    by_count = isinstance(given.placer, AnyGpus) or fleet.pools[0].num_nodes == 1
    unlimited = np.full(count, math.inf)
    desk = _Desk(
        jobs=jobs,
        gpus=gpus,
        estimate=beliefs.values_s,
        total=fleet.pools[0].num_gpus,
        overheads=overheads,
        loops=loops,
        shell=shell,
        start=shell(np.where(too_big, -3.0, -1.0)),
        end=shell(np.full(count, np.nan)),
        limit=shell(np.nan_to_num(jobs.limit_s, nan=math.inf) if given.kill_at_limit else unlimited),
        killed=shell(np.zeros(count, dtype=np.int64)),
        attained=shell(np.zeros(count)),
        nodes=_lay_out(fleet, count, shell, by_count=by_count),
    )
    return _run_on(desk, policy, given, too_big)


def _run_on(desk: _Desk, policy: Policy, given: Conditions, too_big: NDArray[np.bool_]) -> Schedule:
    jobs, gpus, count = desk.jobs, desk.gpus, len(desk.jobs)
    danger = _Danger(desk, given)
    preempted = np.zeros(count, dtype=np.int64)
    occupations: Occupations | tuple[()] = ()
    if policy.preemptive:
        passes, preempted, occupations = _run_preemptive(desk, policy, given, danger)
    else:
        passes, occupations = _run_queue(desk, policy, given, danger)
    run_s = np.array(desk.attained, dtype=np.float64)
    began = np.array(desk.start, dtype=np.float64)
    return jobs.scheduled(
        policy=policy.name,
        fleet=given.fleet,
        start_s=np.where(began < 0, math.nan, began),
        end_s=np.array(desk.end, dtype=np.float64),
        preemptions=preempted,
        failures=danger.failed,
        run_s=run_s,
        gpu_s=run_s * jobs.num_gpus,
        lost_gpu_s=preempted * _costs(desk.overheads, gpus) * gpus + danger.lost,
        rejected=_find_rejected(desk, too_big & (jobs.submit_s <= given.until_s), danger),
        killed=frozenset(np.flatnonzero(desk.killed).tolist()) if given.kill_at_limit else frozenset(),
        until_s=given.until_s if math.isfinite(given.until_s) else math.nan,
        pool_gpu_s=np.array([float((run_s * jobs.num_gpus).sum())]),
        occupations=occupations,
        num_passes=passes,
    )


def _find_rejected(desk: _Desk, too_big: NDArray[np.bool_], danger: "_Danger") -> dict[int, str]:
    given_up = np.flatnonzero(danger.failed >= hazards.MOST_FAILURES).tolist()
    said = {
        job: f"needs {desk.gpus[job]} GPUs of type {desk.jobs.gpu_types[job] or 'any'}, "
        "which no pool of this fleet can ever give"
        for job in np.flatnonzero(too_big).tolist()
    }
    return said | dict.fromkeys(given_up, GIVEN_UP)


class _Danger:
    """Failures as the loops see them; more times are drawn when a loop has used up those of a node."""

    def __init__(self, desk: _Desk, given: Conditions) -> None:
        self._failures = given.failures if isinstance(given.failures, WeibullFailures) else None
        num_nodes = len(desk.nodes.free) if self._failures is not None else 1
        count = len(desk.jobs) if self._failures is not None else 1
        self._shell, self._num_jobs = desk.shell, len(desk.jobs)
        self.hazards = hazards.Hazards(
            wanted=int(self._failures is not None),
            up=desk.floats(1),
            repair=desk.floats(1),
            depth=0,
            counts=desk.ints(num_nodes),
            keys=desk.floats(num_nodes + 1),
            tokens=desk.ints(num_nodes + 1),
            size=desk.ints(1),
            every_s=float(given.overheads.checkpoint_every_s or 0.0),
            restart_s=float(given.overheads.restart_s),
            since_checkpoint=desk.floats(count),
            failed=desk.ints(count),
            lost=desk.floats(count),
            struck=desk.ints(desk.most_running + 1),
        )
        if self._failures is not None:
            horizon_s = float(desk.jobs.submit_s[-1]) if len(desk.jobs) else 0.0
            self.draw(4 + int(1.5 * min(horizon_s / self._failures.mean_up_s, 1000.0)))
            first = np.array(self.hazards.up[:: self.hazards.depth])
            order = np.argsort(first, kind="stable")
            self.hazards = self.hazards._replace(
                keys=desk.shell(np.append(first[order], 0.0)), tokens=desk.shell(np.append(order, 0)),
                size=desk.shell(np.array([num_nodes])),
            )  # fmt: skip

    def draw(self, depth: int | None = None) -> None:
        if self._failures is None:
            return
        depth = depth or 2 * self.hazards.depth
        up, repair = self._failures.draw_table(len(self.hazards.counts), depth)
        self.hazards = self.hazards._replace(up=self._shell(up), repair=self._shell(repair), depth=depth)

    @property
    def failed(self) -> Ints:
        """Of each job; without a model of failures the loops count none."""
        if self._failures is None:
            return np.zeros(self._num_jobs, dtype=np.int64)
        return np.array(self.hazards.failed, dtype=np.int64)

    @property
    def lost(self) -> Floats:
        if self._failures is None:
            return np.zeros(self._num_jobs)
        return np.array(self.hazards.lost, dtype=np.float64)


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


def _run_queue(desk: _Desk, policy: Policy, given: Conditions, danger: _Danger) -> tuple[int, Occupations | tuple[()]]:
    """The loop of policies without preemption: passes and, if wanted, who held what."""
    jobs, count = desk.jobs, len(desk.jobs)
    fit = {"head": queue.HEAD_ONLY, "skip": queue.SKIP, "easy": queue.EASY, "conservative": queue.CONSERVATIVE}[
        policy.fit
    ]
    keys = _key_column(policy, jobs, desk.estimate)
    # A job that failed goes back to its place, so the line is not the table itself where nodes fail.
    by_key = keys is not jobs.submit_s or danger.hazards.wanted == 1
    rank = np.arange(count)
    if by_key:
        rank[np.lexsort((np.arange(count), jobs.submit_s, keys))] = np.arange(count)
    in_classes, planned = fit in (queue.SKIP, queue.EASY), fit == queue.CONSERVATIVE
    waiting = count if by_key and fit == queue.HEAD_ONLY else 1
    work = _lay_work(desk, waiting, record=given.record, fails=danger.hazards.wanted == 1)
    rules = queue.Rules(
        fit=fit,
        by_key=int(by_key),
        one_by_one=int(not given.compat.coalesce),
        until_s=float(given.until_s),
        record=int(given.record),
    )
    columns = _lay_queue_jobs(desk, rank.astype(np.float64) if by_key else jobs.submit_s)
    classes = _lay_classes(desk, rank if in_classes else rank[:0])
    # Believed ends are kept for backfill only.
    believed = _lay_ends(desk, count + 1 if fit == queue.EASY else 1)
    aside, profile = _lay_shadow(desk), _lay_profile(desk, planned=planned)
    kept: list[_Runs] = []
    answer = queue.MORE
    while answer == queue.MORE:
        answer = desk.loops["run_queue"](
            rules, columns, desk.nodes, classes, believed, aside, profile, work, danger.hazards
        )
        kept.append(_empty_log(work.log_jobs, work.log_spans, work.log_first, work.log_nodes, work.counts, queue))
        if answer == queue.MORE and hazards.needs_draws(danger.hazards):
            danger.draw()
    places = _occupations(desk, columns, work, given, kept) if given.record else ()
    return int(work.counts[queue.PASSES]), places


def _lay_queue_jobs(desk: _Desk, keys: Floats) -> queue.Jobs:
    jobs, shell = desk.jobs, desk.shell
    return queue.Jobs(
        submit=shell(jobs.submit_s),
        gpus=shell(desk.gpus),
        left=shell(jobs.duration_s.copy()),
        estimate=shell(desk.estimate.copy()),
        limit=desk.limit,
        keys=shell(keys),
        start=desk.start,
        end=desk.end,
        since=desk.floats(len(jobs)),
        attained=desk.attained,
        killed=desk.killed,
    )


def _lay_work(desk: _Desk, waiting: int, *, record: bool, fails: bool) -> queue.Desk:
    width = desk.nodes.width
    sizes = desk.gpus // width + 1 if record and width else np.zeros(len(desk.gpus), dtype=np.int64)
    runs = _RUNS_AT_ONCE if record and fails else 1
    # One node may take down as many jobs as it has GPUs, each of them with all other nodes.
    parts = 2 * runs + (width + 1) * (len(desk.nodes.free) + 1) if record and fails else 1
    return queue.Desk(
        end_keys=desk.floats(desk.most_running + 1),
        end_jobs=desk.ints(desk.most_running + 1),
        end_size=desk.ints(1),
        wait_keys=desk.floats(waiting),
        wait_jobs=desk.ints(waiting),
        wait_size=desk.ints(1),
        place_first=desk.shell(_offsets(sizes) if len(sizes) else sizes),
        place_nodes=desk.ints(int(sizes.sum()) + 1, -1),
        counts=desk.ints(8),
        log_jobs=desk.ints(runs),
        log_spans=desk.floats(2 * runs),
        log_first=desk.ints(runs),
        log_nodes=desk.ints(parts),
    )


_Runs = tuple[Ints, Floats, Ints, Ints]
"""Runs from start to stop: jobs, (start, end), number of places and nodes, -1 for no part of a node."""


def _empty_log(jobs: Any, spans: Any, first: Any, nodes: Any, counts: Any, places: Any) -> _Runs:
    """What the log holds; it is empty then."""
    runs, used = counts[places.LOGGED], counts[places.LOGGED_NODES]
    firsts = np.append(np.array(first[:runs], dtype=np.int64), used)
    found = (
        np.array(jobs[:runs], dtype=np.int64),
        np.array(spans[: 2 * runs], dtype=np.float64).reshape(-1, 2),
        np.diff(firsts),
        np.array(nodes[:used], dtype=np.int64),
    )
    counts[places.LOGGED] = counts[places.LOGGED_NODES] = 0
    return found


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


def _occupations(
    desk: _Desk, columns: queue.Jobs, work: queue.Desk, given: Conditions, kept: list[_Runs]
) -> Occupations:
    """Interrupted runs as they were logged, and the last run of every job on the nodes that were written down."""
    since, end = np.asarray(columns.since, dtype=np.float64), np.asarray(desk.end, dtype=np.float64)
    stop = np.where(np.isnan(end), given.until_s, end)
    began = np.asarray(desk.start, dtype=np.float64) >= 0
    # A job that failed and waits has no moment since which it runs.
    ran = np.flatnonzero(began & (since >= 0) & (stop > since) & np.isfinite(stop))
    ran = ran[np.argsort(stop[ran], kind="stable")]
    gpus, width = desk.gpus[ran], desk.nodes.width
    if not width:
        return Occupations.of_single_nodes(
            jobs=ran, start_s=since[ran], end_s=stop[ran], nodes=np.zeros(len(ran), dtype=np.int64),
            num_gpus=gpus.astype(np.float64),
        )  # fmt: skip
    places = np.where(gpus > width, gpus // width, 0) + 1
    first = np.asarray(work.place_first, dtype=np.int64)[ran]
    at = np.arange(int(places.sum())) - np.repeat(np.cumsum(places) - places, places)
    nodes = np.asarray(work.place_nodes, dtype=np.int64)[np.repeat(first, places) + at]
    last = (ran, np.stack([since[ran], stop[ran]], axis=1), places, nodes)
    return _logged(desk, [*kept, last])


_RUNS_AT_ONCE = 65536


def _run_preemptive(
    desk: _Desk, policy: Policy, given: Conditions, danger: _Danger
) -> tuple[int, Ints, Occupations | tuple[()]]:
    """The loop of preemptive policies: passes, preemptions and, if wanted, who held what."""
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
    kept: list[_Runs] = []
    answer = preempt.FULL
    while answer != preempt.DONE:
        answer = desk.loops["run_preemptive"](line, jobs, waiting, running, events, desk.nodes, log, danger.hazards)
        if answer == preempt.MORE:
            danger.draw()
        kept.append(_empty_log(log.jobs, log.spans, log.first, log.nodes, line.counts, lines))
    places = _logged(desk, kept) if given.record else ()
    return int(line.counts[lines.PASSES]), np.array(jobs.preemptions, dtype=np.int64), places


def _logged(desk: _Desk, kept: list[_Runs]) -> Occupations:
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
        limit=desk.limit,
        killed=desk.killed,
        cost=shell(_costs(desk.overheads, desk.gpus)),
        start=desk.start,
        end=desk.end,
        since=desk.floats(count),
        attained=desk.attained,
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
    if not callable(overheads.preempt_s):
        return np.full(len(gpus), float(overheads.preempt_s))
    sizes, which = np.unique(gpus, return_inverse=True)
    costs: Floats = np.array([overheads.preemption_s(float(size)) for size in sizes], dtype=np.float64)[which]
    return costs


def _offsets(sizes: Any) -> Ints:
    offsets = np.zeros(len(sizes), dtype=np.int64)
    np.cumsum(sizes[:-1], out=offsets[1:])
    return offsets
