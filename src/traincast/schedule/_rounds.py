"""Shares of time (Narayanan et al., 2020): what a share policy is, and runs of Gavel's own simulator repeated by its rules."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from traincast.errors import InvalidInput, MissingExtra, UnknownName
from traincast.schedule import _kernels as kernels
from traincast.schedule._jobs import Floats, Ints, JobTable
from traincast.schedule._kernels import turns
from traincast.spec import Fleet, Schedule


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


@runtime_checkable
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
    engine: str = "auto",
) -> Schedule:
    """Run the jobs' `steps` with `rates[job, pool]` steps per second, as Gavel's simulator does: GPUs are counted and have no
    place, nothing happens inside a round, and an interruption costs nothing. `simulate_cluster` takes share policies too, on
    nodes and with everything that can happen to them.

    A rate of 0 or less means that a job cannot run there. Pools are visited in the fleet's order, so put the fastest first.
    """
    if rates.shape != (len(jobs), len(fleet.pools)):
        raise InvalidInput(f"rates have shape {rates.shape}; expected one row per job and one column per pool")
    if np.isnan(jobs.steps).any():
        raise InvalidInput("time-sharing in rounds needs the number of steps of every job")
    return _Rounds(jobs, policy, fleet, rates, rules or RoundRules(), engine).run()


_ORDERS_AT_ONCE = 256


class _Rounds:
    """What the loop of rounds reads and writes, and the divisions of shares between its calls."""

    def __init__(
        self, jobs: JobTable, policy: SharePolicy, fleet: Fleet, rates: Floats, rules: RoundRules, engine: str
    ) -> None:
        self.jobs, self.policy, self.fleet, self.rates, self.rules = jobs, policy, fleet, rates, rules
        loops, lists = _pick_loop(engine)
        self.run_turns = loops["run_turns"]
        self.shell: Callable[[Any], Any] = (lambda array: array.tolist()) if lists else (lambda array: array)
        shuffled = self.rules.shuffle_types
        self.shuffler = None if shuffled is None else random.Random(shuffled)
        self.gpus = jobs.num_gpus.astype(np.int64)
        self.capacity = np.array([pool.num_gpus for pool in fleet.pools], dtype=np.int64)
        self.weights = np.where(jobs.priority > 0, jobs.priority, 1.0)
        self.usd = np.array([(pool.usd_per_gpu_hour or 1.0) / 3600 for pool in fleet.pools])
        usable = (rates > 0) & (jobs.num_gpus[:, None] <= self.capacity[None, :])
        self.rejected = {
            int(job): f"needs {jobs.num_gpus[job]:g} GPUs of one type that can run it, which this fleet never has free"
            for job in np.flatnonzero(~usable.any(axis=1))
        }

    def _floats(self, size: int, value: float = 0.0) -> Any:
        return self.shell(np.full(size, value))

    def _ints(self, size: int, value: int = 0) -> Any:
        return self.shell(np.full(size, value, dtype=np.int64))

    def _lay_out(self) -> tuple[turns.Rules, turns.Shares, turns.Became, turns.Desk]:
        jobs, rules, shell = self.jobs, self.rules, self.shell
        count, num_types = self.rates.shape
        refused = np.zeros(count, dtype=np.int64)
        refused[list(self.rejected)] = 1
        fixed = turns.Rules(
            num_types=num_types,
            round_s=rules.round_s,
            min_reset_s=rules.min_reset_s,
            whole_steps=int(rules.whole_steps),
            leftovers=int(rules.use_leftovers and not self.policy.head_only),
            max_failures=rules.max_failures,
            shuffled=int(self.shuffler is not None),
        )
        columns = turns.Shares(
            submit=shell(jobs.submit_s),
            gpus=shell(self.gpus),
            rates=shell(np.ascontiguousarray(self.rates).ravel()),
            capacity=shell(self.capacity),
            refused=shell(refused),
            left=shell(np.floor(jobs.steps) if rules.whole_steps else jobs.steps.copy()),
            time_run=self._floats(count * num_types, rules.round_s / 2),
            deficit=self._floats(count * num_types),
            share=self._floats(count * num_types),
        )
        out = turns.Became(
            start=self._floats(count, -1.0),
            end=self._floats(count, math.nan),
            run_s=self._floats(count),
            gpu_s=self._floats(count),
            pool_gpu_s=self._floats(num_types),
            preemptions=self._ints(count),
            failed=self._ints(count),
            dropped=self._floats(count, -1.0),
        )
        desk = turns.Desk(
            active=self._ints(count),
            ran_in=self._ints(count, -1),
            ran_on=self._ints(count),
            taken_in=self._ints(count),
            line=self._ints(count),
            urgency=self._floats(count),
            turn_jobs=self._ints(count),
            turn_types=self._ints(count),
            clock=shell(np.array([float(jobs.submit_s[0]) if count else 0.0, 0.0])),
            counts=self._ints(6),
        )
        return fixed, columns, out, desk

    def run(self) -> Schedule:
        fixed, columns, out, desk = self._lay_out()
        decide = self.policy.begin()
        orders = self._draw_orders()
        answer = -1
        while answer != turns.FINISHED:
            answer = self.run_turns(fixed, columns, out, desk, orders)
            if answer == turns.DRAW:
                orders, desk.counts[turns.ORDERS] = self._draw_orders(), 0
            elif answer == turns.DIVIDE:
                self._divide(decide, columns, desk)
        return self._schedule(out, desk)

    def _divide(self, decide: Callable[[Shareholders], Floats], columns: turns.Shares, desk: turns.Desk) -> None:
        jobs, share = self.jobs, columns.share
        count, num_types = self.rates.shape
        index = np.array(desk.active[: desk.counts[turns.ACTIVE]], dtype=np.int64)
        left = np.asarray(columns.left)[index]
        given = decide(
            Shareholders(
                jobs=index,
                rates=self.rates[index],
                num_gpus=jobs.num_gpus[index],
                weights=self.weights[index],
                waited_s=desk.clock[0] - jobs.submit_s[index],
                steps_left=left,
                capacity=self.capacity.astype(np.float64),
                usd_per_gpu_s=self.usd,
            )
        )
        if isinstance(share, list):
            for job, row in zip(index.tolist(), given.tolist(), strict=True):
                share[job * num_types : (job + 1) * num_types] = row
        else:
            share.reshape(count, num_types)[index] = given

    def _schedule(self, out: turns.Became, desk: turns.Desk) -> Schedule:
        dropped = np.asarray(out.dropped)
        for job in np.flatnonzero(dropped >= 0).tolist():
            self.rejected[job] = f"dropped: {dropped[job]:.0f} steps left cannot be split over {self.gpus[job]} GPUs"
        began = np.array(out.start)
        began[began < 0] = math.nan
        return self.jobs.scheduled(
            policy=self.policy.name,
            fleet=self.fleet,
            start_s=began,
            end_s=np.array(out.end),
            preemptions=np.array(out.preemptions, dtype=np.int64),
            failures=np.zeros(len(self.jobs), dtype=np.int64),
            run_s=np.array(out.run_s),
            gpu_s=np.array(out.gpu_s),
            lost_gpu_s=np.zeros(len(self.jobs)),
            rejected=self.rejected,
            pool_gpu_s=np.array(out.pool_gpu_s),
            num_passes=int(desk.counts[turns.ROUNDS]),
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


def _pick_loop(engine: str) -> tuple[kernels.Loops, bool]:
    """The loops, and whether they are interpreted, which is faster on lists."""
    if engine not in ("auto", "compiled", "interpreted"):
        raise UnknownName("engine", engine, ("auto", "compiled", "interpreted"))
    loops = None if engine == "interpreted" else kernels.compiled()
    if loops is None and engine == "compiled":
        raise MissingExtra("numba", "schedule", "the compiled engine")
    return loops or kernels.interpreted(), loops is None


@dataclass(frozen=True, slots=True)
class FastestFirstInFirstOut:
    """In order of arrival, each on the fastest type with room; stops at the first that fits nowhere."""

    name: str = "fifo-perf"
    head_only: bool = True
    uses_estimates: ClassVar[bool] = False

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
    uses_estimates: ClassVar[bool] = False

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
