"""Nodes that fail and are repaired, and what that does to the jobs on them."""

from typing import Any, NamedTuple

from traincast.schedule._kernels.heaps import drop_top, push
from traincast.schedule._kernels.nodes import Nodes, change

BIG = 1e300
MOST_FAILURES = 100
"""A job longer than nodes live, without checkpoints, would run for ever; after so many failures it is given up."""


class Hazards(NamedTuple):
    """Drawn times between failures and of repairs, `depth` of them for every node, and a heap of (time, token): token n is the
    failure of node n, n + number of nodes its repair. A job that fails falls back to its last checkpoint (`every_s` apart, 0
    for none) and loses `restart_s` more. `struck` is room for the jobs of one node."""

    wanted: int
    up: Any
    repair: Any
    depth: int
    counts: Any
    keys: Any
    tokens: Any
    size: Any
    every_s: float
    restart_s: float
    since_checkpoint: Any
    failed: Any
    lost: Any
    struck: Any


def next_hazard(hazards: Hazards) -> Any:
    return hazards.keys[0] if hazards.size[0] > 0 else BIG


def needs_draws(hazards: Hazards) -> bool:
    """Whether the next failure or repair asks for a time that has not been drawn yet."""
    if hazards.size[0] == 0:
        return False
    node = hazards.tokens[0] % len(hazards.counts)
    return bool(hazards.counts[node] + 1 >= hazards.depth)


def holds_node(job: int, node: int, nodes: Nodes) -> bool:
    if nodes.last[job] == node:
        return True
    at = nodes.held[job]
    while at >= 0:
        if at == node:
            return True
        at = nodes.chain[at]
    return False


def break_node(node: int, now: float, nodes: Nodes, hazards: Hazards) -> None:
    """Take an emptied node out of service: a node without free GPUs is never chosen."""
    free = nodes.free[node]
    nodes.hist[0] -= free
    change(node, -free, nodes)
    ends = now + hazards.repair[node * hazards.depth + hazards.counts[node]]
    push(hazards.keys, hazards.tokens, 0, hazards.size, 0, ends, len(hazards.counts) + node)


def mend_node(node: int, now: float, nodes: Nodes, hazards: Hazards) -> None:
    nodes.hist[0] += nodes.width
    change(node, nodes.width, nodes)
    hazards.counts[node] += 1
    fails = now + hazards.up[node * hazards.depth + hazards.counts[node]]
    push(hazards.keys, hazards.tokens, 0, hazards.size, 0, fails, node)


def drop_hazard(hazards: Hazards) -> None:
    drop_top(hazards.keys, hazards.tokens, 0, hazards.size, 0)


def roll_back(
    job: int, now: float, gpus: int, left: Any, guess: Any, attained: Any, since: Any, hazards: Hazards
) -> bool:
    """What was computed since the last checkpoint is computed again; whether the job goes on at all."""
    elapsed = now - since[job]
    lost = hazards.since_checkpoint[job] + elapsed
    if hazards.every_s > 0.0 and lost > 0.0:
        lost = lost % hazards.every_s
    left[job] = left[job] - elapsed + (lost + hazards.restart_s)
    guess[job] = guess[job] - elapsed + (lost + hazards.restart_s)
    attained[job] += elapsed
    # Not this moment, which would mean that the job was pushed out by another one.
    since[job] = -1.0
    hazards.since_checkpoint[job] = 0.0
    hazards.failed[job] += 1
    hazards.lost[job] += (lost + hazards.restart_s) * gpus
    return bool(hazards.failed[job] < MOST_FAILURES)
