"""Jobs and a policy to a schedule: one event-driven clock for queueing, preemptive and elastic policies."""

import heapq
import math
from collections.abc import Callable, Iterable
from typing import Unpack

from traincast.errors import InvalidInput, MissingExtra, UnknownName
from traincast.schedule import _fast as fast
from traincast.schedule import _kernels as kernels
from traincast.schedule import _passes as passes
from traincast.schedule._floor import FAIL, FINISH, Floor, check_durations
from traincast.schedule._jobs import JobTable
from traincast.schedule._lines import Line, ServingLine
from traincast.schedule._policies import Policy
from traincast.schedule._protocols import Conditions, RoundPolicy, RunOptions
from traincast.spec import Fleet, Request, Schedule


def simulate_cluster(
    jobs: JobTable | Iterable[Request], policy: Policy | RoundPolicy, *, fleet: Fleet, **options: Unpack[RunOptions]
) -> Schedule:
    """Let the jobs compete for the fleet; same input, same answer, to the last bit. `Conditions` says what the options mean."""
    table = jobs if isinstance(jobs, JobTable) else JobTable.from_requests(jobs)
    given = Conditions(fleet=fleet, **{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]
    if given.engine not in ENGINES:
        raise UnknownName("engine", given.engine, ENGINES)
    if given.engine != "general":
        schedule = _by_loops(table, policy, given)
        if schedule is not None:
            if given.progress is not None:
                given.progress(len(table))
            return schedule
        if given.engine != "auto":
            raise InvalidInput(f"the {given.engine} loops do not cover this run; use the engine general or auto")
    floor = Floor(table, policy, given)
    _run(floor, given.until_s, given.progress)
    return floor.schedule()


ENGINES = ("auto", "general", "compiled", "interpreted")
_WORTH_COMPILING = 2000


def _by_loops(jobs: JobTable, policy: Policy | RoundPolicy, given: Conditions) -> Schedule | None:
    """The run by the hot loops, or None where they do not cover it or are not worth compiling."""
    if given.engine == "auto" and len(jobs) < _WORTH_COMPILING and not kernels.is_ready("run_events"):
        return None
    check_durations(jobs)
    beliefs = given.estimator.start(jobs)
    if isinstance(policy, RoundPolicy):
        return None
    if not fast.is_covered(policy, jobs=jobs, given=given, beliefs=beliefs):
        return None
    loops = None if given.engine == "interpreted" else kernels.compiled()
    if loops is None and given.engine == "compiled":
        raise MissingExtra("numba", "schedule", "the compiled engine")
    return fast.run(
        jobs, policy, given=given, beliefs=beliefs, loops=loops or kernels.interpreted(), lists=loops is None
    )


def _run(floor: Floor, until_s: float, progress: Callable[[int], None] | None) -> None:
    count = len(floor.jobs)
    reported = 0
    while floor.done < count:
        now = _next_moment(floor)
        if now > until_s or now == math.inf:
            break
        timed = min(floor.wake_s, floor.tick_s) <= now
        changed = _take_events(floor, now)
        if floor.compat.coalesce or not changed:
            changed |= _take_arrivals(floor, now)
        if floor.wake_s <= now:
            floor.wake_s = math.inf
        if changed or timed:
            _pass(floor, now)
        if progress is not None and floor.done - reported >= 1000:
            progress(floor.done - reported)
            reported = floor.done
    if math.isfinite(until_s):
        for job in list(floor.running):
            floor.settle(job, until_s)
            floor.close(job, until_s)
    if progress is not None and floor.done > reported:
        progress(floor.done - reported)


def _next_moment(floor: Floor) -> float:
    """When something happens next, after ends that no longer hold are forgotten."""
    heap = floor.heap
    while heap and heap[0][1] == FINISH and heap[0][4] != floor.version[heap[0][3]]:
        heapq.heappop(heap)
    now = heap[0][0] if heap else math.inf
    if floor.cursor < len(floor.submit_s) and floor.submit_s[floor.cursor] < now:
        now = floor.submit_s[floor.cursor]
    return min(now, floor.wake_s, floor.tick_s)


def _take_events(floor: Floor, now: float) -> bool:
    """Ends, failures and repairs of this moment, or one of them where events are not taken together."""
    heap, changed = floor.heap, False
    while heap and heap[0][0] == now:
        _, kind, _, subject, version = heapq.heappop(heap)
        if kind == FINISH:
            if version != floor.version[subject]:
                continue
            floor.finish(subject, now)
        elif kind == FAIL:
            floor.fail(subject, version, now)
        else:
            floor.repair(subject, version, now)
        changed = True
        if not floor.compat.coalesce:
            break
    return changed


def _take_arrivals(floor: Floor, now: float) -> bool:
    changed = False
    while floor.cursor < len(floor.submit_s) and floor.submit_s[floor.cursor] == now:
        floor.arrive(floor.cursor, now)
        floor.cursor += 1
        changed = True
        if not floor.compat.coalesce:
            break
    return changed


def _pass(floor: Floor, now: float) -> None:
    floor.passes += 1
    if floor.rounds is not None:
        _divide(floor, floor.rounds, now)
        return
    policy, line = floor.queueing, floor.line
    if policy is None or line is None:
        return
    before = len(floor.running), floor.seq
    _serve(floor, policy, line, now)
    if floor.packing is not None and floor.waiting:
        passes.pack(floor, line, floor.packing, now)
    floor.wake_s = line.wakeup_s(now)
    if floor.plan is not None:
        floor.wake_s = min(floor.wake_s, floor.plan.wakeup_s(now))
    if floor.wake_s <= now:
        floor.wake_s = math.nextafter(now, math.inf)
    if floor.compat.recheck_s is not None and (before != (len(floor.running), floor.seq) or _arrived_now(floor, now)):
        floor.wake_s = min(floor.wake_s, now + floor.compat.recheck_s)


def _divide(floor: Floor, rounds: RoundPolicy, now: float) -> None:
    due = rounds.on_events or now >= floor.tick_s or floor.tick_s == math.inf
    if due and (rounds.uses_progress or floor.membership != floor.allocated_for):
        passes.reallocate(floor, rounds, now)
        floor.allocated_for = floor.membership
    if floor.tick_s <= now or floor.tick_s == math.inf:
        floor.tick_s = now + rounds.interval_s


def _serve(floor: Floor, policy: Policy, line: Line, now: float) -> None:
    if isinstance(line, ServingLine):
        line.serve(now)
    elif policy.preemptive:
        passes.preemptive_pass(floor, line, now)
    elif policy.fit == "easy":
        passes.easy_pass(floor, line, now)
    elif policy.fit == "conservative":
        passes.conservative_pass(floor, line, now)
    else:
        passes.plain_pass(floor, line, now, skip=policy.fit == "skip")


def _arrived_now(floor: Floor, now: float) -> bool:
    return floor.cursor > 0 and floor.submit_s[floor.cursor - 1] == now
