"""The loop of conservative backfill: at every event all waiting jobs get reservations anew, in order of submission."""

from typing import Any

from traincast.schedule.kernels.heaps import drop_top, push
from traincast.schedule.kernels.nodes import fits, shift, take

BIG = 1e300


def run_conservative(
    submit: Any,
    gpus: Any,
    duration: Any,
    estimate: Any,
    waiting: Any,
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
    run_ends: Any,
    run_gpus: Any,
    times: Any,
    room: Any,
    start: Any,
    end: Any,
) -> int:
    """`times` and `room` are free GPUs over future time as steps; running jobs stand sorted by (believed end, GPUs)."""
    count = len(submit)
    cursor = 0
    passes = 0
    num_waiting = 0
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
            at = place_in(run_ends, run_gpus, num_running, start[job] + estimate[job], gpus[job])
            num_running -= 1
            for spot in range(at, num_running):
                run_ends[spot] = run_ends[spot + 1]
                run_gpus[spot] = run_gpus[spot + 1]
        while cursor < count and submit[cursor] == now:
            if start[cursor] > -2.0:
                waiting[num_waiting] = cursor
                num_waiting += 1
            cursor += 1
        passes += 1
        if num_waiting == 0 or state[0] == 0:
            continue
        steps = 1
        times[0] = now
        room[0] = state[0]
        for at in range(num_running):
            ends = run_ends[at] if run_ends[at] > now else now
            if ends == times[steps - 1]:
                room[steps - 1] += run_gpus[at]
            else:
                times[steps] = ends
                room[steps] = room[steps - 1] + run_gpus[at]
                steps += 1
        kept = 0
        looked_at = 0
        while looked_at < num_waiting and room[0] > 0:
            job = waiting[looked_at]
            looked_at += 1
            need = gpus[job]
            lasts = estimate[job] if estimate[job] > 0.0 else 0.0
            begin = first_gap(times, room, steps, need, lasts)
            starts_now = begin < steps and times[begin] <= now
            if begin < steps:
                steps = reserve(times, room, steps, begin, need, times[begin] + lasts)
            if starts_now and fits(need, state, width):
                take(job, need, free, bits, words, state, width, held, chain, last)
                start[job] = now
                push(heap_keys, heap_jobs, 0, heap_size, 0, now + duration[job], job)
                ends = now + estimate[job]
                at = place_in(run_ends, run_gpus, num_running, ends, need)
                for spot in range(num_running, at, -1):
                    run_ends[spot] = run_ends[spot - 1]
                    run_gpus[spot] = run_gpus[spot - 1]
                run_ends[at] = ends
                run_gpus[at] = need
                num_running += 1
            else:
                waiting[kept] = job
                kept += 1
        if kept < looked_at:
            for at in range(looked_at, num_waiting):
                waiting[kept] = waiting[at]
                kept += 1
            num_waiting = kept
    return passes


def place_in(run_ends: Any, run_gpus: Any, num_running: int, ends: float, need: int) -> int:
    low = 0
    high = num_running
    while low < high:
        middle = (low + high) >> 1
        if run_ends[middle] < ends or (run_ends[middle] == ends and run_gpus[middle] < need):
            low = middle + 1
        else:
            high = middle
    return low


def first_gap(times: Any, room: Any, steps: int, need: int, lasts: float) -> int:
    """The first step from which on `need` GPUs stay free for so long; `steps` if there is none."""
    begin = 0
    while begin < steps:
        if room[begin] < need:
            begin += 1
            continue
        until = times[begin] + lasts
        at = begin + 1
        while at < steps and times[at] < until and room[at] >= need:
            at += 1
        if at == steps or times[at] >= until:
            break
        begin = at + 1
    return begin


def reserve(times: Any, room: Any, steps: int, begin: int, need: int, until: float) -> int:
    """Take the GPUs out of the steps from `begin` until then, and return the new number of steps."""
    low = 0
    high = steps
    while low < high:
        middle = (low + high) >> 1
        if times[middle] < until:
            low = middle + 1
        else:
            high = middle
    if low == steps or times[low] != until:
        for at in range(steps, low, -1):
            times[at] = times[at - 1]
            room[at] = room[at - 1]
        times[low] = until
        room[low] = room[low - 1]
        steps += 1
    for at in range(begin, low):
        room[at] -= need
    return steps
