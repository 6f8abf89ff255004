"""Slurm's two looks at the queue: in order until partitions are blocked, and backfill over free nodes in slots of future time."""

import math
from typing import Any, NamedTuple

KINDS = 3
"""What a node has and a job asks for: GPUs, CPUs, mebibytes of memory."""
BLOCKED, MAY_PREEMPT = 1, 2


class Site(NamedTuple):
    """Nodes, who may use them (`masks`, a row per group of jobs) and windows of time in which they are set aside.

    `rank` says in which order of weight nodes are taken. `blocked` marks nodes that no later job of a pass may use.
    """

    size: Any
    free: Any
    masks: Any
    rank: Any
    fullest_first: int
    blocked: Any
    window_nodes: Any
    window_begin: Any
    window_end: Any


class Asks(NamedTuple):
    """By job: nodes, then GPUs, CPUs and memory on each, GPUs in all, whole nodes, group, window, believed run time, partition
    and whether it may preempt others."""

    nodes: Any
    each: Any
    gpus: Any
    exclusive: Any
    group: Any
    window: Any
    lasts: Any
    partition: Any
    preempts: Any


class Held(NamedTuple):
    """What job j holds: nodes from `first[j]` on and, KINDS numbers for each, how much of them."""

    first: Any
    nodes: Any
    amounts: Any


class Slots(NamedTuple):
    """Free amounts of every node from `times[s]` on; `counts[0]` slots in use. `found` is room for the nodes of one job."""

    times: Any
    free: Any
    counts: Any
    found: Any
    scores: Any


def has_room(node: int, job: int, base: int, free: Any, site: Site, asks: Asks) -> bool:
    for kind in range(KINDS):
        need = site.size[node * KINDS + kind] if asks.exclusive[job] == 1 else asks.each[job * KINDS + kind]
        if free[base + node * KINDS + kind] < need:
            return False
    return True


def is_set_aside(node: int, job: int, begin: float, end: float, site: Site, asks: Asks) -> bool:
    """Whether a window that is not the job's own takes this node away while the job would run."""
    num_nodes = len(site.rank)
    own = asks.window[job]
    if own >= 0 and (
        site.window_nodes[own * num_nodes + node] == 0 or begin < site.window_begin[own] or end > site.window_end[own]
    ):
        return True
    for window in range(len(site.window_begin)):
        if window == own or site.window_nodes[window * num_nodes + node] == 0:
            continue
        if begin < site.window_end[window] and end > site.window_begin[window]:
            return True
    return False


def fits_through(node: int, job: int, slot: int, end: float, site: Site, asks: Asks, slots: Slots) -> bool:
    """Whether the node has room for the job in every slot from this one until the job would end."""
    num_nodes = len(site.rank)
    at = slot
    while at < slots.counts[0] and (at == slot or slots.times[at] < end):
        if not has_room(node, job, at * num_nodes * KINDS, slots.free, site, asks):
            return False
        at += 1
    return True


def gather(job: int, slot: int, begin: float, site: Site, asks: Asks, slots: Slots) -> bool:
    """The nodes of the job if it starts in this slot: by weight, then the fullest that hold it (or the emptiest)."""
    num_nodes = len(site.rank)
    end = begin + asks.lasts[job]
    row = asks.group[job] * num_nodes
    wanted = asks.nodes[job]
    many = 1.0 * (1 << 20)
    num_found = 0
    for node in range(num_nodes):
        if site.masks[row + node] == 0 or site.blocked[node] == 1:
            continue
        if not has_room(node, job, slot * num_nodes * KINDS, slots.free, site, asks):
            continue
        if is_set_aside(node, job, begin, end, site, asks):
            continue
        if not fits_through(node, job, slot, end, site, asks, slots):
            continue
        room = slots.free[(slot * num_nodes + node) * KINDS]
        room = room if site.fullest_first == 1 else 1024 - room
        slots.scores[num_found] = site.rank[node] * many + room * 1.0
        slots.found[num_found] = node
        num_found += 1
    if num_found < wanted:
        return False
    for place in range(wanted):
        best = place
        for other in range(place + 1, num_found):
            ahead = slots.scores[other] == slots.scores[best] and slots.found[other] < slots.found[best]
            if slots.scores[other] < slots.scores[best] or ahead:
                best = other
        score = slots.scores[best]
        node = slots.found[best]
        slots.scores[best] = slots.scores[place]
        slots.found[best] = slots.found[place]
        slots.scores[place] = score
        slots.found[place] = node
    return True


def write_down(job: int, site: Site, asks: Asks, held: Held, slots: Slots) -> None:
    """The nodes just found become those of the job; the last one gives what is left of its GPUs."""
    left = asks.gpus[job]
    for place in range(asks.nodes[job]):
        at = held.first[job] + place
        node = slots.found[place]
        held.nodes[at] = node
        for kind in range(KINDS):
            amount = asks.each[job * KINDS + kind]
            if asks.exclusive[job] == 1:
                amount = site.size[node * KINDS + kind]
            elif kind == 0:
                amount = min(amount, left)
                left -= amount
            held.amounts[at * KINDS + kind] = amount


def shift_held(job: int, sign: int, base: int, free: Any, asks: Asks, held: Held) -> None:
    """Give what a job holds to a row of free amounts (sign 1), or take it (sign -1)."""
    for at in range(held.first[job], held.first[job] + asks.nodes[job]):
        for kind in range(KINDS):
            free[base + held.nodes[at] * KINDS + kind] += sign * held.amounts[at * KINDS + kind]


def lay_now(now: float, site: Site, slots: Slots) -> None:
    slots.counts[0] = 1
    slots.times[0] = now
    for at in range(len(site.free)):
        slots.free[at] = site.free[at]


def cut(time: float, site: Site, slots: Slots) -> Any:
    """The slot that begins at this time, made if there is none."""
    width = len(site.free)
    num_slots = slots.counts[0]
    at = num_slots
    while at > 0 and slots.times[at - 1] >= time:
        at -= 1
    if at < num_slots and slots.times[at] == time:
        return at
    for slot in range(num_slots, at, -1):
        slots.times[slot] = slots.times[slot - 1]
        for spot in range(width):
            slots.free[slot * width + spot] = slots.free[(slot - 1) * width + spot]
    slots.times[at] = time
    for spot in range(width if at > 0 else 0):
        slots.free[at * width + spot] = slots.free[(at - 1) * width + spot]
    slots.counts[0] = num_slots + 1
    return at


def lay_ends(
    now: float, ends: Any, runners: Any, step: float, site: Site, asks: Asks, held: Held, slots: Slots
) -> None:
    """Slots at the believed ends of running jobs, which come sorted; times are multiples of the resolution."""
    width = len(site.free)
    lay_now(now, site, slots)
    for at in range(len(runners)):
        time = math.ceil(ends[at] / step) * step if step > 0.0 else ends[at]
        if time <= now:
            time = now + (step if step > 0.0 else 1.0)
        last = slots.counts[0] - 1
        if time > slots.times[last]:
            if last + 2 >= len(slots.times):
                return
            for spot in range(width):
                slots.free[(last + 1) * width + spot] = slots.free[last * width + spot]
            slots.times[last + 1] = time
            slots.counts[0] += 1
            last += 1
        shift_held(runners[at], 1, last * width, slots.free, asks, held)
    for window in range(len(site.window_begin)):
        for time in (site.window_begin[window], site.window_end[window]):
            if time > now and slots.counts[0] + 2 < len(slots.times):
                cut(time, site, slots)


def run_main(
    now: float, first: int, queue: Any, failed: Any, part_nodes: Any, started: Any, site: Site, asks: Asks, held: Held,
    slots: Slots,
) -> Any:  # fmt: skip
    """Start jobs in order. One that does not fit blocks its partition and the nodes of it; the answer is how many started, and
    the place in the queue of a blocked job that may preempt others, or the end of the queue."""
    num_nodes = len(site.rank)
    lay_now(now, site, slots)
    num_started = 0
    at = first
    while at < len(queue):
        job = queue[at]
        part = asks.partition[job]
        if failed[part] == 0:
            if gather(job, 0, now, site, asks, slots):
                write_down(job, site, asks, held, slots)
                shift_held(job, -1, 0, slots.free, asks, held)
                started[num_started] = job
                num_started += 1
            elif asks.preempts[job] == 1 and failed[part] == 0:
                return num_started, at
            elif asks.window[job] < 0:
                block(part, failed, part_nodes, num_nodes, site)
        at += 1
    return num_started, at


def block(part: int, failed: Any, part_nodes: Any, num_nodes: int, site: Site) -> None:
    failed[part] = 1
    for node in range(num_nodes):
        if part_nodes[part * num_nodes + node] == 1:
            site.blocked[node] = 1


def run_backfill(
    now: float, horizon: float, step: float, queue: Any, ends: Any, runners: Any, started: Any, site: Site, asks: Asks,
    held: Held, slots: Slots,
) -> int:  # fmt: skip
    """In order, every job gets the first slot in which it fits, before the horizon; those whose slot is now start."""
    width = len(site.free)
    lay_ends(now, ends, runners, step, site, asks, held, slots)
    num_started = 0
    for at in range(len(queue)):
        job = queue[at]
        slot = 0
        found = False
        while slot < slots.counts[0] and slots.times[slot] <= horizon and not found:
            found = gather(job, slot, slots.times[slot], site, asks, slots)
            slot += 1
        if not found:
            continue
        slot -= 1
        begin = slots.times[slot]
        if begin > now and slots.counts[0] + 2 >= len(slots.times):
            continue
        write_down(job, site, asks, held, slots)
        end = begin + asks.lasts[job]
        end = math.ceil(end / step) * step if step > 0.0 else end
        if begin <= now:
            started[num_started] = job
            num_started += 1
        last = slots.counts[0]
        if slots.counts[0] + 2 < len(slots.times):
            last = cut(end, site, slots)
        for spot in range(slot, last):
            shift_held(job, -1, spot * width, slots.free, asks, held)
    return num_started
