"""A forecast to what stands behind its answer: where the time goes, parts of memory and job, and what it rests on."""

import textwrap
from collections.abc import Iterator

from traincast.report._paint import Paint
from traincast.report._resources import format_resources
from traincast.report._table import Table, format_table
from traincast.report._text import LEAST_SHARE, SHARES, _shorten, _wrap, say_dominant, top_tasks
from traincast.spec import Forecast, Timeline
from traincast.units import show_bytes, show_seconds

GROUND_WORDS = {
    "measured": "measured on this device",
    "transfer": "carried over from other devices",
    "bound": "the physical bound only",
}
_NUM_TOP = 15


def explain_forecast(forecast: Forecast, *, paint: Paint) -> tuple[str, ...]:
    """Blocks of lines."""
    return (
        "\n".join(_shares(forecast, paint)),
        _slowest(forecast.timeline, paint),
        _exposed(forecast, paint),
        _memory_parts(forecast, paint),
        "\n".join(_parts(forecast, paint)),
        format_resources(forecast.resources, run_utilization=forecast.run_utilization, paint=paint),
        "\n".join(_trust(forecast, paint)),
    )


def _shares(forecast: Forecast, paint: Paint) -> Iterator[str]:
    timeline = forecast.timeline
    yield paint("Where the step goes", "bold")
    for name, (label, style) in SHARES.items():
        share = timeline.shares.get(name, 0.0)
        if share < LEAST_SHARE:
            continue
        bar = paint.bar(share, width=40, style=style)
        yield f"  {label:<16}{bar} {share:>4.0%}  {show_seconds(share * timeline.duration_s)}"
    hidden_s = timeline.communication_s - timeline.shares.get("communication", 0.0) * timeline.duration_s
    if hidden_s > 0.005 * timeline.duration_s:
        yield paint(f"  {show_seconds(hidden_s)} of communication runs hidden behind computation.", "dim")
    yield from _wrap(say_dominant(forecast), paint)


def _slowest(timeline: Timeline, paint: Paint) -> str:
    whole_s = timeline.duration_s or 1.0
    rows = tuple(
        (
            f"  {_shorten(name, 60)}",
            SHARES.get(category, (category, ""))[0],
            show_seconds(seconds),
            f"{seconds / whole_s:.0%}",
        )
        for name, category, seconds in top_tasks(timeline, by_layer=True)[:_NUM_TOP]
        if seconds >= LEAST_SHARE * whole_s
    )
    headings = ("  slowest kernels", "limited by", "time", "of step")
    return format_table(Table(headings=headings, rows=rows, left=frozenset(headings[:2])), paint=paint) if rows else ""


def _exposed(forecast: Forecast, paint: Paint) -> str:
    exposed = {axis: seconds for axis, seconds in forecast.timeline.exposed_by_axis.items() if seconds > 0}
    if not exposed:
        return ""
    lines = [paint("Communication that nothing hides", "bold")]
    lines.extend(f"  {axis:<16}{show_seconds(seconds)}" for axis, seconds in exposed.items())
    return "\n".join(lines)


def _memory_parts(forecast: Forecast, paint: Paint) -> str:
    memory = forecast.memory
    lines = [paint("Memory at its peak", "bold") + (f" ({memory.peak_at})" if memory.peak_at else "")]
    for role, amount in sorted(memory.by_role.items(), key=lambda item: -item[1]):
        share = amount / memory.peak_bytes if memory.peak_bytes else 0.0
        bar = paint.bar(share, width=40, style="blue")
        lines.append(f"  {role.replace('_', ' '):<16}{bar} {share:>4.0%}  {show_bytes(amount)}")
    for name, amount in memory.outside_parts.items():
        lines.append(f"  {name:<57} {show_bytes(amount)}  {paint('beside the allocator', 'dim')}")
    for moment in memory.moments:
        words = ", ".join(f"{role.replace('_', ' ')} {show_bytes(amount)}" for role, amount in moment.by_role.items())
        lines += list(_wrap(f"At {_article(moment.name)} {show_bytes(moment.peak_bytes)}: {words}.", paint))
    return "\n".join(lines)


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


PART_WORDS = {
    "physics": "physics alone", "layers": "layer models", "classes": "classes",
}  # fmt: skip


def _parts(forecast: Forecast, paint: Paint) -> Iterator[str]:
    """What each part says by itself; the one that answers is marked."""
    if not forecast.parts:
        return
    yield paint("Which part answers", "bold")
    for part in forecast.parts:
        name = f"{'>' if part.is_answer else ' '} {PART_WORDS.get(part.name, part.name):<16}"
        amount = "-" if part.step is None else show_seconds(part.step.seconds)
        head = f"  {name}{amount:<10} "
        for index, line in enumerate(textwrap.wrap(part.says, width=max(paint.width - len(head), 40))):
            lead = f"  {paint(name, 'bold') if part.is_answer else name}{amount:<10} " if not index else " " * len(head)
            yield f"{lead}{paint(line, 'dim')}"


def _trust(forecast: Forecast, paint: Paint) -> Iterator[str]:
    grounds = [
        f"{forecast.grounds[name]:.0%} {words}" for name, words in GROUND_WORDS.items() if forecast.grounds.get(name)
    ]
    if grounds:
        yield from _wrap(f"Rests on (by device time): {', '.join(grounds)}.", paint)
    if forecast.unknown_ops:
        names = ", ".join(forecast.unknown_ops)
        for line in _wrap(f"No FLOP formula, timed by bytes alone: {names}.", paint):
            yield paint(line, "yellow")
    for note in forecast.notes:
        for line in _wrap(f"- {note}", paint, indent="    "):
            yield paint(line, "dim")
