"""Slurm's scheduler on the simulated cluster: the main look at every change, backfill at its interval, preemption by rank."""

import bisect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from traincast.schedule import _kernels as kernels
from traincast.schedule._floor import Floor
from traincast.schedule._jobs import Ints, JobTable
from traincast.schedule._kernels import slots as tables
from traincast.schedule._lines import View
from traincast.schedule._placement import Placement
from traincast.schedule._slurm.priority import Priorities
from traincast.schedule._slurm.site import Partition, SlurmSite, plain_site
from traincast.spec import Fleet

WORTH_COMPILING = 400
MOST_SLOTS = 400


def _as_it_is(array: Any) -> Any:
    return array


def _as_list(array: Any) -> Any:
    return array.tolist()


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

    def line(self, view: View) -> "SlurmLine":
        if not isinstance(view, Floor):
            raise TypeError("Slurm looks at nodes and needs the whole cluster")
        return SlurmLine(view, self.site)


class SlurmLine:
    """Waiting jobs by partition tier and priority; the engine calls `serve` after every change and at `wakeup_s`."""

    def __init__(self, floor: Floor, site: SlurmSite) -> None:
        self._floor, self._site, jobs = floor, site, floor.jobs
        floor.nodes.per_gpu = {}  # CPUs and memory are counted here
        self._refused: dict[int, str] = {}
        self._parts = [self._find_partition(job) for job in range(len(jobs))]
        shape = _shape_jobs(jobs, site, self._parts)
        compiled = kernels.compiled() if len(jobs) >= WORTH_COMPILING or kernels.is_ready("run_backfill") else None
        self._loops = compiled or kernels.interpreted()
        self._shell: Callable[[Any], Any] = _as_it_is if compiled else _as_list
        self._lay_out(jobs, shape)
        self._priorities = Priorities(site, jobs, self._parts, shape.nodes)
        self._waiting: list[tuple[float, float, float, int]] = []
        self._entry_of: dict[int, tuple[float, float, float, int]] = {}
        self._charged_s: dict[int, float] = {}
        self._suspended: dict[int, None] = {}
        self._arrays = [name.partition("_")[0] if "_" in name else "" for name in jobs.job_ids]
        self._looked_s = self._served_s = -math.inf
        self._changed = False

    def _find_partition(self, job: int) -> Partition:
        found = self._site.partition_of(self._floor.jobs.partitions[job])
        if found is None:
            self._refused[job] = f"slurm.conf has no partition {self._floor.jobs.partitions[job]!r}"
            return self._site.partitions[0]
        return found

    def _lay_out(self, jobs: JobTable, shape: "_Shape") -> None:
        site, shell = self._site, self._shell
        num_nodes, num_windows = len(site.node_names), len(site.reservations)
        place_of = {name: at for at, name in enumerate(site.node_names)}
        windows = np.zeros((num_windows, num_nodes), dtype=np.int64)
        for row, entry in enumerate(site.reservations):
            windows[row, [place_of[name] for name in entry.nodes if name in place_of]] = 1
        size = _sizes(site)
        self._kernel_site = tables.Site(
            size=shell(size.ravel()),
            free=shell(size.ravel().copy()),
            masks=shell(shape.masks.ravel()),
            rank=shell(site.rank),
            fullest_first=int(site.fullest_first),
            blocked=shell(np.zeros(num_nodes, dtype=np.int64)),
            window_nodes=shell(windows.ravel()),
            window_begin=shell(np.array([entry.begin_s for entry in site.reservations])),
            window_end=shell(np.array([entry.end_s for entry in site.reservations])),
        )
        row_of = {part.name: row for row, part in enumerate(site.partitions)}
        names = {entry.name: row for row, entry in enumerate(site.reservations)}
        self._preempts = [self._may_preempt(job) for job in range(len(jobs))]
        lasts = np.zeros(len(jobs))
        self._asks = tables.Asks(
            nodes=shell(shape.nodes),
            each=shell(shape.each.ravel()),
            gpus=shell(np.ceil(jobs.num_gpus).astype(np.int64)),  # it knows whole GPUs only
            exclusive=shell(shape.exclusive),
            group=shell(shape.group),
            window=shell(np.array([names.get(name or "", -1) for name in jobs.reservations], dtype=np.int64)),
            lasts=shell(lasts),
            partition=shell(np.array([row_of[part.name] for part in self._parts], dtype=np.int64)),
            preempts=shell(np.array(self._preempts, dtype=np.int64)),
        )
        first = np.zeros(len(jobs), dtype=np.int64)
        np.cumsum(shape.nodes[:-1], out=first[1:])
        entries = int(shape.nodes.sum()) + 1
        self._held = tables.Held(
            first=shell(first),
            nodes=shell(np.zeros(entries, dtype=np.int64)),
            amounts=shell(np.zeros(entries * tables.KINDS, dtype=np.int64)),
        )
        self._slots = tables.Slots(
            times=shell(np.zeros(MOST_SLOTS)),
            free=shell(np.zeros(MOST_SLOTS * num_nodes * tables.KINDS, dtype=np.int64)),
            counts=shell(np.zeros(1, dtype=np.int64)),
            found=shell(np.zeros(num_nodes, dtype=np.int64)),
            scores=shell(np.zeros(num_nodes)),
        )
        self._part_nodes = shell(np.concatenate([part.nodes for part in site.partitions]))
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
        self._asks.lasts[job] = max(float(self._floor.guess_left[job]), 1.0)
        self._insert(job)
        self._changed = True

    def leave(self, job: int, now_s: float) -> None:
        self._changed = True
        if self._floor.is_running(job):
            self._give_back(job, now_s)
        else:
            self._drop(job)
            self._suspended.pop(job, None)

    def started(self, job: int, now_s: float) -> None:
        self._charged_s[job] = now_s

    def stopped(self, job: int, now_s: float) -> None:
        """A node failed under it: it is back in the queue."""
        self._give_back(job, now_s)
        self.join(job, now_s)

    def order(self, now_s: float) -> Sequence[int]:
        return [entry[3] for entry in self._waiting]

    def _insert(self, job: int) -> None:
        entry = (-float(self._parts[job].tier), -self._priorities.of(job), self._floor.submit_s[job], job)
        self._entry_of[job] = entry
        bisect.insort(self._waiting, entry)

    def _drop(self, job: int) -> None:
        entry = self._entry_of.pop(job, None)
        if entry is not None:
            del self._waiting[bisect.bisect_left(self._waiting, entry)]

    def _give_back(self, job: int, now_s: float) -> None:
        tables.shift_held(job, 1, 0, self._kernel_site.free, self._asks, self._held)
        self._charge(job, now_s)
        del self._charged_s[job]

    def _charge(self, job: int, now_s: float) -> None:
        self._priorities.charge(job, now_s - self._charged_s[job])
        self._charged_s[job] = now_s

    # Looking at the queue.

    def wakeup_s(self, now_s: float) -> float:
        """The next backfill if anything has changed since the last, and the next recalculation, while somebody waits."""
        if not self._waiting and not self._suspended:
            return math.inf
        cycle = self._site.cycle
        soonest = math.inf
        if self._changed and cycle.backfill and self._waiting:
            soonest = max(self._looked_s + cycle.interval_s, math.nextafter(now_s, math.inf))
        weights = self._site.weights
        if not weights.basic and (weights.age or weights.fair_share):
            soonest = min(soonest, (now_s // weights.period_s + 1) * weights.period_s)
        begins = [entry.end_s for entry in self._site.reservations if entry.end_s > now_s]
        begins += [entry.begin_s for entry in self._site.reservations if entry.begin_s > now_s]
        return min([soonest, *begins])

    def serve(self, now_s: float) -> None:
        moments = [moment for entry in self._site.reservations for moment in (entry.begin_s, entry.end_s)]
        self._changed |= any(self._served_s < moment <= now_s for moment in moments)
        self._served_s = now_s
        self._recalculate(now_s)
        self._mark_nodes()
        self._resume(now_s)
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
        blocked = self._kernel_site.blocked
        for node in range(len(blocked)):
            blocked[node] = 1 if node in self._floor.nodes.down else 0

    def _eligible(self, most: int, *, per_user: int = 0, per_part: int = 0) -> list[int]:
        """The first jobs in line that no limit of their QOS, their array or the scheduler holds back."""
        found: list[int] = []
        by_user: dict[str | None, int] = {}
        by_part: dict[str, int] = {}
        for *_, job in self._waiting:
            if len(found) >= most:
                break
            user, part = self._floor.jobs.users[job], self._parts[job].name
            if (per_user and by_user.get(user, 0) >= per_user) or (per_part and by_part.get(part, 0) >= per_part):
                continue
            if self._within_limits(job):
                found.append(job)
                by_user[user] = by_user.get(user, 0) + 1
                by_part[part] = by_part.get(part, 0) + 1
        return found

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
        failed = self._shell(np.zeros(len(self._site.partitions), dtype=np.int64))
        started = self._shell(np.zeros(len(queue) + 1, dtype=np.int64))
        line = self._shell(np.array(queue, dtype=np.int64))
        at = 0
        while at < len(queue):
            count, at = self._loops["run_main"](
                float(now_s), at, line, failed, self._part_nodes, started, self._kernel_site, self._asks, self._held,
                self._slots,
            )  # fmt: skip
            self._begin([int(job) for job in started[:count]], now_s)
            if at < len(queue):
                job = queue[at]
                if not self._preempt_for(job, now_s):
                    part = self._asks.partition[job]
                    tables.block(part, failed, self._part_nodes, len(self._kernel_site.rank), self._kernel_site)
                    at += 1

    def _backfill(self, now_s: float) -> None:
        cycle, floor = self._site.cycle, self._floor
        queue = self._eligible(cycle.max_job_test, per_user=cycle.max_job_user, per_part=cycle.max_job_part)
        ends = sorted((floor.believed_end(job, now_s), job) for job in floor.running)
        shell = self._shell
        started = shell(np.zeros(len(queue) + 1, dtype=np.int64))
        count = self._loops["run_backfill"](
            float(now_s), now_s + cycle.window_s, cycle.resolution_s, shell(np.array(queue, dtype=np.int64)),
            shell(np.array([end for end, _ in ends])), shell(np.array([job for _, job in ends], dtype=np.int64)), started,
            self._kernel_site, self._asks, self._held, self._slots,
        )  # fmt: skip
        jobs = [int(job) for job in started[:count]]
        self._begin(jobs[: cycle.max_job_start] if cycle.max_job_start else jobs, now_s)

    def _begin(self, jobs: Sequence[int], now_s: float) -> None:
        for job in jobs:
            if self._within_limits(job):  # others may have started since it was looked at
                tables.shift_held(job, -1, 0, self._kernel_site.free, self._asks, self._held)
                self._start(job, now_s)

    def _start(self, job: int, now_s: float) -> None:
        self._drop(job)
        placement = self._placement(job)
        self._floor.held[job] = sum(count for _, count in placement)
        self._floor.start(job, placement, now_s)
        self.started(job, now_s)

    def _placement(self, job: int) -> Placement:
        first, kinds = self._held.first[job], tables.KINDS
        places = range(first, first + self._asks.nodes[job])
        return tuple(
            (int(self._held.nodes[at]), float(self._held.amounts[at * kinds]))
            for at in places
            if self._held.amounts[at * kinds] > 0
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
        free = self._kernel_site.free
        fits = False
        for victim in victims:
            tables.shift_held(victim, 1, 0, free, self._asks, self._held)
            freed.append(victim)
            fits = self._fits_now(job, now_s)
            if fits:
                break
        for victim in list(freed[:-1]) if fits else list(freed):
            tables.shift_held(victim, -1, 0, free, self._asks, self._held)
            if fits and not self._fits_now(job, now_s):
                tables.shift_held(victim, 1, 0, free, self._asks, self._held)
            else:
                freed.remove(victim)
        for victim in freed:
            tables.shift_held(victim, -1, 0, free, self._asks, self._held)
            self._push_out(victim, now_s)
        return fits

    def _fits_now(self, job: int, now_s: float) -> bool:
        tables.lay_now(now_s, self._kernel_site, self._slots)
        return tables.gather(job, 0, now_s, self._kernel_site, self._asks, self._slots)

    def _push_out(self, job: int, now_s: float) -> None:
        mode, floor = self._mode(job), self._floor
        if mode == "CANCEL":
            floor.cancel(job, now_s)
            return
        floor.preemptions[job] += 1
        cost = floor.overheads.preemption_s(floor.num_gpus[job])
        if mode == "SUSPEND":
            floor.stop(job, now_s, extra_s=cost, lost_s=cost)
            self._drop(job)
            self._suspended[job] = None
            self._hold_memory(job, -1)
            return
        floor.settle(job, now_s)
        done = max(float(floor.jobs.duration_s[job]) - floor.left[job], 0.0)
        floor.stop(job, now_s, extra_s=done + cost, lost_s=done + cost)
        self._drop(job)
        self._priorities.requeue(job, now_s)
        self._insert(job)

    def _hold_memory(self, job: int, sign: int) -> None:
        """A suspended job keeps its memory."""
        kinds = tables.KINDS
        for at in range(self._held.first[job], self._held.first[job] + self._asks.nodes[job]):
            self._kernel_site.free[self._held.nodes[at] * kinds + 2] += sign * self._held.amounts[at * kinds + 2]

    def _resume(self, now_s: float) -> None:
        """Suspended jobs go on as soon as their own nodes have room again."""
        free, held, kinds = self._kernel_site.free, self._held, tables.KINDS
        for job in list(self._suspended):
            places = range(held.first[job], held.first[job] + self._asks.nodes[job])
            if any(self._kernel_site.blocked[held.nodes[at]] for at in places):
                continue
            if all(
                free[held.nodes[at] * kinds + kind] >= held.amounts[at * kinds + kind]
                for at in places
                for kind in (0, 1)
            ):
                self._hold_memory(job, 1)
                tables.shift_held(job, -1, 0, free, self._asks, held)
                del self._suspended[job]
                self._start(job, now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
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
    return np.array(rows, dtype=np.int64).reshape(-1, tables.KINDS)


def _shape_jobs(jobs: JobTable, site: SlurmSite, parts: Sequence[Partition]) -> _Shape:
    sizes = _sizes(site)
    count = len(jobs)
    nodes, each = np.ones(count, dtype=np.int64), np.zeros((count, tables.KINDS), dtype=np.int64)
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
