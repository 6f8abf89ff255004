"""Future nodes for jobs that cannot start yet: where and when a waiting job is promised its GPUs."""

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from traincast.noun import noun
from traincast.schedule._jobs import Floats
from traincast.schedule._placement import CONSOLIDATED, NODE, Placement

if TYPE_CHECKING:
    from traincast.schedule._floor import Floor


def _shortest_s(floor: "Floor", job: int, pools: Sequence[int]) -> float:
    """How long the rest of a job is believed to take at its best on these pools."""
    guess, gpus = float(floor.job[job].guess), floor.num_gpus[job]
    if floor.same_speed:
        return guess / floor.useful
    best = max(floor.perf.rate(job, pool, gpus, NODE if gpus <= floor.nodes.width[pool] else 1) for pool in pools)
    return guess / (best * floor.useful)


@noun
class Booking:
    begin_s: float
    end_s: float
    placement: Placement


class Plan:
    """Free GPUs of every node over future time as steps, with a booking for every waiting job.

    A booking is never moved to a later time: when jobs end early, all bookings are tried at an earlier time in order of
    the line (compression; Mu'alem and Feitelson, 2001). Only when a running job overruns its estimate, or when a
    node fails, is the plan made anew.
    """

    def __init__(self, floor: "Floor", now_s: float) -> None:
        self._floor = floor
        self.bookings: dict[int, Booking] = {}
        self._lay_out(now_s)

    def _lay_out(self, now_s: float) -> None:
        """The steps of the running jobs alone."""
        floor = self._floor
        nodes = floor.nodes.copy()
        self._times = [now_s]
        rows = [list(nodes.free)]
        for end_s, job in sorted((floor.believed_end(other, now_s), other) for other in floor.running):
            nodes.give(floor.where(job))
            if end_s == self._times[-1]:
                rows[-1] = list(nodes.free)
            else:
                self._times.append(end_s)
                rows.append(list(nodes.free))
        self._free: Floats = np.array(rows, dtype=np.float64)

    @staticmethod
    def _add(rows: Floats, placement: Placement, sign: int) -> None:
        """Give what a placement holds to rows of free GPUs (sign 1), or take it."""
        for node, count in placement:
            rows[:, node] += sign * int(count)

    def bring_up_to_date(self, order: Sequence[int], now_s: float) -> None:
        """Bookings for everybody in line, with what has happened since the last look taken into account."""
        self._forget_before(now_s)
        if not np.array_equal(self._free_of_running(now_s), np.array(self._floor.nodes.free, dtype=np.float64)):
            self._repair(order, now_s)
        for job in order:
            if job not in self.bookings:
                self._book(job)

    def _forget_before(self, now_s: float) -> None:
        gone = bisect.bisect_right(self._times, now_s) - 1
        if gone > 0:
            del self._times[:gone]
            self._free = self._free[gone:]
        self._times[0] = now_s

    def _free_of_running(self, now_s: float) -> Floats:
        """The GPUs that the plan expects to be free now, before those start whose time has come."""
        free = self._free[:1].copy()
        for booking in self.bookings.values():
            if booking.begin_s <= now_s < booking.end_s:
                self._add(free, booking.placement, 1)
        gpus: Floats = free[0]
        return gpus

    def _repair(self, order: Sequence[int], now_s: float) -> None:
        old = self.bookings
        self._lay_out(now_s)
        for booking in old.values():
            self._hold(booking, -1)
        feasible = not (self._free < -1e-3).any() and all(old[job].begin_s >= now_s for job in old)
        if not feasible:
            self.bookings = {}
            self._lay_out(now_s)
            return
        for job in order:
            if job in old:
                self._hold(old[job], 1)
                self._book(job, latest=old[job])

    def _book(self, job: int, *, latest: Booking | None = None) -> None:
        found = self._earliest(job)
        if latest is not None and (found is None or found.begin_s >= latest.begin_s):
            found = latest
        if found is not None:
            self.bookings[job] = found
            self._hold(found, -1)

    def _cut(self, time_s: float) -> int:
        at = bisect.bisect_left(self._times, time_s)
        if at == len(self._times) or self._times[at] != time_s:
            self._times.insert(at, time_s)
            self._free = np.insert(self._free, at, self._free[at - 1], axis=0)
        return at

    def _hold(self, booking: Booking, sign: int) -> None:
        if booking.end_s <= self._times[0]:
            return
        first = self._cut(max(booking.begin_s, self._times[0]))
        last = self._cut(booking.end_s)
        self._add(self._free[first:last], booking.placement, sign)

    def _earliest(self, job: int) -> Booking | None:
        """The first step from which on the job has nodes for as long as it is believed to run on them."""
        floor = self._floor
        need = floor.num_gpus[job]
        pools = floor.pools(job)
        enough = np.zeros(len(self._times), dtype=bool)
        for pool in pools:
            span = floor.nodes.nodes_in_pool[pool]
            enough |= self._free[:, span.start : span.stop].sum(axis=1) >= need
        # At one speed all pools are tried at once; else a job lasts longer on some of them.
        tries = [pools] if floor.same_speed else [(pool,) for pool in pools]
        for begin in np.flatnonzero(enough).tolist():
            for some in tries:
                booking = self._book_at(job, begin, need, some)
                if booking is not None:
                    return booking
        return None

    def _book_at(self, job: int, begin: int, need: float, pools: Sequence[int]) -> Booking | None:
        floor, begin_s = self._floor, self._times[begin]
        lasts_s = max(_shortest_s(floor, job, pools), 0.0)
        while True:
            last = max(bisect.bisect_left(self._times, begin_s + lasts_s), begin + 1)
            window = self._free[begin:last].min(axis=0)
            if not self._may_fit(job, need, window):
                return None
            nodes = floor.nodes.with_free([int(count) for count in window.tolist()])
            placement = floor.find_on(nodes, job, pools)
            if not placement:
                return None
            needs_s = max(floor.believed_s(job, placement), 0.0)
            if needs_s <= lasts_s:
                return Booking(begin_s=begin_s, end_s=begin_s + needs_s, placement=placement)
            lasts_s = needs_s  # spread over more nodes it is slower: look again for longer

    def _may_fit(self, job: int, need: float, window: Floats) -> bool:
        """A quick look that spares most of the exact ones."""
        floor = self._floor
        for pool in floor.pools(job):
            span = floor.nodes.nodes_in_pool[pool]
            free = window[span.start : span.stop]
            if free.sum() < need:
                continue
            width = floor.nodes.width[pool]
            if floor.placer is not CONSOLIDATED:
                return True
            if (free >= need).any() if need <= width else (free >= width).sum() >= need // width:
                return True
        return False

    def due(self, order: Iterable[int], now_s: float) -> list[tuple[int, Placement]]:
        """Those whose time has come and whose nodes are free, in order of the line."""
        free = list(self._floor.nodes.free)
        found = []
        for job in order:
            booking = self.bookings.get(job)
            if booking is None or booking.begin_s > now_s:
                continue
            if all(free[node] >= int(count) for node, count in booking.placement):
                for node, count in booking.placement:
                    free[node] -= int(count)
                found.append((job, booking.placement))
        return found

    def started(self, job: int) -> None:
        del self.bookings[job]

    def wakeup_s(self, now_s: float) -> float:
        """The next moment for which a job is booked; nothing else may happen then, when the job before it was moved."""
        return min((entry.begin_s for entry in self.bookings.values() if entry.begin_s > now_s), default=math.inf)
