"""The lines of policies without preemption: a heap by key, trees of smallest estimates by kind, or the table itself."""

import math
from typing import Any, NamedTuple

from traincast.schedule._kernels.ends import Ends, add_end
from traincast.schedule._kernels.heaps import drop_top, push
from traincast.schedule._kernels.nodes import Kinds, Nodes
from traincast.schedule._kernels.places import find_place, rate_at, take_place
from traincast.schedule._kernels.tables import (
    BIG,
    CURSOR,
    EASY,
    FIRST,
    HEAD_ONLY,
    WAITING,
    Events,
    Jobs,
    Rules,
    run_on,
)
from traincast.schedule._kernels.trees import first_leaf, set_leaf


class Line(NamedTuple):
    """Waiting jobs by key as a heap, or those of each kind in order as a tree of smallest estimates. `queue` holds them in
    order where reservations are made for all."""

    keys: Any
    jobs: Any
    size: Any
    place_of: Any
    job_at: Any
    rank: Any
    base: Any
    leaves: Any
    first: Any
    tree: Any
    failed: Any
    queue: Any


def enter_line(job: int, rules: Rules, jobs: Jobs, kinds: Kinds, line: Line) -> None:
    """A job that waits, for the first time or again after a failure."""
    if rules.fit == HEAD_ONLY:
        if rules.by_key == 1:
            push(line.keys, line.jobs, 0, line.size, 0, jobs.keys[job], job)
        return
    set_wait(job, jobs.guess[job], kinds, line)
    rules.counts[WAITING] += 1


def set_wait(job: int, estimate: float, kinds: Kinds, line: Line) -> None:
    """Put a job into the tree of its kind, or take it out (infinity)."""
    kind = kinds.of_job[job]
    set_leaf(line.tree, line.base[kind], line.leaves[kind], line.place_of[job], estimate)


def leave_line(
    job: int, now: float, rate: float, rules: Rules, jobs: Jobs, kinds: Kinds, line: Line, ends: Ends, events: Events
) -> None:
    set_wait(job, math.inf, kinds, line)
    rules.counts[WAITING] -= 1
    run_on(job, now, rate, jobs, events)
    if rules.fit == EASY:
        ends.at[job] = now + jobs.guess[job] / rate
        add_end(job, ends)


def pass_head(now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, line: Line, events: Events) -> None:
    """In order until one does not fit."""
    counts = rules.counts
    while nodes.room[0] > 0:
        if rules.by_key == 1:
            if line.size[0] == 0:
                break
            job = line.jobs[0]
        else:
            while counts[FIRST] < counts[CURSOR] and jobs.start[counts[FIRST]] < -2.0:
                counts[FIRST] += 1
            if counts[FIRST] == counts[CURSOR]:
                break
            job = counts[FIRST]
        kind = kinds.of_job[job]
        at = find_place(kind, nodes, kinds)
        if at < 0:
            break
        if rules.by_key == 1:
            drop_top(line.keys, line.jobs, 0, line.size, 0)
        else:
            counts[FIRST] += 1
        rate = rate_at(kind, at, nodes, kinds)
        take_place(job, at, nodes, kinds)
        run_on(job, now, rate, jobs, events)


def first_in_line(now: float, most: int, kinds: Kinds, line: Line) -> int:
    """The first waiting job of all kinds that have not failed and ask for at most so many GPUs; -1 if none."""
    best = -1
    for kind in range(len(kinds.gpus)):
        if line.failed[kind] == 1 or kinds.gpus[kind] > most:
            continue
        place = first_leaf(line.tree, line.base[kind], line.leaves[kind], now, 1.0, BIG)
        if place >= 0:
            job = line.job_at[line.first[kind] + place]
            if best < 0 or line.rank[job] < line.rank[best]:
                best = job
    return best


def forget_failed(line: Line) -> None:
    for kind in range(len(line.failed)):
        line.failed[kind] = 0


def set_aside(nodes: Nodes, kinds: Kinds, line: Line) -> None:
    """Kinds without a waiting job or without room fail for the whole pass, before any line is searched."""
    for kind in range(len(line.failed)):
        waits = line.tree[line.base[kind] + 1] < BIG
        line.failed[kind] = 0 if waits and find_place(kind, nodes, kinds) >= 0 else 1


def pass_skip(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, line: Line, ends: Ends, events: Events
) -> None:
    """In order, whoever fits."""
    set_aside(nodes, kinds, line)
    while rules.counts[WAITING] > 0 and nodes.room[0] > 0:
        job = first_in_line(now, nodes.room[0], kinds, line)
        if job < 0:
            break
        kind = kinds.of_job[job]
        at = find_place(kind, nodes, kinds)
        if at < 0:
            line.failed[kind] = 1
            continue
        rate = rate_at(kind, at, nodes, kinds)
        take_place(job, at, nodes, kinds)
        leave_line(job, now, rate, rules, jobs, kinds, line, ends, events)


def start_until_blocked(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, line: Line, ends: Ends, events: Events
) -> Any:
    """The first job that does not fit, or -1, and whether any was started before it."""
    forget_failed(line)
    started = False
    while rules.counts[WAITING] > 0 and nodes.room[0] > 0:
        job = first_in_line(now, 2**60, kinds, line)
        at = -1 if job < 0 else find_place(kinds.of_job[job], nodes, kinds)
        if at < 0:
            return job, started
        rate = rate_at(kinds.of_job[job], at, nodes, kinds)
        take_place(job, at, nodes, kinds)
        leave_line(job, now, rate, rules, jobs, kinds, line, ends, events)
        started = True
    return -1, started
