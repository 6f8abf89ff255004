"""Who stands where in the line of a preemptive policy: numbers for waiting jobs, and running jobs sorted by theirs."""

from typing import Any

from traincast.schedule.kernels.heaps import drop_top

BY_REMAINING, BY_LEVEL, BY_SERVICE = 0, 1, 2


def wait_key(order: int, job: int, guess: Any, gpus: Any, level: Any, count: int) -> float:
    key: float = guess[job]
    if order == BY_LEVEL:
        key = level[job] * 2.0 * count + count + job
    if order == BY_SERVICE:
        key = guess[job] * gpus[job]
    return key


def is_before(key: float, job: int, run_key: float, run_job: int, now: float, order: int) -> bool:
    """Whether a waiting job stands before a running one."""
    other = run_key - now if order == BY_REMAINING else run_key
    return key < other or (key == other and job < run_job)


def sort_anew(
    run_keys: Any, run_jobs: Any, num_running: int, position: Any, since: Any, guess: Any, gpus: Any, now: float
) -> None:
    """Remaining service falls faster for wider jobs, so the line of running jobs is put in order at every pass."""
    for at in range(num_running):
        job = run_jobs[at]
        key = (since[job] + guess[job] - now) * gpus[job]
        position[job] = key
        spot = at
        while spot > 0 and (run_keys[spot - 1] > key or (run_keys[spot - 1] == key and run_jobs[spot - 1] > job)):
            run_keys[spot] = run_keys[spot - 1]
            run_jobs[spot] = run_jobs[spot - 1]
            spot -= 1
        run_keys[spot] = key
        run_jobs[spot] = job


def position_of(run_keys: Any, run_jobs: Any, num_running: int, key: float, job: int) -> int:
    low = 0
    high = num_running
    while low < high:
        middle = (low + high) >> 1
        if run_keys[middle] < key or (run_keys[middle] == key and run_jobs[middle] < job):
            low = middle + 1
        else:
            high = middle
    return low


def insert(run_keys: Any, run_jobs: Any, num_running: int, key: float, job: int) -> int:
    at = position_of(run_keys, run_jobs, num_running, key, job)
    for spot in range(num_running, at, -1):
        run_keys[spot] = run_keys[spot - 1]
        run_jobs[spot] = run_jobs[spot - 1]
    run_keys[at] = key
    run_jobs[at] = job
    return num_running + 1


def first_waiting(num_classes: int, dead: Any, wait_size: Any, wait_keys: Any, wait_jobs: Any, class_base: Any) -> int:
    """The class whose first job stands before those of all other living classes; -1 if none waits."""
    best_kind = -1
    best_key = 0.0
    best = -1
    for kind in range(num_classes):
        if dead[kind] > 0 or wait_size[kind] == 0:
            continue
        key = wait_keys[class_base[kind]]
        other = wait_jobs[class_base[kind]]
        if best_kind < 0 or key < best_key or (key == best_key and other < best):
            best = other
            best_kind = kind
            best_key = key
    return best_kind


def choose_by_count(
    order: int,
    now: float,
    room: int,
    gpus: Any,
    class_gpus: Any,
    class_base: Any,
    wait_keys: Any,
    wait_jobs: Any,
    wait_size: Any,
    dead: Any,
    run_keys: Any,
    run_jobs: Any,
    num_running: int,
    losers: Any,
    chosen: Any,
) -> Any:
    """The greedy choice with skipping over all jobs in line, made at once: how many waiting jobs start (`chosen`, already
    taken from their heaps) and how many running ones stop (`losers`, places in line from the front).

    What is granted leaves ever less for those behind, so running jobs stay until those behind them hold fewer GPUs than
    are missing, and a class that failed once has failed.
    """
    missing = -room
    num_chosen = 0
    num_losers = 0
    first = 0
    while True:
        kind = first_waiting(len(class_gpus), dead, wait_size, wait_keys, wait_jobs, class_base)
        best = -1
        best_key = 0.0
        if kind >= 0:
            best = wait_jobs[class_base[kind]]
            best_key = wait_keys[class_base[kind]]
        if missing > 0:
            spot = num_running
            behind = 0
            while spot > first and behind < missing:
                spot -= 1
                behind += gpus[run_jobs[spot]]
            if best < 0 or not is_before(best_key, best, run_keys[spot], run_jobs[spot], now, order):
                losers[num_losers] = spot
                num_losers += 1
                missing -= gpus[run_jobs[spot]]
                first = spot + 1
                continue
        if best < 0:
            break
        need = class_gpus[kind]
        behind = -missing
        at = num_running - 1
        while behind < need and at >= first and is_before(best_key, best, run_keys[at], run_jobs[at], now, order):
            behind += gpus[run_jobs[at]]
            at -= 1
        if behind >= need:
            drop_top(wait_keys, wait_jobs, class_base[kind], wait_size, kind)
            chosen[num_chosen] = best
            num_chosen += 1
            missing += need
        else:
            dead[kind] = 1
    return num_chosen, num_losers
