"""The phases of a step to lines: generation, scoring, training and synchronisation with their shares and verdicts."""

import textwrap
from collections.abc import Iterator

from traincast.report._paint import Paint
from traincast.spec import Forecast, Phase
from traincast.units import show_bytes, show_seconds


def format_phases(forecast: Forecast, paint: Paint, *, explain: bool) -> str:
    """A line for each phase, and what it does; empty where a step is one optimizer step."""
    if not forecast.phases:
        return ""
    lines = [paint("Phases of a step", "bold")]
    for phase in forecast.phases:
        lines.extend(list(_show(phase, forecast, paint))[: None if explain else 1])
    return "\n".join(lines)


def _show(phase: Phase, forecast: Forecast, paint: Paint) -> Iterator[str]:
    bar = paint.bar(min(phase.share, 1.0), width=24, style="green")
    memory = ""
    if phase.peak_bytes:
        verdict = paint("fits", "green") if phase.fits else paint("DOES NOT FIT", "red", "bold")
        memory = f", {show_bytes(phase.peak_bytes)}: {verdict}"
    where = f" on {phase.num_devices} devices" if phase.num_devices != forecast.num_devices else ""
    yield f"  {phase.name:<12}{bar} {phase.share:>4.0%}  {show_seconds(phase.step.seconds)}{where}{memory}"
    for line in textwrap.wrap(phase.says, width=max(paint.width - 14, 40)):
        yield paint(f"              {line}", "dim")
