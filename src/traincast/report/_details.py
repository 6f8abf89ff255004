"""Answers to what a page can show: spans merged to a few hundred, memory over the step, rows of plans, bars of schedules."""

from collections.abc import Sequence
from typing import Any

from traincast.forecast import trace_memory
from traincast.plan import Plan
from traincast.report._text import top_tasks
from traincast.schedule import queue_curve
from traincast.spec import Forecast, Job, Parallelism, Schedule, Span

MOST_SPANS = 900
"""Of one lane; a page of a thousand pixels shows no more."""
MOST_LANES = 16
MOST_POINTS = 600
MOST_BARS = 3_000
MOST_NODES = 64
MOST_CURVE = 400


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


_AXES = ("data", "tensor", "pipeline", "context", "expert", "virtual_stages", "micro_batches", "zero", "sequence_parallel",
         "recompute", "order")  # fmt: skip


def document_row(plan: Plan) -> dict[str, Any]:
    """One line of a table; the whole forecast is one request away."""
    forecast, total, memory = plan.forecast, plan.forecast.job.total, plan.forecast.memory
    return {
        "cluster": plan.cluster.name,
        "device": forecast.device,
        "num_nodes": plan.cluster.num_nodes,
        "devices_per_node": plan.cluster.groups[0].devices_per_node,
        "num_devices": forecast.num_devices,
        "usd_per_hour": plan.cluster.usd_per_hour,
        "batch": plan.batch,
        "parallelism": {name: getattr(plan.parallelism, name) for name in _AXES},
        "step_s": forecast.step.seconds,
        "job_s": total.seconds,
        "job_low_s": total.low_s,
        "job_high_s": total.high_s,
        "usd": None if forecast.usd is None else forecast.usd.value,
        "energy_joules": forecast.energy_joules,
        **{name: getattr(memory, name) for name in ("peak_bytes", "needed_bytes", "capacity_bytes", "fit_probability")},
        "deadline_probability": plan.deadline_probability,
        "on_front": plan.on_front,
    }


def document_bars(schedule: Schedule) -> dict[str, Any]:
    """Bars of the Gantt chart as [node, GPUs, start, end, job], and how many jobs wait when."""
    bars = [
        [node, count, held.start_s, held.end_s, schedule.job_ids[held.job][:40]]
        for held in sorted(schedule.occupations, key=lambda held: held.start_s)
        for node, count in held.nodes
        if node < MOST_NODES
    ]
    times, waiting = queue_curve(schedule)
    step = max(1, -(-len(times) // MOST_CURVE))
    widths = [pool.gpus_per_node for pool in schedule.fleet.pools for _ in range(pool.num_nodes)]
    return {
        "bars": bars[:MOST_BARS],
        "num_bars": len(bars),
        "gpus_of_node": widths[:MOST_NODES],
        "num_nodes": len(widths),
        "queue": [[float(at), float(count)] for at, count in zip(times[::step], waiting[::step], strict=True)],
    }
