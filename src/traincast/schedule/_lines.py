"""The jobs in the system, kept in the order in which a policy serves them."""

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from traincast.schedule._jobs import JobTable
from traincast.spec import Snapshot

Key = Callable[["View", int, float], Any]


class View(Protocol):
    """What a policy may ask about jobs; true durations are not in it."""

    jobs: JobTable
    submit_s: list[float]
    num_gpus: list[float]
    estimate_s: list[float]
    attained_s: list[float]
    since: list[float]

    def is_running(self, job: int) -> bool: ...

    def served_s(self, job: int, now_s: float) -> float:
        """Seconds of running time so far."""
        ...

    def remaining_s(self, job: int, now_s: float) -> float:
        """Estimated running time still needed; negative once the estimate is overrun."""
        ...

    def snapshot(self, now_s: float) -> Snapshot: ...

    def total_gpus(self) -> float: ...


class Line(Protocol):
    """The jobs in the system. `order` lists waiting jobs, and running ones too if the policy preempts."""

    def join(self, job: int, now_s: float) -> None: ...

    def leave(self, job: int, now_s: float) -> None: ...

    def started(self, job: int, now_s: float) -> None: ...

    def stopped(self, job: int, now_s: float) -> None: ...

    def order(self, now_s: float) -> Iterable[int]: ...

    def wakeup_s(self, now_s: float) -> float:
        """The next moment at which the order may change by itself; infinity if never."""
        ...


@runtime_checkable
class ServingLine(Line, Protocol):
    """A line that starts and stops jobs by itself, after every change and at `wakeup_s`."""

    def refusal(self, job: int) -> str | None:
        """Why this job would never run; None if it may."""
        ...

    def serve(self, now_s: float) -> None: ...


class WaitingLine:
    """Waiting jobs sorted by a key that does not change while they wait; ties go by submission, then by row."""

    def __init__(self, view: View, key: Key) -> None:
        self._view = view
        self._key = key
        self._entries: list[tuple[Any, float, int]] = []
        self._entry_of: dict[int, tuple[Any, float, int]] = {}

    def join(self, job: int, now_s: float) -> None:
        entry = (self._key(self._view, job, now_s), self._view.submit_s[job], job)
        self._entry_of[job] = entry
        if not self._entries or entry > self._entries[-1]:
            self._entries.append(entry)
        else:
            bisect.insort(self._entries, entry)

    def leave(self, job: int, now_s: float) -> None:
        entry = self._entry_of.pop(job, None)
        if entry is not None:
            if self._entries[0] == entry:
                del self._entries[0]
            else:
                del self._entries[bisect.bisect_left(self._entries, entry)]

    def started(self, job: int, now_s: float) -> None:
        self.leave(job, now_s)

    def stopped(self, job: int, now_s: float) -> None:
        self.join(job, now_s)

    def order(self, now_s: float) -> Iterator[int]:
        return (entry[2] for entry in self._entries)

    def wakeup_s(self, now_s: float) -> float:
        return math.inf


class KeyedLine:
    """Waiting and running jobs by a key; only the keys of running jobs move, so only they are sorted anew.

    `ties`: "submit" breaks ties by submission; "history" keeps the order of the last pass, as a list that is sorted in
    place does (Tiresias); "queue-first" puts waiting jobs before running ones (Helios).
    """

    def __init__(
        self, view: View, key: Key, *, ties: str, wakeup: Callable[[View, Iterable[int], float], float] | None
    ):
        self._view = view
        self._key = key
        self._ties = ties
        self._wakeup = wakeup
        self._waiting = WaitingLine(view, key)
        self._queue: list[int] = []
        self._running: list[int] = []

    def join(self, job: int, now_s: float) -> None:
        if self._ties == "submit":
            self._waiting.join(job, now_s)
        else:
            self._queue.append(job)

    def leave(self, job: int, now_s: float) -> None:
        if self._ties == "history":
            self._queue.remove(job)
        elif self._view.is_running(job):
            self._running.remove(job)
        elif self._ties == "submit":
            self._waiting.leave(job, now_s)
        else:
            self._queue.remove(job)

    def started(self, job: int, now_s: float) -> None:
        if self._ties == "history":
            return
        if self._ties == "submit":
            self._waiting.leave(job, now_s)
        else:
            self._queue.remove(job)
        self._running.append(job)

    def stopped(self, job: int, now_s: float) -> None:
        if self._ties == "history":
            return
        self._running.remove(job)
        self.join(job, now_s)

    def order(self, now_s: float) -> Iterable[int]:
        view, key = self._view, self._key
        if self._ties == "history":
            self._queue.sort(key=lambda job: key(view, job, now_s))
            return self._queue.copy()
        if self._ties == "queue-first":
            return sorted(self._queue + self._running, key=lambda job: key(view, job, now_s))
        running = sorted((key(view, job, now_s), view.submit_s[job], job) for job in self._running)
        return _merge(running, self._waiting._entries)

    def wakeup_s(self, now_s: float) -> float:
        if self._wakeup is None:
            return math.inf
        running = self._running if self._ties != "history" else [j for j in self._queue if self._view.is_running(j)]
        return self._wakeup(self._view, running, now_s)


def _merge(left: Sequence[tuple[Any, float, int]], right: Sequence[tuple[Any, float, int]]) -> Iterator[int]:
    right = list(right)
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] < right[j]:
            yield left[i][2]
            i += 1
        else:
            yield right[j][2]
            j += 1
    for entry in left[i:]:
        yield entry[2]
    for entry in right[j:]:
        yield entry[2]


class LeveledLine:
    """Tiresias' own lists: one level lost per event, running jobs moved to the front of their level after each pass.

    Its timer divides seconds by GPUs where it means GPU-seconds, so jobs of several GPUs sink late.
    """

    def __init__(self, view: View, limits: Sequence[float], *, by_gpu: bool) -> None:
        self._view = view
        self._limits = limits
        self._by_gpu = by_gpu
        self._active: dict[int, int] = {}
        self._levels: list[list[int]] = [[] for _ in range(len(limits) + 1)]

    def join(self, job: int, now_s: float) -> None:
        self._active[job] = 0
        self._levels[0].append(job)

    def leave(self, job: int, now_s: float) -> None:
        self._levels[self._active.pop(job)].remove(job)

    def started(self, job: int, now_s: float) -> None:
        pass

    def stopped(self, job: int, now_s: float) -> None:
        pass

    def order(self, now_s: float) -> Iterable[int]:
        view = self._view
        for job, level in list(self._active.items()):
            if level < len(self._limits) and view.is_running(job):
                service = view.served_s(job, now_s) * (view.num_gpus[job] if self._by_gpu else 1)
                if service >= self._limits[level]:
                    self._levels[level].remove(job)
                    self._levels[level + 1].append(job)
                    self._active[job] = level + 1
        return [job for level in self._levels for job in level]

    def wakeup_s(self, now_s: float) -> float:
        view = self._view
        soonest = math.inf
        for index, level in enumerate(self._levels):
            running = [job for job in level if view.is_running(job)]
            level[:] = running + [job for job in level if not view.is_running(job)]
            if index < len(self._limits):
                for job in running:
                    left = self._limits[index] - view.served_s(job, now_s)
                    soonest = min(soonest, now_s + math.ceil(left / view.num_gpus[job] if self._by_gpu else left))
        return soonest
