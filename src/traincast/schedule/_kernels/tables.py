"""What every part of the event loop reads and writes: jobs, rules, events, beliefs and the log of runs."""

from typing import Any, NamedTuple

from traincast.schedule._kernels.heaps import push
from traincast.schedule._kernels.nodes import Kinds, Nodes, forget_parts, pool_of_job, shift

BIG = 1e300
HEAD_ONLY, SKIP, EASY, CONSERVATIVE, PREEMPT, CALLED = 0, 1, 2, 3, 4, 5
"""`Rules.fit`. CALLED: a policy written as an object is asked after every moment, and free GPUs are its caller's."""
BY_REMAINING, BY_LEVEL, BY_SERVICE, BY_SCORE = 0, 1, 2, 3
GIVEN_KEY, ESTIMATE_KEY, SERVICE_KEY = 0, 1, 2
CURSOR, FIRST, WAITING, RUNNING, PASSES, ENDED, LOGGED, LOGGED_NODES = 0, 1, 2, 3, 4, 5, 6, 7
"""Places in `Rules.counts`: next arrival, first in line where the line is the table, waiting and running jobs, passes, jobs that
are through, runs and their nodes in the log."""
DONE, FULL, MORE, ASK = 0, 1, 2, 3
JOINED, ENDED_NOW, INTERRUPTED, GIVEN_UP, BROKEN, MENDED = 0, 1, 2, 3, 4, 5
"""`News.what`: the first four happened to a job, the others to a node."""


class Rules(NamedTuple):
    """`fit` says what happens to those behind a job that does not fit. `by_key` 0: the line is the table itself. `key` says how a
    job's number in line comes about when it joins. A preemptive line is ordered by `order`; `moving` numbers of running jobs
    are made anew at every pass from their believed ends, which then stand in `Jobs.keys`. `one_by_one`: a pass after every
    single event. `clock[0]` is the moment at which a policy is asked, `clock[1]` the one at which it wants to be asked again at
    the latest."""

    fit: int
    by_key: int
    key: int
    order: int
    moving: int
    by_gpu: int
    limits: Any
    one_by_one: int
    until_s: float
    counts: Any
    clock: Any


class Jobs(NamedTuple):
    """`left` and `guess` are what still has to be done and what is believed about it, at rate 1; a job is ended at its `limit`.

    `start` below -2 marks jobs that can never run. `parents` counts the jobs it still waits for; those that wait for job j are
    `children[child_first[j] : child_first[j + 1]]`. A run was `opened` when it began; `since` is when its rate was last set. It
    holds `held` GPUs and is charged for `charged` of them; `gpu_s` is kept only where that is not what it asked for.
    """

    submit: Any
    gpus: Any
    left: Any
    guess: Any
    limit: Any
    cost: Any
    keys: Any
    start: Any
    end: Any
    since: Any
    attained: Any
    rate: Any
    killed: Any
    preemptions: Any
    level: Any
    position: Any
    parents: Any
    child_first: Any
    children: Any
    pool_s: Any
    opened: Any
    held: Any
    charged: Any
    gpu_s: Any


class News(NamedTuple):
    """What happened at this moment to whom, for a policy that is asked."""

    size: Any
    what: Any
    who: Any


class Beliefs(NamedTuple):
    """Estimates from jobs that have ended: sums and counts by group, four groups per job, the narrowest first."""

    wanted: int
    groups: Any
    sums: Any
    counts: Any
    factor: Any
    prior_s: float


class Moves(NamedTuple):
    """On shared links, `size[0]` jobs that have started (j) or stopped (-1 - j) since speeds were last shared out. Those that
    never cross racks have no `demand`; it is empty where links are not shared."""

    size: Any
    jobs: Any
    demand: Any


class Events(NamedTuple):
    """A heap of (time, token); token 2j is the end of job j, 2j + 1 its next level. `expect` says which times still hold. On
    shared links starts and stops move the ends of others."""

    keys: Any
    tokens: Any
    size: Any
    expect: Any
    moves: Moves


class Log(NamedTuple):
    """Runs from start to stop: job, (start, end), and its parts of nodes from `first` on."""

    wanted: int
    jobs: Any
    spans: Any
    first: Any
    nodes: Any
    gpus: Any


def believe(job: int, rules: Rules, jobs: Jobs, beliefs: Beliefs) -> None:
    """What is believed about a job that joins the line, and its number there."""
    if beliefs.wanted == 1:
        found = beliefs.prior_s
        for at in range(4 * job, 4 * job + 4):
            group = beliefs.groups[at]
            if beliefs.counts[group] > 0:
                found = beliefs.sums[group] / beliefs.counts[group]
                break
        jobs.guess[job] = found * beliefs.factor[job]
    if rules.key == ESTIMATE_KEY:
        jobs.keys[job] = jobs.guess[job]
    elif rules.key == SERVICE_KEY:
        jobs.keys[job] = jobs.guess[job] * jobs.gpus[job]


def learn(job: int, jobs: Jobs, beliefs: Beliefs) -> None:
    if beliefs.wanted == 1:
        for at in range(4 * job, 4 * job + 4):
            beliefs.sums[beliefs.groups[at]] += jobs.attained[job]
            beliefs.counts[beliefs.groups[at]] += 1


def run_on(job: int, now: float, rate: float, jobs: Jobs, events: Events) -> None:
    """A job that has been given its nodes runs until its end or its limit."""
    if jobs.start[job] < 0.0:
        jobs.start[job] = now
    jobs.since[job] = now
    jobs.opened[job] = now
    jobs.rate[job] = rate
    expect_end(job, now, jobs, events)
    note_move(job, job, events.moves)


def expect_end(job: int, now: float, jobs: Jobs, events: Events) -> None:
    ends = now + jobs.left[job] / jobs.rate[job]
    stops = now + max(jobs.limit[job] - jobs.attained[job], 0.0)
    events.expect[2 * job] = stops if stops < ends else ends
    push(events.keys, events.tokens, 0, events.size, 0, events.expect[2 * job], 2 * job)


def expect_level(job: int, since: float, rules: Rules, jobs: Jobs, events: Events) -> None:
    """When a running job sinks to the next level, if there is one."""
    if jobs.level[job] < len(rules.limits):
        limit = rules.limits[jobs.level[job]] / (jobs.gpus[job] if rules.by_gpu == 1 else 1)
        events.expect[2 * job + 1] = since + max(limit - jobs.attained[job], 0.0)
        push(events.keys, events.tokens, 0, events.size, 0, events.expect[2 * job + 1], 2 * job + 1)


def note_move(job: int, move: int, moves: Moves) -> None:
    if len(moves.demand) > 0 and moves.demand[job] > 0.0:
        moves.jobs[moves.size[0]] = move
        moves.size[0] += 1


def settle(job: int, now: float, jobs: Jobs, nodes: Nodes) -> None:
    """What the job has done until now."""
    elapsed = now - jobs.since[job]
    if elapsed > 0.0:
        jobs.left[job] -= elapsed * jobs.rate[job]
        jobs.guess[job] -= elapsed * jobs.rate[job]
        jobs.attained[job] += elapsed
        if len(jobs.gpu_s) == 0:
            jobs.pool_s[pool_of_job(job, nodes)] += elapsed * jobs.gpus[job]
        else:
            charge(job, elapsed, jobs, nodes)


def charge(job: int, elapsed: float, jobs: Jobs, nodes: Nodes) -> None:
    """Count what a job holds, which need not be what it asked for and may lie in several pools."""
    jobs.gpu_s[job] += elapsed * jobs.charged[job]
    first = pool_of_job(job, nodes)
    part = nodes.head[job]
    last = part
    while part >= 0:
        last = part
        part = nodes.part_next[part]
    if nodes.pool_of[nodes.part_node[last]] == first:
        jobs.pool_s[first] += elapsed * jobs.charged[job]
        return
    part = nodes.head[job]
    while part >= 0:
        jobs.pool_s[nodes.pool_of[nodes.part_node[part]]] += elapsed * nodes.part_gpus[part]
        part = nodes.part_next[part]


def tell(what: int, who: int, news: News) -> None:
    at = news.size[0]
    news.what[at] = what
    news.who[at] = who
    news.size[0] = at + 1


def give_back(job: int, nodes: Nodes, kinds: Kinds) -> None:
    shift(job, 1, nodes, kinds)
    forget_parts(job, nodes)


def log_run(job: int, now: float, counts: Any, jobs: Jobs, nodes: Nodes, log: Log) -> None:
    if log.wanted == 0 or now <= jobs.opened[job]:
        return
    at = counts[LOGGED]
    log.jobs[at] = job
    log.spans[2 * at] = jobs.opened[job]
    log.spans[2 * at + 1] = now
    log.first[at] = counts[LOGGED_NODES]
    counts[LOGGED] += 1
    part = nodes.head[job]
    while part >= 0:
        log.nodes[counts[LOGGED_NODES]] = nodes.part_node[part]
        log.gpus[counts[LOGGED_NODES]] = nodes.part_gpus[part]
        counts[LOGGED_NODES] += 1
        part = nodes.part_next[part]


def is_log_full(running: int, counts: Any, nodes: Nodes, log: Log) -> bool:
    """Whether the runs that may end at one moment may not find room; together they hold no more parts than there are."""
    if log.wanted == 0:
        return False
    if counts[LOGGED] + running + 1 > len(log.jobs):
        return True
    return bool(counts[LOGGED_NODES] + len(nodes.part_node) + 1 > len(log.nodes))
