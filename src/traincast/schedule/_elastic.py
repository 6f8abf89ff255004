"""How many GPUs each job should hold now: Optimus."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from traincast.schedule._floor import Floor
from traincast.schedule._protocols import RoundPolicy


def _room(floor: Floor) -> list[int]:
    return list(floor.nodes.up_in_pool)


def _climb(floor: Floor, gain: Callable[[int, int, int], float]) -> dict[int, tuple[int, int]]:
    """The fewest GPUs for everybody who finds room, in order of arrival, then GPUs one by one to the job that gains most."""
    room = _room(floor)
    held: dict[int, tuple[int, int]] = {}
    for job in floor.active():
        low, _ = floor.bounds(job)
        pools = [p for p in range(len(room)) if room[p] >= low and floor.speed(job, p, low) > 0]
        if pools:
            best = max(pools, key=lambda pool: floor.speed(job, pool, low))
            held[job] = (best, low)
            room[best] -= low
    gains: list[tuple[float, int, int]] = []

    def offer(job: int) -> None:
        pool, count = held[job]
        if count < floor.bounds(job)[1] and room[pool] > 0:
            worth = gain(job, pool, count)
            if worth > -math.inf:
                heapq.heappush(gains, (-worth, job, count))

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
class Optimus:
    """GPUs one by one to the job whose remaining time they shorten most (Peng et al., 2018)."""

    name: str = "optimus"
    interval_s: float = 600.0
    uses_progress: bool = True

    stops_jobs: ClassVar[bool] = False  # whoever came first keeps at least one GPU
    uses_estimates: ClassVar[bool] = True

    def allocate(self, floor: Floor, now_s: float) -> dict[int, tuple[int, int]]:
        def gain(job: int, pool: int, count: int) -> float:
            left = max(floor.remaining_s(job, now_s), 0.0)
            slow, fast = floor.speed(job, pool, count), floor.speed(job, pool, count + 1)
            return left / slow - left / fast if fast > slow else -math.inf

        return _climb(floor, gain)


ELASTIC: dict[str, RoundPolicy] = {"optimus": Optimus()}
