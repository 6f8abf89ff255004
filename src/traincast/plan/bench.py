"""Candidates to their figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from traincast.errors import IllegalPlan
from traincast.forecast import forecast
from traincast.plan.nouns import Candidate, Figures, Limits, Pose, meet_probability
from traincast.spec import Forecast, MemoryProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A candidate that this model cannot run."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a candidate's figures cannot be below."""

    job_s: float
    usd: float
    energy_joules: float

    def of(self, objective: str) -> float:
        return {"time": self.job_s, "money": self.usd, "energy": self.energy_joules}[objective]


@dataclass(slots=True)
class Bench:
    pose: Pose
    limits: Limits
    _answers: dict[int, Forecast] = field(default_factory=dict)

    def fill(self, candidate: Candidate) -> MemoryProfile | Impossible:
        try:
            answer = forecast(
                self.pose(candidate.batch, candidate.parallelism.recompute), candidate.cluster, candidate.parallelism
            )
        except IllegalPlan as error:
            return Impossible(reason=str(error))
        self._answers[id(candidate)] = answer
        return answer.memory

    def bound(self, candidate: Candidate) -> Bound:
        return Bound(job_s=0.0, usd=0.0, energy_joules=0.0)

    def answer(self, candidates: Sequence[Candidate]) -> list[Figures]:
        return [figures_of(self._answers[id(candidate)], self.limits) for candidate in candidates]


def figures_of(answer: Forecast, limits: Limits) -> Figures:
    usd = answer.usd
    affordable_s = None
    if limits.budget_usd is not None and usd is not None:
        affordable_s = limits.budget_usd / usd.value * answer.job.total.seconds if usd.value else math.inf
    return Figures(
        deadline_probability=None if limits.deadline_s is None else meet_probability(answer.job, limits.deadline_s),
        budget_probability=None if affordable_s is None else meet_probability(answer.job, affordable_s),
        step_s=answer.step.seconds,
        job_s=answer.job.total.seconds,
        usd=None if answer.usd is None else answer.usd.value,
        energy_joules=answer.energy_joules,
        fit_probability=answer.memory.fit_probability,
        needed_bytes=answer.memory.needed_bytes,
    )
