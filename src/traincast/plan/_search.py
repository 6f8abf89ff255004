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
)
from traincast.plan._space import Shape, leave_whole, list_candidates
from traincast.spec import Calibration, Cluster, Job, MemoryProfile, Parallelism
from traincast.units import show_bytes, show_seconds, show_usd

WATCHED = 32
"""Candidates between two reports of how far the search is."""
MOST_ON_FRONT = 200
INTERRUPTED, OUT_OF_TIME = "interrupted", "out of time"
LEFT_WHOLE = "layers are not cut where half of a device holds a replica's state (--tp 1,2,4 --pp 1,2 tries it)"
SLACK = 1e-6
"""A bound must be worse by more than this before it decides."""

Watch = Callable[[int, int, str], None]
"""(plans answered, plans in all so far, the best of them in words)."""
_Known = tuple[Candidate, Figures]


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
    engine: Engine | None = None,
    costs: CostModel | None = None,
    calibration: Calibration | None = None,
) -> Search:
    """Answer every plan of the space on every cluster: by a bound on its time or memory, or by its forecast.

    `exhaustive` works out every plan that fits, whatever its bound says. The plans given back carry full forecasts. `engine`: one
    that has answered before. `costs` or `calibration`: what prices tasks instead of the models that ship with the package. What
    measured runs taught may make any plan faster than its bound, so with such a calibration every plan is worked out. When its
    time is out or it is interrupted, it gives what it found so far.
    """
    if objective not in OBJECTIVES:
        raise InvalidInput(f"objective = {objective!r}; allowed: {', '.join(OBJECTIVES)}")
    if top < 1:
        raise InvalidInput(f"top = {top}; ask for at least one plan")
    own = engine or Engine(costs=costs, calibration=calibration)
    sieve = Sieve(limits=limits or Limits(), objective=objective, top=top)
    with _collecting_rarely():
        _sift(
            clusters, job_at, space, sieve, exhaustive=exhaustive or own.calibration is not None, watch=watch,
            engine=own,
        )  # fmt: skip
    return conclude(job_at, sieve, own)


def weighed(job: Job) -> Job:
    """What plans are compared by: a job without a length by its step alone, not by a start and one step."""
    if any(amount is not None for amount in (job.steps, job.samples, job.epoch_samples)):
        return job
    return replace(job, startup_s=0.0, compile_s=0.0)


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
    clusters: Sequence[Cluster], job_at: JobAt, space: Space, sieve: "Sieve", *, exhaustive: bool, watch: Watch | None,
    engine: Engine,
) -> None:  # fmt: skip
    shape = Shape.of(job_at(_smallest_batch(space), Parallelism(recompute=space.recompute[0])).graph)
    ends_s = math.inf if sieve.limits.search_s is None else time.monotonic() + sieve.limits.search_s
    try:
        for cluster in clusters:
            whole = leave_whole(space, cluster, shape)
            sieve.is_left_whole |= whole != space
            candidates = list(list_candidates(whole, cluster, shape))
            sieve.num_plans += len(candidates)
            judge = Judge(engine=engine, cluster=cluster, job_at=job_at)
            trial = _Trial(judge=judge, sieve=sieve, exhaustive=exhaustive, ends_s=ends_s)
            trial.run(candidates, watch)
    except KeyboardInterrupt:
        if not sieve.best:
            raise
        sieve.stopped = INTERRUPTED


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
        job_s, usd, joules = self.judge.engine.weigh(weighed(job), cluster, plan, step_s=step_s, busy_s=busy_s)
        return Figures(step_s=step_s, job_s=job_s, usd=usd, energy_joules=joules)

    def _work_out(self, number: int, candidate: Candidate) -> None:
        plan = candidate.parallelism
        job = self.judge.job_at(candidate.batch, plan)
        try:
            memory = self.judge.memory(job, plan)
            if memory.fit_probability < self.sieve.limits.confidence:
                self.sieve.refuse_memory(candidate, memory)
                return
            answer = self.judge.forecast(weighed(job), plan)
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
    is_left_whole: bool = False
    """Whether plans that cut the layers of a small model were left out somewhere."""

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
        f"needs {show_bytes(memory.needed_bytes)} of {show_bytes(memory.capacity_bytes)} per device and is "
        f"{memory.fit_probability:.0%} likely to fit, asked {limits.confidence:.0%}"
    )


def conclude(job_at: JobAt, sieve: Sieve, engine: Engine) -> Search:
    """The full forecast of everything that is given back."""
    ranked = sorted((entry for known in sieve.best.values() for entry in known), key=lambda entry: entry[:2])
    front = sorted(sieve.front, key=lambda entry: entry[0])[:MOST_ON_FRONT]
    shown = _per_cluster([entry[2:] for entry in ranked], top=sieve.top)
    on_front = {id(candidate): (candidate, figures) for _, candidate, figures in front}
    listed = {**on_front, **{id(candidate): (candidate, figures) for candidate, figures in shown}}
    made = {
        key: replace(_make_plan(job_at, candidate, figures, engine), on_front=key in on_front)
        for key, (candidate, figures) in listed.items()
    }
    plans = sorted((made[id(candidate)] for candidate, _ in shown), key=lambda plan: plan.figures.of(sieve.objective))
    if plans:
        # In front the plan that no other beats in everything: of those as good as the best by the objective, the cheapest.
        best = pick_best(plans, sieve.objective)
        plans = [best, *(plan for plan in plans if plan is not best)]
    else:
        _settle_doubts(job_at, sieve, engine)
    nearest = min(sieve.nearest.values(), key=lambda entry: _rank_miss(*entry), default=None)
    return Search(
        plans=tuple(plans),
        front=tuple(made[key] for key in on_front),
        num_plans=sieve.num_plans,
        num_evaluated=sieve.num_evaluated,
        num_pruned=sieve.num_pruned,
        excluded=dict(sieve.excluded),
        stopped=sieve.stopped,
        notes=(LEFT_WHOLE,) if sieve.is_left_whole else (),
        nearest=nearest[1] if nearest is not None and not plans else None,
    )


def pick_best(plans: Sequence[Plan], objective: str) -> Plan:
    """By the objective; of those that are within the width of a hair, the cheapest, then the greenest, then the fastest."""
    least = min(plan.figures.of(objective) for plan in plans)
    level = [plan for plan in plans if plan.figures.of(objective) <= least * (1 + HAIR)]
    return min(level, key=lambda plan: tuple(plan.figures.of(name) for name in ("money", "energy", "time")))


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


def _per_cluster(candidates: Sequence[_Known], *, top: int) -> list[_Known]:
    """The best of every cluster first; then, while there is room, the runners-up."""
    seen: dict[str, int] = {}
    rounds: list[tuple[int, int, _Known]] = []
    for place, known in enumerate(candidates):
        name = known[0].cluster.name
        rounds.append((seen.get(name, 0), place, known))
        seen[name] = seen.get(name, 0) + 1
    return [known for _, _, known in sorted(rounds, key=lambda entry: entry[:2])[:top]]


def _make_plan(job_at: JobAt, candidate: Candidate, figures: Figures, engine: Engine) -> Plan:
    job = job_at(candidate.batch, candidate.parallelism)
    answer = engine.forecast(job, candidate.cluster, candidate.parallelism)
    return Plan(
        candidate=candidate, forecast=answer, figures=figures, deadline_probability=figures.deadline_probability
    )
