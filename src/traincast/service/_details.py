"""A drawn forecast to what a page can show: spans merged to a few hundred, memory over the step, the slowest tasks."""

from collections.abc import Sequence
from typing import Any

from traincast.forecast import trace_memory
from traincast.report import top_tasks
from traincast.spec import Forecast, Job, Parallelism, Span

MOST_SPANS = 900
"""Of one lane; a page of a thousand pixels shows no more."""
MOST_LANES = 16
MOST_POINTS = 600


def describe_details(answer: Forecast, job: Job, plan: Parallelism) -> dict[str, Any]:
    spans = answer.timeline.spans
    lanes: dict[tuple[int, str], list[Span]] = {}
    for span in spans:
        lanes.setdefault((span.rank, span.stream), []).append(span)
    chosen = list(lanes.items())[:MOST_LANES]
    return {
        "lanes": [
            {"rank": rank, "stream": stream, "spans": _merge(found, answer.timeline.duration_s)}
            for (rank, stream), found in chosen
        ],
        "num_lanes": len(lanes),
        "memory": _memory_curve(answer, job, plan),
        "slowest": [
            {"name": name, "category": category, "seconds": seconds}
            for name, category, seconds in top_tasks(answer.timeline, by_layer=False)[:12]
        ],
    }


def _merge(spans: Sequence[Span], duration_s: float) -> list[list[Any]]:
    """[start, end, category, name] in time order; what is too narrow to be seen is merged with its like."""
    gap_s = 0.0
    while True:
        merged: list[list[Any]] = []
        for span in spans:
            last = merged[-1] if merged else None
            narrow = last is not None and (last[1] - last[0] < gap_s or span.end_s - span.start_s < gap_s)
            if last is not None and narrow and last[2] == span.category and span.start_s - last[1] <= gap_s:
                last[1] = span.end_s
                if not last[3].endswith(" ..."):
                    last[3] += " ..."
            elif last is not None and narrow and span.end_s - span.start_s < gap_s / 4:
                last[1] = max(last[1], span.end_s)
            else:
                name = f"{span.layer} {span.name}".strip()
                merged.append([span.start_s, span.end_s, span.category, name[:80]])
        if len(merged) <= MOST_SPANS or gap_s > duration_s:
            return merged
        gap_s = 2 * gap_s or duration_s / 4096


def _memory_curve(answer: Forecast, job: Job, plan: Parallelism) -> dict[str, Any]:
    """Bytes in use over the ops of one pass of the fullest stage, the highest of each piece kept."""
    stage, profile = trace_memory(answer, job, plan)
    curve = profile.curve
    width = max(1, -(-len(curve) // MOST_POINTS))
    pieces = [max(curve[at : at + width], key=lambda point: point[1]) for at in range(0, len(curve), width)]
    # What a device must hold also counts what no operation of this stage allocates: the context, workspaces, cached blocks.
    outside_bytes = answer.memory.needed_bytes - max((amount for _, amount in pieces), default=0.0)
    return {
        "stage": stage,
        "num_stages": max(1, len(answer.memory.stage_peaks)),
        "points": [[name[:60], amount + outside_bytes] for name, amount in pieces],
        "outside_bytes": outside_bytes,
        "live_peak_bytes": profile.peak_bytes,
    }
