"""The nodes that the first job that does not fit will get, and what others may hold beside them."""

from typing import Any, NamedTuple

from traincast.schedule._kernels.ends import Ends
from traincast.schedule._kernels.nodes import Nodes, change, fits, flip, shift, take

BIG = 1e300
HEAD, VALID = 0, 1


class Shadow(NamedTuple):
    """`spare[node]` GPUs are not needed when the reservation begins; `mask` is the fewer of them and of those free now."""

    spare: Any
    hist: Any
    mask: Nodes
    state: Any
    begin: Any


def reserve_nodes(job: int, need: int, now: float, nodes: Nodes, ends: Ends, shadow: Shadow) -> None:
    """The first moment at which the job fits as running jobs are believed to end; BIG if it never does."""
    shadow.state[HEAD] = job
    shadow.state[VALID] = 1
    for node in range(len(nodes.free)):
        shadow.spare[node] = nodes.free[node]
    for at in range(len(nodes.hist)):
        shadow.hist[at] = nodes.hist[at]
    begin = -1.0
    depth = 0
    at = ends.root[0]
    while depth > 0 or at >= 0:
        while at >= 0:
            ends.path[depth] = at
            depth += 1
            at = ends.lower[at]
        depth -= 1
        at = ends.path[depth]
        when = ends.at[at] if ends.at[at] > now else now
        if when > begin and begin >= 0.0 and fits(need, shadow.hist, nodes.width):
            break
        begin = when
        give_back(at, ends.gpus[at], nodes, shadow)
        at = ends.upper[at]
    if begin < 0.0 or not fits(need, shadow.hist, nodes.width):
        shadow.begin[0] = BIG
        return
    shadow.begin[0] = begin
    set_aside(need, nodes.width, shadow)
    lay_mask(nodes, shadow)


def give_back(job: int, need: int, nodes: Nodes, shadow: Shadow) -> None:
    shadow.hist[0] += need
    rest = need
    node = nodes.held[job]
    while node >= 0:
        add_spare(node, nodes.width, shadow)
        rest -= nodes.width
        node = nodes.chain[node]
    if nodes.last[job] >= 0:
        add_spare(nodes.last[job], rest, shadow)


def add_spare(node: int, count: int, shadow: Shadow) -> None:
    shadow.hist[1 + shadow.spare[node]] -= 1
    shadow.spare[node] += count
    shadow.hist[1 + shadow.spare[node]] += 1


def set_aside(need: int, width: int, shadow: Shadow) -> None:
    """Take the nodes of the reservation out of what is spare, by the rule of `take`."""
    full = need // width if need > width else 0
    rest = need - full * width
    node = 0
    while full > 0:
        if shadow.spare[node] == width:
            shadow.spare[node] = -1
            full -= 1
        node += 1
    best = -1
    for node in range(len(shadow.spare) if rest > 0 else 0):
        if shadow.spare[node] >= rest and (best < 0 or shadow.spare[node] < shadow.spare[best]):
            best = node
    if best >= 0:
        shadow.spare[best] -= rest
    for node in range(len(shadow.spare)):
        if shadow.spare[node] < 0:
            shadow.spare[node] = 0


def lay_mask(nodes: Nodes, shadow: Shadow) -> None:
    mask = shadow.mask
    for at in range(len(mask.bits)):
        mask.bits[at] = 0
    for at in range(len(mask.hist)):
        mask.hist[at] = 0
    for node in range(len(nodes.free)):
        count = min(nodes.free[node], shadow.spare[node])
        mask.free[node] = count
        mask.hist[0] += count
        mask.hist[1 + count] += 1
        flip(mask, count, node)


def follow(job: int, nodes: Nodes, shadow: Shadow) -> None:
    """Bring the mask up to date on the nodes of a job that started or ended."""
    node = nodes.held[job]
    while node >= 0:
        cap(node, nodes, shadow)
        node = nodes.chain[node]
    if nodes.last[job] >= 0:
        cap(nodes.last[job], nodes, shadow)


def cap(node: int, nodes: Nodes, shadow: Shadow) -> None:
    by = min(nodes.free[node], shadow.spare[node]) - shadow.mask.free[node]
    if by != 0:
        shadow.mask.hist[0] += by
        change(node, by, shadow.mask)


def take_beside(job: int, need: int, nodes: Nodes, shadow: Shadow) -> None:
    """Nodes for a job that will still run when the reservation begins."""
    take(job, need, shadow.mask)
    shift(job, need, -1, nodes)
    rest = need
    node = nodes.held[job]
    while node >= 0:
        shadow.spare[node] -= nodes.width
        rest -= nodes.width
        node = nodes.chain[node]
    if nodes.last[job] >= 0:
        shadow.spare[nodes.last[job]] -= rest
