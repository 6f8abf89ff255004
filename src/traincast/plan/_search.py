"""Candidates to the best plans that keep every limit, and to the front of time, money and energy."""

import bisect
import contextlib
import gc
import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from traincast.cost import CostModel
from traincast.errors import IllegalPlan, InvalidInput
from traincast.forecast import Engine
from traincast.noun import noun
from traincast.plan._judge import Judge
from traincast.plan._nouns import (
    OBJECTIVES,
    Candidate,
    Figures,
    JobAt,
    Limits,
    Miss,
    Plan,
    Search,
    Space,
    figures_of,
    meet_probability,
)
from traincast.plan._space import Shape, list_candidates
from traincast.spec import Calibration, Cluster, MemoryProfile, Parallelism
from traincast.units import show_bytes, show_seconds, show_usd
from traincast.workers import deliver

WATCHED = 32
"""Candidates between two reports of how far the search is."""
MOST_ON_FRONT = 200
INTERRUPTED, OUT_OF_TIME = "interrupted", "out of time"
SLACK = 1e-6
"""A bound must be worse by more than this before it decides."""

Watch = Callable[[int, int, str], None]
"""(plans answered, plans in all so far, the best of them in words)."""


def search(
    job_at: JobAt,
    clusters: Sequence[Cluster],
    space: Space,
    *,
    limits: Limits | None = None,
    objective: str = "time",
    top: int = 10,
    exhaustive: bool = False,
    watch: Watch | None = None,
    engine: str | Engine = "none",
    workers: int = 0,
    costs: CostModel | None = None,
    calibration: Calibration | None = None,
) -> Search:
    """Answer every plan of the space on every cluster: by a bound on its time or memory, or by its forecast.

    `exhaustive` works out every plan that fits, whatever its bound says. The plans given back carry full forecasts.
    `engine` spreads the clusters over processes (see `traincast.workers`), or is an engine that has answered before.
    `costs` or `calibration`: what prices
    tasks instead of the models that ship with the package. What measured runs taught may make any plan faster than its bound, so
    with such a calibration every plan is worked out. When its time is out or it is interrupted, it gives what it found so far.
    """
    if objective not in OBJECTIVES:
        raise InvalidInput(f"objective = {objective!r}; allowed: {', '.join(OBJECTIVES)}")
    if top < 1:
        raise InvalidInput(f"top = {top}; ask for at least one plan")
    own = engine if isinstance(engine, Engine) else Engine(costs=costs, calibration=calibration)
    settings = Settings(
        limits=limits or Limits(), objective=objective, top=top, exhaustive=exhaustive or own.calibration is not None,
        costs=costs, calibration=calibration,
    )  # fmt: skip
    if isinstance(engine, Engine) or engine == "none" or len(clusters) == 1:
        found = sift(clusters, job_at, space, settings, watch=watch, forecasts=own)
    else:
        found = Sieve(limits=settings.limits, objective=objective, top=top)
        parts = [tuple(clusters[at::_PARTS]) for at in range(min(_PARTS, len(clusters)))]
        for _, part in deliver(sift, parts, shared=(job_at, space, settings), engine=engine, workers=workers):
            found.merge(part)
            if watch is not None:
                watch(found.num_answered, found.num_plans, found.say_best())
    return conclude(job_at, found, own, limits=settings.limits, objective=objective, top=top)


_PARTS = 64
"""Into how many the clusters are split at most, to be worked on side by side."""


@noun
class Settings:
    """How to search."""

    limits: Limits = field(default_factory=Limits)
    objective: str = "time"
    top: int = 10
    exhaustive: bool = False
    costs: CostModel | None = None
    calibration: Calibration | None = None


def sift(
    clusters: Sequence[Cluster], job_at: JobAt, space: Space, settings: Settings, *, watch: Watch | None = None,
    forecasts: Engine | None = None,
) -> "Sieve":  # fmt: skip
    """The part of a search that can be split by cluster: what is kept, and what became of all others."""
    engine = forecasts or Engine(costs=settings.costs, calibration=settings.calibration)
    with _collecting_rarely():
        return _sift(clusters, job_at, space, settings, watch=watch, engine=engine)


@contextlib.contextmanager
def _collecting_rarely() -> Iterator[None]:
    """What an engine remembers has no cycles, and looking for some takes a sixth of a search."""
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _sift(
    clusters: Sequence[Cluster], job_at: JobAt, space: Space, settings: Settings, *, watch: Watch | None, engine: Engine
) -> "Sieve":
    sieve = Sieve(limits=settings.limits, objective=settings.objective, top=settings.top)
    shape = Shape.of(job_at(_smallest_batch(space), Parallelism(recompute=space.recompute[0])).graph)
    ends_s = math.inf if settings.limits.search_s is None else time.monotonic() + settings.limits.search_s
    try:
        for cluster in clusters:
            candidates = list(list_candidates(space, cluster, shape))
            sieve.num_plans += len(candidates)
            judge = Judge(engine=engine, cluster=cluster, job_at=job_at)
            trial = _Trial(judge=judge, sieve=sieve, exhaustive=settings.exhaustive, ends_s=ends_s)
            trial.run(candidates, watch)
    except KeyboardInterrupt:
        if not sieve.best:
            raise
        sieve.stopped = INTERRUPTED
    return sieve


def _smallest_batch(space: Space) -> int:
    return min(space.batches) if space.batches else 1


@dataclass(slots=True, kw_only=True)
class _Trial:
    """The candidates of one cluster, those with the lowest bounds first."""

    judge: Judge
    sieve: "Sieve"
    exhaustive: bool
    ends_s: float = math.inf

    def run(self, candidates: Sequence[Candidate], watch: Watch | None) -> None:
        """A plan that runs layers again waits with a bound that the same plan without that gives it, and has its own worked out
        only if it is still in the race."""
        objective = self.sieve.objective
        has_plain = any(candidate.parallelism.recompute == "none" for candidate in candidates)
        waiting: list[tuple[float, int, bool, Figures]] = []
        for number, candidate in enumerate(candidates):
            is_own = candidate.parallelism.recompute == "none" or not has_plain
            least = self._bound(candidate, by_plain=not is_own)
            if least is not None:
                waiting.append((least.of(objective), number, is_own, least))
        heapq.heapify(waiting)
        since = 0
        while waiting:
            if time.monotonic() > self.ends_s and self.sieve.best:
                self.sieve.stopped = OUT_OF_TIME
                return
            _, number, is_own, least = heapq.heappop(waiting)
            candidate = candidates[number]
            if not self.exhaustive and self.sieve.is_hopeless(candidate, least):
                self.sieve.num_pruned += 1
            elif is_own:
                self._work_out(number, candidate)
            else:
                own = self._bound(candidate, by_plain=False)
                if own is not None:
                    heapq.heappush(waiting, (own.of(objective), number, True, own))
                continue
            since += 1
            if watch is not None and (since >= WATCHED or not waiting):
                since = 0
                watch(self.sieve.num_answered, self.sieve.num_plans, self.sieve.say_best())

    def _bound(self, candidate: Candidate, *, by_plain: bool) -> Figures | None:
        """What its figures cannot be below. None: it cannot run or cannot fit, which is then written down."""
        plan, cluster = candidate.parallelism, candidate.cluster
        try:
            job = self.judge.job_at(candidate.batch, plan)
            memory = self.judge.least_memory(job, plan)
            if memory.fit_probability < self.sieve.limits.confidence:
                self.sieve.refuse_memory(candidate, memory, is_bound=True)
                return None
            step_s, busy_s = self.judge.least_time(job, plan, by_plain=by_plain)
        except IllegalPlan as error:
            self.sieve.refuse("not possible for this model", candidate, math.inf, str(error))
            return None
        job_s, usd, joules = self.judge.engine.weigh(job, cluster, plan, step_s=step_s, busy_s=busy_s)
        return Figures(step_s=step_s, job_s=job_s, usd=usd, energy_joules=joules)

    def _work_out(self, number: int, candidate: Candidate) -> None:
        plan = candidate.parallelism
        job = self.judge.job_at(candidate.batch, plan)
        try:
            memory = self.judge.memory(job, plan)
            if memory.fit_probability < self.sieve.limits.confidence:
                self.sieve.refuse_memory(candidate, memory)
                return
            answer = self.judge.forecast(job, plan)
        except IllegalPlan as error:
            self.sieve.refuse("not possible for this model", candidate, math.inf, str(error))
            return
        self.sieve.take(number, candidate, figures_of(answer, self.sieve.limits))


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
    doubtful: list[tuple[float, int, Candidate]] = field(default_factory=list)
    """Plans whose bound on memory alone says that they do not fit, by how far at least."""
    best: dict[str, list[tuple[float, int, Candidate, Figures]]] = field(default_factory=dict)
    """Of each cluster by name, the best few."""
    front: list[tuple[tuple[float, float, float], Candidate, Figures]] = field(default_factory=list)

    stopped: str = ""
    """Why it ended before all were answered."""

    def say_best(self) -> str:
        """Of what is known so far; empty where nothing is."""
        first = min((known[0] for known in self.best.values() if known), key=lambda entry: entry[0], default=None)
        if first is None:
            return ""
        money = "" if first[3].usd is None or self.objective == "time" else f", {show_usd(first[3].usd)}"
        return f"best so far {show_seconds(first[3].step_s)} a step{money}"

    @property
    def num_answered(self) -> int:
        return self.num_evaluated + self.num_pruned + sum(self.excluded.values())

    def refuse(
        self, limit: str, candidate: Candidate, over: float, says: str, probability: float | None = None
    ) -> None:
        self.excluded[limit] = self.excluded.get(limit, 0) + 1
        if limit not in self.nearest or over < self.nearest[limit][0]:
            miss = Miss(candidate=candidate, limit=limit, says=says, probability=probability)
            self.nearest[limit] = over, miss

    def refuse_memory(self, candidate: Candidate, memory: MemoryProfile, *, is_bound: bool = False) -> None:
        over = memory.needed_bytes / memory.capacity_bytes
        if is_bound:
            self.excluded["memory"] = self.excluded.get("memory", 0) + 1
            self.doubtful.append((over, len(self.doubtful), candidate))
            return
        self.refuse("memory", candidate, over, _say_memory(memory, self.limits))

    def is_hopeless(self, candidate: Candidate, bound: Figures) -> bool:
        """Neither among the best of its cluster nor on the front, whatever it turns out to be within its bound; or certain
        to break a limit, but then the nearest miss is worth knowing while nothing else is known."""
        known = self.best.get(candidate.cluster.name, [])
        if len(known) < self.top or bound.of(self.objective) <= known[self.top - 1][0] * (1 + SLACK):
            return False
        lowest = tuple(bound.of(objective) for objective in OBJECTIVES)
        return any(
            all(a <= b for a, b in zip(point, lowest, strict=True))
            and any(a < b * (1 - SLACK) for a, b in zip(point, lowest, strict=True))
            for point, _, _ in self.front
        )

    def take(self, number: int, candidate: Candidate, figures: Figures) -> None:
        """`number`: its place in the space; of equal plans the first is shown first."""
        broken = _broken_limit(figures, self.limits)
        if broken is not None:
            chance = {"deadline": figures.deadline_probability, "budget": figures.budget_probability}.get(broken[0])
            self.refuse(broken[0], candidate, broken[1], broken[2], chance)
            return
        self.num_evaluated += 1
        known = self.best.setdefault(candidate.cluster.name, [])
        entry = (figures.of(self.objective), number, candidate, figures)
        if len(known) < self.top or entry[:2] < known[-1][:2]:
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
        self.doubtful += other.doubtful
        self.stopped = self.stopped or other.stopped
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


def _say_memory(memory: MemoryProfile, limits: Limits) -> str:
    return (
        f"needs {show_bytes(memory.needed_bytes)} of {show_bytes(memory.capacity_bytes)} per device and fits "
        f"with probability {memory.fit_probability:.0%}, asked {limits.confidence:.0%}"
    )


def conclude(job_at: JobAt, sieve: Sieve, engine: Engine, *, limits: Limits, objective: str, top: int) -> Search:
    """The full forecast of everything that is given back."""
    ranked = sorted((entry for known in sieve.best.values() for entry in known), key=lambda entry: entry[0])
    chosen = [entry[2] for entry in ranked]
    front = [candidate for _, candidate, _ in sorted(sieve.front, key=lambda entry: entry[0])][:MOST_ON_FRONT]
    shown = _per_cluster(chosen, top=top)
    made = {id(candidate): _make_plan(job_at, candidate, engine, limits) for candidate in (*shown, *front)}
    on_front = {id(candidate) for candidate in front}
    plans = [replace(made[id(candidate)], on_front=id(candidate) in on_front) for candidate in shown]
    plans.sort(key=lambda plan: figures_of(plan.forecast, limits).of(objective))
    plans = undominated_first(plans, objective)
    if not plans:
        _settle_doubts(job_at, sieve, engine)
    nearest = min(sieve.nearest.values(), key=lambda entry: _rank_miss(*entry), default=None)
    return Search(
        plans=tuple(plans),
        front=tuple(replace(made[id(candidate)], on_front=True) for candidate in front),
        num_plans=sieve.num_plans,
        num_evaluated=sieve.num_evaluated,
        num_pruned=sieve.num_pruned,
        excluded=dict(sieve.excluded),
        stopped=sieve.stopped,
        nearest=nearest[1] if nearest is not None and not plans else None,
    )


def undominated_first(plans: Sequence[Plan], objective: str) -> list[Plan]:
    """With the plan in front that no other beats in everything: of those as good as the best by the objective, the cheapest."""
    if not plans:
        return []
    best = pick_best(plans, objective)
    return [best, *(plan for plan in plans if plan is not best)]


def pick_best(plans: Sequence[Plan], objective: str) -> Plan:
    """By the objective; of those that are within the width of a hair, the cheapest, then the greenest, then the fastest."""
    amounts = [(figures_of(plan.forecast, Limits()), plan) for plan in plans]
    least = min(figures.of(objective) for figures, _ in amounts)
    level = [entry for entry in amounts if entry[0].of(objective) <= least * (1 + HAIR)]
    return min(level, key=lambda entry: tuple(entry[0].of(name) for name in ("money", "energy", "time")))[1]


HAIR = 0.005


def _settle_doubts(job_at: JobAt, sieve: Sieve, engine: Engine) -> None:
    """Where nothing fits, the plan that comes nearest may be one whose bound was enough to leave it out."""
    sieve.doubtful.sort(key=lambda entry: entry[:2])
    for over, _, candidate in sieve.doubtful:
        if "memory" in sieve.nearest and over >= sieve.nearest["memory"][0]:
            break
        plan = candidate.parallelism
        judge = Judge(engine=engine, cluster=candidate.cluster, job_at=job_at)
        try:
            memory = judge.memory(job_at(candidate.batch, plan), plan)
        except IllegalPlan:
            continue
        over = memory.needed_bytes / memory.capacity_bytes
        if "memory" not in sieve.nearest or over < sieve.nearest["memory"][0]:
            miss = Miss(candidate=candidate, limit="memory", says=_say_memory(memory, sieve.limits))
            sieve.nearest["memory"] = over, miss


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


def _make_plan(job_at: JobAt, candidate: Candidate, engine: Engine, limits: Limits) -> Plan:
    job = job_at(candidate.batch, candidate.parallelism)
    answer = engine.forecast(job, candidate.cluster, candidate.parallelism)
    met = None if limits.deadline_s is None else meet_probability(answer.job, limits.deadline_s)
    return Plan(candidate=candidate, forecast=answer, deadline_probability=met)
