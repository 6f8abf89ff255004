"""Slurm's two looks at the queue: in order until partitions are blocked, and backfill over free nodes in slots of future
time."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincast.schedule._jobs import Floats, Ints

KINDS = 3
"""What a node has and a job asks for: GPUs, CPUs, mebibytes of memory."""
MOST_SLOTS = 400
Held = tuple[Ints, Ints]
"""The nodes of a job, and a row of amounts for each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asks:
    """By job: nodes, then GPUs, CPUs and memory on each, GPUs in all, whole nodes, group, believed run
    time, partition and whether it may preempt others."""

    nodes: Ints
    each: Ints
    gpus: Ints
    exclusive: Ints
    group: Ints
    lasts: Floats
    partition: Ints
    preempts: Ints


class Board:
    """Free amounts of every node, now and in slots of future time.

    `masks` say which group of jobs may use which nodes, `rank` in which order of weight nodes are taken, `blocked` which
    ones no later job of a look may use."""

    def __init__(self, size: Ints, masks: Ints, rank: Ints, asks: Asks, *, fullest_first: bool) -> None:
        self.size, self.free, self.asks = size, size.copy(), asks
        self._masks, self._rank, self._fullest_first = masks.astype(bool), rank, fullest_first
        self.blocked = np.zeros(len(size), dtype=bool)
        self.held: dict[int, Held] = {}
        self._times: list[float] = []
        self._slots = np.zeros((MOST_SLOTS, *size.shape), dtype=np.int64)

    def hold(self, job: int, sign: int, free: Ints | None = None) -> None:
        """Give what a job holds to the free amounts (sign 1), or take it (sign -1)."""
        nodes, amounts = self.held[job]
        (self.free if free is None else free)[..., nodes, :] += sign * amounts

    def lay_now(self, now: float) -> None:
        self._times = [now]
        self._slots[0] = self.free

    def gather(self, job: int, slot: int, begin: float) -> Ints | None:
        """The nodes of the job if it starts in this slot: by weight, then the fullest that hold it (or the emptiest)."""
        asks = self.asks
        end = begin + asks.lasts[job]
        last = max(bisect.bisect_left(self._times, end), slot + 1)
        free = self._slots[slot] if last == slot + 1 else self._slots[slot:last].min(axis=0)
        need = self.size if asks.exclusive[job] else asks.each[job]
        able = (free >= need).all(axis=1) & self._masks[asks.group[job]] & ~self.blocked
        found = np.flatnonzero(able)
        wanted = int(asks.nodes[job])
        if len(found) < wanted:
            return None
        room = self._slots[slot][found, 0]
        score = self._rank[found] * 2**20 + (room if self._fullest_first else 1024 - room)
        return found[np.lexsort((found, score))[:wanted]]

    def write_down(self, job: int, nodes: Ints) -> None:
        """The nodes just found become those of the job; the last one gives what is left of its GPUs."""
        asks = self.asks
        amounts = self.size[nodes].copy() if asks.exclusive[job] else np.tile(asks.each[job], (len(nodes), 1))
        if not asks.exclusive[job]:
            before = np.arange(len(nodes)) * asks.each[job, 0]
            amounts[:, 0] = np.clip(asks.gpus[job] - before, 0, asks.each[job, 0])
        self.held[job] = (nodes, amounts)

    def run_main(
        self, now: float, first: int, queue: Sequence[int], failed: set[int], part_nodes: Ints
    ) -> tuple[list[int], int]:
        """Start jobs in order. One that does not fit blocks its partition and the nodes of it; the answer is who starts, and the
        place in the queue of a blocked job that may preempt others, or the end of the queue."""
        asks = self.asks
        self.lay_now(now)
        started: list[int] = []
        for at in range(first, len(queue)):
            job = queue[at]
            part = int(asks.partition[job])
            if part in failed:
                continue
            nodes = self.gather(job, 0, now)
            if nodes is not None:
                self.write_down(job, nodes)
                self.hold(job, -1, self._slots[0])
                started.append(job)
            elif asks.preempts[job]:
                return started, at
            else:
                self.block(part, failed, part_nodes)
        return started, len(queue)

    def block(self, part: int, failed: set[int], part_nodes: Ints) -> None:
        failed.add(part)
        self.blocked |= part_nodes[part] == 1

    def _cut(self, time: float) -> int:
        """The slot that begins at this time, made if there is none."""
        times, count = self._times, len(self._times)
        at = bisect.bisect_left(times, time)
        if at < count and times[at] == time:
            return at
        self._slots[at + 1 : count + 1] = self._slots[at:count].copy()
        if at > 0:
            self._slots[at] = self._slots[at - 1]
        times.insert(at, time)
        return at

    def _lay_ends(self, now: float, ends: Sequence[tuple[float, int]], step: float) -> None:
        """Slots at the believed ends of running jobs, which come sorted; times are multiples of the resolution."""
        self.lay_now(now)
        for end, job in ends:
            time = math.ceil(end / step) * step if step > 0.0 else end
            if time <= now:
                time = now + (step if step > 0.0 else 1.0)
            last = len(self._times) - 1
            if time > self._times[last]:
                if last + 2 >= MOST_SLOTS:
                    return
                last += 1
                self._slots[last] = self._slots[last - 1]
                self._times.append(time)
            self.hold(job, 1, self._slots[last])

    def run_backfill(
        self, now: float, horizon: float, step: float, queue: Sequence[int], ends: Sequence[tuple[float, int]]
    ) -> list[int]:
        """In order, every job gets the first slot in which it fits, before the horizon; those whose slot is now start."""
        asks = self.asks
        self._lay_ends(now, ends, step)
        started = []
        before: dict[tuple[object, ...], float] = {}
        for job in queue:
            # What is free only becomes less, so nobody goes before an equal one who came first.
            same = (
                asks.group[job],
                asks.nodes[job],
                asks.exclusive[job],
                asks.lasts[job],
                *asks.each[job],
            )
            slot = bisect.bisect_left(self._times, before.get(same, now))
            nodes = None
            while slot < len(self._times) and self._times[slot] <= horizon:
                nodes = self.gather(job, slot, self._times[slot])
                if nodes is not None:
                    break
                slot += 1
            if nodes is None:
                before[same] = math.inf
                continue
            begin = before[same] = self._times[slot]
            if begin > now and len(self._times) + 2 >= MOST_SLOTS:
                continue
            self.write_down(job, nodes)
            end = begin + asks.lasts[job]
            end = math.ceil(end / step) * step if step > 0.0 else end
            if begin <= now:
                started.append(job)
            last = self._cut(end) if len(self._times) + 2 < MOST_SLOTS else len(self._times)
            self.hold(job, -1, self._slots[slot:last])
        return started
