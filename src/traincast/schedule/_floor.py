"""What policies written as objects see and do when the event loop asks them: who waits, who runs where, starting and stopping."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from traincast.errors import InvalidInput
from traincast.schedule._danger import Danger
from traincast.schedule._estimators import Ranged
from traincast.schedule._jobs import JobTable, find_parents, find_per_gpu
from traincast.schedule._kernels import heaps, loop, tables
from traincast.schedule._kernels.links import Promises
from traincast.schedule._kernels.nodes import Kinds, Nodes, add_part, forget_parts
from traincast.schedule._kernels.order import Running
from traincast.schedule._kernels.shadow import Shadow
from traincast.schedule._layout import State, lay_log, lay_parents
from traincast.schedule._lines import ServingLine
from traincast.schedule._network import LinkSharing
from traincast.schedule._placement import NODE, NodeMap, Placement
from traincast.schedule._policies import Policy
from traincast.schedule._protocols import Conditions, Packing, RoundPolicy
from traincast.schedule._records import Runs, empty_log
from traincast.schedule._speeds import SameSpeed, is_by_kind
from traincast.spec import Request, RunningJob, Snapshot

if TYPE_CHECKING:
    from traincast.schedule._reservations import Plan, Reservation

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


class Loop(NamedTuple):
    """What the event loop is called with where a policy is called."""

    rules: tables.Rules
    state: State


def _as_list(array: Any) -> Any:
    return array.tolist()


def _leave_out(kind: Any, **known: Any) -> Any:
    """A table with some of its columns; the loop looks at no other where a policy is called."""
    return kind(**{name: known.get(name, []) for name in kind._fields})


def _lay_out_loop(jobs: JobTable, given: Conditions, nodes: NodeMap) -> Loop:
    count, num_nodes = len(jobs), len(nodes.free)
    parts = 2 * sum(nodes.up_in_pool) + 2 * count + num_nodes + 1
    rules = _leave_out(
        tables.Rules, fit=tables.CALLED, one_by_one=int(not given.compat.coalesce), until_s=float(given.until_s),
        counts=[0] * 8, clock=[0.0, tables.BIG],
    )  # fmt: skip
    gpus: list[float] = jobs.num_gpus.tolist()
    parents, child_first, children = lay_parents(find_parents(jobs), count, _as_list)
    limited = given.kill_at_limit
    columns = _leave_out(
        tables.Jobs, submit=jobs.submit_s.tolist(), gpus=gpus, left=jobs.duration_s.tolist(), guess=[math.nan] * count,
        limit=np.nan_to_num(jobs.limit_s, nan=math.inf).tolist() if limited else [math.inf] * count,
        start=[-1.0] * count, end=[math.nan] * count, since=[0.0] * count, attained=[0.0] * count, rate=[0.0] * count,
        killed=[0] * count, parents=parents, child_first=child_first, children=children,
        pool_s=[0.0] * len(given.fleet.pools), opened=[0.0] * count, held=list(gpus), charged=list(gpus),
        gpu_s=[0.0] * count,
    )  # fmt: skip
    room = 4 * (count + num_nodes) + 8
    news = tables.News(size=[0], what=[0] * room, who=[0] * room)
    state = State(
        jobs=columns,
        nodes=_leave_out(
            Nodes, pool_of=nodes.pool_of, head=[-1] * count, part_node=[0] * parts, part_gpus=[0.0] * parts,
            part_next=[*range(1, parts), -1], part_free=[0],
        ),
        kinds=_leave_out(Kinds),
        beliefs=_leave_out(tables.Beliefs, wanted=0),
        lines=_leave_out(loop.Lines, running=_leave_out(Running, losers=[0] * count), news=news),
        promises=_leave_out(Promises, shadow=_leave_out(Shadow, state=[0, 0])),
        events=tables.Events(
            keys=[0.0] * room, tokens=[0] * room, size=[0], expect=[-1.0] * (2 * count + 2),
            moves=_leave_out(tables.Moves, size=[0]),
        ),
        log=lay_log(_as_list, count, parts, wanted=given.record),
    )  # fmt: skip
    return Loop(rules=rules, state=state)


class Floor:
    """A view of the event loop's columns (plain lists, because policies that are called run beside the interpreted loop), the
    nodes as rules of placement see them, and the verbs of a policy. Time, ends, limits, failures, dependencies, accounts and the
    log are the loop's."""

    def __init__(self, jobs: JobTable, policy: Policy | RoundPolicy, given: Conditions) -> None:
        by_count = given.placer.name == "count"
        self.jobs = jobs
        self.policy = policy
        self.fleet = fleet = given.fleet
        self.placer = given.placer
        self.perf = given.perf
        self.same_speed = isinstance(given.perf, SameSpeed)
        self.speed_by_kind = is_by_kind(given.perf)
        self.estimator = given.estimator.start(jobs)
        self.overheads = given.overheads
        self.useful = given.overheads.useful_share
        self.compat = given.compat
        self.nodes = _lay_out_nodes(jobs, given, by_count=by_count)
        self.submit_s: list[float] = jobs.submit_s.tolist()
        self.num_gpus: list[float] = jobs.num_gpus.tolist()
        # Whole GPUs of one node need no place, so who runs is decided by count alone.
        one_node = all(pool.num_nodes <= 1 for pool in fleet.pools)
        self.counts_only = (by_count or one_node) and not self.nodes.per_gpu and not (jobs.num_gpus < 1).any()
        self._lay_out_columns(len(jobs))
        self.killed: set[int] = set()
        self.partner: dict[int, int] = {}
        self.running: dict[int, None] = {}
        self.waiting: dict[int, None] = {}
        self.requests: dict[int, Request] = {}
        self.changes = 0
        self.wake_s = math.inf
        self.tick_s = math.inf
        self.membership = 0
        self.allocated_for = -1
        self.pools_for: dict[tuple[object, ...], tuple[int, ...]] = {}
        self.links = None if given.network is None else LinkSharing(given.network, fleet)
        self.danger = Danger(given.failures, jobs, self.nodes, overheads=given.overheads, shell=_as_list)
        self.loop = _lay_out_loop(jobs, given, self.nodes)
        columns = self.loop.state.jobs
        self.left: list[float] = columns.left
        self.guess_left: list[float] = columns.guess
        self.attained_s: list[float] = columns.attained
        self.since: list[float] = columns.since
        self.opened: list[float] = columns.opened
        self.rate: list[float] = columns.rate
        self.held: list[float] = columns.held
        self.kept: list[Runs] = []
        self.rounds = policy if isinstance(policy, RoundPolicy) else None
        self.queueing: Policy | None = None if isinstance(policy, RoundPolicy) else policy
        self.line = None if self.queueing is None else self.queueing.line(self)
        self.packing = policy if isinstance(policy, Packing) else None
        self.reservation: Reservation | None = None
        self.plan: Plan | None = None
        self.refused = {job: reason for job in range(len(jobs)) if (reason := self._refusal(job)) is not None}
        for job in self.refused:
            columns.start[job] = -3.0

    def _lay_out_columns(self, count: int) -> None:
        """What the loop has no column for, one entry per job."""
        self.estimate_s = [math.nan] * count
        self.state = [FUTURE] * count
        self.base_rate = [0.0] * count
        self.believed_s_at = [0.0] * count
        self.where: list[Placement] = [()] * count
        self.pool = [-1] * count
        self.pools_of: list[tuple[int, ...] | None] = [None] * count
        self.lost_gpu_s = [0.0] * count
        self.preemptions = [0] * count
        self.evicted_s = [-1.0] * count

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
            waiting=tuple(map(self._request, self.waiting)),
            running=tuple(
                RunningJob(
                    request=self._request(job),
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

    def _request(self, job: int) -> Request:
        """A request without its true duration, which no scheduler may see."""
        known = self.requests.get(job)
        if known is None:
            request = self.jobs.request(job)
            known = replace(request, duration_s=None, workload=request.workload or "unknown")
            self.requests[job] = known
        return known

    def _intervals(self) -> dict[str, tuple[float, float]]:
        beliefs = self.estimator
        if not isinstance(beliefs, Ranged):
            return {}
        found = ((job, beliefs.interval_s(job)) for job in (*self.waiting, *self.running))
        return {self.jobs.job_ids[job]: limits for job, limits in found if limits is not None}

    # What the loop tells.

    def hear(self, now: float) -> None:
        """Take notice of what has happened at this moment, in the order in which it did."""
        news = self.loop.state.lines.news
        for at in range(news.size[0]):
            what, who = news.what[at], news.who[at]
            if what == tables.JOINED:
                self._joined(who, now)
            elif what == tables.ENDED_NOW:
                self._ended(who, now)
            elif what == tables.INTERRUPTED:
                self._stopped(who, now)
            elif what == tables.GIVEN_UP:
                self._given_up(who, now)
            else:
                self.reservation = None
                self.membership += 1
                (self.nodes.fail if what == tables.BROKEN else self.nodes.repair)(who)
        news.size[0] = 0

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

    def _joined(self, job: int, now: float) -> None:
        self.estimate_s[job] = self.guess_left[job] = self.estimator.estimate_s(job)
        self.state[job] = WAITING
        self.waiting[job] = None
        self.membership += 1
        if self.line is not None:
            self.line.join(job, now)

    def _ended(self, job: int, now: float) -> None:
        if self.believed_s_at[job] > now:
            self.reservation = None
        if self.line is not None:
            self.line.leave(job, now)
        self._release(job, now)
        self.state[job] = DONE
        self.membership += 1
        self.estimator.learn(job, self.attained_s[job])

    def _stopped(self, job: int, now: float) -> None:
        self._release(job, now)
        self.state[job] = WAITING
        self.waiting[job] = None
        if self.line is not None:
            self.line.stopped(job, now)

    def _given_up(self, job: int, now: float) -> None:
        """A job longer than nodes live, without checkpoints, would run for ever."""
        del self.waiting[job]
        if self.line is not None:
            self.line.leave(job, now)
        self.state[job] = REJECTED
        self.membership += 1

    # Starting and stopping.

    def _is_live(self, job: int) -> bool:
        """Whether the loop still expects the end of this job, which may have stopped at this very moment."""
        return bool(self.loop.state.events.expect[2 * job] >= 0.0)

    def cancel(self, job: int, now: float) -> None:
        """End a running job before its work is done."""
        state = self.loop.state
        state.events.expect[2 * job] = -1.0
        self._make_room()
        loop.end_one(
            job, now, self.loop.rules, state.jobs, state.nodes, state.kinds, state.beliefs, state.lines, state.promises,
            state.events, state.log,
        )  # fmt: skip
        self.hear(now)
        self.killed.add(job)

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
        state = self.loop.state
        for node, count in reversed(placement):
            add_part(job, node, count, state.nodes)  # type: ignore[arg-type]
        if state.jobs.start[job] < 0.0:
            state.jobs.start[job] = now
        self.state[job] = RUNNING
        del self.waiting[job]
        self.running[job] = None
        self.where[job] = placement
        self.pool[job] = self.nodes.pool_of[placement[0][0]]
        self.since[job] = self.opened[job] = now
        state.jobs.charged[job] = self.held[job]
        self.base_rate[job] = self.rate_at(job, placement, self.held[job]) * self.useful
        self.rate[job] = self.base_rate[job]
        self._expect_end(job, now)
        if self.links is not None and self.links.join(job, placement, self.nodes):
            self._share_links(job, now)

    def _expect_end(self, job: int, now: float) -> None:
        self.changes += 1
        rate, state = self.rate[job], self.loop.state
        end = now + self.left[job] / rate + self.compat.end_lag_s
        end = min(end, now + max(state.jobs.limit[job] - self.attained_s[job], 0.0))
        self.believed_s_at[job] = self.since[job] + self.guess_left[job] / rate
        events = state.events
        if events.size[0] > len(events.keys) - 2:
            heaps.forget_stale(events.keys, events.tokens, events.size, events.expect)
        events.expect[2 * job] = end
        heaps.push(events.keys, events.tokens, 0, events.size, 0, end, 2 * job)

    def settle(self, job: int, now: float) -> None:
        """Count what a running job has done until now."""
        elapsed = now - self.since[job]
        if elapsed > 0:
            tables.settle(job, now, self.loop.state.jobs, self.loop.state.nodes)
            self.since[job] = now
            if self.danger.hazards.wanted:
                self.danger.hazards.since_checkpoint[job] += elapsed

    def share_gpus(self, job: int, other: int) -> None:
        """Two jobs on the same GPUs are charged for half of them each."""
        self.partner[job], self.partner[other] = other, job
        for one in (job, other):
            self.loop.state.jobs.charged[one] = 0.5 * self.held[one]

    def _release(self, job: int, now: float) -> None:
        """Its nodes are free for others; those who shared something with it go on faster."""
        del self.running[job]
        self.changes += 1
        other = self.partner.pop(job, None)
        if other is None:
            self.nodes.give(self.where[job], job)
        else:
            del self.partner[other]
            if self.held[job] < 1:
                self.nodes.slot_of[other] = self.nodes.slot_of.pop(job, self.nodes.slot_of.get(other, 0))
            if self._is_live(other):
                self.settle(other, now)
                self.loop.state.jobs.charged[other] = self.held[other]
                self.set_rate(other, self.base_rate[other], now)
        if self.links is not None:
            touched = self.links.leave(job)
            if touched:
                self._apply_links(touched, now)

    def stop(self, job: int, now: float, *, extra_s: float, lost_s: float) -> None:
        state = self.loop.state
        self._make_room()
        tables.log_run(job, now, self.loop.rules.counts, state.jobs, state.nodes, state.log)
        self.settle(job, now)
        self.left[job] += extra_s
        self.guess_left[job] += extra_s
        self.lost_gpu_s[job] += lost_s * self.held[job]
        state.events.expect[2 * job] = -1.0
        forget_parts(job, state.nodes)
        self._stopped(job, now)

    def _make_room(self) -> None:
        state, counts = self.loop.state, self.loop.rules.counts
        if tables.is_log_full(1, counts, state.nodes, state.log):
            self.keep_log()

    def keep_log(self) -> None:
        self.kept.append(empty_log(self.loop.state.log, self.loop.rules.counts))

    def preempt(self, job: int, now: float) -> None:
        self.preemptions[job] += 1
        self.evicted_s[job] = now
        cost = self.overheads.preemption_s(self.num_gpus[job])
        self.stop(job, now, extra_s=cost, lost_s=cost)
        if self.danger.hazards.wanted:
            self.danger.hazards.since_checkpoint[job] = 0.0

    def set_rate(self, job: int, rate: float, now: float) -> None:
        if rate != self.rate[job]:
            self.reservation = self.plan = None
            self.settle(job, now)
            self.rate[job] = rate
            self._expect_end(job, now)

    def _share_links(self, job: int, now: float) -> None:
        if self.links is not None:
            self._apply_links(self.links.touching(job), now)

    def _apply_links(self, touched: Iterable[int], now: float) -> None:
        if self.links is None:
            return
        for job, factor in self.links.factors(touched).items():
            if self._is_live(job):
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
