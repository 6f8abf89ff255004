"""Nouns to HTML for a notebook: no script, nothing loaded from elsewhere, every text escaped."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from html import escape

from traincast.plan import Plan, Search
from traincast.report._paint import PIPE_WIDTH, Paint
from traincast.report._svg import CATEGORY_COLOURS, draw_timeline
from traincast.report._text import SHARES, describe_plan, say_dominant, say_fit, show_interval, top_tasks
from traincast.spec import Forecast, Graph, Timeline
from traincast.units import show_bytes, show_count, show_seconds, show_usd

_NUM_TOP = 8
_NUM_PLANS = 50
_MAX_SPANS = 4000
"""A drawing of more would slow the notebook down; the table says the same."""


def present(noun: object) -> str | None:
    """HTML of a noun that has a presenter; None for any other."""
    found = PRESENTERS.get(type(noun).__name__)
    return found(noun) if found is not None else None


def tell(noun: object) -> str | None:
    """Text of a noun that has a teller; None for any other."""
    from traincast.plan import tell
    from traincast.report._answer import format_answer

    return format_answer(noun, tell(noun), paint=Paint(width=PIPE_WIDTH)) if isinstance(noun, Forecast) else None


def present_forecast(forecast: Forecast) -> str:
    step, memory = forecast.step, forecast.memory
    rows = [
        ("step", show_seconds(step.seconds), f"90% interval {show_interval(step)}"),
        (
            "throughput",
            f"{show_count(forecast.samples_per_s)} samples/s",
            f"{forecast.utilization:.0%} MFU",
        ),
    ]
    if forecast.job.num_steps > 1:
        total = forecast.job.total
        rows.append(
            ("job", show_seconds(total.seconds), f"{forecast.job.num_steps:,.0f} steps, {show_interval(total)}")
        )
        usd = forecast.usd
        if usd is not None:
            rows.append(("cost", show_usd(usd.value), f"{show_usd(usd.low)} to {show_usd(usd.high)}"))
    verdict = say_fit(memory)
    amount = f"{show_bytes(memory.peak_bytes)} of {show_bytes(memory.capacity_bytes)}"
    rows.append(("memory", amount, verdict))
    notes = (
        [f"no FLOP formula, timed by bytes alone: {', '.join(forecast.unknown_ops)}"] if forecast.unknown_ops else []
    )
    return _page(
        f"{forecast.workload} on {forecast.cluster}, {forecast.global_batch:,} samples per step",
        _table(("", "forecast", ""), rows),
        _bar(forecast.timeline),
        _paragraph(say_dominant(forecast)),
        _tasks(forecast.timeline),
        *(_paragraph(note) for note in (*notes, *forecast.notes)),
    )


def present_timeline(timeline: Timeline) -> str:
    drawn = draw_timeline(timeline) if 0 < len(timeline.spans) <= _MAX_SPANS and timeline.duration_s > 0 else ""
    return _page(f"a step of {show_seconds(timeline.duration_s)}", _bar(timeline), drawn, _tasks(timeline))


def present_graph(graph: Graph) -> str:
    counts: dict[str, int] = defaultdict(int)
    flop: dict[str, float] = defaultdict(float)
    num_bytes: dict[str, float] = defaultdict(float)
    for op, count in zip(graph.ops, graph.counts(), strict=True):
        counts[op.kind] += count
        flop[op.kind] += (op.flop or 0.0) * count
        num_bytes[op.kind] += op.num_bytes * count
    rows = [
        (kind, f"{counts[kind]:,}", show_count(flop[kind], "FLOP"), show_bytes(num_bytes[kind]))
        for kind in sorted(counts, key=lambda kind: (-flop[kind], -num_bytes[kind], kind))
    ]
    unknown = graph.unknown_ops()
    return _page(
        f"{graph.name}: {graph.mode.replace('_', ' ')} on {graph.batch_size:,} {graph.samples_unit}",
        _paragraph(
            f"{graph.num_parameters:,} parameters, {show_count(graph.flop, 'FLOP')}, {show_bytes(graph.num_bytes)} moved"
        ),
        _table(("kind", "operations", "arithmetic", "bytes"), rows),
        _paragraph(f"no FLOP formula for: {', '.join(unknown)}") if unknown else "",
        *(_paragraph(text) for text in graph.assumptions),
    )


def present_plan(plan: Plan) -> str:
    line = describe_plan(plan.parallelism, batch_size=plan.batch)
    odds = plan.deadline_probability
    in_time = _paragraph(f"ends in time with probability {odds:.2f}") if odds is not None else ""
    return _paragraph(line) + in_time + present_forecast(plan.forecast)


def present_search(search: Search) -> str:
    rows = [
        (
            plan.cluster.name,
            describe_plan(plan.parallelism, batch_size=plan.batch),
            show_seconds(plan.forecast.job.total.seconds),
            show_usd(plan.forecast.usd.value) if plan.forecast.usd is not None else "unknown",
            f"{plan.deadline_probability:.2f}" if plan.deadline_probability is not None else "",
        )
        for plan in search.plans[:_NUM_PLANS]
    ]
    return _page(
        f"{len(search.plans):,} plans of {search.num_plans:,} keep every limit",
        _table(("cluster", "plan", "job", "cost", "in time"), rows) if rows else "",
        _paragraph(search.nearest.says) if search.nearest is not None else "",
        *(_paragraph(note) for note in search.notes),
    )


PRESENTERS: dict[str, Callable[..., str]] = {
    "Forecast": present_forecast,
    "Timeline": present_timeline,
    "Graph": present_graph,
    "Plan": present_plan,
    "Search": present_search,
}
"""By the name of the noun's class."""


def _page(title: str, *parts: str) -> str:
    return f'<div style="max-width: 60em"><h4>{escape(title)}</h4>{"".join(parts)}</div>'


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col" style="text-align: left">{escape(text)}</th>' for text in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _tasks(timeline: Timeline) -> str:
    whole_s = timeline.duration_s or 1.0
    rows = [
        (name, SHARES.get(category, (category, ""))[0], show_seconds(seconds), f"{seconds / whole_s:.0%}")
        for name, category, seconds in top_tasks(timeline)[:_NUM_TOP]
    ]
    return _table(("slowest tasks", "limited by", "time", "of step"), rows) if rows else ""


def _bar(timeline: Timeline) -> str:
    """Where the step goes, as one bar with a legend that says the same in words."""
    shares = [(name, share) for name in SHARES if (share := timeline.shares.get(name, 0.0)) > 0]
    pieces = "".join(
        f'<span style="display: inline-block; height: 1em; width: {100 * share:.2f}%; '
        f'background: {CATEGORY_COLOURS[name]}"></span>'
        for name, share in shares
    )
    legend = ", ".join(f"{SHARES[name][0]} {share:.0%}" for name, share in shares)
    label = escape(f"where the step goes: {legend}", quote=True)
    return f'<div role="img" aria-label="{label}" style="font-size: 0.9em; line-height: 1em">{pieces}</div>{_paragraph(legend)}'
