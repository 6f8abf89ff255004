"""EASY backfill: the first job that does not fit gets a reservation, and others start where they do not delay it."""

import math

from traincast.schedule._kernels.ends import Ends, first_room, room_by
from traincast.schedule._kernels.hazards import Hazards
from traincast.schedule._kernels.lines import Line, leave_line, set_wait, start_until_blocked
from traincast.schedule._kernels.links import Promises, share_links
from traincast.schedule._kernels.nodes import Kinds, Nodes
from traincast.schedule._kernels.places import find_place, rate_at, take_place
from traincast.schedule._kernels.shadow import HEAD, VALID, Shadow, put_back, reserve_nodes, take_beside, withdraw
from traincast.schedule._kernels.tables import BIG, WAITING, Events, Jobs, Rules
from traincast.schedule._kernels.trees import first_leaf


def pass_easy(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, line: Line, events: Events, hazards: Hazards,
    promises: Promises,
) -> None:  # fmt: skip
    """A reservation is kept until it is due, or until a job ended early or another job stands first."""
    ends = promises.ends
    shadow = promises.shadow
    head, started = start_until_blocked(now, rules, jobs, nodes, kinds, line, ends, events)
    if started:
        shadow.state[VALID] = 0
        if events.moves.size[0] > 0:
            share_links(now, rules, jobs, nodes, events, hazards, promises)
    if head < 0:
        return
    set_wait(head, math.inf, kinds, line)
    if len(nodes.width) == 1 and nodes.width[0] == 0:
        fill_by_count(head, now, rules, jobs, nodes, kinds, line, ends, events)
    else:
        may_fill = rules.counts[WAITING] > 1 and nodes.room[0] > 0 and has_candidate(nodes, kinds, line)
        if may_fill and (shadow.state[VALID] == 0 or shadow.state[HEAD] != head or now >= shadow.begin[0]):
            reserve_nodes(head, now, nodes, kinds, ends, shadow)
        while may_fill:
            may_fill = fill_one(now, rules, jobs, nodes, kinds, line, ends, shadow, events)
            may_fill = may_fill and rules.counts[WAITING] > 1 and nodes.room[0] > 0
    set_wait(head, jobs.guess[head], kinds, line)


def has_candidate(nodes: Nodes, kinds: Kinds, line: Line) -> bool:
    """Whether anybody behind the first one has room now; else no reservation need be known."""
    for kind in range(len(kinds.gpus)):
        if line.failed[kind] == 1 or line.tree[line.base[kind] + 1] >= BIG:
            continue
        if find_place(kind, nodes, kinds) >= 0:
            return True
        line.failed[kind] = 1
    return False


def fill_one(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, line: Line, ends: Ends, shadow: Shadow,
    events: Events,
) -> bool:  # fmt: skip
    """Start the first job in line that does not delay the reserved one; False if there is none."""
    begin = shadow.begin[0]
    if begin < BIG:
        look_beside(nodes, kinds, line, shadow)
    best = -1
    for kind in range(len(kinds.gpus)):
        if line.failed[kind] == 1 or line.tree[line.base[kind] + 1] >= BIG:
            continue
        at = find_place(kind, nodes, kinds)
        if at < 0:
            line.failed[kind] = 1
            continue
        rate = rate_at(kind, at, nodes, kinds)
        bound = BIG if begin >= BIG or shadow.beside[kind] == 1 else begin
        place = first_leaf(line.tree, line.base[kind], line.leaves[kind], now, rate, bound)
        if place >= 0:
            job = line.job_at[line.first[kind] + place]
            if best < 0 or line.rank[job] < line.rank[best]:
                best = job
    if best < 0:
        return False
    kind = kinds.of_job[best]
    at = find_place(kind, nodes, kinds)
    rate = rate_at(kind, at, nodes, kinds)
    if begin < BIG and now + jobs.guess[best] / rate > begin:
        rate = take_beside(best, nodes, kinds, shadow)
    else:
        take_place(best, at, nodes, kinds)
    leave_line(best, now, rate, rules, jobs, kinds, line, ends, events)
    return True


def look_beside(nodes: Nodes, kinds: Kinds, line: Line, shadow: Shadow) -> None:
    """Which kinds have room beside the reservation."""
    withdraw(nodes, shadow)
    for kind in range(len(kinds.gpus)):
        if line.failed[kind] == 0 and line.tree[line.base[kind] + 1] < BIG:
            shadow.beside[kind] = 1 if find_place(kind, nodes, kinds) >= 0 else 0
    put_back(nodes, shadow)


def fill_by_count(
    head: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, line: Line, ends: Ends, events: Events
) -> None:
    """In one pool whose GPUs are counted, the reservation is a number."""
    begin = BIG
    extra = BIG
    waits_for = first_room(jobs.gpus[head], nodes.room[0], ends)
    if waits_for >= 0:
        begin = ends.at[waits_for] if ends.at[waits_for] > now else now
        extra = nodes.room[0] + room_by(begin, ends) - jobs.gpus[head] + 0.0
    while rules.counts[WAITING] > 1 and nodes.room[0] > 0:
        best = -1
        for kind in range(len(kinds.gpus)):
            if kinds.gpus[kind] > nodes.room[0]:
                continue
            bound = begin if kinds.gpus[kind] > extra else BIG
            rate = rate_at(kind, kinds.pool_first[kind], nodes, kinds)
            place = first_leaf(line.tree, line.base[kind], line.leaves[kind], now, rate, bound)
            if place >= 0:
                job = line.job_at[line.first[kind] + place]
                if best < 0 or line.rank[job] < line.rank[best]:
                    best = job
        if best < 0:
            break
        at = kinds.pool_first[kinds.of_job[best]]
        rate = rate_at(kinds.of_job[best], at, nodes, kinds)
        if now + jobs.guess[best] / rate > begin:
            extra -= jobs.gpus[best]
        take_place(best, at, nodes, kinds)
        leave_line(best, now, rate, rules, jobs, kinds, line, ends, events)
