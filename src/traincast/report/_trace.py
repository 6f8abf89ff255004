"""A timeline to the Chrome trace format, which https://ui.perfetto.dev opens."""

from typing import Any

from traincast.spec import Forecast, Span, Timeline

_COLOURS = {
    "compute": "thread_state_running",
    "memory": "thread_state_iowait",
    "communication": "rail_response",
    "host": "rail_idle",
    "bubble": "grey",
    "wait": "grey",
}


def trace_forecast(forecast: Forecast) -> dict[str, Any]:
    """One forecast step as a trace, with the answer itself beside the events."""
    trace = trace_timeline(forecast.timeline, title=f"{forecast.workload} on {forecast.cluster}")
    memory = forecast.memory
    trace["otherData"] = {
        "producer": "traincast",
        "workload": forecast.workload,
        "cluster": forecast.cluster,
        "step_s": forecast.step.seconds,
        "step_low_s": forecast.step.low_s,
        "step_high_s": forecast.step.high_s,
        "memory_bytes": memory.peak_bytes,
        "memory_capacity_bytes": memory.capacity_bytes,
    }
    return trace


def trace_timeline(timeline: Timeline, *, title: str = "training step") -> dict[str, Any]:
    """A process per rank, a thread per stream, a complete event ("X") per span; times in microseconds."""
    streams: dict[tuple[int, str], int] = {}
    events: list[dict[str, Any]] = []
    for rank in sorted({span.rank for span in timeline.spans}):
        events.append(_metadata("process_name", rank, 0, name=f"rank {rank} - {title}"))
        events.append(_metadata("process_sort_index", rank, 0, sort_index=rank))
        for order, stream in enumerate(_streams_of(timeline, rank), start=1):
            streams[rank, stream] = order
            events.append(_metadata("thread_name", rank, order, name=stream))
            events.append(_metadata("thread_sort_index", rank, order, sort_index=order))
    events.extend(_event(span, streams[span.rank, span.stream]) for span in timeline.spans)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _streams_of(timeline: Timeline, rank: int) -> list[str]:
    return list(dict.fromkeys(span.stream for span in timeline.spans if span.rank == rank))


def _event(span: Span, thread: int) -> dict[str, Any]:
    return {
        "name": span.name,
        "cat": span.category,
        "ph": "X",
        "ts": span.start_s * 1e6,
        "dur": (span.end_s - span.start_s) * 1e6,
        "pid": span.rank,
        "tid": thread,
        "cname": _COLOURS.get(span.category, "generic_work"),
        "args": {"layer": span.layer} if span.layer else {},
    }


def _metadata(kind: str, process: int, thread: int, **args: str | int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": args}
