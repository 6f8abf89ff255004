"""Jobs and a policy to a schedule: one event-driven clock for every policy."""

import math
import os
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from traincast.errors import InvalidInput, UnknownName
from traincast.schedule import _loop as loop
from traincast.schedule._estimators import Beliefs, Fixed
from traincast.schedule._floor import Floor, check_durations
from traincast.schedule._jobs import Floats, JobTable
from traincast.schedule._layout import Layout, is_placed
from traincast.schedule._loop import HEAD
from traincast.schedule._policies import Policy
from traincast.schedule._protocols import Conditions, RoundPolicy
from traincast.schedule._rules import Rule, find_rule
from traincast.schedule._shares import SharePolicy
from traincast.schedule._turns import InTurns
from traincast.spec import Fleet, Occupation, Request, Schedule

ENGINES = ("auto", "compiled", "interpreted")
WORTH_COMPILING = 50_000
"""Jobs from which on machine code is used; where it has to be made first (once per version and machine), twice as many, and ten
times as many for a policy that only looks at the first job in line."""
COMPILING_S = 8
MOMENTS = 5000
"""So many moments pass between two reports of progress."""


def simulate_cluster(
    jobs: JobTable | Iterable[Request],
    policy: Policy | RoundPolicy | SharePolicy,
    *,
    fleet: Fleet,
    **options: Any,
) -> Schedule:
    """Let the jobs compete for the fleet; same input, same answer, to the last bit. `Conditions` says what the options mean."""
    table = jobs if isinstance(jobs, JobTable) else JobTable.from_requests(jobs)
    given = Conditions(fleet=fleet, **{name: value for name, value in options.items() if value is not None})
    if given.engine not in ENGINES:
        raise UnknownName("engine", given.engine, ENGINES)
    check_durations(table)
    if isinstance(policy, SharePolicy):
        policy = InTurns(policy)
    beliefs = given.estimator.start(table)
    estimate = beliefs.values_s if isinstance(beliefs, Fixed) else np.zeros(len(table))
    rule = find_rule(policy, table, estimate, beliefs)
    if _is_compiled(table, rule, given, beliefs):
        return _run_compiled(Layout(table, rule, given, beliefs), given)
    floor = Floor(table, rule, given, beliefs)
    look = loop.find_look(floor.run[0])
    _run(floor.run[0], lambda most: loop.run_events(floor, most, look), given)
    return _answer(floor)


def _is_compiled(jobs: JobTable, rule: Rule, given: Conditions, beliefs: Beliefs) -> bool:
    """Whether the loop runs as machine code: where that is asked for or pays, and nothing happens that calls Python objects."""
    look = loop.find_look(SimpleNamespace(fit=rule.fit, counted=given.placer.name == "count")).__name__
    times = 1 if is_kept(look) else 10 if rule.fit == HEAD else 2
    if given.engine == "interpreted" or (given.engine == "auto" and len(jobs) < times * WORTH_COMPILING):
        return False
    asked = given.failures or given.network or given.record
    plain = not (
        rule.asks or rule.key or asked or any(jobs.dependencies) or not np.isnan(jobs.ran_s).all()
    ) and isinstance(beliefs, Fixed)
    can = plain and find_spec("numba") is not None and not is_placed(rule, given)
    if given.engine == "compiled" and not can:
        raise InvalidInput(
            "the compiled engine needs numba and knows no failures, links, records, dependencies or "
            "speeds by place, nor policies that are asked for their order; use the engine auto"
        )
    return can


def is_kept(look: str) -> bool:
    """Whether numba has kept the machine code of the loop and of this look: beside the source, or where it is told to."""
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(loop.__file__).parent / "__pycache__")
    lines = {name: getattr(loop, name).__code__.co_firstlineno for name in ("run_events", look)}
    return all(any(folder.rglob(f"_loop.{name}-{line}.*.nbi")) for name, line in lines.items())


def _run_compiled(layout: Layout, given: Conditions) -> Schedule:
    from traincast.schedule import _compiled

    name = loop.find_look(layout.run_record()).__name__
    if given.notify is not None and not is_kept(name):
        given.notify(f"compiling the event loop ({name}), once for this version: some {COMPILING_S} s of CPU time")
    rows, run, pool_s = _compiled.run_layout(layout, name, lambda record, advance: _run(record, advance, given))
    killed = frozenset(np.flatnonzero(rows["killed"]).tolist()) if given.kill_at_limit else frozenset()
    became = {name: rows[name].copy() for name in ("start", "end", "attained")}
    preemptions = rows["preemptions"].astype(np.int64)
    del rows
    lost = np.broadcast_to(0.0, len(preemptions))
    if preemptions.any():
        lost = preemptions * np.array(layout.kinds.cost)[layout.kinds.of_job] * layout.jobs.num_gpus
    return _schedule(
        layout, started=became["start"], end_s=became["end"], run_s=became["attained"], preemptions=preemptions,
        lost_gpu_s=lost, killed=killed, pool_gpu_s=pool_s, num_passes=int(run["passes"]),
        rejected={job: layout.refusal(job) for job in layout.impossible if job < run["cursor"]},
    )  # fmt: skip


def _run(run: Any, advance: Callable[[int], bool], given: Conditions) -> None:
    told, more = 0, True
    while more:
        more = advance(MOMENTS)
        if given.progress is not None:
            ended = int(run["ended"] if isinstance(run, np.void) else run.ended)
            given.progress(ended - told)
            told = ended


def _answer(floor: Floor) -> Schedule:
    records, jobs, given = floor.job, floor.jobs, floor.given

    def column(name: str, kind: Any = np.float64) -> Any:
        return np.fromiter((getattr(record, name) for record in records), dtype=kind, count=len(jobs))

    run_s, preemptions = column("attained"), column("preemptions", np.int64)
    cost = np.array(floor.kinds.cost)[floor.kinds.of_job] if len(jobs) else np.zeros(0)
    more: dict[str, Any] = {"lost_gpu_s": preemptions * cost * jobs.num_gpus}
    if floor.hooked:
        more = {"gpu_s": np.array(floor.gpu_s), "lost_gpu_s": np.array(floor.lost_gpu_s)}
        more["failures"] = np.array(floor.num_failures, dtype=np.int64)
    if given.record:
        more["occupations"] = [
            Occupation(job=job, start_s=start, end_s=end, num_gpus=sum(gpus for _, gpus in nodes), nodes=nodes)
            for job, start, end, nodes in floor.logged
        ]
    beyond = frozenset(np.flatnonzero(column("killed", np.int64)).tolist()) if given.kill_at_limit else frozenset()
    arrived = floor.run[0].cursor
    return _schedule(
        floor.layout, started=column("start"), end_s=column("end"), run_s=run_s, preemptions=preemptions,
        killed=beyond | floor.killed, pool_gpu_s=np.array(floor.pool_s, dtype=np.float64),
        rejected={job: why for job, why in floor.rejected.items() if job < arrived},
        num_passes=int(floor.run[0].passes), **more,
    )  # fmt: skip


def _schedule(layout: Layout, *, started: Floats, run_s: Floats, **more: Any) -> Schedule:
    jobs, given = layout.jobs, layout.given
    usual = {"gpu_s": run_s * jobs.num_gpus, "failures": np.broadcast_to(np.int64(0), len(jobs))}
    return jobs.scheduled(
        policy=layout.rule.policy.name,
        fleet=given.fleet,
        start_s=np.where(started < 0, math.nan, started),
        run_s=run_s,
        until_s=given.until_s if math.isfinite(given.until_s) else math.nan,
        **{**usual, **more},
    )
