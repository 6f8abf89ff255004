"""Jobs on nodes: who waits, who runs where and how fast, and what starting, stopping and failing do to them."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from traincast.errors import InvalidInput
from traincast.schedule._estimators import Ranged
from traincast.schedule._jobs import JobTable, find_parents, find_per_gpu
from traincast.schedule._kernels.hazards import MOST_FAILURES
from traincast.schedule._lines import ServingLine
from traincast.schedule._network import LinkSharing
from traincast.schedule._placement import NODE, NodeMap, Placement
from traincast.schedule._policies import Policy
from traincast.schedule._protocols import Conditions, Packing, RoundPolicy
from traincast.schedule._speeds import SameSpeed, is_by_kind
from traincast.spec import Occupation, Request, RunningJob, Schedule, Snapshot

if TYPE_CHECKING:
    from traincast.schedule._reservations import Plan, Reservation

FINISH, FAIL, REPAIR = 0, 1, 2
GIVEN_UP = f"failed {MOST_FAILURES} times before its end; checkpoints more often would save it"
FUTURE, WAITING, RUNNING, DONE, REJECTED = range(5)


def check_durations(jobs: JobTable) -> None:
    if np.isnan(jobs.duration_s).any():
        job = int(np.flatnonzero(np.isnan(jobs.duration_s))[0])
        raise InvalidInput(
            f"job {jobs.job_ids[job]} has no duration; forecast its workload (--forecasts) or give measured speeds (--speeds)"
        )


def _lay_out_nodes(jobs: JobTable, given: Conditions, *, by_count: bool) -> NodeMap:
    nodes = NodeMap(given.fleet, by_count=by_count)
    nodes.per_gpu = find_per_gpu(jobs, given.fleet)
    located = nodes.per_gpu or given.failures is not None or given.network is not None
    if by_count and located:
        raise InvalidInput(
            "failures, networks, CPUs and memory act on nodes: use the placement consolidated, spread or topology"
        )
    return nodes


class Floor:
    """The moving state: plain lists, because single entries are read and written millions of times."""

    def __init__(self, jobs: JobTable, policy: Policy | RoundPolicy, given: Conditions) -> None:
        check_durations(jobs)
        by_count = given.placer.name == "count"
        count = len(jobs)
        fleet, failures = given.fleet, given.failures
        self.jobs = jobs
        self.policy = policy
        self.fleet = fleet
        self.placer = given.placer
        self.perf = given.perf
        self.same_speed = isinstance(given.perf, SameSpeed)
        self.speed_by_kind = is_by_kind(given.perf)
        self.estimator = given.estimator.start(jobs)
        self.overheads = given.overheads
        self.useful = given.overheads.useful_share
        self.failures = failures
        self.compat = given.compat
        self.record = given.record
        self.until_s = given.until_s
        self.limit_s: list[float] | None = jobs.limit_s.tolist() if given.kill_at_limit else None
        self.killed: set[int] = set()
        self.nodes = _lay_out_nodes(jobs, given, by_count=by_count)
        self.submit_s: list[float] = jobs.submit_s.tolist()
        self.num_gpus: list[float] = jobs.num_gpus.tolist()
        # Whole GPUs of one node need no place, so who runs is decided by count alone.
        one_node = all(pool.num_nodes <= 1 for pool in fleet.pools)
        self.counts_only = (by_count or one_node) and not self.nodes.per_gpu and not (jobs.num_gpus < 1).any()
        self._lay_out_columns(count)
        self.rejected: dict[int, str] = {}
        self.partner: dict[int, int] = {}
        self.spanning: set[int] = set()
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
        self.links = None if given.network is None else LinkSharing(given.network, fleet)
        self.rounds = policy if isinstance(policy, RoundPolicy) else None
        self.queueing: Policy | None = None if isinstance(policy, RoundPolicy) else policy
        self.line = None if self.queueing is None else self.queueing.line(self)
        self.packing = policy if isinstance(policy, Packing) else None
        self._lay_out_dependencies()
        self.reservation: Reservation | None = None
        self.plan: Plan | None = None
        self.node_failures = [0] * len(self.nodes.free)
        if failures is not None:
            for node in range(len(self.nodes.free)):
                self._push(failures.up_s(node, 0), FAIL, node, 0)

    def _lay_out_dependencies(self) -> None:
        self.parents = {job: set(parents) for job, parents in find_parents(self.jobs).items()}
        self.children: dict[int, list[int]] = {}
        for child, parents in self.parents.items():
            for parent in parents:
                self.children.setdefault(parent, []).append(child)

    def _lay_out_columns(self, count: int) -> None:
        """One entry per job."""
        self.left: list[float] = self.jobs.duration_s.tolist()
        self.guess_left = [math.nan] * count
        self.estimate_s = [math.nan] * count
        self.state = [FUTURE] * count
        self.rate = [0.0] * count
        self.base_rate = [0.0] * count
        self.since = [0.0] * count
        self.opened = [0.0] * count
        self.version = [0] * count
        self.held = list(self.num_gpus)
        self.where: list[Placement] = [()] * count
        self.pool = [-1] * count
        self.pools_of: list[tuple[int, ...] | None] = [None] * count
        self.start_s = [math.nan] * count
        self.end_s = [math.nan] * count
        self.attained_s = [0.0] * count
        self.gpu_s = [0.0] * count
        self.lost_gpu_s = [0.0] * count
        self.preemptions = [0] * count
        self.num_failed = [0] * count
        self.evicted_s = [-1.0] * count
        self.since_checkpoint = [0.0] * count

    # What policies may ask.

    def is_running(self, job: int) -> bool:
        return self.state[job] == RUNNING

    def served_s(self, job: int, now_s: float) -> float:
        if self.state[job] == RUNNING:
            return self.attained_s[job] + (now_s - self.since[job])
        return self.attained_s[job]

    def remaining_s(self, job: int, now_s: float) -> float:
        if self.state[job] == RUNNING:
            # Written so that the order of running jobs does not hang on rounding at each new moment.
            rate = self.rate[job]
            return (self.since[job] + self.guess_left[job] / rate - now_s) * rate
        return self.guess_left[job]

    def total_gpus(self) -> float:
        return sum(self.nodes.up_in_pool)

    def active(self) -> Sequence[int]:
        return sorted([*self.waiting, *self.running])

    def holding(self, job: int) -> tuple[int, int] | None:
        return (self.pool[job], int(self.held[job])) if self.state[job] == RUNNING else None

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

    def _push(self, time_s: float, kind: int, subject: int, version: int) -> None:
        # The heap breaks ties by this number, so equal times keep insertion order.
        self.seq += 1
        heapq.heappush(self.heap, (time_s, kind, self.seq, subject, version))

    # Events.

    def arrive(self, job: int, now: float) -> None:
        reason = self._refusal(job)
        if reason is not None:
            self.state[job] = REJECTED
            self.done += 1
            self.rejected[job] = reason
            self._release_children(job, now)
            return
        if self.parents.get(job):
            return  # it joins when the last job that it depends on has ended
        self.estimate_s[job] = self.guess_left[job] = self.estimator.estimate_s(job)
        self.state[job] = WAITING
        self.waiting[job] = None
        self.membership += 1
        if self.line is not None:
            self.line.join(job, now)

    def _refusal(self, job: int) -> str | None:
        if isinstance(self.line, ServingLine):
            return self.line.refusal(job)
        if self.pools(job):
            return None
        return (
            f"needs {self.num_gpus[job]:g} GPUs of type {self.jobs.gpu_types[job] or 'any'}"
            f"{' with their CPUs and memory' if job in self.nodes.per_gpu else ''}, "
            "which no pool of this fleet can ever give"
        )

    def cancel(self, job: int, now: float) -> None:
        """End a running job before its work is done."""
        self.finish(job, now)
        self.killed.add(job)

    def finish(self, job: int, now: float) -> None:
        if self.since[job] + self.guess_left[job] / self.rate[job] > now:
            self.reservation = None
        self.settle(job, now)
        if self.line is not None:
            self.line.leave(job, now)
        self._release(job, now)
        if self.limit_s is not None and self.left[job] > 1e-6 * max(self.attained_s[job], 1.0):
            self.killed.add(job)
        self.left[job] = 0.0
        self.state[job] = DONE
        self.end_s[job] = now
        self.done += 1
        self.membership += 1
        self.estimator.learn(job, self.attained_s[job])
        self._release_children(job, now)

    def _release_children(self, job: int, now: float) -> None:
        """Whatever became of it, nobody waits for this job any more."""
        for child in self.children.pop(job, ()):
            self.parents[child].discard(job)
            if not self.parents[child] and child < self.cursor and self.state[child] == FUTURE:
                self.arrive(child, now)

    def fail(self, node: int, count: int, now: float) -> None:
        failures = self.failures
        if failures is None or node in self.nodes.down:
            return
        nodes = [node]
        if failures.rack_share and failures.takes_rack(node, count):
            rack = self.nodes.rack_of[node]
            nodes = [other for other, its in enumerate(self.nodes.rack_of) if its == rack]
        self.reservation = None
        for broken in nodes:
            if broken in self.nodes.down:
                continue
            for job in [j for j in self.running if any(held == broken for held, _ in self.where[j])]:
                self._roll_back(job, now)
            self.nodes.fail(broken)
            self.membership += 1
            number = self.node_failures[broken]
            self._push(now + failures.repair_s(broken, number), REPAIR, broken, number)

    def repair(self, node: int, count: int, now: float) -> None:
        failures = self.failures
        if failures is None:
            return
        self.reservation = None
        self.nodes.repair(node)
        self.membership += 1
        self.node_failures[node] = count + 1
        self._push(now + failures.up_s(node, count + 1), FAIL, node, count + 1)

    def _roll_back(self, job: int, now: float) -> None:
        self.settle(job, now)
        lost = self.since_checkpoint[job]
        every = self.overheads.checkpoint_every_s
        if every is not None and lost > 0:
            lost = math.fmod(lost, every)
        self.num_failed[job] += 1
        self.since_checkpoint[job] = 0.0
        # What was computed since the last checkpoint is computed again.
        redo = lost * self.rate[job] if self.rate[job] else lost
        self.stop(job, now, extra_s=redo + self.overheads.restart_s, lost_s=lost + self.overheads.restart_s)
        if self.num_failed[job] >= MOST_FAILURES:
            self._give_up(job, now)

    def _give_up(self, job: int, now: float) -> None:
        """A job longer than nodes live, without checkpoints, would run for ever."""
        del self.waiting[job]
        if self.line is not None:
            self.line.leave(job, now)
        self.state[job] = REJECTED
        self.done += 1
        self.membership += 1
        self.rejected[job] = GIVEN_UP
        self._release_children(job, now)

    # Starting and stopping.

    def pools(self, job: int) -> tuple[int, ...]:
        """The pools that can run the job, fastest first."""
        known = self.pools_of[job]
        if known is not None:
            return known
        num_gpus = self.num_gpus[job]
        key = self.kind(job)
        known = self.pools_for.get(key)
        if known is not None:
            self.pools_of[job] = known
            return known
        found = []
        wanted = self.jobs.gpu_types[job]
        for index, pool in enumerate(self.fleet.pools):
            if wanted is not None and len(self.fleet.pools) > 1 and pool.device != wanted:
                continue
            if not pool.num_nodes or not self.placer.could_ever(self.nodes, num_gpus, index):
                continue
            width = self.nodes.width_for(job, index)
            if num_gpus > width * len(self.nodes.nodes_in_pool[index]):
                continue
            locality = NODE if num_gpus <= width else 1
            rate = self.perf.rate(job, index, num_gpus, locality)
            if rate > 0:
                found.append((-rate, index))
        pools = tuple(index for _, index in sorted(found))
        self.pools_for[key] = self.pools_of[job] = pools
        return pools

    def find(self, job: int) -> Placement | None:
        seen = self.nodes
        if seen.per_gpu:
            share = self.num_gpus[job]
            seen = seen.seen_by(job) if share >= 1 else seen.share_seen_by(job, share)
        for pool in self.pools(job):
            if self.num_gpus[job] >= 1 and self.num_gpus[job] > seen.free_in_pool[pool]:
                continue
            placement = self.placer.place(seen, self.num_gpus[job], pool)
            if placement is not None and (self.same_speed or self.rate_at(job, placement, self.num_gpus[job]) > 0):
                return placement
        return None

    def rate_at(self, job: int, placement: Placement, num_gpus: float) -> float:
        if self.same_speed:
            return 1.0
        pool = self.nodes.pool_of[placement[0][0]]
        return self.perf.rate(job, pool, num_gpus, self.nodes.locality(placement))

    def start(self, job: int, placement: Placement, now: float, *, take: bool = True) -> None:
        if take:
            self.nodes.take(placement, job)
        if math.isnan(self.start_s[job]):
            self.start_s[job] = now
        self.state[job] = RUNNING
        del self.waiting[job]
        self.running[job] = None
        self.where[job] = placement
        self.pool[job] = self.nodes.pool_of[placement[0][0]]
        if len(placement) > 1 and self.nodes.pool_of[placement[-1][0]] != self.pool[job]:
            self.spanning.add(job)
        else:
            self.spanning.discard(job)
        self.since[job] = self.opened[job] = now
        self.base_rate[job] = self.rate_at(job, placement, self.held[job]) * self.useful
        self.rate[job] = self.base_rate[job]
        if self.links is not None and self.links.join(job, placement, self.nodes):
            self._share_links(job, now)
        self._schedule_finish(job, now)

    def _schedule_finish(self, job: int, now: float) -> None:
        self.version[job] += 1
        rate = self.rate[job]
        end = now + (self.left[job] if rate == 1.0 else self.left[job] / rate) + self.compat.end_lag_s
        if self.limit_s is not None and not math.isnan(self.limit_s[job]):
            end = min(end, now + max(self.limit_s[job] - self.attained_s[job], 0.0))
        self._push(end, FINISH, job, self.version[job])

    def settle(self, job: int, now: float) -> None:
        elapsed = now - self.since[job]
        if elapsed > 0:
            work = elapsed * self.rate[job]
            self.left[job] -= work
            self.guess_left[job] -= work
            self.attained_s[job] += elapsed
            self.since_checkpoint[job] += elapsed
            gpus = self.held[job] * (0.5 if job in self.partner else 1.0)
            self.gpu_s[job] += elapsed * gpus
            if job in self.spanning:
                for node, count in self.where[job]:
                    self.pool_gpu_s[self.nodes.pool_of[node]] += elapsed * count
            else:
                self.pool_gpu_s[self.pool[job]] += elapsed * gpus
            self.since[job] = now

    def close(self, job: int, now: float) -> None:
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
        self.close(job, now)
        del self.running[job]
        self.version[job] += 1
        other = self.partner.pop(job, None)
        if other is None:
            self.nodes.give(self.where[job], job)
        else:
            self.settle(other, now)
            del self.partner[other]
            if self.held[job] < 1:
                self.nodes.slot_of[other] = self.nodes.slot_of.pop(job, self.nodes.slot_of.get(other, 0))
            self.set_rate(other, self.base_rate[other], now)
        if self.links is not None:
            touched = self.links.leave(job)
            if touched:
                self._apply_links(touched, now)

    def stop(self, job: int, now: float, *, extra_s: float, lost_s: float) -> None:
        self.settle(job, now)
        self.left[job] += extra_s
        self.guess_left[job] += extra_s
        self.lost_gpu_s[job] += lost_s * self.held[job]
        self._release(job, now)
        self.state[job] = WAITING
        self.waiting[job] = None
        if self.line is not None:
            self.line.stopped(job, now)

    def preempt(self, job: int, now: float) -> None:
        self.preemptions[job] += 1
        self.evicted_s[job] = now
        cost = self.overheads.preemption_s(self.num_gpus[job])
        self.stop(job, now, extra_s=cost, lost_s=cost)
        self.since_checkpoint[job] = 0.0

    def set_rate(self, job: int, rate: float, now: float) -> None:
        if rate != self.rate[job]:
            self.reservation = self.plan = None
            self.settle(job, now)
            self.rate[job] = rate
            self._schedule_finish(job, now)

    def _share_links(self, job: int, now: float) -> None:
        if self.links is not None:
            self._apply_links(self.links.touching(job), now)

    def _apply_links(self, touched: Iterable[int], now: float) -> None:
        if self.links is None:
            return
        for job, factor in self.links.factors(touched).items():
            if self.state[job] == RUNNING and job in self.running:
                self.set_rate(job, self.base_rate[job] * factor, now)

    def kind(self, job: int) -> tuple[object, ...]:
        """Jobs of one kind fit or fail together."""
        beside = self.nodes.per_gpu.get(job) if self.nodes.per_gpu else None
        speed = None if self.same_speed else self.jobs.workloads[job] if self.speed_by_kind else job
        return (self.num_gpus[job], self.jobs.gpu_types[job], beside, speed)

    def believed_s(self, job: int, placement: Placement) -> float:
        """How long the rest of a job is believed to take on these nodes."""
        if self.same_speed:
            return self.guess_left[job] if self.useful == 1.0 else self.guess_left[job] / self.useful
        return self.guess_left[job] / (self.rate_at(job, placement, self.num_gpus[job]) * self.useful)

    def shortest_s(self, job: int, pools: Sequence[int]) -> float:
        """How long the rest of a job is believed to take at its best on these pools."""
        if self.same_speed:
            return self.guess_left[job] if self.useful == 1.0 else self.guess_left[job] / self.useful
        widths = {pool: self.nodes.width_for(job, pool) for pool in pools}
        rates = [
            self.perf.rate(job, pool, self.num_gpus[job], NODE if self.num_gpus[job] <= width else 1)
            for pool, width in widths.items()
        ]
        return self.guess_left[job] / (max(rates) * self.useful)

    def believed_end(self, job: int, now: float) -> float:
        return max(self.since[job] + self.guess_left[job] / self.rate[job], now)

    def schedule(self) -> Schedule:
        jobs = self.jobs
        return jobs.scheduled(
            policy=self.policy.name,
            fleet=self.fleet,
            start_s=np.array(self.start_s),
            end_s=np.array(self.end_s),
            preemptions=np.array(self.preemptions, dtype=np.int64),
            failures=np.array(self.num_failed, dtype=np.int64),
            run_s=np.array(self.attained_s),
            gpu_s=np.array(self.gpu_s),
            lost_gpu_s=np.array(self.lost_gpu_s),
            rejected=self.rejected,
            killed=frozenset(self.killed),
            until_s=self.until_s if math.isfinite(self.until_s) else math.nan,
            pool_gpu_s=np.array(self.pool_gpu_s),
            occupations=self.occupations,
            num_passes=self.passes,
        )


def _public(request: Request) -> Request:
    """A request without its true duration, which no scheduler may see."""
    return replace(request, duration_s=None, workload=request.workload or "unknown")
