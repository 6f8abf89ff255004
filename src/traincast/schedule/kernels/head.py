"""The loop of policies that stop at the first job that does not fit."""

from typing import Any

from traincast.schedule.kernels.heaps import drop_top, push
from traincast.schedule.kernels.nodes import fits, shift, take

BIG = 1e300


def run_head(
    by_key: int,
    submit: Any,
    gpus: Any,
    duration: Any,
    keys: Any,
    wait_keys: Any,
    wait_jobs: Any,
    wait_size: Any,
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
    start: Any,
    end: Any,
) -> int:
    """In order of submission (`by_key` 0: the queue is the table itself) or of a key that never changes (1: a heap)."""
    count = len(submit)
    cursor = 0
    first = 0
    passes = 0
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
        while cursor < count and submit[cursor] == now:
            if by_key == 1 and start[cursor] > -2.0:
                push(wait_keys, wait_jobs, 0, wait_size, 0, keys[cursor], cursor)
            cursor += 1
        passes += 1
        while state[0] > 0:
            if by_key == 1:
                if wait_size[0] == 0:
                    break
                job = wait_jobs[0]
            else:
                while first < cursor and start[first] < -2.0:
                    first += 1
                if first == cursor:
                    break
                job = first
            if not fits(gpus[job], state, width):
                break
            if by_key == 1:
                drop_top(wait_keys, wait_jobs, 0, wait_size, 0)
            else:
                first += 1
            take(job, gpus[job], free, bits, words, state, width, held, chain, last)
            start[job] = now
            push(heap_keys, heap_jobs, 0, heap_size, 0, now + duration[job], job)
    return passes
