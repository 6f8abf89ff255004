"""One look at the line of a preemptive policy: who makes way for whom, by count or on nodes."""

from typing import Any

from traincast.schedule._kernels.hazards import Hazards
from traincast.schedule._kernels.heaps import drop_top, push
from traincast.schedule._kernels.nodes import Kinds, Nodes, pool_of_job, shift
from traincast.schedule._kernels.order import (
    Running,
    Waiting,
    choose_by_count,
    choose_by_pools,
    first_waiting,
    insert,
    is_before,
    join_waiting,
    remove,
    run_key,
    sort_anew,
    wait_key,
)
from traincast.schedule._kernels.places import find_place, rate_at, take_place
from traincast.schedule._kernels.tables import (
    BY_LEVEL,
    RUNNING,
    WAITING,
    Events,
    Jobs,
    Log,
    Rules,
    give_back,
    log_run,
    run_on,
    settle,
)

# To find one job a node, the last jobs in line are looked at until they hold this many times its own GPUs.
DISTURB = 8


def pass_preemptive(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, waiting: Waiting, running: Running,
    events: Events, log: Log, hazards: Hazards,
) -> None:  # fmt: skip
    """Running jobs stand sorted by a number that does not move while they run, the believed end, score or level and row; a
    number that does move is sorted anew. The greedy choice by count can only push out jobs at the tail, so a pass looks at the
    tail and at the heads of kinds."""
    for kind in range(len(waiting.size)):
        waiting.dead[kind] = 0
    if rules.moving == 1:
        sort_anew(now, rules, jobs, running)
    if nodes.width[0] == 0:
        pass_by_count(now, rules, jobs, nodes, kinds, waiting, running, events, log)
        return
    while rules.counts[WAITING] > 0 and serve_one(
        now, rules, jobs, nodes, kinds, waiting, running, events, log, hazards
    ):
        pass


def expect_level(job: int, since: float, rules: Rules, jobs: Jobs, events: Events) -> None:
    """When a running job sinks to the next level, if there is one."""
    if jobs.level[job] < len(rules.limits):
        limit = rules.limits[jobs.level[job]] / (jobs.gpus[job] if rules.by_gpu == 1 else 1)
        events.expect[2 * job + 1] = since + max(limit - jobs.attained[job], 0.0)
        push(events.keys, events.tokens, 0, events.size, 0, events.expect[2 * job + 1], 2 * job + 1)


def sink_level(job: int, now: float, rules: Rules, jobs: Jobs, running: Running, events: Events) -> None:
    """A running job has reached the limit of its level."""
    remove(job, rules, jobs, running)
    jobs.level[job] += 1
    jobs.position[job] = run_key(job, now, rules, jobs)
    insert(job, rules, jobs, running)
    expect_level(job, jobs.since[job], rules, jobs, events)


def pass_by_count(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, waiting: Waiting, running: Running,
    events: Events, log: Log,
) -> None:  # fmt: skip
    if len(nodes.width) == 1:
        num_chosen, num_losers = choose_by_count(now, nodes.room[0], rules, jobs, waiting, running)
    else:
        num_chosen, num_losers = choose_by_pools(now, rules, jobs, nodes, kinds, waiting, running)
    rules.counts[WAITING] -= num_chosen
    if num_losers > 0:
        kept = running.losers[0]
        at = 0
        for spot in range(running.losers[0], rules.counts[RUNNING]):
            if at < num_losers and spot == running.losers[at]:
                running.losers[at] = running.jobs[spot]
                at += 1
            else:
                running.keys[kept] = running.keys[spot]
                running.jobs[kept] = running.jobs[spot]
                kept += 1
        rules.counts[RUNNING] = kept
        for at in range(num_losers):
            push_out(running.losers[at], now, rules, jobs, nodes, kinds, waiting, events, log)
    for at in range(num_chosen):
        job = running.chosen[at]
        place = find_place(kinds.of_job[job], nodes, kinds)
        if place >= 0:
            begin(job, place, now, rules, jobs, nodes, kinds, running, events)
        else:
            join_waiting(job, rules, jobs, kinds, waiting)


def next_by_count(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, waiting: Waiting, running: Running
) -> Any:
    """The first waiting job that fits by count if those after it made way, and the pool where it does; -1 if none does."""
    for kind in range(len(waiting.size)):
        if waiting.dead[kind] == 1:
            waiting.dead[kind] = 0
    while True:
        kind = first_waiting(waiting)
        if kind < 0:
            return -1, -1
        job = waiting.jobs[waiting.base[kind]]
        key = waiting.keys[waiting.base[kind]]
        for entry in range(kinds.pool_first[kind], kinds.pool_first[kind + 1]):
            pool = kinds.pools[entry]
            free = nodes.hist[nodes.hist_at[pool]]
            at = rules.counts[RUNNING] - 1
            while free < kinds.gpus[kind] and at >= 0:
                if not is_before(key, job, running.keys[at], running.jobs[at], now, rules):
                    break
                if pool_of_job(running.jobs[at], nodes) == pool:
                    free += jobs.gpus[running.jobs[at]]
                at -= 1
            if free >= kinds.gpus[kind]:
                return job, pool
        waiting.dead[kind] = 1


def serve_one(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, waiting: Waiting, running: Running,
    events: Events, log: Log, hazards: Hazards,
) -> bool:  # fmt: skip
    """Start one more job on nodes, or set its kind aside; False if nobody is left to be served."""
    job, pool = next_by_count(now, rules, jobs, nodes, kinds, waiting, running)
    if job < 0:
        return False
    kind = kinds.of_job[job]
    drop_top(waiting.keys, waiting.jobs, waiting.base[kind], waiting.size, kind)
    rules.counts[WAITING] -= 1
    place = find_place(kind, nodes, kinds)
    # A job that was pushed out at this moment pushes nobody out, or two near equals could swap for ever.
    if place < 0 and not (jobs.start[job] >= 0.0 and jobs.since[job] == now):
        good = False
        if kinds.gpus[kind] <= kinds.widest[kind]:
            num_losers = find_losers(pool, kinds.gpus[kind], rules, jobs, nodes, running)
            good = evict(kind, num_losers, now, rules, jobs, nodes, kinds, waiting, running, events, log, hazards)
        if not good:
            num_losers = find_last(job, now, rules, jobs, nodes, kinds, running)
            good = evict(kind, num_losers, now, rules, jobs, nodes, kinds, waiting, running, events, log, hazards)
        place = find_place(kind, nodes, kinds) if good else -1
    if place >= 0:
        begin(job, place, now, rules, jobs, nodes, kinds, running, events)
    else:
        waiting.dead[kind] = 2
        join_waiting(job, rules, jobs, kinds, waiting)
    return True


def find_losers(pool: int, need: int, rules: Rules, jobs: Jobs, nodes: Nodes, running: Running) -> int:
    """A running job of the pool whose followers together are fewer than the deficit must make way."""
    num_running = rules.counts[RUNNING]
    deficit = need - nodes.hist[nodes.hist_at[pool]]
    num_losers = 0
    spot = num_running
    behind = 0
    while behind < deficit and spot > 0:
        spot -= 1
        if pool_of_job(running.jobs[spot], nodes) == pool:
            behind += jobs.gpus[running.jobs[spot]]
    while deficit > 0 and spot < num_running:
        if pool_of_job(running.jobs[spot], nodes) == pool:
            size = jobs.gpus[running.jobs[spot]]
            behind -= size
            if behind < deficit:
                running.losers[num_losers] = running.jobs[spot]
                num_losers += 1
                deficit -= size
        spot += 1
    return num_losers


def find_last(job: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, running: Running) -> int:
    """By count there was room, but not together: those among the last jobs in line whose leaving may help."""
    key = wait_key(job, rules, jobs)
    kind = kinds.of_job[job]
    need = kinds.gpus[kind]
    several = need > kinds.widest[kind]
    num_running = rules.counts[RUNNING]
    spot = num_running
    freed = 0
    while spot > 0 and (several or freed < DISTURB * need):
        if not is_before(key, job, running.keys[spot - 1], running.jobs[spot - 1], now, rules):
            break
        spot -= 1
        freed += jobs.gpus[running.jobs[spot]]
    if several:
        for at in range(kinds.pool_first[kind], kinds.pool_first[kind + 1]):
            found = find_in_the_way(need, at, spot, num_running, nodes, kinds, running)
            if found >= 0:
                return found
        return 0
    num_losers: int = num_running - spot
    for at in range(num_losers):
        running.losers[at] = running.jobs[spot + at]
    return num_losers


def evict(
    kind: int, num_losers: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, waiting: Waiting,
    running: Running, events: Events, log: Log, hazards: Hazards,
) -> bool:  # fmt: skip
    """Free losers from the last one on until the job fits, and spare those whose leaving did not help; if it never fits,
    nobody is disturbed."""
    losers = running.losers
    good = False
    left_over = num_losers
    while left_over > 0 and not good:
        left_over -= 1
        shift(losers[left_over], 1, nodes, kinds)
        good = find_place(kind, nodes, kinds) >= 0
    for at in range(num_losers - 1, left_over, -1):
        shift(losers[at], -1, nodes, kinds)
        if good and find_place(kind, nodes, kinds) < 0:
            shift(losers[at], 1, nodes, kinds)
        else:
            losers[at] = -1
    if not good and left_over < num_losers:
        shift(losers[left_over], -1, nodes, kinds)
        losers[left_over] = -1
    for at in range(left_over, num_losers):
        if losers[at] >= 0:
            remove(losers[at], rules, jobs, running)
            if hazards.wanted == 1:  # its state was saved when it was pushed out
                hazards.since_checkpoint[losers[at]] = 0.0
            shift(losers[at], -1, nodes, kinds)
            push_out(losers[at], now, rules, jobs, nodes, kinds, waiting, events, log)
    return good


def find_in_the_way(
    need: int, at: int, spot: int, num_running: int, nodes: Nodes, kinds: Kinds, running: Running
) -> int:
    """For a job of several nodes: those from `spot` on that hold the nodes of a pool which are cleared at the least cost in GPUs,
    -1 if too few nodes hold nobody else. `gain` (an entry per node, then one per number of free GPUs) is 0 before and after."""
    gain = running.gain
    pool = kinds.pools[at]
    for other in range(spot, num_running):
        part = nodes.head[running.jobs[other]]
        while part >= 0:
            gain[nodes.part_node[part]] += nodes.part_gpus[part]
            part = nodes.part_next[part]
    usable = max(kinds.usable[at], 1)
    enough = mark_cleared((need + usable - 1) // usable, pool, gain, nodes)
    num_losers = 0
    for other in range(spot, num_running if enough else spot):
        job = running.jobs[other]
        part = nodes.head[job]
        touched = False
        while part >= 0 and not touched:
            touched = gain[nodes.part_node[part]] == -1
            part = nodes.part_next[part]
        if touched:
            running.losers[num_losers] = job
            num_losers += 1
    for node in range(len(gain)):
        gain[node] = 0
    return num_losers if enough else -1


def mark_cleared(left: int, pool: int, gain: Any, nodes: Nodes) -> bool:
    """Mark (-1) so many nodes of a pool that can be emptied, the freest first; False if there are fewer."""
    num_nodes = len(nodes.free)
    width = nodes.width[pool]
    for node in range(nodes.first[pool], nodes.first[pool + 1]):
        if nodes.free[node] + gain[node] == width:
            gain[num_nodes + nodes.free[node]] += 1
    room = width
    while room >= 0 and gain[num_nodes + room] < left:
        left -= gain[num_nodes + room]
        room -= 1
    for node in range(nodes.first[pool], nodes.first[pool + 1] if room >= 0 else nodes.first[pool]):
        free = nodes.free[node]
        if free + gain[node] == width and free >= room and (free > room or left > 0):
            if free == room:
                left -= 1
            gain[node] = -1
    return bool(room >= 0)


def push_out(
    job: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, waiting: Waiting, events: Events,
    log: Log,
) -> None:  # fmt: skip
    log_run(job, now, rules.counts, jobs, nodes, log)
    settle(job, now, jobs, nodes)
    give_back(job, nodes, kinds)
    jobs.left[job] += jobs.cost[job]
    jobs.guess[job] += jobs.cost[job]
    jobs.since[job] = now
    jobs.preemptions[job] += 1
    events.expect[2 * job] = -1.0
    events.expect[2 * job + 1] = -1.0
    join_waiting(job, rules, jobs, kinds, waiting)


def begin(
    job: int, place: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, running: Running,
    events: Events,
) -> None:  # fmt: skip
    rate = rate_at(kinds.of_job[job], place, nodes, kinds)
    take_place(job, place, nodes, kinds)
    run_on(job, now, rate, jobs, events)
    jobs.position[job] = run_key(job, now, rules, jobs)
    if rules.order == BY_LEVEL:
        expect_level(job, now, rules, jobs, events)
    insert(job, rules, jobs, running)
