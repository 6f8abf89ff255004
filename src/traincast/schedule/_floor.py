"""What the event loop works on where Python runs it: jobs, kinds, lines and nodes, and what can happen to them beside
starting and ending (failures, shared links, dependencies, policies that are asked)."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from traincast.errors import InvalidInput
from traincast.schedule import _loop as loop
from traincast.schedule._estimators import Beliefs, Fixed
from traincast.schedule._hazards import GIVEN_UP, MOST_FAILURES, Danger
from traincast.schedule._jobs import JobTable, find_parents
from traincast.schedule._layout import Layout
from traincast.schedule._loop import DONE, EASY, PREEMPT, REJECTED, RUNNING, WAITING
from traincast.schedule._network import LinkSharing
from traincast.schedule._placement import NODE, NodeMap, Placement
from traincast.schedule._protocols import Conditions
from traincast.schedule._rules import Rule


class Floor:
    """The state of a run, the verbs of a policy, and what a policy may ask."""

    def __init__(self, table: JobTable, rule: Rule, given: Conditions, beliefs: Beliefs) -> None:
        self.jobs, self.given, self.beliefs, self.rule = table, given, beliefs, rule
        self.fleet, self.placer, self.perf = given.fleet, given.placer, given.perf
        self.overheads, self.compat = given.overheads, given.compat
        self.useful = given.overheads.useful_share
        self.layout = layout = Layout(table, rule, given, beliefs)
        self.nodes = layout.nodes
        self.kinds, self.same_speed = layout.kinds, layout.kinds.same_speed
        self.placed = layout.placed
        count = len(table)
        self.job = layout.job_records()
        self.kind, self.line, self.run = layout.kind_records(), layout.line_records(), [layout.run_record()]
        self.kind_pool, self.kind_rate = layout.kinds.pools, layout.kinds.rates
        self.limits = list(rule.limits)
        self.events: list[tuple[float, int]] = []
        self.run_keys: list[Any] = []
        self.run_jobs: list[int] = []
        self.tree, self.leaf_job = layout.tree.tolist(), layout.leaf_job.tolist()
        self._lay_room(count)
        self.submit_s: list[float] = table.submit_s.tolist()
        self.num_gpus: list[float] = table.num_gpus.tolist()
        self.estimate_s: list[float] = layout.estimate.tolist()
        self.learns = not isinstance(beliefs, Fixed)
        self.hazard_s = self.wake_s = loop.BIG
        self.rejected: dict[int, str] = {job: layout.refusal(job) for job in layout.impossible}
        self.killed: set[int] = set()
        self.later = self.nodes.copy()
        self._hook(count, given)

    def _lay_room(self, count: int) -> None:
        """Room for parts of nodes, for those who are chosen or must go, and for what a placement finds."""
        num_nodes, num_gpus = len(self.nodes.free), sum(self.nodes.up_in_pool)
        parts = num_gpus + 2 * count + num_nodes + 2 if self.placed else num_gpus + num_nodes + 2
        self.part_node, self.part_gpus = [0] * parts, [0.0 if self.placed else 0] * parts
        self.part_next = [*range(1, parts), -1]
        self.chosen, self.losers = [0] * (count + 1), [0] * (count + 1)
        self.spot_node, self.spot_gpus, self.kept_node, self.kept_gpus, self.hidden = (
            [0] * (num_nodes + 1) for _ in range(5)
        )
        self.gain, self.cleared = [0] * num_nodes, [0] * num_nodes
        self.levels = [0] * (max(self.nodes.width, default=0) + 1)
        self.quota: list[float] = [0] * len(self.nodes.room)
        self.pool_s = [0.0] * len(self.nodes.room)

    def _hook(self, count: int, given: Conditions) -> None:
        """What is kept beside the loop's own records where something else than starting and ending can happen."""
        parents = find_parents(self.jobs)
        self.num_parents = {job: len(before) for job, before in parents.items()}
        self.children: dict[int, list[int]] = {}
        for child, before in parents.items():
            for parent in before:
                self.children.setdefault(parent, []).append(child)
        self.asks = self.rule.asks
        self.links = None if given.network is None else LinkSharing(given.network, given.fleet)
        self.hooked = bool(
            self.asks or parents or given.network or given.failures or given.record or self.learns
        )  # fmt: skip
        self.danger = None
        if self.hooked:
            self.held = list(self.num_gpus)
            self.gpu_s, self.lost_gpu_s, self.opened, self.base_rate = ([0.0] * count for _ in range(4))
            self.since_checkpoint, self.num_failures, self.pool = [0.0] * count, [0] * count, [-1] * count
        self.ran = set(np.flatnonzero(~np.isnan(self.jobs.ran_s)).tolist())
        self.running: dict[int, None] = {}
        self.waiting: dict[int, None] = {}
        self.logged: list[tuple[int, float, float, Placement]] = []
        self.membership = 0
        if given.failures is not None:
            self.danger = Danger(given.failures, len(self.nodes.free))
            self.hazard_s = self.danger.next_s
        self.asker: Any = None
        if self.asks:
            from traincast.schedule._asked import Asker

            self.asker = Asker(self)
            for job in range(count):
                reason = self.asker.refusal(job)
                if reason is None and self.asker.refuses:
                    self.rejected.pop(job, None)
                    self.job[job].state = loop.FUTURE
                elif reason is not None:
                    self.rejected[job] = reason
                    self.job[job].state = REJECTED

    # What policies may ask.

    def is_running(self, job: int) -> bool:
        return bool(self.job[job].state == RUNNING)

    def remaining_s(self, job: int, now_s: float) -> float:
        """Estimated running time still needed; negative once the estimate is overrun."""
        record = self.job[job]
        if record.state == RUNNING:
            # Written so that the order of running jobs does not hang on rounding at each new moment.
            return float((record.since + record.guess / record.rate - now_s) * record.rate)
        return float(record.guess)

    def active(self) -> Sequence[int]:
        return sorted([*self.waiting, *self.running])

    def holding(self, job: int) -> tuple[int, int] | None:
        return (loop.pool_of_job(self, job), int(self.held[job])) if self.is_running(job) else None

    def speed(self, job: int, pool: int, num_gpus: int) -> float:
        width = self.nodes.width[pool]
        return self.perf.rate(job, pool, num_gpus, NODE if num_gpus <= width else 1)

    def bounds(self, job: int) -> tuple[int, int]:
        low, high = self.jobs.min_gpus[job], self.jobs.max_gpus[job]
        asked = max(int(self.num_gpus[job]), 1)
        return (1 if math.isnan(low) else int(low), asked if math.isnan(high) else int(high))

    def pools(self, job: int) -> tuple[int, ...]:
        """The pools that can run the job, fastest first."""
        return self.kinds.pools_of(self.job[job].kind)

    def where(self, job: int) -> Placement:
        """The nodes that a running job holds."""
        found = []
        part = self.job[job].head
        while part >= 0:
            found.append((self.part_node[part], self.part_gpus[part]))
            part = self.part_next[part]
        return tuple(found)

    def believed_s(self, job: int, placement: Placement) -> float:
        """How long the rest of a job is believed to take on these nodes."""
        return float(self.job[job].guess / self.rate_of(job, placement))

    def believed_end(self, job: int, now: float) -> float:
        record = self.job[job]
        return max(float(record.since + record.guess / record.rate), now)

    def interval_s(self, job: int) -> tuple[float, float] | None:
        """Limits of the 90 % interval of a job's run time, where a forecast gave one."""
        return self.beliefs.interval_s(job) if isinstance(self.beliefs, Fixed) else None

    # Nodes by a rule of placement.

    def find_on(self, nodes: NodeMap, job: int, pools: Sequence[int] | None = None) -> Placement:
        """A place on these nodes in the first pool, fastest first, that has one; empty if there is none."""
        gpus = self.num_gpus[job]
        for pool in self.pools(job) if pools is None else pools:
            placement = self.placer.place(nodes, gpus, pool) if gpus <= nodes.room[pool] else None
            if placement and (self.same_speed or self.rate_of(job, placement) > 0):
                return placement
        return ()

    def find(self, job: int) -> Placement | None:
        return self.find_on(self.nodes, job) or None

    def take_placement(self, job: int, placement: Placement) -> None:
        self.nodes.take(placement)
        for node, count in reversed(placement):
            loop.add_part(self, job, node, count)

    def rate_of(self, job: int, placement: Placement, num_gpus: float | None = None) -> float:
        if self.same_speed:
            return self.useful
        count = self.num_gpus[job] if num_gpus is None else num_gpus
        pool = self.nodes.pool_of[placement[0][0]]
        return self.perf.rate(job, pool, count, self.nodes.locality(placement)) * self.useful

    def sort_running(self, now: float) -> None:
        for job in self.run_jobs:
            self.job[job].position = loop.run_key(self, job, now)
        self.run_jobs.sort(key=lambda job: (self.job[job].position, job))
        self.run_keys[:] = [self.job[job].position for job in self.run_jobs]

    def keep_placement(self, later: NodeMap, placement: Placement) -> None:
        """What a reserved job leaves of its nodes."""
        later.take(placement)
        self.run[0].spots = len(placement)
        for spot, (node, _) in enumerate(placement):
            self.kept_node[spot], self.kept_gpus[spot] = node, later.free[node]

    # What the loop tells.

    def ask(self, now: float) -> None:
        self.asker.look(now)

    def order_anew(self, now: float) -> None:
        if self.asker is not None:
            self.asker.order_anew(now)

    def arrived(self, job: int, now: float) -> None:
        if not self.num_parents.get(job):
            self._enter(job, now)

    def _enter(self, job: int, now: float) -> None:
        record = self.job[job]
        if self.learns:
            self.estimate_s[job] = record.guess = self.beliefs.estimate_s(job)
        if self.rule.key is not None:
            record.key = self.rule.key(self, job, now)
        if self.hooked:
            self.waiting[job] = None
            self.membership += 1
            if self.asker is not None:
                record.state = WAITING
                self.asker.join(job, now)
        if not (job in self.ran and self._goes_on(job, now)):
            loop.join(self, job)

    def _goes_on(self, job: int, now: float) -> bool:
        """A job that runs already when the run begins goes on before anybody is served, if the fleet has room for it."""
        if self.asker is not None and self.asker.refuses:  # the policy keeps its own accounts
            return False
        place = loop.find(self, self.nodes, job)
        if place:
            loop.begin(self, job, place, now)
        return bool(place)

    def free_children(self, job: int, now: float) -> None:
        """Whatever became of it, nobody waits for this job any more."""
        for child in self.children.get(job, ()):
            self.num_parents[child] -= 1
            if not self.num_parents[child] and child < self.run[0].cursor and self.job[child].state != REJECTED:
                self._enter(child, now)

    def began(self, job: int, now: float) -> None:
        record = self.job[job]
        del self.waiting[job]
        self.running[job] = None
        self.opened[job] = now
        self.pool[job] = loop.pool_of_job(self, job)
        self.base_rate[job] = record.rate
        if self.asker is not None:
            self.asker.started(job, now)
        if self.links is not None and self.links.join(job, self.where(job), self.nodes):
            self._apply_links({job}, now)

    def ended_one(self, job: int, now: float) -> None:
        record = self.job[job]
        if self.asker is not None:
            self.asker.leave(job, now)
        self._release(job, now)
        record.state = DONE
        self.membership += 1
        self.beliefs.learn(job, record.attained)
        self.free_children(job, now)

    def pushed_out(self, job: int, now: float) -> None:
        self.lost_gpu_s[job] += self.kind[self.job[job].kind].cost * self.held[job]
        self.since_checkpoint[job] = 0.0
        self._stopped(job, now)

    def _stopped(self, job: int, now: float) -> None:
        self._release(job, now)
        self.job[job].state = WAITING
        self.waiting[job] = None
        if self.asker is not None:
            self.asker.stopped(job, now)
        loop.join(self, job)

    def log_run(self, job: int, now: float) -> None:
        if self.given.record and now > self.opened[job]:
            self.logged.append((job, self.opened[job], now, self.where(job)))

    def charge(self, job: int, elapsed: float) -> None:
        """Count what a job holds, which need not be what it asked for and may lie in several pools."""
        held = self.held[job]
        self.gpu_s[job] += elapsed * held
        pool_of, where = self.nodes.pool_of, self.where(job)
        first = pool_of[where[0][0]]
        if pool_of[where[-1][0]] == first:
            self.pool_s[first] += elapsed * held
        else:
            for node, count in where:
                self.pool_s[pool_of[node]] += elapsed * count

    # Verbs of policies that look by themselves.

    def start(self, job: int, placement: Placement, now: float) -> None:
        loop.leave_line(self, job)
        self.take_placement(job, placement)
        loop.run_on(self, job, self.rate_of(job, placement, self.held[job]), now)
        self.began(job, now)

    def settle(self, job: int, now: float) -> None:
        """Count what a running job has done until now."""
        elapsed = now - self.job[job].since
        if elapsed > 0:
            loop.settle(self, job, now)
            self.job[job].since = now
            self.since_checkpoint[job] += elapsed

    def stop(self, job: int, now: float, *, extra_s: float, lost_s: float) -> None:
        self.log_run(job, now)
        self.settle(job, now)
        record = self.job[job]
        record.left += extra_s
        record.guess += extra_s
        record.expect = -1.0
        self.lost_gpu_s[job] += lost_s * self.held[job]
        self._stopped(job, now)

    def preempt(self, job: int, now: float) -> None:
        loop.push_out(self, job, now)

    def cancel(self, job: int, now: float) -> None:
        """End a running job before its work is done."""
        loop.end_one(self, job, now)
        self.killed.add(job)

    def _release(self, job: int, now: float) -> None:
        """Its nodes are free for others; those who shared something with it go on faster."""
        del self.running[job]
        loop.give(self, self.nodes, job)
        loop.forget_parts(self, job)
        if self.links is not None:
            self._apply_links(self.links.leave(job), now)

    def set_rate(self, job: int, rate: float, now: float) -> None:
        record = self.job[job]
        if rate == record.rate:
            return
        run = self.run[0]
        run.reserved = -1
        run.version += 1
        if self.asker is not None:
            self.asker.plan = None
        self.settle(job, now)
        record.rate = rate
        if run.moving:
            record.key = record.since + record.guess / rate
        elif run.fit == EASY:
            loop.remove(self, job)
            record.position = loop.run_key(self, job, now)
            loop.insert(self, job)
        loop.expect_end(self, job, now)

    def _apply_links(self, touched: Iterable[int], now: float) -> None:
        if self.links is None or not touched:
            return
        for job, factor in self.links.factors(touched).items():
            if self.job[job].expect >= 0.0:
                self.set_rate(job, self.base_rate[job] * factor, now)

    # Failures.

    def meet_hazards(self, now: float) -> None:
        """Nodes that fail and nodes that are repaired; reservations are made anew."""
        danger = self.danger
        if danger is None:
            return
        run = self.run[0]
        while danger.next_s == now:
            run.reserved = -1
            run.version += 1
            self.membership += 1
            node, breaks = danger.meet(now)
            if breaks:
                self._break_node(node, now)
            else:
                self.nodes.repair(node)
        self.hazard_s = danger.next_s

    def _break_node(self, node: int, now: float) -> None:
        struck = [job for job in sorted(self.running) if any(held == node for held, _ in self.where(job))]
        for job in struck:
            self.job[job].expect = -1.0
        for job in struck:
            self._interrupt(job, now)
        self.nodes.fail(node)

    def _interrupt(self, job: int, now: float) -> None:
        """What was computed since the last checkpoint is computed again; after too many failures the job is given up."""
        record = self.job[job]
        every_s = self.overheads.checkpoint_every_s or 0.0
        restart_s = self.overheads.restart_s
        self.log_run(job, now)
        lost = self.since_checkpoint[job] + now - record.since
        loop.settle(self, job, now)
        if every_s > 0.0 and lost > 0.0:
            lost = lost % every_s
        redo = lost * record.rate + restart_s
        record.left += redo
        record.guess += redo
        record.expect = record.sinks = -1.0
        if self.run[0].fit in (EASY, PREEMPT):
            loop.remove(self, job)
        # Not this moment, which would mean that the job was pushed out by another one.
        record.since = -1.0
        self.since_checkpoint[job] = 0.0
        self.num_failures[job] += 1
        self.lost_gpu_s[job] += (lost + restart_s) * self.held[job]
        if self.num_failures[job] < MOST_FAILURES:
            self._stopped(job, now)
        else:
            self._give_up(job, now)

    def _give_up(self, job: int, now: float) -> None:
        """A job longer than nodes live, without checkpoints, would run for ever."""
        self._release(job, now)
        self.job[job].state = WAITING
        if self.asker is not None:
            self.asker.stopped(job, now)
            self.asker.leave(job, now)
        self.job[job].state = REJECTED
        self.rejected[job] = GIVEN_UP
        self.membership += 1
        self.run[0].ended += 1
        self.free_children(job, now)


def check_durations(jobs: JobTable) -> None:
    if np.isnan(jobs.duration_s).any():
        job = int(np.flatnonzero(np.isnan(jobs.duration_s))[0])
        raise InvalidInput(f"job {jobs.job_ids[job]} has no duration; name its workload and pass --forecasts")
