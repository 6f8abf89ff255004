"""A load, a mix and a seed to a table of jobs that no cluster has ever seen."""

import math
from collections.abc import Mapping
from dataclasses import field

import numpy as np

from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun
from traincast.schedule._jobs import Floats, JobTable

ARRIVALS = ("poisson", "daily")
# Shares of jobs by GPUs, in round numbers after the Philly and ITP traces: most ask for one, few for many.
SIZES: Mapping[int, float] = {1: 0.55, 2: 0.1, 4: 0.12, 8: 0.15, 16: 0.05, 32: 0.02, 64: 0.01}


@noun
class Mix:
    """What jobs ask for. Durations are log-normal; `load` is the demanded share of the fleet while jobs arrive."""

    sizes: Mapping[int, float] = field(default_factory=lambda: dict(SIZES))
    median_s: float = 1800.0
    sigma: float = 1.6
    max_s: float = 14 * 86400.0
    load: float = 0.9
    arrivals: str = "poisson"
    tenants: int = 4
    workloads: tuple[str, ...] = ()
    deadline_slack: float | None = None
    elastic: bool = False

    def __post_init__(self) -> None:
        if self.arrivals not in ARRIVALS:
            raise UnknownName("arrival process", self.arrivals, ARRIVALS, plural="arrival processes")
        if self.load <= 0 or self.median_s <= 0 or self.sigma < 0 or not self.sizes:
            raise InvalidInput("a mix needs load > 0, median_s > 0, sigma >= 0 and at least one size")


def generate_jobs(num_jobs: int, *, num_gpus: int, mix: Mix | None = None, seed: int = 0) -> JobTable:
    """Jobs for a fleet of `num_gpus`; sizes that never fit it are left out of the mix."""
    mix = mix or Mix()
    rng = np.random.default_rng(seed)
    sizes = np.array([size for size in mix.sizes if size <= num_gpus])
    if not len(sizes):
        raise InvalidInput(f"no size of the mix fits a fleet of {num_gpus} GPUs")
    chances = np.array([mix.sizes[int(size)] for size in sizes], dtype=np.float64)
    gpus = rng.choice(sizes, size=num_jobs, p=chances / chances.sum())
    durations = np.minimum(np.ceil(rng.lognormal(math.log(mix.median_s), mix.sigma, num_jobs)), mix.max_s)
    span_s = float((gpus * durations).sum()) / (num_gpus * mix.load)
    submits = np.floor(_arrivals(mix.arrivals, num_jobs, span_s, rng))
    tenants = rng.integers(0, max(mix.tenants, 1), num_jobs)
    names = np.array(mix.workloads)[rng.integers(0, len(mix.workloads), num_jobs)] if mix.workloads else None
    slack = mix.deadline_slack
    return JobTable.build(
        submit_s=submits,
        num_gpus=gpus,
        duration_s=durations,
        tenants=list(map([f"tenant-{tenant}" for tenant in range(max(mix.tenants, 1))].__getitem__, tenants.tolist())),
        workloads=None if names is None else names.tolist(),
        deadline_s=None if slack is None else submits + durations * (1 + rng.exponential(slack, num_jobs)),
        min_gpus=np.ones(num_jobs) if mix.elastic else None,
        max_gpus=np.minimum(gpus * 4, num_gpus) if mix.elastic else None,
    )


def _arrivals(kind: str, count: int, span_s: float, rng: np.random.Generator) -> Floats:
    times = np.sort(rng.random(count)) * span_s
    if kind == "daily":
        # Twice as many jobs at the busiest hour as on average, none at the quietest: invert the day's integral.
        grid = np.linspace(0.0, span_s, 4096)
        day = 2 * math.pi / 86400.0
        mass = grid - np.sin(day * grid) / day
        times = np.interp(times / span_s * mass[-1], mass, grid)
    return np.asarray(times)
