"""The loop of policies without preemption: head of the line, first fit, EASY and conservative backfill."""

import math
from typing import Any, NamedTuple

from traincast.schedule._kernels.ends import Ends, add_end, drop_end, first_room, room_by
from traincast.schedule._kernels.hazards import (
    Hazards,
    break_node,
    drop_hazard,
    holds_node,
    mend_node,
    needs_draws,
    next_hazard,
    roll_back,
)
from traincast.schedule._kernels.heaps import drop_top, push
from traincast.schedule._kernels.nodes import Nodes, fits, shift, take
from traincast.schedule._kernels.reserve import Profile, begin_one, forget_end, pass_conservative
from traincast.schedule._kernels.shadow import HEAD, VALID, Shadow, follow, reserve_nodes, take_beside
from traincast.schedule._kernels.trees import first_leaf, set_leaf

BIG = 1e300
HEAD_ONLY, SKIP, EASY, CONSERVATIVE = 0, 1, 2, 3
CURSOR, FIRST, WAITING, RUNNING, PASSES, ENDED, LOGGED, LOGGED_NODES = 0, 1, 2, 3, 4, 5, 6, 7
"""Places in `Desk.counts`: next arrival, first in line where the line is the table, waiting and running jobs, passes, jobs that
are through, interrupted runs and their nodes in the log."""
DONE, MORE = 0, 1


class Rules(NamedTuple):
    """`by_key` 0: the line is the table itself, 1: it is ordered by a key. `one_by_one`: a pass after every single event."""

    fit: int
    by_key: int
    one_by_one: int
    until_s: float
    record: int


class Jobs(NamedTuple):
    """`left` and `estimate` are what still has to be done and what is believed about it; a job is ended at its `limit`."""

    submit: Any
    gpus: Any
    left: Any
    estimate: Any
    limit: Any
    keys: Any
    start: Any
    end: Any
    since: Any
    attained: Any
    killed: Any


class Classes(NamedTuple):
    """Waiting jobs by class (number of GPUs), each in order of the line, as a tree of smallest estimates."""

    of_job: Any
    place_of: Any
    job_at: Any
    rank: Any
    gpus: Any
    base: Any
    leaves: Any
    first: Any
    tree: Any
    failed: Any


class Desk(NamedTuple):
    """Ends of running jobs and waiting jobs by key as heaps; the nodes of job j are written from `place_first[j]` on."""

    end_keys: Any
    end_jobs: Any
    end_size: Any
    wait_keys: Any
    wait_jobs: Any
    wait_size: Any
    place_first: Any
    place_nodes: Any
    counts: Any
    log_jobs: Any
    log_spans: Any
    log_first: Any
    log_nodes: Any


def run_queue(
    rules: Rules, jobs: Jobs, nodes: Nodes, classes: Classes, ends: Ends, shadow: Shadow, profile: Profile, desk: Desk,
    hazards: Hazards,
) -> int:  # fmt: skip
    """Until nothing is left (DONE), or until more times of failures must be drawn or more room for the log made (MORE)."""
    while goes_on(jobs, desk, hazards):
        if hazards.wanted == 1 and (needs_draws(hazards) or is_log_full(rules, nodes, desk)):
            return MORE
        now = next_moment(jobs, desk, hazards)
        if now > rules.until_s or now >= BIG:
            break
        ended = False
        while desk.end_size[0] > 0 and desk.end_keys[0] == now and not (ended and rules.one_by_one == 1):
            end_one(now, rules, jobs, nodes, ends, shadow, profile, desk)
            ended = True
        while hazards.wanted == 1 and next_hazard(hazards) == now and not needs_draws(hazards):
            meet_hazard(now, rules, jobs, nodes, classes, ends, shadow, desk, hazards)
        if rules.one_by_one == 0 or not ended:
            take_arrivals(now, rules, jobs, classes, profile, desk)
        desk.counts[PASSES] += 1
        look(now, rules, jobs, nodes, classes, ends, shadow, profile, desk)
    if rules.until_s < BIG:
        for at in range(desk.end_size[0]):
            jobs.attained[desk.end_jobs[at]] += rules.until_s - jobs.since[desk.end_jobs[at]]
    return DONE


def goes_on(jobs: Jobs, desk: Desk, hazards: Hazards) -> bool:
    count = len(jobs.submit)
    if desk.counts[CURSOR] < count or desk.end_size[0] > 0:
        return True
    return bool(hazards.wanted == 1 and desk.counts[ENDED] < count)


def take_arrivals(now: float, rules: Rules, jobs: Jobs, classes: Classes, profile: Profile, desk: Desk) -> None:
    """All that are submitted at this moment, or the first of them where there is a pass after every event."""
    counts = desk.counts
    more = True
    while more and counts[CURSOR] < len(jobs.submit) and jobs.submit[counts[CURSOR]] == now:
        join_line(counts[CURSOR], rules, jobs, classes, profile, desk)
        counts[CURSOR] += 1
        more = rules.one_by_one == 0


def next_moment(jobs: Jobs, desk: Desk, hazards: Hazards) -> float:
    now: float = BIG
    if desk.end_size[0] > 0:
        now = desk.end_keys[0]
    if desk.counts[CURSOR] < len(jobs.submit) and jobs.submit[desk.counts[CURSOR]] < now:
        now = jobs.submit[desk.counts[CURSOR]]
    if hazards.wanted == 1 and next_hazard(hazards) < now:
        now = next_hazard(hazards)
    return now


def look(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, classes: Classes, ends: Ends, shadow: Shadow, profile: Profile,
    desk: Desk,
) -> None:  # fmt: skip
    """One look at the line, by the rule for jobs that do not fit."""
    if rules.fit == HEAD_ONLY:
        pass_head(now, rules, jobs, nodes, desk)
    elif desk.counts[WAITING] == 0 or nodes.hist[0] == 0:
        return
    elif rules.fit == SKIP:
        pass_skip(now, rules, jobs, nodes, classes, ends, desk)
    elif rules.fit == CONSERVATIVE:
        pass_conservative(now, rules.record, jobs, nodes, profile, desk)
    elif nodes.width == 0:
        pass_easy_by_count(now, rules, jobs, nodes, classes, ends, desk)
    else:
        pass_easy(now, rules, jobs, nodes, classes, ends, shadow, desk)


def is_log_full(rules: Rules, nodes: Nodes, desk: Desk) -> bool:
    """Whether the jobs of one node may not find room in the log of interrupted runs."""
    if rules.record == 0:
        return False
    if desk.counts[LOGGED] + nodes.width + 1 > len(desk.log_jobs):
        return True
    return bool(desk.counts[LOGGED_NODES] + (nodes.width + 1) * (len(nodes.free) + 1) > len(desk.log_nodes))


def meet_hazard(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, classes: Classes, ends: Ends, shadow: Shadow, desk: Desk,
    hazards: Hazards,
) -> None:  # fmt: skip
    """A node fails with all jobs on it, or is repaired; either way reservations are made anew."""
    node = hazards.tokens[0]
    drop_hazard(hazards)
    shadow.state[VALID] = 0
    if node >= len(hazards.counts):
        mend_node(node - len(hazards.counts), now, nodes, hazards)
        return
    num_struck = 0
    kept = 0
    size = desk.end_size[0]
    for at in range(size):
        job = desk.end_jobs[at]
        if holds_node(job, node, nodes):
            hazards.struck[num_struck] = job
            num_struck += 1
        else:
            desk.end_keys[kept] = desk.end_keys[at]
            desk.end_jobs[kept] = job
            kept += 1
    desk.end_size[0] = 0
    for at in range(kept):
        push(desk.end_keys, desk.end_jobs, 0, desk.end_size, 0, desk.end_keys[at], desk.end_jobs[at])
    for at in range(num_struck):
        interrupt(hazards.struck[at], now, rules, jobs, nodes, classes, ends, desk, hazards)
    break_node(node, now, nodes, hazards)


def interrupt(
    job: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, classes: Classes, ends: Ends, desk: Desk,
    hazards: Hazards,
) -> None:  # fmt: skip
    if rules.record == 1 and now > jobs.since[job]:
        log_run(job, now, jobs, nodes, desk)
    if rules.fit == EASY:
        drop_end(job, ends)
    shift(job, jobs.gpus[job], 1, nodes)
    survives = roll_back(job, now, jobs.gpus[job], jobs.left, jobs.estimate, jobs.attained, jobs.since, hazards)
    if not survives:
        desk.counts[ENDED] += 1
    elif rules.fit == HEAD_ONLY:
        push(desk.wait_keys, desk.wait_jobs, 0, desk.wait_size, 0, jobs.keys[job], job)
    else:
        kind = classes.of_job[job]
        set_leaf(classes.tree, classes.base[kind], classes.leaves[kind], classes.place_of[job], jobs.estimate[job])
        desk.counts[WAITING] += 1


def log_run(job: int, now: float, jobs: Jobs, nodes: Nodes, desk: Desk) -> None:
    counts = desk.counts
    at = counts[LOGGED]
    desk.log_jobs[at] = job
    desk.log_spans[2 * at] = jobs.since[job]
    desk.log_spans[2 * at + 1] = now
    desk.log_first[at] = counts[LOGGED_NODES]
    counts[LOGGED] += 1
    node = nodes.held[job]
    while node >= 0:
        desk.log_nodes[counts[LOGGED_NODES]] = node
        counts[LOGGED_NODES] += 1
        node = nodes.chain[node]
    desk.log_nodes[counts[LOGGED_NODES]] = nodes.last[job]
    counts[LOGGED_NODES] += 1


def end_one(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, ends: Ends, shadow: Shadow, profile: Profile, desk: Desk
) -> None:
    job = desk.end_jobs[0]
    drop_top(desk.end_keys, desk.end_jobs, 0, desk.end_size, 0)
    shift(job, jobs.gpus[job], 1, nodes)
    jobs.end[job] = now
    elapsed = now - jobs.since[job]
    jobs.attained[job] += elapsed
    if jobs.left[job] - elapsed > 1e-6 * max(jobs.attained[job], 1.0):
        jobs.killed[job] = 1
    desk.counts[ENDED] += 1
    if rules.fit == EASY:
        drop_end(job, ends)
        if shadow.state[VALID] == 1:
            if ends.at[job] > now:
                shadow.state[VALID] = 0
            elif shadow.begin[0] < BIG:
                follow(job, nodes, shadow)
    elif rules.fit == CONSERVATIVE:
        forget_end(jobs.start[job] + jobs.estimate[job], jobs.gpus[job], profile, desk.counts)


def join_line(job: int, rules: Rules, jobs: Jobs, classes: Classes, profile: Profile, desk: Desk) -> None:
    if jobs.start[job] < -2.0:  # it can never run
        desk.counts[ENDED] += 1
        return
    if rules.fit == HEAD_ONLY:
        if rules.by_key == 1:
            push(desk.wait_keys, desk.wait_jobs, 0, desk.wait_size, 0, jobs.keys[job], job)
        return
    if rules.fit == CONSERVATIVE:
        profile.waiting[desk.counts[WAITING]] = job
    else:
        kind = classes.of_job[job]
        set_leaf(classes.tree, classes.base[kind], classes.leaves[kind], classes.place_of[job], jobs.estimate[job])
    desk.counts[WAITING] += 1


def leave_line(
    job: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, classes: Classes, ends: Ends, desk: Desk
) -> None:
    kind = classes.of_job[job]
    set_leaf(classes.tree, classes.base[kind], classes.leaves[kind], classes.place_of[job], math.inf)
    desk.counts[WAITING] -= 1
    begin_one(job, now, rules.record, jobs, nodes, desk)
    if rules.fit == EASY:
        ends.at[job] = now + jobs.estimate[job]
        add_end(job, ends)


def pass_head(now: float, rules: Rules, jobs: Jobs, nodes: Nodes, desk: Desk) -> None:
    """In order until one does not fit."""
    counts = desk.counts
    while nodes.hist[0] > 0:
        if rules.by_key == 1:
            if desk.wait_size[0] == 0:
                break
            job = desk.wait_jobs[0]
        else:
            while counts[FIRST] < counts[CURSOR] and jobs.start[counts[FIRST]] < -2.0:
                counts[FIRST] += 1
            if counts[FIRST] == counts[CURSOR]:
                break
            job = counts[FIRST]
        if not fits(jobs.gpus[job], nodes.hist, nodes.width):
            break
        if rules.by_key == 1:
            drop_top(desk.wait_keys, desk.wait_jobs, 0, desk.wait_size, 0)
        else:
            counts[FIRST] += 1
        take(job, jobs.gpus[job], nodes)
        begin_one(job, now, rules.record, jobs, nodes, desk)


def first_in_line(now: float, most: int, classes: Classes) -> int:
    """The first waiting job of all classes that have not failed and ask for at most so many GPUs; -1 if none."""
    best = -1
    for kind in range(len(classes.gpus)):
        if classes.failed[kind] == 1 or classes.gpus[kind] > most:
            continue
        place = first_leaf(classes.tree, classes.base[kind], classes.leaves[kind], now, BIG)
        if place >= 0:
            job = classes.job_at[classes.first[kind] + place]
            if best < 0 or classes.rank[job] < classes.rank[best]:
                best = job
    return best


def pass_skip(now: float, rules: Rules, jobs: Jobs, nodes: Nodes, classes: Classes, ends: Ends, desk: Desk) -> None:
    """In order, whoever fits."""
    for kind in range(len(classes.gpus)):
        classes.failed[kind] = 0
    while desk.counts[WAITING] > 0 and nodes.hist[0] > 0:
        job = first_in_line(now, nodes.hist[0], classes)
        if job < 0:
            break
        if not fits(jobs.gpus[job], nodes.hist, nodes.width):
            classes.failed[classes.of_job[job]] = 1
            continue
        take(job, jobs.gpus[job], nodes)
        leave_line(job, now, rules, jobs, nodes, classes, ends, desk)


def start_until_blocked(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, classes: Classes, ends: Ends, desk: Desk
) -> Any:
    """The first job that does not fit, or -1, and whether any was started before it."""
    for kind in range(len(classes.gpus)):
        classes.failed[kind] = 0
    started = False
    while desk.counts[WAITING] > 0 and nodes.hist[0] > 0:
        job = first_in_line(now, 2**60, classes)
        if job < 0 or not fits(jobs.gpus[job], nodes.hist, nodes.width):
            return job, started
        take(job, jobs.gpus[job], nodes)
        leave_line(job, now, rules, jobs, nodes, classes, ends, desk)
        started = True
    return -1, started


def step_aside(job: int, estimate: float, classes: Classes) -> None:
    """Take the reserved job out of the line for the rest of the pass (infinity), or put it back."""
    kind = classes.of_job[job]
    set_leaf(classes.tree, classes.base[kind], classes.leaves[kind], classes.place_of[job], estimate)


def pass_easy_by_count(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, classes: Classes, ends: Ends, desk: Desk
) -> None:
    head, _ = start_until_blocked(now, rules, jobs, nodes, classes, ends, desk)
    if head < 0:
        return
    begin = BIG
    extra = BIG
    waits_for = first_room(jobs.gpus[head], nodes.hist[0], ends)
    if waits_for >= 0:
        begin = ends.at[waits_for] if ends.at[waits_for] > now else now
        extra = nodes.hist[0] + room_by(begin, ends) - jobs.gpus[head] + 0.0
    step_aside(head, math.inf, classes)
    while desk.counts[WAITING] > 1 and nodes.hist[0] > 0:
        best = -1
        for kind in range(len(classes.gpus)):
            if classes.gpus[kind] > nodes.hist[0]:
                continue
            bound = begin if classes.gpus[kind] > extra else BIG
            place = first_leaf(classes.tree, classes.base[kind], classes.leaves[kind], now, bound)
            if place >= 0:
                job = classes.job_at[classes.first[kind] + place]
                if best < 0 or classes.rank[job] < classes.rank[best]:
                    best = job
        if best < 0:
            break
        if now + jobs.estimate[best] > begin:
            extra -= jobs.gpus[best]
        take(best, jobs.gpus[best], nodes)
        leave_line(best, now, rules, jobs, nodes, classes, ends, desk)
    step_aside(head, jobs.estimate[head], classes)


def pass_easy(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, classes: Classes, ends: Ends, shadow: Shadow, desk: Desk
) -> None:
    """A reservation is kept until it is due, or until a job ended early or another job stands first."""
    head, started = start_until_blocked(now, rules, jobs, nodes, classes, ends, desk)
    if started:
        shadow.state[VALID] = 0
    if head < 0:
        return
    if shadow.state[VALID] == 0 or shadow.state[HEAD] != head or now >= shadow.begin[0]:
        reserve_nodes(head, jobs.gpus[head], now, nodes, ends, shadow)
    begin = shadow.begin[0]
    step_aside(head, math.inf, classes)
    while desk.counts[WAITING] > 1 and nodes.hist[0] > 0:
        best = -1
        for kind in range(len(classes.gpus)):
            if classes.failed[kind] == 1:
                continue
            if not fits(classes.gpus[kind], nodes.hist, nodes.width):
                classes.failed[kind] = 1
                continue
            beside = begin >= BIG or fits(classes.gpus[kind], shadow.mask.hist, nodes.width)
            place = first_leaf(classes.tree, classes.base[kind], classes.leaves[kind], now, BIG if beside else begin)
            if place >= 0:
                job = classes.job_at[classes.first[kind] + place]
                if best < 0 or classes.rank[job] < classes.rank[best]:
                    best = job
        if best < 0:
            break
        if begin < BIG and now + jobs.estimate[best] > begin:
            take_beside(best, jobs.gpus[best], nodes, shadow)
        else:
            take(best, jobs.gpus[best], nodes)
            if begin < BIG:
                follow(best, nodes, shadow)
        leave_line(best, now, rules, jobs, nodes, classes, ends, desk)
    step_aside(head, jobs.estimate[head], classes)
