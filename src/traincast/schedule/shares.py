"""Shares of GPU time by optimisation: max-min fairness, makespan, finish-time fairness and cost (Gavel's objectives).

These programs have many optima; the answer is an interior point's, which lies in the middle of them. Max-min programs have
their own (`kernels.program`), the others are Clarabel's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from traincast.errors import MissingExtra, TraincastError
from traincast.schedule import kernels
from traincast.schedule.jobs import Floats
from traincast.schedule.rounds import FastestFirstInFirstOut, Shareholders, SharePolicy


class _Program:
    """Linear rows `a x <= b` over the shares (job-major) and further variables, solved by Clarabel."""

    def __init__(self, holders: Shareholders, num_extra: int) -> None:
        self.num_jobs, self.num_types = holders.rates.shape
        self.num_shares = self.num_jobs * self.num_types
        self.num_vars = self.num_shares + num_extra
        self._rows: list[np.ndarray[Any, Any]] = []
        self._cols: list[np.ndarray[Any, Any]] = []
        self._values: list[np.ndarray[Any, Any]] = []
        self._bounds: list[np.ndarray[Any, Any]] = []
        self._count = 0
        shares = np.arange(self.num_shares)
        self.less(shares, shares, np.full(self.num_shares, -1.0), np.zeros(self.num_shares))
        kinds = shares % self.num_types
        self.less(kinds, shares, np.repeat(holders.num_gpus, self.num_types), holders.capacity)
        self.less(shares // self.num_types, shares, np.ones(self.num_shares), np.ones(self.num_jobs))

    def less(self, rows: Any, cols: Any, values: Any, bounds: Any) -> None:
        self._rows.append(np.asarray(rows) + self._count)
        self._cols.append(np.asarray(cols))
        self._values.append(np.asarray(values, dtype=np.float64))
        self._bounds.append(np.asarray(bounds, dtype=np.float64))
        self._count += len(self._bounds[-1])

    def solve(self, costs: Floats, *, cones: list[int] | None = None) -> Floats | None:
        """The minimiser, or None if the program has no point. `cones` are second-order sizes of the last rows."""
        try:
            import clarabel
            from scipy import sparse
        except ImportError as error:
            raise MissingExtra("clarabel", "schedule", "sharing by optimisation") from error
        bounds = np.concatenate(self._bounds)
        matrix = sparse.csc_matrix(
            (np.concatenate(self._values), (np.concatenate(self._rows), np.concatenate(self._cols))),
            shape=(self._count, self.num_vars),
        )
        sizes = cones or []
        kinds = [clarabel.NonnegativeConeT(self._count - sum(sizes))]
        kinds += [clarabel.SecondOrderConeT(size) for size in sizes]
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        quadratic = sparse.csc_matrix((self.num_vars, self.num_vars))
        solution = clarabel.DefaultSolver(quadratic, costs, matrix, bounds, kinds, settings).solve()
        status = str(solution.status)
        if "Infeasible" in status:
            return None
        if "Solved" not in status and "Insufficient" not in status and "MaxIter" not in status:
            raise TraincastError(f"the solver ended with {status}; report this trace")
        return np.asarray(solution.x)

    def shares(self, solution: Floats) -> Floats:
        return np.asarray(solution[: self.num_shares].reshape(self.num_jobs, self.num_types).clip(0.0, 1.0))


def _usable(holders: Shareholders) -> Floats:
    """Rates with 0 where the job cannot run."""
    return np.where(holders.rates > 0, holders.rates, 0.0)


def _max_min(holders: Shareholders, rates: Floats) -> Floats:
    fair = rates @ (holders.capacity / holders.capacity.sum())
    worth = rates * (holders.num_gpus / holders.weights / np.where(fair > 0, fair, 1.0))[:, None]
    return _raise_level(holders, worth)[1]


def _raise_level(holders: Shareholders, worth: Floats) -> tuple[float, Floats]:
    """The largest level that `worth` times shares reaches for every job, and shares in the middle of those that do."""
    shares = np.zeros_like(worth)
    open_types = np.flatnonzero(holders.capacity > 0)
    loops = kernels.compiled()
    shell: Callable[[Any], Any] = (lambda array: array) if loops is not None else (lambda array: array.tolist())
    num_jobs, num_types = len(worth), len(open_types)
    size = num_jobs * num_types
    x = shell(np.zeros(size))
    level = (loops or kernels.interpreted())["raise_level"](
        num_types,
        shell(worth[:, open_types].ravel()),
        shell(holders.num_gpus),
        shell(holders.capacity[open_types]),
        x,
        shell(np.zeros(size)),
        shell(np.zeros(12 * num_jobs)),
        shell(np.zeros(5 * num_types)),
        *(shell(np.zeros(size)) for _ in range(5)),
        shell(np.zeros(2 * (num_types + 1) * (num_types + 2))),
    )
    shares[:, open_types] = np.asarray(x).reshape(num_jobs, num_types)
    return float(level), shares


def max_min(holders: Shareholders) -> Floats:
    """Equal time for all, blind to speeds."""
    total = float(holders.capacity.sum())
    each = total / len(holders.jobs) / holders.num_gpus
    if (holders.weights == holders.weights[0]).all() and (each <= 1.0).all():
        # Nobody can be helped further, and the middle of all ways to do it is to split everybody like the fleet.
        return np.asarray(each[:, None] * (holders.capacity / total)[None, :])
    return _max_min(holders, np.ones_like(holders.rates))


def max_min_perf(holders: Shareholders) -> Floats:
    """The largest common fraction of what an equal split of the fleet would give each job."""
    return _max_min(holders, _usable(holders))


def _finish_within(holders: Shareholders, rates: Floats, within_s: float) -> Floats | None:
    program = _Program(holders, 0)
    shares = np.arange(program.num_shares)
    program.less(shares // program.num_types, shares, -rates.ravel(), -holders.steps_left / within_s)
    solution = program.solve(np.zeros(program.num_vars))
    return None if solution is None else program.shares(solution)


def makespan(holders: Shareholders) -> Floats:
    """The shortest time in which all present jobs can end together, to 5 % above.

    Gavel halves an interval until it is known to 5 % and takes any division that ends in time. The shortest time itself
    is one program, so its halving is repeated on numbers, and only the last division is computed.
    """
    rates = _usable(holders)
    best = rates.max(axis=1)
    if (best <= 0).any():
        raise TraincastError("no division of the fleet ends all jobs; a job has no type that runs it")
    steps = np.maximum(holders.steps_left, 1e-9)
    unit_s = float((steps / best).max())
    # The speed of the slowest, in units of the longest job alone.
    level, _ = _raise_level(holders, rates * (unit_s / steps)[:, None])
    shortest_s = unit_s / level
    low, high, widest = 100.0, 1e6, 1e6
    within_s: float | None = None
    while within_s is None:
        while 1.05 * low < high:
            middle = (low + high) / 2
            if middle < shortest_s:
                low = middle
            else:
                within_s = high = middle
        if within_s is None:
            if widest > 1e12:
                raise TraincastError("no division of the fleet ends all jobs; a job has no type that runs it")
            low, high, widest = widest, widest * 10, widest * 10
    found = _finish_within(holders, rates, within_s)
    if found is None:  # within the solver's tolerance of the shortest time
        found = _finish_within(holders, rates, 1.01 * within_s)
    return np.zeros_like(rates) if found is None else found


@dataclass(slots=True)
class _FinishTimes:
    """Memory of how long each job would have taken alone on its slice of the fleet."""

    alone_s: dict[int, float]
    last_steps: dict[int, float]
    last_rate: dict[int, float]

    def __call__(self, holders: Shareholders) -> Floats:
        rates = _usable(holders)
        num_jobs = len(holders.jobs)
        alone = (rates * isolated(holders)).sum(axis=1)
        expected = np.empty(num_jobs)
        for row, job in enumerate(holders.jobs.tolist()):
            steps = float(holders.steps_left[row])
            if job in self.last_steps:
                self.alone_s[job] += (self.last_steps[job] - steps) / self.last_rate[job]
            else:
                self.alone_s[job] = 0.0
            self.last_steps[job], self.last_rate[job] = steps, float(alone[row])
            expected[row] = self.alone_s[job] + steps / alone[row]
        # Minimise r with (waited + steps * u) / expected <= r and u * rate >= 1, the last as a second-order cone.
        program = _Program(holders, num_jobs + 1)
        shares = np.arange(program.num_shares)
        jobs = np.arange(num_jobs)
        inverse = program.num_shares + jobs
        program.less(
            np.concatenate([jobs, jobs]),
            np.concatenate([inverse, np.full(num_jobs, program.num_vars - 1)]),
            np.concatenate([holders.steps_left / expected, -np.ones(num_jobs)]),
            -holders.waited_s / expected,
        )
        # (u + a, u - a, 2) in the cone means u * a >= 1. Rates stay in steps per second, as in Gavel: this cone's
        # middle, unlike that of linear rows, depends on the units.
        first = 3 * (shares // program.num_types)
        program.less(
            np.concatenate([first, first + 1, 3 * jobs, 3 * jobs + 1]),
            np.concatenate([shares, shares, inverse, inverse]),
            np.concatenate([-rates.ravel(), rates.ravel(), -np.ones(num_jobs), -np.ones(num_jobs)]),
            np.tile([0.0, 0.0, 2.0], num_jobs),
        )
        costs = np.zeros(program.num_vars)
        costs[-1] = 1.0
        solution = program.solve(costs, cones=[3] * num_jobs)
        return np.zeros_like(rates) if solution is None else program.shares(solution)


def cheapest(holders: Shareholders) -> Floats:
    """The most normalised work per dollar."""
    rates = _usable(holders)
    program = _Program(holders, 0)
    value = rates / rates.max(axis=1, keepdims=True) / holders.usd_per_gpu_s[None, :]
    solution = program.solve(-value.ravel() / value.max())
    return np.zeros_like(rates) if solution is None else program.shares(solution)


def most_throughput(holders: Shareholders) -> Floats:
    """The most steps per second in all, whoever makes them."""
    rates = _usable(holders)
    program = _Program(holders, 0)
    solution = program.solve(-rates.ravel() / rates.max())
    return np.zeros_like(rates) if solution is None else program.shares(solution)


def isolated(holders: Shareholders) -> Floats:
    """Everybody an equal slice of every type, as if the fleet were cut up."""
    slices = holders.capacity[None, :] / len(holders.jobs) / holders.num_gpus[:, None]
    return np.asarray(slices / np.maximum(slices.sum(axis=1, keepdims=True), 1.0))


@dataclass(frozen=True, slots=True)
class ByProgram:
    """A share policy without memory."""

    name: str
    decide: Callable[[Shareholders], Floats]
    head_only: bool = False

    def begin(self) -> Callable[[Shareholders], Floats]:
        return self.decide


@dataclass(frozen=True, slots=True)
class FinishTimeFairness:
    """Minimise the worst ratio of finish time to finish time alone on an equal slice (Mahajan et al., 2020)."""

    name: str = "finish-time-fairness"
    head_only: bool = False

    def begin(self) -> Callable[[Shareholders], Floats]:
        return _FinishTimes({}, {}, {})


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


SHARE_POLICIES: dict[str, SharePolicy] = {
    "gavel-fifo": FastestFirstInFirstOut("gavel-fifo"),
    "max-min": ByProgram("max-min", max_min),
    "max-min-perf": ByProgram("max-min-perf", max_min_perf),
    "makespan": ByProgram("makespan", makespan),
    "finish-time-fairness": FinishTimeFairness(),
    "cost": ByProgram("cost", cheapest),
    "max-throughput": ByProgram("max-throughput", most_throughput),
    "isolated": ByProgram("isolated", isolated),
}
