"""Jobs and a policy to a schedule: one event-driven engine for queueing, preemptive and elastic policies."""

import bisect
import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from traincast.errors import InvalidInput, MissingExtra, UnknownName
from traincast.schedule import fast, kernels
from traincast.schedule.estimators import EXACT, Estimator, Fixed, Ranged
from traincast.schedule.hazards import FailureModel, Overheads
from traincast.schedule.jobs import JobTable
from traincast.schedule.network import LinkSharing, NetworkModel
from traincast.schedule.placement import NODE, PLACERS, Consolidated, NodeMap, Placement, Placer
from traincast.schedule.policies import Policy
from traincast.schedule.speeds import PerfModel, SameSpeed
from traincast.spec.fleet import Fleet, Occupation, Request, RunningJob, Schedule, Snapshot

_FINISH, _FAIL, _REPAIR = 0, 1, 2
_FUTURE, _WAITING, _RUNNING, _DONE, _REJECTED = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compat:
    """Named departures from clean semantics that other simulators need to be matched to the second.

    `coalesce=False`: one event per pass even at equal times (CQSim). `keep_quota`: a selected job that cannot be
    placed keeps its count, so others are preempted for nothing; `end_lag_s`: every job ends this much late;
    `recheck_s`: look again this long after any change (all Helios SRTF).
    """

    coalesce: bool = True
    keep_quota: bool = False
    end_lag_s: float = 0.0
    recheck_s: float | None = None


CLEAN = Compat()


@runtime_checkable
class RoundPolicy(Protocol):
    """Decides how many GPUs of which pool every job holds, at every event and at least every `interval_s`."""

    @property
    def name(self) -> str: ...

    @property
    def interval_s(self) -> float: ...

    @property
    def on_events(self) -> bool: ...

    @property
    def uses_progress(self) -> bool:
        """Whether the answer can change while the same jobs are there; if not, ticks without change are skipped."""
        ...

    def allocate(self, cluster: "ElasticView", now_s: float) -> dict[int, tuple[int, int]]:
        """Job to (pool, GPUs); jobs left out hold nothing."""
        ...


class ElasticView(Protocol):
    """What an elastic policy may ask."""

    jobs: JobTable
    nodes: NodeMap

    def active(self) -> Sequence[int]: ...

    def holding(self, job: int) -> tuple[int, int] | None: ...

    def speed(self, job: int, pool: int, num_gpus: int) -> float: ...

    def remaining_s(self, job: int, now_s: float) -> float: ...

    def bounds(self, job: int) -> tuple[int, int]: ...


@runtime_checkable
class Packing(Protocol):
    """A policy that may put two jobs on the same GPUs when none are free."""

    def packed_rate(self, job: int, other: int) -> float:
        """Speed of each of the two relative to running alone; 0 forbids the pair."""
        ...


def simulate_cluster(
    jobs: JobTable | Iterable[Request],
    policy: Policy | RoundPolicy,
    *,
    fleet: Fleet,
    placer: Placer | None = None,
    perf: PerfModel | None = None,
    estimator: Estimator = EXACT,
    overheads: Overheads | None = None,
    failures: FailureModel | None = None,
    network: NetworkModel | None = None,
    compat: Compat = CLEAN,
    until_s: float = math.inf,
    record: bool = False,
    progress: Callable[[int], None] | None = None,
    engine: str = "auto",
) -> Schedule:
    """Let the jobs compete for the fleet; same input, same answer, to the last bit.

    `engine`: "general" knows everything; "compiled" and "interpreted" are the hot loops for common policies on one
    pool, with and without numba; "auto" takes the loops where they apply and pay.
    """
    table = jobs if isinstance(jobs, JobTable) else JobTable.from_requests(jobs)
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    if engine != "general":
        plain = (
            failures is None and network is None and compat == CLEAN and not record and math.isinf(until_s)
            and (perf is None or isinstance(perf, SameSpeed)) and (overheads or Overheads()).useful_share == 1.0
        )  # fmt: skip
        schedule = _by_loops(table, policy, fleet, placer, estimator, overheads, engine) if plain else None
        if schedule is not None:
            if progress is not None:
                progress(len(table))
            return schedule
        if engine != "auto":
            raise InvalidInput(f"the {engine} loops do not cover this run; use the engine general or auto")
    cluster = _Cluster(
        table,
        policy,
        fleet=fleet,
        placer=placer or Consolidated(),
        perf=perf or SameSpeed(),
        estimator=estimator,
        overheads=overheads or Overheads(),
        failures=failures,
        network=network,
        compat=compat,
        record=record,
    )
    cluster.run(until_s, progress)
    return cluster.schedule()


ENGINES = ("auto", "general", "compiled", "interpreted")
_WORTH_COMPILING = 2000


def _by_loops(
    jobs: JobTable,
    policy: Policy | RoundPolicy,
    fleet: Fleet,
    placer: Placer | None,
    estimator: Estimator,
    overheads: Overheads | None,
    engine: str,
) -> Schedule | None:
    placer = placer or Consolidated()
    if engine == "auto" and len(jobs) < _WORTH_COMPILING:
        return None
    _check_durations(jobs)
    beliefs = estimator.start(jobs)
    if isinstance(policy, RoundPolicy) or not isinstance(beliefs, Fixed):
        return None
    if not fast.is_covered(policy, jobs=jobs, fleet=fleet, placer=placer, beliefs=beliefs):
        return None
    loops = None if engine == "interpreted" else kernels.compiled()
    if loops is None and engine == "compiled":
        raise MissingExtra("numba", "schedule", "the compiled engine")
    return fast.run(
        jobs,
        policy,
        fleet=fleet,
        placer=placer,
        beliefs=beliefs,
        overheads=overheads or Overheads(),
        loops=loops or kernels.interpreted(),
        lists=loops is None,
    )


def _check_durations(jobs: JobTable) -> None:
    if np.isnan(jobs.duration_s).any():
        job = int(np.flatnonzero(np.isnan(jobs.duration_s))[0])
        raise InvalidInput(
            f"job {jobs.job_ids[job]} has no duration; forecast its workload first (schedule.speeds.forecast_jobs)"
        )


class _Cluster:
    """The moving state: plain lists, because single entries are read and written millions of times."""

    def __init__(
        self,
        jobs: JobTable,
        policy: Policy | RoundPolicy,
        *,
        fleet: Fleet,
        placer: Placer,
        perf: PerfModel,
        estimator: Estimator,
        overheads: Overheads,
        failures: FailureModel | None,
        network: NetworkModel | None,
        compat: Compat,
        record: bool,
    ) -> None:
        _check_durations(jobs)
        by_count = placer.name == "count"
        if by_count and (failures is not None or network is not None):
            raise InvalidInput("failures and networks act on nodes: use the placement consolidated, spread or topology")
        count = len(jobs)
        self.jobs = jobs
        self.policy = policy
        self.fleet = fleet
        self.placer = placer
        self.perf = perf
        self.same_speed = isinstance(perf, SameSpeed)
        self.estimator = estimator.start(jobs)
        self.overheads = overheads
        self.useful = overheads.useful_share
        self.failures = failures
        self.compat = compat
        self.record = record
        self.nodes = NodeMap(fleet, by_count=by_count)
        self.submit_s: list[float] = jobs.submit_s.tolist()
        self.num_gpus: list[float] = jobs.num_gpus.tolist()
        self.left: list[float] = jobs.duration_s.tolist()
        self.guess_left = [math.nan] * count
        self.estimate_s = [math.nan] * count
        self.state = [_FUTURE] * count
        self.rate = [0.0] * count
        self.base_rate = [0.0] * count
        self.since = [0.0] * count
        self.opened = [0.0] * count
        self.version = [0] * count
        self.held = list(self.num_gpus)
        self.where: list[Placement] = [()] * count
        self.pool = [-1] * count
        self.start_s = [math.nan] * count
        self.end_s = [math.nan] * count
        self.attained_s = [0.0] * count
        self.gpu_s = [0.0] * count
        self.lost_gpu_s = [0.0] * count
        self.preemptions = [0] * count
        self.num_failed = [0] * count
        self.evicted_s = [-1.0] * count
        self.since_checkpoint = [0.0] * count
        self.rejected: dict[int, str] = {}
        self.partner: dict[int, int] = {}
        self.pool_gpu_s = [0.0] * len(fleet.pools)
        self.occupations: list[Occupation] = []
        self.running: dict[int, None] = {}
        self.waiting: dict[int, None] = {}
        self.heap: list[tuple[float, int, int, int, int]] = []
        self.seq = 0
        self.cursor = 0
        self.done = 0
        self.passes = 0
        self.wake_s = math.inf
        self.tick_s = math.inf
        self.membership = 0
        self.allocated_for = -1
        self.pools_for: dict[tuple[object, ...], tuple[int, ...]] = {}
        self.links = None if network is None else LinkSharing(network, fleet)
        self.rounds = policy if isinstance(policy, RoundPolicy) else None
        self.queueing: Policy | None = None if isinstance(policy, RoundPolicy) else policy
        self.line = None if self.queueing is None else self.queueing.line(self)
        self.packing = policy if isinstance(policy, Packing) else None
        self.node_failures = [0] * len(self.nodes.free)
        if failures is not None:
            for node in range(len(self.nodes.free)):
                self._push(failures.up_s(node, 0), _FAIL, node, 0)

    # What policies may ask.

    def is_running(self, job: int) -> bool:
        return self.state[job] == _RUNNING

    def served_s(self, job: int, now_s: float) -> float:
        if self.state[job] == _RUNNING:
            return self.attained_s[job] + (now_s - self.since[job])
        return self.attained_s[job]

    def remaining_s(self, job: int, now_s: float) -> float:
        if self.state[job] == _RUNNING:
            # Written so that the order of running jobs does not hang on rounding at each new moment.
            rate = self.rate[job]
            return (self.since[job] + self.guess_left[job] / rate - now_s) * rate
        return self.guess_left[job]

    def total_gpus(self) -> float:
        return sum(self.nodes.up_in_pool)

    def active(self) -> Sequence[int]:
        return sorted([*self.waiting, *self.running])

    def holding(self, job: int) -> tuple[int, int] | None:
        return (self.pool[job], int(self.held[job])) if self.state[job] == _RUNNING else None

    def speed(self, job: int, pool: int, num_gpus: int) -> float:
        width = self.nodes.width[pool]
        return self.perf.rate(job, pool, num_gpus, NODE if num_gpus <= width else 1)

    def bounds(self, job: int) -> tuple[int, int]:
        low, high = self.jobs.min_gpus[job], self.jobs.max_gpus[job]
        asked = max(int(self.num_gpus[job]), 1)
        return (1 if math.isnan(low) else int(low), asked if math.isnan(high) else int(high))

    def snapshot(self, now_s: float) -> Snapshot:
        devices = [pool.device for pool in self.fleet.pools]
        free: dict[str, int] = {}
        for device, count in zip(devices, self.nodes.free_in_pool, strict=True):
            free[device] = free.get(device, 0) + count
        return Snapshot(
            now_s=now_s,
            waiting=tuple(_public(self.jobs.request(job)) for job in self.waiting),
            running=tuple(
                RunningJob(
                    request=_public(self.jobs.request(job)),
                    num_gpus=self.held[job],
                    device=devices[self.pool[job]],
                    attained_s=self.served_s(job, now_s),
                    estimated_remaining_s=self.remaining_s(job, now_s),
                )
                for job in self.running
            ),
            free_gpus=free,
            estimated_s={self.jobs.job_ids[job]: self.estimate_s[job] for job in (*self.waiting, *self.running)},
            interval_s=self._intervals(),
        )

    def _intervals(self) -> dict[str, tuple[float, float]]:
        beliefs = self.estimator
        if not isinstance(beliefs, Ranged):
            return {}
        found = ((job, beliefs.interval_s(job)) for job in (*self.waiting, *self.running))
        return {self.jobs.job_ids[job]: limits for job, limits in found if limits is not None}

    # The clock.

    def run(self, until_s: float, progress: Callable[[int], None] | None) -> None:
        heap, submit, count = self.heap, self.submit_s, len(self.jobs)
        coalesce = self.compat.coalesce
        reported = 0
        while self.done < count:
            while heap and heap[0][1] == _FINISH and heap[0][4] != self.version[heap[0][3]]:
                heapq.heappop(heap)
            now = heap[0][0] if heap else math.inf
            if self.cursor < count and submit[self.cursor] < now:
                now = submit[self.cursor]
            timer = min(self.wake_s, self.tick_s)
            now = min(now, timer)
            if now > until_s or now == math.inf:
                break
            changed = False
            while heap and heap[0][0] == now:
                _, kind, _, subject, version = heapq.heappop(heap)
                if kind == _FINISH:
                    if version != self.version[subject]:
                        continue
                    self._finish(subject, now)
                elif kind == _FAIL:
                    self._fail(subject, version, now)
                else:
                    self._repair(subject, version, now)
                changed = True
                if not coalesce:
                    break
            if coalesce or not changed:
                while self.cursor < count and submit[self.cursor] == now:
                    self._arrive(self.cursor, now)
                    self.cursor += 1
                    changed = True
                    if not coalesce:
                        break
            if timer <= now:
                changed = True
                if self.wake_s <= now:
                    self.wake_s = math.inf
            if changed:
                self._pass(now)
            if progress is not None and self.done - reported >= 1000:
                progress(self.done - reported)
                reported = self.done
        if math.isfinite(until_s):
            for job in list(self.running):
                self._settle(job, until_s)
                self._close(job, until_s)
        if progress is not None and self.done > reported:
            progress(self.done - reported)

    def _push(self, time_s: float, kind: int, subject: int, version: int) -> None:
        # The heap breaks ties by this number, so equal times keep insertion order.
        self.seq += 1
        heapq.heappush(self.heap, (time_s, kind, self.seq, subject, version))

    # Events.

    def _arrive(self, job: int, now: float) -> None:
        if not self._pools(job):
            self.state[job] = _REJECTED
            self.done += 1
            self.rejected[job] = (
                f"needs {self.num_gpus[job]:g} GPUs of type {self.jobs.gpu_types[job] or 'any'}, "
                "which no pool of this fleet can ever give"
            )
            return
        self.estimate_s[job] = self.guess_left[job] = self.estimator.estimate_s(job)
        self.state[job] = _WAITING
        self.waiting[job] = None
        self.membership += 1
        if self.line is not None:
            self.line.join(job, now)

    def _finish(self, job: int, now: float) -> None:
        self._settle(job, now)
        if self.line is not None:
            self.line.leave(job, now)
        self._release(job, now)
        self.left[job] = 0.0
        self.state[job] = _DONE
        self.end_s[job] = now
        self.done += 1
        self.membership += 1
        self.estimator.learn(job, self.attained_s[job])

    def _fail(self, node: int, count: int, now: float) -> None:
        failures = self.failures
        if failures is None or node in self.nodes.down:
            return
        nodes = [node]
        if failures.rack_share and failures.takes_rack(node, count):
            rack = self.nodes.rack_of[node]
            nodes = [other for other, its in enumerate(self.nodes.rack_of) if its == rack]
        for broken in nodes:
            if broken in self.nodes.down:
                continue
            for job in [j for j in self.running if any(held == broken for held, _ in self.where[j])]:
                self._roll_back(job, now)
            self.nodes.fail(broken)
            self.membership += 1
            number = self.node_failures[broken]
            self._push(now + failures.repair_s(broken, number), _REPAIR, broken, number)

    def _repair(self, node: int, count: int, now: float) -> None:
        failures = self.failures
        if failures is None:
            return
        self.nodes.repair(node)
        self.membership += 1
        self.node_failures[node] = count + 1
        self._push(now + failures.up_s(node, count + 1), _FAIL, node, count + 1)

    def _roll_back(self, job: int, now: float) -> None:
        self._settle(job, now)
        lost = self.since_checkpoint[job]
        every = self.overheads.checkpoint_every_s
        if every is not None and lost > 0:
            lost = math.fmod(lost, every)
        self.num_failed[job] += 1
        self.since_checkpoint[job] = 0.0
        # What was computed since the last checkpoint is computed again.
        redo = lost * self.rate[job] if self.rate[job] else lost
        self._stop(job, now, extra_s=redo + self.overheads.restart_s, lost_s=lost + self.overheads.restart_s)

    # Starting and stopping.

    def _pools(self, job: int) -> tuple[int, ...]:
        """The pools that can run the job, fastest first."""
        num_gpus = self.num_gpus[job]
        key = (num_gpus, self.jobs.gpu_types[job], None if self.same_speed else (self.jobs.workloads[job], job))
        known = self.pools_for.get(key)
        if known is not None:
            return known
        found = []
        wanted = self.jobs.gpu_types[job]
        for index, pool in enumerate(self.fleet.pools):
            if wanted is not None and len(self.fleet.pools) > 1 and pool.device != wanted:
                continue
            if not pool.num_nodes or not self.placer.could_ever(self.nodes, num_gpus, index):
                continue
            locality = NODE if num_gpus <= self.nodes.width[index] else 1
            rate = self.perf.rate(job, index, num_gpus, locality)
            if rate > 0:
                found.append((-rate, index))
        pools = tuple(index for _, index in sorted(found))
        self.pools_for[key] = pools
        return pools

    def _find(self, job: int) -> Placement | None:
        for pool in self._pools(job):
            if self.num_gpus[job] >= 1 and self.num_gpus[job] > self.nodes.free_in_pool[pool]:
                continue
            placement = self.placer.place(self.nodes, self.num_gpus[job], pool)
            if placement is not None and (self.same_speed or self._rate(job, placement, self.num_gpus[job]) > 0):
                return placement
        return None

    def _rate(self, job: int, placement: Placement, num_gpus: float) -> float:
        if self.same_speed:
            return 1.0
        pool = self.nodes.pool_of[placement[0][0]]
        return self.perf.rate(job, pool, num_gpus, self.nodes.locality(placement))

    def _start(self, job: int, placement: Placement, now: float, *, take: bool = True) -> None:
        if take:
            self.nodes.take(placement, job)
        if math.isnan(self.start_s[job]):
            self.start_s[job] = now
        self.state[job] = _RUNNING
        del self.waiting[job]
        self.running[job] = None
        self.where[job] = placement
        self.pool[job] = self.nodes.pool_of[placement[0][0]]
        self.since[job] = self.opened[job] = now
        self.base_rate[job] = self._rate(job, placement, self.held[job]) * self.useful
        self.rate[job] = self.base_rate[job]
        if self.links is not None and self.links.join(job, placement, self.nodes):
            self._share_links(job, now)
        self._schedule_finish(job, now)

    def _schedule_finish(self, job: int, now: float) -> None:
        self.version[job] += 1
        rate = self.rate[job]
        end = now + (self.left[job] if rate == 1.0 else self.left[job] / rate) + self.compat.end_lag_s
        self._push(end, _FINISH, job, self.version[job])

    def _settle(self, job: int, now: float) -> None:
        elapsed = now - self.since[job]
        if elapsed > 0:
            work = elapsed * self.rate[job]
            self.left[job] -= work
            self.guess_left[job] -= work
            self.attained_s[job] += elapsed
            self.since_checkpoint[job] += elapsed
            gpus = self.held[job] * (0.5 if job in self.partner else 1.0)
            self.gpu_s[job] += elapsed * gpus
            self.pool_gpu_s[self.pool[job]] += elapsed * gpus
            self.since[job] = now

    def _close(self, job: int, now: float) -> None:
        if self.record and now > self.opened[job]:
            self.occupations.append(
                Occupation(
                    job=job,
                    start_s=self.opened[job],
                    end_s=now,
                    num_gpus=self.held[job],
                    nodes=self.where[job],
                )
            )
        self.opened[job] = now

    def _release(self, job: int, now: float) -> None:
        self._close(job, now)
        del self.running[job]
        self.version[job] += 1
        other = self.partner.pop(job, None)
        if other is None:
            self.nodes.give(self.where[job], job)
        else:
            self._settle(other, now)
            del self.partner[other]
            if self.held[job] < 1:
                self.nodes.slot_of[other] = self.nodes.slot_of.pop(job, self.nodes.slot_of.get(other, 0))
            self._set_rate(other, self.base_rate[other], now)
        if self.links is not None:
            touched = self.links.leave(job)
            if touched:
                self._apply_links(touched, now)

    def _stop(self, job: int, now: float, *, extra_s: float, lost_s: float) -> None:
        self._settle(job, now)
        self.left[job] += extra_s
        self.guess_left[job] += extra_s
        self.lost_gpu_s[job] += lost_s * self.held[job]
        self._release(job, now)
        self.state[job] = _WAITING
        self.waiting[job] = None
        if self.line is not None:
            self.line.stopped(job, now)

    def _preempt(self, job: int, now: float) -> None:
        self.preemptions[job] += 1
        self.evicted_s[job] = now
        cost = self.overheads.preemption_s(self.num_gpus[job])
        self._stop(job, now, extra_s=cost, lost_s=cost)
        self.since_checkpoint[job] = 0.0

    def _set_rate(self, job: int, rate: float, now: float) -> None:
        if rate != self.rate[job]:
            self._settle(job, now)
            self.rate[job] = rate
            self._schedule_finish(job, now)

    def _share_links(self, job: int, now: float) -> None:
        if self.links is not None:
            self._apply_links(self.links.touching(job), now)

    def _apply_links(self, touched: Iterable[int], now: float) -> None:
        if self.links is None:
            return
        for job, factor in self.links.factors(touched).items():
            if self.state[job] == _RUNNING and job in self.running:
                self._set_rate(job, self.base_rate[job] * factor, now)

    # Passes.

    def _pass(self, now: float) -> None:
        self.passes += 1
        if self.rounds is not None:
            due = self.rounds.on_events or now >= self.tick_s or self.tick_s == math.inf
            if due and (self.rounds.uses_progress or self.membership != self.allocated_for):
                self._reallocate(now)
                self.allocated_for = self.membership
            if self.tick_s <= now or self.tick_s == math.inf:
                self.tick_s = now + self.rounds.interval_s
            return
        policy, line = self.queueing, self.line
        if policy is None or line is None:
            return
        before = len(self.running), self.seq
        if policy.preemptive:
            self._preemptive_pass(now)
        elif policy.fit == "easy":
            self._easy_pass(now)
        elif policy.fit == "conservative":
            self._conservative_pass(now)
        else:
            self._plain_pass(now, skip=policy.fit == "skip")
        if self.packing is not None and self.waiting:
            self._pack(self.packing, now)
        self.wake_s = line.wakeup_s(now)
        if self.wake_s <= now:
            self.wake_s = math.nextafter(now, math.inf)
        if self.compat.recheck_s is not None and (before != (len(self.running), self.seq) or self._event_now(now)):
            self.wake_s = min(self.wake_s, now + self.compat.recheck_s)

    def _event_now(self, now: float) -> bool:
        return self.cursor > 0 and self.submit_s[self.cursor - 1] == now

    def _plain_pass(self, now: float, *, skip: bool) -> None:
        line = self.line
        if line is None:
            return
        started = []
        failed: set[tuple[object, ...]] = set()
        free = self.nodes.free_in_pool
        shares = bool(self.nodes.shares)
        for job in line.order(now):
            if not any(free) and not shares and self.num_gpus[job] >= 1:
                break
            kind = self._kind(job)
            placement = None if kind in failed else self._find(job)
            if placement is None:
                if not skip:
                    break
                failed.add(kind)
                continue
            self._start(job, placement, now)
            started.append(job)
        for job in started:
            line.started(job, now)

    def _preemptive_pass(self, now: float) -> None:
        """In order, every waiting job that would fit by count if those after it made way; by count alone this is the
        greedy choice with skipping. A job that has no room even then is set aside with all of its kind."""
        line = self.line
        if line is None:
            return
        if self.compat.keep_quota:
            chosen, losers = self._choose(line.order(now), set(), most=len(self.jobs))
            for job in losers:
                self._preempt(job, now)
            for job in chosen:
                placement = self._find(job)
                if placement is not None:
                    self._start(job, placement, now)
                    line.started(job, now)
            return
        set_aside: set[tuple[object, ...]] = set()
        while True:
            order = list(line.order(now))
            chosen, losers = self._choose(order, set_aside, most=1)
            if not chosen:
                return
            job = chosen[0]
            placement = self._find(job)
            # A job that was pushed out at this moment pushes nobody out, or two near equals could swap for ever.
            may_evict = self.evicted_s[job] != now
            if placement is None and losers and may_evict:
                placement = self._evict_for(job, losers, math.inf, now)
            if placement is None and may_evict and self.num_gpus[job] <= max(self.nodes.width):
                # By count there was room, but not on one node: look for a node among the last jobs in line.
                behind = [other for other in order[order.index(job) :] if self.state[other] == _RUNNING]
                placement = self._evict_for(job, behind, kernels.DISTURB * self.num_gpus[job], now)
            if placement is None:
                set_aside.add(self._kind(job))
            else:
                self._start(job, placement, now)
                line.started(job, now)

    def _kind(self, job: int) -> tuple[object, ...]:
        """Jobs of one kind fit or fail together."""
        return (self.num_gpus[job], self.jobs.gpu_types[job], None if self.same_speed else job)

    def _choose(
        self, order: Iterable[int], set_aside: set[tuple[object, ...]], *, most: int
    ) -> tuple[list[int], list[int]]:
        """The first waiting jobs that fit by count, and the running jobs that must make way for them."""
        quota = [float(total) for total in self.nodes.up_in_pool]
        chosen: list[int] = []
        losers: list[int] = []
        for job in order:
            need = self.held[job]
            if self.state[job] == _RUNNING:
                pool = self.pool[job]
                if need <= quota[pool]:
                    quota[pool] -= need
                else:
                    losers.append(job)
            elif len(chosen) < most and (not set_aside or self._kind(job) not in set_aside):
                for pool in self._pools(job):
                    if need <= quota[pool]:
                        quota[pool] -= need
                        chosen.append(job)
                        break
        return chosen, losers

    def _evict_for(self, job: int, losers: Sequence[int], most_gpus: float, now: float) -> Placement | None:
        """Free losers from the last one on until the job fits, then spare those whose leaving did not help; if it
        never fits, nobody is disturbed."""
        freed: list[int] = []
        placement = None
        looked_at = 0.0
        for loser in reversed(losers):
            if looked_at >= most_gpus:
                break
            looked_at += self.held[loser]
            self.nodes.give(self.where[loser], loser)
            freed.append(loser)
            placement = self._find(job)
            if placement is not None:
                break
        victims = freed[-1:]
        for loser in freed[:-1] if placement is not None else ():
            self.nodes.take(self.where[loser], loser)
            if self._find(job) is None:
                self.nodes.give(self.where[loser], loser)
                victims.append(loser)
        if placement is not None:
            placement = self._find(job)
        for loser in freed if placement is None else victims:
            self.nodes.take(self.where[loser], loser)
        if placement is None:
            return None
        for loser in victims:
            self._preempt(loser, now)
        return placement

    def _believed_end(self, job: int, now: float) -> float:
        return max(self.since[job] + self.guess_left[job] / self.rate[job], now)

    def _reserve(self, job: int, now: float) -> tuple[float, float]:
        """When enough GPUs are believed to be free for the job, and how many are then left over."""
        pools = set(self._pools(job))
        need = self.num_gpus[job]
        free = float(sum(self.nodes.free_in_pool[pool] for pool in pools))
        ends = sorted(
            (self._believed_end(other, now), self.held[other]) for other in self.running if self.pool[other] in pools
        )
        for index, (end, gpus) in enumerate(ends):
            free += gpus
            if free >= need and (index + 1 == len(ends) or ends[index + 1][0] > end):
                return end, free - need
        return math.inf, 0.0

    def _easy_pass(self, now: float) -> None:
        line = self.line
        if line is None:
            return
        started = []
        head = -1
        shadow = extra = 0.0
        failed: set[tuple[object, ...]] = set()
        for job in line.order(now):
            if not any(self.nodes.free_in_pool):
                break
            need = self.num_gpus[job]
            kind = self._kind(job)
            if head < 0:
                placement = self._find(job)
                if placement is None:
                    head = job
                    shadow, extra = self._reserve(job, now)
                    if shadow == math.inf:
                        # Enough GPUs are free but not together: wait for the next event, hold nobody back.
                        extra = math.inf
                    continue
            else:
                if kind in failed:
                    continue
                in_time = now + self.guess_left[job] <= shadow
                if not in_time and need > extra:
                    continue
                placement = self._find(job)
                if placement is None:
                    failed.add(kind)
                    continue
                if not in_time:
                    extra -= need
            self._start(job, placement, now)
            started.append(job)
        for job in started:
            line.started(job, now)

    def _conservative_pass(self, now: float) -> None:
        line = self.line
        if line is None:
            return
        ends = sorted((self._believed_end(other, now), self.held[other]) for other in self.running)
        profile = _Profile(now, float(sum(self.nodes.free_in_pool)), ends)
        started = []
        for job in line.order(now):
            if profile.free_now() <= 0:
                break
            lasts = max(self.guess_left[job], 0.0)
            begin = profile.reserve(self.num_gpus[job], lasts)
            if begin <= now:
                placement = self._find(job)
                if placement is not None:
                    self._start(job, placement, now)
                    started.append(job)
        for job in started:
            line.started(job, now)

    def _pack(self, policy: Packing, now: float) -> None:
        line = self.line
        if line is None:
            return
        started = []
        for job in line.order(now):
            if self.num_gpus[job] < 1:
                continue
            best, best_rate = -1, 0.0
            for other in self.running:
                if other in self.partner or self.held[other] != self.num_gpus[job]:
                    continue
                if self.pool[other] not in self._pools(job):
                    continue
                rate = policy.packed_rate(job, other)
                if rate > best_rate:
                    best, best_rate = other, rate
            if best < 0:
                continue
            self._settle(best, now)
            self._start(job, self.where[best], now, take=False)
            self.partner[job], self.partner[best] = best, job
            self._set_rate(best, self.base_rate[best] * best_rate, now)
            self._set_rate(job, self.base_rate[job] * best_rate, now)
            started.append(job)
        for job in started:
            line.started(job, now)

    def _reallocate(self, now: float) -> None:
        rounds = self.rounds
        if rounds is None:
            return
        target = rounds.allocate(self, now)
        for job in list(self.running):
            if target.get(job) != self.holding(job):
                cost = self.overheads.resize_s if job in target else self.overheads.preemption_s(self.held[job])
                if job not in target:
                    self.preemptions[job] += 1
                self._stop(job, now, extra_s=cost * max(self.rate[job], 0.0), lost_s=cost)
        for job, (pool, count) in target.items():
            if self.state[job] != _WAITING:
                continue
            placement = self.placer.place(self.nodes, count, pool)
            if placement is None:
                placement = PLACERS["spread"].place(self.nodes, count, pool)
            if placement is None:
                continue
            self.held[job] = float(count)
            if self._rate(job, placement, count) > 0:
                self._start(job, placement, now)

    def schedule(self) -> Schedule:
        jobs = self.jobs
        return Schedule(
            policy=self.policy.name,
            fleet=self.fleet,
            job_ids=jobs.job_ids,
            submit_s=jobs.submit_s,
            num_gpus=jobs.num_gpus,
            duration_s=jobs.duration_s,
            deadline_s=jobs.deadline_s,
            start_s=np.array(self.start_s),
            end_s=np.array(self.end_s),
            preemptions=np.array(self.preemptions, dtype=np.int64),
            failures=np.array(self.num_failed, dtype=np.int64),
            run_s=np.array(self.attained_s),
            gpu_s=np.array(self.gpu_s),
            lost_gpu_s=np.array(self.lost_gpu_s),
            rejected=self.rejected,
            tenants=jobs.tenants,
            pool_gpu_s=np.array(self.pool_gpu_s),
            occupations=self.occupations,
            num_passes=self.passes,
        )


def _public(request: Request) -> Request:
    """A request without its true duration, which no scheduler may see."""
    return replace(request, duration_s=None, workload=request.workload or "unknown")


class _Profile:
    """Free GPUs over future time as steps, for reservations in order."""

    def __init__(self, now: float, free: float, ends: Sequence[tuple[float, float]]) -> None:
        self.times = [now]
        self.free = [free]
        for end, gpus in ends:
            if end == self.times[-1]:
                self.free[-1] += gpus
            else:
                self.times.append(end)
                self.free.append(self.free[-1] + gpus)

    def free_now(self) -> float:
        return self.free[0]

    def _cut(self, time_s: float) -> int:
        at = bisect.bisect_left(self.times, time_s)
        if at == len(self.times) or self.times[at] != time_s:
            self.times.insert(at, time_s)
            self.free.insert(at, self.free[at - 1])
        return at

    def reserve(self, need: float, lasts_s: float) -> float:
        times, free = self.times, self.free
        begin = 0
        while begin < len(times):
            if free[begin] < need:
                begin += 1
                continue
            end_s = times[begin] + lasts_s
            at = begin + 1
            while at < len(times) and times[at] < end_s and free[at] >= need:
                at += 1
            if at == len(times) or times[at] >= end_s:
                break
            begin = at + 1
        else:
            return math.inf
        begin_s = times[begin]
        last = self._cut(begin_s + lasts_s)
        for index in range(begin, last):
            free[index] -= need
        return begin_s
