"""The engine's hot loops for one pool of equal nodes: compiled by numba where it is installed, plain Python elsewhere.

The same source runs both ways, on arrays or on lists, so the results are the same bits. What each loop does is said in
`simulator`; here only the order of work differs. Waiting jobs are kept per class (number of GPUs), because in one pass
a class that failed once fails until the pass ends.
"""

import math
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

BITS = 62
# To find one job a node, the last jobs in line are looked at until they hold this many times its own GPUs.
DISTURB = 8
BIG = 1e300


# Heaps of (key, job): `size[at]` entries from `base` on.


def push(keys: Any, items: Any, base: int, size: Any, at: int, key: float, item: int) -> None:
    child = size[at]
    size[at] = child + 1
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


def drop_top(keys: Any, items: Any, base: int, size: Any, at: int) -> None:
    count = size[at] - 1
    size[at] = count
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


def forget_stale(keys: Any, items: Any, size: Any, expect: Any) -> None:
    """Drop the events of runs that were interrupted, when they fill the heap.

    A job moved at no cost still ends at the same moment, so an event may stand there twice: one is kept.
    """
    kept = 0
    for at in range(size[0]):
        if expect[items[at]] == keys[at]:
            expect[items[at]] = -1.0
            keys[kept] = keys[at]
            items[kept] = items[at]
            kept += 1
    size[0] = 0
    for at in range(kept):
        key = keys[at]
        item = items[at]
        expect[item] = key
        push(keys, items, 0, size, 0, key, item)


# Waiting jobs of one class in order, as a tree of smallest estimates.


def set_leaf(tree: Any, base: int, leaves: int, position: int, value: float) -> None:
    node = leaves + position
    tree[base + node] = value
    node >>= 1
    while node >= 1:
        left = tree[base + 2 * node]
        right = tree[base + 2 * node + 1]
        tree[base + node] = left if left < right else right
        node >>= 1


def first_leaf(tree: Any, base: int, leaves: int, now: float, bound: float) -> int:
    """The first job in the class that would end by `bound` if started now; -1 if none."""
    if now + tree[base + 1] > bound:
        return -1
    node = 1
    while node < leaves:
        node *= 2
        if now + tree[base + node] > bound:
            node += 1
    return node - leaves


# Nodes: `bits` holds one bitmap of nodes per number of free GPUs, `width` GPUs per node; width 0 means counting only.


def low_bit(word: int) -> int:
    # A power of two is exact as a float, and frexp is the one bit search that both paths share.
    return math.frexp(float(word & -word))[1] - 1


def flip(bits: Any, words: int, free: int, node: int) -> None:
    at = free * words + node // BITS
    bits[at] = bits[at] ^ (1 << (node % BITS))


def change(node: int, by: int, free: Any, bits: Any, words: int, state: Any, width: int) -> None:
    """`state` = (free GPUs, nodes with 0, 1, ... width free GPUs)."""
    before = free[node]
    after = before + by
    free[node] = after
    flip(bits, words, before, node)
    flip(bits, words, after, node)
    state[1 + before] -= 1
    state[1 + after] += 1


def any_with(need: int, most: int, state: Any) -> bool:
    for count in range(need, most + 1):  # noqa: SIM110 (numba compiles no generators)
        if state[1 + count] > 0:
            return True
    return False


def tightest(need: int, most: int, bits: Any, words: int, state: Any) -> int:
    for count in range(need, most + 1):
        if state[1 + count] == 0:
            continue
        for word in range(words):
            if bits[count * words + word] != 0:
                return word * BITS + low_bit(bits[count * words + word])
    return -1


def fits(need: int, state: Any, width: int) -> bool:
    if need > state[0]:
        return False
    if width == 0:
        return True
    if need <= width:
        return any_with(need, width, state)
    full = need // width
    rest = need - full * width
    if state[1 + width] < full:
        return False
    return rest == 0 or state[1 + width] > full or any_with(rest, width - 1, state)


def take(
    job: int, need: int, free: Any, bits: Any, words: int, state: Any, width: int, held: Any, chain: Any, last: Any
) -> None:
    """Give a job that fits its nodes: whole nodes chained from `held[job]`, the part of a node in `last[job]`."""
    state[0] -= need
    held[job] = -1
    last[job] = -1
    if width == 0:
        return
    if need <= width:
        node = tightest(need, width, bits, words, state)
        last[job] = node
        change(node, -need, free, bits, words, state, width)
        return
    full = need // width
    rest = need - full * width
    for _ in range(full):
        node = tightest(width, width, bits, words, state)
        change(node, -width, free, bits, words, state, width)
        chain[node] = held[job]
        held[job] = node
    if rest:
        node = tightest(rest, width, bits, words, state)
        last[job] = node
        change(node, -rest, free, bits, words, state, width)


def shift(
    job: int,
    need: int,
    sign: int,
    free: Any,
    bits: Any,
    words: int,
    state: Any,
    width: int,
    held: Any,
    chain: Any,
    last: Any,
) -> None:
    """Give a job's nodes back (sign 1) or take the very same nodes again (sign -1)."""
    state[0] += sign * need
    if width == 0:
        return
    node = held[job]
    rest = need
    while node >= 0:
        change(node, sign * width, free, bits, words, state, width)
        rest -= width
        node = chain[node]
    if last[job] >= 0:
        change(last[job], sign * rest, free, bits, words, state, width)


def run_queue(
    fit: int,
    submit: Any,
    gpus: Any,
    duration: Any,
    estimate: Any,
    class_of: Any,
    place_of: Any,
    job_at: Any,
    rank: Any,
    class_gpus: Any,
    class_base: Any,
    class_leaves: Any,
    class_first: Any,
    tree: Any,
    heap_keys: Any,
    heap_jobs: Any,
    heap_size: Any,
    free: Any,
    bits: Any,
    words: int,
    state: Any,
    width: int,
    held: Any,
    chain: Any,
    last: Any,
    failed: Any,
    run_ends: Any,
    run_gpus: Any,
    start: Any,
    end: Any,
) -> int:
    """Without preemption. `fit`: 0 stops at the first job that does not fit, 1 goes on, 2 backfills (EASY)."""
    count = len(submit)
    num_classes = len(class_gpus)
    cursor = 0
    passes = 0
    waiting = 0
    num_running = 0
    while cursor < count or heap_size[0] > 0:
        now = BIG
        if heap_size[0] > 0:
            now = heap_keys[0]
        if cursor < count and submit[cursor] < now:
            now = submit[cursor]
        while heap_size[0] > 0 and heap_keys[0] == now:
            job = heap_jobs[0]
            drop_top(heap_keys, heap_jobs, 0, heap_size, 0)
            shift(job, gpus[job], 1, free, bits, words, state, width, held, chain, last)
            end[job] = now
            if fit == 2:
                gone = start[job] + estimate[job]
                low = 0
                high = num_running
                while low < high:
                    middle = (low + high) >> 1
                    if run_ends[middle] < gone:
                        low = middle + 1
                    else:
                        high = middle
                while run_gpus[low] != gpus[job]:
                    low += 1
                num_running -= 1
                for at in range(low, num_running):
                    run_ends[at] = run_ends[at + 1]
                    run_gpus[at] = run_gpus[at + 1]
        while cursor < count and submit[cursor] == now:
            if start[cursor] > -2.0:
                kind = class_of[cursor]
                set_leaf(tree, class_base[kind], class_leaves[kind], place_of[cursor], estimate[cursor])
                waiting += 1
            cursor += 1
        passes += 1
        if waiting == 0 or state[0] == 0:
            continue
        for kind in range(num_classes):
            failed[kind] = 0
        blocked = False
        shadow = BIG
        extra = BIG
        while waiting > 0 and state[0] > 0:
            best = -1
            best_kind = -1
            for kind in range(num_classes):
                if failed[kind] == 1 or (class_gpus[kind] > state[0] and fit != 0 and (blocked or fit == 1)):
                    continue
                bound = BIG
                if blocked and class_gpus[kind] > extra:
                    bound = shadow
                place = first_leaf(tree, class_base[kind], class_leaves[kind], now, bound)
                if place >= 0:
                    job = job_at[class_first[kind] + place]
                    if best < 0 or rank[job] < rank[best]:
                        best = job
                        best_kind = kind
            if best < 0:
                break
            need = gpus[best]
            if not fits(need, state, width):
                if fit == 0:
                    break
                if fit == 1 or blocked:
                    failed[best_kind] = 1
                    continue
                # The first job that does not fit gets a reservation; later ones must not delay it.
                blocked = True
                room = state[0] + 0.0
                shadow = BIG
                extra = BIG
                for at in range(num_running):
                    room += run_gpus[at]
                    ends = run_ends[at] if run_ends[at] > now else now
                    if room >= need and (at + 1 == num_running or max(run_ends[at + 1], now) > ends):
                        shadow = ends
                        extra = room - need
                        break
                # The reserved job itself is out of this pass.
                set_leaf(tree, class_base[best_kind], class_leaves[best_kind], place_of[best], math.inf)
                failed[num_classes] = best
                continue
            if blocked and now + estimate[best] > shadow:
                extra -= need
            take(best, need, free, bits, words, state, width, held, chain, last)
            set_leaf(tree, class_base[best_kind], class_leaves[best_kind], place_of[best], math.inf)
            waiting -= 1
            start[best] = now
            push(heap_keys, heap_jobs, 0, heap_size, 0, now + duration[best], best)
            if fit == 2:
                gone = now + estimate[best]
                low = 0
                high = num_running
                while low < high:
                    middle = (low + high) >> 1
                    if run_ends[middle] < gone or (run_ends[middle] == gone and run_gpus[middle] < need):
                        low = middle + 1
                    else:
                        high = middle
                for at in range(num_running, low, -1):
                    run_ends[at] = run_ends[at - 1]
                    run_gpus[at] = run_gpus[at - 1]
                run_ends[low] = gone
                run_gpus[low] = need
                num_running += 1
        if blocked:
            job = failed[num_classes]
            kind = class_of[job]
            set_leaf(tree, class_base[kind], class_leaves[kind], place_of[job], estimate[job])
    return passes


def run_preemptive(
    by_level: int,
    by_gpu: int,
    limits: Any,
    submit: Any,
    gpus: Any,
    left: Any,
    guess: Any,
    cost: Any,
    class_of: Any,
    class_gpus: Any,
    class_base: Any,
    wait_keys: Any,
    wait_jobs: Any,
    wait_size: Any,
    heap_keys: Any,
    heap_jobs: Any,
    expect: Any,
    heap_size: Any,
    free: Any,
    bits: Any,
    words: int,
    state: Any,
    width: int,
    held: Any,
    chain: Any,
    last: Any,
    dead: Any,
    run_keys: Any,
    run_jobs: Any,
    losers: Any,
    since: Any,
    attained: Any,
    level: Any,
    position: Any,
    preemptions: Any,
    start: Any,
    end: Any,
) -> int:
    """Shortest remaining time (`by_level` 0) or levels of attained service (1); the order is that of `KeyedLine`.

    Running jobs stand sorted by a number that does not move while they run: the believed end, or level and row. The
    greedy choice by count can only push out jobs at the tail, so a pass looks at the tail and at the heads of classes.
    """
    count = len(submit)
    num_classes = len(class_gpus)
    num_limits = len(limits)
    cursor = 0
    passes = 0
    waiting = 0
    num_running = 0
    done = 0
    while done < count:
        while heap_size[0] > 0 and expect[heap_jobs[0]] != heap_keys[0]:
            drop_top(heap_keys, heap_jobs, 0, heap_size, 0)
        if heap_size[0] > len(heap_keys) - 2 * len(run_keys) - 8:
            forget_stale(heap_keys, heap_jobs, heap_size, expect)
        now = BIG
        if heap_size[0] > 0:
            now = heap_keys[0]
        if cursor < count and submit[cursor] < now:
            now = submit[cursor]
        if now >= BIG:
            break
        changed = False
        while heap_size[0] > 0 and heap_keys[0] == now:
            token = heap_jobs[0]
            drop_top(heap_keys, heap_jobs, 0, heap_size, 0)
            job = token >> 1
            if expect[token] != now:
                continue
            expect[token] = -1.0
            changed = True
            at = position_of(run_keys, run_jobs, num_running, position[job], job)
            num_running -= 1
            for spot in range(at, num_running):
                run_keys[spot] = run_keys[spot + 1]
                run_jobs[spot] = run_jobs[spot + 1]
            if token & 1 == 0:
                attained[job] += now - since[job]
                shift(job, gpus[job], 1, free, bits, words, state, width, held, chain, last)
                end[job] = now
                expect[token + 1] = -1.0
                done += 1
            else:
                level[job] += 1
                position[job] = level[job] * 2.0 * count + job
                num_running = insert(run_keys, run_jobs, num_running, position[job], job)
                if level[job] < num_limits:
                    limit = limits[level[job]] / (gpus[job] if by_gpu == 1 else 1)
                    expect[2 * job + 1] = since[job] + max(limit - attained[job], 0.0)
                    push(heap_keys, heap_jobs, 0, heap_size, 0, expect[2 * job + 1], 2 * job + 1)
        while cursor < count and submit[cursor] == now:
            changed = True
            if start[cursor] > -2.0:
                kind = class_of[cursor]
                key = guess[cursor]
                if by_level == 1:
                    key = 0.0 + count + cursor
                push(wait_keys, wait_jobs, class_base[kind], wait_size, kind, key, cursor)
                waiting += 1
            else:
                done += 1
            cursor += 1
        if not changed:
            continue
        passes += 1
        if waiting == 0:
            continue
        for kind in range(num_classes):
            dead[kind] = 0
        while waiting > 0:
            # The first waiting job that fits by count if those after it made way. Classes: 1 = none by count,
            # 2 = set aside for the whole pass.
            for kind in range(num_classes):
                if dead[kind] == 1:
                    dead[kind] = 0
            job = -1
            need = 0
            while job < 0:
                best = -1
                best_kind = -1
                best_key = 0.0
                for kind in range(num_classes):
                    if dead[kind] > 0 or wait_size[kind] == 0:
                        continue
                    key = wait_keys[class_base[kind]]
                    other = wait_jobs[class_base[kind]]
                    if best < 0 or key < best_key or (key == best_key and other < best):
                        best = other
                        best_kind = kind
                        best_key = key
                if best < 0:
                    break
                need = class_gpus[best_kind]
                room = state[0]
                at = num_running - 1
                while room < need and at >= 0:
                    if not is_before(best_key, best, run_keys[at], run_jobs[at], now, by_level):
                        break
                    room += gpus[run_jobs[at]]
                    at -= 1
                if room >= need:
                    job = best
                else:
                    dead[best_kind] = 1
            if job < 0:
                break
            kind = class_of[job]
            drop_top(wait_keys, wait_jobs, class_base[kind], wait_size, kind)
            good = fits(need, state, width)
            num_losers = 0
            # A job that was pushed out at this moment pushes nobody out, or two near equals could swap for ever.
            if not good and not (start[job] >= 0.0 and since[job] == now):
                # A running job whose followers together are fewer than the deficit must make way.
                deficit = need - state[0]
                spot = num_running
                behind = 0
                while behind < deficit and spot > 0:
                    spot -= 1
                    behind += gpus[run_jobs[spot]]
                while deficit > 0 and spot < num_running:
                    size = gpus[run_jobs[spot]]
                    behind -= size
                    if behind < deficit:
                        losers[num_losers] = run_jobs[spot]
                        num_losers += 1
                        deficit -= size
                    spot += 1
                for attempt in range(2):
                    if good or (attempt == 1 and need > width):
                        break
                    if attempt == 1:
                        # By count there was room, but not on one node: look for a node among the last jobs in line.
                        key = guess[job]
                        if by_level == 1:
                            key = level[job] * 2.0 * count + count + job
                        spot = num_running
                        freed = 0
                        while spot > 0 and freed < DISTURB * need:
                            if not is_before(key, job, run_keys[spot - 1], run_jobs[spot - 1], now, by_level):
                                break
                            spot -= 1
                            freed += gpus[run_jobs[spot]]
                        num_losers = num_running - spot
                        for at in range(num_losers):
                            losers[at] = run_jobs[spot + at]
                    left_over = num_losers
                    while left_over > 0 and not good:
                        left_over -= 1
                        loser = losers[left_over]
                        shift(loser, gpus[loser], 1, free, bits, words, state, width, held, chain, last)
                        good = fits(need, state, width)
                    # Spare those whose leaving did not help.
                    for at in range(num_losers - 1, left_over, -1):
                        loser = losers[at]
                        shift(loser, gpus[loser], -1, free, bits, words, state, width, held, chain, last)
                        if good and not fits(need, state, width):
                            shift(loser, gpus[loser], 1, free, bits, words, state, width, held, chain, last)
                        else:
                            losers[at] = -1
                    if not good and left_over < num_losers:
                        loser = losers[left_over]
                        shift(loser, gpus[loser], -1, free, bits, words, state, width, held, chain, last)
                        losers[left_over] = -1
                    for at in range(left_over, num_losers):
                        loser = losers[at]
                        if loser < 0:
                            continue
                        spot = position_of(run_keys, run_jobs, num_running, position[loser], loser)
                        num_running -= 1
                        for index in range(spot, num_running):
                            run_keys[index] = run_keys[index + 1]
                            run_jobs[index] = run_jobs[index + 1]
                        elapsed = now - since[loser]
                        left[loser] = left[loser] - elapsed + cost[loser]
                        guess[loser] = guess[loser] - elapsed + cost[loser]
                        attained[loser] += elapsed
                        since[loser] = now
                        preemptions[loser] += 1
                        expect[2 * loser] = -1.0
                        expect[2 * loser + 1] = -1.0
                        kind = class_of[loser]
                        key = guess[loser]
                        if by_level == 1:
                            key = level[loser] * 2.0 * count + count + loser
                        push(wait_keys, wait_jobs, class_base[kind], wait_size, kind, key, loser)
                        waiting += 1
            if not good:
                kind = class_of[job]
                dead[kind] = 2
                key = guess[job]
                if by_level == 1:
                    key = level[job] * 2.0 * count + count + job
                push(wait_keys, wait_jobs, class_base[kind], wait_size, kind, key, job)
                continue
            take(job, need, free, bits, words, state, width, held, chain, last)
            waiting -= 1
            num_running = begin(
                job, now, by_level, by_gpu, limits, gpus, left, guess, attained, level, position, since, start,
                run_keys, run_jobs, num_running, heap_keys, heap_jobs, expect, heap_size, count,
            )  # fmt: skip
    return passes


def is_before(key: float, job: int, run_key: float, run_job: int, now: float, by_level: int) -> bool:
    """Whether a waiting job stands before a running one."""
    other = run_key if by_level == 1 else run_key - now
    return key < other or (key == other and job < run_job)


def position_of(run_keys: Any, run_jobs: Any, num_running: int, key: float, job: int) -> int:
    low = 0
    high = num_running
    while low < high:
        middle = (low + high) >> 1
        if run_keys[middle] < key or (run_keys[middle] == key and run_jobs[middle] < job):
            low = middle + 1
        else:
            high = middle
    return low


def insert(run_keys: Any, run_jobs: Any, num_running: int, key: float, job: int) -> int:
    at = position_of(run_keys, run_jobs, num_running, key, job)
    for spot in range(num_running, at, -1):
        run_keys[spot] = run_keys[spot - 1]
        run_jobs[spot] = run_jobs[spot - 1]
    run_keys[at] = key
    run_jobs[at] = job
    return num_running + 1


def begin(
    job: int,
    now: float,
    by_level: int,
    by_gpu: int,
    limits: Any,
    gpus: Any,
    left: Any,
    guess: Any,
    attained: Any,
    level: Any,
    position: Any,
    since: Any,
    start: Any,
    run_keys: Any,
    run_jobs: Any,
    num_running: int,
    heap_keys: Any,
    heap_jobs: Any,
    expect: Any,
    heap_size: Any,
    count: int,
) -> int:
    if start[job] < 0.0:
        start[job] = now
    since[job] = now
    position[job] = now + guess[job]
    if by_level == 1:
        position[job] = level[job] * 2.0 * count + job
        if level[job] < len(limits):
            limit = limits[level[job]] / (gpus[job] if by_gpu == 1 else 1)
            expect[2 * job + 1] = now + max(limit - attained[job], 0.0)
            push(heap_keys, heap_jobs, 0, heap_size, 0, expect[2 * job + 1], 2 * job + 1)
    expect[2 * job] = now + left[job]
    push(heap_keys, heap_jobs, 0, heap_size, 0, expect[2 * job], 2 * job)
    return insert(run_keys, run_jobs, num_running, position[job], job)


_PARTS = (
    push, drop_top, forget_stale, set_leaf, first_leaf, low_bit, flip, change, any_with, tightest, fits, take, shift, is_before,
    position_of, insert, begin, run_queue, run_preemptive,
)  # fmt: skip


@cache
def compiled() -> dict[str, Callable[..., int]] | None:
    """The loops as machine code, or None where numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    scope = dict(globals())
    for part in _PARTS:
        twin = FunctionType(part.__code__, scope, part.__name__)
        twin.__qualname__, twin.__module__ = part.__qualname__, part.__module__
        try:
            scope[part.__name__] = numba.njit(twin, cache=True)
        except RuntimeError:  # no writable place for the cache
            scope[part.__name__] = numba.njit(twin)
    return {"run_queue": scope["run_queue"], "run_preemptive": scope["run_preemptive"]}


def interpreted() -> dict[str, Callable[..., int]]:
    return {"run_queue": run_queue, "run_preemptive": run_preemptive}
