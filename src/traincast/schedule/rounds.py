"""Time-sharing in rounds (Narayanan et al., 2020): a policy gives every job a share of each GPU type's time."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from traincast.errors import InvalidInput
from traincast.schedule import kernels
from traincast.schedule.jobs import Floats, Ints, JobTable
from traincast.spec.fleet import Fleet, Occupation, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRules:
    """How shares become rounds. The defaults are clean; `GAVEL` repeats what Gavel's simulator does.

    `min_reset_s`: shares are computed again only if something changed and this long has passed. `whole_steps`: a round
    runs a whole number of steps, split over GPUs by integer division, and a job whose split has a zero fails; after
    `max_failures` it is dropped. `use_leftovers`: GPUs that nobody with a share can use go to jobs without one.
    `shuffle_types`: the seed of a new random order of the types in every round, without which the first type goes first.
    """

    round_s: float = 360.0
    min_reset_s: float = 0.0
    whole_steps: bool = False
    use_leftovers: bool = True
    max_failures: int = 5
    shuffle_types: int | None = None


GAVEL = RoundRules(min_reset_s=1920.0, whole_steps=True, use_leftovers=False)
GAVEL_BLIND = replace(GAVEL, shuffle_types=5)
"""For policies blind to speeds Gavel draws the order of the types anew in every round, seeded with the run's seed (0) plus 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shareholders:
    """The active jobs when shares are decided; `rates[i, k]` is job i's steps per second on type k."""

    jobs: Ints
    rates: Floats
    num_gpus: Floats
    weights: Floats
    waited_s: Floats
    steps_left: Floats
    capacity: Floats
    usd_per_gpu_s: Floats


class SharePolicy(Protocol):
    """Answers the share of time each job gets on each type; a policy may keep memory between calls of one run."""

    @property
    def name(self) -> str: ...

    @property
    def head_only(self) -> bool: ...

    def begin(self) -> Callable[[Shareholders], Floats]: ...


def simulate_rounds(
    jobs: JobTable,
    policy: SharePolicy,
    *,
    fleet: Fleet,
    rates: Floats,
    rules: RoundRules | None = None,
    record: bool = False,
    progress: Callable[[int], None] | None = None,
    engine: str = "auto",
) -> Schedule:
    """Run the jobs' `steps` with `rates[job, pool]` steps per second; a rate of 0 or less means it cannot run there.

    Pools are visited in the fleet's order, so put the fastest type first. `engine`: as in `simulate_cluster`; only
    "general" records who held what.
    """
    rules = rules or RoundRules()
    count, num_types = len(jobs), len(fleet.pools)
    if rates.shape != (count, num_types):
        raise InvalidInput(f"rates have shape {rates.shape}; expected one row per job and one column per pool")
    if np.isnan(jobs.steps).any():
        raise InvalidInput("time-sharing in rounds needs the number of steps of every job")
    capacity = np.array([pool.num_gpus for pool in fleet.pools], dtype=np.float64)
    usd = np.array([(pool.usd_per_gpu_hour or 1.0) / 3600 for pool in fleet.pools])
    usable = (rates > 0) & (jobs.num_gpus[:, None] <= capacity[None, :])
    rejected = {
        int(job): f"needs {jobs.num_gpus[job]:g} GPUs of one type that can run it, which this fleet never has free"
        for job in np.flatnonzero(~usable.any(axis=1))
    }
    loops = None if record or engine == "general" else kernels.interpreted()
    if loops is not None and engine != "interpreted":
        loops = kernels.compiled()
    if loops is None and engine in ("interpreted", "compiled"):
        raise InvalidInput(
            f"the {engine} loop does not cover this run, or numba is missing; use the engine general or auto"
        )
    if loops is not None:
        turns = _Turns(jobs, policy, fleet, rates, rules, rejected, loops, lists=engine == "interpreted")
        return turns.run(progress)
    decide = policy.begin()
    shuffler = None if rules.shuffle_types is None else random.Random(rules.shuffle_types)
    submit: list[float] = jobs.submit_s.tolist()
    gpus: list[int] = jobs.num_gpus.astype(int).tolist()
    rate_rows: list[list[float]] = rates.tolist()
    left: list[float] = jobs.steps.tolist()
    if rules.whole_steps:
        left = [int(steps) for steps in left]
    half_s = rules.round_s / 2
    time_run = np.full((count, num_types), half_s)
    deficit = np.zeros((count, num_types))
    share = np.zeros((count, num_types))
    start_s = np.full(count, np.nan)
    end_s = np.full(count, np.nan)
    run_s = np.zeros(count)
    gpu_s = np.zeros(count)
    preemptions = np.zeros(count, dtype=np.int64)
    pool_gpu_s = np.zeros(num_types)
    num_failed = [0] * count
    occupations: list[Occupation] = []
    active: list[int] = []
    ran: set[int] = set()
    weights = np.where(jobs.priority > 0, jobs.priority, 1.0)
    cursor = num_rounds = done = reported = 0
    now = submit[0] if count else 0.0
    last_reset_s = 0.0
    stale = False
    while True:
        while cursor < count and submit[cursor] <= now:
            if cursor in rejected:
                done += 1
            else:
                active.append(cursor)
                stale = True
            cursor += 1
        if not active:
            if cursor == count:
                break
            now = submit[cursor]
            continue
        index = np.array(active)
        if stale and (now - last_reset_s >= rules.min_reset_s or last_reset_s == 0):
            deficit[index] += share[index] * (now - last_reset_s) - (time_run[index] - half_s)
            time_run[index] = half_s
            last_reset_s = now
            stale = False
            share[index] = decide(
                Shareholders(
                    jobs=index,
                    rates=rates[index],
                    num_gpus=jobs.num_gpus[index],
                    weights=weights[index],
                    waited_s=now - jobs.submit_s[index],
                    steps_left=np.array([left[job] for job in active], dtype=np.float64),
                    capacity=capacity,
                    usd_per_gpu_s=usd,
                )
            )
        scheduled: list[tuple[int, int]] = []
        taken: set[int] = set()
        kinds = [kind for kind in range(num_types) if capacity[kind]]
        if shuffler is not None:
            shuffler.shuffle(kinds)
        for kind in kinds:
            free = int(capacity[kind])
            shares = share[index, kind]
            priority = shares / time_run[index, kind]
            order = np.lexsort((-shares, -deficit[index, kind], -priority))
            for position in order.tolist():
                job = active[position]
                if job in taken or gpus[job] > free or rate_rows[job][kind] <= 0:
                    continue
                if (policy.head_only or not rules.use_leftovers) and shares[position] <= 0:
                    break
                taken.add(job)
                scheduled.append((job, kind))
                free -= gpus[job]
                if not free:
                    break
        if not scheduled:
            upcoming = [submit[cursor]] if cursor < count else []
            if stale:
                upcoming.append(last_reset_s + rules.min_reset_s)
            if not upcoming:
                break
            now = max(min(upcoming), now * (1.0 + kernels.TICK))
            continue
        num_rounds += 1
        round_end = now if rules.whole_steps else now + rules.round_s
        over: set[int] = set()
        for job, kind in scheduled:
            rate = rate_rows[job][kind]
            steps: float
            if rules.whole_steps:
                steps = min(int(rate * rules.round_s), left[job])
                finish = now + steps / rate
                round_end = max(round_end, finish)
                if steps // gpus[job] <= 0:
                    num_failed[job] += 1
                    stale = True
                    if num_failed[job] >= rules.max_failures:
                        rejected[job] = f"dropped: {steps} steps left cannot be split over {gpus[job]} GPUs"
                        over.add(job)
                    continue
                num_failed[job] = 0
            else:
                steps = min(rate * rules.round_s, left[job])
                finish = now + steps / rate
            spent = finish - now
            left[job] -= steps
            if left[job] <= 1e-9:
                end_s[job] = finish
                over.add(job)
            time_run[job, kind] += spent
            run_s[job] += spent
            gpu_s[job] += spent * gpus[job]
            pool_gpu_s[kind] += spent * gpus[job]
            if math.isnan(start_s[job]):
                start_s[job] = now
            if record:
                occupations.append(
                    Occupation(job=job, start_s=now, end_s=finish, num_gpus=gpus[job], nodes=((kind, gpus[job]),))
                )
        for job in ran - taken - over:
            preemptions[job] += 1
        ran = taken - over
        if over:
            stale = True
            active = [job for job in active if job not in over]
            done += len(over)
            if progress is not None:
                progress(done - reported)
                reported = done
        now = round_end
    return jobs.scheduled(
        policy=policy.name,
        fleet=fleet,
        start_s=start_s,
        end_s=end_s,
        preemptions=preemptions,
        failures=np.zeros(count, dtype=np.int64),
        run_s=run_s,
        gpu_s=gpu_s,
        lost_gpu_s=np.zeros(count),
        rejected=rejected,
        pool_gpu_s=pool_gpu_s,
        occupations=occupations,
        num_passes=num_rounds,
    )


_ORDERS_AT_ONCE = 256


class _Turns:
    """The same rounds by the hot loop: what it reads and writes, and the divisions of shares between its calls."""

    def __init__(
        self,
        jobs: JobTable,
        policy: SharePolicy,
        fleet: Fleet,
        rates: Floats,
        rules: RoundRules,
        rejected: dict[int, str],
        loops: kernels.Loops,
        *,
        lists: bool,
    ) -> None:
        self.jobs, self.policy, self.fleet, self.rates, self.rules = jobs, policy, fleet, rates, rules
        self.rejected = rejected
        self.run_turns = loops["run_turns"]
        self.shell: Callable[[Any], Any] = (lambda array: array.tolist()) if lists else (lambda array: array)
        self.shuffler = None if rules.shuffle_types is None else random.Random(rules.shuffle_types)
        self.gpus = jobs.num_gpus.astype(np.int64)
        self.capacity = np.array([pool.num_gpus for pool in fleet.pools], dtype=np.int64)

    def run(self, progress: Callable[[int], None] | None) -> Schedule:
        jobs, rules, shell = self.jobs, self.rules, self.shell
        count, num_types = self.rates.shape
        steps = np.floor(jobs.steps) if rules.whole_steps else jobs.steps.copy()

        def floats(size: int, value: float = 0.0) -> Any:
            return shell(np.full(size, value))

        def ints(size: int, value: int = 0) -> Any:
            return shell(np.full(size, value, dtype=np.int64))

        refused = np.zeros(count, dtype=np.int64)
        refused[list(self.rejected)] = 1
        left, share = shell(steps), floats(count * num_types)
        start, end, run_s, gpu_s = floats(count, -1.0), floats(count, math.nan), floats(count), floats(count)
        pool_gpu_s, preemptions, dropped = floats(num_types), ints(count), floats(count, -1.0)
        active, orders, counts = ints(count), self._draw_orders(), ints(6)
        clock = shell(np.array([float(jobs.submit_s[0]) if count else 0.0, 0.0]))
        fixed = (
            num_types, rules.round_s, rules.min_reset_s, int(rules.whole_steps),
            int(rules.use_leftovers and not self.policy.head_only), rules.max_failures, int(self.shuffler is not None),
            shell(jobs.submit_s), shell(self.gpus), shell(np.ascontiguousarray(self.rates).ravel()), shell(self.capacity),
            shell(refused), left, floats(count * num_types, rules.round_s / 2), floats(count * num_types), share, start, end,
            run_s, gpu_s, pool_gpu_s, preemptions, ints(count), dropped, active, ints(count, -1), ints(count), ints(count),
            floats(count), ints(count), ints(count),
        )  # fmt: skip
        decide = self.policy.begin()
        weights = np.where(jobs.priority > 0, jobs.priority, 1.0)
        usd = np.array([(pool.usd_per_gpu_hour or 1.0) / 3600 for pool in self.fleet.pools])
        reported = 0
        while True:
            answer = self.run_turns(*fixed, orders, clock, counts)
            if progress is not None and counts[4] > reported:
                progress(int(counts[4]) - reported)
                reported = int(counts[4])
            if answer == kernels.DRAW:
                orders, counts[5] = self._draw_orders(), 0
            elif answer == kernels.DIVIDE:
                index = np.array(active[: counts[1]], dtype=np.int64)
                given = decide(
                    Shareholders(
                        jobs=index,
                        rates=self.rates[index],
                        num_gpus=jobs.num_gpus[index],
                        weights=weights[index],
                        waited_s=clock[0] - jobs.submit_s[index],
                        steps_left=np.array([left[job] for job in index.tolist()])
                        if isinstance(left, list)
                        else left[index],
                        capacity=self.capacity.astype(np.float64),
                        usd_per_gpu_s=usd,
                    )
                )
                if isinstance(share, list):
                    for job, row in zip(index.tolist(), given.tolist(), strict=True):
                        share[job * num_types : (job + 1) * num_types] = row
                else:
                    share.reshape(count, num_types)[index] = given
            else:
                break
        for job in np.flatnonzero(np.asarray(dropped) >= 0).tolist():
            self.rejected[job] = f"dropped: {dropped[job]:.0f} steps left cannot be split over {self.gpus[job]} GPUs"
        began = np.array(start)
        began[began < 0] = math.nan
        return jobs.scheduled(
            policy=self.policy.name,
            fleet=self.fleet,
            start_s=began,
            end_s=np.array(end),
            preemptions=np.array(preemptions, dtype=np.int64),
            failures=np.zeros(count, dtype=np.int64),
            run_s=np.array(run_s),
            gpu_s=np.array(gpu_s),
            lost_gpu_s=np.zeros(count),
            rejected=self.rejected,
            pool_gpu_s=np.array(pool_gpu_s),
            num_passes=int(counts[3]),
        )

    def _draw_orders(self) -> Any:
        kinds = np.flatnonzero(self.capacity)
        idle = np.flatnonzero(self.capacity == 0).tolist()
        if self.shuffler is None:
            return self.shell(np.arange(len(self.capacity)))
        orders: list[int] = []
        for _ in range(_ORDERS_AT_ONCE):
            drawn = kinds.tolist()
            self.shuffler.shuffle(drawn)
            orders += drawn + idle
        return self.shell(np.array(orders, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class FastestFirstInFirstOut:
    """In order of arrival, each on the fastest type with room; stops at the first that fits nowhere."""

    name: str = "fifo-perf"
    head_only: bool = True

    def begin(self) -> Callable[[Shareholders], Floats]:
        return _fifo_perf


def _fifo_perf(holders: Shareholders) -> Floats:
    shares = np.zeros(holders.rates.size)
    loop = (kernels.compiled() or kernels.interpreted())["fill_in_order"]
    loop(holders.rates.shape[1], holders.rates.ravel(), holders.num_gpus, holders.capacity.copy(), shares)
    return shares.reshape(holders.rates.shape)


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
