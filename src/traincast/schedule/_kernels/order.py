"""Who stands where in the line of a preemptive policy: numbers for waiting jobs, and running jobs sorted by theirs."""

from typing import Any, NamedTuple

from traincast.schedule._kernels.heaps import drop_top, push

BY_REMAINING, BY_LEVEL, BY_SERVICE, BY_SCORE = 0, 1, 2, 3
CURSOR, PASSES, WAITING, RUNNING, ENDED, LOGGED, LOGGED_NODES = 0, 1, 2, 3, 4, 5, 6
"""Places in `Line.counts`: next arrival, passes, waiting and running jobs, ended ones, runs and nodes in the log."""


class Line(NamedTuple):
    """The rule of order and how many there are of what; `score` is a number that never changes (BY_SCORE)."""

    order: int
    by_gpu: int
    limits: Any
    score: Any
    until_s: float
    counts: Any


class Jobs(NamedTuple):
    submit: Any
    gpus: Any
    left: Any
    guess: Any
    limit: Any
    killed: Any
    cost: Any
    start: Any
    end: Any
    since: Any
    attained: Any
    level: Any
    position: Any
    preemptions: Any


class Waiting(NamedTuple):
    """A heap of (key, job) per class, a number of GPUs. `dead`: 1 = no room by count, 2 = set aside for the whole pass."""

    of_job: Any
    gpus: Any
    base: Any
    keys: Any
    jobs: Any
    size: Any
    dead: Any


class Running(NamedTuple):
    """Running jobs sorted by their numbers, and room for those who are chosen or must go."""

    keys: Any
    jobs: Any
    losers: Any
    chosen: Any
    gain: Any


def wait_key(job: int, line: Line, jobs: Jobs) -> float:
    key: float = jobs.guess[job]
    if line.order == BY_LEVEL:
        count = len(jobs.submit)
        key = jobs.level[job] * 2.0 * count + count + job
    if line.order == BY_SERVICE:
        key = jobs.guess[job] * jobs.gpus[job]
    if line.order == BY_SCORE:
        key = line.score[job]
    return key


def join_waiting(job: int, line: Line, jobs: Jobs, waiting: Waiting) -> None:
    kind = waiting.of_job[job]
    push(waiting.keys, waiting.jobs, waiting.base[kind], waiting.size, kind, wait_key(job, line, jobs), job)
    line.counts[WAITING] += 1


def is_before(key: float, job: int, run_key: float, run_job: int, now: float, order: int) -> bool:
    """Whether a waiting job stands before a running one."""
    other = run_key - now if order == BY_REMAINING else run_key
    return key < other or (key == other and job < run_job)


def sort_anew(now: float, line: Line, jobs: Jobs, running: Running) -> None:
    """Remaining service falls faster for wider jobs, so the line of running jobs is put in order at every pass."""
    run_keys = running.keys
    run_jobs = running.jobs
    for at in range(line.counts[RUNNING]):
        job = run_jobs[at]
        key = (jobs.since[job] + jobs.guess[job] - now) * jobs.gpus[job]
        jobs.position[job] = key
        spot = at
        while spot > 0 and (run_keys[spot - 1] > key or (run_keys[spot - 1] == key and run_jobs[spot - 1] > job)):
            run_keys[spot] = run_keys[spot - 1]
            run_jobs[spot] = run_jobs[spot - 1]
            spot -= 1
        run_keys[spot] = key
        run_jobs[spot] = job


def position_of(key: float, job: int, count: int, running: Running) -> int:
    low = 0
    high = count
    while low < high:
        middle = (low + high) >> 1
        if running.keys[middle] < key or (running.keys[middle] == key and running.jobs[middle] < job):
            low = middle + 1
        else:
            high = middle
    return low


def insert(job: int, line: Line, jobs: Jobs, running: Running) -> None:
    key = jobs.position[job]
    count = line.counts[RUNNING]
    at = position_of(key, job, count, running)
    for spot in range(count, at, -1):
        running.keys[spot] = running.keys[spot - 1]
        running.jobs[spot] = running.jobs[spot - 1]
    running.keys[at] = key
    running.jobs[at] = job
    line.counts[RUNNING] = count + 1


def remove(job: int, line: Line, jobs: Jobs, running: Running) -> None:
    at = position_of(jobs.position[job], job, line.counts[RUNNING], running)
    line.counts[RUNNING] -= 1
    for spot in range(at, line.counts[RUNNING]):
        running.keys[spot] = running.keys[spot + 1]
        running.jobs[spot] = running.jobs[spot + 1]


def first_waiting(waiting: Waiting) -> int:
    """The class whose first job stands before those of all other living classes; -1 if none waits."""
    best_kind = -1
    best_key = 0.0
    best = -1
    for kind in range(len(waiting.gpus)):
        if waiting.dead[kind] > 0 or waiting.size[kind] == 0:
            continue
        key = waiting.keys[waiting.base[kind]]
        other = waiting.jobs[waiting.base[kind]]
        if best_kind < 0 or key < best_key or (key == best_key and other < best):
            best = other
            best_kind = kind
            best_key = key
    return best_kind


def choose_by_count(now: float, room: int, line: Line, jobs: Jobs, waiting: Waiting, running: Running) -> Any:
    """The greedy choice with skipping over all jobs in line, made at once: how many waiting jobs start (`chosen`, already
    taken from their heaps) and how many running ones stop (`losers`, places in line from the front).

    What is granted leaves ever less for those behind, so running jobs stay until those behind them hold fewer GPUs than
    are missing, and a class that failed once has failed.
    """
    run_keys = running.keys
    run_jobs = running.jobs
    num_running = line.counts[RUNNING]
    missing = -room
    num_chosen = 0
    num_losers = 0
    first = 0
    while True:
        kind = first_waiting(waiting)
        best = -1
        best_key = 0.0
        if kind >= 0:
            best = waiting.jobs[waiting.base[kind]]
            best_key = waiting.keys[waiting.base[kind]]
        if missing > 0:
            spot = num_running
            behind = 0
            while spot > first and behind < missing:
                spot -= 1
                behind += jobs.gpus[run_jobs[spot]]
            if best < 0 or not is_before(best_key, best, run_keys[spot], run_jobs[spot], now, line.order):
                running.losers[num_losers] = spot
                num_losers += 1
                missing -= jobs.gpus[run_jobs[spot]]
                first = spot + 1
                continue
        if best < 0:
            break
        need = waiting.gpus[kind]
        behind = -missing
        at = num_running - 1
        while behind < need and at >= first and is_before(best_key, best, run_keys[at], run_jobs[at], now, line.order):
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
