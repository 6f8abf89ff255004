"""Who stands where in the line of a preemptive policy: numbers for waiting jobs, and running jobs sorted by theirs."""

from typing import Any, NamedTuple

from traincast.schedule._kernels.heaps import drop_top, push
from traincast.schedule._kernels.nodes import Kinds, Nodes, pool_of_job
from traincast.schedule._kernels.residents import Residents, move_out, settle_in
from traincast.schedule._kernels.tables import (
    BY_LEVEL,
    BY_REMAINING,
    BY_SCORE,
    BY_SERVICE,
    RUNNING,
    WAITING,
    Jobs,
    Rules,
)


class Waiting(NamedTuple):
    """A heap of (key, job) per kind. `dead`: 1 = no room by count, 2 = set aside for the whole pass."""

    base: Any
    keys: Any
    jobs: Any
    size: Any
    dead: Any


class Running(NamedTuple):
    """Running jobs sorted by their numbers from `begin[0]` on, with room before and behind, because those who come and go
    stand near both ends; and room for those who are chosen or must go."""

    keys: Any
    jobs: Any
    begin: Any
    residents: Residents
    heap_keys: Any
    heap_jobs: Any
    heap_size: Any
    losers: Any
    chosen: Any
    gain: Any
    quota: Any


def wait_key(job: int, rules: Rules, jobs: Jobs) -> float:
    key: float = jobs.guess[job]
    if rules.order == BY_LEVEL:
        count = len(jobs.submit)
        key = jobs.level[job] * 2.0 * count + count + job
    if rules.order == BY_SERVICE:
        key = jobs.guess[job] * jobs.gpus[job]
    if rules.order == BY_SCORE:
        key = jobs.keys[job]
    return key


def run_key(job: int, now: float, rules: Rules, jobs: Jobs) -> float:
    """The number of a running job; where it moves, the one of this moment."""
    if rules.moving == 1:
        left: float = (jobs.keys[job] - now) * jobs.rate[job]
        return left * jobs.gpus[job] if rules.order == BY_SERVICE else left
    ends: float = jobs.since[job] + jobs.guess[job] / jobs.rate[job]
    if rules.order == BY_LEVEL:
        ends = jobs.level[job] * 2.0 * len(jobs.submit) + job
    if rules.order == BY_SCORE:
        ends = jobs.keys[job]
    return ends


def join_waiting(job: int, rules: Rules, jobs: Jobs, kinds: Kinds, waiting: Waiting) -> None:
    kind = kinds.of_job[job]
    push(waiting.keys, waiting.jobs, waiting.base[kind], waiting.size, kind, wait_key(job, rules, jobs), job)
    rules.counts[WAITING] += 1


def is_before(key: float, job: int, run_key: float, run_job: int, now: float, rules: Rules) -> bool:
    """Whether a waiting job stands before a running one."""
    other = run_key - now if rules.order == BY_REMAINING and rules.moving == 0 else run_key
    return key < other or (key == other and job < run_job)


def sort_anew(now: float, rules: Rules, jobs: Jobs, running: Running) -> None:
    """Remaining service falls faster for wider jobs, so the line of running jobs is put in order at every pass."""
    run_keys = running.keys
    run_jobs = running.jobs
    begin = running.begin[0]
    running.residents.stale[0] = 1
    for at in range(begin, begin + rules.counts[RUNNING]):
        job = run_jobs[at]
        key = run_key(job, now, rules, jobs)
        jobs.position[job] = key
        spot = at
        while spot > begin and (run_keys[spot - 1] > key or (run_keys[spot - 1] == key and run_jobs[spot - 1] > job)):
            run_keys[spot] = run_keys[spot - 1]
            run_jobs[spot] = run_jobs[spot - 1]
            spot -= 1
        run_keys[spot] = key
        run_jobs[spot] = job


def position_of(key: float, job: int, low: int, high: int, run_keys: Any, run_jobs: Any) -> int:
    while low < high:
        middle = (low + high) >> 1
        if run_keys[middle] < key or (run_keys[middle] == key and run_jobs[middle] < job):
            low = middle + 1
        else:
            high = middle
    return low


def insert(job: int, rules: Rules, jobs: Jobs, nodes: Nodes, running: Running) -> None:
    """A job that has its number and its nodes joins those who run."""
    settle_in(job, jobs.position, nodes.head, nodes.part_node, nodes.part_next, running.residents)
    insert_at(job, jobs.position[job], rules.counts, running.keys, running.jobs, running.begin)


def insert_at(job: int, key: float, counts: Any, run_keys: Any, run_jobs: Any, begin: Any) -> None:
    """Whoever stands on the shorter side makes room."""
    if begin[0] == 0 or begin[0] + counts[RUNNING] == len(run_keys):
        centre(counts, run_keys, run_jobs, begin)
    low = begin[0]
    high = low + counts[RUNNING]
    at = position_of(key, job, low, high, run_keys, run_jobs)
    if at - low < high - at:
        at -= 1
        begin[0] = low - 1
        for spot in range(low - 1, at):
            run_keys[spot] = run_keys[spot + 1]
            run_jobs[spot] = run_jobs[spot + 1]
    else:
        for spot in range(high, at, -1):
            run_keys[spot] = run_keys[spot - 1]
            run_jobs[spot] = run_jobs[spot - 1]
    run_keys[at] = key
    run_jobs[at] = job
    counts[RUNNING] += 1


def centre(counts: Any, run_keys: Any, run_jobs: Any, begin: Any) -> None:
    """Move all to the middle of their room."""
    low = begin[0]
    count = counts[RUNNING]
    by = (len(run_keys) - count) // 2 - low
    begin[0] = low + by
    for step in range(count):
        spot = low + step if by < 0 else low + count - 1 - step
        run_keys[spot + by] = run_keys[spot]
        run_jobs[spot + by] = run_jobs[spot]


def remove(job: int, rules: Rules, jobs: Jobs, nodes: Nodes, running: Running) -> None:
    move_out(job, jobs.position, nodes.head, nodes.part_node, nodes.part_next, running.residents)
    remove_at(job, jobs.position[job], rules.counts, running.keys, running.jobs, running.begin)


def remove_at(job: int, key: float, counts: Any, run_keys: Any, run_jobs: Any, begin: Any) -> None:
    low = begin[0]
    high = low + counts[RUNNING]
    at = position_of(key, job, low, high, run_keys, run_jobs)
    counts[RUNNING] -= 1
    if at - low < high - at:
        begin[0] = low + 1
        for spot in range(at, low, -1):
            run_keys[spot] = run_keys[spot - 1]
            run_jobs[spot] = run_jobs[spot - 1]
    else:
        for spot in range(at, high - 1):
            run_keys[spot] = run_keys[spot + 1]
            run_jobs[spot] = run_jobs[spot + 1]


def first_behind(key: float, job: int, now: float, rules: Rules, running: Running) -> int:
    """Where those who stand behind a waiting job begin among the running ones."""
    low: int = running.begin[0]
    high = low + rules.counts[RUNNING]
    since = now if rules.order == BY_REMAINING and rules.moving == 0 else 0.0
    while low < high:
        middle = (low + high) >> 1
        if running.keys[middle] - since > key:
            high = middle
        else:
            low = middle + 1
    # Equal numbers go by job.
    while low > running.begin[0] and is_before(key, job, running.keys[low - 1], running.jobs[low - 1], now, rules):
        low -= 1
    return low


def first_waiting(waiting: Waiting) -> int:
    """The kind whose first job stands before those of all other living kinds; -1 if none waits."""
    best_kind = -1
    best_key = 0.0
    best = -1
    for kind in range(len(waiting.size)):
        if waiting.dead[kind] > 0 or waiting.size[kind] == 0:
            continue
        key = waiting.keys[waiting.base[kind]]
        other = waiting.jobs[waiting.base[kind]]
        if best_kind < 0 or key < best_key or (key == best_key and other < best):
            best = other
            best_kind = kind
            best_key = key
    return best_kind


def choose_by_count(now: float, room: int, rules: Rules, jobs: Jobs, waiting: Waiting, running: Running) -> Any:
    """The greedy choice with skipping over all jobs in line, made at once: how many waiting jobs start (`chosen`, already
    taken from their heaps) and how many running ones stop (`losers`, places among those who run).

    What is granted leaves ever less for those behind, so running jobs stay until those behind them hold fewer GPUs than
    are missing, and a kind that failed once has failed.
    """
    run_keys = running.keys
    run_jobs = running.jobs
    first = running.begin[0]
    stop = first + rules.counts[RUNNING]
    missing = -room
    num_chosen = 0
    num_losers = 0
    while True:
        kind = first_waiting(waiting)
        best = -1
        best_key = 0.0
        if kind >= 0:
            best = waiting.jobs[waiting.base[kind]]
            best_key = waiting.keys[waiting.base[kind]]
        if missing > 0:
            spot = stop
            behind = 0
            while spot > first and behind < missing:
                spot -= 1
                behind += jobs.gpus[run_jobs[spot]]
            if best < 0 or not is_before(best_key, best, run_keys[spot], run_jobs[spot], now, rules):
                running.losers[num_losers] = spot
                num_losers += 1
                missing -= jobs.gpus[run_jobs[spot]]
                first = spot + 1
                continue
        if best < 0:
            break
        need = jobs.gpus[best]
        behind = -missing
        at = stop - 1
        while behind < need and at >= first and is_before(best_key, best, run_keys[at], run_jobs[at], now, rules):
            behind += jobs.gpus[run_jobs[at]]
            at -= 1
        if behind < need:
            waiting.dead[kind] = 1
            continue
        drop_top(waiting.keys, waiting.jobs, waiting.base[kind], waiting.size, kind)
        running.chosen[num_chosen] = best
        num_chosen += 1
        missing += need
    return num_chosen, num_losers


def choose_by_pools(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, waiting: Waiting, running: Running
) -> Any:
    """The same choice where there are several pools: everybody in line, in order, until the quotas of the pools are spent."""
    for pool in range(len(nodes.width)):
        running.quota[pool] = nodes.hist[nodes.hist_at[pool]]
    spot = running.begin[0]
    stop = spot + rules.counts[RUNNING]
    for at in range(spot, stop):
        running.quota[pool_of_job(running.jobs[at], nodes)] += jobs.gpus[running.jobs[at]]
    num_chosen = 0
    num_losers = 0
    kind = first_waiting(waiting)
    while kind >= 0 or spot < stop:
        base = waiting.base[kind] if kind >= 0 else 0
        if spot < stop and (
            kind < 0
            or not is_before(waiting.keys[base], waiting.jobs[base], running.keys[spot], running.jobs[spot], now, rules)
        ):
            pool = pool_of_job(running.jobs[spot], nodes)
            if jobs.gpus[running.jobs[spot]] <= running.quota[pool]:
                running.quota[pool] -= jobs.gpus[running.jobs[spot]]
            else:
                running.losers[num_losers] = spot
                num_losers += 1
            spot += 1
            continue
        if take_quota(kind, kinds, running):
            running.chosen[num_chosen] = waiting.jobs[base]
            num_chosen += 1
            drop_top(waiting.keys, waiting.jobs, base, waiting.size, kind)
        else:
            waiting.dead[kind] = 1
        kind = first_waiting(waiting)
    return num_chosen, num_losers


def take_quota(kind: int, kinds: Kinds, running: Running) -> bool:
    for at in range(kinds.pool_first[kind], kinds.pool_first[kind + 1]):
        if kinds.gpus[kind] <= running.quota[kinds.pools[at]]:
            running.quota[kinds.pools[at]] -= kinds.gpus[kind]
            return True
    return False
