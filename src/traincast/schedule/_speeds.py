"""How fast a job runs where it was put: rates relative to the run its duration describes, from laws or from forecasts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Protocol

import numpy as np

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.schedule._estimators import Beliefs, Fixed, draw_normal
from traincast.schedule._jobs import JobTable
from traincast.spec import Fleet
from traincast.units import NORMAL_90


class PerfModel(Protocol):
    """Work per second of a job in a pool on so many GPUs at a locality; 0 means that it cannot run there."""

    def rate(self, job: int, pool: int, num_gpus: float, locality: int) -> float: ...


def is_by_kind(perf: PerfModel) -> bool:
    """Whether jobs of one workload, size and GPU type are equally fast, as a model says with `by_kind`."""
    return bool(getattr(perf, "by_kind", False))


@dataclass(frozen=True, slots=True)
class SameSpeed:
    """Every placement of the requested GPUs is as fast as the one that was measured."""

    by_kind: ClassVar[bool] = True

    def rate(self, job: int, pool: int, num_gpus: float, locality: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class TypeSpeeds:
    """Every GPU type is so many times as fast as the one on which the trace was measured, whatever runs."""

    by_pool: tuple[float, ...]
    by_kind: ClassVar[bool] = True

    def rate(self, job: int, pool: int, num_gpus: float, locality: int) -> float:
        return self.by_pool[pool]


def parse_type_speeds(text: str) -> dict[str, float]:
    """'h100-80g=2.1,l40s=0.8': how many times as fast as the GPUs of the trace."""
    found: dict[str, float] = {}
    for part in text.split(","):
        device, _, factor = part.strip().rpartition("=")
        try:
            found[device] = float(factor)
        except ValueError:
            found[device] = math.nan
        if not device or not 0 < found[device] < math.inf:
            raise InvalidInput(f"speed {part!r} is not DEVICE=FACTOR, such as h100-80g=2.1")
    return found


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """Speed-up n / (1 + overhead (n - 1)), slower by a factor per step of distance, and by pool.

    A law for studies on traces that say nothing about scaling; the anchor is the run that the trace measured.
    """

    num_gpus: Sequence[float]
    by_kind: ClassVar[bool] = True
    overhead: float = 0.03
    far_factor: float = 0.95
    pool_speeds: tuple[float, ...] = ()

    def _speed(self, num_gpus: float) -> float:
        return num_gpus / (1 + self.overhead * max(num_gpus - 1, 0))

    def rate(self, job: int, pool: int, num_gpus: float, locality: int) -> float:
        relative = self._speed(num_gpus) / self._speed(float(self.num_gpus[job]))
        base = self.pool_speeds[pool] if self.pool_speeds else 1.0
        return base * relative * self.far_factor**locality


@noun
class SpeedForecast:
    """Seconds per step with the limits of the 90 % interval; `fits=False` forbids the placement.

    `samples_per_step` without a number grows with the GPUs. `job_s` is there where the workload itself says how long it
    trains, as a job file may.
    """

    step_s: float
    low_s: float
    high_s: float
    fits: bool = True
    samples_per_step: float | None = None
    job_s: float | None = None

    @property
    def spread(self) -> float:
        """One standard deviation of the logarithm."""
        return math.log(self.high_s / self.low_s) / (2 * NORMAL_90) if self.high_s > self.low_s > 0 else 0.0

    def samples_per_s(self, num_gpus: float) -> float:
        return (num_gpus if self.samples_per_step is None else self.samples_per_step) / self.step_s


NO_FIT = SpeedForecast(step_s=1.0, low_s=1.0, high_s=1.0, fits=False)
SpeedKey = tuple[str, str, int, int]

SpeedOracle = Callable[[str, str, int, int], SpeedForecast]
"""(workload, device, number of devices, number of nodes), a `SpeedKey`, to seconds per step."""


class ForecastSpeeds:
    """Rates from forecasts, one call per (workload, device, devices, nodes). More GPUs mean more samples per step."""

    by_kind: ClassVar[bool] = True

    def __init__(self, jobs: JobTable, fleet: Fleet, oracle: SpeedOracle, reference: Sequence[float]) -> None:
        self._jobs = jobs
        self._fleet = fleet
        self._oracle = oracle
        self._reference = reference
        self._known: dict[tuple[str, str, int, int], SpeedForecast] = {}

    def key(self, workload: str, pool: int, num_gpus: int, locality: int) -> SpeedKey:
        node = self._fleet.pools[pool]
        fewest = -(-num_gpus // node.gpus_per_node)
        # Off one node means at least two; the oracle knows nodes, racks are the network's business.
        return (workload, node.device, num_gpus, max(fewest, 1 if locality == 0 else min(2, num_gpus)))

    def look_up(self, workload: str, pool: int, num_gpus: int, locality: int) -> SpeedForecast:
        key = self.key(workload, pool, num_gpus, locality)
        if key not in self._known:
            self._known[key] = self._oracle(*key)
        return self._known[key]

    def rate(self, job: int, pool: int, num_gpus: float, locality: int) -> float:
        workload = self._jobs.workloads[job]
        reference = self._reference[job]
        if workload is None or math.isnan(reference):
            return 1.0
        speed = self.look_up(workload, pool, max(int(num_gpus), 1), locality)
        return speed.samples_per_s(num_gpus) / reference if speed.fits else 0.0


@dataclass(frozen=True, slots=True)
class Believed:
    """Estimates made before the run, such as forecasts, with the spread (of the logarithm) that they admit.

    The scheduler plans with the `quantile` of each forecast; 0.5 is the forecast itself, 0.9 reserves generously.
    """

    estimates_s: tuple[float, ...]
    spreads: tuple[float, ...] = ()
    quantile: float = 0.5
    name: str = "forecast"

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise InvalidInput(f"the quantile of a forecast is {self.quantile}; it must lie between 0 and 1")

    def start(self, jobs: JobTable) -> Beliefs:
        middle = np.asarray(self.estimates_s, dtype=np.float64)
        spread = np.asarray(self.spreads or np.zeros(len(middle)), dtype=np.float64)
        planned = middle if self.quantile == 0.5 else middle * np.exp(NormalDist().inv_cdf(self.quantile) * spread)
        reach = np.exp(NORMAL_90 * spread)
        return Fixed(planned, low_s=middle / reach, high_s=middle * reach)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastJobs:
    """A trace whose jobs have durations, with what the scheduler believes and how fast every placement is, on the fleet of the
    trace and on `others`."""

    jobs: JobTable
    perf: ForecastSpeeds
    others: tuple[ForecastSpeeds, ...]
    estimator: Believed
    notes: tuple[str, ...]


def _find_fastest(
    speeds: "ForecastSpeeds", fleet: Fleet, workload: str, gpus: int, wanted: str | None
) -> SpeedForecast | None:
    """The forecast on the pool where the job is fastest; None if it fits nowhere."""
    found: SpeedForecast | None = None
    for pool, node in enumerate(fleet.pools):
        if gpus > node.num_gpus or (wanted is not None and len(fleet.pools) > 1 and node.device != wanted):
            continue
        speed = speeds.look_up(workload, pool, gpus, 0 if gpus <= node.gpus_per_node else 1)
        if speed.fits and (found is None or speed.samples_per_s(gpus) > found.samples_per_s(gpus)):
            found = speed
    return found


def _forecast_job_s(jobs: JobTable, job: int, found: SpeedForecast) -> float | None:
    """How long the job takes by its steps or by its own file; None where only its measured duration says so."""
    steps = float(jobs.steps[job])
    if not math.isnan(steps):
        return steps * found.step_s
    if found.job_s is None and math.isnan(jobs.duration_s[job]):
        raise InvalidInput(
            f"job {jobs.job_ids[job]} names the workload {jobs.workloads[job]} but neither steps nor a duration; "
            "give one of them, or a job file that says how long it trains"
        )
    return found.job_s


def forecast_jobs(
    jobs: JobTable,
    *,
    fleet: Fleet,
    oracle: SpeedOracle,
    others: Sequence[Fleet] = (),
    seed: int = 0,
    quantile: float = 0.5,
) -> ForecastJobs:
    """Fill in durations from forecasts: belief is the forecast, truth is measured where the trace has it, else drawn.

    Durations are those on `fleet`; on `others` the same jobs are as much faster or slower as forecasts say. A job that does
    not fit in the memory of `fleet` has its duration on the first other fleet that holds it.

    A job that names a workload needs `steps`, a measured duration that then says how much work it is, or a job file that
    says how long it trains.
    """
    reference = [math.nan] * len(jobs)
    fleets = (fleet, *others)
    speeds = [ForecastSpeeds(jobs, each, oracle, reference) for each in fleets]
    durations = jobs.duration_s.copy()
    believed = jobs.duration_s.copy()
    spreads = np.zeros(len(jobs))
    notes: list[str] = []
    infeasible = 0
    for job, workload in enumerate(jobs.workloads):
        if workload is None:
            continue
        gpus = max(int(jobs.num_gpus[job]), 1)
        best = (
            _find_fastest(known, each, workload, gpus, jobs.gpu_types[job])
            for known, each in zip(speeds, fleets, strict=True)
        )
        found = next((one for one in best if one is not None), None)
        if found is None:
            infeasible += 1
            durations[job] = believed[job] = 0.0 if math.isnan(durations[job]) else durations[job]
            reference[job] = 1.0
            continue
        reference[job] = found.samples_per_s(gpus)
        forecast_s = _forecast_job_s(jobs, job, found)
        if forecast_s is not None:
            believed[job], spreads[job] = forecast_s, found.spread
        if math.isnan(durations[job]):
            durations[job] = believed[job] * math.exp(found.spread * draw_normal(seed, 2, jobs.job_ids[job]))
    if infeasible:
        notes.append(f"{infeasible} jobs fit in no GPU's memory anywhere in the fleet and are rejected")
    return ForecastJobs(
        jobs=jobs.with_durations(durations),
        perf=speeds[0],
        others=tuple(speeds[1:]),
        estimator=Believed(tuple(believed.tolist()), spreads=tuple(spreads.tolist()), quantile=quantile),
        notes=tuple(notes),
    )
