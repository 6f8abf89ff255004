"""The loop of time-sharing in rounds, from one division of shares to the next."""

import math
from typing import Any

FINISHED, DIVIDE, DRAW = 0, 1, 2
TICK = 2.3e-16
"""The clock moves on at least by this part of itself."""


def run_turns(
    num_types: int,
    round_s: float,
    min_reset_s: float,
    whole_steps: int,
    leftovers: int,
    max_failures: int,
    shuffled: int,
    submit: Any,
    gpus: Any,
    rates: Any,
    capacity: Any,
    refused: Any,
    left: Any,
    time_run: Any,
    deficit: Any,
    share: Any,
    start: Any,
    end: Any,
    run_s: Any,
    gpu_s: Any,
    pool_gpu_s: Any,
    preemptions: Any,
    failed: Any,
    dropped: Any,
    active: Any,
    ran_in: Any,
    taken_in: Any,
    line: Any,
    urgency: Any,
    turn_jobs: Any,
    turn_types: Any,
    type_orders: Any,
    clock: Any,
    counts: Any,
) -> int:
    """Until shares must be divided anew (DIVIDE), orders of the types are used up (DRAW) or nothing is left (FINISHED).

    `clock` = (now, last division); `counts` = (next arrival, active jobs, stale, rounds, ended, next order of types). Entries
    of (job, type) lie job by job.
    """
    count = len(submit)
    now = clock[0]
    cursor = counts[0]
    num_active = counts[1]
    stale = counts[2]
    num_rounds = counts[3]
    answer = -1
    while answer < 0:
        while cursor < count and submit[cursor] <= now:
            if refused[cursor] == 1:
                counts[4] += 1
            else:
                active[num_active] = cursor
                num_active += 1
                stale = 1
            cursor += 1
        if num_active == 0:
            if cursor == count:
                answer = FINISHED
            else:
                now = submit[cursor]
            continue
        if stale == 1 and (now - clock[1] >= min_reset_s or clock[1] == 0.0):
            for at in range(num_active):
                for entry in range(active[at] * num_types, (active[at] + 1) * num_types):
                    deficit[entry] += share[entry] * (now - clock[1]) - (time_run[entry] - round_s / 2)
                    time_run[entry] = round_s / 2
            clock[1] = now
            stale = 0
            answer = DIVIDE
            continue
        if shuffled == 1 and (counts[5] + 1) * num_types > len(type_orders):
            answer = DRAW
            continue
        num_turns = 0
        for place in range(counts[5] * num_types, (counts[5] + 1) * num_types):
            kind = type_orders[place]
            if capacity[kind] > 0:
                num_turns = grant(
                    kind, num_types, num_active, num_turns, num_rounds + 1, capacity[kind], leftovers, gpus, rates, time_run,
                    deficit, share, active, taken_in, line, urgency, turn_jobs, turn_types,
                )  # fmt: skip
        counts[5] += shuffled
        if num_turns == 0:
            soonest = math.inf
            if cursor < count:
                soonest = submit[cursor]
            if stale == 1:
                soonest = min(soonest, clock[1] + min_reset_s)
            if soonest == math.inf:
                answer = FINISHED
            else:
                now = max(soonest, now * (1.0 + TICK))
            continue
        num_rounds += 1
        round_end = now if whole_steps == 1 else now + round_s
        num_over = 0
        for turn in range(num_turns):
            job = turn_jobs[turn]
            kind = turn_types[turn]
            rate = rates[job * num_types + kind]
            steps = rate * round_s
            if whole_steps == 1:
                steps = math.floor(steps) * 1.0
            steps = min(steps, left[job])
            finish = now + steps / rate
            ran_in[job] = num_rounds
            if whole_steps == 1:
                round_end = max(round_end, finish)
                if steps < gpus[job]:
                    failed[job] += 1
                    stale = 1
                    if failed[job] >= max_failures:
                        dropped[job] = steps
                        ran_in[job] = -2
                        num_over += 1
                    continue
                failed[job] = 0
            spent = finish - now
            left[job] -= steps
            if left[job] <= 1e-9:
                end[job] = finish
                ran_in[job] = -2
                num_over += 1
            time_run[job * num_types + kind] += spent
            run_s[job] += spent
            gpu_s[job] += spent * gpus[job]
            pool_gpu_s[kind] += spent * gpus[job]
            if start[job] < 0.0:
                start[job] = now
        kept = 0
        for at in range(num_active):
            job = active[at]
            if ran_in[job] == num_rounds - 1:
                preemptions[job] += 1
            if ran_in[job] != -2:
                active[kept] = job
                kept += 1
        num_active = kept
        if num_over > 0:
            stale = 1
            counts[4] += num_over
        now = round_end
    clock[0] = now
    counts[0] = cursor
    counts[1] = num_active
    counts[2] = stale
    counts[3] = num_rounds
    return answer


def grant(
    kind: int,
    num_types: int,
    num_active: int,
    num_turns: int,
    this_round: int,
    free: int,
    leftovers: int,
    gpus: Any,
    rates: Any,
    time_run: Any,
    deficit: Any,
    share: Any,
    active: Any,
    taken_in: Any,
    line: Any,
    urgency: Any,
    turn_jobs: Any,
    turn_types: Any,
) -> int:
    """The GPUs of one type to those who wait longest for their share of it: a heap that is emptied until none is free."""
    size = 0
    for at in range(num_active):
        job = active[at]
        entry = job * num_types + kind
        if taken_in[job] == this_round or rates[entry] <= 0.0 or (leftovers == 0 and share[entry] <= 0.0):
            continue
        urgency[job] = share[entry] / time_run[entry]
        line[size] = job
        size += 1
    for parent in range(size // 2 - 1, -1, -1):
        sink(parent, size, kind, num_types, line, urgency, deficit, share)
    while size > 0 and free > 0:
        job = line[0]
        size -= 1
        line[0] = line[size]
        sink(0, size, kind, num_types, line, urgency, deficit, share)
        if gpus[job] <= free:
            free -= gpus[job]
            taken_in[job] = this_round
            turn_jobs[num_turns] = job
            turn_types[num_turns] = kind
            num_turns += 1
    return num_turns


def sink(parent: int, size: int, kind: int, num_types: int, line: Any, urgency: Any, deficit: Any, share: Any) -> None:
    job = line[parent]
    mine = urgency[job]
    while True:
        child = 2 * parent + 1
        if child >= size:
            break
        other = line[child]
        theirs = urgency[other]
        if child + 1 < size:
            third = urgency[line[child + 1]]
            if third > theirs or (
                third == theirs and is_due_before(line[child + 1], other, kind, num_types, deficit, share)
            ):
                child += 1
                other = line[child]
                theirs = third
        if theirs < mine or (theirs == mine and not is_due_before(other, job, kind, num_types, deficit, share)):
            break
        line[parent] = other
        parent = child
    line[parent] = job


def is_due_before(job: int, other: int, kind: int, num_types: int, deficit: Any, share: Any) -> bool:
    """Of two that are equally urgent."""
    mine = job * num_types + kind
    theirs = other * num_types + kind
    before: bool = job < other
    if deficit[mine] != deficit[theirs]:
        before = deficit[mine] > deficit[theirs]
    elif share[mine] != share[theirs]:
        before = share[mine] > share[theirs]
    return before


def fill_in_order(num_types: int, rates: Any, gpus: Any, free: Any, shares: Any) -> None:
    """In order, each job on the fastest type with room; equal rates go to the type listed last."""
    for job in range(len(gpus)):
        best = -1
        room = False
        for kind in range(num_types - 1, -1, -1):
            if free[kind] < gpus[job]:
                continue
            room = True
            rate = rates[job * num_types + kind]
            if rate > 0.0 and (best < 0 or rate > rates[job * num_types + best]):
                best = kind
        if not room:
            break
        if best >= 0:
            shares[job * num_types + best] = 1.0
            free[best] -= gpus[job]
