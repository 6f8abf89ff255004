"""Rules of other simulators that ours does not have: orders of lists, and Gavel's clock of rounds."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincast.schedule._floor import Floor
from traincast.schedule._jobs import Floats, Ints, JobTable
from traincast.schedule._lines import Key, Line, ServingLine
from traincast.schedule._shares import Shareholders, SharePolicy
from traincast.spec import Fleet, Schedule


def _served_s(floor: Floor, job: int, now_s: float) -> float:
    """Seconds of running time so far."""
    record = floor.job[job]
    return float(record.attained + (now_s - record.since if floor.is_running(job) else 0.0))


@dataclass(frozen=True, slots=True)
class ListOrder:
    """Preemptive and greedy by a key; ties keep the order of the last pass, as a list that is sorted in place does (Tiresias)."""

    name: str
    key: Key
    preemptive: bool = True
    fit: str = "skip"

    def line(self, floor: Floor) -> "_ListLine":
        return _ListLine(floor, self.key)


class _ListLine(Line):
    def __init__(self, floor: Floor, key: Key) -> None:
        self._floor, self._key = floor, key
        self._queue: list[int] = []

    def join(self, job: int, now_s: float) -> None:
        self._queue.append(job)

    def leave(self, job: int, now_s: float) -> None:
        self._queue.remove(job)

    def order(self, now_s: float) -> Iterable[int]:
        self._queue.sort(key=lambda job: self._key(self._floor, job, now_s))
        return self._queue


@dataclass(frozen=True, slots=True)
class HeliosSrtf:
    """Helios' own SRTF: whoever is shortest gets GPUs by count, waiting jobs before running ones of equal rest. A job that is
    chosen and finds no nodes keeps its count, so others are preempted for nothing, and one look follows a second after each
    change."""

    name: str = "helios-srtf"
    preemptive: bool = True
    fit: str = "helios"

    def line(self, floor: Floor) -> "_HeliosLine":
        return _HeliosLine(floor)


class _HeliosLine(ServingLine):
    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._queue: list[int] = []
        self._running: list[int] = []
        self._arrived_s = self._again_s = -math.inf

    def join(self, job: int, now_s: float) -> None:
        self._queue.append(job)
        self._arrived_s = now_s

    def leave(self, job: int, now_s: float) -> None:
        (self._running if job in self._running else self._queue).remove(job)

    def stopped(self, job: int, now_s: float) -> None:
        self._running.remove(job)
        self._queue.append(job)

    def wakeup_s(self, now_s: float) -> float:
        return self._again_s if self._again_s > now_s else math.inf

    def serve(self, now_s: float) -> None:
        floor, free = self._floor, self._floor.fleet.num_gpus
        chosen, losers = [], []
        for job in sorted(self._queue + self._running, key=lambda job: floor.remaining_s(job, now_s)):
            if floor.num_gpus[job] <= free:
                free -= int(floor.num_gpus[job])
                chosen.append(job)
            elif floor.is_running(job):
                losers.append(job)
        chosen = [job for job in chosen if not floor.is_running(job)]
        changed = False
        for job in losers if chosen else ():
            floor.preempt(job, now_s)
            changed = True
        for job in chosen:
            place = floor.find(job)
            if place is not None:
                floor.start(job, place, now_s)
                self._queue.remove(job)
                self._running.append(job)
                changed = True
        if changed or self._arrived_s == now_s:
            self._again_s = now_s + 1.0


@dataclass(frozen=True, slots=True)
class Leveled:
    """Tiresias' own lists: one level lost per event, running jobs moved to the front of their level after each pass.

    Its timer divides seconds by GPUs where it means GPU-seconds, so jobs of several GPUs sink late."""

    name: str
    by_gpu: bool = False
    limits: tuple[float, ...] = (3250.0, 7200.0)
    preemptive: bool = True
    fit: str = "skip"

    def line(self, floor: Floor) -> "_LeveledLine":
        return _LeveledLine(floor, self.limits, by_gpu=self.by_gpu)


class _LeveledLine(Line):
    def __init__(self, floor: Floor, limits: Sequence[float], *, by_gpu: bool) -> None:
        self._floor, self._limits, self._by_gpu = floor, limits, by_gpu
        self._active: dict[int, int] = {}
        self._levels: list[list[int]] = [[] for _ in range(len(limits) + 1)]

    def join(self, job: int, now_s: float) -> None:
        self._active[job] = 0
        self._levels[0].append(job)

    def leave(self, job: int, now_s: float) -> None:
        self._levels[self._active.pop(job)].remove(job)

    def order(self, now_s: float) -> Iterable[int]:
        floor = self._floor
        for job, level in list(self._active.items()):
            if level < len(self._limits) and floor.is_running(job):
                service = _served_s(floor, job, now_s) * (floor.num_gpus[job] if self._by_gpu else 1)
                if service >= self._limits[level]:
                    self._levels[level].remove(job)
                    self._levels[level + 1].append(job)
                    self._active[job] = level + 1
        return [job for level in self._levels for job in level]

    def wakeup_s(self, now_s: float) -> float:
        floor = self._floor
        soonest = math.inf
        for index, level in enumerate(self._levels):
            running = [job for job in level if floor.is_running(job)]
            level[:] = running + [job for job in level if not floor.is_running(job)]
            if index < len(self._limits):
                for job in running:
                    left = self._limits[index] - _served_s(floor, job, now_s)
                    soonest = min(soonest, now_s + math.ceil(left / floor.num_gpus[job] if self._by_gpu else left))
        return soonest


@dataclass(frozen=True, slots=True)
class Blind:
    """Any share policy that believes all types to be equally fast, as Gavel's policies without "perf" do."""

    base: SharePolicy

    @property
    def name(self) -> str:
        return f"{self.base.name}-blind"

    @property
    def head_only(self) -> bool:
        return self.base.head_only

    def begin(self) -> Callable[[Shareholders], Floats]:
        decide = self.base.begin()
        return lambda holders: decide(replace(holders, rates=np.ones_like(holders.rates)))


@dataclass(frozen=True, slots=True)
class RandomTypeFifo:
    """Gavel's `fifo`: in order of arrival on a type drawn at random, kept until the end."""

    seed: int = 0
    name: str = "fifo-random-type"
    head_only: bool = True

    def begin(self) -> Callable[[Shareholders], Floats]:
        held: dict[int, int] = {}
        draw = random.Random(self.seed)

        def decide(holders: Shareholders) -> Floats:
            jobs = holders.jobs.tolist()
            row_of = {job: row for row, job in enumerate(jobs)}
            free = holders.capacity.copy()
            queue = [job for job in jobs if job not in held]
            # As in Gavel, a finished job is replaced before the GPUs of later jobs are counted as taken.
            for job in sorted(held):
                kind = held[job]
                if job in row_of:
                    free[kind] -= holders.num_gpus[row_of[job]]
                    continue
                del held[job]
                if queue:
                    row = row_of[queue[0]]
                    if holders.num_gpus[row] <= free[kind] and holders.rates[row, kind] > 0:
                        held[queue.pop(0)] = kind
                        free[kind] -= holders.num_gpus[row]
            while queue and (free > 0).any():
                need = holders.num_gpus[row_of[queue[0]]]
                fitting = [kind for kind in range(len(free) - 1, -1, -1) if free[kind] >= need]
                if not fitting:
                    break
                kind = fitting[draw.randrange(len(fitting))]
                held[queue.pop(0)] = kind
                free[kind] -= need
            shares = np.zeros_like(holders.rates)
            for job, kind in held.items():
                shares[row_of[job], kind] = 1.0
            return shares

        return decide


ROUND_S, MIN_RESET_S, MAX_FAILURES = 360.0, 1920.0, 5
_TICK = 2.3e-16
"""The clock moves on at least by this part of itself."""


def simulate_rounds(
    jobs: JobTable, policy: SharePolicy, *, fleet: Fleet, rates: Floats, shuffle_types: int | None = None
) -> Schedule:
    """The jobs' `steps` with `rates[job, pool]` steps per second as Gavel's simulator runs them: GPUs are counted, nothing
    happens inside a round, and an interruption costs nothing. Shares are computed again only if something changed and
    `MIN_RESET_S` have passed; a round runs a whole number of steps, split over GPUs by integer division, and a job whose
    split has a zero fails and is dropped after `MAX_FAILURES`. `shuffle_types` is the seed of a new random order of the
    types in every round, which Gavel draws for policies that are blind to speeds."""
    return _Rounds(jobs, policy, fleet, rates, shuffle_types).run()


class _Rounds:
    def __init__(self, jobs: JobTable, policy: SharePolicy, fleet: Fleet, rates: Floats, seed: int | None) -> None:
        self.jobs, self.policy, self.fleet, self.rates = jobs, policy, fleet, rates
        self.decide = policy.begin()
        self.shuffler = None if seed is None else random.Random(seed)
        self.gpus: list[int] = jobs.num_gpus.astype(np.int64).tolist()
        self.capacity = np.array([pool.num_gpus for pool in fleet.pools], dtype=np.float64)
        usable = ((rates > 0) & (jobs.num_gpus[:, None] <= self.capacity[None, :])).any(axis=1)
        self.rejected = {int(job): "needs more GPUs than any type has" for job in np.flatnonzero(~usable)}
        self.left = np.floor(jobs.steps)
        self.time_run = np.full(rates.shape, ROUND_S / 2)
        self.deficit, self.share = np.zeros(rates.shape), np.zeros(rates.shape)
        count = len(jobs)
        self.start, self.end, self.run_s = np.full(count, np.nan), np.full(count, np.nan), np.zeros(count)
        self.failed = [0] * count
        self.active: list[int] = []
        self.now = float(jobs.submit_s[0])
        self.divided = 0.0
        self.stale = False
        self.rounds = self.cursor = 0

    def run(self) -> Schedule:
        submit = self.jobs.submit_s
        count = len(submit)
        while True:
            self._admit()
            if not self.active:
                if self.cursor == count:
                    return self._schedule()
                self.now = float(submit[self.cursor])
                continue
            if self.stale and (self.now - self.divided >= MIN_RESET_S or self.divided == 0.0):
                self._divide()
            turns = self._give_turns()
            if turns:
                self.rounds += 1
                ends = [self._run_turn(job, kind) for job, kind in turns]
                self.active = [job for job in self.active if job >= 0]
                self.now = max(self.now, *ends)
                continue
            soonest = float(submit[self.cursor]) if self.cursor < count else math.inf
            if self.stale:
                soonest = min(soonest, self.divided + MIN_RESET_S)
            if soonest == math.inf:
                return self._schedule()
            self.now = max(soonest, self.now * (1.0 + _TICK))

    def _admit(self) -> None:
        while self.cursor < len(self.jobs) and self.jobs.submit_s[self.cursor] <= self.now:
            if self.cursor not in self.rejected:
                self.active.append(self.cursor)
                self.stale = True
            self.cursor += 1

    def _divide(self) -> None:
        """What jobs were owed and did not get is kept when shares are divided anew."""
        index: Ints = np.array(self.active, dtype=np.int64)
        owed = self.share[index] * (self.now - self.divided)
        self.deficit[index] += owed - (self.time_run[index] - ROUND_S / 2)
        self.time_run[index] = ROUND_S / 2
        self.divided, self.stale = self.now, False
        usd = np.array([(pool.usd_per_gpu_hour or 1.0) / 3600 for pool in self.fleet.pools])
        self.share[index] = self.decide(
            Shareholders(
                jobs=index,
                rates=self.rates[index],
                num_gpus=self.jobs.num_gpus[index],
                weights=np.where(self.jobs.priority > 0, self.jobs.priority, 1.0)[index],
                waited_s=self.now - self.jobs.submit_s[index],
                steps_left=self.left[index],
                capacity=self.capacity,
                usd_per_gpu_s=usd,
            )
        )

    def _give_turns(self) -> list[tuple[int, int]]:
        """The GPUs of one type after the other to those who wait longest for their share of it."""
        kinds = np.flatnonzero(self.capacity).tolist()
        if self.shuffler is not None:
            self.shuffler.shuffle(kinds)
        turns: list[tuple[int, int]] = []
        taken: set[int] = set()
        index = np.array(self.active, dtype=np.int64)
        for kind in kinds:
            able = index[(self.rates[index, kind] > 0) & (self.share[index, kind] > 0)]
            share, deficit = self.share[able, kind], self.deficit[able, kind]
            free = int(self.capacity[kind])
            for job in able[np.lexsort((able, -share, -deficit, -share / self.time_run[able, kind]))].tolist():
                if free <= 0:
                    break
                if job not in taken and self.gpus[job] <= free:
                    free -= self.gpus[job]
                    taken.add(job)
                    turns.append((job, kind))
        return turns

    def _run_turn(self, job: int, kind: int) -> float:
        """One job for one round on one type; the answer is when it is through."""
        rate = float(self.rates[job, kind])
        steps = min(float(math.floor(rate * ROUND_S)), float(self.left[job]))
        finish = self.now + steps / rate
        if steps < self.gpus[job]:
            self.failed[job] += 1
            self.stale = True
            if self.failed[job] >= MAX_FAILURES:
                self.rejected[job] = f"dropped: {steps:.0f} steps left cannot be split over {self.gpus[job]} GPUs"
                self._leave(job)
            return finish
        self.failed[job] = 0
        self.left[job] -= steps
        if self.left[job] <= 1e-9:
            self.end[job] = finish
            self._leave(job)
        self.time_run[job, kind] += finish - self.now
        self.run_s[job] += finish - self.now
        if math.isnan(self.start[job]):
            self.start[job] = self.now
        return finish

    def _leave(self, job: int) -> None:
        self.active[self.active.index(job)] = -1
        self.stale = True

    def _schedule(self) -> Schedule:
        nothing = np.zeros(len(self.jobs), dtype=np.int64)
        return self.jobs.scheduled(
            policy=self.policy.name, fleet=self.fleet, start_s=self.start, end_s=self.end, preemptions=nothing, failures=nothing,
            run_s=self.run_s, gpu_s=self.run_s * self.jobs.num_gpus, lost_gpu_s=np.zeros(len(self.jobs)), rejected=self.rejected,
            pool_gpu_s=(), num_passes=self.rounds,
        )  # fmt: skip
