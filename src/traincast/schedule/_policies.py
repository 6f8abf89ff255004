"""Who goes first: policies that keep the jobs of a cluster in line."""

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from traincast.errors import InvalidInput, UnknownName
from traincast.schedule._jobs import Floats, JobTable
from traincast.schedule._lines import Key, KeyedLine, LeveledLine, Line, View, WaitingLine
from traincast.spec import Request, Snapshot

FITS = ("head", "skip", "easy", "conservative")


class Policy(Protocol):
    """A rule of order; `fit` says what happens to later jobs when an earlier one does not fit."""

    @property
    def name(self) -> str: ...

    @property
    def preemptive(self) -> bool: ...

    @property
    def fit(self) -> str: ...

    def line(self, view: View) -> Line: ...


@dataclass(frozen=True, slots=True)
class ByKey:
    """Smallest key first. A key that looks at no run time says so in `looks_at_run_times`; unless it is told, ours are known
    and others are believed to look."""

    name: str
    key: Key
    preemptive: bool = False
    fit: str = "head"
    ties: str = "submit"
    wakeup: Callable[[View, Iterable[int], float], float] | None = None
    looks_at_run_times: bool | None = None

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise UnknownName("fit", self.fit, FITS)

    @property
    def uses_estimates(self) -> bool:
        looks = self.looks_at_run_times
        return self.fit in ("easy", "conservative") or (self.key not in _BLIND_KEYS if looks is None else looks)

    @property
    def uses_scale(self) -> bool:
        """Whether a common factor on all estimates can change anything."""
        return self.fit in ("easy", "conservative") or self.key not in (by_estimate, by_expected_service)

    def line(self, view: View) -> Line:
        if self.preemptive:
            return KeyedLine(view, self.key, ties=self.ties, wakeup=self.wakeup)
        return WaitingLine(view, self.key)


Score = Callable[[JobTable, Floats], Floats]
"""All jobs and what is believed about their run times (seconds, by job) to one number per job."""


@dataclass(frozen=True, slots=True)
class ByScore:
    """Smallest score first: the form in which to write a policy of one's own.

    The score is one function over whole columns, computed once, so that such a policy runs in the compiled loops. `fit`
    says what happens when a job does not fit: head, skip, easy or conservative.
    """

    name: str
    score: Score
    fit: str = "skip"
    uses_estimates: bool = True
    preemptive: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise UnknownName("fit", self.fit, FITS)

    def column(self, jobs: JobTable, estimate_s: Floats) -> Floats:
        values = np.asarray(self.score(jobs, estimate_s), dtype=np.float64)
        if values.shape != (len(jobs),) or np.isnan(values).any():
            raise InvalidInput(
                f"the score of the policy {self.name!r} must be one number, not NaN, for each of {len(jobs)} jobs"
            )
        return values

    def line(self, view: View) -> Line:
        values: dict[int, float] = {}

        def key(view: View, job: int, now_s: float) -> float:
            if job not in values:
                row = view.jobs.select([job])
                values[job] = float(self.column(row, np.array([view.estimate_s[job]]))[0])
            return values[job]

        return WaitingLine(view, key)


LAS_LIMITS_S = (3250.0, 7200.0)


@dataclass(frozen=True, slots=True)
class LeastAttained:
    """Least attained service in discrete levels (Gu et al., 2019): short jobs first without knowing durations."""

    name: str = "las"
    by_gpu: bool = False
    limits: tuple[float, ...] = LAS_LIMITS_S
    lists: str = "clean"
    preemptive: bool = True
    fit: str = "skip"

    uses_estimates: ClassVar[bool] = False

    def line(self, view: View) -> Line:
        if self.lists == "tiresias":
            return LeveledLine(view, self.limits, by_gpu=self.by_gpu)
        levels = _Levels(self.limits, by_gpu=self.by_gpu)
        return KeyedLine(view, levels.key, ties="submit", wakeup=levels.wakeup_s)


class _Levels:
    """The level of every job: it sinks at the moment when its attained service reaches the limit."""

    def __init__(self, limits: tuple[float, ...], *, by_gpu: bool) -> None:
        self._limits = limits
        self._by_gpu = by_gpu
        self._level_of: dict[int, int] = {}

    def _limit_s(self, view: View, job: int, level: int) -> float:
        return self._limits[level] / (view.num_gpus[job] if self._by_gpu else 1)

    def _sinks_at_s(self, view: View, job: int, level: int) -> float:
        return view.since[job] + max(self._limit_s(view, job, level) - view.attained_s[job], 0.0)

    def key(self, view: View, job: int, now_s: float) -> tuple[int, bool]:
        level = self._level_of.get(job, 0)
        waits = not view.is_running(job)
        # A job that is stopped at the very moment when it reaches a limit has sunk too.
        while level < len(self._limits) and (
            view.attained_s[job] >= self._limit_s(view, job, level)
            if waits
            else now_s >= self._sinks_at_s(view, job, level)
        ):
            level += 1
            self._level_of[job] = level
        return (level, waits)

    def wakeup_s(self, view: View, running: Iterable[int], now_s: float) -> float:
        soonest = math.inf
        for job in running:
            level = self._level_of.get(job, 0)
            if level < len(self._limits):
                soonest = min(soonest, self._sinks_at_s(view, job, level))
        return soonest


def by_submission(view: View, job: int, now_s: float) -> float:
    return view.submit_s[job]


def by_estimate(view: View, job: int, now_s: float) -> float:
    return view.estimate_s[job]


def by_remaining(view: View, job: int, now_s: float) -> float:
    return view.remaining_s(job, now_s)


def by_remaining_service(view: View, job: int, now_s: float) -> float:
    return view.remaining_s(job, now_s) * view.num_gpus[job]


def by_deadline(view: View, job: int, now_s: float) -> float:
    deadline = float(view.jobs.deadline_s[job])
    return math.inf if math.isnan(deadline) else deadline


def by_priority(view: View, job: int, now_s: float) -> float:
    return -float(view.jobs.priority[job])


def by_expected_service(view: View, job: int, now_s: float) -> float:
    """Believed GPU-seconds, the key of QSSF (Hu et al., 2021); give it a history estimator."""
    return view.estimate_s[job] * view.num_gpus[job]


def by_unfairness(view: View, job: int, now_s: float) -> float:
    """Worst finish-time ratio first, as Themis auctions do (Mahajan et al., 2020)."""
    alone = max(view.estimate_s[job], 1.0)
    return -(now_s - view.submit_s[job] + max(view.remaining_s(job, now_s), 0.0)) / alone


@dataclass(frozen=True, slots=True)
class Leased:
    """Any key, looked at again whenever a lease ends: jobs keep their GPUs for `lease_s` at a time."""

    name: str
    key: Key
    lease_s: float = 1800.0
    preemptive: bool = True
    fit: str = "skip"

    uses_estimates: ClassVar[bool] = True

    def line(self, view: View) -> Line:
        return _LeasedLine(view, self.key, self.lease_s)


class _LeasedLine:
    """Order by the key at the last lease; jobs inside their lease stand in front."""

    def __init__(self, view: View, key: Key, lease_s: float) -> None:
        self._view = view
        self._key = key
        self._lease_s = lease_s
        self._jobs: dict[int, float] = {}

    def join(self, job: int, now_s: float) -> None:
        self._jobs[job] = -math.inf

    def leave(self, job: int, now_s: float) -> None:
        del self._jobs[job]

    def started(self, job: int, now_s: float) -> None:
        self._jobs[job] = now_s + self._lease_s

    def stopped(self, job: int, now_s: float) -> None:
        self._jobs[job] = -math.inf

    def order(self, now_s: float) -> Iterable[int]:
        view = self._view

        def rank(job: int) -> tuple[bool, Any, float, int]:
            inside = view.is_running(job) and self._jobs[job] > now_s
            return (not inside, self._key(view, job, now_s), view.submit_s[job], job)

        return sorted(self._jobs, key=rank)

    def wakeup_s(self, now_s: float) -> float:
        running = [job for job in self._jobs if self._view.is_running(job)]
        if len(running) == len(self._jobs):
            return math.inf
        for job in running:
            if self._jobs[job] <= now_s:
                self._jobs[job] = now_s + self._lease_s
        return min((self._jobs[job] for job in running), default=math.inf)


@dataclass(frozen=True, slots=True)
class Gittins:
    """Largest chance of ending soon per GPU-second of service, by the distribution of known durations (Gittins, 1979).

    The index is a table over attained service, made from `sample_s` (for example last month's GPU-seconds).
    """

    sample_s: tuple[float, ...]
    name: str = "gittins"
    steps: int = 32
    preemptive: bool = True
    fit: str = "skip"

    uses_estimates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.sample_s) < 2:
            raise InvalidInput("the Gittins index needs at least two known GPU-seconds of past jobs")

    def table(self) -> tuple[list[float], list[float]]:
        """Attained service at which the index changes, and the index from there on."""
        sample = np.sort(np.asarray(self.sample_s, dtype=np.float64))
        cuts = np.unique(np.concatenate([[0.0], np.quantile(sample, np.linspace(0, 1, self.steps + 1)[1:-1])]))
        index = []
        for served in cuts:
            rest = sample[sample > served] - served
            if not len(rest):
                index.append(0.0)
                continue
            ended = np.arange(1, len(rest) + 1)
            spent = np.cumsum(rest) + rest * (len(rest) - ended)
            index.append(float((ended / spent).max()))
        return cuts.tolist(), index

    def line(self, view: View) -> Line:
        cuts, index = self.table()

        def key(view: View, job: int, now_s: float) -> float:
            served = view.served_s(job, now_s) * view.num_gpus[job]
            return -index[bisect.bisect_right(cuts, served + 1e-6) - 1]

        def wakeup(view: View, running: Iterable[int], now_s: float) -> float:
            soonest = math.inf
            for job in running:
                gpus = view.num_gpus[job]
                at = bisect.bisect_right(cuts, view.served_s(job, now_s) * gpus + 1e-6)
                if at < len(cuts):
                    soonest = min(soonest, view.since[job] + max(cuts[at] / gpus - view.attained_s[job], 0.0))
            return max(soonest, math.nextafter(now_s, math.inf))

        return KeyedLine(view, key, ties="submit", wakeup=wakeup)


@dataclass(frozen=True, slots=True)
class Quotas:
    """Every tenant owns GPUs and may borrow idle ones; borrowed GPUs go back when an owner needs them.

    A tenant without an entry owns `default`. Owned jobs go first, in order of submission, then borrowers.
    """

    owned: tuple[tuple[str, float], ...] = ()
    default: float = 0.0
    name: str = "quota"
    preemptive: bool = True
    fit: str = "skip"

    uses_estimates: ClassVar[bool] = False

    def line(self, view: View) -> Line:
        return _QuotaLine(view, dict(self.owned), self.default)


class _QuotaLine:
    def __init__(self, view: View, owned: dict[str, float], default: float) -> None:
        self._view = view
        self._owned = owned
        self._default = default
        self._jobs: dict[int, None] = {}

    def join(self, job: int, now_s: float) -> None:
        self._jobs[job] = None

    def leave(self, job: int, now_s: float) -> None:
        del self._jobs[job]

    def started(self, job: int, now_s: float) -> None:
        pass

    def stopped(self, job: int, now_s: float) -> None:
        pass

    def order(self, now_s: float) -> Iterable[int]:
        view = self._view
        spent: dict[str, float] = {}
        inside, borrowing = [], []
        for job in sorted(self._jobs, key=lambda job: (view.submit_s[job], job)):
            tenant = view.jobs.tenants[job] or ""
            after = spent.get(tenant, 0.0) + view.num_gpus[job]
            if after <= self._owned.get(tenant, self._default):
                spent[tenant] = after
                inside.append(job)
            else:
                borrowing.append(job)
        # A borrower that runs is not thrown out for another borrower.
        return inside + sorted(borrowing, key=lambda job: (not view.is_running(job), view.submit_s[job], job))

    def wakeup_s(self, now_s: float) -> float:
        return math.inf


@dataclass(frozen=True, slots=True)
class PackedFifo:
    """First come, first served, and two jobs of equal size share GPUs when none are free (Xiao et al., 2018).

    `pair_rate` is the speed of each of two jobs on the same GPUs; above 0.5 packing gains throughput. Measured pairs may
    be given by workload names.
    """

    pair_rate: float = 0.6
    pairs: tuple[tuple[str, str, float], ...] = ()
    names: tuple[str | None, ...] = ()
    name: str = "gandiva"
    preemptive: bool = False
    fit: str = "skip"

    uses_estimates: ClassVar[bool] = False

    def line(self, view: View) -> Line:
        return WaitingLine(view, by_submission)

    def packed_rate(self, job: int, other: int) -> float:
        if self.names:
            mine, theirs = self.names[job], self.names[other]
            for left, right, rate in self.pairs:
                if (left, right) in ((mine, theirs), (theirs, mine)):
                    return rate if rate > 0.5 else 0.0
        return self.pair_rate if self.pair_rate > 0.5 else 0.0


@dataclass(frozen=True, slots=True)
class Ordered:
    """A pure function from what a scheduler may see to the requests it would start, first one first."""

    decide: Callable[[Snapshot], Sequence[Request]]
    name: str = "custom"
    fit: str = "skip"
    preemptive: bool = False

    uses_estimates: ClassVar[bool] = True

    def line(self, view: View) -> Line:
        return _OrderedLine(view, self.decide)


class _OrderedLine:
    def __init__(self, view: View, decide: Callable[[Snapshot], Sequence[Request]]) -> None:
        self._view = view
        self._decide = decide
        self._row_of = {job_id: row for row, job_id in enumerate(view.jobs.job_ids)}
        self._waiting: dict[int, None] = {}

    def join(self, job: int, now_s: float) -> None:
        self._waiting[job] = None

    def leave(self, job: int, now_s: float) -> None:
        self._waiting.pop(job, None)

    def started(self, job: int, now_s: float) -> None:
        self._waiting.pop(job, None)

    def stopped(self, job: int, now_s: float) -> None:
        self._waiting[job] = None

    def order(self, now_s: float) -> Iterable[int]:
        if not self._waiting:
            return []
        rows = [self._row_of[request.job_id] for request in self._decide(self._view.snapshot(now_s))]
        return [row for row in rows if row in self._waiting]

    def wakeup_s(self, now_s: float) -> float:
        return math.inf


_BLIND_KEYS = (by_submission, by_deadline, by_priority)
"""Keys that ask for no run time."""

POLICIES: dict[str, Policy] = {
    "fifo": ByKey("fifo", by_submission),
    "first-fit": ByKey("first-fit", by_submission, fit="skip"),
    "sjf": ByKey("sjf", by_estimate),
    "srtf": ByKey("srtf", by_remaining, preemptive=True, fit="skip"),
    "srsf": ByKey("srsf", by_remaining_service, preemptive=True, fit="skip"),
    "las": LeastAttained(),
    "las-2d": LeastAttained("las-2d", by_gpu=True),
    "easy": ByKey("easy", by_submission, fit="easy"),
    "conservative": ByKey("conservative", by_submission, fit="conservative"),
    "edf": ByKey("edf", by_deadline, preemptive=True, fit="skip"),
    "priority": ByKey("priority", by_priority),
    "priority-preemptive": ByKey("priority-preemptive", by_priority, preemptive=True, fit="skip"),
    "qssf": ByKey("qssf", by_expected_service),
    "themis": Leased("themis", by_unfairness),
    "gandiva": PackedFifo(),
}
"""Policies that keep a queue and need nothing but a name; `schedule.known.REGISTRY` has all families."""
