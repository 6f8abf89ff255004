"""What a scheduler believes about durations: exact, the user's limit, wrong on purpose, or learned from finished jobs."""

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

import numpy as np

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.schedule._jobs import Floats, JobTable


class Beliefs(Protocol):
    """Beliefs during one run: asked when a job arrives, told when one ends."""

    def estimate_s(self, job: int) -> float: ...

    def learn(self, job: int, duration_s: float) -> None: ...


class Estimator(Protocol):
    """May be wrong on purpose; truth drives the ends of jobs, beliefs drive keys and reservations."""

    @property
    def name(self) -> str: ...

    def start(self, jobs: JobTable) -> Beliefs: ...


class Fixed:
    """Beliefs that do not change during the run; limits are known where they come from forecasts."""

    def __init__(self, estimates_s: Floats, *, low_s: Floats | None = None, high_s: Floats | None = None) -> None:
        self.values_s = estimates_s
        self._estimates: list[float] = []
        self._low_s, self._high_s = low_s, high_s

    def scaled(self, factors: Floats) -> "Fixed":
        low_s, high_s = (None if limits is None else limits * factors for limits in (self._low_s, self._high_s))
        return Fixed(self.values_s * factors, low_s=low_s, high_s=high_s)

    def interval_s(self, job: int) -> tuple[float, float] | None:
        """Limits of the 90 % interval of the run time; None where no forecast was made."""
        if self._low_s is None or self._high_s is None or self._low_s[job] == self._high_s[job]:
            return None
        return float(self._low_s[job]), float(self._high_s[job])

    @property
    def limits_s(self) -> tuple[Floats, Floats]:
        """The limits of the 90 % interval of every job; not a number where none is known."""
        unknown = np.full(len(self.values_s), math.nan)
        return (unknown if self._low_s is None else self._low_s), (unknown if self._high_s is None else self._high_s)

    def estimate_s(self, job: int) -> float:
        if not self._estimates:  # single entries of a list are read faster, and the hot loops need none
            self._estimates = self.values_s.tolist()
        return self._estimates[job]

    def learn(self, job: int, duration_s: float) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Exact:
    name: str = "exact"

    def start(self, jobs: JobTable) -> Beliefs:
        return Fixed(jobs.duration_s)


EXACT = Exact()
_STANDARD = NormalDist()


@noun
class Limits:
    """Every job is believed to take the time that its user asked for. Where no limit is known, the largest of the log is
    believed, because a scheduler must be prepared for it."""

    name: str = "limit"

    def start(self, jobs: JobTable) -> Beliefs:
        known = jobs.limit_s[~np.isnan(jobs.limit_s)]
        if not len(known):
            raise InvalidInput(
                "no job of the trace has a limit on its run time (sacct Timelimit, SWF requested time, limit_s); "
                "what a scheduler knows can be history or truth"
            )
        return Fixed(np.where(np.isnan(jobs.limit_s), known.max(), jobs.limit_s))


@noun
class Noisy:
    """What another estimator believes (`base`), times a log-normal error per job, times a bias.

    The draws belong to the job's id, so a trace keeps its errors when jobs are left out.
    """

    sigma: float = 0.0
    bias: float = 1.0
    seed: int = 0
    base: Estimator = EXACT
    name: str = "noisy"

    def __post_init__(self) -> None:
        if self.sigma < 0 or self.bias <= 0:
            raise InvalidInput("errors need sigma >= 0 and bias > 0")

    def factors(self, jobs: JobTable) -> Floats:
        logs = np.full(len(jobs), math.log(self.bias))
        if self.sigma:
            logs += self.sigma * draw_normals(self.seed, tuple(jobs.job_ids))
        return np.asarray(np.exp(logs))

    def start(self, jobs: JobTable) -> Beliefs:
        beliefs, factors = self.base.start(jobs), self.factors(jobs)
        return beliefs.scaled(factors) if isinstance(beliefs, Fixed) else _Scaled(beliefs, factors)


class _Scaled:
    """Beliefs that are formed during the run, each times its factor."""

    def __init__(self, base: Beliefs, factors: Floats) -> None:
        self._base = base
        self._factors = factors.tolist()

    def estimate_s(self, job: int) -> float:
        return float(self._base.estimate_s(job) * self._factors[job])

    def learn(self, job: int, duration_s: float) -> None:
        self._base.learn(job, duration_s)


@lru_cache(maxsize=4)
def draw_normals(seed: int, job_ids: tuple[str, ...]) -> Floats:
    """The errors of jobs; policies that are compared meet the same ones."""
    return np.array([draw_normal(seed, 0, job_id) for job_id in job_ids])


def draw_normal(seed: int, stream: int, name: str) -> float:
    """A standard normal number that depends on nothing but its arguments."""
    digest = hashlib.blake2b(f"{seed}/{stream}/{name}".encode(), digest_size=8).digest()
    uniform = (int.from_bytes(digest, "big") + 0.5) / 2**64
    return _STANDARD.inv_cdf(min(max(uniform, 1e-15), 1 - 1e-15))


@noun
class FromHistory:
    """The mean duration of this user's finished jobs of this size, else of this size, else of all (as QSSF does).

    Only jobs that have ended in the simulation are known. Before any has, `prior_s` is believed.
    """

    prior_s: float = 3600.0
    name: str = "history"

    def start(self, jobs: JobTable) -> Beliefs:
        return History(jobs, self.prior_s)


class History:
    """Beliefs from jobs that have ended."""

    def __init__(self, jobs: JobTable, prior_s: float) -> None:
        self._jobs, self._prior_s = jobs, prior_s
        self._sums: dict[tuple[object, ...], tuple[float, int]] = {}

    def _keys(self, job: int) -> list[tuple[object, ...]]:
        who = self._jobs.users[job] or self._jobs.tenants[job]
        gpus = float(self._jobs.num_gpus[job])
        work = self._jobs.workloads[job]
        return [(who, work, gpus), (who, gpus), (gpus,), ()]

    def estimate_s(self, job: int) -> float:
        for key in self._keys(job):
            total, count = self._sums.get(key, (0.0, 0))
            if count:
                return total / count
        return self._prior_s

    def learn(self, job: int, duration_s: float) -> None:
        for key in self._keys(job):
            total, count = self._sums.get(key, (0.0, 0))
            self._sums[key] = (total + duration_s, count + 1)
