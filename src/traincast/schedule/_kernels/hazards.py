"""Nodes that fail and are repaired, and what that does to the jobs on them."""

from typing import Any, NamedTuple

from traincast.schedule._kernels.heaps import drop_item, drop_top, push
from traincast.schedule._kernels.tables import Jobs

BIG = 1e300
MOST_FAILURES = 100
"""A job longer than nodes live, without checkpoints, would run for ever; after so many failures it is given up."""


class Hazards(NamedTuple):
    """Drawn times between failures and of repairs, `depth` of them for every node, and a heap of (time, token): token n is the
    failure of node n, n + number of nodes its repair. A job that fails falls back to its last checkpoint (`every_s` apart, 0
    for none) and loses `restart_s` more. `struck` is room for the jobs of one node. Where `racks` is 1, failure c of node n
    takes its whole rack down if `takes[n * depth + c]`; `down` marks nodes out of service."""

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
    racks: int
    takes: Any
    rack_of: Any
    down: Any


def next_hazard(hazards: Hazards) -> Any:
    return hazards.keys[0] if hazards.size[0] > 0 else BIG


def needs_draws(hazards: Hazards) -> bool:
    """Whether the next failure or repair asks for a time that has not been drawn yet."""
    if hazards.wanted == 0 or hazards.size[0] == 0:
        return False
    node = hazards.tokens[0] % len(hazards.counts)
    return bool(hazards.counts[node] + 1 >= hazards.depth)


def takes_rack(node: int, hazards: Hazards) -> bool:
    return hazards.racks == 1 and bool(hazards.takes[node * hazards.depth + hazards.counts[node]] == 1)


def await_repair(node: int, now: float, hazards: Hazards) -> None:
    hazards.down[node] = 1
    ends = now + hazards.repair[node * hazards.depth + hazards.counts[node]]
    push(hazards.keys, hazards.tokens, 0, hazards.size, 0, ends, len(hazards.counts) + node)


def await_failure(node: int, now: float, hazards: Hazards) -> None:
    hazards.down[node] = 0
    hazards.counts[node] += 1
    fails = now + hazards.up[node * hazards.depth + hazards.counts[node]]
    push(hazards.keys, hazards.tokens, 0, hazards.size, 0, fails, node)


def drop_hazard(hazards: Hazards) -> None:
    drop_top(hazards.keys, hazards.tokens, 0, hazards.size, 0)


def forget_failure(node: int, hazards: Hazards) -> None:
    """A node that went down with its rack does not fail by itself before it is repaired."""
    drop_item(hazards.keys, hazards.tokens, hazards.size, node)


def roll_back(job: int, elapsed: float, jobs: Jobs, hazards: Hazards) -> bool:
    """What was computed since the last checkpoint is computed again; whether the job goes on at all."""
    lost = hazards.since_checkpoint[job] + elapsed
    if hazards.every_s > 0.0 and lost > 0.0:
        lost = lost % hazards.every_s
    redo = lost * jobs.rate[job] + hazards.restart_s
    jobs.left[job] += redo
    jobs.guess[job] += redo
    # Not this moment, which would mean that the job was pushed out by another one.
    jobs.since[job] = -1.0
    hazards.since_checkpoint[job] = 0.0
    hazards.failed[job] += 1
    hazards.lost[job] += (lost + hazards.restart_s) * jobs.held[job]
    return bool(hazards.failed[job] < MOST_FAILURES)
