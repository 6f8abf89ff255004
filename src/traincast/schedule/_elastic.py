"""How many GPUs each job should hold now: Optimus, and allocation in the manner of Pollux and Sia."""

import contextlib
import ctypes
import heapq
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from traincast.errors import MissingExtra
from traincast.schedule._protocols import ElasticView, RoundPolicy


def _room(view: ElasticView) -> list[int]:
    return list(view.nodes.up_in_pool)


@dataclass(frozen=True, slots=True)
class Optimus:
    """GPUs one by one to the job whose remaining time they shorten most (Peng et al., 2018)."""

    name: str = "optimus"
    interval_s: float = 600.0
    on_events: bool = True
    uses_progress: bool = True

    stops_jobs: ClassVar[bool] = False  # whoever came first keeps at least one GPU
    uses_estimates: ClassVar[bool] = True

    def allocate(self, cluster: ElasticView, now_s: float) -> dict[int, tuple[int, int]]:
        room = _room(cluster)
        held: dict[int, tuple[int, int]] = {}
        for job in cluster.active():
            low, _ = cluster.bounds(job)
            pools = [p for p in range(len(room)) if room[p] >= low and cluster.speed(job, p, low) > 0]
            if pools:
                best = max(pools, key=lambda pool: cluster.speed(job, pool, low))
                held[job] = (best, low)
                room[best] -= low
        gains: list[tuple[float, int, int]] = []

        def offer(job: int) -> None:
            pool, count = held[job]
            _, high = cluster.bounds(job)
            if count < high and room[pool] > 0:
                left = max(cluster.remaining_s(job, now_s), 0.0)
                slow, fast = cluster.speed(job, pool, count), cluster.speed(job, pool, count + 1)
                if fast > slow:
                    heapq.heappush(gains, (-(left / slow - left / fast), job, count))

        for job in held:
            offer(job)
        while gains:
            _, job, count = heapq.heappop(gains)
            pool, now_held = held[job]
            if now_held == count and room[pool] > 0:
                held[job] = (pool, count + 1)
                room[pool] -= 1
                offer(job)
        return held


@dataclass(frozen=True, slots=True)
class PolluxLike:
    """Raise the power mean (exponent -1) of every job's speed over its fair share (after Qiao et al., 2021).

    A hill climb on the exact objective instead of Pollux's genetic search: the next GPU goes where the mean rises most.
    """

    name: str = "pollux"
    interval_s: float = 60.0
    on_events: bool = True
    uses_progress: bool = False

    stops_jobs: ClassVar[bool] = False  # whoever came first keeps at least one GPU
    uses_estimates: ClassVar[bool] = False

    def allocate(self, cluster: ElasticView, now_s: float) -> dict[int, tuple[int, int]]:
        jobs = cluster.active()
        room = _room(cluster)
        fair = max(int(sum(room) / max(len(jobs), 1)), 1)
        held: dict[int, tuple[int, int]] = {}

        def speed(job: int, pool: int, count: int) -> float:
            low, high = cluster.bounds(job)
            alone = cluster.speed(job, pool, min(max(fair, low), high))
            return cluster.speed(job, pool, count) / alone if alone > 0 else 0.0

        for job in jobs:
            low, _ = cluster.bounds(job)
            pools = [p for p in range(len(room)) if room[p] >= low and cluster.speed(job, p, low) > 0]
            if pools:
                best = max(pools, key=lambda pool: cluster.speed(job, pool, low))
                held[job] = (best, low)
                room[best] -= low
        gains: list[tuple[float, int, int]] = []

        def offer(job: int) -> None:
            pool, count = held[job]
            _, high = cluster.bounds(job)
            if count < high and room[pool] > 0:
                # Minus one as exponent: the gain of the mean is the fall of the sum of inverse speeds.
                gain = 1 / speed(job, pool, count) - 1 / speed(job, pool, count + 1)
                if gain > 0:
                    heapq.heappush(gains, (-gain, job, count))

        for job in held:
            offer(job)
        while gains:
            _, job, count = heapq.heappop(gains)
            pool, now_held = held[job]
            if now_held == count and room[pool] > 0:
                held[job] = (pool, count + 1)
                room[pool] -= 1
                offer(job)
        return held


@dataclass(frozen=True, slots=True)
class SiaLike:
    """One (type, count) per job, chosen together by an integer program on normalised speeds (after Jayaram et al., 2023).

    Counts are powers of two up to a node and whole nodes above. Moving a running job costs `move_penalty` of its value.
    """

    name: str = "sia"
    interval_s: float = 60.0
    on_events: bool = True
    uses_progress: bool = False
    power: float = 0.5
    move_penalty: float = 0.1

    uses_estimates: ClassVar[bool] = False

    def allocate(self, cluster: ElasticView, now_s: float) -> dict[int, tuple[int, int]]:
        room = _room(cluster)
        jobs = cluster.active()
        columns: list[tuple[int, int, int, float]] = []
        for job in jobs:
            low, high = cluster.bounds(job)
            base = max((cluster.speed(job, pool, low) for pool in range(len(room)) if room[pool] >= low), default=0.0)
            if base <= 0:
                continue
            for pool, free in enumerate(room):
                for count in _counts(low, min(high, free), cluster.nodes.width[pool]):
                    speed = cluster.speed(job, pool, count)
                    if speed > 0:
                        value = (speed / base) ** self.power
                        held = cluster.holding(job)
                        if held is not None and held != (pool, count):
                            value *= 1 - self.move_penalty
                        columns.append((job, pool, count, value))
        return _choose(columns, room)


def _counts(low: int, high: int, width: int) -> list[int]:
    counts = [count for count in (1 << power for power in range(width.bit_length())) if count <= width]
    counts += [width * nodes for nodes in range(2, high // width + 1)]
    return sorted({count for count in [*counts, low] if low <= count <= high})


@contextlib.contextmanager
def _stdout_aside() -> Iterator[None]:
    """HiGHS prints lines of its own past Python, where the answer of --json goes; they are sent to standard error."""
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output to protect
        yield
        return
    flush = ctypes.CDLL(None).fflush
    try:
        flush(None)
        os.dup2(2, 1)
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)


def _choose(columns: Sequence[tuple[int, int, int, float]], room: Sequence[int]) -> dict[int, tuple[int, int]]:
    """At most one column per job within the room of every pool, of the greatest value (HiGHS)."""
    if not columns:
        return {}
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise MissingExtra("scipy", "schedule", "the Sia-like policy") from error
    jobs = {job: row for row, job in enumerate(dict.fromkeys(column[0] for column in columns))}
    index = np.arange(len(columns))
    rows = np.concatenate([[jobs[column[0]] for column in columns], [len(jobs) + column[1] for column in columns]])
    values = np.concatenate([np.ones(len(columns)), [float(column[2]) for column in columns]])
    matrix = sparse.csr_matrix((values, (rows, np.tile(index, 2))), shape=(len(jobs) + len(room), len(columns)))
    limits = np.concatenate([np.ones(len(jobs)), np.asarray(room, dtype=np.float64)])
    # Having GPUs at all is worth more than any better choice for others.
    gains = np.array([column[3] + 1.0 for column in columns])
    with _stdout_aside():
        answer = optimize.milp(
            -gains,
            constraints=optimize.LinearConstraint(matrix, ub=limits),
            integrality=np.ones(len(columns)),
            bounds=optimize.Bounds(0, 1),
            options={"mip_rel_gap": 1e-2},
        )
    if answer.x is None:
        return {}
    return {columns[i][0]: (columns[i][1], columns[i][2]) for i in np.flatnonzero(answer.x > 0.5).tolist()}


ELASTIC: dict[str, RoundPolicy] = {"optimus": Optimus(), "pollux": PolluxLike(), "sia": SiaLike()}
