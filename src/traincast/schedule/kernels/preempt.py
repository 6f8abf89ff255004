"""The loop of preemptive policies: shortest remaining time or service, and levels of attained service."""

from typing import Any

from traincast.schedule.kernels.heaps import drop_top, forget_stale, push
from traincast.schedule.kernels.nodes import Nodes, fits, shift, take
from traincast.schedule.kernels.order import (
    BY_LEVEL,
    BY_SERVICE,
    choose_by_count,
    first_waiting,
    insert,
    is_before,
    position_of,
    sort_anew,
    wait_key,
)

# To find one job a node, the last jobs in line are looked at until they hold this many times its own GPUs.
DISTURB = 8
BIG = 1e300


def run_preemptive(
    order: int,
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
    nodes: Nodes,
    dead: Any,
    run_keys: Any,
    run_jobs: Any,
    losers: Any,
    chosen: Any,
    gain: Any,
    since: Any,
    attained: Any,
    level: Any,
    position: Any,
    preemptions: Any,
    start: Any,
    end: Any,
) -> int:
    """Remaining time, levels of attained service or remaining service (`order`); the line is that of `KeyedLine`.

    Running jobs stand sorted by a number that does not move while they run, the believed end or level and row; remaining
    service does move and is sorted anew. The greedy choice by count can only push out jobs at the tail, so a pass looks at
    the tail and at the heads of classes.
    """
    count = len(submit)
    width = nodes.width
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
                shift(job, gpus[job], 1, nodes)
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
                key = wait_key(order, cursor, guess, gpus, level, count)
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
        if order == BY_SERVICE:
            sort_anew(run_keys, run_jobs, num_running, position, since, guess, gpus, now)
        if width == 0:
            num_chosen, num_losers = choose_by_count(
                order, now, nodes.hist[0], gpus, class_gpus, class_base, wait_keys, wait_jobs, wait_size, dead,
                run_keys, run_jobs, num_running, losers, chosen,
            )  # fmt: skip
            waiting += num_losers - num_chosen
            if num_losers > 0:
                kept = losers[0]
                at = 0
                for spot in range(losers[0], num_running):
                    if at < num_losers and spot == losers[at]:
                        losers[at] = run_jobs[spot]
                        at += 1
                    else:
                        run_keys[kept] = run_keys[spot]
                        run_jobs[kept] = run_jobs[spot]
                        kept += 1
                num_running = kept
                for at in range(num_losers):
                    nodes.hist[0] += gpus[losers[at]]
                    stop(
                        losers[at], now, order, gpus, left, guess, cost, attained, since, level, preemptions, expect,
                        class_of, class_base, wait_keys, wait_jobs, wait_size, count,
                    )  # fmt: skip
            for at in range(num_chosen):
                nodes.hist[0] -= gpus[chosen[at]]
                num_running = begin(
                    chosen[at], now, order, by_gpu, limits, gpus, left, guess, attained, level, position, since, start,
                    run_keys, run_jobs, num_running, heap_keys, heap_jobs, expect, heap_size, count,
                )  # fmt: skip
            continue
        while waiting > 0:
            # The first waiting job that fits by count if those after it made way. Classes: 1 = none by count,
            # 2 = set aside for the whole pass.
            for kind in range(num_classes):
                if dead[kind] == 1:
                    dead[kind] = 0
            job = -1
            need = 0
            while job < 0:
                best_kind = first_waiting(num_classes, dead, wait_size, wait_keys, wait_jobs, class_base)
                if best_kind < 0:
                    break
                best = wait_jobs[class_base[best_kind]]
                best_key = wait_keys[class_base[best_kind]]
                need = class_gpus[best_kind]
                room = nodes.hist[0]
                at = num_running - 1
                while room < need and at >= 0:
                    if not is_before(best_key, best, run_keys[at], run_jobs[at], now, order):
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
            good = fits(need, nodes.hist, width)
            num_losers = 0
            # A job that was pushed out at this moment pushes nobody out, or two near equals could swap for ever.
            if not good and not (start[job] >= 0.0 and since[job] == now):
                # A running job whose followers together are fewer than the deficit must make way.
                deficit = need - nodes.hist[0]
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
                    if good:
                        break
                    if attempt == 0 and need > width:
                        continue  # whole nodes are looked for at once
                    if attempt == 1:
                        # By count there was room, but not together: look for nodes among the last jobs in line.
                        key = wait_key(order, job, guess, gpus, level, count)
                        spot = num_running
                        freed = 0
                        while spot > 0 and (need > width or freed < DISTURB * need):
                            if not is_before(key, job, run_keys[spot - 1], run_jobs[spot - 1], now, order):
                                break
                            spot -= 1
                            freed += gpus[run_jobs[spot]]
                        if need <= width:
                            num_losers = num_running - spot
                            for at in range(num_losers):
                                losers[at] = run_jobs[spot + at]
                        else:
                            num_losers = find_in_the_way(need, spot, num_running, run_jobs, losers, gpus, nodes, gain)
                    left_over = num_losers
                    while left_over > 0 and not good:
                        left_over -= 1
                        loser = losers[left_over]
                        shift(loser, gpus[loser], 1, nodes)
                        good = fits(need, nodes.hist, width)
                    # Spare those whose leaving did not help.
                    for at in range(num_losers - 1, left_over, -1):
                        loser = losers[at]
                        shift(loser, gpus[loser], -1, nodes)
                        if good and not fits(need, nodes.hist, width):
                            shift(loser, gpus[loser], 1, nodes)
                        else:
                            losers[at] = -1
                    if not good and left_over < num_losers:
                        loser = losers[left_over]
                        shift(loser, gpus[loser], -1, nodes)
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
                        stop(
                            loser, now, order, gpus, left, guess, cost, attained, since, level, preemptions, expect,
                            class_of, class_base, wait_keys, wait_jobs, wait_size, count,
                        )  # fmt: skip
                        waiting += 1
            if not good:
                kind = class_of[job]
                dead[kind] = 2
                key = wait_key(order, job, guess, gpus, level, count)
                push(wait_keys, wait_jobs, class_base[kind], wait_size, kind, key, job)
                continue
            take(job, need, nodes)
            waiting -= 1
            num_running = begin(
                job, now, order, by_gpu, limits, gpus, left, guess, attained, level, position, since, start,
                run_keys, run_jobs, num_running, heap_keys, heap_jobs, expect, heap_size, count,
            )  # fmt: skip
    return passes


def find_in_the_way(
    need: int,
    spot: int,
    num_running: int,
    run_jobs: Any,
    losers: Any,
    gpus: Any,
    nodes: Nodes,
    gain: Any,
) -> int:
    """For a job of several nodes: those from `spot` on that hold the nodes which are cleared at the least cost in GPUs, if
    enough nodes hold nobody else. `gain` (an entry per node, then one per number of free GPUs) is 0 before and after."""
    free = nodes.free
    width = nodes.width
    held = nodes.held
    chain = nodes.chain
    last = nodes.last
    for at in range(spot, num_running):
        rest = gpus[run_jobs[at]]
        node = held[run_jobs[at]]
        while node >= 0:
            gain[node] = width
            rest -= width
            node = chain[node]
        if last[run_jobs[at]] >= 0:
            gain[last[run_jobs[at]]] += rest
    num_nodes = len(free)
    left = (need + width - 1) // width
    # How many nodes would be empty, by the GPUs that are free there now; the freest are cleared first.
    for node in range(num_nodes):
        if free[node] + gain[node] == width:
            gain[num_nodes + free[node]] += 1
    room = width
    while room >= 0 and gain[num_nodes + room] < left:
        left -= gain[num_nodes + room]
        room -= 1
    enough = room >= 0
    for node in range(num_nodes if enough else 0):
        if free[node] + gain[node] == width and free[node] >= room and (free[node] > room or left > 0):
            if free[node] == room:
                left -= 1
            gain[node] = -1  # to be cleared
    num_losers = 0
    for at in range(spot, num_running if enough else spot):
        touched = last[run_jobs[at]] >= 0 and gain[last[run_jobs[at]]] == -1
        node = held[run_jobs[at]]
        while node >= 0 and not touched:
            touched = gain[node] == -1
            node = chain[node]
        if touched:
            losers[num_losers] = run_jobs[at]
            num_losers += 1
    for at in range(num_nodes + width + 1):
        gain[at] = 0
    return num_losers


def stop(
    job: int,
    now: float,
    order: int,
    gpus: Any,
    left: Any,
    guess: Any,
    cost: Any,
    attained: Any,
    since: Any,
    level: Any,
    preemptions: Any,
    expect: Any,
    class_of: Any,
    class_base: Any,
    wait_keys: Any,
    wait_jobs: Any,
    wait_size: Any,
    count: int,
) -> None:
    elapsed = now - since[job]
    left[job] = left[job] - elapsed + cost[job]
    guess[job] = guess[job] - elapsed + cost[job]
    attained[job] += elapsed
    since[job] = now
    preemptions[job] += 1
    expect[2 * job] = -1.0
    expect[2 * job + 1] = -1.0
    kind = class_of[job]
    key = wait_key(order, job, guess, gpus, level, count)
    push(wait_keys, wait_jobs, class_base[kind], wait_size, kind, key, job)


def begin(
    job: int,
    now: float,
    order: int,
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
    if order == BY_SERVICE:
        position[job] = guess[job] * gpus[job]
    if order == BY_LEVEL:
        position[job] = level[job] * 2.0 * count + job
        if level[job] < len(limits):
            limit = limits[level[job]] / (gpus[job] if by_gpu == 1 else 1)
            expect[2 * job + 1] = now + max(limit - attained[job], 0.0)
            push(heap_keys, heap_jobs, 0, heap_size, 0, expect[2 * job + 1], 2 * job + 1)
    expect[2 * job] = now + left[job]
    push(heap_keys, heap_jobs, 0, heap_size, 0, expect[2 * job], 2 * job)
    return insert(run_keys, run_jobs, num_running, position[job], job)
