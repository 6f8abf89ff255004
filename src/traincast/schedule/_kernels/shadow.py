"""The nodes that the first job that does not fit will get, and what others may hold beside them."""

from typing import Any, NamedTuple

from traincast.schedule._kernels.ends import Ends
from traincast.schedule._kernels.nodes import Ground, Kinds, Nodes, change, over, recount, recount_class
from traincast.schedule._kernels.places import add_spot, find_place, rate_at, scan_pool, take_place

BIG = 1e300
HEAD, VALID, COUNT, TOUCHED = 0, 1, 2, 3
"""Places in `Shadow.state`: the reserved job, whether its reservation holds, on how many nodes, nodes with a gain."""


class Shadow(NamedTuple):
    """A reservation from `begin[0]` on. On its nodes (`node`) others may hold `left` GPUs with `cpus` and `memory` then; what is
    free on other nodes now is free then too. `held` GPUs and `whole` CPUs and memory are out of sight while others look for room
    beside it. `spare` are nodes as they will be; kinds that go by bitmaps need only its histogram and what nodes `gain`
    (0 between looks). `beside` says by kind who has room beside the reservation."""

    spare: Ground
    gain: Any
    touched: Any
    state: Any
    begin: Any
    node: Any
    left: Any
    cpus: Any
    memory: Any
    held: Any
    whole: Any
    beside: Any


def reserve_nodes(job: int, now: float, nodes: Nodes, kinds: Kinds, ends: Ends, shadow: Shadow) -> None:
    """The first moment at which the job fits as running jobs are believed to end; BIG if it never does."""
    shadow.state[HEAD] = job
    shadow.state[VALID] = 1
    shadow.state[COUNT] = 0
    spare = over(nodes, shadow.spare)
    kind = kinds.of_job[job]
    copy_state(kinds.scanned[kind] == 1, kinds.of_class[kind], nodes, spare)
    begin = -1.0
    depth = 0
    at = ends.root[0]
    place = -1
    while depth > 0 or at >= 0:
        while at >= 0:
            ends.path[depth] = at
            depth += 1
            at = ends.lower[at]
        depth -= 1
        at = ends.path[depth]
        when = ends.at[at] if ends.at[at] > now else now
        if when > begin and begin >= 0.0:
            place = find_place(kind, spare, kinds)
            if place >= 0:
                break
        begin = when
        if kinds.scanned[kind] == 1:
            give_spare(at, kinds.of_class[kind], kinds, nodes, spare)
        else:
            give_gain(at, nodes, spare, shadow)
        at = ends.upper[at]
    if place < 0 and begin >= 0.0:
        place = find_place(kind, spare, kinds)
    shadow.begin[0] = begin if place >= 0 else BIG
    if place >= 0:
        pick_reserved(kind, place, nodes, spare, kinds, shadow)
    for spot in range(shadow.state[TOUCHED]):
        shadow.gain[shadow.touched[spot]] = 0
    shadow.state[TOUCHED] = 0


def copy_state(whole: bool, of_class: int, nodes: Nodes, spare: Nodes) -> None:
    spare.room[0] = -1  # its bitmaps are not kept
    for at in range(len(nodes.hist)):
        spare.hist[at] = nodes.hist[at]
    if whole:
        for node in range(len(nodes.free)):
            spare.free[node] = nodes.free[node]
        for node in range(len(nodes.cpus)):
            spare.cpus[node] = nodes.cpus[node]
            spare.memory[node] = nodes.memory[node]
    if of_class >= 0:
        count = len(nodes.pool_of)
        for at in range(of_class * count, (of_class + 1) * count):
            spare.seen[at] = nodes.seen[at]
        count = len(nodes.width) * len(nodes.levels)
        for at in range(of_class * count, (of_class + 1) * count):
            spare.steps[at] = nodes.steps[at]


def give_gain(job: int, nodes: Nodes, spare: Nodes, shadow: Shadow) -> None:
    """A job will have ended, for kinds that look at the histogram alone."""
    part = nodes.head[job]
    while part >= 0:
        node = nodes.part_node[part]
        count = nodes.part_gpus[part]
        base = nodes.hist_at[nodes.pool_of[node]]
        before = nodes.free[node] + shadow.gain[node]
        spare.hist[base] += count
        if nodes.width[nodes.pool_of[node]] > 0:
            spare.hist[base + 1 + before] -= 1
            spare.hist[base + 1 + before + count] += 1
        if shadow.gain[node] == 0:
            shadow.touched[shadow.state[TOUCHED]] = node
            shadow.state[TOUCHED] += 1
        shadow.gain[node] += count
        part = nodes.part_next[part]


def give_spare(job: int, of_class: int, kinds: Kinds, nodes: Nodes, spare: Nodes) -> None:
    kind = kinds.of_job[job]
    part = nodes.head[job]
    while part >= 0:
        node = nodes.part_node[part]
        count = nodes.part_gpus[part]
        base = spare.hist_at[spare.pool_of[node]]
        spare.hist[base] += count
        if spare.width[spare.pool_of[node]] > 0:
            spare.hist[base + 1 + spare.free[node]] -= 1
            spare.hist[base + 1 + spare.free[node] + count] += 1
        spare.free[node] += count
        if kinds.beside[kind] == 1:
            spare.cpus[node] += kinds.cpus[kind] * count
            spare.memory[node] += kinds.memory[kind] * count
        if of_class >= 0:
            recount_class(of_class, node, spare)
        part = nodes.part_next[part]


def pick_reserved(kind: int, place: int, nodes: Nodes, spare: Nodes, kinds: Kinds, shadow: Shadow) -> None:
    """The nodes of the reservation, and what it leaves of them."""
    scanned = kinds.scanned[kind] == 1
    if scanned:
        scan_pool(kind, place, spare, kinds)
    else:
        pick_gained(kinds.gpus[kind], kinds.pools[place], nodes, shadow)
    beside = len(nodes.cpus) > 1
    for spot in range(nodes.spot_size[0]):
        node = nodes.spot_node[spot]
        count = nodes.spot_gpus[spot]
        free = spare.free[node] if scanned else nodes.free[node] + shadow.gain[node]
        shadow.node[spot] = node
        shadow.left[spot] = free - count
        if beside:
            # Kinds that go by bitmaps ask for no CPUs or memory that could run out.
            shadow.cpus[spot] = spare.cpus[node] - kinds.cpus[kind] * count if scanned else BIG
            shadow.memory[spot] = spare.memory[node] - kinds.memory[kind] * count if scanned else BIG
    shadow.state[COUNT] = nodes.spot_size[0]


def pick_gained(need: int, pool: int, nodes: Nodes, shadow: Shadow) -> None:
    """The consolidated rule on nodes with what they gain."""
    width = nodes.width[pool]
    nodes.spot_size[0] = 0
    if width == 0:
        add_spot(nodes.first[pool], need, nodes)
        return
    full = need // width
    rest = need - full * width
    if full == 0:  # no node had room, so it is one that gains
        best = -1
        for spot in range(shadow.state[TOUCHED]):
            node = shadow.touched[spot]
            room = nodes.free[node] + shadow.gain[node]
            if room < rest or nodes.pool_of[node] != pool:
                continue
            than = nodes.free[best] + shadow.gain[best] if best >= 0 else width + 1
            if room < than or (room == than and node < best):
                best = node
        add_spot(best, rest, nodes)
        return
    last = nodes.first[pool]
    while full > 0:
        if nodes.free[last] + shadow.gain[last] == width:
            add_spot(last, width, nodes)
            full -= 1
        last += 1
    best = -1
    least = width + 1
    for node in range(nodes.first[pool], nodes.first[pool + 1] if rest > 0 else nodes.first[pool]):
        room = nodes.free[node] + shadow.gain[node]
        if room >= rest and room < least and (room < width or node >= last):
            best = node
            least = room
    if best >= 0:
        add_spot(best, rest, nodes)


def withdraw(nodes: Nodes, shadow: Shadow) -> None:
    """Put what is free now but not when the reservation begins out of sight."""
    for spot in range(shadow.state[COUNT]):
        node = shadow.node[spot]
        over_left = nodes.free[node] - max(shadow.left[spot], 0)
        shadow.held[spot] = max(over_left, 0)
        if over_left > 0:
            change(node, -over_left, nodes)
        if len(nodes.cpus) > 1:
            shadow.whole[2 * spot] = nodes.cpus[node]
            shadow.whole[2 * spot + 1] = nodes.memory[node]
            nodes.cpus[node] = min(nodes.cpus[node], shadow.cpus[spot])
            nodes.memory[node] = min(nodes.memory[node], shadow.memory[spot])
            recount(node, nodes)


def put_back(nodes: Nodes, shadow: Shadow) -> None:
    """The opposite, before anything was taken."""
    for spot in range(shadow.state[COUNT]):
        node = shadow.node[spot]
        if shadow.held[spot] > 0:
            change(node, shadow.held[spot], nodes)
        if len(nodes.cpus) > 1:
            nodes.cpus[node] = shadow.whole[2 * spot]
            nodes.memory[node] = shadow.whole[2 * spot + 1]
            recount(node, nodes)


def take_beside(job: int, nodes: Nodes, kinds: Kinds, shadow: Shadow) -> float:
    """Nodes for a job that will still run when the reservation begins, and how fast it is there."""
    kind = kinds.of_job[job]
    withdraw(nodes, shadow)
    at = find_place(kind, nodes, kinds)
    rate = rate_at(kind, at, nodes, kinds)
    take_place(job, at, nodes, kinds)
    put_back(nodes, shadow)
    part = nodes.head[job]
    while part >= 0:
        node = nodes.part_node[part]
        count = nodes.part_gpus[part]
        for spot in range(shadow.state[COUNT]):
            if shadow.node[spot] == node:
                shadow.left[spot] -= count
                if kinds.beside[kind] == 1:
                    shadow.cpus[spot] -= kinds.cpus[kind] * count
                    shadow.memory[spot] -= kinds.memory[kind] * count
                    nodes.cpus[node] -= kinds.cpus[kind] * count
                    nodes.memory[node] -= kinds.memory[kind] * count
                    recount(node, nodes)
        part = nodes.part_next[part]
    return rate
