"""Who goes first: policies that keep the jobs of a cluster in line."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from traincast.errors import InvalidInput, UnknownName
from traincast.schedule._jobs import Floats, JobTable
from traincast.schedule._lines import Key, Line, by_key

if TYPE_CHECKING:
    from traincast.schedule._floor import Floor

FITS = ("head", "skip", "easy", "conservative")


class Policy(Protocol):
    """A rule of order; `fit` says what happens to later jobs when an earlier one does not fit. A policy that says the whole order
    at every look has a method `line(floor)`, which answers a `Line`."""

    @property
    def name(self) -> str: ...

    @property
    def preemptive(self) -> bool: ...

    @property
    def fit(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ByKey:
    """Smallest key first. A key that is not one of ours is believed to look at run times."""

    name: str
    key: Key
    preemptive: bool = False
    fit: str = "head"

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise UnknownName("fit", self.fit, FITS)

    @property
    def uses_estimates(self) -> bool:
        return self.fit in ("easy", "conservative") or self.key not in _BLIND_KEYS

    @property
    def uses_scale(self) -> bool:
        """Whether a common factor on all estimates can change anything."""
        return self.fit in ("easy", "conservative") or self.key not in (by_estimate, by_expected_service)

    def line(self, floor: "Floor") -> Line:
        return by_key(floor, self.key, preemptive=self.preemptive)


Score = Callable[[JobTable, Floats], Floats]
"""All jobs and what is believed about their run times (seconds, by job) to one number per job."""


@dataclass(frozen=True, slots=True)
class ByScore:
    """Smallest score first: the form in which to write a policy of one's own.

    The score is one function over whole columns, computed once, so that the loop can be compiled for it. `fit` says what
    happens when a job does not fit: head, skip, easy or conservative."""

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

    def line(self, floor: "Floor") -> Line:
        values: dict[int, float] = {}

        def key(floor: "Floor", job: int, now_s: float) -> float:
            if job not in values:
                row = floor.jobs.select([job])
                values[job] = float(self.column(row, np.array([floor.estimate_s[job]]))[0])
            return values[job]

        return by_key(floor, key)


LAS_LIMITS_S = (3250.0, 7200.0)


@dataclass(frozen=True, slots=True)
class LeastAttained:
    """Least attained service in discrete levels (Gu et al., 2019): short jobs first without knowing durations."""

    name: str = "las"
    by_gpu: bool = False
    limits: tuple[float, ...] = LAS_LIMITS_S
    preemptive: bool = True
    fit: str = "skip"

    uses_estimates: ClassVar[bool] = False


def by_submission(floor: "Floor", job: int, now_s: float) -> float:
    return floor.submit_s[job]


def by_estimate(floor: "Floor", job: int, now_s: float) -> float:
    return floor.estimate_s[job]


def by_remaining(floor: "Floor", job: int, now_s: float) -> float:
    return floor.remaining_s(job, now_s)


def by_remaining_service(floor: "Floor", job: int, now_s: float) -> float:
    return floor.remaining_s(job, now_s) * floor.num_gpus[job]


def by_deadline(floor: "Floor", job: int, now_s: float) -> float:
    deadline = float(floor.jobs.deadline_s[job])
    return math.inf if math.isnan(deadline) else deadline


def by_priority(floor: "Floor", job: int, now_s: float) -> float:
    return -float(floor.jobs.priority[job])


def by_expected_service(floor: "Floor", job: int, now_s: float) -> float:
    """Believed GPU-seconds, the key of QSSF (Hu et al., 2021); give it a history estimator."""
    return floor.estimate_s[job] * floor.num_gpus[job]


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

    def line(self, floor: "Floor") -> Line:
        owned = dict(self.owned)

        def order(now_s: float) -> list[int]:
            spent: dict[str, float] = {}
            inside, borrowing = [], []
            for job in sorted([*floor.waiting, *floor.running], key=lambda job: (floor.submit_s[job], job)):
                tenant = floor.jobs.tenants[job] or ""
                after = spent.get(tenant, 0.0) + floor.num_gpus[job]
                if after <= owned.get(tenant, self.default):
                    spent[tenant] = after
                    inside.append(job)
                else:
                    borrowing.append(job)
            # A borrower that runs is not thrown out for another borrower.
            return inside + sorted(borrowing, key=lambda job: (not floor.is_running(job), floor.submit_s[job], job))

        return Line(order)


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
}
"""Policies that keep a queue and need nothing but a name; `schedule.known.REGISTRY` has all families."""
