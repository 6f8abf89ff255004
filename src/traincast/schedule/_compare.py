"""One trace under several policies, clusters and kinds of knowledge, beside what really happened: the rows of a comparison."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincast.errors import InvalidInput, UnknownName
from traincast.noun import noun
from traincast.schedule._estimators import EXACT, Beliefs, Estimator, Fixed, FromHistory, Limits
from traincast.schedule._jobs import JobTable
from traincast.schedule._known import traits_of
from traincast.schedule._metrics import Metrics, measure_schedule, price_window
from traincast.schedule._study import Setting, run_policy
from traincast.spec import Fleet, Schedule

KNOWLEDGE = ("limit", "forecast", "history", "truth")
"""What a scheduler may know of a job's run time: what its user asked for, a forecast, earlier jobs of its user, or all."""
AS_IT_WAS = "as it was"
WORTH_TELLING = 20_000
"""Jobs from which on each row is told when it is known, before the table."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One row: a policy with what it knows, on one cluster."""

    policy: str
    cluster: str
    knows: str | None
    schedule: Schedule
    metrics: Metrics
    jobs: JobTable
    beliefs: Fixed | None = None
    """What the scheduler believed, where it did not learn on the way."""

    @property
    def label(self) -> str:
        return self.policy if self.knows is None else f"{self.policy} ({self.knows})"


def know(name: str, jobs: JobTable, forecast: Estimator | None) -> Estimator:
    """The estimator that stands for a kind of knowledge; refused where the trace cannot give it."""
    if name not in KNOWLEDGE:
        raise UnknownName("kind of knowledge", name, KNOWLEDGE, plural="kinds of knowledge")
    if name == "forecast":
        if forecast is None:
            raise InvalidInput("--knows forecast needs forecasts: name workloads in the trace and pass --forecasts")
        return forecast
    if name == "limit":
        Limits().start(jobs)
        return Limits()
    return FromHistory() if name == "history" else EXACT


def default_knowledge(jobs: JobTable, forecast: Estimator | None) -> str:
    """What a real scheduler would have: forecasts where they were asked for, else limits where the log has them."""
    if forecast is not None:
        return "forecast"
    return "limit" if len(jobs) and not np.isnan(jobs.limit_s).all() else "truth"


def run_cases(
    jobs: JobTable,
    settings: Sequence[tuple[str, Setting]],
    *,
    policies: Sequence[str],
    knows: Sequence[str],
    forecast: Estimator | None = None,
    on_jobs: Callable[[int, int], None] | None = None,
    notify: Callable[[str], None] | None = None,
) -> list[Case]:
    """As it was on the first cluster, if the log says so, then every policy with every knowledge it can use on every
    cluster. A policy that never asks for a run time has one row."""
    estimators = {name: know(name, jobs, forecast) for name in knows}
    tasks = [
        (cluster, policy, kind)
        for cluster, _ in settings
        for policy in policies
        for kind in (knows if traits_of(policy).estimates else [None])
    ]
    by_name = dict(settings)
    cases = []
    really = as_it_was(jobs, settings[0][1].fleet)
    if really is not None:
        cases.append(_case(really, AS_IT_WAS, settings[0][0], None, jobs))
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if on_jobs is not None:
            on_jobs(done, len(tasks) * len(jobs))

    for cluster, policy, kind in tasks:
        setting = by_name[cluster]
        own = policy == "qssf" and kind == default_knowledge(jobs, forecast) and len(knows) == 1
        # QSSF was made for history; it keeps it unless it is told otherwise.
        if kind is not None and not own:
            setting = replace(setting, estimator=estimators[kind])
        schedule = run_policy(policy, jobs, setting, progress=count, notify=notify)
        beliefs = None if kind is None else setting.estimator_for(policy).start(jobs)
        cases.append(_case(schedule, policy, cluster, "history" if own else kind, jobs, beliefs))
        if notify is not None and len(jobs) >= WORTH_TELLING:
            found = cases[-1].metrics
            notify(
                f"{cases[-1].label} on {cluster}: mean wait {found.mean_wait_s / 3600:.2f} h, p90 {found.p90_wait_s / 3600:.2f} h"
            )
        if len(schedule.rejected) == len(jobs):
            reason = next(iter(schedule.rejected.values()))
            raise InvalidInput(f"{policy} rejects every job on {cluster}: {reason}")
    return over_one_window(cases)


def over_one_window(cases: Sequence[Case]) -> list[Case]:
    """Money and energy of all rows until the last of them is done, idle GPUs included: a faster cluster is there no less long."""
    span_s = max(
        (case.metrics.makespan_s for case in cases if not math.isnan(case.metrics.makespan_s)), default=math.nan
    )
    return [replace(case, metrics=price_window(case.schedule, case.metrics, span_s)) for case in cases]


def _case(
    schedule: Schedule, policy: str, cluster: str, knows: str | None, jobs: JobTable, beliefs: Beliefs | None = None
) -> Case:
    metrics = measure_schedule(schedule)
    fixed = beliefs if isinstance(beliefs, Fixed) else None
    case = Case(
        policy=policy, cluster=cluster, knows=knows, schedule=schedule, metrics=metrics, jobs=jobs, beliefs=fixed
    )
    return replace(case, schedule=replace(schedule, policy=case.label), metrics=replace(metrics, policy=case.label))


def as_it_was(jobs: JobTable, fleet: Fleet) -> Schedule | None:
    """What really happened, where the log says when jobs started; None if it does not."""
    start = jobs.started_s
    known = ~np.isnan(start) & ~np.isnan(jobs.duration_s)
    if not known.any():
        return None
    run_s = np.where(known, jobs.duration_s, 0.0)
    end = np.where(known, start + jobs.duration_s, np.nan)
    count = len(jobs)
    notes = []
    if not known.all():
        notes.append(f"{int((~known).sum()):,} jobs have no start in the log and are not in the row {AS_IT_WAS!r}")
    most = _most_at_once(start[known], end[known], jobs.num_gpus[known])
    if most > fleet.num_gpus:
        notes.append(
            f"in the log up to {most:,.0f} GPUs were in use at once, more than the {fleet.num_gpus:,} of this cluster"
        )
    gpu_s = run_s * jobs.num_gpus
    return jobs.scheduled(
        policy=AS_IT_WAS,
        fleet=fleet,
        start_s=np.where(known, np.maximum(start, jobs.submit_s), np.nan),
        end_s=end,
        preemptions=np.zeros(count, dtype=np.int64),
        failures=np.zeros(count, dtype=np.int64),
        run_s=run_s,
        gpu_s=gpu_s,
        lost_gpu_s=np.zeros(count),
        pool_gpu_s=np.array([float(gpu_s.sum())]) if len(fleet.pools) == 1 else (),
        notes=tuple(notes),
    )


def _most_at_once(start_s: np.ndarray, end_s: np.ndarray, gpus: np.ndarray) -> float:
    times = np.concatenate([start_s, end_s])
    steps = np.concatenate([gpus, -gpus])
    order = np.lexsort((steps, times))
    return float(np.cumsum(steps[order]).max(initial=0.0))


@noun
class Distance:
    """How far a replay is from what really happened."""

    label: str
    mean_wait_s: float
    real_mean_wait_s: float
    median_s: float
    """Half of the jobs start no further than this from their real start."""
    near: float
    """The share of jobs that start within ten minutes of their real start."""


def measure_distance(real: Case, other: Case) -> Distance:
    ours, theirs = np.asarray(other.schedule.start_s), np.asarray(real.schedule.start_s)
    apart = np.abs(ours - theirs)[~np.isnan(ours) & ~np.isnan(theirs)]
    return Distance(
        label=other.label,
        mean_wait_s=other.metrics.mean_wait_s,
        real_mean_wait_s=real.metrics.mean_wait_s,
        median_s=float(np.median(apart)) if len(apart) else math.nan,
        near=float((apart <= 600).mean()) if len(apart) else math.nan,
    )


def nearest_replay(cases: Sequence[Case]) -> Distance | None:
    """The row on the real cluster that comes closest to what happened; None without a row that says what did."""
    if not cases or cases[0].policy != AS_IT_WAS:
        return None
    replays = [case for case in cases[1:] if case.cluster == cases[0].cluster]
    found = [measure_distance(cases[0], case) for case in replays]
    return min(found, key=lambda entry: abs(entry.mean_wait_s - entry.real_mean_wait_s), default=None)
