"""The event loop of the scheduler: what happens next, what it does to the jobs, and a look at the line after it."""

from typing import NamedTuple

from traincast.schedule._kernels.backfill import pass_easy
from traincast.schedule._kernels.ends import Ends, drop_end
from traincast.schedule._kernels.hazards import (
    Hazards,
    await_failure,
    await_repair,
    drop_hazard,
    forget_failure,
    needs_draws,
    next_hazard,
    roll_back,
    takes_rack,
)
from traincast.schedule._kernels.heaps import drop_top, forget_stale
from traincast.schedule._kernels.lines import Line, enter_line, pass_head, pass_skip
from traincast.schedule._kernels.links import Promises, share_links
from traincast.schedule._kernels.nodes import Kinds, Nodes, change, forget_parts, holds_node, recount, shift
from traincast.schedule._kernels.order import Running, Waiting, join_waiting, remove
from traincast.schedule._kernels.preempt import pass_preemptive, sink_level
from traincast.schedule._kernels.reserve import forget_end, pass_conservative
from traincast.schedule._kernels.shadow import VALID
from traincast.schedule._kernels.tables import (
    ASK,
    BIG,
    BROKEN,
    CALLED,
    CONSERVATIVE,
    CURSOR,
    DONE,
    EASY,
    ENDED,
    ENDED_NOW,
    FULL,
    GIVEN_UP,
    HEAD_ONLY,
    INTERRUPTED,
    JOINED,
    MENDED,
    MORE,
    PASSES,
    PREEMPT,
    SKIP,
    WAITING,
    Beliefs,
    Events,
    Jobs,
    Log,
    News,
    Rules,
    believe,
    give_back,
    is_log_full,
    learn,
    log_run,
    note_move,
    settle,
    tell,
)


class Lines(NamedTuple):
    """Who waits, and, where policies preempt, who runs; the news for a policy that keeps its line itself."""

    line: Line
    waiting: Waiting
    running: Running
    news: News


def run_events(
    rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, beliefs: Beliefs, lines: Lines, promises: Promises,
    events: Events, log: Log, hazards: Hazards,
) -> int:  # fmt: skip
    """Until nothing is left (DONE), the log is full (FULL), more times of failures must be drawn (MORE) or a policy that is
    called must decide (ASK)."""
    counts = rules.counts
    count = len(jobs.submit)
    while counts[ENDED] < count:
        if is_log_full(len(lines.running.losers), counts, nodes, log):
            return FULL
        if needs_draws(hazards):
            return MORE
        now = find_moment(len(lines.running.losers), rules, jobs, events, hazards)
        if now >= BIG or now > rules.until_s:
            break
        changed = take_ends(now, rules, jobs, nodes, kinds, beliefs, lines, promises, events, log)
        while hazards.wanted == 1 and next_hazard(hazards) == now and not needs_draws(hazards):
            changed = True
            meet_hazard(now, rules, jobs, nodes, kinds, beliefs, lines, promises, events, log, hazards)
        if rules.one_by_one == 0 or not changed:
            more = True
            while more and counts[CURSOR] < count and jobs.submit[counts[CURSOR]] == now:
                counts[CURSOR] += 1
                arrive(counts[CURSOR] - 1, rules, jobs, kinds, beliefs, lines)
                more = rules.one_by_one == 0
        counts[PASSES] += 1
        if rules.fit == CALLED:
            rules.clock[0] = now
            return ASK
        if events.moves.size[0] > 0:
            share_links(now, rules, jobs, nodes, events, hazards, promises)
        look(now, rules, jobs, nodes, kinds, lines, promises, events, log, hazards)
        if events.moves.size[0] > 0:
            share_links(now, rules, jobs, nodes, events, hazards, promises)
    if rules.until_s < BIG:
        close_all(rules, jobs, nodes, events, log)
    return DONE


def find_moment(most_running: int, rules: Rules, jobs: Jobs, events: Events, hazards: Hazards) -> float:
    """The next moment at which something happens, after events that no longer hold are forgotten."""
    while events.size[0] > 0 and events.expect[events.tokens[0]] != events.keys[0]:
        drop_top(events.keys, events.tokens, 0, events.size, 0)
    if events.size[0] > len(events.keys) - 2 * most_running - 8:
        forget_stale(events.keys, events.tokens, events.size, events.expect)
    now: float = BIG
    if events.size[0] > 0:
        now = events.keys[0]
    if rules.counts[CURSOR] < len(jobs.submit) and jobs.submit[rules.counts[CURSOR]] < now:
        now = jobs.submit[rules.counts[CURSOR]]
    if hazards.wanted == 1 and next_hazard(hazards) < now:
        now = next_hazard(hazards)
    if rules.clock[1] < now:
        now = rules.clock[1]
    return now


def look(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, lines: Lines, promises: Promises,
    events: Events, log: Log, hazards: Hazards,
) -> None:  # fmt: skip
    """One look at the line, by the rule for jobs that do not fit."""
    if rules.fit == HEAD_ONLY:
        pass_head(now, rules, jobs, nodes, kinds, lines.line, events)
    elif rules.counts[WAITING] == 0:
        return
    elif rules.fit == PREEMPT:
        pass_preemptive(now, rules, jobs, nodes, kinds, lines.waiting, lines.running, events, log, hazards, promises)
    elif nodes.room[0] == 0:
        return
    elif rules.fit == SKIP:
        pass_skip(now, rules, jobs, nodes, kinds, lines.line, promises.ends, events)
    elif rules.fit == EASY:
        pass_easy(now, rules, jobs, nodes, kinds, lines.line, events, hazards, promises)
    else:
        pass_conservative(now, rules, jobs, nodes, kinds, lines.line.queue, promises.profile, events)


def arrive(job: int, rules: Rules, jobs: Jobs, kinds: Kinds, beliefs: Beliefs, lines: Lines) -> None:
    """A job is submitted, or the last job that it waited for has ended."""
    if jobs.start[job] < -2.0:  # it can never run
        rules.counts[ENDED] += 1
        free_children(job, rules, jobs, kinds, beliefs, lines)
    elif jobs.parents[job] == 0:
        believe(job, rules, jobs, beliefs)
        join(job, rules, jobs, kinds, lines)


def join(job: int, rules: Rules, jobs: Jobs, kinds: Kinds, lines: Lines) -> None:
    if rules.fit == CALLED:
        tell(JOINED, job, lines.news)
    elif rules.fit == PREEMPT:
        join_waiting(job, rules, jobs, kinds, lines.waiting)
    elif rules.fit == CONSERVATIVE:
        lines.line.queue[rules.counts[WAITING]] = job
        rules.counts[WAITING] += 1
    else:
        enter_line(job, rules, jobs, kinds, lines.line)


def free_children(job: int, rules: Rules, jobs: Jobs, kinds: Kinds, beliefs: Beliefs, lines: Lines) -> None:
    """Whatever became of it, nobody waits for this job any more."""
    if len(jobs.children) == 0:
        return
    for at in range(jobs.child_first[job], jobs.child_first[job + 1]):
        child = jobs.children[at]
        jobs.parents[child] -= 1
        if jobs.parents[child] == 0 and child < rules.counts[CURSOR] and jobs.start[child] >= -2.0:
            believe(child, rules, jobs, beliefs)
            join(child, rules, jobs, kinds, lines)


def take_ends(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, beliefs: Beliefs, lines: Lines,
    promises: Promises, events: Events, log: Log,
) -> bool:  # fmt: skip
    """Ends and changes of level at this moment, or the first of them; whether there were any."""
    changed = False
    while events.size[0] > 0 and events.keys[0] == now and not (changed and rules.one_by_one == 1):
        token = events.tokens[0]
        drop_top(events.keys, events.tokens, 0, events.size, 0)
        if events.expect[token] != now:
            continue
        events.expect[token] = -1.0
        changed = True
        if token & 1 == 1:
            sink_level(token >> 1, now, rules, jobs, nodes, lines.running, events)
        else:
            end_one(token >> 1, now, rules, jobs, nodes, kinds, beliefs, lines, promises, events, log)
    return changed


def end_one(
    job: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, beliefs: Beliefs, lines: Lines,
    promises: Promises, events: Events, log: Log,
) -> None:  # fmt: skip
    log_run(job, now, rules.counts, jobs, nodes, log)
    if rules.fit == CONSERVATIVE:
        forget_end(jobs.since[job] + jobs.guess[job], jobs.gpus[job], promises.profile, rules.counts)
    settle(job, now, jobs, nodes)
    if jobs.left[job] > 1e-6 * max(jobs.attained[job], 1.0):
        jobs.killed[job] = 1
    jobs.end[job] = now
    rules.counts[ENDED] += 1
    if rules.fit == CALLED:
        tell(ENDED_NOW, job, lines.news)
    else:
        shift(job, 1, nodes, kinds)
        note_move(job, -1 - job, events.moves)
    if rules.fit == PREEMPT:
        remove(job, rules, jobs, nodes, lines.running)
        events.expect[2 * job + 1] = -1.0
    elif rules.fit == EASY:
        leave_promises(job, now, promises)
    forget_parts(job, nodes)
    learn(job, jobs, beliefs)
    free_children(job, rules, jobs, kinds, beliefs, lines)


def leave_promises(job: int, now: float, promises: Promises) -> None:
    """A job that ends early may let the reserved one start early; else the reservation stands."""
    drop_end(job, promises.ends)
    if promises.ends.at[job] > now:
        promises.shadow.state[VALID] = 0


def meet_hazard(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, beliefs: Beliefs, lines: Lines,
    promises: Promises, events: Events, log: Log, hazards: Hazards,
) -> None:  # fmt: skip
    """A node fails, or its whole rack, or one is repaired; in every case reservations are made anew."""
    node = hazards.tokens[0]
    drop_hazard(hazards)
    promises.shadow.state[VALID] = 0
    if node >= len(hazards.counts):
        mend_node(node - len(hazards.counts), now, rules, nodes, lines, hazards)
        return
    whole_rack = takes_rack(node, hazards)
    for other in range(0 if whole_rack else node, len(hazards.counts) if whole_rack else node + 1):
        beside = whole_rack and hazards.rack_of[other] == hazards.rack_of[node] and hazards.down[other] == 0
        if beside and other != node:
            forget_failure(other, hazards)
        if beside or other == node:
            break_node(other, now, rules, jobs, nodes, kinds, beliefs, lines, promises, events, log, hazards)


def mend_node(node: int, now: float, rules: Rules, nodes: Nodes, lines: Lines, hazards: Hazards) -> None:
    if rules.fit == CALLED:
        tell(MENDED, node, lines.news)
    else:
        change(node, nodes.width[nodes.pool_of[node]], nodes)
        recount(node, nodes)
    await_failure(node, now, hazards)


def break_node(
    node: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, beliefs: Beliefs, lines: Lines,
    promises: Promises, events: Events, log: Log, hazards: Hazards,
) -> None:  # fmt: skip
    """All jobs on the node are interrupted, then it is out of service: a node without free GPUs is never chosen."""
    num_struck = 0
    for at in range(events.size[0]):
        token = events.tokens[at]
        if token & 1 == 0 and events.expect[token] == events.keys[at] and holds_node(token >> 1, node, nodes):
            events.expect[token] = -1.0
            events.expect[token + 1] = -1.0
            hazards.struck[num_struck] = token >> 1
            num_struck += 1
    for at in range(num_struck):
        interrupt(hazards.struck[at], now, rules, jobs, nodes, kinds, beliefs, lines, promises.ends, log, hazards)
        if rules.fit != CALLED:
            note_move(hazards.struck[at], -1 - hazards.struck[at], events.moves)
    if rules.fit == CALLED:
        tell(BROKEN, node, lines.news)
    else:
        change(node, -nodes.free[node], nodes)
        recount(node, nodes)
    await_repair(node, now, hazards)


def interrupt(
    job: int, now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, beliefs: Beliefs, lines: Lines,
    ends: Ends, log: Log, hazards: Hazards,
) -> None:  # fmt: skip
    log_run(job, now, rules.counts, jobs, nodes, log)
    elapsed = now - jobs.since[job]
    settle(job, now, jobs, nodes)
    if rules.fit == EASY:
        drop_end(job, ends)
    if rules.fit == PREEMPT:
        remove(job, rules, jobs, nodes, lines.running)
    if rules.fit == CALLED:
        forget_parts(job, nodes)
        tell(INTERRUPTED, job, lines.news)
    else:
        give_back(job, nodes, kinds)
    if roll_back(job, elapsed, jobs, hazards):
        if rules.fit != CALLED:
            join(job, rules, jobs, kinds, lines)
    else:
        if rules.fit == CALLED:
            tell(GIVEN_UP, job, lines.news)
        rules.counts[ENDED] += 1
        free_children(job, rules, jobs, kinds, beliefs, lines)


def close_all(rules: Rules, jobs: Jobs, nodes: Nodes, events: Events, log: Log) -> None:
    """The run is cut off: jobs that run have done what they have done."""
    for at in range(events.size[0]):
        token = events.tokens[at]
        if token & 1 == 0 and events.expect[token] == events.keys[at]:
            events.expect[token] = -1.0
            log_run(token >> 1, rules.until_s, rules.counts, jobs, nodes, log)
            settle(token >> 1, rules.until_s, jobs, nodes)
