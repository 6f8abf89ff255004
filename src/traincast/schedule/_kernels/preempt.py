"""One look at the line of a preemptive policy: who makes way for whom, by count or on nodes."""

from typing import Any

from traincast.schedule._kernels.hazards import Hazards
from traincast.schedule._kernels.heaps import drop_top, push
from traincast.schedule._kernels.links import Promises, share_links
from traincast.schedule._kernels.nodes import BITS, Kinds, Nodes, low_bit, pool_of_job, shift
from traincast.schedule._kernels.order import (
    Running,
    Waiting,
    choose_by_count,
    choose_by_pools,
    first_behind,
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
from traincast.schedule._kernels.residents import BIG, is_cleared, next_behind, number_anew
from traincast.schedule._kernels.tables import (
    BY_LEVEL,
    RUNNING,
    WAITING,
    Events,
    Jobs,
    Log,
    Rules,
    expect_level,
    give_back,
    log_run,
    note_move,
    run_on,
    settle,
)

# To find one job a node, the last jobs in line are looked at until they hold this many times its own GPUs.
DISTURB = 8


def pass_preemptive(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, waiting: Waiting, running: Running,
    events: Events, log: Log, hazards: Hazards, promises: Promises,
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
        moved = events.moves.size[0] > 0 and share_links(now, rules, jobs, nodes, events, hazards, promises)
        if moved and rules.moving == 1:
            sort_anew(now, rules, jobs, running)


def sink_level(job: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, running: Running, events: Events) -> None:
    """A running job has reached the limit of its level."""
    remove(job, rules, jobs, nodes, running)
    jobs.level[job] += 1
    jobs.position[job] = run_key(job, now, rules, jobs)
    insert(job, rules, jobs, nodes, running)
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
        for spot in range(running.losers[0], running.begin[0] + rules.counts[RUNNING]):
            if at < num_losers and spot == running.losers[at]:
                running.losers[at] = running.jobs[spot]
                at += 1
            else:
                running.keys[kept] = running.keys[spot]
                running.jobs[kept] = running.jobs[spot]
                kept += 1
        rules.counts[RUNNING] = kept - running.begin[0]
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
    one_pool = len(nodes.width) == 1
    while True:
        kind = first_waiting(waiting)
        if kind < 0:
            return -1, -1
        job = waiting.jobs[waiting.base[kind]]
        key = waiting.keys[waiting.base[kind]]
        for entry in range(kinds.pool_first[kind], kinds.pool_first[kind + 1]):
            pool = kinds.pools[entry]
            free = nodes.hist[nodes.hist_at[pool]]
            first = running.begin[0]
            at = first + rules.counts[RUNNING] - 1
            while free < kinds.gpus[kind] and at >= first:
                if not is_before(key, job, running.keys[at], running.jobs[at], now, rules):
                    break
                if one_pool or pool_of_job(running.jobs[at], nodes) == pool:
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
    place = find_place(kind, nodes, kinds)
    good = place >= 0
    num_losers = 0
    # A job that was pushed out at this moment pushes nobody out, or two near equals could swap for ever.
    if place < 0 and not (jobs.start[job] >= 0.0 and jobs.since[job] == now):
        alone = needs_one_node(kind, nodes, kinds)
        if kinds.gpus[kind] <= kinds.widest[kind]:
            num_losers = find_losers(pool, kinds.gpus[kind], rules, jobs, nodes, running)
            good = spare_losers(kind, alone, num_losers, nodes, kinds, running)
        if not good:
            num_losers = find_last(job, now, rules, jobs, nodes, kinds, running)
            good = spare_losers(kind, alone, num_losers, nodes, kinds, running)
    if not good:
        waiting.dead[kind] = 2
        return True
    drop_top(waiting.keys, waiting.jobs, waiting.base[kind], waiting.size, kind)
    rules.counts[WAITING] -= 1
    if place < 0:
        evict(num_losers, now, rules, jobs, nodes, kinds, waiting, running, events, log, hazards)
        place = find_place(kind, nodes, kinds)
    begin(job, place, now, rules, jobs, nodes, kinds, running, events)
    for other in range(len(waiting.size)):
        if waiting.dead[other] == 1:
            waiting.dead[other] = 0
    return True


def find_losers(pool: int, need: int, rules: Rules, jobs: Jobs, nodes: Nodes, running: Running) -> int:
    """A running job of the pool whose followers together are fewer than the deficit must make way."""
    one_pool = len(nodes.width) == 1
    begin = running.begin[0]
    stop = begin + rules.counts[RUNNING]
    deficit = need - nodes.hist[nodes.hist_at[pool]]
    num_losers = 0
    spot = stop
    behind = 0
    while behind < deficit and spot > begin:
        spot -= 1
        if one_pool or pool_of_job(running.jobs[spot], nodes) == pool:
            behind += jobs.gpus[running.jobs[spot]]
    while deficit > 0 and spot < stop:
        if one_pool or pool_of_job(running.jobs[spot], nodes) == pool:
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
    begin = running.begin[0]
    stop = begin + rules.counts[RUNNING]
    if need > kinds.widest[kind]:
        spot = first_behind(key, job, now, rules, running)
        if running.residents.stale[0] == 1:
            number_anew(jobs.position, running.residents)
        number = running.keys[spot] if spot < stop else BIG
        behind = running.jobs[spot] if spot < stop else 0
        for at in range(kinds.pool_first[kind], kinds.pool_first[kind + 1]):
            found = find_in_the_way(need, at, number, behind, jobs, nodes, kinds, running)
            if found >= 0:
                return found
        return 0
    spot = stop
    freed = 0
    while spot > begin and freed < DISTURB * need:
        if not is_before(key, job, running.keys[spot - 1], running.jobs[spot - 1], now, rules):
            break
        spot -= 1
        freed += jobs.gpus[running.jobs[spot]]
    for at in range(stop - spot):
        running.losers[at] = running.jobs[spot + at]
    num_losers: int = stop - spot
    return num_losers


def needs_one_node(kind: int, nodes: Nodes, kinds: Kinds) -> bool:
    """Whether the job fits if any node of its pools has as many free GPUs."""
    if kinds.scanned[kind] == 1:
        return False
    for at in range(kinds.pool_first[kind], kinds.pool_first[kind + 1]):
        if kinds.gpus[kind] > nodes.width[kinds.pools[at]]:
            return False
    return True


def spare_losers(kind: int, alone: bool, num_losers: int, nodes: Nodes, kinds: Kinds, running: Running) -> bool:
    """Free losers from the last one on until the job would fit, and spare (-1) those whose leaving did not help; if it never
    fits, all of them."""
    if alone:
        return spare_on_one(kind, num_losers, nodes, kinds, running)
    losers = running.losers
    good = False
    left_over = num_losers
    while left_over > 0 and not good:
        left_over -= 1
        shift(losers[left_over], 1, nodes, kinds)
        good = find_place(kind, nodes, kinds) >= 0
    if left_over < num_losers and good:
        for at in range(num_losers - 1, left_over, -1):
            shift(losers[at], -1, nodes, kinds)
            if find_place(kind, nodes, kinds) < 0:
                shift(losers[at], 1, nodes, kinds)
            else:
                losers[at] = -1
    for at in range(num_losers):
        if at >= left_over and losers[at] >= 0:
            shift(losers[at], -1, nodes, kinds)
        if at < left_over or not good:
            losers[at] = -1
    return good


def spare_on_one(kind: int, num_losers: int, nodes: Nodes, kinds: Kinds, running: Running) -> bool:
    """The same for a job of one node, by counting what each node would gain. `gain` is 0 before and after."""
    losers = running.losers
    left_over = num_losers
    num_fit = 0
    while left_over > 0 and num_fit == 0:
        left_over -= 1
        num_fit += count_gain(losers[left_over], 1, kind, nodes, kinds, running.gain)
    good = num_fit > 0
    for at in range(num_losers - 1, left_over if good else num_losers - 1, -1):
        num_fit += count_gain(losers[at], -1, kind, nodes, kinds, running.gain)
        if num_fit == 0:
            num_fit += count_gain(losers[at], 1, kind, nodes, kinds, running.gain)
        else:
            losers[at] = -1
    for at in range(num_losers):
        if at >= left_over and losers[at] >= 0:
            forget_gain(losers[at], nodes, running.gain)
        if at < left_over or not good:
            losers[at] = -1
    return good


def count_gain(job: int, sign: int, kind: int, nodes: Nodes, kinds: Kinds, gain: Any) -> int:
    """How many more nodes have room for the kind when a job leaves (sign 1) or comes back (sign -1)."""
    need = kinds.gpus[kind]
    more = 0
    part = nodes.head[job]
    while part >= 0:
        node = nodes.part_node[part]
        before = nodes.free[node] + gain[node]
        after = before + sign * nodes.part_gpus[part]
        gain[node] += sign * nodes.part_gpus[part]
        if (before >= need) != (after >= need) and may_use(kind, nodes.pool_of[node], kinds):
            more += sign
        part = nodes.part_next[part]
    return more


def may_use(kind: int, pool: int, kinds: Kinds) -> bool:
    for at in range(kinds.pool_first[kind], kinds.pool_first[kind + 1]):  # noqa: SIM110 (numba compiles no generators)
        if kinds.pools[at] == pool:
            return True
    return False


def forget_gain(job: int, nodes: Nodes, gain: Any) -> None:
    part = nodes.head[job]
    while part >= 0:
        gain[nodes.part_node[part]] = 0
        part = nodes.part_next[part]


def evict(
    num_losers: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, waiting: Waiting,
    running: Running, events: Events, log: Log, hazards: Hazards,
) -> None:  # fmt: skip
    """Those losers make way who were not spared: the one by whom the job fits, then the others from the last in line on."""
    losers = running.losers
    first = 0
    while losers[first] < 0:
        first += 1
    for step in range(num_losers - first):
        at = first if step == 0 else num_losers - step
        if losers[at] >= 0:
            remove(losers[at], rules, jobs, nodes, running)
            if hazards.wanted == 1:  # its state was saved when it was pushed out
                hazards.since_checkpoint[losers[at]] = 0.0
            push_out(losers[at], now, rules, jobs, nodes, kinds, waiting, events, log)


def find_in_the_way(
    need: int, at: int, number: float, behind: int, jobs: Jobs, nodes: Nodes, kinds: Kinds, running: Running
) -> int:
    """For a job of several nodes: those from a place in line on (`number`, ties from the job `behind` on) that hold the nodes of
    a pool which are cleared at the least cost in GPUs, -1 if too few nodes hold nobody else."""
    pool = kinds.pools[at]
    usable = max(kinds.usable[at], 1)
    wanted = (need + usable - 1) // usable
    if not has_cleared(wanted, pool, number, behind, jobs, nodes, running):
        return -1
    for level in range(nodes.width[pool], 0, -1):
        if nodes.hist[nodes.hist_at[pool] + 1 + level] == 0:
            continue
        base = nodes.bits_at[pool] + level * nodes.words[pool]
        for word in range(nodes.words[pool]):
            bits = nodes.bits[base + word]
            while bits != 0 and wanted > 0:
                node = nodes.first[pool] + word * BITS + low_bit(bits)
                bits = bits & (bits - 1)
                if is_cleared(node, number, behind, jobs.position, nodes.free, nodes.width[pool], running.residents):
                    wanted -= 1
                    gather_residents(node, jobs, running)
    node = nodes.first[pool]
    while wanted > 0:
        node = next_behind(node, number, running.residents.tree)
        if nodes.free[node] == 0 and is_cleared(
            node, number, behind, jobs.position, nodes.free, nodes.width[pool], running.residents
        ):
            wanted -= 1
            gather_residents(node, jobs, running)
        node += 1
    return list_losers(running)


def has_cleared(wanted: int, pool: int, number: float, behind: int, jobs: Jobs, nodes: Nodes, running: Running) -> bool:
    """Whether so many nodes of a pool can be cleared."""
    node = next_behind(nodes.first[pool], number, running.residents.tree)
    while wanted > 0 and node >= 0 and node < nodes.first[pool + 1]:
        if is_cleared(node, number, behind, jobs.position, nodes.free, nodes.width[pool], running.residents):
            wanted -= 1
        node = next_behind(node + 1, number, running.residents.tree)
    return wanted == 0


def gather_residents(node: int, jobs: Jobs, running: Running) -> None:
    """All jobs of a node go to those who must make way, the first in line on top."""
    part = running.residents.first[node]
    while part >= 0:
        job = running.residents.owner[part]
        push(running.heap_keys, running.heap_jobs, 0, running.heap_size, 0, jobs.position[job], job)
        part = running.residents.after[part]


def list_losers(running: Running) -> int:
    """Those who were gathered, in order and once each."""
    num_losers = 0
    while running.heap_size[0] > 0:
        job = running.heap_jobs[0]
        if num_losers == 0 or running.losers[num_losers - 1] != job:
            running.losers[num_losers] = job
            num_losers += 1
        drop_top(running.heap_keys, running.heap_jobs, 0, running.heap_size, 0)
    return num_losers


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
    note_move(job, -1 - job, events.moves)
    join_waiting(job, rules, jobs, kinds, waiting)


def begin(
    job: int, place: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, running: Running,
    events: Events,
) -> None:  # fmt: skip
    rate = rate_at(kinds.of_job[job], place, nodes, kinds)
    take_place(job, place, nodes, kinds)
    run_on(job, now, rate, jobs, events)
    if rules.moving == 1:
        jobs.keys[job] = now + jobs.guess[job] / rate
    jobs.position[job] = run_key(job, now, rules, jobs)
    if rules.order == BY_LEVEL:
        expect_level(job, now, rules, jobs, events)
    insert(job, rules, jobs, nodes, running)
