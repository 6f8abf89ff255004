"""Shares of GPU time by optimisation: max-min fairness, makespan, finish-time fairness and cost (Gavel's objectives).

These programs have many optima; the answer is an interior point's, which lies in the middle of them. Max-min programs have
their own (`kernels.program`), the others follow Clarabel's path (`kernels.embedding`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from traincast.errors import TraincastError
from traincast.schedule import _kernels as kernels
from traincast.schedule._jobs import Floats
from traincast.schedule._programs import share_by_finish, share_by_rows
from traincast.schedule._rounds import FastestFirstInFirstOut, Shareholders, SharePolicy


def _usable(holders: Shareholders) -> Floats:
    """Rates with 0 where the job cannot run."""
    return np.where(holders.rates > 0, holders.rates, 0.0)


def _max_min(holders: Shareholders, rates: Floats) -> Floats:
    fair = rates @ (holders.capacity / holders.capacity.sum())
    worth = rates * (holders.num_gpus / holders.weights / np.where(fair > 0, fair, 1.0))[:, None]
    return _raise_level(holders, worth)[1]


def _raise_level(holders: Shareholders, worth: Floats, *, close: float = 1e-6) -> tuple[float, Floats]:
    """The largest level that `worth` times shares reaches for every job, and shares in the middle of those that do. The
    level is reached, and no more than `close` of it below the best."""
    shares = np.zeros_like(worth)
    open_types = np.flatnonzero(holders.capacity > 0)
    num_jobs, num_types = len(worth), len(open_types)
    loop, shell = kernels.pick("raise_level", (num_types,), num_jobs)
    size = num_jobs * num_types
    rooms = (size, size, 12 * num_jobs, 5 * num_types, *(size,) * 5, 2 * (num_types + 1) * (num_types + 2))
    x, z, rows, types, *others = (shell(np.zeros(room)) for room in rooms)
    given = (worth[:, open_types].ravel(), holders.num_gpus, holders.capacity[open_types])
    try:
        level = loop((0,) * num_types, close, *map(shell, given), x, z, rows, types, tuple(others))
    except ZeroDivisionError:
        level = math.nan
    if not math.isfinite(level):
        raise TraincastError("no common level of the jobs was found; report this trace")
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


def _halve(shortest_s: float) -> float:
    """The time in which Gavel's halving ends if what takes at least `shortest_s` can be done and nothing below."""
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
    return within_s


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
    for close in (1e-3, 1e-6):
        # The speed of the slowest, in units of the longest job alone. A rough one will do if both its limits lead to the
        # same time.
        level, _ = _raise_level(holders, rates * (unit_s / steps)[:, None], close=close)
        within_s = _halve(unit_s / level)
        if within_s == _halve(unit_s / (level * (1.0 + close))):
            break
    found = share_by_rows(holders, rates=rates, least=holders.steps_left / within_s)
    if found is None:  # within the solver's tolerance of the shortest time
        found = share_by_rows(holders, rates=rates, least=holders.steps_left / (1.01 * within_s))
    return np.zeros_like(rates) if found is None else found


class _FinishTimes:
    """Memory of how long each job would have taken alone on its slice of the fleet."""

    def __init__(self) -> None:
        self.alone_s, self.last_steps, self.last_rate = np.zeros(0), np.zeros(0), np.zeros(0)

    def __call__(self, holders: Shareholders) -> Floats:
        rates = _usable(holders)
        jobs, steps = holders.jobs, holders.steps_left
        if int(jobs.max()) >= len(self.alone_s):
            more = int(jobs.max()) + 1
            self.alone_s = np.pad(self.alone_s, (0, more))
            self.last_steps = np.pad(self.last_steps, (0, more))
            self.last_rate = np.pad(self.last_rate, (0, more), constant_values=np.inf)
        alone = (rates * isolated(holders)).sum(axis=1)
        self.alone_s[jobs] += (self.last_steps[jobs] - steps) / self.last_rate[jobs]
        self.last_steps[jobs], self.last_rate[jobs] = steps, alone
        expected = self.alone_s[jobs] + steps / alone
        found = share_by_finish(holders, rates=rates, work=steps / expected, begun=holders.waited_s / expected)
        return np.zeros_like(rates) if found is None else found


def cheapest(holders: Shareholders) -> Floats:
    """The most normalised work per dollar."""
    rates = _usable(holders)
    value = rates / rates.max(axis=1, keepdims=True) / holders.usd_per_gpu_s[None, :]
    found = share_by_rows(holders, worth=value / value.max())
    return np.zeros_like(rates) if found is None else found


def most_throughput(holders: Shareholders) -> Floats:
    """The most steps per second in all, whoever makes them."""
    rates = _usable(holders)
    found = share_by_rows(holders, worth=rates / rates.max())
    return np.zeros_like(rates) if found is None else found


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
    uses_estimates: bool = False

    def begin(self) -> Callable[[Shareholders], Floats]:
        return self.decide


@dataclass(frozen=True, slots=True)
class FinishTimeFairness:
    """Minimise the worst ratio of finish time to finish time alone on an equal slice (Mahajan et al., 2020)."""

    name: str = "finish-time-fairness"
    head_only: bool = False
    uses_estimates: ClassVar[bool] = True

    def begin(self) -> Callable[[Shareholders], Floats]:
        return _FinishTimes()


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
    "makespan": ByProgram("makespan", makespan, uses_estimates=True),
    "finish-time-fairness": FinishTimeFairness(),
    "cost": ByProgram("cost", cheapest),
    "max-throughput": ByProgram("max-throughput", most_throughput),
    "isolated": ByProgram("isolated", isolated),
}
