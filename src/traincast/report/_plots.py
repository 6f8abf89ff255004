"""Forecasts and searches to figures of matplotlib or plotly, which are loaded only when a figure is asked for."""

import importlib
from collections.abc import Sequence
from typing import Any

from traincast.errors import InvalidInput, MissingExtra
from traincast.noun import noun
from traincast.plan import Search
from traincast.report._svg import CATEGORY_COLOURS
from traincast.spec import Forecast
from traincast.units import GIB, HOUR_S

BACKENDS = ("matplotlib", "plotly")


@noun
class _Chart:
    """A chart before anybody draws it."""

    title: str
    x: str
    y: str
    lines: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = ()
    """(name, places, heights)."""
    points: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = ()
    bars: tuple[tuple[str, str, float, float], ...] = ()
    """(row, colour, start, length)."""
    limit: float | None = None


def plot_timeline(answer: Forecast, *, backend: str = "matplotlib") -> Any:
    """When each piece of the step runs, a row for each stream of each rank."""
    if not answer.timeline.spans:
        raise InvalidInput("this forecast was not drawn; make it with draw=True")
    bars = tuple(
        (
            f"rank {span.rank}, {span.stream}", CATEGORY_COLOURS.get(span.category, "#999999"), span.start_s * 1e3,
            (span.end_s - span.start_s) * 1e3,
        )
        for span in answer.timeline.spans
    )  # fmt: skip
    return _draw(_Chart(title=f"{answer.workload}: one step", x="ms", y="", bars=bars), backend)


def plot_memory(answer: Forecast, *, backend: str = "matplotlib") -> Any:
    """Memory of the fullest device over one pass, with what the device has."""
    from traincast.forecast import trace_memory

    if answer.origin is None:
        raise InvalidInput("only a forecast of a question knows its job; ask as forecast('gpt2', '8xh100')")
    resolved = answer.origin.resolved
    _, profile = trace_memory(answer, resolved.job, resolved.parallelism)
    heights = tuple(level / GIB for _, level in profile.curve)
    line = ("in use", tuple(float(place) for place in range(len(heights))), heights)
    title = f"{answer.workload} on {answer.num_devices} x {answer.device}"
    return _draw(
        _Chart(title=title, x="operations of one pass", y="GiB", lines=(line,), limit=profile.capacity_bytes / GIB),
        backend,
    )


def plot_scaling(answers: Sequence[Forecast], *, backend: str = "matplotlib") -> Any:
    """Samples per second over the number of devices, beside what the smallest would give if nothing were lost."""
    if not answers:
        raise InvalidInput("there is nothing to plot; give at least one forecast")
    ranked = sorted(answers, key=lambda answer: answer.num_devices)
    counts = tuple(float(answer.num_devices) for answer in ranked)
    each = ranked[0].samples_per_s / ranked[0].num_devices
    lines = (
        ("forecast", counts, tuple(answer.samples_per_s for answer in ranked)),
        ("nothing lost", counts, tuple(each * count for count in counts)),
    )
    return _draw(_Chart(title=ranked[0].workload, x="devices", y="samples/s", lines=lines), backend)


def plot_front(found: Search, *, backend: str = "matplotlib") -> Any:
    """Cost over time of every plan, and the front of those that nothing beats."""
    groups: dict[str, tuple[list[float], list[float]]] = {}
    for name, plans in (("plans", found.plans), ("front", found.front)):
        for plan in plans:
            if plan.forecast.usd is not None:
                places, heights = groups.setdefault(name, ([], []))
                places.append(plan.forecast.job.total.seconds / HOUR_S)
                heights.append(plan.forecast.usd.value)
    if not groups:
        raise InvalidInput("no plan has a price; give one with --price or a length of the job")
    points = tuple((name, tuple(places), tuple(heights)) for name, (places, heights) in groups.items())
    return _draw(_Chart(title="cost and time", x="hours of the job", y="USD", points=points), backend)


def _draw(chart: _Chart, backend: str) -> Any:
    drawers = {"matplotlib": _draw_matplotlib, "plotly": _draw_plotly}
    if backend not in drawers:
        raise InvalidInput(f"backend = {backend!r}; allowed: {', '.join(BACKENDS)}")
    try:
        return drawers[backend](chart)
    except ImportError as error:
        raise MissingExtra(backend, "plots", "a figure") from error


def _draw_matplotlib(chart: _Chart) -> Any:
    # A figure of its own, without pyplot: no window opens and no global state is left behind.
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, places, heights in chart.lines:
        axes.plot(places, heights, label=name)
    for name, places, heights in chart.points:
        axes.scatter(places, heights, label=name)
    rows = list(dict.fromkeys(row for row, _, _, _ in chart.bars))
    for row in rows:
        mine = [(start, length, colour) for name, colour, start, length in chart.bars if name == row]
        axes.broken_barh(
            [(start, length) for start, length, _ in mine],
            (rows.index(row) - 0.4, 0.8),
            facecolors=[c for _, _, c in mine],
        )
    if rows:
        axes.set_yticks(range(len(rows)), rows)
    if chart.limit is not None:
        axes.axhline(chart.limit, color="#c0392b", linestyle="--", label="device")
    axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
    if chart.lines or chart.points:
        axes.legend()
    return figure


def _draw_plotly(chart: _Chart) -> Any:
    graph = importlib.import_module("plotly.graph_objects")
    figure = graph.Figure()
    for mode, series in (("lines", chart.lines), ("markers", chart.points)):
        for name, places, heights in series:
            figure.add_trace(graph.Scatter(x=list(places), y=list(heights), mode=mode, name=name))
    if chart.bars:
        rows, colours, starts, lengths = (list(column) for column in zip(*chart.bars, strict=True))
        figure.add_trace(
            graph.Bar(y=rows, x=lengths, base=starts, marker={"color": colours}, orientation="h", showlegend=False)
        )
    if chart.limit is not None:
        figure.add_hline(y=chart.limit, line_dash="dash", line_color="#c0392b")
    figure.update_layout(title=chart.title, xaxis_title=chart.x, yaxis_title=chart.y)
    return figure
