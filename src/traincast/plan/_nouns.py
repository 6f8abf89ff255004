"""What the planner is asked and what it answers: a space of plans, limits, and plans with their forecasts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from statistics import NormalDist
from typing import Any

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import ORDERS, RECOMPUTES, SAFE_CONFIDENCE, Cluster, Forecast, Job, JobTime, Parallelism, make_with
from traincast.units import NORMAL_90

JobAt = Callable[[int, Parallelism], Job]
"""(samples of one pass of one replica, plan) -> the job to forecast under that plan."""

OBJECTIVES = ("time", "money", "energy")
SEARCHED = (
    "data", "tensor", "pipeline", "context", "expert", "micro_batches", "zero", "sequence_parallel", "recompute", "order",
    "virtual_stages",
)  # fmt: skip
"""The fields of a plan that a search varies."""


@noun
class Limits:
    """What a plan must keep; None: no limit. Each must hold with probability `confidence`."""

    deadline_s: float | None = None
    budget_usd: float | None = None
    energy_joules: float | None = None
    confidence: float = SAFE_CONFIDENCE
    search_s: float | None = None
    """How long to search; the best so far is given then."""

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InvalidInput(f"confidence = {self.confidence}; it must lie between 0 and 1")
        for name in ("deadline_s", "budget_usd", "energy_joules", "search_s"):
            amount = getattr(self, name)
            if amount is not None and not (amount > 0 and math.isfinite(amount)):
                raise InvalidInput(f"{name} = {amount}; it must be a finite number above 0")


@noun
class Space:
    """What may be chosen. The samples of one optimizer step stay the same in every plan; None: whatever is sensible."""

    global_batch: int
    base: Parallelism | None = None
    """Every plan is this one but for the fields that are searched (SEARCHED). None: as the request says, or the default."""
    batches: tuple[int, ...] | None = None
    """Samples of one pass of one replica; None: powers of two up to `most_samples`."""
    most_samples: int = 64
    tensor: tuple[int, ...] | None = None
    pipeline: tuple[int, ...] | None = None
    context: tuple[int, ...] | None = None
    expert: tuple[int, ...] | None = None
    zero: tuple[int, ...] = (0, 1, 2, 3)
    recompute: tuple[str, ...] = RECOMPUTES
    orders: tuple[str, ...] = tuple(order for order in ORDERS if order != "gpipe")
    """GPipe's takes as long as 1f1b and holds more; it is tried where it is asked for."""
    virtual_stages: tuple[int, ...] | None = None
    """Of the interleaved order; None: 2 and 4 where the layers allow it."""
    sequence_parallel: tuple[bool, ...] = (False, True)
    overlap_sharded: bool = True
    """Whether gradients are reduced beside the backward pass where state is sharded; some stacks do not."""
    sharded_bucket: float | None = None
    """Bytes of gradients that are reduced at once where nothing runs beside it; None: as the base says."""
    dispatch_once: bool = False
    """Whether plans that spread experts send a token once to every node with experts for it, where the base does not say it."""
    plain_pipelines: bool = False
    """Whether pipelines go with ZeRO 0 and 1 only."""
    reshard_in_pipeline: bool = True
    """Whether ZeRO 3 frees gathered weights between the passes of a pipeline; where it does not, it is ZeRO 2."""

    def __post_init__(self) -> None:
        if self.global_batch < 1:
            raise InvalidInput(f"global_batch = {self.global_batch}; a step has at least one sample")
        for name in ("batches", "tensor", "pipeline", "context", "expert", "virtual_stages"):
            sizes = getattr(self, name)
            if sizes is not None and (not sizes or any(size < 1 for size in sizes)):
                raise InvalidInput(f"{name} = {sizes}; give at least one whole number above 0")
        for name, known in (("zero", (0, 1, 2, 3)), ("recompute", RECOMPUTES), ("orders", ORDERS)):
            chosen = getattr(self, name)
            for value in chosen:
                if value not in known:
                    raise InvalidInput(f"{name} has {value!r}; allowed: {', '.join(map(str, known))}")
            if not chosen:
                raise InvalidInput(f"{name} is empty; allowed: {', '.join(map(str, known))}")


@noun
class Candidate:
    """One way to run the job that may turn out good, bad or impossible."""

    cluster: Cluster
    parallelism: Parallelism
    batch: int
    """Samples of one pass of one replica."""


@noun
class Figures:
    """What the search knows of a candidate; the same numbers that a forecast gives."""

    step_s: float
    job_s: float
    usd: float | None
    energy_joules: float | None
    deadline_probability: float | None = None
    budget_probability: float | None = None

    def of(self, objective: str) -> float:
        """What is to be small; what is not known is worse than anything."""
        amount = {"time": self.job_s, "money": self.usd, "energy": self.energy_joules}[objective]
        return math.inf if amount is None else amount


@noun
class Plan:
    """A way to run the job that keeps every limit, with the forecast that `traincast forecast` gives for it."""

    candidate: Candidate
    forecast: Forecast
    figures: Figures
    """What it is compared with others by."""
    deadline_probability: float | None = None
    """That the job ends in time; None where no deadline was given."""
    on_front: bool = False
    """No other plan of the search is at least as good in time, money and energy and better in one."""

    @classmethod
    def of(cls, answer: Forecast, cluster: Cluster, parallelism: Parallelism, *, batch: int) -> "Plan":
        """A forecast as the plan that it is for."""
        candidate = Candidate(cluster=cluster, parallelism=parallelism, batch=batch)
        return cls(candidate=candidate, forecast=answer, figures=figures_of(answer, Limits()))

    @property
    def cluster(self) -> Cluster:
        return self.candidate.cluster

    @property
    def parallelism(self) -> Parallelism:
        return self.candidate.parallelism

    @property
    def batch(self) -> int:
        return self.candidate.batch


@noun
class Miss:
    """The plan that came nearest to keeping a limit that it broke."""

    candidate: Candidate
    limit: str
    says: str
    probability: float | None = None
    """That it keeps the limit."""


@noun
class Search:
    """Everything a search found out."""

    plans: tuple[Plan, ...]
    """Best first by the objective."""
    front: tuple[Plan, ...]
    """Of time, money and energy, fastest first."""
    num_plans: int
    """In the space."""
    num_evaluated: int
    """That were worked out and keep every limit; with those pruned and those excluded they are all plans."""
    num_pruned: int
    """That a bound showed to be worse than what was known, without working them out."""
    excluded: Mapping[str, int] = field(default_factory=dict)
    """How many plans each limit ruled out."""
    nearest: Miss | None = None
    """Set where no plan keeps every limit."""
    notes: tuple[str, ...] = ()
    stopped: str = ""
    """Why the search ended before all plans were answered; empty: it did not."""

    def frame(self, *, library: str | None = None) -> Any:
        """A data frame of pandas or polars, a row for each plan."""
        return make_with("make_frame", self, library=library)


def figures_of(answer: Forecast, limits: Limits) -> Figures:
    """What a search needs of a forecast."""
    usd = answer.usd
    affordable_s = None
    if limits.budget_usd is not None and usd is not None:
        affordable_s = limits.budget_usd / usd.value * answer.job.total.seconds if usd.value else math.inf
    return Figures(
        step_s=answer.step.seconds,
        job_s=answer.job.total.seconds,
        usd=None if usd is None else usd.value,
        energy_joules=answer.energy_joules,
        deadline_probability=None if limits.deadline_s is None else meet_probability(answer.job, limits.deadline_s),
        budget_probability=None if affordable_s is None else meet_probability(answer.job, affordable_s),
    )


def meet_probability(job: JobTime, deadline_s: float) -> float:
    """That a job ends in time: its steps share one log-normal error, start-up and waiting have none."""
    scaled_s, fixed_s, spread = _error_of(job)
    if scaled_s <= 0 or spread <= 0:
        return float(job.total.seconds <= deadline_s)
    if deadline_s <= fixed_s:
        return 0.0
    return NormalDist().cdf(math.log((deadline_s - fixed_s) / scaled_s) / spread)


def job_quantile_s(job: JobTime, quantile: float) -> float:
    """The time within which the job ends with this probability."""
    if not 0 < quantile < 1:
        raise InvalidInput(f"quantile = {quantile}; it must lie between 0 and 1")
    scaled_s, fixed_s, spread = _error_of(job)
    return fixed_s + scaled_s * math.exp(NormalDist().inv_cdf(quantile) * spread)


def _error_of(job: JobTime) -> tuple[float, float, float]:
    """(seconds that scale with the step, seconds that do not, one standard deviation of the log of the first)."""
    scaled_s = job.training_s + job.evaluation_s
    fixed_s = job.total.seconds - scaled_s
    if scaled_s <= 0:
        return 0.0, fixed_s, 0.0
    return scaled_s, fixed_s, math.log((job.total.high_s - fixed_s) / scaled_s) / NORMAL_90
