"""Free GPUs of nodes: one bitmap of nodes per pool and number of free GPUs; a width of 0 means counting only."""

import math
from typing import Any, NamedTuple

BITS = 62
ROUNDING = 1e-6
CONSOLIDATED, SPREAD, TOPOLOGY = 0, 1, 2
"""Rules of placement (`Nodes.rule`); what they mean is said in `schedule.placement`."""


class Nodes(NamedTuple):
    """Nodes by number, those of one pool together (`first` has one entry more than there are pools).

    `hist` from `hist_at[pool]` on = (free GPUs of the pool, nodes with 0, 1, ... width free GPUs); `room[0]` is free in all. What
    job j holds is a chain of parts from `head[j]` on: a node and a number of GPUs each. `cpus` and `memory` are free beside
    the GPUs. `spot`, `avail` and `levels` are room for the placement that was looked for last.

    A class is what kinds ask for beside each GPU (`class_cpus`, `class_memory`); `seen` are the GPUs of every node for which the
    rest is enough too, class after class, and `steps` how many nodes of a pool have 0, 1, ... of them. Where there are too many
    classes none is kept.
    """

    rule: int
    free: Any
    pool_of: Any
    rack_of: Any
    first: Any
    width: Any
    words: Any
    bits_at: Any
    bits: Any
    hist_at: Any
    hist: Any
    room: Any
    head: Any
    part_node: Any
    part_gpus: Any
    part_next: Any
    part_free: Any
    cpus: Any
    memory: Any
    spot_node: Any
    spot_gpus: Any
    spot_size: Any
    spot_rate: Any
    avail: Any
    levels: Any
    in_rack: Any
    class_cpus: Any
    class_memory: Any
    seen: Any
    steps: Any


class Ground(NamedTuple):
    """What is free at another time, or to somebody else: the fields of `Nodes` that change."""

    free: Any
    bits: Any
    hist: Any
    room: Any
    cpus: Any
    memory: Any
    seen: Any
    steps: Any


class Kinds(NamedTuple):
    """Jobs of one kind ask for the same and fit or fail together.

    The pools of kind k, the one to be taken first in front, are `pools[pool_first[k] : pool_first[k + 1]]`; beside each of them
    `usable` GPUs of an empty node and three rates: on one node, in one rack, across racks. `scanned` kinds look at every node.
    `of_class` is the class of a kind, -1 if it asks for GPUs alone or classes are not kept.
    """

    of_job: Any
    gpus: Any
    pool_first: Any
    pools: Any
    usable: Any
    rate: Any
    widest: Any
    beside: Any
    cpus: Any
    memory: Any
    scanned: Any
    of_class: Any


def over(nodes: Nodes, ground: Ground) -> Nodes:
    """The same nodes with what is free there instead."""
    return Nodes(
        nodes.rule,
        ground.free,
        nodes.pool_of,
        nodes.rack_of,
        nodes.first,
        nodes.width,
        nodes.words,
        nodes.bits_at,
        ground.bits,
        nodes.hist_at,
        ground.hist,
        ground.room,
        nodes.head,
        nodes.part_node,
        nodes.part_gpus,
        nodes.part_next,
        nodes.part_free,
        ground.cpus,
        ground.memory,
        nodes.spot_node,
        nodes.spot_gpus,
        nodes.spot_size,
        nodes.spot_rate,
        nodes.avail,
        nodes.levels,
        nodes.in_rack,
        nodes.class_cpus,
        nodes.class_memory,
        ground.seen,
        ground.steps,
    )


def low_bit(word: int) -> int:
    # A power of two is exact as a float, and frexp is the one bit search that both paths share.
    return math.frexp(float(word & -word))[1] - 1


def flip(nodes: Nodes, pool: int, free: int, at: int) -> None:
    """Behind the bitmaps lies a second level: one bit for each word that is not empty. `at` counts nodes within the pool."""
    bits = nodes.bits
    words = nodes.words[pool]
    base = nodes.bits_at[pool]
    word = at // BITS
    spot = base + free * words + word
    before = bits[spot]
    bits[spot] = before ^ (1 << (at % BITS))
    if before == 0 or bits[spot] == 0:
        top = base + (nodes.width[pool] + 1) * words + free * ((words + BITS - 1) // BITS) + word // BITS
        bits[top] = bits[top] ^ (1 << (word % BITS))


def change(node: int, by: int, nodes: Nodes) -> None:
    pool = nodes.pool_of[node]
    base = nodes.hist_at[pool]
    before = nodes.free[node]
    after = before + by
    nodes.free[node] = after
    nodes.hist[base] += by
    nodes.room[0] += by
    if nodes.width[pool] > 0:
        at = node - nodes.first[pool]
        flip(nodes, pool, before, at)
        flip(nodes, pool, after, at)
        nodes.hist[base + 1 + before] -= 1
        nodes.hist[base + 1 + after] += 1


def count_usable(per_cpu: float, per_byte: float, width: int, cpus: float, memory: float) -> int:
    """GPUs of a node for which so many CPUs and so much memory are enough."""
    most = width
    if per_cpu > 0.0 and cpus < per_cpu * most:
        most = int(cpus / per_cpu + ROUNDING)
    if per_byte > 0.0 and memory < per_byte * most:
        most = int(memory / per_byte + ROUNDING)
    return most


def recount(node: int, nodes: Nodes) -> None:
    """Bring all classes up to date after something was taken from a node or given back."""
    for at in range(len(nodes.class_cpus)):
        recount_class(at, node, nodes)


def recount_class(at: int, node: int, nodes: Nodes) -> None:
    pool = nodes.pool_of[node]
    count = nodes.free[node]
    if count > 0:
        per_cpu, per_byte = nodes.class_cpus[at], nodes.class_memory[at]
        usable = count_usable(per_cpu, per_byte, nodes.width[pool], nodes.cpus[node], nodes.memory[node])
        count = max(min(count, usable), 0)
    before = nodes.seen[at * len(nodes.pool_of) + node]
    if before != count:
        base = (at * len(nodes.width) + pool) * len(nodes.levels)
        nodes.steps[base + before] -= 1
        nodes.steps[base + count] += 1
        nodes.seen[at * len(nodes.pool_of) + node] = count


def any_with(need: int, most: int, base: int, hist: Any) -> bool:
    for count in range(need, most + 1):  # noqa: SIM110 (numba compiles no generators)
        if hist[base + 1 + count] > 0:
            return True
    return False


def tightest(need: int, pool: int, nodes: Nodes) -> int:
    words = nodes.words[pool]
    tops = (words + BITS - 1) // BITS
    width = nodes.width[pool]
    for count in range(need, width + 1):
        if nodes.hist[nodes.hist_at[pool] + 1 + count] == 0:
            continue
        base = nodes.bits_at[pool] + (width + 1) * words + count * tops
        for top in range(tops):
            if nodes.bits[base + top] != 0:
                word = top * BITS + low_bit(nodes.bits[base + top])
                bits = nodes.bits[nodes.bits_at[pool] + count * words + word]
                found: int = nodes.first[pool] + word * BITS + low_bit(bits)
                return found
    return -1


def fits_pool(need: int, pool: int, nodes: Nodes) -> bool:
    """Whether consolidated placement finds nodes, or a count is enough."""
    base = nodes.hist_at[pool]
    hist = nodes.hist
    width = nodes.width[pool]
    if need > hist[base]:
        return False
    if width == 0:
        return True
    if need <= width:
        return any_with(need, width, base, hist)
    full = need // width
    rest = need - full * width
    if hist[base + 1 + width] < full:
        return False
    return rest == 0 or hist[base + 1 + width] > full or any_with(rest, width - 1, base, hist)


def add_part(job: int, node: int, count: int, nodes: Nodes) -> None:
    part = nodes.part_free[0]
    nodes.part_free[0] = nodes.part_next[part]
    nodes.part_node[part] = node
    nodes.part_gpus[part] = count
    nodes.part_next[part] = nodes.head[job]
    nodes.head[job] = part


def forget_parts(job: int, nodes: Nodes) -> None:
    """A job that has given its nodes back holds nothing."""
    part = nodes.head[job]
    nodes.head[job] = -1
    while part >= 0:
        after = nodes.part_next[part]
        nodes.part_next[part] = nodes.part_free[0]
        nodes.part_free[0] = part
        part = after


def take_consolidated(job: int, need: int, pool: int, nodes: Nodes) -> None:
    """Give a job that fits its nodes."""
    width = nodes.width[pool]
    if width == 0:
        node = nodes.first[pool]
        add_part(job, node, need, nodes)
        change(node, -need, nodes)
        recount(node, nodes)
        return
    rest = need
    while rest > 0:
        count = width if rest > width else rest
        node = tightest(count, pool, nodes)
        add_part(job, node, count, nodes)
        change(node, -count, nodes)
        recount(node, nodes)
        rest -= count


def count_beside(node: int, count: int, kind: int, sign: int, nodes: Nodes, kinds: Kinds) -> None:
    nodes.cpus[node] += sign * kinds.cpus[kind] * count
    nodes.memory[node] += sign * kinds.memory[kind] * count


def shift(job: int, sign: int, nodes: Nodes, kinds: Kinds) -> None:
    """Give a job's nodes back (sign 1) or take the very same nodes again (sign -1)."""
    kind = kinds.of_job[job]
    beside = kinds.beside[kind] == 1
    part = nodes.head[job]
    while part >= 0:
        change(nodes.part_node[part], sign * nodes.part_gpus[part], nodes)
        if beside:
            count_beside(nodes.part_node[part], nodes.part_gpus[part], kind, sign, nodes, kinds)
        recount(nodes.part_node[part], nodes)
        part = nodes.part_next[part]


def holds_node(job: int, node: int, nodes: Nodes) -> bool:
    part = nodes.head[job]
    while part >= 0:
        if nodes.part_node[part] == node:
            return True
        part = nodes.part_next[part]
    return False


def pool_of_job(job: int, nodes: Nodes) -> int:
    """The pool in which a running job is."""
    found: int = nodes.pool_of[nodes.part_node[nodes.head[job]]]
    return found
