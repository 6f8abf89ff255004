"""The scheduler's event loop: what happens next, what it does to jobs and nodes, and one look at the line after it.

Every function works on a state `s`: a `Floor` (lists of records, plain Python), or the same fields as arrays where numba
compiles this very file (`_compiled`). Branches under `OBJECTS` call Python objects (rules of placement, failures, links,
policies that are asked for their order); they are left out where the file is compiled.

A job waits in the line of its kind: jobs of one kind ask for the same, so in one pass a kind that failed once fails until
the pass ends. Running jobs are kept in order where a policy may stop them, or where their believed ends are needed for a
reservation."""

# mypy: disable-error-code="no-any-return"
import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

OBJECTS = True
"""Whether Python objects can be called; where this file is compiled, they cannot."""
BIG = 1e300
BITS = 62
DISTURB = 8
"""To find one job a node, the last jobs in line are looked at until they hold this many times its own GPUs."""
HEAD, SKIP, EASY, PREEMPT, ASKED = 0, 1, 2, 3, 4
"""What happens behind a job that does not fit; ASKED: the policy looks by itself."""
BY_KEY, BY_REMAINING, BY_SERVICE, BY_LEVEL = 0, 1, 2, 3
"""The order of a preemptive line."""
FUTURE, WAITING, RUNNING, DONE, REJECTED = 0, 1, 2, 3, 4


# Nodes: free GPUs by node, and one bitmap of nodes for every number of free GPUs, so that best fit is one lookup.


def change(m: Any, node: int, by: int) -> None:
    """A node of the map has `by` more free GPUs."""
    pool = m.pool_of[node]
    span = m.pools[pool]
    before = m.free[node]
    after = before + by
    m.free[node] = after
    m.room[pool] += by
    if span.counted == 0:
        at = node - span.first
        bit = 1 << (at % BITS)
        bits, hist, words, levels = m.bits, m.hist, span.words, span.hist_at
        word = span.bits_at + at // BITS
        bits[word + before * words] ^= bit
        bits[word + after * words] ^= bit
        hist[levels + before] -= 1
        hist[levels + after] += 1


def low_bit(word: int) -> int:
    # A power of two is exact as a float, and frexp is a bit search that both paths share.
    return math.frexp(float(word & -word))[1] - 1


def tightest(m: Any, pool: int, need: int) -> int:
    """The node with the fewest free GPUs that still holds `need`, lowest number first; -1 if none."""
    span = m.pools[pool]
    for count in range(need, span.width + 1):
        if m.hist[span.hist_at + count] > 0:
            base = span.bits_at + count * span.words
            for word in range(span.words):
                if m.bits[base + word] != 0:
                    return span.first + word * BITS + low_bit(m.bits[base + word])
    return -1


def fits(m: Any, pool: int, need: int) -> bool:
    """Whether consolidated placement finds nodes: the tightest one, or empty ones and one for the rest."""
    if need > m.room[pool]:
        return False
    span = m.pools[pool]
    if span.counted == 1:
        return True
    if need <= span.width:
        return tightest(m, pool, need) >= 0
    full = need // span.width
    rest = need - full * span.width
    empty = m.hist[span.hist_at + span.width]
    if empty < full:
        return False
    if rest == 0 or empty > full:
        return True
    for count in range(rest, span.width):  # noqa: SIM110
        if m.hist[span.hist_at + count] > 0:
            return True
    return False


def take_nodes(s: Any, m: Any, pool: int, need: int) -> int:
    """Take what fits from the map; `s.spot_node` and `s.spot_gpus` say what, the answer is on how many nodes."""
    span = m.pools[pool]
    if span.counted == 1:
        s.spot_node[0] = span.first
        s.spot_gpus[0] = need
        change(m, span.first, -need)
        return 1
    rest = need
    spots = 0
    while rest > 0:
        count = span.width if rest > span.width else rest
        node = tightest(m, pool, count)
        s.spot_node[spots] = node
        s.spot_gpus[spots] = count
        change(m, node, -count)
        rest -= count
        spots += 1
    return spots


def find(s: Any, m: Any, job: int) -> Any:
    """Where the job fits now: 1 + the entry of its pool (or a placement); false if nowhere."""
    if OBJECTS and s.placed:
        return s.find_on(m, job)
    kind = s.kind[s.job[job].kind]
    for at in range(kind.first, kind.last):
        if fits(m, s.kind_pool[at], kind.gpus):
            return at + 1
    return 0


def take(s: Any, job: int, place: Any) -> None:
    """Give the job its nodes: a chain of parts from `head` on."""
    if OBJECTS and s.placed:
        s.take_placement(job, place)
        return
    kind = s.kind[s.job[job].kind]
    spots = take_nodes(s, s.nodes, s.kind_pool[place - 1], kind.gpus)
    for at in range(spots - 1, -1, -1):
        add_part(s, job, s.spot_node[at], s.spot_gpus[at])


def add_part(s: Any, job: int, node: int, gpus: Any) -> None:
    run = s.run[0]
    part = run.part_free
    run.part_free = s.part_next[part]
    s.part_node[part] = node
    s.part_gpus[part] = gpus
    s.part_next[part] = s.job[job].head
    s.job[job].head = part


def give(s: Any, m: Any, job: int) -> None:
    """Give a job's nodes back to a map."""
    if OBJECTS and s.placed:
        m.give(s.where(job))
        return
    part = s.job[job].head
    while part >= 0:
        change(m, s.part_node[part], s.part_gpus[part])
        part = s.part_next[part]


def retake(s: Any, m: Any, job: int) -> None:
    """Take the very same nodes again."""
    if OBJECTS and s.placed:
        m.take(s.where(job))
        return
    part = s.job[job].head
    while part >= 0:
        change(m, s.part_node[part], -s.part_gpus[part])
        part = s.part_next[part]


def forget_parts(s: Any, job: int) -> None:
    run = s.run[0]
    part = s.job[job].head
    s.job[job].head = -1
    while part >= 0:
        after = s.part_next[part]
        s.part_next[part] = run.part_free
        run.part_free = part
        part = after


def pool_of_job(s: Any, job: int) -> int:
    return s.nodes.pool_of[s.part_node[s.job[job].head]]


# Heaps of (key, item): heapq on lists where Python runs, the same order in flat arrays where numba does.


def push(keys: Any, items: Any, base: int, size: int, key: Any, item: int) -> None:
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        other = keys[base + parent]
        if other < key or (other == key and items[base + parent] < item):
            break
        keys[base + child] = other
        items[base + child] = items[base + parent]
        child = parent
    keys[base + child] = key
    items[base + child] = item


def drop_top(keys: Any, items: Any, base: int, size: int) -> None:
    count = size - 1
    if count == 0:
        return
    key = keys[base + count]
    item = items[base + count]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= count:
            break
        right = child + 1
        if right < count and (
            keys[base + right] < keys[base + child]
            or (keys[base + right] == keys[base + child] and items[base + right] < items[base + child])
        ):
            child = right
        other = keys[base + child]
        if key < other or (key == other and item < items[base + child]):
            break
        keys[base + parent] = other
        items[base + parent] = items[base + child]
        parent = child
    keys[base + parent] = key
    items[base + parent] = item


def push_event(s: Any, when: float, token: int) -> None:
    """Token 2j is the end of job j, 2j + 1 its next level; `expect` and `sinks` of the job say which times still hold."""
    if OBJECTS:
        heappush(s.events, (when, token))
    else:
        run = s.run[0]
        if run.events + 2 > len(s.event_keys):
            forget_stale(s)
        push(s.event_keys, s.event_tokens, run.event_base, run.events, when, token)
        run.events += 1


def is_stale(s: Any, when: float, token: int) -> bool:
    record = s.job[token >> 1]
    return record.sinks != when if token & 1 == 1 else record.expect != when


def forget_stale(s: Any) -> None:
    """Drop events of runs that were interrupted, when they fill the heap; an event that stands there twice is kept once."""
    run = s.run[0]
    kept = 0
    for at in range(run.events):
        when, token = s.event_keys[at], s.event_tokens[at]
        if not is_stale(s, when, token):
            if token & 1 == 1:
                s.job[token >> 1].sinks = -1.0
            else:
                s.job[token >> 1].expect = -1.0
            s.event_keys[kept] = when
            s.event_tokens[kept] = token
            kept += 1
    for at in range(kept):
        when, token = s.event_keys[at], s.event_tokens[at]
        if token & 1 == 1:
            s.job[token >> 1].sinks = when
        else:
            s.job[token >> 1].expect = when
        push(s.event_keys, s.event_tokens, run.event_base, at, when, token)
    run.events = kept


def next_event_s(s: Any) -> float:
    if OBJECTS:
        while s.events and is_stale(s, s.events[0][0], s.events[0][1]):
            heappop(s.events)
        return s.events[0][0] if s.events else BIG
    run = s.run[0]
    while run.events > 0 and is_stale(s, s.event_keys[0], s.event_tokens[0]):
        drop_top(s.event_keys, s.event_tokens, run.event_base, run.events)
        run.events -= 1
    return s.event_keys[0] if run.events > 0 else BIG


def pop_event(s: Any) -> int:
    if OBJECTS:
        return heappop(s.events)[1]
    token: int = s.event_tokens[0]
    run = s.run[0]
    drop_top(s.event_keys, s.event_tokens, run.event_base, run.events)
    run.events -= 1
    return token


# Lines: the waiting jobs of every kind.


def wait_key(s: Any, job: int) -> Any:
    """The number of a waiting job in its line, the smallest first; ties go by row, which is the order of submission."""
    record = s.job[job]
    order = s.run[0].order
    if order == BY_REMAINING:
        return record.guess
    if order == BY_SERVICE:
        return record.guess * record.gpus
    if order == BY_LEVEL:
        count = s.run[0].num_jobs
        return record.level * 2.0 * count + count + job
    return record.key


def join(s: Any, job: int) -> None:
    run = s.run[0]
    record = s.job[job]
    record.state = WAITING
    run.waiting += 1
    line = s.line[record.line]
    if run.fit == EASY:
        set_leaf(s, job, record.guess)
        if line.top < 0 or s.job[line.top].leaf > record.leaf:
            line.top = job
    elif run.fit != ASKED:
        if OBJECTS:
            heappush(line.heap, (wait_key(s, job), job))
        else:
            push(s.wait_keys, s.wait_jobs, line.base, line.size, wait_key(s, job), job)
        line.size += 1


def top_of(s: Any, at: int) -> int:
    """The first job of a line that is not empty."""
    line = s.line[at]
    if s.run[0].fit == EASY:
        return line.top
    if OBJECTS:
        return line.heap[0][1]
    return s.wait_jobs[line.base]


def top_key(s: Any, at: int) -> Any:
    if OBJECTS:
        return s.line[at].heap[0][0]
    return s.wait_keys[s.line[at].base]


def leave_line(s: Any, job: int) -> None:
    """The job starts: it is the first of its line, or, where later ones may go first, any."""
    run = s.run[0]
    run.waiting -= 1
    if run.fit == ASKED:
        return
    line = s.line[s.job[job].line]
    if run.fit == EASY:
        set_leaf(s, job, math.inf)
        if line.top == job:
            place = first_leaf(s, s.job[job].line, 0.0, 1.0, BIG)
            line.top = s.leaf_job[line.base + place] if place >= 0 else -1
        return
    if OBJECTS:
        heappop(line.heap)
    else:
        drop_top(s.wait_keys, s.wait_jobs, line.base, line.size)
    line.size -= 1


def first_line(s: Any) -> int:
    """The line whose first job stands before those of all other living lines; -1 if nobody waits there."""
    best = s.run[0].nobody
    if s.run[0].fit == EASY:
        rank = 0
        for at in range(len(s.line)):
            line = s.line[at]
            if line.dead == 0 and line.top >= 0 and (best < 0 or s.job[line.top].rank < rank):
                best = at
                rank = s.job[line.top].rank
        return best
    if OBJECTS:
        first = None
        for at, line in enumerate(s.line):
            if line.dead == 0 and line.size > 0 and (first is None or line.heap[0] < first):
                best, first = at, line.heap[0]
        return best
    for at in range(len(s.line)):
        line = s.line[at]
        if line.dead > 0 or line.size == 0:
            continue
        if best < 0:
            best = at
            continue
        key, other = top_key(s, at), top_key(s, best)
        if key < other or (key == other and top_of(s, at) < top_of(s, best)):
            best = at
    return best


def revive(s: Any) -> None:
    """Lines that had failed are looked at again."""
    for at in range(len(s.line)):
        s.line[at].dead = 0


def retry(s: Any) -> None:
    """Lines that had failed are looked at again, but for those that were set aside for the whole pass."""
    for at in range(len(s.line)):
        if s.line[at].dead == 1:
            s.line[at].dead = 0


def set_leaf(s: Any, job: int, value: float) -> None:
    """In the tree of smallest estimates of its line, a job's estimate; infinity takes it out."""
    line = s.line[s.job[job].line]
    at = line.leaves + s.job[job].leaf
    base = line.tree
    s.tree[base + at] = value
    at >>= 1
    while at >= 1:
        left, right = s.tree[base + 2 * at], s.tree[base + 2 * at + 1]
        smaller = left if left < right else right
        if s.tree[base + at] == smaller:
            return
        s.tree[base + at] = smaller
        at >>= 1


def first_leaf(s: Any, at: int, now: float, rate: float, bound: float) -> int:
    """The first place in a line whose job would end by `bound` if it started now at this rate; -1 if none."""
    line = s.line[at]
    base = line.tree
    if now + s.tree[base + 1] / rate > bound:
        return -1
    spot = 1
    while spot < line.leaves:
        spot *= 2
        if now + s.tree[base + spot] / rate > bound:
            spot += 1
    return spot - line.leaves


# Running jobs in order.


def run_key(s: Any, job: int, now: float) -> Any:
    """The number of a running job; one that moves is the one of this moment (`key` holds the believed end then)."""
    record = s.job[job]
    run = s.run[0]
    if run.moving == 1:
        left = (record.key - now) * record.rate
        return left * record.gpus if run.order == BY_SERVICE else left
    if run.order == BY_LEVEL:
        return record.level * 2.0 * run.num_jobs + job
    if run.order == BY_KEY and run.fit == PREEMPT:
        return record.key
    return record.since + record.guess / record.rate


def place_in(s: Any, key: Any, job: int) -> int:
    keys, jobs = s.run_keys, s.run_jobs
    low, high = 0, s.run[0].running
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key or (keys[middle] == key and jobs[middle] < job):
            low = middle + 1
        else:
            high = middle
    return low


def insert(s: Any, job: int) -> None:
    key = s.job[job].position
    at = place_in(s, key, job)
    run = s.run[0]
    if OBJECTS:
        s.run_keys.insert(at, key)
        s.run_jobs.insert(at, job)
    else:
        keys, jobs = s.run_keys, s.run_jobs
        for spot in range(run.running, at, -1):
            keys[spot] = keys[spot - 1]
            jobs[spot] = jobs[spot - 1]
        keys[at] = key
        jobs[at] = job
    run.running += 1


def remove(s: Any, job: int) -> None:
    at = place_in(s, s.job[job].position, job)
    run = s.run[0]
    run.running -= 1
    if OBJECTS:
        del s.run_keys[at]
        del s.run_jobs[at]
    else:
        keys, jobs = s.run_keys, s.run_jobs
        for spot in range(at, run.running):
            keys[spot] = keys[spot + 1]
            jobs[spot] = jobs[spot + 1]


def sort_anew(s: Any, now: float) -> None:
    """Remaining service falls faster for wider jobs, so the line of running jobs is put in order at every pass."""
    if OBJECTS:
        s.sort_running(now)
        return
    for at in range(s.run[0].running):
        job = s.run_jobs[at]
        key = run_key(s, job, now)
        s.job[job].position = key
        spot = at
        while spot > 0 and (s.run_keys[spot - 1] > key or (s.run_keys[spot - 1] == key and s.run_jobs[spot - 1] > job)):
            s.run_keys[spot] = s.run_keys[spot - 1]
            s.run_jobs[spot] = s.run_jobs[spot - 1]
            spot -= 1
        s.run_keys[spot] = key
        s.run_jobs[spot] = job


def is_ahead(s: Any, key: Any, job: int, spot: int, now: float) -> bool:
    """Whether a waiting job stands before the running one at this place."""
    run = s.run[0]
    other = s.run_keys[spot] - now if run.order == BY_REMAINING and run.moving == 0 else s.run_keys[spot]
    return key < other or (key == other and job < s.run_jobs[spot])


def first_behind(s: Any, key: Any, job: int, now: float) -> int:
    """The place in line of the first running job that a waiting one stands before."""
    run, keys, jobs = s.run[0], s.run_keys, s.run_jobs
    shift = now if run.order == BY_REMAINING and run.moving == 0 else 0.0
    low, high = 0, run.running
    if high > 0 and keys[high - 1] - shift < key:  # most often nobody has to make way
        return high
    while low < high:
        middle = (low + high) >> 1
        other = keys[middle] - shift
        if key < other or (key == other and job < jobs[middle]):
            high = middle
        else:
            low = middle + 1
    return low


# Starting, stopping, ending.


def rate_at(s: Any, job: int, place: Any) -> float:
    if OBJECTS and s.placed:
        return s.rate_of(job, place)
    return s.kind_rate[place - 1]


def begin(s: Any, job: int, place: Any, now: float) -> None:
    """A job that has left its line runs on these nodes until its end or its limit."""
    take(s, job, place)
    record = s.job[job]
    run_on(s, job, rate_at(s, job, place), now)
    run = s.run[0]
    if run.fit == PREEMPT or run.fit == EASY:
        if run.moving == 1:
            record.key = now + record.guess / record.rate
        record.position = run_key(s, job, now)
        insert(s, job)
        if run.order == BY_LEVEL:
            expect_level(s, job)
    if OBJECTS and s.hooked:
        s.began(job, now)


def run_on(s: Any, job: int, rate: float, now: float) -> None:
    record = s.job[job]
    if record.start < 0.0:
        record.start = now
    record.state = RUNNING
    record.since = now
    record.rate = rate
    s.run[0].version += 1
    expect_end(s, job, now)


def expect_end(s: Any, job: int, now: float) -> None:
    record = s.job[job]
    ends = now + record.left / record.rate + s.run[0].lag_s
    stops = now + max(record.limit - record.attained, 0.0)
    record.expect = stops if stops < ends else ends
    push_event(s, record.expect, 2 * job)


def expect_level(s: Any, job: int) -> None:
    """When a running job sinks to the next level, if there is one."""
    record = s.job[job]
    if record.level < len(s.limits):
        limit = s.limits[record.level] / (record.gpus if s.run[0].by_gpu == 1 else 1)
        record.sinks = record.since + max(limit - record.attained, 0.0)
        push_event(s, record.sinks, 2 * job + 1)


def settle(s: Any, job: int, now: float) -> None:
    """What the job has done until now."""
    record = s.job[job]
    elapsed = now - record.since
    if elapsed > 0.0:
        record.left -= elapsed * record.rate
        record.guess -= elapsed * record.rate
        record.attained += elapsed
        if OBJECTS and s.hooked:
            s.charge(job, elapsed)
            return
        s.pool_s[pool_of_job(s, job)] += elapsed * record.gpus


def end_one(s: Any, job: int, now: float) -> None:
    run = s.run[0]
    record = s.job[job]
    if OBJECTS and s.hooked:
        s.log_run(job, now)
    settle(s, job, now)
    if record.left > 1e-6 * max(record.attained, 1.0):
        record.killed = 1
    record.end = now
    record.expect = -1.0
    record.sinks = -1.0
    run.ended += 1
    run.version += 1
    if run.fit == PREEMPT or run.fit == EASY:
        remove(s, job)
        if record.position > now:  # it ended early, so the reserved job may start early
            run.reserved = -1
    if OBJECTS and s.hooked:
        s.ended_one(job, now)
        return
    record.state = DONE
    give(s, s.nodes, job)
    forget_parts(s, job)


def push_out(s: Any, job: int, now: float) -> None:
    """A running job makes way: it keeps what it has done and pays for the interruption."""
    record = s.job[job]
    if OBJECTS and s.hooked:
        s.log_run(job, now)
    settle(s, job, now)
    cost = s.kind[record.kind].cost
    record.left += cost
    record.guess += cost
    record.since = now
    record.preemptions += 1
    record.expect = -1.0
    record.sinks = -1.0
    s.run[0].version += 1
    if OBJECTS and s.hooked:
        s.pushed_out(job, now)
        return
    give(s, s.nodes, job)
    forget_parts(s, job)
    join(s, job)


def sink_level(s: Any, job: int, now: float) -> None:
    """A running job has reached the limit of its level."""
    remove(s, job)
    s.job[job].level += 1
    s.job[job].sinks = -1.0
    s.job[job].position = run_key(s, job, now)
    insert(s, job)
    expect_level(s, job)
    s.run[0].version += 1


# One look at the line.


def pass_head(s: Any, now: float) -> None:
    """In order until one does not fit."""
    while s.run[0].waiting > 0:
        job = top_of(s, first_line(s))
        place = find(s, s.nodes, job)
        if not place:
            return
        leave_line(s, job)
        begin(s, job, place, now)


def pass_skip(s: Any, now: float) -> None:
    """In order, whoever fits."""
    revive(s)
    while True:
        at = first_line(s)
        if at < 0:
            return
        job = top_of(s, at)
        place = find(s, s.nodes, job)
        if not place:
            s.line[at].dead = 1
            continue
        leave_line(s, job)
        begin(s, job, place, now)


def pass_easy(s: Any, now: float) -> None:
    """In order until one does not fit. It gets a reservation, which is kept until it is due, until a job ended early or
    another job stands first; later jobs start only if they end before it begins or hold GPUs that it does not need."""
    run = s.run[0]
    revive(s)
    head = run.nobody
    while head < 0:
        at = first_line(s)
        if at < 0:
            return
        job = top_of(s, at)
        place = find(s, s.nodes, job)
        if not place:
            head = job
        else:
            leave_line(s, job)
            begin(s, job, place, now)
            run.reserved = -1  # made before this job was known
    if run.waiting < 2:
        return
    set_leaf(s, head, math.inf)
    may_fill = has_candidate(s)
    if may_fill and (run.reserved != head or now >= run.reserved_s):
        reserve(s, head, now)
    while may_fill:
        may_fill = fill_one(s, now)
    set_leaf(s, head, s.job[head].guess)


def has_candidate(s: Any) -> bool:
    """Whether anybody behind the first one has room now; else no reservation need be known."""
    for at in range(len(s.line)):
        line = s.line[at]
        if line.top < 0 or s.tree[line.tree + 1] >= BIG:
            line.dead = 1
        elif find(s, s.nodes, s.leaf_job[line.base + first_leaf(s, at, 0.0, 1.0, BIG)]):
            return True
        else:
            line.dead = 1
    return False


def fill_one(s: Any, now: float) -> bool:
    """Start the first job in line that does not delay the reserved one; False if there is none."""
    best = s.run[0].nobody
    bound = s.run[0].reserved_s
    for at in range(len(s.line)):
        line = s.line[at]
        if line.dead == 1 or line.top < 0 or s.tree[line.tree + 1] >= BIG:
            continue
        some = s.leaf_job[line.base + first_leaf(s, at, 0.0, 1.0, BIG)]
        place = find(s, s.nodes, some)
        if not place:
            line.dead = 1
            continue
        rate = rate_at(s, some, place)
        spot = first_leaf(s, at, now, rate, bound)
        other = s.run[0].nobody
        if bound < BIG and line.dead != 2:
            if find_beside(s, some):
                other = first_leaf(s, at, 0.0, 1.0, BIG)
            else:
                line.dead = 2  # no room beside the reservation any more
        spot = other if other >= 0 else spot
        if spot >= 0:
            job = s.leaf_job[line.base + spot]
            if best < 0 or s.job[job].rank < s.job[best].rank:
                best = job
    if best < 0:
        return False
    place = find(s, s.nodes, best)
    beside = bound < BIG and now + s.job[best].guess / rate_at(s, best, place) > bound
    if beside:
        place = find_beside(s, best)
    leave_line(s, best)
    if beside:
        hide(s)
    begin(s, best, place, now)
    if beside:
        show(s)
        use_spare(s, best)
    return True


def reserve(s: Any, job: int, now: float) -> None:
    """The first moment at which the job fits as running jobs are believed to end, BIG if it never does, and what it leaves
    of its nodes then; what is free on other nodes now is free then too."""
    run = s.run[0]
    run.reserved = job
    run.reserved_s = BIG
    run.spots = 0
    if OBJECTS and s.placed:
        s.later = s.nodes.copy()
    m = s.later
    copy_map(s.nodes, m)
    at = 0
    while at < run.running:
        when = max(s.run_keys[at], now)
        while at < run.running and max(s.run_keys[at], now) == when:
            give(s, m, s.run_jobs[at])
            at += 1
        place = find(s, m, job)
        if place:
            run.reserved_s = when
            if OBJECTS and s.placed:
                s.keep_placement(m, place)
                return
            run.spots = take_nodes(s, m, s.kind_pool[place - 1], s.kind[s.job[job].kind].gpus)
            for spot in range(run.spots):
                s.kept_node[spot] = s.spot_node[spot]
                s.kept_gpus[spot] = m.free[s.spot_node[spot]]
            return


def copy_map(m: Any, other: Any) -> None:
    copy_column(m.free, other.free)
    copy_column(m.room, other.room)
    copy_column(m.hist, other.hist)
    copy_column(m.bits, other.bits)


def copy_column(column: Any, other: Any) -> None:
    if OBJECTS:
        other[:] = column
        return
    for at in range(len(column)):  # numba writes far more code for slices
        other[at] = column[at]


def hide(s: Any) -> None:
    """Put what is free now but not when the reservation begins out of sight."""
    for spot in range(s.run[0].spots):
        node = s.kept_node[spot]
        s.hidden[spot] = max(s.nodes.free[node] - max(s.kept_gpus[spot], 0), 0)
        if s.hidden[spot] > 0:
            change(s.nodes, node, -s.hidden[spot])


def show(s: Any) -> None:
    for spot in range(s.run[0].spots):
        if s.hidden[spot] > 0:
            change(s.nodes, s.kept_node[spot], s.hidden[spot])


def find_beside(s: Any, job: int) -> Any:
    """Free nodes for a job that will still run when the reservation begins, so that it holds none of the reserved GPUs."""
    hide(s)
    place = find(s, s.nodes, job)
    show(s)
    return place


def use_spare(s: Any, job: int) -> None:
    """A job beside the reservation holds some of what that leaves."""
    part = s.job[job].head
    while part >= 0:
        for spot in range(s.run[0].spots):
            if s.kept_node[spot] == s.part_node[part]:
                s.kept_gpus[spot] -= s.part_gpus[part]
        part = s.part_next[part]


# Preemption.


def pass_preempt(s: Any, now: float) -> None:
    """In order, every waiting job that would fit by count if those after it made way, one by one; a job that has no room on
    nodes even then is set aside with all of its kind."""
    run = s.run[0]
    revive(s)
    if run.moving == 1:
        sort_anew(s, now)
    while run.waiting > 0:
        job, pool = next_by_count(s, now)
        if job < 0:
            return
        record = s.job[job]
        line = s.line[record.line]
        if line.aside == job and line.aside_version == run.version and run.order != BY_KEY:
            line.dead = 2  # nothing has changed since it found no room
            continue
        place = find(s, s.nodes, job)
        # A job that was pushed out at this moment pushes nobody out, or two near equals could swap for ever.
        may_evict = not (record.start >= 0.0 and record.since == now)
        losers = 0
        if not place and may_evict:
            losers = find_room(s, job, pool, now)
        if not place and losers == 0:
            line.dead = 2
            if may_evict:
                line.aside = job
                line.aside_version = run.version
            continue
        leave_line(s, job)
        if losers > 0:
            evict(s, losers, now)
            place = find(s, s.nodes, job)
        begin(s, job, place, now)
        retry(s)
        if OBJECTS and s.hooked:
            s.order_anew(now)
        if run.moving == 1:
            sort_anew(s, now)


def pass_by_count(s: Any, now: float) -> None:
    """Where GPUs are only counted: the greedy choice with skipping, made at once."""
    revive(s)
    if s.run[0].moving == 1:
        sort_anew(s, now)
    chosen, losers = choose(s, now)
    for at in range(losers):
        remove(s, s.losers[at])
        push_out(s, s.losers[at], now)
    for at in range(chosen):
        job = s.chosen[at]
        place = find(s, s.nodes, job)
        if place:
            begin(s, job, place, now)
        else:
            join(s, job)


def choose(s: Any, now: float) -> Any:
    """How many waiting jobs start (`s.chosen`, already out of their lines) and how many running ones stop (`s.losers`):
    everybody in line, in order, until the GPUs of the pools are spent. Those ahead of all waiting jobs stay."""
    run = s.run[0]
    at = first_line(s)
    if at < 0:
        return 0, 0
    for pool in range(len(s.nodes.room)):
        s.quota[pool] = s.nodes.room[pool]
    spot = run.running
    key, job = top_key(s, at), top_of(s, at)
    while spot > 0 and is_ahead(s, key, job, spot - 1, now):
        spot -= 1
        s.quota[pool_of_job(s, s.run_jobs[spot])] += s.job[s.run_jobs[spot]].gpus
    chosen, losers = 0, 0
    while at >= 0 or spot < run.running:
        if at >= 0 and (spot == run.running or is_ahead(s, top_key(s, at), top_of(s, at), spot, now)):
            job = top_of(s, at)
            if take_quota(s, job):
                leave_line(s, job)
                s.chosen[chosen] = job
                chosen += 1
            else:
                s.line[at].dead = 1
            at = first_line(s)
            if at < 0 and chosen == 0:
                return 0, 0
        else:
            job = s.run_jobs[spot]
            pool = pool_of_job(s, job)
            if s.job[job].gpus <= s.quota[pool]:
                s.quota[pool] -= s.job[job].gpus
            else:
                s.losers[losers] = job
                losers += 1
            spot += 1
    return chosen, losers


def take_quota(s: Any, job: int) -> bool:
    kind = s.kind[s.job[job].kind]
    for at in range(kind.first, kind.last):
        if kind.gpus <= s.quota[s.kind_pool[at]]:
            s.quota[s.kind_pool[at]] -= kind.gpus
            return True
    return False


def next_by_count(s: Any, now: float) -> Any:
    """The first waiting job that fits by count if those after it made way, and the pool where it does; -1 if none does."""
    one_pool = len(s.nodes.room) == 1
    while True:
        at = first_line(s)
        if at < 0:
            return at, at
        job = top_of(s, at)
        key = top_key(s, at)
        kind = s.kind[s.job[job].kind]
        least = first_behind(s, key, job, now)
        for entry in range(kind.first, kind.last):
            pool = s.kind_pool[entry]
            free = s.nodes.room[pool]
            spot = s.run[0].running - 1
            while free < kind.gpus and spot >= least:
                if one_pool or pool_of_job(s, s.run_jobs[spot]) == pool:
                    free += s.job[s.run_jobs[spot]].gpus
                spot -= 1
            if free >= kind.gpus:
                return job, pool
        s.line[at].dead = 1


def find_room(s: Any, job: int, pool: int, now: float) -> int:
    """Among how many running jobs (`s.losers`, -1 for those who are spared) some make way, so that the job fits; 0 if it
    never does."""
    kind = s.kind[s.job[job].kind]
    if kind.gpus > kind.widest:
        losers = find_in_the_way(s, job, now)
        return losers if spare_losers(s, job, losers) else 0
    losers = find_losers(s, pool, kind.gpus)
    if would_fit(s, job, losers) and spare_losers(s, job, losers):
        return losers
    losers = find_last(s, job, now)
    return losers if would_fit(s, job, losers) and spare_losers(s, job, losers) else 0


def find_losers(s: Any, pool: int, need: int) -> int:
    """A running job of the pool whose followers together are fewer than the deficit must make way."""
    stop = s.run[0].running
    deficit = need - s.nodes.room[pool]
    losers = 0
    spot = stop
    behind = 0
    while behind < deficit and spot > 0:
        spot -= 1
        if pool_of_job(s, s.run_jobs[spot]) == pool:
            behind += s.job[s.run_jobs[spot]].gpus
    while deficit > 0 and spot < stop:
        if pool_of_job(s, s.run_jobs[spot]) == pool:
            size = s.job[s.run_jobs[spot]].gpus
            behind -= size
            if behind < deficit:
                s.losers[losers] = s.run_jobs[spot]
                losers += 1
                deficit -= size
        spot += 1
    return losers


def find_last(s: Any, job: int, now: float) -> int:
    """By count there was room, but not together: the last jobs in line, until they hold many times what is needed."""
    need = s.kind[s.job[job].kind].gpus
    key = top_key(s, s.job[job].line)
    stop = s.run[0].running
    least = first_behind(s, key, job, now)
    spot = stop
    freed = 0
    while spot > least and freed < DISTURB * need:
        spot -= 1
        freed += s.job[s.run_jobs[spot]].gpus
    for at in range(stop - spot):
        s.losers[at] = s.run_jobs[spot + at]
    return stop - spot


def find_in_the_way(s: Any, job: int, now: float) -> int:
    """For a job of several nodes: those behind it on the nodes that are cleared at the least cost in GPUs, if enough nodes hold
    nobody else."""
    kind = s.kind[s.job[job].kind]
    key = top_key(s, s.job[job].line)
    part_node, part_gpus, part_next, gain, jobs = s.part_node, s.part_gpus, s.part_next, s.gain, s.run_jobs
    stop = s.run[0].running
    spot = first_behind(s, key, job, now)
    for at in range(spot, stop):
        part = s.job[jobs[at]].head
        while part >= 0:
            gain[part_node[part]] += part_gpus[part]
            part = part_next[part]
    losers = 0
    for entry in range(kind.first, kind.last):
        pool = s.kind_pool[entry]
        width = s.nodes.pools[pool].width
        if mark_cleared(s, pool, (kind.gpus + width - 1) // width):
            losers = gather_cleared(s, spot)
            for node in range(s.nodes.pools[pool].first, s.nodes.pools[pool].last):
                s.cleared[node] = 0
            break
    for at in range(spot, stop):
        part = s.job[jobs[at]].head
        while part >= 0:
            gain[part_node[part]] = 0
            part = part_next[part]
    return losers


def gather_cleared(s: Any, spot: int) -> int:
    """Those from this place in line on who hold marked nodes, in order."""
    losers = 0
    for at in range(spot, s.run[0].running):
        part = s.job[s.run_jobs[at]].head
        inside = False
        while part >= 0:
            inside = inside or s.cleared[s.part_node[part]] == 1
            part = s.part_next[part]
        if inside:
            s.losers[losers] = s.run_jobs[at]
            losers += 1
    return losers


def mark_cleared(s: Any, pool: int, wanted: int) -> bool:
    """Mark so many nodes that are empty once `gain` is free, those with most free GPUs first; False if there are too few."""
    span = s.nodes.pools[pool]
    free, gain, levels = s.nodes.free, s.gain, s.levels
    for level in range(span.width + 1):
        levels[level] = 0
    found = 0
    for node in range(span.first, span.last):
        if free[node] + gain[node] == span.width:
            found += 1
            levels[free[node]] += 1
    if found < wanted:
        return False
    for level in range(span.width, -1, -1):
        levels[level] = min(levels[level], wanted)
        wanted -= levels[level]
    for node in range(span.first, span.last):
        if free[node] + gain[node] == span.width and levels[free[node]] > 0:
            s.cleared[node] = 1
            levels[free[node]] -= 1
    return True


def would_fit(s: Any, job: int, losers: int) -> bool:
    """Whether any node of these losers would have room for a job of one node; a look that spares most of the exact ones."""
    if OBJECTS and s.placed:
        return True
    kind = s.kind[s.job[job].kind]
    need = kind.gpus
    for entry in range(kind.first, kind.last):
        if need > s.nodes.pools[s.kind_pool[entry]].width:
            return True
    free, gain, part_node, part_next = s.nodes.free, s.gain, s.part_node, s.part_next
    found = False
    for at in range(losers):
        part = s.job[s.losers[at]].head
        while part >= 0:
            node = part_node[part]
            gain[node] += s.part_gpus[part]
            found = found or free[node] + gain[node] >= need
            part = part_next[part]
    for at in range(losers):
        part = s.job[s.losers[at]].head
        while part >= 0:
            gain[part_node[part]] = 0
            part = part_next[part]
    return found


def spare_losers(s: Any, job: int, losers: int) -> bool:
    """Free losers from the last one on until the job would fit, and spare (-1) those whose leaving did not help; if it never
    fits, all of them."""
    good = False
    first = losers
    while first > 0 and not good:
        first -= 1
        give(s, s.nodes, s.losers[first])
        if find(s, s.nodes, job):
            good = True
    if good:
        for at in range(losers - 1, first, -1):
            retake(s, s.nodes, s.losers[at])
            if find(s, s.nodes, job):
                s.losers[at] = -1
            else:
                give(s, s.nodes, s.losers[at])
    for at in range(losers):
        if at >= first and s.losers[at] >= 0:
            retake(s, s.nodes, s.losers[at])
        if at < first or not good:
            s.losers[at] = -1
    return good


def evict(s: Any, losers: int, now: float) -> None:
    """Those losers make way who were not spared: the one by whom the job fits, then the others from the last in line on."""
    first = 0
    while s.losers[first] < 0:
        first += 1
    for step in range(losers - first):
        at = first if step == 0 else losers - step
        if s.losers[at] >= 0:
            remove(s, s.losers[at])
            push_out(s, s.losers[at], now)


# The loop.


def find_moment(s: Any) -> float:
    """The next moment at which something happens."""
    run = s.run[0]
    now = next_event_s(s)
    if run.cursor < run.num_jobs:
        now = min(now, s.job[run.cursor].submit)
    if OBJECTS:
        now = min(now, s.hazard_s, s.wake_s)
    return now


def take_ends(s: Any, now: float) -> bool:
    """Ends and changes of level at this moment, or the first of them; whether there were any."""
    changed = False
    while next_event_s(s) == now and not (changed and s.run[0].one_by_one == 1):
        token = pop_event(s)
        changed = True
        if token & 1 == 1:
            sink_level(s, token >> 1, now)
        else:
            end_one(s, token >> 1, now)
    return changed


def arrive(s: Any, now: float) -> None:
    """Everybody who is submitted now, or the first of them."""
    run = s.run[0]
    while run.cursor < run.num_jobs and s.job[run.cursor].submit == now:
        job = run.cursor
        run.cursor += 1
        if s.job[job].state == REJECTED:
            run.ended += 1
            if OBJECTS and s.hooked:
                s.free_children(job, now)
        elif OBJECTS:
            s.arrived(job, now)
        else:
            join(s, job)
        if run.one_by_one == 1:
            return


def cut_off(s: Any) -> None:
    """The run ends here: jobs that run have done what they have done."""
    until_s = s.run[0].until_s
    for job in range(s.run[0].num_jobs):
        if s.job[job].expect >= 0.0:
            if OBJECTS and s.hooked:
                s.log_run(job, until_s)
            settle(s, job, until_s)
            s.job[job].expect = -1.0


def find_look(run: Any) -> Callable[[Any, float], None]:
    """The look at the line that a policy asks for."""
    if run.fit == PREEMPT:
        return pass_by_count if run.counted == 1 else pass_preempt
    return {SKIP: pass_skip, EASY: pass_easy}.get(int(run.fit), pass_head)


def run_events(s: Any, most: int, look: Callable[[Any, float], None]) -> bool:
    """Up to so many moments, with one look at the line after each; whether anything is left to do."""
    run = s.run[0]
    for _ in range(most):
        if run.ended == run.num_jobs:
            break
        now = find_moment(s)
        if now >= BIG or now > run.until_s:
            break
        changed = take_ends(s, now)
        if OBJECTS and s.hazard_s == now:
            changed = True
            s.meet_hazards(now)
        if run.one_by_one == 0 or not changed:
            arrive(s, now)
        run.passes += 1
        if OBJECTS and s.asks:
            s.ask(now)
        elif run.waiting > 0:
            look(s, now)
    else:
        return True
    if run.until_s < BIG:
        cut_off(s)
    return False
