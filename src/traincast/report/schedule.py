"""Schedules for eyes and for trace viewers: tables, Gantt charts, curves, one page that compares policies."""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from traincast.schedule.agreement import EXACTLY, Agreement
from traincast.schedule.metrics import Metrics, queue_curve, use_curve
from traincast.schedule.study import SweepPoint
from traincast.schedule.traces import Trace
from traincast.spec.fleet import Schedule

COLORS = ("#2458a6", "#c8553d", "#3a7d44", "#8a4fa0", "#b8860b", "#17808c", "#7a4b2a", "#5c5c5c")
_FONT = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    name: str
    x: Sequence[float]
    y: Sequence[float]
    marks: bool = False


def short_s(seconds: float | None) -> str:
    """Seconds as people read them: 43 s, 12.5 min, 7.2 h, 3.1 d."""
    if seconds is None or math.isnan(seconds):
        return "-"
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _ticks(low: float, high: float, *, logarithmic: bool) -> list[float]:
    if logarithmic:
        return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    if high <= low:
        return [low]
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _label(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:g}"


def draw_curves(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    steps: bool = False,
    from_zero: bool = True,
    width: int = 720,
    height: int = 320,
) -> str:
    """Lines with axes and a legend as one SVG; at most about 1,500 points of each line are drawn."""
    xs = [x for curve in curves for x in curve.x if not log_x or x > 0]
    ys = [y for curve in curves for y in curve.y]
    if not xs or not ys:
        return _svg(width, 40, [f"<text x='8' y='24' font-size='12'>{html.escape(title)}: no data</text>"])
    low_x, high_x = min(xs), max(xs)
    low_y, high_y = (0.0 if from_zero else min(ys)), max(ys)
    if high_x <= low_x:
        high_x = low_x + 1
    if high_y <= low_y:
        high_y = low_y + 1
    legend_rows = -(-len(curves) // 4)
    left, top, right, bottom = 76, 48, 16, 40 + 15 * legend_rows
    height += 15 * (legend_rows - 1)
    plot_w, plot_h = width - left - right, height - top - bottom

    def place_x(x: float) -> float:
        if log_x:
            return left + plot_w * (math.log(max(x, low_x)) - math.log(low_x)) / (math.log(high_x) - math.log(low_x))
        return left + plot_w * (x - low_x) / (high_x - low_x)

    def place_y(y: float) -> float:
        return top + plot_h * (1 - (y - low_y) / (high_y - low_y))

    body = [f"<text x='{left}' y='20' font-size='14' font-weight='600'>{html.escape(title)}</text>"]
    for tick in _ticks(low_y, high_y, logarithmic=False):
        y = place_y(tick)
        body.append(f"<line x1='{left}' y1='{y:.1f}' x2='{left + plot_w}' y2='{y:.1f}' stroke='#ddd'/>")
        body.append(f"<text x='{left - 6}' y='{y + 4:.1f}' font-size='11' text-anchor='end'>{_label(tick)}</text>")
    for tick in _ticks(low_x, high_x, logarithmic=log_x):
        if low_x <= tick <= high_x * (1 + 1e-9):
            x = place_x(tick)
            body.append(f"<line x1='{x:.1f}' y1='{top}' x2='{x:.1f}' y2='{top + plot_h}' stroke='#eee'/>")
            body.append(
                f"<text x='{x:.1f}' y='{top + plot_h + 16}' font-size='11' text-anchor='middle'>{_label(tick)}</text>"
            )
    for number, curve in enumerate(curves):
        color = COLORS[number % len(COLORS)]
        dash = "" if number < len(COLORS) else " stroke-dasharray='5 3'"
        stride = max(len(curve.x) // 1500, 1)
        points: list[str] = []
        last_y: float | None = None
        for at in range(0, len(curve.x), stride):
            x, y = place_x(float(curve.x[at])), place_y(float(curve.y[at]))
            if steps and last_y is not None:
                points.append(f"{x:.1f},{last_y:.1f}")
            points.append(f"{x:.1f},{y:.1f}")
            last_y = y
            if curve.marks:
                body.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{color}'/>")
        body.append(f"<polyline fill='none' stroke='{color}' stroke-width='1.6'{dash} points='{' '.join(points)}'/>")
        row_x = left + 8 + (number % 4) * 160
        row_y = top + plot_h + 48 + 15 * (number // 4)
        body.append(f"<rect x='{row_x}' y='{row_y - 8}' width='12' height='4' fill='{color}'/>")
        body.append(f"<text x='{row_x + 16}' y='{row_y - 2}' font-size='11'>{html.escape(curve.name)}</text>")
    body.append(
        f"<text x='{left + plot_w}' y='{top + plot_h + 30}' font-size='11' text-anchor='end'>{html.escape(x_label)}</text>"
    )
    body.append(f"<text x='{left - 66}' y='{top - 6}' font-size='11'>{html.escape(y_label)}</text>")
    return _svg(width, height, body)


def _svg(width: float, height: float, body: Sequence[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:g}' height='{height:g}' viewBox='0 0 {width:g} {height:g}' "
        f"{_FONT}><rect width='100%' height='100%' fill='white'/>{''.join(body)}</svg>"
    )


def draw_completion(schedules: Sequence[Schedule]) -> str:
    """Share of jobs that are done within a time after submission."""
    curves = []
    for schedule in schedules:
        taken = sorted(
            max(float(end) - float(submit), 1.0)
            for end, submit in zip(schedule.end_s, schedule.submit_s, strict=True)
            if not math.isnan(end)
        )
        share = [(rank + 1) / max(len(schedule), 1) for rank in range(len(taken))]
        curves.append(Curve(name=schedule.policy, x=taken, y=share))
    return draw_curves(
        curves, title="Job completion time", x_label="seconds (log)", y_label="share of jobs", log_x=True
    )


def draw_queue(schedules: Sequence[Schedule]) -> str:
    curves = []
    for schedule in schedules:
        times, waiting = queue_curve(schedule)
        curves.append(Curve(name=schedule.policy, x=(times / 3600).tolist(), y=waiting.tolist()))
    return draw_curves(
        curves, title="Jobs that wait for their first start", x_label="hours", y_label="jobs", steps=True
    )


def draw_use(schedules: Sequence[Schedule]) -> str:
    curves = []
    for schedule in schedules:
        times, used = use_curve(schedule)
        curves.append(Curve(name=schedule.policy, x=(times / 3600).tolist(), y=used.tolist()))
    return draw_curves(curves, title="GPUs in use", x_label="hours", y_label="GPUs", steps=True)


def draw_gantt(schedule: Schedule, *, width: int = 1000, max_rows: int = 80, max_bars: int = 6000) -> str:
    """Nodes as rows, jobs as bars as high as the GPUs they hold; needs a schedule with recorded places."""
    if not schedule.occupations:
        return draw_curves([], title=f"Gantt of {schedule.policy}", x_label="", y_label="")
    nodes = sorted({node for held in schedule.occupations for node, _ in held.nodes})[:max_rows]
    row_of = {node: row for row, node in enumerate(nodes)}
    widths: list[int] = []
    for pool in schedule.fleet.pools:
        widths += [pool.gpus_per_node] * pool.num_nodes
    begin = min(held.start_s for held in schedule.occupations)
    end = max(held.end_s for held in schedule.occupations)
    left, top, row_h = 70, 34, max(10, min(24, 900 // len(nodes)))
    scale = (width - left - 10) / max(end - begin, 1e-9)
    # Jobs on one node are stacked: each holds the lowest free slice for as long as it is there.
    slices: dict[int, list[tuple[float, float, float]]] = {}
    body = [
        f"<text x='{left}' y='20' font-size='14' font-weight='600'>{html.escape(schedule.policy)}: who holds which node</text>"
    ]
    drawn = 0
    for held in sorted(schedule.occupations, key=lambda held: held.start_s):
        for node, count in held.nodes:
            if node not in row_of or drawn >= max_bars:
                continue
            capacity = widths[node] if node < len(widths) else max(int(held.num_gpus), 1)
            busy = [entry for entry in slices.get(node, []) if entry[2] > held.start_s]
            floor = 0.0
            for low, high, _ in sorted(busy):
                if floor + count <= low + 1e-9:
                    break
                floor = max(floor, high)
            slices[node] = [*busy, (floor, floor + count, held.end_s)]
            x = left + (held.start_s - begin) * scale
            y = top + row_of[node] * (row_h + 2) + row_h * min(floor / capacity, 1.0)
            bar_h = row_h * min(count / capacity, 1.0)
            color = COLORS[held.job % len(COLORS)]
            name = html.escape(schedule.job_ids[held.job])
            body.append(
                f"<rect x='{x:.2f}' y='{y:.2f}' width='{max((held.end_s - held.start_s) * scale, 0.3):.2f}' "
                f"height='{max(bar_h, 0.5):.2f}' fill='{color}' fill-opacity='0.75'><title>{name}: {held.num_gpus:g} GPUs, "
                f"{short_s(held.end_s - held.start_s)}</title></rect>"
            )
            drawn += 1
    for node, row in row_of.items():
        y = top + row * (row_h + 2) + row_h * 0.75
        body.append(f"<text x='{left - 6}' y='{y:.1f}' font-size='10' text-anchor='end'>node {node}</text>")
    height = top + len(nodes) * (row_h + 2) + 30
    for tick in _ticks(begin / 3600, end / 3600, logarithmic=False):
        x = left + (tick * 3600 - begin) * scale
        body.append(f"<text x='{x:.1f}' y='{height - 8}' font-size='10' text-anchor='middle'>{_label(tick)} h</text>")
    if drawn >= max_bars:
        body.append(f"<text x='{width - 10}' y='20' font-size='11' text-anchor='end'>first {max_bars:,} bars</text>")
    return _svg(width, height, body)


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


_COLUMNS = (
    ("policy", lambda m: m.policy),
    ("done", lambda m: f"{m.finished:,}"),
    ("open", lambda m: f"{m.unfinished:,}"),
    ("rejected", lambda m: f"{m.rejected:,}"),
    ("mean JCT", lambda m: short_s(m.mean_jct_s)),
    ("p50", lambda m: short_s(m.p50_jct_s)),
    ("p90", lambda m: short_s(m.p90_jct_s)),
    ("p99", lambda m: short_s(m.p99_jct_s)),
    ("mean wait", lambda m: short_s(m.mean_wait_s)),
    ("slowdown", lambda m: f"{m.mean_slowdown:.2f}"),
    ("makespan", lambda m: short_s(m.makespan_s)),
    ("used", lambda m: f"{m.utilization:.1%}"),
    ("goodput", lambda m: f"{m.goodput:.1%}"),
    ("preempted", lambda m: f"{m.preemptions:,}"),
    ("failed", lambda m: f"{m.failures:,}"),
    ("lost GPU-h", lambda m: f"{m.lost_gpu_hours:,.0f}"),
    ("GPU-h", lambda m: f"{m.gpu_hours:,.0f}"),
    ("fragmented", lambda m: "-" if m.fragmentation is None else f"{m.fragmentation:.1%}"),
    ("rho mean/worst", lambda m: f"{m.mean_rho:.2f}/{m.worst_rho:.1f}"),
    ("Jain", lambda m: f"{m.jain:.2f}"),
    ("late", lambda m: "-" if m.deadline_misses is None else f"{m.deadline_misses:,}/{m.deadlines:,}"),
    ("USD", lambda m: "-" if m.cost_usd is None else f"{m.cost_usd:,.0f}"),
    ("MWh", lambda m: "-" if m.energy_joules is None else f"{m.energy_joules / 3.6e9:,.2f}"),
)


def _cells(metrics: Sequence[Metrics]) -> list[list[str]]:
    rows = [[name for name, _ in _COLUMNS]] + [[show(entry) for _, show in _COLUMNS] for entry in metrics]
    kept = [at for at in range(len(_COLUMNS)) if any(row[at] not in ("-", "0") for row in rows[1:]) or at == 0]
    return [[row[at] for at in kept] for row in rows]


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_comparison(
    trace: Trace, schedules: Sequence[Schedule], metrics: Sequence[Metrics], *, max_bad: int = 5
) -> str:
    """The policies side by side, with what could not be read or run said first."""
    fleet = schedules[0].fleet
    pools = ", ".join(f"{pool.num_nodes}x{pool.gpus_per_node} {pool.device}" for pool in fleet.pools)
    lines = [f"{trace.name}: {len(trace.jobs):,} jobs ({trace.format}) on {fleet.num_gpus:,} GPUs ({pools})"]
    if trace.bad_rows:
        lines.append(f"{len(trace.bad_rows):,} rows could not be used:")
        lines += [f"  {row}" for row in trace.bad_rows[:max_bad]]
        if len(trace.bad_rows) > max_bad:
            lines.append(f"  ... and {len(trace.bad_rows) - max_bad:,} more (--json lists all)")
    lines += [f"note: {note}" for note in trace.notes]
    lines += ["", _align(_cells(metrics))]
    reasons = {reason for schedule in schedules for reason in schedule.rejected.values()}
    if reasons:
        lines += ["", *(f"rejected: {reason}" for reason in sorted(reasons)[:max_bad])]
    return "\n".join(lines)


def format_sweep(points: Sequence[SweepPoint]) -> str:
    base = {point.policy: point for point in points if point.sigma == 0}
    rows = [["policy", "error", "size", "mean JCT", "change", "p99 JCT", "makespan", "late", "preempted"]]
    for point in points:
        exact = base.get(point.policy)
        change = "-" if exact is None else f"{point.mean_jct_s / exact.mean_jct_s - 1:+.1%}"
        late = "-" if point.deadline_misses is None else f"{point.deadline_misses:,.0f}"
        rows.append(
            [point.policy, point.error, f"{point.sigma:g}", short_s(point.mean_jct_s), change, short_s(point.p99_jct_s),
             short_s(point.makespan_s), late, f"{point.preemptions:,.0f}"]
        )  # fmt: skip
    return _align(rows)


def draw_sweep(points: Sequence[SweepPoint], *, title: str = "What wrong estimates cost") -> str:
    """Mean completion time relative to exact estimates, one line per policy and kind of error."""
    exact = {point.policy: point.mean_jct_s for point in points if point.sigma == 0}
    curves = []
    for policy, kind in dict.fromkeys((point.policy, point.error) for point in points):
        chosen = [point for point in points if (point.policy, point.error) == (policy, kind)]
        curves.append(
            Curve(
                name=f"{policy}, {kind}",
                x=[point.sigma for point in chosen],
                y=[100 * (point.mean_jct_s / exact[policy] - 1) for point in chosen],
                marks=True,
            )
        )
    return draw_curves(
        curves,
        title=title,
        x_label="size of the error (standard deviation of the logarithm, or log bias)",
        y_label="mean JCT, % above exact",
        from_zero=False,
        height=400,
    )


def format_page(trace: Trace, schedules: Sequence[Schedule], metrics: Sequence[Metrics]) -> str:
    """One self-contained HTML page: table, curves and a Gantt chart per recorded schedule."""
    rows = _cells(metrics)
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    bad = "".join(f"<li>{html.escape(str(row))}</li>" for row in trace.bad_rows[:50])
    problems = f"<details><summary>{len(trace.bad_rows)} unusable rows</summary><ul>{bad}</ul></details>" if bad else ""
    notes = "".join(f"<p class='note'>{html.escape(note)}</p>" for note in trace.notes)
    gantts = "".join(draw_gantt(schedule) for schedule in schedules if schedule.occupations)
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>traincast schedule</title><style>"
        "body{font:15px system-ui,sans-serif;margin:2em;max-width:1080px}table{border-collapse:collapse}"
        "th,td{padding:.25em .7em;text-align:right;border-bottom:1px solid #ddd}th:first-child,td:first-child{text-align:left}"
        ".note{color:#555}svg{display:block;margin:1.2em 0;max-width:100%}</style>"
        f"<h1>{html.escape(trace.name)}</h1><p>{len(trace.jobs):,} jobs on {schedules[0].fleet.num_gpus:,} GPUs</p>"
        f"{notes}{problems}<table><tr>{head}</tr>{body}</table>"
        f"{draw_completion(schedules)}{draw_queue(schedules)}{draw_use(schedules)}{gantts}</html>"
    )


def format_agreement(rows: Sequence[Agreement], left_out: Sequence[str] = ()) -> str:
    table = [["peer", "run", "policy", "jobs equal", "mean JCT theirs", "ours", "error", "makespan", "wanted", ""]]
    for row in rows:
        table.append(
            [row.peer, row.run, row.policy, f"{row.num_equal:,}/{row.num_jobs:,}", f"{row.peer_mean_s:,.2f}",
             f"{row.our_mean_s:,.2f}", f"{row.mean_error:+.2%}", f"{row.makespan_error:+.2%}", row.wanted,
             "yes" if row.reached else "NO"]
        )  # fmt: skip
    exact = [row for row in rows if row.wanted == EXACTLY]
    reached = sum(row.reached for row in rows)
    summary = (
        f"{sum(row.num_equal == row.num_jobs for row in exact)} of {len(exact)} deterministic runs equal for every job; "
        f"{reached} of {len(rows)} runs within what is wanted"
    )
    missing = "".join(f"\nnot replayed: {line}" for line in left_out)
    return f"{_align(table)}\n\n{summary}{missing}"


def format_agreement_markdown(rows: Sequence[Agreement]) -> str:
    lines = ["| peer | run | policy | jobs equal | mean JCT theirs, s | ours, s | error | makespan | wanted | reached |",
             "|---|---|---|--:|--:|--:|--:|--:|---|---|"]  # fmt: skip
    for row in rows:
        lines.append(
            f"| {row.peer} | {row.run} | {row.policy} | {row.num_equal:,}/{row.num_jobs:,} | {row.peer_mean_s:,.2f} | "
            f"{row.our_mean_s:,.2f} | {row.mean_error:+.2%} | {row.makespan_error:+.2%} | {row.wanted} | "
            f"{'yes' if row.reached else 'no'} |"
        )
    return "\n".join(lines)
