"""Slurm's scheduler on the simulated cluster: the main look at every change, backfill at its interval, preemption by rank."""

import bisect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np

from traincast.noun import noun
from traincast.schedule._floor import Floor
from traincast.schedule._jobs import Ints, JobTable
from traincast.schedule._lines import ServingLine
from traincast.schedule._placement import Placement
from traincast.schedule._slurm.priority import Priorities
from traincast.schedule._slurm.site import Partition, SlurmSite, plain_site
from traincast.schedule._slurm.slots import KINDS, Asks, Board
from traincast.spec import Fleet


@dataclass(frozen=True, slots=True)
class Slurm:
    """The rules of one site as a policy."""

    site: SlurmSite
    name: str = "slurm"
    fit: str = "slurm"

    uses_estimates: ClassVar[bool] = True

    @property
    def preemptive(self) -> bool:
        return self.site.preempt_by != "none"

    def line(self, floor: Floor) -> "SlurmLine":
        return SlurmLine(floor, self.site)


class SlurmLine(ServingLine):
    """Waiting jobs by partition tier and priority; the engine calls `serve` after every change and at `wakeup_s`."""

    def __init__(self, floor: Floor, site: SlurmSite) -> None:
        self._floor, self._site, jobs = floor, site, floor.jobs
        self._refused: dict[int, str] = {}
        self._parts = [self._find_partition(job) for job in range(len(jobs))]
        shape = _shape_jobs(jobs, site, self._parts)
        self._lay_out(jobs, shape)
        self._priorities = Priorities(site, jobs, self._parts, shape.nodes)
        self._waiting: list[tuple[float, float, float, int]] = []
        self._entry_of: dict[int, tuple[float, float, float, int]] = {}
        self._charged_s: dict[int, float] = {}
        self._arrays = [name.partition("_")[0] if "_" in name else "" for name in jobs.job_ids]
        self._looked_s = -math.inf
        self._changed = False

    def _find_partition(self, job: int) -> Partition:
        found = self._site.partition_of(self._floor.jobs.partitions[job])
        if found is None:
            self._refused[job] = f"slurm.conf has no partition {self._floor.jobs.partitions[job]!r}"
            return self._site.partitions[0]
        return found

    def _lay_out(self, jobs: JobTable, shape: "_Shape") -> None:
        site = self._site
        row_of = {part.name: row for row, part in enumerate(site.partitions)}
        self._asks = Asks(
            nodes=shape.nodes,
            each=shape.each,
            gpus=np.ceil(jobs.num_gpus).astype(np.int64),  # it knows whole GPUs only
            exclusive=shape.exclusive,
            group=shape.group,
            lasts=np.zeros(len(jobs)),
            partition=np.array([row_of[part.name] for part in self._parts], dtype=np.int64),
            preempts=np.array([self._may_preempt(job) for job in range(len(jobs))], dtype=np.int64),
        )
        self._board = Board(_sizes(site), shape.masks, site.rank, self._asks, fullest_first=site.fullest_first)
        self._part_nodes = np.stack([part.nodes for part in site.partitions])
        self._refused |= shape.refused

    def _may_preempt(self, job: int) -> int:
        site = self._site
        if site.preempt_by == "tier":
            return int(self._parts[job].tier > min(part.tier for part in site.partitions))
        rank = site.qos.get(self._floor.jobs.qos[job] or "")
        return int(site.preempt_by == "qos" and rank is not None and bool(rank.preempts))

    # What the engine asks and tells.

    def refusal(self, job: int) -> str | None:
        """Why the site would never run this job; None if it would."""
        return self._refused.get(job)

    def join(self, job: int, now_s: float) -> None:
        self._asks.lasts[job] = max(float(self._floor.job[job].guess), 1.0)
        self._insert(job)
        self._changed = True

    def leave(self, job: int, now_s: float) -> None:
        self._changed = True
        if self._floor.is_running(job):
            self._give_back(job, now_s)
        else:
            self._drop(job)

    def started(self, job: int, now_s: float) -> None:
        self._charged_s[job] = now_s

    def stopped(self, job: int, now_s: float) -> None:
        """A node failed under it: it is back in the queue."""
        self._give_back(job, now_s)
        self.join(job, now_s)

    def _insert(self, job: int) -> None:
        entry = (-float(self._parts[job].tier), -self._priorities.of(job), self._floor.submit_s[job], job)
        self._entry_of[job] = entry
        bisect.insort(self._waiting, entry)

    def _drop(self, job: int) -> None:
        entry = self._entry_of.pop(job, None)
        if entry is not None:
            del self._waiting[bisect.bisect_left(self._waiting, entry)]

    def _give_back(self, job: int, now_s: float) -> None:
        self._board.hold(job, 1)
        self._charge(job, now_s)
        del self._charged_s[job]

    def _charge(self, job: int, now_s: float) -> None:
        self._priorities.charge(job, now_s - self._charged_s[job])
        self._charged_s[job] = now_s

    # Looking at the queue.

    def wakeup_s(self, now_s: float) -> float:
        """The next backfill if anything has changed since the last, and the next recalculation, while somebody waits."""
        if not self._waiting:
            return math.inf
        cycle = self._site.cycle
        soonest = math.inf
        if self._changed and cycle.backfill:
            soonest = max(self._looked_s + cycle.interval_s, math.nextafter(now_s, math.inf))
        weights = self._site.weights
        if not weights.basic and (weights.age or weights.fair_share):
            soonest = min(soonest, (now_s // weights.period_s + 1) * weights.period_s)
        return soonest

    def serve(self, now_s: float) -> None:
        self._recalculate(now_s)
        self._mark_nodes()
        self._look(now_s)
        cycle = self._site.cycle
        if cycle.backfill and self._changed and self._waiting and now_s >= self._looked_s + cycle.interval_s:
            self._looked_s = now_s
            self._changed = False
            self._mark_nodes()
            self._backfill(now_s)

    def _recalculate(self, now_s: float) -> None:
        weights = self._site.weights
        if weights.basic or now_s // weights.period_s == self._priorities.calculated_s // weights.period_s:
            return
        for job in self._charged_s:
            self._charge(job, now_s)
        self._priorities.recalculate(now_s)
        jobs = [entry[3] for entry in self._waiting]
        self._waiting, before = [], self._waiting
        for job in jobs:
            self._insert(job)
        self._changed |= self._waiting != before

    def _mark_nodes(self) -> None:
        self._board.blocked[:] = False
        self._board.blocked[list(self._floor.nodes.down)] = True

    def _eligible(self, most: int) -> list[int]:
        """The first jobs in line that no limit of their QOS or their array holds back."""
        allowed = (job for *_, job in self._waiting if self._within_limits(job))
        return list(islice(allowed, most))

    def _within_limits(self, job: int) -> bool:
        jobs, running = self._floor.jobs, self._floor.running
        throttle = float(jobs.array_limit[job])
        array = self._arrays[job]
        if array and not math.isnan(throttle) and sum(self._arrays[other] == array for other in running) >= throttle:
            return False
        for name in {jobs.qos[job], self._parts[job].qos}:
            rules = self._site.qos.get(name or "")
            if rules is None or rules.gpus_in_all == rules.gpus_per_user == rules.jobs_per_user == math.inf:
                continue
            beside = [other for other in running if name in (jobs.qos[other], self._parts[other].qos)]
            own = [other for other in beside if jobs.users[other] == jobs.users[job]]
            need = float(jobs.num_gpus[job])
            if need + sum(self._floor.held[other] for other in beside) > rules.gpus_in_all:
                return False
            if need + sum(self._floor.held[other] for other in own) > rules.gpus_per_user:
                return False
            if len(own) >= rules.jobs_per_user:
                return False
        return True

    def _look(self, now_s: float) -> None:
        """The main scheduler: in order; what does not fit blocks its partition, unless others can be preempted for it."""
        queue = self._eligible(self._site.cycle.queue_depth)
        failed: set[int] = set()
        at = 0
        while at < len(queue):
            started, at = self._board.run_main(now_s, at, queue, failed, self._part_nodes)
            self._begin(started, now_s)
            if at < len(queue) and not self._preempt_for(queue[at], now_s):
                self._board.block(int(self._asks.partition[queue[at]]), failed, self._part_nodes)
                at += 1

    def _backfill(self, now_s: float) -> None:
        cycle, floor = self._site.cycle, self._floor
        queue = self._eligible(cycle.max_job_test)
        ends = sorted((floor.believed_end(job, now_s), job) for job in floor.running)
        self._begin(self._board.run_backfill(now_s, now_s + cycle.window_s, cycle.resolution_s, queue, ends), now_s)

    def _begin(self, jobs: Sequence[int], now_s: float) -> None:
        for job in jobs:
            if self._within_limits(job):  # others may have started since it was looked at
                self._board.hold(job, -1)
                self._start(job, now_s)

    def _start(self, job: int, now_s: float) -> None:
        self._drop(job)
        placement = self._placement(job)
        self._floor.held[job] = sum(count for _, count in placement)
        self._floor.start(job, placement, now_s)
        self.started(job, now_s)

    def _placement(self, job: int) -> Placement:
        nodes, amounts = self._board.held[job]
        return tuple(
            (node, float(gpus)) for node, gpus in zip(nodes.tolist(), amounts[:, 0].tolist(), strict=True) if gpus > 0
        )

    # Preemption.

    def _victims(self, job: int) -> list[int]:
        """Running jobs that this one may preempt, the lowest rank and the latest start first."""
        site, jobs, floor = self._site, self._floor.jobs, self._floor
        if site.preempt_by == "tier":
            below = [other for other in floor.running if self._parts[other].tier < self._parts[job].tier]
            return sorted(below, key=lambda other: (self._parts[other].tier, -floor.opened[other], other))
        preempts = site.qos[jobs.qos[job] or ""].preempts
        below = [other for other in floor.running if (jobs.qos[other] or "") in preempts]
        ranks = {name: site.qos[name].priority for name in preempts if name in site.qos}
        return sorted(below, key=lambda other: (ranks.get(jobs.qos[other] or "", 0.0), -floor.opened[other], other))

    def _mode(self, job: int) -> str:
        rank = self._site.qos.get(self._floor.jobs.qos[job] or "")
        own = rank.preempt_mode if rank is not None and self._site.preempt_by == "qos" else None
        return own or self._parts[job].preempt_mode or self._site.preempt_mode

    def _preempt_for(self, job: int, now_s: float) -> bool:
        """Free victims until the job fits, then spare those whose leaving did not help."""
        victims = [other for other in self._victims(job) if self._mode(other) != "OFF"]
        freed: list[int] = []
        board = self._board
        fits = False
        for victim in victims:
            board.hold(victim, 1)
            freed.append(victim)
            fits = self._fits_now(job, now_s)
            if fits:
                break
        for victim in list(freed[:-1]) if fits else list(freed):
            board.hold(victim, -1)
            if fits and not self._fits_now(job, now_s):
                board.hold(victim, 1)
            else:
                freed.remove(victim)
        for victim in freed:
            board.hold(victim, -1)
            self._push_out(victim, now_s)
        return fits

    def _fits_now(self, job: int, now_s: float) -> bool:
        self._board.lay_now(now_s)
        return self._board.gather(job, 0, now_s) is not None

    def _push_out(self, job: int, now_s: float) -> None:
        mode, floor = self._mode(job), self._floor
        if mode == "CANCEL":
            floor.cancel(job, now_s)
            return
        floor.job[job].preemptions += 1
        cost = floor.overheads.preemption_s(floor.num_gpus[job])
        floor.settle(job, now_s)
        done = max(float(floor.jobs.duration_s[job]) - floor.job[job].left, 0.0)
        floor.stop(job, now_s, extra_s=done + cost, lost_s=done + cost)
        self._drop(job)
        self._priorities.requeue(job, now_s)
        self._insert(job)


@noun
class _Shape:
    """What jobs ask for on each of their nodes, and which nodes each group of them may use."""

    nodes: Ints
    each: Ints
    exclusive: Ints
    group: Ints
    masks: Ints
    refused: dict[int, str]


def _sizes(site: SlurmSite) -> Ints:
    rows = []
    for pool in site.fleet.pools:
        cpus = 2**40 if pool.cpus_per_node is None else pool.cpus_per_node
        counted = site.memory_counts and pool.memory_bytes_per_node is not None
        memory = int((pool.memory_bytes_per_node or 0.0) / 2**20) if counted else 2**50
        rows += [(pool.gpus_per_node, cpus, memory)] * pool.num_nodes
    return np.array(rows, dtype=np.int64).reshape(-1, KINDS)


def _shape_jobs(jobs: JobTable, site: SlurmSite, parts: Sequence[Partition]) -> _Shape:
    sizes = _sizes(site)
    count = len(jobs)
    nodes, each = np.ones(count, dtype=np.int64), np.zeros((count, KINDS), dtype=np.int64)
    exclusive, group = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    rows: dict[tuple[str, str | None, str | None], int] = {}
    masks: list[Ints] = []
    refused: dict[int, str] = {}
    cpus, memory = np.nan_to_num(jobs.num_cpus), np.nan_to_num(jobs.memory_bytes) / 2**20
    for job, part in enumerate(parts):
        key = (part.name, jobs.constraints[job], jobs.gpu_types[job])
        if key not in rows:
            rows[key] = len(masks)
            masks.append(_mask(part, site, key[1], key[2]))
        mask = masks[rows[key]]
        group[job] = rows[key]
        width = int(sizes[mask == 1, 0].max(initial=1))
        asked = jobs.num_nodes[job]
        gpus = max(math.ceil(jobs.num_gpus[job]), 1)
        nodes[job] = max(-(-gpus // width) if np.isnan(asked) else int(asked), 1)
        nodes[job] = min(nodes[job], gpus)
        exclusive[job] = int(part.exclusive or site.whole_nodes or jobs.exclusive[job] == 1)
        each[job] = [
            -(-gpus // int(nodes[job])),
            math.ceil(cpus[job] / nodes[job]),
            math.ceil(memory[job] / nodes[job]),
        ]
        reason = _refuse(job, jobs, part, site, mask, sizes, each[job], int(nodes[job]))
        if reason is not None:
            refused[job] = reason
    table = np.stack(masks) if masks else np.zeros((1, len(site.node_names)), dtype=np.int64)
    return _Shape(nodes=nodes, each=each, exclusive=exclusive, group=group, masks=table, refused=refused)


def _refuse(
    job: int, jobs: JobTable, part: Partition, site: SlurmSite, mask: Ints, sizes: Ints, each: Ints, nodes: int
) -> str | None:
    limit = float(jobs.limit_s[job])
    if limit > part.max_s:
        return f"asks for {limit / 60:,.0f} minutes, more than MaxTime of the partition {part.name}"
    rank = site.qos.get(jobs.qos[job] or "")
    if rank is not None and limit > rank.wall_s:
        return f"asks for {limit / 60:,.0f} minutes, more than MaxWall of the QOS {rank.name}"
    if nodes > part.max_nodes:
        return f"asks for {nodes} nodes, more than MaxNodes of the partition {part.name}"
    fitting = int(((sizes >= each).all(axis=1) & (mask == 1)).sum())
    if fitting < nodes:
        return (
            f"asks for {nodes} nodes with {each[0]} GPUs, {each[1]} CPUs and {each[2]:,} MB each; the partition {part.name} "
            f"has {fitting}"
        )
    return None


def _mask(part: Partition, site: SlurmSite, constraint: str | None, device: str | None) -> Ints:
    """Nodes of the partition that have the GPU type and the features that were asked for."""
    allowed = part.nodes.copy()
    known = set().union(*site.types)
    for node in range(len(allowed)):
        if device is not None and device in known and device not in site.types[node]:
            allowed[node] = 0
        if constraint and not _has_features(constraint, site.features[node]):
            allowed[node] = 0
    return allowed


def _has_features(constraint: str, features: frozenset[str]) -> bool:
    """`a100&ib` asks for both, `a100|h100` for either; counts and brackets of matching-or are read as either."""
    text = re.sub(r"\*\d+", "", constraint.replace("[", "").replace("]", "").replace(",", "&"))
    return any(all(word.strip() in features for word in part.split("&")) for part in text.split("|"))


def make_slurm(jobs: JobTable, fleet: Fleet) -> Slurm:
    """Slurm as it comes, where no slurm.conf is given."""
    return Slurm(plain_site(fleet))
