"""Who has a turn in a round of time-sharing, and the loop in which runs of Gavel's simulator are repeated."""

import math
from typing import Any, NamedTuple

FINISHED, DIVIDE, DRAW = 0, 1, 2
TICK = 2.3e-16
"""The clock moves on at least by this part of itself."""
CURSOR, ACTIVE, STALE, ROUNDS, ENDED, ORDERS = 0, 1, 2, 3, 4, 5
"""Places in `Desk.counts`: next arrival, active jobs, whether shares are out of date, rounds, jobs that ended, next order of
the types."""


class Rules(NamedTuple):
    num_types: int
    round_s: float
    min_reset_s: float
    whole_steps: int
    leftovers: int
    max_failures: int
    shuffled: int


class Shares(NamedTuple):
    """Columns by job; those of (job, type) lie job by job."""

    submit: Any
    gpus: Any
    rates: Any
    capacity: Any
    refused: Any
    left: Any
    time_run: Any
    deficit: Any
    share: Any


class Became(NamedTuple):
    start: Any
    end: Any
    run_s: Any
    gpu_s: Any
    pool_gpu_s: Any
    preemptions: Any
    failed: Any
    dropped: Any


class Desk(NamedTuple):
    """Working room. `clock` = (now, last division)."""

    active: Any
    ran_in: Any
    ran_on: Any
    taken_in: Any
    line: Any
    urgency: Any
    turn_jobs: Any
    turn_types: Any
    clock: Any
    counts: Any


def run_turns(rules: Rules, jobs: Shares, out: Became, desk: Desk, type_orders: Any) -> int:
    """Until shares must be divided anew (DIVIDE), orders of the types are used up (DRAW) or nothing is left (FINISHED)."""
    count = len(jobs.submit)
    counts = desk.counts
    clock = desk.clock
    while True:
        admit(jobs, desk)
        if counts[ACTIVE] == 0:
            if counts[CURSOR] == count:
                return FINISHED
            clock[0] = jobs.submit[counts[CURSOR]]
            continue
        if counts[STALE] == 1 and (clock[0] - clock[1] >= rules.min_reset_s or clock[1] == 0.0):
            settle_accounts(rules, jobs, desk)
            return DIVIDE
        if rules.shuffled == 1 and (counts[ORDERS] + 1) * rules.num_types > len(type_orders):
            return DRAW
        num_turns = 0
        for place in range(counts[ORDERS] * rules.num_types, (counts[ORDERS] + 1) * rules.num_types):
            if jobs.capacity[type_orders[place]] > 0:
                num_turns = grant(type_orders[place], num_turns, rules, jobs, desk)
        counts[ORDERS] += rules.shuffled
        if num_turns == 0:
            soonest = math.inf
            if counts[CURSOR] < count:
                soonest = jobs.submit[counts[CURSOR]]
            if counts[STALE] == 1:
                soonest = min(soonest, clock[1] + rules.min_reset_s)
            if soonest == math.inf:
                return FINISHED
            clock[0] = max(soonest, clock[0] * (1.0 + TICK))
            continue
        counts[ROUNDS] += 1
        round_end = clock[0] if rules.whole_steps == 1 else clock[0] + rules.round_s
        for turn in range(num_turns):
            finish = run_turn(desk.turn_jobs[turn], desk.turn_types[turn], rules, jobs, out, desk)
            if rules.whole_steps == 1:
                round_end = max(round_end, finish)
        close_round(rules, jobs, out, desk)
        clock[0] = round_end


def give_turns(rules: Rules, jobs: Shares, desk: Desk) -> int:
    """Who has a turn in the round that begins now, by count, type after type; `Desk.turn_jobs` and `turn_types` say it."""
    num_turns = 0
    for kind in range(rules.num_types):
        if jobs.capacity[kind] > 0:
            num_turns = grant(kind, num_turns, rules, jobs, desk)
    desk.counts[ROUNDS] += 1
    return num_turns


def admit(jobs: Shares, desk: Desk) -> None:
    counts = desk.counts
    while counts[CURSOR] < len(jobs.submit) and jobs.submit[counts[CURSOR]] <= desk.clock[0]:
        if jobs.refused[counts[CURSOR]] == 1:
            counts[ENDED] += 1
        else:
            desk.active[counts[ACTIVE]] = counts[CURSOR]
            counts[ACTIVE] += 1
            counts[STALE] = 1
        counts[CURSOR] += 1


def settle_accounts(rules: Rules, jobs: Shares, desk: Desk) -> None:
    """What jobs were owed and did not get is kept when shares are divided anew."""
    now = desk.clock[0]
    for at in range(desk.counts[ACTIVE]):
        for entry in range(desk.active[at] * rules.num_types, (desk.active[at] + 1) * rules.num_types):
            jobs.deficit[entry] += jobs.share[entry] * (now - desk.clock[1]) - (
                jobs.time_run[entry] - rules.round_s / 2
            )
            jobs.time_run[entry] = rules.round_s / 2
    desk.clock[1] = now
    desk.counts[STALE] = 0


def run_turn(job: int, kind: int, rules: Rules, jobs: Shares, out: Became, desk: Desk) -> float:
    """One job for one round on one type; the answer is when it is through."""
    now = desk.clock[0]
    rate = jobs.rates[job * rules.num_types + kind]
    steps = rate * rules.round_s
    if rules.whole_steps == 1:
        steps = math.floor(steps) * 1.0
    if desk.ran_in[job] == desk.counts[ROUNDS] - 1 and desk.ran_on[job] != kind:
        out.preemptions[job] += 1
    steps = min(steps, jobs.left[job])
    finish: float = now + steps / rate
    desk.ran_in[job] = desk.counts[ROUNDS]
    desk.ran_on[job] = kind
    if rules.whole_steps == 1:
        if steps < jobs.gpus[job]:
            out.failed[job] += 1
            desk.counts[STALE] = 1
            if out.failed[job] >= rules.max_failures:
                out.dropped[job] = steps
                desk.ran_in[job] = -2
            return finish
        out.failed[job] = 0
    spent = finish - now
    jobs.left[job] -= steps
    if jobs.left[job] <= 1e-9:
        out.end[job] = finish
        desk.ran_in[job] = -2
    jobs.time_run[job * rules.num_types + kind] += spent
    out.run_s[job] += spent
    out.gpu_s[job] += spent * jobs.gpus[job]
    out.pool_gpu_s[kind] += spent * jobs.gpus[job]
    if out.start[job] < 0.0:
        out.start[job] = now
    return finish


def close_round(rules: Rules, jobs: Shares, out: Became, desk: Desk) -> None:
    """Count those who ran before and not now, and let those go who ended."""
    counts = desk.counts
    kept = 0
    for at in range(counts[ACTIVE]):
        job = desk.active[at]
        if desk.ran_in[job] == counts[ROUNDS] - 1:
            out.preemptions[job] += 1
        if desk.ran_in[job] != -2:
            desk.active[kept] = job
            kept += 1
    if kept < counts[ACTIVE]:
        counts[STALE] = 1
        counts[ENDED] += counts[ACTIVE] - kept
    counts[ACTIVE] = kept


def grant(kind: int, num_turns: int, rules: Rules, jobs: Shares, desk: Desk) -> int:
    """The GPUs of one type to those who wait longest for their share of it: a heap that is emptied until none is free."""
    size = 0
    free = jobs.capacity[kind]
    this_round = desk.counts[ROUNDS] + 1
    line = desk.line
    for at in range(desk.counts[ACTIVE]):
        job = desk.active[at]
        entry = job * rules.num_types + kind
        owed = jobs.share[entry] > 0.0 or rules.leftovers == 1
        if desk.taken_in[job] == this_round or jobs.rates[entry] <= 0.0 or not owed:
            continue
        desk.urgency[job] = jobs.share[entry] / jobs.time_run[entry]
        line[size] = job
        size += 1
    for parent in range(size // 2 - 1, -1, -1):
        sink(parent, size, kind, rules.num_types, line, desk.urgency, jobs.deficit, jobs.share)
    while size > 0 and free > 0:
        job = line[0]
        size -= 1
        line[0] = line[size]
        sink(0, size, kind, rules.num_types, line, desk.urgency, jobs.deficit, jobs.share)
        if jobs.gpus[job] <= free:
            free -= jobs.gpus[job]
            desk.taken_in[job] = this_round
            desk.turn_jobs[num_turns] = job
            desk.turn_types[num_turns] = kind
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
