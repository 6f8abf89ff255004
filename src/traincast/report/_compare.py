"""A measured step beside a forecast one, to text and to JSON data."""

from collections.abc import Iterator
from typing import Any

from traincast.accuracy import OpDifference, TraceComparison
from traincast.configs import RunLog
from traincast.forecast import DeviceMemory
from traincast.report._paint import Paint
from traincast.report._table import PLAIN, Table, format_table
from traincast.report._text import say_next
from traincast.spec import Forecast
from traincast.units import show_bytes, show_seconds


def format_comparison(comparison: TraceComparison, *, paint: Paint = PLAIN, limit: int = 10, then: str = "") -> str:
    """The two steps, then what makes up their difference: by kind, by operation, and what only one of them has."""
    step = comparison.forecast
    blocks = [_heading(comparison, paint), _kinds(comparison, paint), _ops(comparison, paint, limit=limit)]
    for title, ops in (
        ("Forecast, but not in the trace", comparison.missing),
        ("In the trace, but not forecast", comparison.extra),
    ):
        notable = [
            op for op in ops if max(op.forecast_s, op.measured_s) >= 0.005 * max(step.seconds, comparison.measured_s)
        ]
        if notable:
            listed = ", ".join(f"{op.name} ({show_seconds(op.forecast_s or op.measured_s)})" for op in notable[:8])
            more = f" and {len(notable) - 8} more" if len(notable) > 8 else ""
            blocks.append(f"{paint(title, 'bold')}\n  {listed}{more}")
    blocks.append("\n".join(_say_rest(comparison)))
    blocks.append(say_next(then, paint=paint))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _say_rest(comparison: TraceComparison) -> Iterator[str]:
    """How much of the difference a calibration would remove, and what else there is."""
    removed_s = sum(op.difference_s for op in comparison.ops if op.is_calibrated_away)
    yield (
        f"The next calibration (traincast calibrate) would remove {show_seconds(abs(removed_s))} of the differences: operations "
        "that both sides have, at another speed."
    )
    gap_s = comparison.measured_gap_s - comparison.forecast_gap_s
    if abs(gap_s) >= 0.05 * comparison.measured_s:
        more = "more" if gap_s > 0 else "less"
        yield f"It would not remove gaps: in the trace nothing runs for {show_seconds(abs(gap_s))} {more} than forecast."


def document_comparison(comparison: TraceComparison) -> dict[str, Any]:
    def row(op: OpDifference) -> dict[str, Any]:
        return {
            "name": op.name, "kind": op.kind, "forecast_s": op.forecast_s, "measured_s": op.measured_s,
            "difference_s": op.difference_s, "num_measured": op.num_measured,
            "is_calibrated_away": op.is_calibrated_away,
        }  # fmt: skip

    step = comparison.forecast
    return {
        "trace": comparison.trace,
        "device": comparison.device,
        "num_steps": comparison.num_steps,
        "measured_s": comparison.measured_s,
        "forecast": {"seconds": step.seconds, "low_s": step.low_s, "high_s": step.high_s},
        "gap": {"forecast_s": comparison.forecast_gap_s, "measured_s": comparison.measured_gap_s},
        "kinds": {
            kind: {"forecast_s": forecast_s, "measured_s": measured_s, "difference_s": measured_s - forecast_s}
            for kind, (forecast_s, measured_s) in comparison.by_kind().items()
        },
        "ops": [row(op) for op in comparison.ops],
        "missing": [op.name for op in comparison.missing],
        "extra": [op.name for op in comparison.extra],
    }


def _heading(comparison: TraceComparison, paint: Paint) -> str:
    step, measured_s = comparison.forecast, comparison.measured_s
    inside = "inside" if step.low_s <= measured_s <= step.high_s else "outside"
    ratio = step.seconds / measured_s - 1 if measured_s else 0.0
    return "\n".join(
        [
            f"{paint(comparison.trace, 'bold')}: {comparison.num_steps} steps on {comparison.device}",
            f"  measured    {show_seconds(measured_s)} per step, {show_seconds(comparison.measured_gap_s)} of it no "
            "operation runs",
            f"  forecast    {show_seconds(step.seconds)} ({show_seconds(step.low_s)} to {show_seconds(step.high_s)}), "
            f"{show_seconds(comparison.forecast_gap_s)} of it the device waits",
            f"  difference  {ratio:+.0%}, the measured step is {inside} the 90% interval",
        ]
    )


def _kinds(comparison: TraceComparison, paint: Paint) -> str:
    rows = [(kind, *_times(*both)) for kind, both in comparison.by_kind().items()]
    rows.append(("gaps", *_times(comparison.forecast_gap_s, comparison.measured_gap_s)))
    headings = ("  kind", "forecast", "measured", "difference")
    table = Table(
        headings=headings, rows=tuple((f"  {kind}", *times) for kind, *times in rows), left=frozenset(["  kind"])
    )
    return format_table(table, paint=paint)


def _ops(comparison: TraceComparison, paint: Paint, *, limit: int) -> str:
    whole_s = abs(comparison.measured_s - comparison.forecast.seconds) or 1.0
    rows = tuple(
        (
            f"  {op.name[:58]}",
            op.kind,
            *_times(op.forecast_s, op.measured_s),
            f"{op.difference_s / whole_s:+.0%}",
            "yes" if op.is_calibrated_away else "no",
        )
        for op in comparison.ops[:limit]
    )
    headings = (
        "  largest differences", "kind", "forecast", "measured", "difference", "of all", "calibration removes",
    )  # fmt: skip
    return format_table(
        Table(headings=headings, rows=rows, left=frozenset({"  largest differences", "kind"})), paint=paint
    )


def _times(forecast_s: float, measured_s: float) -> tuple[str, str, str]:
    difference_s = measured_s - forecast_s
    sign = "+" if difference_s >= 0 else "-"
    return show_seconds(forecast_s), show_seconds(measured_s), f"{sign}{show_seconds(abs(difference_s))}"


def format_log(
    run: RunLog, step_s: float | None, answer: Forecast, meter: DeviceMemory, *, paint: Paint = PLAIN
) -> str:
    """What the log of a run measured, beside the forecast of it."""
    rows = []
    if step_s is not None:
        inside = "yes" if answer.step.low_s <= step_s <= answer.step.high_s else "no"
        interval = f"{show_seconds(answer.step.low_s)} to {show_seconds(answer.step.high_s)}"
        rows.append(("step", show_seconds(step_s), show_seconds(answer.step.seconds), interval, inside))
    for name, measured, expected in (
        ("memory, reserved by the framework", run.reserved_bytes, meter.reserved_bytes),
        ("memory, nvidia-smi", run.used_bytes, meter.used_bytes),
    ):
        if measured is not None:
            rows.append((name, show_bytes(measured), show_bytes(expected), "", ""))
    if run.gpu_share is not None:
        share = "unknown" if answer.run_utilization is None else f"{answer.run_utilization:.0%}"
        rows.append(("GPU utilisation, mean", f"{run.gpu_share:.0%}", share, "", ""))
    headings = ("", "measured", "forecast", "90% interval", "inside")
    title = f"{answer.workload} on {answer.cluster}: {run.format}" + (
        f", {run.num_steps:,} steps" if run.num_steps else ""
    )
    return format_table(
        Table(headings=headings, rows=tuple(rows), left=frozenset(headings[:1]), title=title), paint=paint
    )
