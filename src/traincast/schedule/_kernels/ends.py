"""Running jobs by believed end, with the GPUs that come free: a treap (Seidel and Aragon, 1996) over job numbers.

Every question and change costs the logarithm of the number of running jobs. Arrays have one entry more than jobs: entry -1
stands for "no job" and stays 0 in `total`.
"""

from typing import Any, NamedTuple


class Ends(NamedTuple):
    at: Any
    gpus: Any
    lower: Any
    upper: Any
    total: Any
    root: Any
    path: Any


def weight_of(job: int) -> int:
    """A pseudo-random height, the same on every run."""
    return ((job + 1) * 2654435761) % 4294967296


def comes_before(ends: Any, job: int, other: int) -> bool:
    return ends[job] < ends[other] or (ends[job] == ends[other] and job < other)


def hang(lower: Any, upper: Any, root: Any, parent: int, side: int, job: int) -> None:
    if parent < 0:
        root[0] = job
    elif side == 0:
        lower[parent] = job
    else:
        upper[parent] = job


def add_end(job: int, tree: Ends) -> None:
    ends = tree.at
    gpus = tree.gpus
    lower = tree.lower
    upper = tree.upper
    total = tree.total
    root = tree.root
    path = tree.path
    parent = -1
    side = 0
    at = root[0]
    weight = weight_of(job)
    while at >= 0 and weight_of(at) >= weight:
        total[at] += gpus[job]
        parent = at
        side = 1 if comes_before(ends, at, job) else 0
        at = upper[at] if side == 1 else lower[at]
    hang(lower, upper, root, parent, side, job)
    # What was there is split into those before and those after the new job.
    before = -1
    after = -1
    depth = 0
    lower[job] = -1
    upper[job] = -1
    while at >= 0:
        path[depth] = at
        depth += 1
        if comes_before(ends, at, job):
            if before < 0:
                lower[job] = at
            else:
                upper[before] = at
            before = at
            at = upper[at]
        else:
            if after < 0:
                upper[job] = at
            else:
                lower[after] = at
            after = at
            at = lower[at]
    if before >= 0:
        upper[before] = -1
    if after >= 0:
        lower[after] = -1
    for step in range(depth - 1, -1, -1):
        at = path[step]
        total[at] = gpus[at] + total[lower[at]] + total[upper[at]]
    total[job] = gpus[job] + total[lower[job]] + total[upper[job]]


def drop_end(job: int, tree: Ends) -> None:
    ends = tree.at
    gpus = tree.gpus
    lower = tree.lower
    upper = tree.upper
    total = tree.total
    root = tree.root
    parent = -1
    side = 0
    at = root[0]
    while at != job:
        total[at] -= gpus[job]
        parent = at
        side = 1 if comes_before(ends, at, job) else 0
        at = upper[at] if side == 1 else lower[at]
    left = lower[job]
    right = upper[job]
    while left >= 0 and right >= 0:
        if weight_of(left) > weight_of(right):
            hang(lower, upper, root, parent, side, left)
            total[left] += total[right]
            parent = left
            side = 1
            left = upper[left]
        else:
            hang(lower, upper, root, parent, side, right)
            total[right] += total[left]
            parent = right
            side = 0
            right = lower[right]
    hang(lower, upper, root, parent, side, left if left >= 0 else right)


def first_room(need: float, room: float, tree: Ends) -> int:
    """The job with whose end at least `need` GPUs are free, if `room` are free now; -1 if they never are."""
    gpus = tree.gpus
    lower = tree.lower
    upper = tree.upper
    total = tree.total
    root = tree.root
    at: int = root[0]
    while at >= 0:
        if lower[at] >= 0 and room + total[lower[at]] >= need:
            at = lower[at]
            continue
        room += total[lower[at]] + gpus[at]
        if room >= need:
            return at
        at = upper[at]
    return -1


def room_by(until: float, tree: Ends) -> int:
    """GPUs that come free by then."""
    ends = tree.at
    gpus = tree.gpus
    lower = tree.lower
    upper = tree.upper
    total = tree.total
    root = tree.root
    room = 0
    at = root[0]
    while at >= 0:
        if ends[at] <= until:
            room += total[lower[at]] + gpus[at]
            at = upper[at]
        else:
            at = lower[at]
    return room
