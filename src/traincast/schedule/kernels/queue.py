"""The loop of policies that try later jobs when an earlier one does not fit: first fit and EASY backfill."""

import math
from typing import Any

from traincast.schedule.kernels.ends import add_end, drop_end, first_room, room_by
from traincast.schedule.kernels.heaps import drop_top, push
from traincast.schedule.kernels.nodes import fits, shift, take
from traincast.schedule.kernels.trees import first_leaf, set_leaf

BIG = 1e300


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
    ends: Any,
    lower: Any,
    upper: Any,
    total: Any,
    root: Any,
    path: Any,
    start: Any,
    end: Any,
) -> int:
    """Without preemption. `fit`: 1 goes on after a job that does not fit, 2 backfills (EASY)."""
    count = len(submit)
    num_classes = len(class_gpus)
    cursor = 0
    passes = 0
    waiting = 0
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
                drop_end(job, ends, gpus, lower, upper, total, root)
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
                if failed[kind] == 1 or (class_gpus[kind] > state[0] and (blocked or fit == 1)):
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
                if fit == 1 or blocked:
                    failed[best_kind] = 1
                    continue
                # The first job that does not fit gets a reservation; later ones must not delay it.
                blocked = True
                shadow = BIG
                extra = BIG
                waits_for = first_room(need, state[0], gpus, lower, upper, total, root)
                if waits_for >= 0:
                    shadow = ends[waits_for] if ends[waits_for] > now else now
                    extra = state[0] + room_by(shadow, ends, gpus, lower, upper, total, root) - need + 0.0
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
                ends[best] = now + estimate[best]
                add_end(best, ends, gpus, lower, upper, total, root, path)
        if blocked:
            job = failed[num_classes]
            kind = class_of[job]
            set_leaf(tree, class_base[kind], class_leaves[kind], place_of[job], estimate[job])
    return passes
