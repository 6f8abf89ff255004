"""Kueue on the simulated cluster: whole jobs are admitted by the quotas of queues and placed all at once."""

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from traincast.schedule._floor import Floor
from traincast.schedule._jobs import JobTable
from traincast.schedule._lines import ServingLine
from traincast.schedule._manifests import ClusterQueue, Queues
from traincast.spec import Fleet


@dataclass(frozen=True, slots=True)
class Kueue:
    """Cluster queues with nominal quotas, borrowing inside a cohort, and preemption to take quotas back."""

    queues: Queues
    name: str = "kueue"
    preemptive: bool = True
    fit: str = "kueue"

    uses_estimates: ClassVar[bool] = False

    def line(self, floor: Floor) -> "KueueLine":
        return KueueLine(floor, self.queues)


class KueueLine(ServingLine):
    """Waiting jobs by queue, each in order of priority and submission."""

    def __init__(self, floor: Floor, queues: Queues) -> None:
        self._floor, self._queues = floor, queues.cluster_queues
        tenants = [tenant or "" for tenant in floor.jobs.tenants]
        named = [queues.local.get(tenant, tenant) for tenant in tenants]
        self._queue_of = [name if name in self._queues else None for name in named]
        self._waiting: dict[str, list[tuple[float, float, int]]] = {}
        self._used: dict[str, float] = {}

    def refusal(self, job: int) -> str | None:
        if self._queue_of[job] is None:
            return f"no queue takes jobs of {self._floor.jobs.tenants[job]!r}"
        need = self._floor.num_gpus[job]
        if not self._floor.pools(job):
            return f"needs {need:g} GPUs, which no pool of this fleet can ever give"
        queue = self._queues[self._name(job)]
        most = min(queue.nominal + (queue.borrowing if queue.cohort else 0.0), self._lendable(queue))
        return f"needs {need:g} GPUs; {queue.name} gives at most {most:g}" if need > most else None

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
        nodes = self._floor.nodes
        freed: list[int] = []
        fits = False
        for victim in victims:
            nodes.give(self._floor.where(victim))
            self._used[self._name(victim)] -= self._floor.held[victim]
            freed.append(victim)
            fits = allowed() and self._floor.find(job) is not None
            if fits:
                break
        for victim in freed:
            nodes.take(self._floor.where(victim))
            self._used[self._name(victim)] += self._floor.held[victim]
        for victim in freed if fits else ():
            self._floor.preempt(victim, now_s)
        return fits

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


def equal_queues(jobs: JobTable, fleet: Fleet) -> Queues:
    """One queue for each tenant, all in one cohort with equal quotas, that take back what they own."""
    tenants = sorted({tenant or "" for tenant in jobs.tenants})
    own = fleet.num_gpus / max(len(tenants), 1)
    return Queues(
        cluster_queues={
            name: ClusterQueue(name=name, cohort="all", nominal=own, reclaims="Any", within="LowerPriority")
            for name in tenants
        },
    )


def make_kueue(jobs: JobTable, fleet: Fleet) -> Kueue:
    return Kueue(equal_queues(jobs, fleet))
