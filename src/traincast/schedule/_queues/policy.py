"""Kueue and Volcano on the simulated cluster: whole jobs are admitted by the quotas of queues and placed all at once."""

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from traincast.schedule._floor import Floor
from traincast.schedule._jobs import JobTable
from traincast.schedule._lines import View
from traincast.schedule._queues.manifests import ClusterQueue, Queues, WeightedQueue
from traincast.spec import Fleet


class _QueuedLine:
    """Waiting jobs by queue, each in order of priority and submission."""

    def __init__(self, floor: Floor, queue_of: Callable[[int], str | None]) -> None:
        self._floor = floor
        self._queue_of = [queue_of(job) for job in range(len(floor.jobs))]
        self._waiting: dict[str, list[tuple[float, float, int]]] = {}
        self._used: dict[str, float] = {}

    def refusal(self, job: int) -> str | None:
        if self._queue_of[job] is None:
            return f"no queue takes jobs of {self._floor.jobs.tenants[job]!r}"
        if not self._floor.pools(job):
            return f"needs {self._floor.num_gpus[job]:g} GPUs, which no pool of this fleet can ever give"
        return None

    def _name(self, job: int) -> str:
        return self._queue_of[job] or ""

    def _entry(self, job: int) -> tuple[float, float, int]:
        return (-float(self._floor.jobs.priority[job]), self._floor.submit_s[job], job)

    def join(self, job: int, now_s: float) -> None:
        bisect.insort(self._waiting.setdefault(self._name(job), []), self._entry(job))

    def leave(self, job: int, now_s: float) -> None:
        if self._floor.is_running(job):
            self._used[self._name(job)] -= self._floor.held[job]
        else:
            self._waiting[self._name(job)].remove(self._entry(job))

    def started(self, job: int, now_s: float) -> None:
        self._waiting[self._name(job)].remove(self._entry(job))
        self._used[self._name(job)] = self._used.get(self._name(job), 0.0) + self._floor.held[job]

    def stopped(self, job: int, now_s: float) -> None:
        self._used[self._name(job)] -= self._floor.held[job]
        self.join(job, now_s)

    def order(self, now_s: float) -> Sequence[int]:
        return [entry[2] for line in self._waiting.values() for entry in line]

    def wakeup_s(self, now_s: float) -> float:
        return math.inf

    def _try(self, job: int, now_s: float) -> bool:
        """All pods of the job at once, or none."""
        placement = self._floor.find(job)
        if placement is None:
            return False
        self._floor.start(job, placement, now_s)
        self.started(job, now_s)
        return True

    def _evict(self, job: int, victims: Iterable[int], allowed: Callable[[], bool], now_s: float) -> bool:
        """Preempt victims in turn until the job is allowed and has a place; if it never has, nobody is disturbed."""
        nodes, where = self._floor.nodes, self._floor.where
        freed: list[int] = []
        fits = False
        for victim in victims:
            nodes.give(where[victim], victim)
            self._used[self._name(victim)] -= self._floor.held[victim]
            freed.append(victim)
            fits = allowed() and self._floor.find(job) is not None
            if fits:
                break
        for victim in freed:
            nodes.take(where[victim], victim)
            self._used[self._name(victim)] += self._floor.held[victim]
        for victim in freed if fits else ():
            self._floor.preempt(victim, now_s)
        return fits


@dataclass(frozen=True, slots=True)
class Kueue:
    """Cluster queues with nominal quotas, borrowing inside a cohort, and preemption to take quotas back."""

    queues: Queues
    name: str = "kueue"
    preemptive: bool = True
    fit: str = "kueue"

    uses_estimates: ClassVar[bool] = False

    def line(self, view: View) -> "KueueLine":
        if not isinstance(view, Floor):
            raise TypeError("Kueue looks at nodes and needs the whole cluster")
        return KueueLine(view, self.queues)


class KueueLine(_QueuedLine):
    def __init__(self, floor: Floor, queues: Queues) -> None:
        self._queues = queues.cluster_queues

        def queue_of(job: int) -> str | None:
            tenant = floor.jobs.tenants[job] or ""
            name = queues.local.get(tenant, tenant)
            return name if name in queues.cluster_queues else None

        super().__init__(floor, queue_of)

    def refusal(self, job: int) -> str | None:
        reason = super().refusal(job)
        if reason is None:
            queue = self._queues[self._name(job)]
            most = min(queue.nominal + (queue.borrowing if queue.cohort else 0.0), self._lendable(queue))
            if self._floor.num_gpus[job] > most:
                reason = f"needs {self._floor.num_gpus[job]:g} GPUs; {queue.name} gives at most {most:g}"
        return reason

    def _family(self, queue: ClusterQueue) -> list[ClusterQueue]:
        if queue.cohort is None:
            return [queue]
        return [other for other in self._queues.values() if other.cohort == queue.cohort]

    def _lendable(self, queue: ClusterQueue) -> float:
        """Quota of the whole cohort that this queue may use if all others are idle."""
        return sum(
            other.nominal if other is queue else min(other.nominal, other.lending) for other in self._family(queue)
        )

    def _has_quota(self, job: int) -> bool:
        queue = self._queues[self._name(job)]
        after = self._used.get(queue.name, 0.0) + self._floor.num_gpus[job]
        if after <= queue.nominal and queue.cohort is None:
            return True
        if after > queue.nominal + (queue.borrowing if queue.cohort else 0.0):
            return False
        family = self._family(queue)
        # What others lend and nobody uses, beside what is kept from lending.
        kept = sum(
            max(other.nominal - other.lending - self._used.get(other.name, 0.0), 0.0)
            for other in family
            if other is not queue
        )
        used = sum(self._used.get(other.name, 0.0) for other in family)
        return used + self._floor.num_gpus[job] + kept <= sum(other.nominal for other in family)

    def _borrows(self, job: int) -> bool:
        queue = self._queues[self._name(job)]
        return self._used.get(queue.name, 0.0) + self._floor.num_gpus[job] > queue.nominal

    def serve(self, now_s: float) -> None:
        """Cycles over the heads of all queues: those within their own quota first, then by priority and submission."""
        passed: dict[str, set[int]] = {name: set() for name in self._waiting}
        while True:
            heads = []
            for name, line in self._waiting.items():
                head = next((entry for entry in line if entry[2] not in passed[name]), None)
                stuck = self._queues[name].strict and passed[name]
                if head is not None and not stuck:
                    heads.append((self._borrows(head[2]), *head))
            if not heads:
                return
            for *_, job in sorted(heads):
                if not (self._has_quota(job) and self._try(job, now_s)):
                    if self._preempt_for(job, now_s) and self._try(job, now_s):
                        continue
                    passed[self._name(job)].add(job)

    def _preempt_for(self, job: int, now_s: float) -> bool:
        queue = self._queues[self._name(job)]
        priority = self._floor.jobs.priority
        victims = []
        for other in self._floor.running:
            its = self._queues[self._name(other)]
            lower = priority[other] < priority[job]
            if its is queue:
                newer = priority[other] == priority[job] and self._floor.submit_s[other] > self._floor.submit_s[job]
                fair = {"LowerPriority": lower, "LowerOrNewerEqualPriority": lower or newer}.get(queue.within, False)
            else:
                borrowing = its.cohort == queue.cohort is not None and self._used[its.name] > its.nominal
                fair = (
                    borrowing
                    and not self._borrows(job)
                    and (queue.reclaims == "Any" or (queue.reclaims == "LowerPriority" and lower))
                )
            if fair:
                victims.append((its is queue, priority[other], -self._floor.opened[other], other))
        return self._evict(job, [entry[-1] for entry in sorted(victims)], lambda: self._has_quota(job), now_s)


@dataclass(frozen=True, slots=True)
class Volcano:
    """Weighted queues (proportion), gangs that start as a whole, priorities, and reclaim where it is switched on."""

    queues: Queues
    name: str = "volcano"
    preemptive: bool = True
    fit: str = "volcano"

    uses_estimates: ClassVar[bool] = False

    def line(self, view: View) -> "VolcanoLine":
        if not isinstance(view, Floor):
            raise TypeError("Volcano looks at nodes and needs the whole cluster")
        return VolcanoLine(view, self.queues)


class VolcanoLine(_QueuedLine):
    def __init__(self, floor: Floor, queues: Queues) -> None:
        self._queues = dict(queues.weighted)
        self._reclaims = queues.reclaim

        def queue_of(job: int) -> str | None:
            tenant = floor.jobs.tenants[job] or ""
            return tenant if tenant in self._queues else "default" if "default" in self._queues else None

        super().__init__(floor, queue_of)

    def _deserved(self) -> dict[str, float]:
        """The cluster shared out by weight; what a queue does not ask for or may not have goes to the others."""
        wanted = {
            name: min(
                self._used.get(name, 0.0)
                + sum(self._floor.num_gpus[entry[2]] for entry in self._waiting.get(name, [])),
                queue.capability,
            )
            for name, queue in self._queues.items()
        }
        given = dict.fromkeys(wanted, 0.0)
        left = self._floor.total_gpus()
        open_queues = {name for name, wants in wanted.items() if wants > 0}
        while left > 1e-9 and open_queues:
            weights = sum(self._queues[name].weight for name in open_queues)
            rise = {name: left * self._queues[name].weight / weights for name in open_queues}
            for name in sorted(open_queues):
                step = min(rise[name], wanted[name] - given[name])
                given[name] += step
                left -= step
            open_queues = {name for name in open_queues if given[name] < wanted[name] - 1e-9}
        return given

    def serve(self, now_s: float) -> None:
        """The queue with the smallest part of what it deserves goes first; a queue over its share waits."""
        deserved = self._deserved()
        tried: set[int] = set()
        while True:
            heads = []
            for name, line in self._waiting.items():
                used, share = self._used.get(name, 0.0), deserved[name]
                job = next((entry[2] for entry in line if entry[2] not in tried), None)
                if (
                    job is not None
                    and used < share
                    and used + self._floor.num_gpus[job] <= self._queues[name].capability
                ):
                    heads.append((used / share, self._entry(job)))
                elif job is not None:
                    tried.add(job)
            if not heads:
                if not any(entry[2] not in tried for line in self._waiting.values() for entry in line):
                    return
                continue
            job = min(heads)[1][2]
            if not self._try(job, now_s):
                if self._reclaims and self._reclaim_for(job, deserved, now_s) and self._try(job, now_s):
                    continue
                tried.add(job)

    def _reclaim_for(self, job: int, deserved: dict[str, float], now_s: float) -> bool:
        own = self._name(job)
        if self._used.get(own, 0.0) + self._floor.num_gpus[job] > deserved[own] + 1e-9:
            return False
        victims = [
            other
            for other in self._floor.running
            if self._name(other) != own
            and self._queues[self._name(other)].reclaimable
            and self._used[self._name(other)] - self._floor.held[other] >= deserved[self._name(other)] - 1e-9
        ]
        victims.sort(key=lambda other: (self._floor.jobs.priority[other], -self._floor.opened[other], other))
        return self._evict(job, victims, lambda: True, now_s)


def equal_queues(jobs: JobTable, fleet: Fleet) -> Queues:
    """One queue for each tenant, all in one cohort with equal quotas and equal weights, that take back what they own."""
    tenants = sorted({tenant or "" for tenant in jobs.tenants})
    own = fleet.num_gpus / max(len(tenants), 1)
    return Queues(
        cluster_queues={
            name: ClusterQueue(name=name, cohort="all", nominal=own, reclaims="Any", within="LowerPriority")
            for name in tenants
        },
        weighted={name: WeightedQueue(name=name) for name in tenants},
        reclaim=True,
    )


def make_kueue(jobs: JobTable, fleet: Fleet) -> Kueue:
    return Kueue(equal_queues(jobs, fleet))


def make_volcano(jobs: JobTable, fleet: Fleet) -> Volcano:
    return Volcano(equal_queues(jobs, fleet))
