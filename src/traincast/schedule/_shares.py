"""Shares of GPU time by optimisation: max-min fairness, makespan, finish-time fairness and cost (Narayanan et al., 2020)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from traincast.errors import TraincastError
from traincast.noun import noun
from traincast.schedule._jobs import Floats, Ints
from traincast.schedule._programs import raise_level, share_by_finish, share_by_rows


@noun
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


def in_order(holders: Shareholders) -> Floats:
    """In order of arrival, each on the fastest type with room, the last of equals; stops at the first that fits nowhere."""
    shares, free = np.zeros_like(holders.rates), holders.capacity.copy()
    for job, gpus in enumerate(holders.num_gpus.tolist()):
        room = [kind for kind in range(len(free) - 1, -1, -1) if free[kind] >= gpus]
        if not room:
            break
        best = max(room, key=lambda kind: holders.rates[job, kind])
        if holders.rates[job, best] > 0:
            shares[job, best] = 1.0
            free[best] -= gpus
    return shares


def _usable(holders: Shareholders) -> Floats:
    """Rates with 0 where the job cannot run."""
    return np.where(holders.rates > 0, holders.rates, 0.0)


def _max_min(holders: Shareholders, rates: Floats) -> Floats:
    fair = rates @ (holders.capacity / holders.capacity.sum())
    worth = rates * (holders.num_gpus / holders.weights / np.where(fair > 0, fair, 1.0))[:, None]
    return raise_level(holders, worth)[1]


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
    # The speed of the slowest, in units of the longest job alone.
    level, _ = raise_level(holders, rates * (unit_s / steps)[:, None])
    within_s = _halve(unit_s / level)
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


SHARE_POLICIES: dict[str, SharePolicy] = {
    "gavel-fifo": ByProgram("gavel-fifo", in_order, head_only=True),
    "max-min": ByProgram("max-min", max_min),
    "max-min-perf": ByProgram("max-min-perf", max_min_perf),
    "makespan": ByProgram("makespan", makespan, uses_estimates=True),
    "finish-time-fairness": FinishTimeFairness(),
    "cost": ByProgram("cost", cheapest),
    "max-throughput": ByProgram("max-throughput", most_throughput),
    "isolated": ByProgram("isolated", isolated),
}
