"""Jobs and a policy to a schedule: one event-driven clock for every policy."""

import math
from collections.abc import Iterable
from typing import Unpack

import numpy as np

from traincast.errors import InvalidInput, MissingExtra, UnknownName
from traincast.schedule import _fast as fast
from traincast.schedule import _kernels as kernels
from traincast.schedule import _passes as passes
from traincast.schedule._floor import Floor, check_durations
from traincast.schedule._jobs import JobTable
from traincast.schedule._kernels import tables
from traincast.schedule._lines import Line, ServingLine
from traincast.schedule._policies import Policy
from traincast.schedule._protocols import Conditions, RoundPolicy, RunOptions
from traincast.schedule._records import join_logs
from traincast.schedule._rounds import SharePolicy
from traincast.schedule._turns import InTurns
from traincast.spec import Fleet, Request, Schedule


def simulate_cluster(
    jobs: JobTable | Iterable[Request],
    policy: Policy | RoundPolicy | SharePolicy,
    *,
    fleet: Fleet,
    **options: Unpack[RunOptions],
) -> Schedule:
    """Let the jobs compete for the fleet; same input, same answer, to the last bit. `Conditions` says what the options mean."""
    table = jobs if isinstance(jobs, JobTable) else JobTable.from_requests(jobs)
    given = Conditions(fleet=fleet, **{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]
    if given.engine not in ENGINES:
        raise UnknownName("engine", given.engine, ENGINES)
    check_durations(table)
    if isinstance(policy, SharePolicy):
        policy = InTurns(policy)
    beliefs = given.estimator.start(table)
    known = fast.is_covered(policy, jobs=table, given=given, beliefs=beliefs)
    if isinstance(policy, RoundPolicy) or given.engine == "called" or not known:
        if given.engine in ("compiled", "interpreted"):
            raise InvalidInput(
                f"the policy {policy.name!r} is called as an object here, it is no rule over columns; use the engine auto"
            )
        return _run_called(Floor(table, policy, given), given)
    loops = _pick_loops(len(table), given.engine)
    schedule = fast.run(
        table, policy, given=given, beliefs=beliefs, loops=loops or kernels.interpreted(), lists=loops is None
    )
    if given.progress is not None:
        given.progress(len(table))
    return schedule


ENGINES = ("auto", "called", "compiled", "interpreted")
_WORTH_COMPILING = 2000


def _pick_loops(num_jobs: int, engine: str) -> kernels.Loops | None:
    """The compiled loops, or None where they are not wanted, not there or not worth compiling."""
    if engine == "interpreted":
        return None
    if engine == "auto" and num_jobs < _WORTH_COMPILING and not kernels.is_ready("run_events"):
        return None
    loops = kernels.compiled()
    if loops is None and engine == "compiled":
        raise MissingExtra("numba", "schedule", "the compiled engine")
    kernels.compile_apart("run_events", "traincast.schedule._warm")
    return loops


def _run_called(floor: Floor, given: Conditions) -> Schedule:
    """The event loop, with a policy that is asked after every moment. What it decides is Python, so the loop is interpreted."""
    rules, state = floor.loop
    counts, clock, told = rules.counts, rules.clock, 0
    run_events, answer = kernels.interpreted()["run_events"], tables.FULL
    while answer != tables.DONE:
        answer = run_events(rules, *state, floor.danger.hazards)
        if answer == tables.ASK:
            now = clock[0]
            floor.hear(now)
            if floor.wake_s <= now:
                floor.wake_s = math.inf
            _pass(floor, now)
            clock[1] = min(floor.wake_s, floor.tick_s)
        elif answer == tables.MORE:
            floor.danger.draw()
        else:
            floor.keep_log()
        if given.progress is not None and (counts[tables.ENDED] - told >= 1000 or answer == tables.DONE):
            given.progress(counts[tables.ENDED] - told)
            told = counts[tables.ENDED]
    return _answer(floor, given)


def _answer(floor: Floor, given: Conditions) -> Schedule:
    jobs, columns = floor.jobs, floor.loop.state.jobs
    began = np.array(columns.start, dtype=np.float64)
    arrived = floor.loop.rules.counts[tables.CURSOR]
    beyond = frozenset(np.flatnonzero(columns.killed).tolist()) if given.kill_at_limit else frozenset()
    return jobs.scheduled(
        policy=floor.policy.name,
        fleet=given.fleet,
        start_s=np.where(began < 0, math.nan, began),
        end_s=np.array(columns.end, dtype=np.float64),
        preemptions=np.array(floor.preemptions, dtype=np.int64),
        failures=floor.danger.failed,
        run_s=np.array(columns.attained, dtype=np.float64),
        gpu_s=np.array(columns.gpu_s, dtype=np.float64),
        lost_gpu_s=np.array(floor.lost_gpu_s, dtype=np.float64) + floor.danger.lost,
        rejected={job: why for job, why in floor.refused.items() if job < arrived} | fast.find_given_up(floor.danger),
        killed=beyond | floor.killed,
        until_s=given.until_s if math.isfinite(given.until_s) else math.nan,
        pool_gpu_s=np.array(columns.pool_s, dtype=np.float64),
        occupations=join_logs(floor.kept) if given.record else (),
        num_passes=floor.loop.rules.counts[tables.PASSES],
    )


def _pass(floor: Floor, now: float) -> None:
    if floor.rounds is not None:
        _divide(floor, floor.rounds, now)
        return
    policy, line = floor.queueing, floor.line
    if policy is None or line is None:
        return
    before = floor.changes
    _serve(floor, policy, line, now)
    if floor.packing is not None and floor.waiting:
        passes.pack(floor, line, floor.packing, now)
    floor.wake_s = line.wakeup_s(now)
    if floor.plan is not None:
        floor.wake_s = min(floor.wake_s, floor.plan.wakeup_s(now))
    if floor.wake_s <= now:
        floor.wake_s = math.nextafter(now, math.inf)
    if floor.compat.recheck_s is not None and (before != floor.changes or _arrived_now(floor, now)):
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
    cursor = floor.loop.rules.counts[tables.CURSOR]
    return bool(cursor > 0 and floor.submit_s[cursor - 1] == now)
