"""The nodes that the first job that does not fit will get, and what others may hold beside them."""

from typing import Any, NamedTuple

from traincast.schedule._kernels.ends import Ends
from traincast.schedule._kernels.nodes import Ground, Kinds, Nodes, change, flip, over, shift
from traincast.schedule._kernels.places import find_place, scan_pool, take_place

BIG = 1e300
HEAD, VALID = 0, 1


class Shadow(NamedTuple):
    """`spare` is not needed when the reservation begins; `mask` is the fewer of it and of what is free now."""

    spare: Ground
    mask: Ground
    state: Any
    begin: Any


def reserve_nodes(job: int, now: float, nodes: Nodes, kinds: Kinds, ends: Ends, shadow: Shadow) -> None:
    """The first moment at which the job fits as running jobs are believed to end; BIG if it never does."""
    shadow.state[HEAD] = job
    shadow.state[VALID] = 1
    spare = over(nodes, shadow.spare)
    copy_state(nodes, spare)
    kind = kinds.of_job[job]
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
        give_spare(at, kinds, nodes, spare)
        at = ends.upper[at]
    if place < 0 and begin >= 0.0:
        place = find_place(kind, spare, kinds)
    if place < 0:
        shadow.begin[0] = BIG
        return
    shadow.begin[0] = begin
    scan_pool(kind, place, spare, kinds)
    for spot in range(spare.spot_size[0]):
        node = spare.spot_node[spot]
        spare.free[node] -= spare.spot_gpus[spot]
        if kinds.beside[kind] == 1:
            spare.cpus[node] -= kinds.cpus[kind] * spare.spot_gpus[spot]
            spare.memory[node] -= kinds.memory[kind] * spare.spot_gpus[spot]
    lay_mask(nodes, shadow)


def copy_state(nodes: Nodes, spare: Nodes) -> None:
    spare.room[0] = -1  # its bitmaps are not kept
    for node in range(len(nodes.free)):
        spare.free[node] = nodes.free[node]
    for node in range(len(nodes.cpus)):
        spare.cpus[node] = nodes.cpus[node]
        spare.memory[node] = nodes.memory[node]
    for at in range(len(nodes.hist)):
        spare.hist[at] = nodes.hist[at]


def give_spare(job: int, kinds: Kinds, nodes: Nodes, spare: Nodes) -> None:
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
        part = nodes.part_next[part]


def lay_mask(nodes: Nodes, shadow: Shadow) -> None:
    mask = over(nodes, shadow.mask)
    spare = shadow.spare
    for at in range(len(mask.bits)):
        mask.bits[at] = 0
    for at in range(len(mask.hist)):
        mask.hist[at] = 0
    mask.room[0] = 0
    for node in range(len(nodes.free)):
        pool = nodes.pool_of[node]
        count = max(min(nodes.free[node], spare.free[node]), 0)
        mask.free[node] = count
        mask.room[0] += count
        mask.hist[mask.hist_at[pool]] += count
        if mask.width[pool] > 0:
            mask.hist[mask.hist_at[pool] + 1 + count] += 1
            flip(mask, pool, count, node - mask.first[pool])
    for node in range(len(nodes.cpus)):
        mask.cpus[node] = min(nodes.cpus[node], spare.cpus[node])
        mask.memory[node] = min(nodes.memory[node], spare.memory[node])


def follow(job: int, nodes: Nodes, shadow: Shadow) -> None:
    """Bring the mask up to date on the nodes of a job that started or ended."""
    mask = over(nodes, shadow.mask)
    spare = shadow.spare
    part = nodes.head[job]
    while part >= 0:
        node = nodes.part_node[part]
        by = max(min(nodes.free[node], spare.free[node]), 0) - mask.free[node]
        if by != 0:
            change(node, by, mask)
        if len(mask.cpus) > 1:
            mask.cpus[node] = min(nodes.cpus[node], spare.cpus[node])
            mask.memory[node] = min(nodes.memory[node], spare.memory[node])
        part = nodes.part_next[part]


def take_beside(job: int, at: int, nodes: Nodes, kinds: Kinds, shadow: Shadow) -> None:
    """Nodes for a job that will still run when the reservation begins."""
    spare = shadow.spare
    kind = kinds.of_job[job]
    take_place(job, at, over(nodes, shadow.mask), kinds)
    shift(job, -1, nodes, kinds)
    part = nodes.head[job]
    while part >= 0:
        node = nodes.part_node[part]
        spare.free[node] -= nodes.part_gpus[part]
        if kinds.beside[kind] == 1:
            spare.cpus[node] -= kinds.cpus[kind] * nodes.part_gpus[part]
            spare.memory[node] -= kinds.memory[kind] * nodes.part_gpus[part]
        part = nodes.part_next[part]
