"""One look at the line of jobs: who starts now, who makes way, who may be backfilled, packed or resized."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from traincast.schedule import _kernels as kernels
from traincast.schedule._floor import RUNNING, WAITING, Floor
from traincast.schedule._lines import Line
from traincast.schedule._placement import PLACERS, Placement
from traincast.schedule._protocols import Packing, RoundPolicy
from traincast.schedule._reservations import Plan, Reservation, find_beside, reserve


def plain_pass(floor: Floor, line: Line, now: float, *, skip: bool) -> None:
    started = []
    failed: set[tuple[object, ...]] = set()
    free = floor.nodes.free_in_pool
    shares = bool(floor.nodes.shares)
    for job in line.order(now):
        if not any(free) and not shares and floor.num_gpus[job] >= 1:
            break
        kind = floor.kind(job)
        placement = None if kind in failed else floor.find(job)
        if placement is None:
            if not skip:
                break
            failed.add(kind)
            continue
        floor.start(job, placement, now)
        started.append(job)
    for job in started:
        line.started(job, now)


def preemptive_pass(floor: Floor, line: Line, now: float) -> None:
    """In order, every waiting job that would fit by count if those after it made way; by count alone this is the
    greedy choice with skipping, made at once in the order of the moment, so that nobody is moved in line by a start or a
    stop of the same pass. A job that has no room on its nodes even then is set aside with all of its kind."""
    if floor.compat.keep_quota or floor.counts_only:
        chosen, losers = _choose(floor, line.order(now), set(), most=len(floor.jobs))
        for job in losers:
            floor.preempt(job, now)
        for job in chosen:
            placement = floor.find(job)
            if placement is not None:
                floor.start(job, placement, now)
                line.started(job, now)
        return
    set_aside: set[tuple[object, ...]] = set()
    while True:
        order = list(line.order(now))
        chosen, losers = _choose(floor, order, set_aside, most=1)
        if not chosen:
            return
        job = chosen[0]
        placement = floor.find(job)
        # A job that was pushed out at this moment pushes nobody out, or two near equals could swap for ever.
        may_evict = floor.evicted_s[job] != now
        of_one_node = floor.num_gpus[job] <= max(
            map(partial(floor.nodes.width_for, job), range(len(floor.nodes.width)))
        )
        if placement is None and losers and may_evict and of_one_node:
            placement = _evict_for(floor, job, losers, math.inf, now)
        if placement is None and may_evict:
            # By count there was room, but not together.
            behind = [other for other in order[order.index(job) :] if floor.state[other] == RUNNING]
            if of_one_node:
                # Look for one node among the last jobs in line.
                placement = _evict_for(floor, job, behind, kernels.DISTURB * floor.num_gpus[job], now)
            else:
                placement = _evict_for(floor, job, _in_the_way(floor, job, behind), math.inf, now)
        if placement is None:
            set_aside.add(floor.kind(job))
        else:
            floor.start(job, placement, now)
            line.started(job, now)


def _choose(
    floor: Floor, order: Iterable[int], set_aside: set[tuple[object, ...]], *, most: int
) -> tuple[list[int], list[int]]:
    """The first waiting jobs that fit by count, and the running jobs that must make way for them."""
    quota = [float(total) for total in floor.nodes.up_in_pool]
    chosen: list[int] = []
    losers: list[int] = []
    for job in order:
        need = floor.held[job]
        if floor.state[job] == RUNNING:
            pool = floor.pool[job]
            if need <= quota[pool]:
                quota[pool] -= need
            else:
                losers.append(job)
        elif len(chosen) < most and (not set_aside or floor.kind(job) not in set_aside):
            for pool in floor.pools(job):
                if need <= quota[pool]:
                    quota[pool] -= need
                    chosen.append(job)
                    break
    return chosen, losers


def _in_the_way(floor: Floor, job: int, behind: Sequence[int]) -> list[int]:
    """For a job of several nodes: those behind it on the nodes that are cleared at the least cost in GPUs, if enough nodes
    hold nobody else."""
    for pool in floor.pools(job):
        width = floor.nodes.width[pool]
        usable = max(floor.nodes.width_for(job, pool), 1)
        wanted = -(-int(floor.num_gpus[job]) // usable)
        held: dict[int, float] = {}
        for other in behind:
            for node, count in floor.where[other]:
                held[node] = held.get(node, 0.0) + count
        nodes = [
            node
            for node, free in enumerate(floor.nodes.free)
            if floor.nodes.pool_of[node] == pool and free + held.get(node, 0.0) == width
        ]
        if len(nodes) >= wanted:
            cleared = set(sorted(nodes, key=lambda node: (-floor.nodes.free[node], node))[:wanted])
            return [other for other in behind if any(node in cleared for node, _ in floor.where[other])]
    return []


def _evict_for(floor: Floor, job: int, losers: Sequence[int], most_gpus: float, now: float) -> Placement | None:
    """Free losers from the last one on until the job fits, then spare those whose leaving did not help; if it
    never fits, nobody is disturbed."""
    freed: list[int] = []
    placement = None
    looked_at = 0.0
    for loser in reversed(losers):
        if looked_at >= most_gpus:
            break
        looked_at += floor.held[loser]
        floor.nodes.give(floor.where[loser], loser)
        freed.append(loser)
        placement = floor.find(job)
        if placement is not None:
            break
    victims = freed[-1:]
    for loser in freed[:-1] if placement is not None else ():
        floor.nodes.take(floor.where[loser], loser)
        if floor.find(job) is None:
            floor.nodes.give(floor.where[loser], loser)
            victims.append(loser)
    if placement is not None:
        placement = floor.find(job)
    for loser in freed if placement is None else victims:
        floor.nodes.take(floor.where[loser], loser)
    if placement is None:
        return None
    for loser in victims:
        floor.preempt(loser, now)
    return placement


def easy_pass(floor: Floor, line: Line, now: float) -> None:
    """In order until one does not fit. It gets a reservation, and later jobs start only if they end before it begins or
    hold GPUs that it does not need."""
    started: list[int] = []
    head = -1
    reservation: Reservation | None = None
    reserved = False
    no_room: set[tuple[object, ...]] = set()
    no_spare: set[tuple[object, ...]] = set()
    for job in line.order(now):
        if not any(floor.nodes.free_in_pool):
            break
        kind = floor.kind(job)
        if head < 0:
            placement = floor.find(job)
            if placement is None:
                head = job
                continue
            floor.reservation = None  # made before this job was known
        elif kind in no_room:
            continue
        else:
            placement = floor.find(job)
            if placement is None:
                no_room.add(kind)
                continue
            if not reserved:  # only where somebody could go first
                reservation, reserved = _reservation_for(floor, head, now), True
            if reservation is not None and now + floor.believed_s(job, placement) > reservation.begin_s:
                placement = None if kind in no_spare else find_beside(floor, job, reservation)
                if placement is None:
                    no_spare.add(kind)
                    continue
                reservation.take(placement, beside=floor.nodes.per_gpu.get(job, (0.0, 0.0)))
        floor.start(job, placement, now)
        started.append(job)
    for job in started:
        line.started(job, now)


def _reservation_for(floor: Floor, job: int, now: float) -> Reservation | None:
    """A reservation holds until it is due, until a job ended early, a node failed, or another job went first."""
    known = floor.reservation
    if known is None or known.job != job or now >= known.begin_s:
        floor.reservation = known = reserve(floor, job, now)
    return known


def conservative_pass(floor: Floor, line: Line, now: float) -> None:
    """Every job in line has a booking; those whose time has come start on the nodes they were promised."""
    order = list(line.order(now))
    plan = floor.plan = floor.plan or Plan(floor, now)
    plan.bring_up_to_date(order, now)
    for job, placement in plan.due(order, now):
        share = floor.num_gpus[job]
        # On a shared network a start slows others down, and the plan is then made anew at the next look.
        floor.start(job, ((placement[0][0], share),) if share < 1 else placement, now)
        plan.started(job)
        line.started(job, now)


def pack(floor: Floor, line: Line, policy: Packing, now: float) -> None:
    started = []
    for job in line.order(now):
        if floor.num_gpus[job] < 1:
            continue
        best, best_rate = -1, 0.0
        for other in floor.running:
            if other in floor.partner or floor.held[other] != floor.num_gpus[job]:
                continue
            if floor.pool[other] not in floor.pools(job):
                continue
            rate = policy.packed_rate(job, other)
            if rate > best_rate:
                best, best_rate = other, rate
        if best < 0:
            continue
        floor.settle(best, now)
        floor.start(job, floor.where[best], now, take=False)
        floor.share_gpus(job, best)
        floor.set_rate(best, floor.base_rate[best] * best_rate, now)
        floor.set_rate(job, floor.base_rate[job] * best_rate, now)
        started.append(job)
    for job in started:
        line.started(job, now)


def reallocate(floor: Floor, rounds: RoundPolicy, now: float) -> None:
    target = rounds.allocate(floor, now)
    for job in list(floor.running):
        if target.get(job) != floor.holding(job):
            cost = floor.overheads.resize_s if job in target else floor.overheads.preemption_s(floor.held[job])
            if job not in target:
                floor.preemptions[job] += 1
            floor.stop(job, now, extra_s=cost * max(floor.rate[job], 0.0), lost_s=cost)
    for job, (pool, count) in target.items():
        if floor.state[job] != WAITING:
            continue
        placement = floor.placer.place(floor.nodes, count, pool)
        if placement is None:
            placement = PLACERS["spread"].place(floor.nodes, count, pool)
        if placement is None:
            continue
        floor.held[job] = float(count)
        if floor.rate_at(job, placement, count) > 0:
            floor.start(job, placement, now)
