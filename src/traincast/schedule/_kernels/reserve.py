"""Conservative backfill by count: at every event all waiting jobs get reservations anew, in order of submission."""

from typing import Any, NamedTuple

from traincast.schedule._kernels.nodes import Kinds, Nodes
from traincast.schedule._kernels.places import find_place, rate_at, take_place
from traincast.schedule._kernels.tables import RUNNING, WAITING, Events, Jobs, Rules, run_on


class Profile(NamedTuple):
    """Running jobs sorted by (believed end, GPUs), and free GPUs over future time as steps."""

    run_ends: Any
    run_gpus: Any
    times: Any
    room: Any


def forget_end(ends: float, need: int, profile: Profile, counts: Any) -> None:
    at = place_in(profile.run_ends, profile.run_gpus, counts[RUNNING], ends, need)
    counts[RUNNING] -= 1
    for spot in range(at, counts[RUNNING]):
        profile.run_ends[spot] = profile.run_ends[spot + 1]
        profile.run_gpus[spot] = profile.run_gpus[spot + 1]


def note_end(ends: float, need: int, profile: Profile, counts: Any) -> None:
    at = place_in(profile.run_ends, profile.run_gpus, counts[RUNNING], ends, need)
    for spot in range(counts[RUNNING], at, -1):
        profile.run_ends[spot] = profile.run_ends[spot - 1]
        profile.run_gpus[spot] = profile.run_gpus[spot - 1]
    profile.run_ends[at] = ends
    profile.run_gpus[at] = need
    counts[RUNNING] += 1


def lay_steps(now: float, free: int, num_running: int, profile: Profile) -> int:
    """Free GPUs over time as running jobs are believed to end; the answer is the number of steps."""
    times = profile.times
    room = profile.room
    steps = 1
    times[0] = now
    room[0] = free
    for at in range(num_running):
        ends = profile.run_ends[at] if profile.run_ends[at] > now else now
        if ends == times[steps - 1]:
            room[steps - 1] += profile.run_gpus[at]
        else:
            times[steps] = ends
            room[steps] = room[steps - 1] + profile.run_gpus[at]
            steps += 1
    return steps


def pass_conservative(
    now: float, rules: Rules, jobs: Jobs, nodes: Nodes, kinds: Kinds, queue: Any, profile: Profile, events: Events
) -> None:
    counts = rules.counts
    times = profile.times
    room = profile.room
    steps = lay_steps(now, nodes.room[0], counts[RUNNING], profile)
    kept = 0
    looked_at = 0
    while looked_at < counts[WAITING] and room[0] > 0:
        job = queue[looked_at]
        looked_at += 1
        need = jobs.gpus[job]
        lasts = jobs.guess[job] if jobs.guess[job] > 0.0 else 0.0
        begin = first_gap(times, room, steps, need, lasts)
        starts_now = begin < steps and times[begin] <= now
        if begin < steps:
            steps = reserve(times, room, steps, begin, need, times[begin] + lasts)
        at = find_place(kinds.of_job[job], nodes, kinds) if starts_now else -1
        if at >= 0:
            rate = rate_at(kinds.of_job[job], at, nodes, kinds)
            take_place(job, at, nodes, kinds)
            run_on(job, now, rate, jobs, events)
            note_end(now + jobs.guess[job], need, profile, counts)
        else:
            queue[kept] = job
            kept += 1
    if kept < looked_at:
        for at in range(looked_at, counts[WAITING]):
            queue[kept] = queue[at]
            kept += 1
        counts[WAITING] = kept


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
