"""Which runs the event loop of the kernels takes, and what became of the jobs there."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from traincast.schedule import _kernels as kernels
from traincast.schedule._danger import Danger
from traincast.schedule._estimators import Beliefs, Fixed, History
from traincast.schedule._jobs import Floats, JobTable
from traincast.schedule._kernels import hazards, tables
from traincast.schedule._layout import Desk
from traincast.schedule._lines import Key
from traincast.schedule._placement import PLACERS, AnyGpus
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
from traincast.schedule._protocols import CLEAN, Conditions
from traincast.schedule._records import Runs, empty_log, join_logs
from traincast.schedule._speeds import SameSpeed, is_by_kind
from traincast.spec import Schedule

_MOVING_KEYS: dict[Key, int] = {by_remaining: tables.BY_REMAINING, by_remaining_service: tables.BY_SERVICE}
_LEARNED_KEYS: dict[Key, int] = {by_estimate: tables.ESTIMATE_KEY, by_expected_service: tables.SERVICE_KEY}
_FIXED_KEYS: dict[Key, Callable[[JobTable, Floats], Floats]] = {
    by_submission: lambda jobs, estimate: jobs.submit_s,
    by_estimate: lambda jobs, estimate: estimate,
    by_priority: lambda jobs, estimate: -jobs.priority,
    by_deadline: lambda jobs, estimate: np.where(np.isnan(jobs.deadline_s), np.inf, jobs.deadline_s),
    by_expected_service: lambda jobs, estimate: estimate * jobs.num_gpus,
}
"""Keys that do not change while a job waits, as columns."""
_FITS = {"head": tables.HEAD_ONLY, "skip": tables.SKIP, "easy": tables.EASY, "conservative": tables.CONSERVATIVE}


def is_covered(policy: Any, *, jobs: JobTable, given: Conditions, beliefs: Beliefs) -> bool:
    """Whether the event loop of the kernels knows this policy under these conditions."""
    return _are_known(jobs, given, policy) and _is_known(policy, jobs=jobs, given=given, beliefs=beliefs)


def _are_known(jobs: JobTable, given: Conditions, policy: Any) -> bool:
    """Jobs of whole GPUs, by one of our rules of placement, on nodes whose speed depends on no neighbours but by shared links."""
    if replace(given.compat, coalesce=True) != CLEAN or (given.network is not None and not _knows_links(given)):
        return False
    if given.placer not in PLACERS.values() or not is_by_kind(given.perf):
        return False
    if given.compat != CLEAN and getattr(policy, "preemptive", False):
        return False
    if given.failures is not None and not _knows_failures(given):
        return False
    if isinstance(given.placer, AnyGpus) and _counts_beside(given):
        return False
    return not len(jobs) or bool(((jobs.num_gpus >= 1) & (jobs.num_gpus == np.floor(jobs.num_gpus))).all())


def _counts_beside(given: Conditions) -> bool:
    return any(pool.cpus_per_node is not None or pool.memory_bytes_per_node is not None for pool in given.fleet.pools)


def _knows_failures(given: Conditions) -> bool:
    """Nodes that fail must be nodes: where GPUs are only counted, none of them has a place."""
    if isinstance(given.placer, AnyGpus) or given.compat != CLEAN:
        return False
    return any(pool.num_nodes > 1 for pool in given.fleet.pools)


def _knows_links(given: Conditions) -> bool:
    """Links join nodes in racks; where there are none, the called policy says what is missing."""
    fleet = given.fleet
    several = any(pool.num_nodes > 1 for pool in fleet.pools) and not isinstance(given.placer, AnyGpus)
    return several and fleet.rack_uplink_bytes_per_s is not None and fleet.nodes_per_rack is not None


def _is_known(policy: Any, *, jobs: JobTable, given: Conditions, beliefs: Beliefs) -> bool:
    fixed = isinstance(beliefs, Fixed)
    if not fixed and not isinstance(beliefs, History):
        return False
    if isinstance(policy, LeastAttained):
        return policy.lists == "clean"
    if isinstance(policy, ByScore):
        return fixed and policy.fit != "conservative"
    if not isinstance(policy, ByKey) or policy.ties != "submit":
        return False
    if policy.preemptive:
        known = policy.key in _MOVING_KEYS or policy.key in (by_deadline, by_priority)
        return known and policy.wakeup is None
    if policy.fit == "conservative":
        return policy.key is by_submission and _is_counted_exactly(jobs, given, beliefs)
    # Where jobs are kept by kind, their places in line are known before the run.
    return policy.key in _FIXED_KEYS and (fixed or policy.fit == "head" or policy.key not in _LEARNED_KEYS)


def _is_counted_exactly(jobs: JobTable, given: Conditions, beliefs: Beliefs) -> bool:
    """With estimates that are not met, promises must be kept, and only the plan over nodes does that."""
    pools = given.fleet.pools
    by_count = len(pools) == 1 and (isinstance(given.placer, AnyGpus) or pools[0].num_nodes <= 1)
    plain = isinstance(given.perf, SameSpeed) and given.overheads.useful_share == 1.0 and not any(jobs.dependencies)
    exact = isinstance(beliefs, Fixed) and np.array_equal(beliefs.values_s, jobs.duration_s)
    return (
        by_count
        and plain
        and exact
        and given.failures is None
        and not given.kill_at_limit
        and not _counts_beside(given)
    )


def run(
    jobs: JobTable, policy: Policy, *, given: Conditions, beliefs: Beliefs, loops: kernels.Loops, lists: bool
) -> Schedule:
    """The schedule by the event loop; `lists` hands it lists, which an interpreted loop reads faster than arrays."""
    desk = Desk(jobs, given, beliefs, lists=lists)
    rules, keys = _lay_rules(policy, desk, given, beliefs)
    danger = Danger(given.failures, jobs, desk.node_map, overheads=given.overheads, shell=desk.shell)
    state = desk.lay_out(rules, keys, fails=danger.hazards.wanted == 1)
    kept: list[Runs] = []
    answer = tables.FULL
    while answer != tables.DONE:
        answer = loops["run_events"](rules, *state, danger.hazards)
        kept.append(empty_log(state.log, rules.counts))
        if answer == tables.MORE:
            danger.draw()
    return _answer(desk, state, policy, given, danger, kept, int(rules.counts[tables.PASSES]))


def _lay_rules(policy: Policy, desk: Desk, given: Conditions, beliefs: Beliefs) -> tuple[tables.Rules, Floats | None]:
    """The rules of the run, and a number for every job where the line goes by one that is known before."""
    jobs = desk.jobs
    levels = policy if isinstance(policy, LeastAttained) else None
    key = policy.key if isinstance(policy, ByKey) else by_submission
    learned = isinstance(beliefs, History)
    order = tables.BY_LEVEL if levels is not None else _MOVING_KEYS.get(key, tables.BY_SCORE)
    steady = desk.kinds.same_speed and given.network is None
    moving = order == tables.BY_SERVICE or (order == tables.BY_REMAINING and not steady)
    column: Floats | None = None
    if isinstance(policy, ByScore):
        column = policy.column(jobs, desk.estimate)
    elif key in _FIXED_KEYS and not (learned and key in _LEARNED_KEYS):
        column = _FIXED_KEYS[key](jobs, desk.estimate)
    # A job that failed or waited for others goes to its place, so the line is not the table itself then.
    by_key = column is not jobs.submit_s or given.failures is not None or desk.has_parents
    rules = tables.Rules(
        fit=tables.PREEMPT if policy.preemptive else _FITS[policy.fit],
        by_key=int(by_key),
        key=_LEARNED_KEYS.get(key, tables.GIVEN_KEY) if learned else tables.GIVEN_KEY,
        order=order,
        moving=int(moving),
        by_gpu=int(levels is not None and levels.by_gpu),
        limits=desk.shell(np.array(levels.limits if levels is not None else (), dtype=np.float64)),
        one_by_one=int(not given.compat.coalesce),
        until_s=float(given.until_s),
        counts=desk.ints(8),
        clock=desk.floats(2, tables.BIG),
    )
    return rules, column


def _answer(
    desk: Desk, state: Any, policy: Policy, given: Conditions, danger: Danger, kept: list[Runs], passes: int
) -> Schedule:
    jobs, columns = desk.jobs, state.jobs
    run_s = np.array(columns.attained, dtype=np.float64)
    began = np.array(columns.start, dtype=np.float64)
    preempted = np.array(columns.preemptions, dtype=np.int64)
    if not len(preempted):
        preempted = np.zeros(len(jobs), dtype=np.int64)
    return jobs.scheduled(
        policy=policy.name,
        fleet=given.fleet,
        start_s=np.where(began < 0, math.nan, began),
        end_s=np.array(columns.end, dtype=np.float64),
        preemptions=preempted,
        failures=danger.failed,
        run_s=run_s,
        gpu_s=run_s * jobs.num_gpus,
        lost_gpu_s=preempted * desk.costs * jobs.num_gpus + danger.lost,
        rejected=_find_rejected(desk, given, danger),
        killed=frozenset(np.flatnonzero(columns.killed).tolist()) if given.kill_at_limit else frozenset(),
        until_s=given.until_s if math.isfinite(given.until_s) else math.nan,
        pool_gpu_s=np.array(columns.pool_s, dtype=np.float64),
        occupations=join_logs(kept) if given.record else (),
        num_passes=passes,
    )


def _find_rejected(desk: Desk, given: Conditions, danger: Danger) -> dict[int, str]:
    jobs = desk.jobs
    beside, kinds = (desk.kinds.cpus > 0) | (desk.kinds.memory > 0), desk.kinds.of_job
    said = {
        job: f"needs {jobs.num_gpus[job]:g} GPUs of type {jobs.gpu_types[job] or 'any'}"
        f"{' with their CPUs and memory' if beside[kinds[job]] else ''}, which no pool of this fleet can ever give"
        for job in np.flatnonzero(desk.impossible & (jobs.submit_s <= given.until_s)).tolist()
    }
    return said | find_given_up(danger)


GIVEN_UP = f"failed {hazards.MOST_FAILURES} times before its end; checkpoints more often would save it"


def find_given_up(danger: Danger) -> dict[int, str]:
    return dict.fromkeys(np.flatnonzero(danger.failed >= hazards.MOST_FAILURES).tolist(), GIVEN_UP)
