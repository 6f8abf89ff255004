"""The loop of preemptive policies: remaining time or service, levels of attained service, or a fixed score."""

from typing import Any, NamedTuple

from traincast.schedule._kernels.hazards import (
    Hazards,
    break_node,
    drop_hazard,
    holds_node,
    mend_node,
    needs_draws,
    next_hazard,
    roll_back,
)
from traincast.schedule._kernels.heaps import drop_top, forget_stale, push
from traincast.schedule._kernels.nodes import Nodes, fits, shift, take
from traincast.schedule._kernels.order import (
    BY_LEVEL,
    BY_SCORE,
    BY_SERVICE,
    CURSOR,
    ENDED,
    LOGGED,
    LOGGED_NODES,
    PASSES,
    RUNNING,
    WAITING,
    Jobs,
    Line,
    Running,
    Waiting,
    choose_by_count,
    first_waiting,
    insert,
    is_before,
    join_waiting,
    remove,
    sort_anew,
    wait_key,
)

# To find one job a node, the last jobs in line are looked at until they hold this many times its own GPUs.
DISTURB = 8
BIG = 1e300
DONE, FULL, MORE = 0, 1, 2


class Events(NamedTuple):
    """A heap of (time, token); token 2j is the end of job j, 2j + 1 its next level. `expect` says which times still hold."""

    keys: Any
    tokens: Any
    size: Any
    expect: Any


class Log(NamedTuple):
    """Runs from start to stop: job, (start, end), and its nodes, whole ones first, from `first` on."""

    wanted: int
    jobs: Any
    spans: Any
    first: Any
    nodes: Any


def run_preemptive(
    line: Line, jobs: Jobs, waiting: Waiting, running: Running, events: Events, nodes: Nodes, log: Log, hazards: Hazards
) -> int:
    """Until nothing is left (DONE), the log is full (FULL) or more times of failures must be drawn (MORE).

    Running jobs stand sorted by a number that does not move while they run, the believed end, score or level and row;
    remaining service does move and is sorted anew. The greedy choice by count can only push out jobs at the tail, so a pass
    looks at the tail and at the heads of classes.
    """
    counts = line.counts
    count = len(jobs.submit)
    while counts[ENDED] < count:
        if has_full_log(line, nodes, log):
            return FULL
        if hazards.wanted == 1 and needs_draws(hazards):
            return MORE
        now = find_moment(line, jobs, running, events, hazards)
        if now >= BIG or now > line.until_s:
            break
        changed = take_events(now, line, jobs, running, events, nodes, log)
        while hazards.wanted == 1 and next_hazard(hazards) == now and not needs_draws(hazards):
            strike(now, line, jobs, waiting, running, events, nodes, log, hazards)
            changed = True
        while counts[CURSOR] < count and jobs.submit[counts[CURSOR]] == now:
            changed = True
            if jobs.start[counts[CURSOR]] > -2.0:
                join_waiting(counts[CURSOR], line, jobs, waiting)
            else:
                counts[ENDED] += 1
            counts[CURSOR] += 1
        if not changed:
            continue
        counts[PASSES] += 1
        if counts[WAITING] > 0:
            serve_all(now, line, jobs, waiting, running, events, nodes, log, hazards)
    if line.until_s < BIG:
        for at in range(counts[RUNNING]):
            job = running.jobs[at]
            close_run(job, line.until_s, line, jobs, nodes, log)
            jobs.attained[job] += line.until_s - jobs.since[job]
    return DONE


def has_full_log(line: Line, nodes: Nodes, log: Log) -> bool:
    counts = line.counts
    if log.wanted == 0:
        return False
    if counts[LOGGED] + counts[RUNNING] + 1 > len(log.jobs):
        return True
    return bool(counts[LOGGED_NODES] + counts[RUNNING] + len(nodes.free) + 1 > len(log.nodes))


def find_moment(line: Line, jobs: Jobs, running: Running, events: Events, hazards: Hazards) -> float:
    """The next moment at which something happens, after events that no longer hold are forgotten."""
    while events.size[0] > 0 and events.expect[events.tokens[0]] != events.keys[0]:
        drop_top(events.keys, events.tokens, 0, events.size, 0)
    if events.size[0] > len(events.keys) - 2 * len(running.keys) - 8:
        forget_stale(events.keys, events.tokens, events.size, events.expect)
    now: float = BIG
    if events.size[0] > 0:
        now = events.keys[0]
    if line.counts[CURSOR] < len(jobs.submit) and jobs.submit[line.counts[CURSOR]] < now:
        now = jobs.submit[line.counts[CURSOR]]
    if hazards.wanted == 1 and next_hazard(hazards) < now:
        now = next_hazard(hazards)
    return now


def serve_all(
    now: float, line: Line, jobs: Jobs, waiting: Waiting, running: Running, events: Events, nodes: Nodes, log: Log,
    hazards: Hazards,
) -> None:  # fmt: skip
    for kind in range(len(waiting.gpus)):
        waiting.dead[kind] = 0
    if line.order == BY_SERVICE:
        sort_anew(now, line, jobs, running)
    if nodes.width == 0:
        pass_by_count(now, line, jobs, waiting, running, events, nodes, log)
        return
    while line.counts[WAITING] > 0 and serve_one(now, line, jobs, waiting, running, events, nodes, log, hazards):
        pass


def strike(
    now: float, line: Line, jobs: Jobs, waiting: Waiting, running: Running, events: Events, nodes: Nodes, log: Log,
    hazards: Hazards,
) -> None:  # fmt: skip
    """A node fails with all jobs on it, or is repaired."""
    node = hazards.tokens[0]
    drop_hazard(hazards)
    if node >= len(hazards.counts):
        mend_node(node - len(hazards.counts), now, nodes, hazards)
        return
    num_struck = 0
    for at in range(line.counts[RUNNING]):
        if holds_node(running.jobs[at], node, nodes):
            hazards.struck[num_struck] = running.jobs[at]
            num_struck += 1
    for at in range(num_struck):
        job = hazards.struck[at]
        close_run(job, now, line, jobs, nodes, log)
        remove(job, line, jobs, running)
        shift(job, jobs.gpus[job], 1, nodes)
        events.expect[2 * job] = -1.0
        events.expect[2 * job + 1] = -1.0
        if roll_back(job, now, jobs.gpus[job], jobs.left, jobs.guess, jobs.attained, jobs.since, hazards):
            join_waiting(job, line, jobs, waiting)
        else:
            line.counts[ENDED] += 1
    break_node(node, now, nodes, hazards)


def take_events(now: float, line: Line, jobs: Jobs, running: Running, events: Events, nodes: Nodes, log: Log) -> bool:
    """Ends and changes of level at this moment; whether there were any."""
    changed = False
    while events.size[0] > 0 and events.keys[0] == now:
        token = events.tokens[0]
        drop_top(events.keys, events.tokens, 0, events.size, 0)
        if events.expect[token] != now:
            continue
        job = token >> 1
        events.expect[token] = -1.0
        changed = True
        remove(job, line, jobs, running)
        if token & 1 == 0:
            close_run(job, now, line, jobs, nodes, log)
            jobs.attained[job] += now - jobs.since[job]
            if jobs.left[job] - (now - jobs.since[job]) > 1e-6 * max(jobs.attained[job], 1.0):
                jobs.killed[job] = 1
            shift(job, jobs.gpus[job], 1, nodes)
            jobs.end[job] = now
            events.expect[token + 1] = -1.0
            line.counts[ENDED] += 1
        else:
            jobs.level[job] += 1
            jobs.position[job] = jobs.level[job] * 2.0 * len(jobs.submit) + job
            insert(job, line, jobs, running)
            expect_level(job, jobs.since[job], line, jobs, events)
    return changed


def expect_level(job: int, since: float, line: Line, jobs: Jobs, events: Events) -> None:
    """When a running job sinks to the next level, if there is one."""
    if jobs.level[job] < len(line.limits):
        limit = line.limits[jobs.level[job]] / (jobs.gpus[job] if line.by_gpu == 1 else 1)
        events.expect[2 * job + 1] = since + max(limit - jobs.attained[job], 0.0)
        push(events.keys, events.tokens, 0, events.size, 0, events.expect[2 * job + 1], 2 * job + 1)


def pass_by_count(
    now: float, line: Line, jobs: Jobs, waiting: Waiting, running: Running, events: Events, nodes: Nodes, log: Log
) -> None:
    num_chosen, num_losers = choose_by_count(now, nodes.hist[0], line, jobs, waiting, running)
    line.counts[WAITING] -= num_chosen
    if num_losers > 0:
        kept = running.losers[0]
        at = 0
        for spot in range(running.losers[0], line.counts[RUNNING]):
            if at < num_losers and spot == running.losers[at]:
                running.losers[at] = running.jobs[spot]
                at += 1
            else:
                running.keys[kept] = running.keys[spot]
                running.jobs[kept] = running.jobs[spot]
                kept += 1
        line.counts[RUNNING] = kept
        for at in range(num_losers):
            nodes.hist[0] += jobs.gpus[running.losers[at]]
            stop(running.losers[at], now, line, jobs, waiting, events, nodes, log)
    for at in range(num_chosen):
        nodes.hist[0] -= jobs.gpus[running.chosen[at]]
        begin(running.chosen[at], now, line, jobs, running, events)


def next_by_count(now: float, room: int, line: Line, jobs: Jobs, waiting: Waiting, running: Running) -> int:
    """The first waiting job that fits by count if those after it made way; -1 if none does."""
    for kind in range(len(waiting.gpus)):
        if waiting.dead[kind] == 1:
            waiting.dead[kind] = 0
    while True:
        kind = first_waiting(waiting)
        if kind < 0:
            return -1
        job: int = waiting.jobs[waiting.base[kind]]
        key = waiting.keys[waiting.base[kind]]
        free = room
        at = line.counts[RUNNING] - 1
        while free < waiting.gpus[kind] and at >= 0:
            if not is_before(key, job, running.keys[at], running.jobs[at], now, line.order):
                break
            free += jobs.gpus[running.jobs[at]]
            at -= 1
        if free >= waiting.gpus[kind]:
            return job
        waiting.dead[kind] = 1


def serve_one(
    now: float, line: Line, jobs: Jobs, waiting: Waiting, running: Running, events: Events, nodes: Nodes, log: Log,
    hazards: Hazards,
) -> bool:  # fmt: skip
    """Start one more job on nodes, or set its class aside; False if nobody is left to be served."""
    job = next_by_count(now, nodes.hist[0], line, jobs, waiting, running)
    if job < 0:
        return False
    need = jobs.gpus[job]
    kind = waiting.of_job[job]
    drop_top(waiting.keys, waiting.jobs, waiting.base[kind], waiting.size, kind)
    line.counts[WAITING] -= 1
    good = fits(need, nodes.hist, nodes.width)
    # A job that was pushed out at this moment pushes nobody out, or two near equals could swap for ever.
    if not good and not (jobs.start[job] >= 0.0 and jobs.since[job] == now):
        if need <= nodes.width:
            num_losers = find_losers(need - nodes.hist[0], line, jobs, running)
            good = evict(need, num_losers, now, line, jobs, waiting, running, events, nodes, log, hazards)
        if not good:
            num_losers = find_last(job, need, now, line, jobs, running, nodes)
            good = evict(need, num_losers, now, line, jobs, waiting, running, events, nodes, log, hazards)
    if good:
        take(job, need, nodes)
        begin(job, now, line, jobs, running, events)
    else:
        waiting.dead[kind] = 2
        join_waiting(job, line, jobs, waiting)
    return True


def find_losers(deficit: int, line: Line, jobs: Jobs, running: Running) -> int:
    """A running job whose followers together are fewer than the deficit must make way."""
    num_running = line.counts[RUNNING]
    num_losers = 0
    spot = num_running
    behind = 0
    while behind < deficit and spot > 0:
        spot -= 1
        behind += jobs.gpus[running.jobs[spot]]
    while deficit > 0 and spot < num_running:
        size = jobs.gpus[running.jobs[spot]]
        behind -= size
        if behind < deficit:
            running.losers[num_losers] = running.jobs[spot]
            num_losers += 1
            deficit -= size
        spot += 1
    return num_losers


def find_last(job: int, need: int, now: float, line: Line, jobs: Jobs, running: Running, nodes: Nodes) -> int:
    """By count there was room, but not together: those among the last jobs in line whose leaving may help."""
    key = wait_key(job, line, jobs)
    num_running = line.counts[RUNNING]
    spot = num_running
    freed = 0
    while spot > 0 and (need > nodes.width or freed < DISTURB * need):
        if not is_before(key, job, running.keys[spot - 1], running.jobs[spot - 1], now, line.order):
            break
        spot -= 1
        freed += jobs.gpus[running.jobs[spot]]
    if need > nodes.width:
        return find_in_the_way(need, spot, num_running, jobs.gpus, running, nodes)
    num_losers: int = num_running - spot
    for at in range(num_losers):
        running.losers[at] = running.jobs[spot + at]
    return num_losers


def evict(
    need: int, num_losers: int, now: float, line: Line, jobs: Jobs, waiting: Waiting, running: Running, events: Events,
    nodes: Nodes, log: Log, hazards: Hazards,
) -> bool:  # fmt: skip
    """Free losers from the last one on until the job fits, and spare those whose leaving did not help; if it never fits,
    nobody is disturbed."""
    losers = running.losers
    good = False
    left_over = num_losers
    while left_over > 0 and not good:
        left_over -= 1
        shift(losers[left_over], jobs.gpus[losers[left_over]], 1, nodes)
        good = fits(need, nodes.hist, nodes.width)
    for at in range(num_losers - 1, left_over, -1):
        shift(losers[at], jobs.gpus[losers[at]], -1, nodes)
        if good and not fits(need, nodes.hist, nodes.width):
            shift(losers[at], jobs.gpus[losers[at]], 1, nodes)
        else:
            losers[at] = -1
    if not good and left_over < num_losers:
        shift(losers[left_over], jobs.gpus[losers[left_over]], -1, nodes)
        losers[left_over] = -1
    for at in range(left_over, num_losers):
        if losers[at] >= 0:
            remove(losers[at], line, jobs, running)
            if hazards.wanted == 1:  # its state was saved when it was pushed out
                hazards.since_checkpoint[losers[at]] = 0.0
            stop(losers[at], now, line, jobs, waiting, events, nodes, log)
    return good


def find_in_the_way(need: int, spot: int, num_running: int, gpus: Any, running: Running, nodes: Nodes) -> int:
    """For a job of several nodes: those from `spot` on that hold the nodes which are cleared at the least cost in GPUs, if
    enough nodes hold nobody else. `gain` (an entry per node, then one per number of free GPUs) is 0 before and after."""
    gain = running.gain
    width = nodes.width
    for at in range(spot, num_running):
        rest = gpus[running.jobs[at]]
        node = nodes.held[running.jobs[at]]
        while node >= 0:
            gain[node] = width
            rest -= width
            node = nodes.chain[node]
        if nodes.last[running.jobs[at]] >= 0:
            gain[nodes.last[running.jobs[at]]] += rest
    enough = mark_cleared((need + width - 1) // width, gain, nodes)
    num_losers = 0
    for at in range(spot, num_running if enough else spot):
        job = running.jobs[at]
        touched = nodes.last[job] >= 0 and gain[nodes.last[job]] == -1
        node = nodes.held[job]
        while node >= 0 and not touched:
            touched = gain[node] == -1
            node = nodes.chain[node]
        if touched:
            running.losers[num_losers] = job
            num_losers += 1
    for at in range(len(nodes.free) + width + 1):
        gain[at] = 0
    return num_losers


def mark_cleared(left: int, gain: Any, nodes: Nodes) -> bool:
    """Mark (-1) so many nodes that can be emptied, the freest first; False if there are fewer."""
    num_nodes = len(nodes.free)
    for node in range(num_nodes):
        if nodes.free[node] + gain[node] == nodes.width:
            gain[num_nodes + nodes.free[node]] += 1
    room = nodes.width
    while room >= 0 and gain[num_nodes + room] < left:
        left -= gain[num_nodes + room]
        room -= 1
    for node in range(num_nodes if room >= 0 else 0):
        free = nodes.free[node]
        if free + gain[node] == nodes.width and free >= room and (free > room or left > 0):
            if free == room:
                left -= 1
            gain[node] = -1
    return room >= 0


def close_run(job: int, now: float, line: Line, jobs: Jobs, nodes: Nodes, log: Log) -> None:
    if log.wanted == 0 or now <= jobs.since[job]:
        return
    counts = line.counts
    at = counts[LOGGED]
    log.jobs[at] = job
    log.spans[2 * at] = jobs.since[job]
    log.spans[2 * at + 1] = now
    log.first[at] = counts[LOGGED_NODES]
    counts[LOGGED] += 1
    node = nodes.held[job] if nodes.width > 0 else -1
    while node >= 0:
        log.nodes[counts[LOGGED_NODES]] = node
        counts[LOGGED_NODES] += 1
        node = nodes.chain[node]
    log.nodes[counts[LOGGED_NODES]] = nodes.last[job] if nodes.width > 0 else 0
    counts[LOGGED_NODES] += 1


def stop(
    job: int, now: float, line: Line, jobs: Jobs, waiting: Waiting, events: Events, nodes: Nodes, log: Log
) -> None:
    close_run(job, now, line, jobs, nodes, log)
    elapsed = now - jobs.since[job]
    jobs.left[job] = jobs.left[job] - elapsed + jobs.cost[job]
    jobs.guess[job] = jobs.guess[job] - elapsed + jobs.cost[job]
    jobs.attained[job] += elapsed
    jobs.since[job] = now
    jobs.preemptions[job] += 1
    events.expect[2 * job] = -1.0
    events.expect[2 * job + 1] = -1.0
    join_waiting(job, line, jobs, waiting)


def begin(job: int, now: float, line: Line, jobs: Jobs, running: Running, events: Events) -> None:
    if jobs.start[job] < 0.0:
        jobs.start[job] = now
    jobs.since[job] = now
    jobs.position[job] = now + jobs.guess[job]
    if line.order == BY_SERVICE:
        jobs.position[job] = jobs.guess[job] * jobs.gpus[job]
    if line.order == BY_SCORE:
        jobs.position[job] = line.score[job]
    if line.order == BY_LEVEL:
        jobs.position[job] = jobs.level[job] * 2.0 * len(jobs.submit) + job
        expect_level(job, now, line, jobs, events)
    ends = now + jobs.left[job]
    stops = now + max(jobs.limit[job] - jobs.attained[job], 0.0)
    events.expect[2 * job] = stops if stops < ends else ends
    push(events.keys, events.tokens, 0, events.size, 0, events.expect[2 * job], 2 * job)
    insert(job, line, jobs, running)
