"""Schedules for readers and for trace viewers: tables, the answer in plain words, JSON and Perfetto traces."""

import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from traincast.schedule import (
    AS_IT_WAS,
    GROUPINGS,
    Case,
    Metrics,
    Start,
    Trace,
    measure_distance,
    measure_groups,
    nearest_replay,
    queue_curve,
)
from traincast.spec import Schedule

PROSE = 120
"""Columns of a paragraph in a terminal."""


def short_s(seconds: float | None) -> str:
    """Seconds as people read them: 43 s, 12.5 min, 7.2 h, 3.1 d."""
    if seconds is None or math.isnan(seconds):
        return "-"
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def perfetto(schedule: Schedule) -> str:
    """The Gantt chart as a Chrome trace for https://ui.perfetto.dev: nodes are processes, jobs are slices."""
    events: list[dict[str, Any]] = []
    nodes: set[int] = set()
    lanes: dict[int, list[float]] = {}
    for held in sorted(schedule.occupations, key=lambda held: held.start_s):
        for node, count in held.nodes:
            nodes.add(node)
            ends = lanes.setdefault(node, [])
            lane = next((at for at, end in enumerate(ends) if end <= held.start_s), len(ends))
            if lane == len(ends):
                ends.append(held.end_s)
            ends[lane] = held.end_s
            events.append(
                {
                    "name": schedule.job_ids[held.job],
                    "ph": "X",
                    "ts": held.start_s * 1e6,
                    "dur": (held.end_s - held.start_s) * 1e6,
                    "pid": node,
                    "tid": lane,
                    "args": {"gpus_here": count, "gpus": held.num_gpus},
                }
            )
    times, waiting = queue_curve(schedule)
    for time_s, count in zip(times.tolist(), waiting.tolist(), strict=True):
        events.append({"name": "waiting jobs", "ph": "C", "ts": time_s * 1e6, "pid": -1, "args": {"jobs": count}})
    for node in sorted(nodes):
        events.append({"name": "process_name", "ph": "M", "pid": node, "args": {"name": f"node {node}"}})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


_COLUMNS: tuple[tuple[str, Callable[[Metrics], str]], ...] = (
    ("policy", lambda m: m.policy),
    ("done", lambda m: f"{m.finished:,}"),
    ("open", lambda m: f"{m.unfinished:,}"),
    ("rejected", lambda m: f"{m.rejected:,}"),
    ("killed", lambda m: f"{m.killed:,}"),
    ("mean wait", lambda m: short_s(m.mean_wait_s)),
    ("p90 wait", lambda m: short_s(m.p90_wait_s)),
    ("mean JCT", lambda m: short_s(m.mean_jct_s)),
    ("slowdown", lambda m: f"{m.mean_slowdown:.2f}"),
    ("used", lambda m: f"{m.utilization:.1%}"),
    ("USD, idle included", lambda m: "-" if m.cost_usd is None else f"{m.cost_usd:,.0f}"),
    ("MWh", lambda m: "-" if m.energy_joules is None else f"{m.energy_joules / 3.6e9:,.2f}"),
    ("late", lambda m: "-" if m.deadline_misses is None else f"{m.deadline_misses:,}/{m.deadlines:,}"),
    ("preempted", lambda m: f"{m.preemptions:,}"),
    ("failed", lambda m: f"{m.failures:,}"),
    ("lost GPU-h", lambda m: f"{m.lost_gpu_hours:,.0f}"),
    ("p50 wait", lambda m: short_s(m.p50_wait_s)),
    ("p99 wait", lambda m: short_s(m.p99_wait_s)),
    ("p90", lambda m: short_s(m.p90_jct_s)),
    ("makespan", lambda m: short_s(m.makespan_s)),
    ("goodput", lambda m: f"{m.goodput:.1%}"),
    ("GPU-h", lambda m: f"{m.gpu_hours:,.0f}"),
)


_DETAILS = (
    "p50 wait",
    "p99 wait",
    "p90",
    "makespan",
    "goodput",
    "GPU-h",
)
"""Columns for which a terminal has no room; the page and --json have them."""


def case_rows(cases: Sequence[Case], *, details: bool = True) -> list[list[str]]:
    """The heading and one row per case; columns that say nothing are left out, and the cluster where there is only one."""
    several = len({case.cluster for case in cases}) > 1
    rows = [["cluster", *(name for name, _ in _COLUMNS)]]
    rows += [[case.cluster, *(show(case.metrics) for _, show in _COLUMNS)] for case in cases]
    kept = [at for at in range(1, len(rows[0])) if at == 1 or any(row[at] not in ("-", "0") for row in rows[1:])]
    if not details:
        kept = [at for at in kept if rows[0][at] not in _DETAILS]
    if several:
        kept.insert(1, 0)
    return [[row[at] for at in kept] for row in rows]


def breakdown_rows(cases: Sequence[Case], by: str) -> list[list[str]]:
    several = len({case.cluster for case in cases}) > 1
    rows = [
        [
            "policy",
            *(["cluster"] if several else []),
            by,
            "jobs",
            "open",
            "GPU-h",
            "mean wait",
            "p50",
            "p90",
            "p99",
            "slowdown",
        ]
    ]
    for case in cases:
        for group in measure_groups(case.schedule, by):
            rows.append(
                [case.label, *([case.cluster] if several else []), group.group, f"{group.num_jobs:,}",
                 f"{group.unfinished:,}", f"{group.gpu_hours:,.0f}", short_s(group.mean_wait_s), short_s(group.p50_wait_s),
                 short_s(group.p90_wait_s), short_s(group.p99_wait_s), f"{group.mean_slowdown:.2f}"]
            )  # fmt: skip
    return rows


def waiting_rows(cases: Sequence[Case], most: int = 8) -> list[list[str]]:
    """The jobs that wait longest in the replay nearest to the log, or in the first one, with what was known of them."""
    nearest = nearest_replay(cases)
    replays = [case for case in cases if case.policy != AS_IT_WAS] or list(cases)
    wanted = [case for case in replays if case.knows == "forecast"]
    wanted += [case for case in replays if nearest is not None and case.label == nearest.label]
    case = [*wanted, *replays][0]
    waits = np.asarray(case.schedule.start_s) - np.asarray(case.schedule.submit_s)
    rows = [[f"job under {case.label}", "tenant", "GPUs", "wait", "runs", "limit", "believed", "90% interval"]]
    for job in np.argsort(-np.nan_to_num(waits, nan=-1.0), kind="stable")[:most].tolist():
        believed = None if case.beliefs is None else float(case.beliefs.values_s[job])
        limits = None if case.beliefs is None else case.beliefs.interval_s(job)
        interval = "-" if limits is None else f"{short_s(limits[0])} to {short_s(limits[1])}"
        run_s, limit_s = float(case.schedule.duration_s[job]), float(case.jobs.limit_s[job])
        rows.append(
            [case.schedule.job_ids[job], case.jobs.tenants[job] or "-", f"{case.schedule.num_gpus[job]:g}",
             short_s(float(waits[job])), short_s(run_s), short_s(limit_s), short_s(believed), interval]
        )  # fmt: skip
    return rows


def _say_forecasts(cases: Sequence[Case]) -> str:
    """How good the forecasts were that a scheduler went by."""
    case = next((case for case in cases if case.knows == "forecast" and case.beliefs is not None), None)
    if case is None or case.beliefs is None:
        return ""
    true, (low, high) = np.asarray(case.schedule.duration_s), case.beliefs.limits_s
    known = ~np.isnan(low) & (true > 0) & (high > low)
    if not known.any():
        return ""
    error = np.median(np.abs(case.beliefs.values_s[known] / true[known] - 1))
    inside = np.mean((true[known] >= low[known]) & (true[known] <= high[known]))
    return f"Forecasts of {int(known.sum()):,} jobs are off by {error:.0%} in the median; {inside:.0%} lie in their 90% interval."


def align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_policies(trace: Trace, cases: Sequence[Case], *, groupings: Sequence[str] = (), max_bad: int = 5) -> str:
    """The cases side by side, with what could not be read or run said first and the answer in words last."""
    fleets = []
    for case in cases:
        pools = ", ".join(f"{pool.num_nodes}x{pool.gpus_per_node} {pool.device}" for pool in case.schedule.fleet.pools)
        fleets.append(f"{case.schedule.fleet.num_gpus:,} GPUs ({pools})")
    lines = [f"{trace.name}: {len(trace.jobs):,} jobs ({trace.format}) on {' or '.join(dict.fromkeys(fleets))}"]
    if trace.bad_rows:
        lines.append(f"{len(trace.bad_rows):,} rows could not be used:")
        lines += [f"  {row}" for row in trace.bad_rows[:max_bad]]
        if len(trace.bad_rows) > max_bad:
            lines.append(f"  ... and {len(trace.bad_rows) - max_bad:,} more (--json lists all)")
    lines += [f"note: {note}" for note in trace.notes]
    lines += ["", align(case_rows(cases, details=False))]
    for by in groupings:
        lines += ["", align(waiting_rows(cases) if by == "job" else breakdown_rows(cases, by))]
    reasons = {reason for case in cases for reason in case.schedule.rejected.values()}
    if reasons:
        lines += ["", *(f"rejected: {reason}" for reason in sorted(reasons)[:max_bad])]
    return "\n".join([*lines, "", textwrap.fill(summarize(cases), PROSE)])


def format_starts(starts: Sequence[Start], notes: Sequence[str], *, known: bool) -> str:
    """When a waiting job starts, one row per policy."""
    rows = [["policy", "starts p50", "p90", "ends p50", "p90"]]
    for start in starts:
        moments = (start.p50_start_s, start.p90_start_s, start.p50_end_s, start.p90_end_s)
        rows.append([start.policy, *(short_s(moment) for moment in moments)])
    first = starts[0]
    drawn = "as earlier jobs used their limits, or as forecasts say" if known else "by limits and forecasts"
    answer = (
        f"Job {first.job_id} starts in {short_s(first.p50_start_s)} under {first.policy}; nine times of ten within "
        f"{short_s(first.p90_start_s)} ({first.num_draws} runs, run times drawn {drawn}; {first.ahead:,} jobs wait before it)."
    )
    return "\n".join([*(f"note: {note}" for note in notes), "", align(rows), "", textwrap.fill(answer, PROSE)])


def format_goals(rows: Sequence[Mapping[str, Any]], goal: str, notes: Sequence[str]) -> str:
    """How many nodes meet a goal, one row per cluster and policy."""
    table = [["policy", "cluster", "nodes", "GPUs", "USD per hour"]]
    for row in rows:
        nodes, usd = row["nodes"], row["usd_per_hour"]
        shown = (
            "-" if nodes is None else f"{nodes:,}",
            "-" if nodes is None else f"{row['gpus']:,}",
            "-" if usd is None else f"{usd:,.2f}",
        )
        table.append([row["policy"], row["cluster"], *shown])
    enough = [row for row in rows if row["nodes"] is not None]
    answer = f"No number of nodes that was tried meets {goal}."
    if enough:
        best = min(enough, key=lambda row: row["gpus"])
        tried = f"({best['fleets_tried']} sizes tried)"
        answer = f"{goal} is met with {best['nodes']:,} nodes of {best['device']} under {best['policy']} {tried}."
    return "\n".join([*(f"note: {note}" for note in notes), "", align(table), "", answer])


def describe_policies(trace: Trace, cases: Sequence[Case]) -> dict[str, Any]:
    """The comparison as JSON: every metric, every breakdown, and how far replays are from what happened."""
    nearest = nearest_replay(cases)
    real = cases[0] if nearest is not None else None
    rows = []
    for case in cases:
        distance = None if real is None or case is real else measure_distance(real, case)
        rows.append(
            {
                **case.metrics.as_dict(),
                "policy": case.policy,
                "cluster": case.cluster,
                "knows": case.knows,
                "believed_s": None if case.beliefs is None else case.beliefs.values_s.tolist(),
                "believed_interval_s": None if case.beliefs is None else _pairs(case.beliefs.limits_s),
                "apart_from_real_start_s": None if distance is None else distance.median_s,
                "groups": {by: [_plain(group) for group in measure_groups(case.schedule, by)] for by in GROUPINGS},
            }
        )
    return {
        "trace": trace.name,
        "format": trace.format,
        "num_jobs": len(trace.jobs),
        "bad_rows": [str(row) for row in trace.bad_rows],
        "notes": list(trace.notes),
        "policies": rows,
        "summary": summarize(cases),
    }


def _pairs(limits: tuple[Any, Any]) -> list[list[float] | None]:
    return [
        None if low != low else [low, high] for low, high in zip(limits[0].tolist(), limits[1].tolist(), strict=True)
    ]


def _plain(group: Any) -> dict[str, Any]:
    values = {name: getattr(group, name) for name in group.__slots__ if name not in ("policy", "by")}
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}


def summarize(cases: Sequence[Case]) -> str:
    """The answer in a paragraph of plain words."""
    sentences = (
        _say_nearest(cases),
        _say_best(cases),
        _say_knowledge(cases),
        _say_forecasts(cases),
        _say_clusters(cases),
        _say_failures(cases),
    )
    return " ".join(sentence for sentence in sentences if sentence)


def _say_nearest(cases: Sequence[Case]) -> str:
    nearest = nearest_replay(cases)
    if nearest is None:
        return ""
    real = nearest.real_mean_wait_s
    apart = abs(nearest.mean_wait_s / real - 1) if real > 0 else 0.0
    off = f", {apart:.0%} {'more' if nearest.mean_wait_s > real else 'less'}" if apart >= 0.005 else ""
    return (
        f"In the log jobs waited {short_s(real)} on average. The replay that comes nearest is {nearest.label}: "
        f"{short_s(nearest.mean_wait_s)}{off}; half of the jobs start within {short_s(nearest.median_s)} of their real start and "
        f"{nearest.near:.0%} within ten minutes. The other rows are as believable as that."
    )


def _say_best(cases: Sequence[Case]) -> str:
    rows = [case for case in cases if case.policy != AS_IT_WAS and not math.isnan(case.metrics.mean_wait_s)]
    if len(rows) < 2:
        return ""
    best, worst = (choose(rows, key=lambda case: case.metrics.mean_wait_s) for choose in (min, max))
    several = len({case.cluster for case in cases}) > 1
    where = f" on {best.cluster}" if several else ""
    other = f" on {worst.cluster}" if several else ""
    left = f" It leaves {best.metrics.unfinished:,} jobs unfinished." if best.metrics.unfinished else ""
    return (
        f"Jobs wait least under {best.label}{where}: {short_s(best.metrics.mean_wait_s)} on average, nine of ten within "
        f"{short_s(best.metrics.p90_wait_s)}; most under {worst.label}{other}: {short_s(worst.metrics.mean_wait_s)}.{left}"
    )


def _say_knowledge(cases: Sequence[Case]) -> str:
    """What knowing more is worth, for the first policy that was run with several kinds of knowledge."""
    for case in cases:
        same = [other for other in cases if (other.policy, other.cluster) == (case.policy, case.cluster)]
        if len(same) > 1:
            told = ", ".join(f"{short_s(other.metrics.mean_wait_s)} with {other.knows}" for other in same)
            return f"What the scheduler knows changes the mean wait under {case.policy}: {told}."
    return ""


def _say_clusters(cases: Sequence[Case]) -> str:
    clusters = list(dict.fromkeys(case.cluster for case in cases))
    if len(clusters) < 2:
        return ""
    nearest = nearest_replay(cases)  # clusters are compared under what comes closest to the real scheduler
    first = next(
        case for case in cases if (case.policy != AS_IT_WAS if nearest is None else case.label == nearest.label)
    )
    same = [case for case in cases if (case.policy, case.knows) == (first.policy, first.knows)]
    told = []
    for case in same:
        money = "" if case.metrics.cost_usd is None else f", {case.metrics.cost_usd:,.0f} USD with idle GPUs"
        told.append(
            f"{case.cluster}: wait {short_s(case.metrics.mean_wait_s)}, {case.metrics.utilization:.0%} used{money}"
        )
    return f"Under {first.label}: {'; '.join(told)}."


def _say_failures(cases: Sequence[Case]) -> str:
    """What failures cost the first policy that met any, on every cluster."""
    struck = next((case for case in cases if case.metrics.failures), None)
    if struck is None:
        return ""
    several = len({case.cluster for case in cases}) > 1
    told = []
    for case in cases:
        if (case.policy, case.knows) == (struck.policy, struck.knows) and case.metrics.failures:
            used = case.metrics.gpu_hours
            lost = f" ({case.metrics.lost_gpu_hours / used:.1%} of all that was used)" if used > 0 else ""
            where = f"on {case.cluster} " if several else ""
            again = f"interruptions of all kinds cost {case.metrics.lost_gpu_hours:,.0f} GPU-hours{lost}"
            told.append(f"{where}{case.metrics.failures:,} runs were cut off, and {again}")
    return f"Failures of nodes under {struck.label}: {'; '.join(told)}."
