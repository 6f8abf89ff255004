"""Candidates to the best plans that keep every limit, and to the front of time, money and energy."""

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from traincast.errors import InvalidInput
from traincast.forecast import forecast
from traincast.plan.bench import Bench, Bound, Impossible
from traincast.plan.nouns import (
    OBJECTIVES,
    Candidate,
    Figures,
    Limits,
    Miss,
    Plan,
    Pose,
    Search,
    Space,
    meet_probability,
)
from traincast.plan.space import Shape, list_candidates
from traincast.spec import Cluster
from traincast.units import show_bytes, show_seconds, show_usd
from traincast.workers import deliver

CHUNK = 32
"""Candidates worked out between two looks at what is the best so far."""
MOST_ON_FRONT = 200
SLACK = 1e-6
"""A bound must be worse by more than this before it decides: the search prices an update apart from what runs before it,
which moves a step by some 1e-8."""

Watch = Callable[[int, int], None]
"""(plans answered, plans in all so far)."""


def search(
    pose: Pose,
    clusters: Sequence[Cluster],
    space: Space,
    *,
    limits: Limits | None = None,
    objective: str = "time",
    top: int = 10,
    exhaustive: bool = False,
    watch: Watch | None = None,
    engine: str = "none",
    workers: int = 0,
) -> Search:
    """Answer every plan of the space on every cluster; memory first, then bounds on time, then the plan itself.

    `exhaustive` works out every plan that fits, whatever its bound says. The plans given back carry full forecasts.
    `engine` spreads the clusters over processes or Ray (see `traincast.workers`).
    """
    if objective not in OBJECTIVES:
        raise InvalidInput(f"objective = {objective!r}; allowed: {', '.join(OBJECTIVES)}")
    if top < 1:
        raise InvalidInput(f"top = {top}; ask for at least one plan")
    settings = Settings(limits=limits or Limits(), objective=objective, top=top, exhaustive=exhaustive)
    if engine == "none" or len(clusters) == 1:
        found = sift(clusters, pose, space, settings, watch=watch)
    else:
        found = Sieve(limits=settings.limits, objective=objective, top=top)
        parts = [tuple(clusters[at::_PARTS]) for at in range(min(_PARTS, len(clusters)))]
        for _, part in deliver(sift, parts, shared=(pose, space, settings), engine=engine, workers=workers):
            found.merge(part)
            if watch is not None:
                watch(found.num_answered, found.num_plans)
    return conclude(pose, found, limits=limits or Limits(), objective=objective, top=top)


_PARTS = 64
"""Into how many the clusters are split at most, to be worked on side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to search."""

    limits: Limits = field(default_factory=Limits)
    objective: str = "time"
    top: int = 10
    exhaustive: bool = False


def sift(
    clusters: Sequence[Cluster], pose: Pose, space: Space, settings: Settings, *, watch: Watch | None = None
) -> "Sieve":
    """The part of a search that can be split by cluster: what is kept, and what became of all others."""
    bench = Bench(pose=pose, limits=settings.limits)
    sieve = Sieve(limits=settings.limits, objective=settings.objective, top=settings.top)
    shape = Shape.of(pose(_smallest_batch(space), space.recompute[0]).graph)
    total = 0
    for cluster in clusters:
        candidates = list(list_candidates(space, cluster, shape))
        total += len(candidates)
        sieve.num_plans += len(candidates)
        waiting = _keep_fitting(candidates, bench, sieve)
        if not settings.exhaustive:
            waiting.sort(key=lambda pair: pair[0].of(settings.objective))
        for start in range(0, len(waiting), CHUNK):
            chunk = waiting[start : start + CHUNK]
            worth = [pair for pair in chunk if settings.exhaustive or not sieve.is_hopeless(pair[1], pair[0])]
            sieve.num_pruned += len(chunk) - len(worth)
            for (_, candidate), figures in zip(worth, bench.answer([pair[1] for pair in worth]), strict=True):
                sieve.take(candidate, figures)
            if watch is not None:
                watch(sieve.num_answered, total)
        bench.forget(cluster)
    return sieve


def _smallest_batch(space: Space) -> int:
    return min(space.batches) if space.batches else 1


def _keep_fitting(candidates: Iterable[Candidate], bench: Bench, sieve: "Sieve") -> list[tuple[Bound, Candidate]]:
    """Memory first: those that fit, each with what its time, money and energy cannot be below."""
    kept = []
    for candidate in candidates:
        memory = bench.fill(candidate)
        if isinstance(memory, Impossible):
            sieve.refuse("not possible for this model", candidate, math.inf, memory.reason)
        elif memory.fit_probability < sieve.limits.confidence:
            over = memory.needed_bytes / memory.capacity_bytes
            says = (
                f"needs {show_bytes(memory.needed_bytes)} of {show_bytes(memory.capacity_bytes)} per device and fits "
                f"with probability {memory.fit_probability:.0%}, asked {sieve.limits.confidence:.0%}"
            )
            sieve.refuse("memory", candidate, over, says)
        else:
            kept.append((bench.bound(candidate), candidate))
    return kept


@dataclass(slots=True)
class Sieve:
    """What is known so far: the best by the objective, the front, and what each limit ruled out."""

    limits: Limits
    objective: str
    top: int
    num_plans: int = 0
    num_evaluated: int = 0
    num_pruned: int = 0
    excluded: dict[str, int] = field(default_factory=dict)
    nearest: dict[str, tuple[float, Miss]] = field(default_factory=dict)
    """Of each limit, the plan that missed it by the least."""
    best: dict[str, list[tuple[float, int, Candidate, Figures]]] = field(default_factory=dict)
    """Of each cluster by name, the best few."""
    front: list[tuple[tuple[float, float, float], Candidate, Figures]] = field(default_factory=list)
    _number: int = 0

    @property
    def num_answered(self) -> int:
        return self.num_evaluated + self.num_pruned + sum(self.excluded.values())

    def refuse(self, limit: str, candidate: Candidate, over: float, says: str) -> None:
        self.excluded[limit] = self.excluded.get(limit, 0) + 1
        if limit not in self.nearest or over < self.nearest[limit][0]:
            self.nearest[limit] = over, Miss(candidate=candidate, limit=limit, says=says)

    def is_hopeless(self, candidate: Candidate, bound: Bound) -> bool:
        """Neither among the best of its cluster nor on the front, whatever it turns out to be within its bound; or certain
        to break a limit, but then the nearest miss is worth knowing while nothing else is known."""
        known = self.best.get(candidate.cluster.name, [])
        if len(known) < self.top or bound.of(self.objective) <= known[self.top - 1][0] * (1 + SLACK):
            return False
        lowest = (bound.job_s, bound.usd, bound.energy_joules)
        return any(
            all(a <= b for a, b in zip(point, lowest, strict=True))
            and any(a < b * (1 - SLACK) for a, b in zip(point, lowest, strict=True))
            for point, _, _ in self.front
        )

    def take(self, candidate: Candidate, figures: Figures) -> None:
        broken = _broken_limit(figures, self.limits)
        if broken is not None:
            self.refuse(broken[0], candidate, broken[1], broken[2])
            return
        self.num_evaluated += 1
        self._number += 1
        known = self.best.setdefault(candidate.cluster.name, [])
        entry = (figures.of(self.objective), self._number, candidate, figures)
        if len(known) < self.top or entry[0] < known[-1][0]:
            bisect.insort(known, entry, key=lambda item: item[:2])
            del known[self.top :]
        self._extend_front(candidate, figures)

    def _extend_front(self, candidate: Candidate, figures: Figures) -> None:
        point = (figures.of("time"), figures.of("money"), figures.of("energy"))
        if any(all(a <= b for a, b in zip(other, point, strict=True)) for other, _, _ in self.front):
            return
        self.front = [entry for entry in self.front if not all(a <= b for a, b in zip(point, entry[0], strict=True))]
        self.front.append((point, candidate, figures))

    def merge(self, other: "Sieve") -> None:
        """Add what another sieve found on other clusters."""
        self.num_plans += other.num_plans
        self.num_evaluated += other.num_evaluated
        self.num_pruned += other.num_pruned
        for limit, count in other.excluded.items():
            self.excluded[limit] = self.excluded.get(limit, 0) + count
        for limit, entry in other.nearest.items():
            if limit not in self.nearest or entry[0] < self.nearest[limit][0]:
                self.nearest[limit] = entry
        self.best.update(other.best)
        for _, candidate, figures in other.front:
            self._extend_front(candidate, figures)


def _broken_limit(figures: Figures, limits: Limits) -> tuple[str, float, str] | None:
    """(limit, how far it is missed, in a sentence) of the first limit that does not hold."""
    if limits.deadline_s is not None and (figures.deadline_probability or 0.0) < limits.confidence:
        says = (
            f"takes {show_seconds(figures.job_s)} and meets the deadline of {show_seconds(limits.deadline_s)} with "
            f"probability {figures.deadline_probability or 0.0:.0%}, asked {limits.confidence:.0%}"
        )
        return "deadline", figures.job_s / limits.deadline_s, says
    if limits.budget_usd is not None:
        if figures.usd is None:
            return "price not known", math.inf, "has no price; give one with --price or a price list"
        if (figures.budget_probability or 0.0) < limits.confidence:
            says = (
                f"costs {show_usd(figures.usd)} and stays within {show_usd(limits.budget_usd)} with probability "
                f"{figures.budget_probability or 0.0:.0%}, asked {limits.confidence:.0%}"
            )
            return "budget", figures.usd / limits.budget_usd, says
    if limits.energy_joules is not None and figures.of("energy") > limits.energy_joules:
        says = f"uses {figures.of('energy') / 3.6e6:,.3g} kWh, allowed {limits.energy_joules / 3.6e6:,.3g} kWh"
        return "energy", figures.of("energy") / limits.energy_joules, says
    return None


def conclude(pose: Pose, sieve: Sieve, *, limits: Limits, objective: str, top: int) -> Search:
    """The full forecast of everything that is given back."""
    ranked = sorted((entry for known in sieve.best.values() for entry in known), key=lambda entry: entry[0])
    chosen = [entry[2] for entry in ranked]
    front = [candidate for _, candidate, _ in sorted(sieve.front, key=lambda entry: entry[0])][:MOST_ON_FRONT]
    shown = _per_cluster(chosen, top=top)
    made = {id(candidate): _make_plan(pose, candidate, limits) for candidate in (*shown, *front)}
    on_front = {id(candidate) for candidate in front}
    plans = [replace(made[id(candidate)], on_front=id(candidate) in on_front) for candidate in shown]
    plans.sort(key=lambda plan: _objective_of(plan, objective))
    nearest = min(sieve.nearest.values(), key=lambda entry: _rank_miss(*entry), default=None)
    return Search(
        plans=tuple(plans),
        front=tuple(replace(made[id(candidate)], on_front=True) for candidate in front),
        num_plans=sieve.num_plans,
        num_evaluated=sieve.num_evaluated,
        num_pruned=sieve.num_pruned,
        excluded=dict(sieve.excluded),
        nearest=nearest[1] if nearest is not None and not plans else None,
    )


_BY_FIGURES = ("deadline", "budget", "energy", "price not known")


def _rank_miss(over: float, miss: Miss) -> tuple[bool, float]:
    """A plan that fits and is late is nearer than one that cannot run."""
    return miss.limit not in _BY_FIGURES, over


def _per_cluster(candidates: Sequence[Candidate], *, top: int) -> list[Candidate]:
    """The best of every cluster first; then, while there is room, the runners-up."""
    seen: dict[str, int] = {}
    rounds: list[tuple[int, int, Candidate]] = []
    for place, candidate in enumerate(candidates):
        number = seen.get(candidate.cluster.name, 0)
        seen[candidate.cluster.name] = number + 1
        rounds.append((number, place, candidate))
    return [candidate for _, _, candidate in sorted(rounds, key=lambda entry: entry[:2])[:top]]


def _objective_of(plan: Plan, objective: str) -> float:
    answer = plan.forecast
    if objective == "time":
        return answer.job.total.seconds
    if objective == "money":
        return math.inf if answer.usd is None else answer.usd.value
    return math.inf if answer.energy_joules is None else answer.energy_joules


def _make_plan(pose: Pose, candidate: Candidate, limits: Limits) -> Plan:
    job = pose(candidate.batch, candidate.parallelism.recompute)
    answer = forecast(job, candidate.cluster, candidate.parallelism)
    met = None if limits.deadline_s is None else meet_probability(answer.job, limits.deadline_s)
    return Plan(candidate=candidate, forecast=answer, deadline_probability=met)
