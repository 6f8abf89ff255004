"""What a policy may ask about jobs, and the line through which it says their order."""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traincast.schedule._floor import Floor

Key = Callable[["Floor", int, float], Any]
"""What the loop knows of jobs, a job and the time to its number in line, the smallest first."""


class Line:
    """The jobs in the system, by the order that a policy says at every look: waiting jobs, and running ones too if it
    preempts. What a line must remember by itself, it hears from `join`, `started`, `stopped` and `leave`."""

    def __init__(self, order: Callable[[float], Iterable[int]] | None = None) -> None:
        self._order = order

    def join(self, job: int, now_s: float) -> None:
        pass

    def leave(self, job: int, now_s: float) -> None:
        pass

    def started(self, job: int, now_s: float) -> None:
        pass

    def stopped(self, job: int, now_s: float) -> None:
        pass

    def order(self, now_s: float) -> Iterable[int]:
        return () if self._order is None else self._order(now_s)

    def wakeup_s(self, now_s: float) -> float:
        """The next moment at which the order may change by itself; infinity if never."""
        return math.inf


class ServingLine(Line):
    """A line that starts and stops jobs by itself, after every change and at `wakeup_s`."""

    def refusal(self, job: int) -> str | None:
        """Why this job would never run; None if it may."""
        return None

    def serve(self, now_s: float) -> None:
        raise NotImplementedError


def by_key(floor: "Floor", key: Key, *, preemptive: bool = False) -> Line:
    """Smallest key first; ties go by submission, then by row."""

    def order(now_s: float) -> list[int]:
        jobs = [*floor.waiting, *floor.running] if preemptive else list(floor.waiting)
        return sorted(jobs, key=lambda job: (key(floor, job, now_s), floor.submit_s[job], job))

    return Line(order)
