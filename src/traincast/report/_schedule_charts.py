"""Schedules as pictures: curves, waits by group, one page that holds them all."""

import html
import math
import re
from collections.abc import Sequence

import numpy as np

from traincast.noun import noun
from traincast.report._schedule import (
    breakdown_rows,
    case_rows,
    short_s,
    summarize,
    waiting_rows,
)
from traincast.schedule import (
    AS_IT_WAS,
    Case,
    Floats,
    Trace,
    measure_groups,
    nearest_replay,
    queue_curve,
    use_curve,
)
from traincast.spec import Schedule

COLORS = ("#2458a6", "#c8553d", "#3a7d44", "#8a4fa0", "#b8860b", "#17808c", "#7a4b2a", "#5c5c5c")
MOST_POINTS = 200
MOST_SERIES = 5
"""More curves in one chart cannot be told apart."""
_FONT = "font-family='system-ui, sans-serif'"


@noun
class Curve:
    """A line of a chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


DURATIONS = {
    1.0: "1 s",
    10.0: "10 s",
    60.0: "1 min",
    600.0: "10 min",
    3600.0: "1 h",
    36000.0: "10 h",
    **{86400.0 * days: f"{days} d" for days in (2, 10, 100, 1000)},
}
"""Times from a second to years, about a factor of ten apart."""


def _ticks(low: float, high: float) -> list[float]:
    if high <= low:
        return [low]
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _label(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:g}"


@noun
class _Frame:
    """The plotting area of a chart and how numbers become places in it."""

    low_x: float
    high_x: float
    low_y: float
    high_y: float
    log_x: bool
    left: int = 76
    top: int = 48
    plot_w: int = 628
    plot_h: int = 220

    def x(self, value: float) -> float:
        if self.log_x:
            share = (math.log(max(value, self.low_x)) - math.log(self.low_x)) / (
                math.log(self.high_x) - math.log(self.low_x)
            )
        else:
            share = (value - self.low_x) / (self.high_x - self.low_x)
        return self.left + self.plot_w * share

    def y(self, value: float) -> float:
        return self.top + self.plot_h * (1 - (value - self.low_y) / (self.high_y - self.low_y))

    def draw_axes(self, title: str, x_label: str, y_label: str) -> list[str]:
        right, bottom = self.left + self.plot_w, self.top + self.plot_h
        body = [f"<text x='{self.left}' y='20' font-size='14' font-weight='600'>{html.escape(title)}</text>"]
        for tick in _ticks(self.low_y, self.high_y):
            y = self.y(tick)
            body.append(f"<line x1='{self.left}' y1='{y:.1f}' x2='{right}' y2='{y:.1f}' stroke='#ddd'/>")
            body.append(
                f"<text x='{self.left - 6}' y='{y + 4:.1f}' font-size='11' text-anchor='end'>{_label(tick)}</text>"
            )
        across = DURATIONS if self.log_x else {tick: _label(tick) for tick in _ticks(self.low_x, self.high_x)}
        for tick, told in across.items():
            if self.low_x <= tick <= self.high_x * (1 + 1e-9):
                x = self.x(tick)
                body.append(f"<line x1='{x:.1f}' y1='{self.top}' x2='{x:.1f}' y2='{bottom}' stroke='#eee'/>")
                body.append(
                    f"<text x='{x:.1f}' y='{bottom + 16}' font-size='11' "
                    f"text-anchor='{'end' if x > right - 24 else 'middle'}'>{told}</text>"
                )
        body.append(
            f"<text x='{right}' y='{bottom + 30}' font-size='11' text-anchor='end'>{html.escape(x_label)}</text>"
        )
        body.append(f"<text x='{self.left - 66}' y='{self.top - 6}' font-size='11'>{html.escape(y_label)}</text>")
        return body

    def draw_curve(self, curve: Curve, color: str, *, steps: bool) -> str:
        """At most about 1,500 points of the line."""
        stride = max(len(curve.x) // 1500, 1)
        points: list[str] = []
        last_y: float | None = None
        for at in range(0, len(curve.x), stride):
            x, y = self.x(float(curve.x[at])), self.y(float(curve.y[at]))
            if steps and last_y is not None:
                points.append(f"{x:.1f},{last_y:.1f}")
            points.append(f"{x:.1f},{y:.1f}")
            last_y = y
        return (
            f"<polyline fill='none' stroke='{color}' stroke-width='1.6' points='{' '.join(points)}'>"
            f"<title>{html.escape(curve.name)}</title></polyline>"
        )


def draw_curves(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    steps: bool = False,
) -> str:
    """Lines with axes and a legend as one SVG; a logarithmic axis is one of seconds."""
    xs = [x for curve in curves for x in curve.x if not log_x or x > 0]
    ys = [y for curve in curves for y in curve.y]
    if not xs or not ys:
        return _svg(720, 40, [f"<text x='8' y='24' font-size='12'>{html.escape(title)}: no data</text>"])
    low_x, high_x, low_y, high_y = min(xs), max(xs), 0.0, max(ys)
    frame = _Frame(
        low_x=low_x,
        high_x=high_x if high_x > low_x else low_x + 1,
        low_y=low_y,
        high_y=high_y if high_y > low_y else low_y + 1,
        log_x=log_x,
    )
    body = frame.draw_axes(title, x_label, y_label)
    legend_top = frame.top + frame.plot_h + 48
    across = _legend_columns([curve.name for curve in curves])
    for number, curve in enumerate(curves):
        color = COLORS[number % len(COLORS)]
        body.append(frame.draw_curve(curve, color, steps=steps))
        x, y = frame.left + (number % across) * (630 // across), legend_top + 16 * (number // across)
        body.append(f"<line x1='{x}' y1='{y - 4}' x2='{x + 22}' y2='{y - 4}' stroke='{color}' stroke-width='3'/>")
        body.append(f"<text x='{x + 27}' y='{y}' font-size='11'>{html.escape(curve.name)}</text>")
    return _svg(720, legend_top + 16 * -(-len(curves) // across), body)


def _legend_columns(names: Sequence[str]) -> int:
    """How many names of this length stand side by side."""
    longest = max((len(name) for name in names), default=1)
    return 3 if longest <= 26 else 2 if longest <= 42 else 1


def _svg(width: float, height: float, body: Sequence[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:g}' height='{height:g}' viewBox='0 0 {width:g} {height:g}' "
        f"{_FONT}><rect width='100%' height='100%' fill='white'/>{''.join(body)}</svg>"
    )


def draw_completion(schedules: Sequence[Schedule], names: Sequence[str]) -> str:
    """Share of jobs that are done within a time after submission."""
    times = [np.asarray(schedule.end_s) - np.asarray(schedule.submit_s) for schedule in schedules]
    return _draw_shares(schedules, times, names, "Time from submission to the end")


def draw_waits(schedules: Sequence[Schedule], names: Sequence[str]) -> str:
    """Share of jobs that have started within a time after submission."""
    times = [np.asarray(schedule.start_s) - np.asarray(schedule.submit_s) for schedule in schedules]
    return _draw_shares(schedules, times, names, "Wait until the first start")


def _draw_shares(schedules: Sequence[Schedule], times: Sequence[Floats], names: Sequence[str], title: str) -> str:
    curves = []
    for number, (schedule, taken) in enumerate(zip(schedules, times, strict=True)):
        known = np.sort(np.maximum(taken[~np.isnan(taken)], 1.0))
        kept = np.unique(np.linspace(0, len(known) - 1, min(len(known), MOST_POINTS)).astype(np.int64))
        share = (kept + 1) / max(len(schedule), 1)
        curves.append(Curve(name=names[number], x=known[kept].tolist(), y=share.tolist()))
    return draw_curves(curves, title=title, x_label="time (log)", y_label="share of jobs", log_x=True)


def draw_queue(schedules: Sequence[Schedule], names: Sequence[str]) -> str:
    curves = []
    for number, schedule in enumerate(schedules):
        edges, waiting = _average(*queue_curve(schedule))
        curves.append(Curve(name=names[number], x=(edges / 3600).tolist(), y=waiting.tolist()))
    return draw_curves(
        curves, title="Jobs that wait for their first start", x_label="hours", y_label="jobs", steps=True
    )


def draw_use(schedules: Sequence[Schedule], names: Sequence[str]) -> str:
    curves = []
    for number, schedule in enumerate(schedules):
        times, used = use_curve(schedule)
        edges, mean = _average(times, used)
        curves.append(Curve(name=names[number], x=(edges / 3600).tolist(), y=mean.tolist()))
    return draw_curves(curves, title="GPUs in use, averaged over time", x_label="hours", y_label="GPUs", steps=True)


def _average(times: Floats, values: Floats, *, columns: int = MOST_POINTS) -> tuple[Floats, Floats]:
    """Means of a step curve over equal spans of time."""
    if len(times) < columns:
        return times, values
    area = np.concatenate([[0.0], np.cumsum(np.diff(times) * values[:-1])])
    edges = np.linspace(times[0], times[-1], columns + 1)
    means = np.diff(np.interp(edges, times, area)) / np.maximum(np.diff(edges), 1e-9)
    return edges[:-1], means


def draw_group_waits(cases: Sequence[Case], by: str, names: Sequence[str]) -> str:
    """The 90th percentile of the wait of every group under every row of the table, as bars."""
    found = [{group.group: group for group in measure_groups(case.schedule, by)} for case in cases]
    groups = list(found[0])[:12]
    values = [[table[name].p90_wait_s / 3600 if name in table else math.nan for name in groups] for table in found]
    most = max((value for row in values for value in row if not math.isnan(value)), default=0.0) or 1.0
    left, top, bar_h = 120, 34, 9
    block = bar_h * len(cases) + 10
    body = [
        f"<text x='{left}' y='20' font-size='14' font-weight='600'>Wait by {by}: nine of ten jobs start within</text>"
    ]
    for row, group in enumerate(groups):
        y = top + row * block
        body.append(
            f"<text x='{left - 6}' y='{y + block / 2:.1f}' font-size='11' text-anchor='end'>{html.escape(group)}</text>"
        )
        for number, name in enumerate(names):
            value = values[number][row]
            if math.isnan(value):
                continue
            wide = 560 * value / most
            told = f"{name}, {group}: {short_s(value * 3600)}"
            body.append(
                f"<rect x='{left}' y='{y + number * bar_h:.1f}' width='{max(wide, 0.5):.1f}' height='{bar_h - 1}' "
                f"fill='{COLORS[number % len(COLORS)]}'><title>{html.escape(told)}</title></rect>"
                f"<text x='{left + wide + 4:.1f}' y='{y + number * bar_h + 7.5:.1f}' font-size='8'>{short_s(value * 3600)}</text>"
            )
    bottom = top + len(groups) * block
    across = _legend_columns(names)
    for number, name in enumerate(names):
        x, y = left + (number % across) * (570 // across), bottom + 24 + 16 * (number // across)
        body.append(f"<rect x='{x}' y='{y - 9}' width='12' height='9' fill='{COLORS[number % len(COLORS)]}'/>")
        body.append(f"<text x='{x + 17}' y='{y}' font-size='11'>{html.escape(name)}</text>")
    return _svg(720, bottom + 30 + 16 * -(-len(names) // across), body)


_STYLE = (
    "*{box-sizing:border-box}body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:1.2em;max-width:1060px;color:#1c1c1c;"
    "overflow-wrap:anywhere}"
    ".wide{overflow-x:auto;margin:1em 0}table{border-collapse:collapse;white-space:nowrap;font-size:13px}"
    "th,td{padding:.25em .7em;text-align:right;border-bottom:1px solid #ddd}"
    "th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:#fff}"
    ".note{color:#555;font-size:13px;margin:.3em 0}svg{display:block;width:100%;max-width:1020px;height:auto}"
    "@media(max-width:700px){body{padding:.8em}svg{min-width:560px}h1{font-size:22px}"
    "table,tbody,tr{display:block;white-space:normal}th{display:none}tr{margin:.8em 0;border-top:2px solid #888}"
    "tr:first-child{margin:0;border:0}"
    "td{display:flex;justify-content:space-between;gap:1em;padding:.2em 0}td:first-child{position:static;font-weight:600}"
    "td::before{content:attr(data-of);color:#555;font-weight:400;text-align:left}}"
    "h2{font-size:17px;margin:1.6em 0 .4em}"
)


def format_page(trace: Trace, cases: Sequence[Case]) -> str:
    """One self-contained HTML page: the answer in words, tables, curves and waits by group."""
    fleets = ", ".join(dict.fromkeys(f"{case.schedule.fleet.num_gpus:,} GPUs ({case.cluster})" for case in cases))
    bad = "".join(f"<li>{html.escape(str(row))}</li>" for row in trace.bad_rows[:50])
    problems = f"<details><summary>{len(trace.bad_rows)} unusable rows</summary><ul>{bad}</ul></details>" if bad else ""
    notes = "".join(f"<p class='note'>{html.escape(note)}</p>" for note in trace.notes)
    parts = [
        f"<h1>{html.escape(trace.name)}</h1><p>{len(trace.jobs):,} jobs on {html.escape(fleets)}</p>",
        f"<p>{html.escape(summarize(cases))}</p>{notes}{problems}",
        _table(case_rows(cases, details=False)),
        f"<details><summary>All columns</summary>{_table(case_rows(cases))}</details>",
        *_pictures(cases),
    ]
    parts.append(f"<h2>Jobs that wait longest</h2>{_table(waiting_rows(cases))}")
    for by in ("tenant", "size"):
        parts.append(f"<h2>By {by}</h2>{_table(breakdown_rows(cases, by))}")
    return _page(trace.name, parts)


def _page(title: str, parts: Sequence[str]) -> str:
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>traincast schedule: {html.escape(title)}</title><style>{_STYLE}</style>{''.join(parts)}</html>"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A table; on a narrow screen every row is a list of its cells with their headings."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    names = [html.escape(cell, quote=True) for cell in rows[0]]
    body = "".join(
        "<tr>" + "".join(f"<td data-of='{name}'>{html.escape(cell)}" for name, cell in zip(names, row, strict=True))
        for row in rows[1:]
    )
    return f"<div class='wide'><table><tr>{head}</tr>{body}</table></div>"


def row_names(cases: Sequence[Case]) -> list[str]:
    several = len({case.cluster for case in cases}) > 1
    return [f"{case.label} on {case.cluster}" if several else case.label for case in cases]


def choose_shown(cases: Sequence[Case], most: int = MOST_SERIES) -> list[int]:
    """The rows that charts show: what really happened, the replay that comes nearest, those with the shortest and the longest
    waits, then the first ones."""
    waits = [math.inf if math.isnan(case.metrics.mean_wait_s) else case.metrics.mean_wait_s for case in cases]
    nearest = nearest_replay(cases)
    first = [
        at for at, case in enumerate(cases) if case.policy == AS_IT_WAS or (nearest and case.label == nearest.label)
    ]
    order = sorted(range(len(cases)), key=lambda at: waits[at])
    wanted = [*first, *order[:1], *order[-1:], *range(len(cases))]
    return sorted(list(dict.fromkeys(wanted))[:most])


def _pictures(cases: Sequence[Case]) -> list[str]:
    shown = [cases[at] for at in choose_shown(cases)]
    names, schedules = row_names(shown), [case.schedule for case in shown]
    pictures = [
        draw_waits(schedules, names),
        draw_completion(schedules, names),
        draw_queue(schedules, names),
        draw_use(schedules, names),
        *(draw_group_waits(shown, by, names) for by in ("size", "tenant")),
    ]
    found = [f"<div class='wide'>{picture}</div>" for picture in pictures]
    if len(shown) < len(cases):
        found.insert(
            0, f"<p class='note'>Charts show {len(shown)} of {len(cases)} rows: {html.escape(', '.join(names))}.</p>"
        )
    return found


def name_file(label: str) -> str:
    """A label as part of a file name."""
    return re.sub(r"[^\w.@-]+", "-", label).strip("-")
