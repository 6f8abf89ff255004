"""What a policy may ask about jobs, and the line through which it says their order."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from traincast.schedule._jobs import JobTable
from traincast.spec import Snapshot

Key = Callable[["View", int, float], Any]


class View(Protocol):
    """What a policy may ask about jobs; true durations are not in it."""

    jobs: JobTable
    submit_s: list[float]
    num_gpus: list[float]
    estimate_s: list[float]
    job: list[Any]
    """Records of the loop: `since` and `attained` of every job."""
    waiting: dict[int, None]
    running: dict[int, None]

    def is_running(self, job: int) -> bool: ...

    def served_s(self, job: int, now_s: float) -> float:
        """Seconds of running time so far."""
        ...

    def remaining_s(self, job: int, now_s: float) -> float:
        """Estimated running time still needed; negative once the estimate is overrun."""
        ...

    def snapshot(self, now_s: float) -> Snapshot: ...


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


def by_key(view: View, key: Key, *, preemptive: bool = False) -> Line:
    """Smallest key first; ties go by submission, then by row."""

    def order(now_s: float) -> list[int]:
        jobs = [*view.waiting, *view.running] if preemptive else list(view.waiting)
        return sorted(jobs, key=lambda job: (key(view, job, now_s), view.submit_s[job], job))

    return Line(order)
