"""A drawn timeline, or the samples of a real run, to the resource profile of each distinct rank."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from traincast.errors import InvalidInput
from traincast.resources._signal import Signal, from_counter, from_gauge, from_pieces, sample, summarize
from traincast.resources._traffic import SERVED, count_traffic
from traincast.spec import Activity, Cluster, Device, ResourceProfile, Span, Timeline

WINDOWS_PER_STEP = 50
"""Windows in a forecast step where no sampling period is asked for."""
FLOORS: Mapping[str, float] = {"gpu": 0.02, "memory": 0.005, "received": 1e4, "sent": 1e4}
"""Levels up to which a resource is idle whatever else it does: a sampler's own work, keep-alive packets."""


def profile_resources(
    timeline: Timeline, cluster: Cluster, *, window_s: float | None = None
) -> tuple[ResourceProfile, ...]:
    """One profile for each rank of a drawn timeline, as a sampler with the period `window_s` would measure it.

    None: as one that samples a step fifty times. GPU utilisation is the share of time in which a kernel runs, and the
    kernels of collectives count, as in nvidia-smi.
    """
    by_rank: dict[int, list[Span]] = {}
    for span in timeline.spans:
        by_rank.setdefault(span.rank, []).append(span)
    if not by_rank or timeline.duration_s <= 0:
        raise InvalidInput("the timeline has no spans; draw it with simulate_step(..., draw=True)")
    return tuple(
        _profile_rank(
            rank,
            spans,
            timeline.duration_s,
            cluster,
            device=cluster.groups[group_of(cluster, rank * cluster.num_devices // len(by_rank))].device,
            window_s=window_s or timeline.duration_s / WINDOWS_PER_STEP,
        )
        for rank, spans in sorted(by_rank.items())
    )


def trace_levels(spans: Sequence[Span], duration_s: float, cluster: Cluster, *, device: Device) -> dict[str, Signal]:
    """The exact level of each resource over one step of one rank."""
    busy: list[tuple[float, float, float]] = []
    memory: list[tuple[float, float, float]] = []
    received: list[tuple[float, float, float]] = []
    sent: list[tuple[float, float, float]] = []
    for span in spans:
        seconds = span.end_s - span.start_s
        if seconds <= 0 or span.category in ("host", "bubble", "wait"):
            continue
        if span.collective is None or span.collective.kind not in SERVED:
            busy.append((span.start_s, span.end_s, 1.0))
        num_bytes, incoming, outgoing = _amounts(span, cluster)
        memory.append((span.start_s, span.end_s, num_bytes / seconds / device.memory_bytes_per_s))
        received.append((span.start_s, span.end_s, incoming / seconds))
        sent.append((span.start_s, span.end_s, outgoing / seconds))
    return {
        "gpu": from_pieces(busy, duration_s=duration_s, highest=1.0),
        "memory": from_pieces(memory, duration_s=duration_s, highest=1.0),
        "received": from_pieces(received, duration_s=duration_s),
        "sent": from_pieces(sent, duration_s=duration_s),
    }


def profile_samples(
    times_s: Sequence[float],
    *,
    busy_s: Sequence[float],
    memory_share: Sequence[float],
    received_bytes: Sequence[float],
    sent_bytes: Sequence[float],
    num_steps: int,
    rank: int = 0,
    energy_joules: float | None = None,
) -> ResourceProfile:
    """The profile of a real run of `num_steps` from readings at equal times.

    `busy_s`, `received_bytes` and `sent_bytes` are counters that only grow: seconds in which the device worked (on a CPU
    setting the CPU seconds of the process over its cores), bytes on the interface. `memory_share` is read as it stands.
    `energy_joules` is that of the whole run.
    """
    if num_steps < 1:
        raise InvalidInput(f"num_steps = {num_steps}; a profile needs at least one step")
    signals = {
        "gpu": from_counter(times_s, busy_s),
        "memory": from_gauge(times_s, memory_share),
        "received": from_counter(times_s, received_bytes),
        "sent": from_counter(times_s, sent_bytes),
    }
    duration_s = signals["gpu"].duration_s
    seen = {name: summarize(signal, num_cycles=num_steps, floor=FLOORS[name]) for name, signal in signals.items()}
    return ResourceProfile(
        rank=rank,
        step_s=duration_s / num_steps,
        window_s=float(np.median(np.diff(np.asarray(times_s)))),
        gpu=seen["gpu"],
        memory=seen["memory"],
        received=seen["received"],
        sent=seen["sent"],
        memory_bytes=None,
        received_bytes=(received_bytes[-1] - received_bytes[0]) / num_steps,
        sent_bytes=(sent_bytes[-1] - sent_bytes[0]) / num_steps,
        energy_joules=None if energy_joules is None else energy_joules / num_steps,
    )


def _profile_rank(rank: int, spans: Sequence[Span], duration_s: float, cluster: Cluster, *, device: Device,
                  window_s: float) -> ResourceProfile:  # fmt: skip
    levels = trace_levels(spans, duration_s, cluster, device=device)
    # A sampler and the step do not beat together; enough steps show every phase between them.
    aligned = math.isclose(duration_s / window_s, round(duration_s / window_s))
    times = 1 if aligned else max(20, math.ceil(WINDOWS_PER_STEP * window_s / duration_s))

    def activity(name: str) -> Activity:
        seen = sample(levels[name], window_s=window_s, times=times)
        return summarize(seen, num_cycles=seen.duration_s / duration_s, floor=FLOORS[name], cyclic=aligned)

    amounts = [_amounts(span, cluster) for span in spans]
    return ResourceProfile(
        rank=rank,
        step_s=duration_s,
        window_s=window_s,
        gpu=activity("gpu"),
        memory=activity("memory"),
        received=activity("received"),
        sent=activity("sent"),
        memory_bytes=sum(amount[0] for amount in amounts),
        received_bytes=sum(amount[1] for amount in amounts),
        sent_bytes=sum(amount[2] for amount in amounts),
        energy_joules=None,
    )


def summarize_readings(
    times_s: Sequence[float],
    *,
    num_steps: int,
    busy: Sequence[float | None] = (),
    memory_busy: Sequence[float | None] = (),
    received_bytes: Sequence[float] = (),
    sent_bytes: Sequence[float] = (),
) -> dict[str, float]:
    """Those of the twelve numbers, and of their means, that a driver and an interface told, by name; {} of too few readings.

    `busy` and `memory_busy` are levels since the last reading, `received_bytes` and `sent_bytes` counters that only grow.
    """
    if len(times_s) < 2 or num_steps < 1:
        return {}
    signals: dict[str, Signal] = {}
    for name, levels in (("gpu", busy), ("memory", memory_busy)):
        told = [level for level in levels if level is not None]
        if len(told) == len(times_s):
            signals[name] = from_gauge(times_s, told)
    for name, counted in (("received", received_bytes), ("sent", sent_bytes)):
        if len(counted) == len(times_s):
            signals[name] = from_counter(times_s, np.maximum.accumulate(counted).tolist())
    found: dict[str, float] = {}
    for name, signal in signals.items():
        seen = summarize(signal, num_cycles=num_steps, floor=FLOORS[name])
        found |= {
            f"{name}_idle_s": seen.idle_s, f"{name}_burst_s": seen.burst_s, f"{name}_peak": seen.peak,
            f"{name}_mean": seen.mean,
        }  # fmt: skip
    return found


def _amounts(span: Span, cluster: Cluster) -> tuple[float, float, float]:
    """Bytes through the device's memory, received from other nodes and sent to them."""
    if span.collective is None:
        return span.num_bytes, 0.0, 0.0
    traffic = count_traffic(span.collective, cluster)
    receives, sends = span.direction in ("in", "both"), span.direction in ("out", "both")
    if span.collective.kind in SERVED:
        receives, sends = span.collective.kind == "pull", span.collective.kind == "push"
    # What is sent was read from memory, what is received is written there.
    through_memory = (receives + sends) * traffic.link_bytes
    return through_memory, receives * traffic.network_bytes, sends * traffic.network_bytes


def group_of(cluster: Cluster, rank: int) -> int:
    """The place of the group that a rank runs in."""
    for place, group in enumerate(cluster.groups):
        if rank < group.num_devices:
            return place
        rank -= group.num_devices
    return len(cluster.groups) - 1
