"""Looks at the line through a policy: one that says the whole order, books times ahead, packs, resizes or serves by itself."""

import math
from collections.abc import Sequence
from heapq import heapify
from typing import Any

from traincast.schedule import _loop as loop
from traincast.schedule._floor import Floor
from traincast.schedule._lines import Line, ServingLine
from traincast.schedule._loop import ASKED, BIG, EASY, RUNNING, WAITING
from traincast.schedule._placement import PLACERS
from traincast.schedule._protocols import RoundPolicy
from traincast.schedule._reservations import Plan


class Asker:
    def __init__(self, floor: Floor) -> None:
        policy = floor.rule.policy
        self._floor = floor
        self._rounds: RoundPolicy | None = policy if isinstance(policy, RoundPolicy) else None
        asked = floor.rule.asks and self._rounds is None
        self._line: Line | None = policy.line(floor) if asked else None
        self.refuses = isinstance(self._line, ServingLine)
        self._books = floor.rule.fit == ASKED and not self.refuses and self._rounds is None
        self.plan: Plan | None = None
        self._tick_s = math.inf
        self._allocated_for = -1
        self._ordered_for: tuple[float, int, int] | None = None

    # What the loop tells.

    def refusal(self, job: int) -> str | None:
        return self._line.refusal(job) if isinstance(self._line, ServingLine) else None

    def join(self, job: int, now: float) -> None:
        if self._line is not None:
            self._line.join(job, now)

    def leave(self, job: int, now: float) -> None:
        if self._line is not None:
            self._line.leave(job, now)

    def started(self, job: int, now: float) -> None:
        if self._line is not None and not self.refuses:
            self._line.started(job, now)

    def stopped(self, job: int, now: float) -> None:
        if self._line is not None:
            self._line.stopped(job, now)

    # Looks.

    def look(self, now: float) -> None:
        floor = self._floor
        if self._rounds is not None:
            self._divide(self._rounds, now)
            floor.wake_s = self._tick_s
            return
        if isinstance(self._line, ServingLine):
            self._line.serve(now)
        elif self._books and self._line is not None:
            self._book(self._line, now)
        else:
            self.order_anew(now)
            if floor.run[0].waiting > 0:
                loop.find_look(floor.run[0])(floor, now)
        floor.wake_s = self._find_wake_s(now)

    def _find_wake_s(self, now: float) -> float:
        wake_s = BIG if self._line is None else self._line.wakeup_s(now)
        if self.plan is not None:
            wake_s = min(wake_s, self.plan.wakeup_s(now))
        return math.nextafter(now, math.inf) if wake_s <= now else wake_s

    def order_anew(self, now: float) -> None:
        """The lines and the order of running jobs, by the order that the policy says."""
        floor = self._floor
        state = (now, floor.run[0].version, floor.membership)
        if self._line is None or state == self._ordered_for:
            return
        self._ordered_for = state
        for line in floor.line:
            line.heap, line.size, line.top = [], 0, -1
        floor.run_keys, floor.run_jobs = [], []
        places: list[list[int]] = [[] for _ in floor.line]
        for place, job in enumerate(self._line.order(now)):
            record = floor.job[job]
            record.key = place
            if record.state == WAITING:
                places[record.line].append(job)
            elif record.state == RUNNING:
                record.position = place
                floor.run_keys.append(place)
                floor.run_jobs.append(job)
        floor.run[0].running = len(floor.run_jobs)
        for line, waiting in zip(floor.line, places, strict=True):
            if floor.run[0].fit == EASY:
                self._lay_tree(line, waiting)
            else:
                line.heap = [(floor.job[job].key, job) for job in waiting]
                line.size = len(waiting)
                heapify(line.heap)

    def _lay_tree(self, line: Any, waiting: Sequence[int]) -> None:
        floor = self._floor
        floor.tree[line.tree : line.tree + 2 * line.leaves] = [math.inf] * (2 * line.leaves)
        line.top = waiting[0] if waiting else -1
        for leaf, job in enumerate(waiting):
            record = floor.job[job]
            record.rank, record.leaf = record.key, leaf
            floor.leaf_job[line.base + leaf] = job
            loop.set_leaf(floor, job, record.guess)

    def _book(self, line: Line, now: float) -> None:
        """Every job in line has a booking; those whose time has come start on the nodes they were promised."""
        floor = self._floor
        order = list(line.order(now))
        plan = self.plan = self.plan or Plan(floor, now)
        plan.bring_up_to_date(order, now)
        for job, placement in plan.due(order, now):
            plan.started(job)
            # On a shared network a start slows others down, and the plan is then made anew at the next look.
            floor.start(job, placement, now)

    def _divide(self, rounds: RoundPolicy, now: float) -> None:
        """GPUs among all jobs, at every event and at least every interval."""
        floor = self._floor
        if rounds.uses_progress or floor.membership != self._allocated_for:
            self._reallocate(rounds, now)
            self._allocated_for = floor.membership
        if self._tick_s <= now or self._tick_s == math.inf:
            self._tick_s = now + rounds.interval_s

    def _reallocate(self, rounds: RoundPolicy, now: float) -> None:
        floor = self._floor
        target = rounds.allocate(floor, now)
        for job in list(floor.running):
            if target.get(job) != floor.holding(job):
                cost = floor.overheads.resize_s if job in target else floor.overheads.preemption_s(floor.held[job])
                if job not in target:
                    floor.job[job].preemptions += 1
                floor.stop(job, now, extra_s=cost * max(floor.job[job].rate, 0.0), lost_s=cost)
        for job, (pool, count) in target.items():
            if floor.job[job].state != WAITING:
                continue
            placement = floor.placer.place(floor.nodes, count, pool)
            if placement is None:
                placement = PLACERS["spread"].place(floor.nodes, count, pool)
            if placement is not None and floor.rate_of(job, placement, count) > 0:
                floor.held[job] = float(count)
                floor.start(job, placement, now)
