"""The twelve numbers of a rank on a GPU: what its program and timeline miss of measured runs, by two small networks.

One network says the GPU utilisation of a run, from runs that nvidia-smi watched: input pipelines, evaluation and waiting lower it
below that of the timeline. The other says how long sockets burst beside the bytes they carry and how high, from the CPU test-bed.
Their inputs are shares, rates and sizes, never names, so they carry to devices and workloads that were not measured; outside of
the measured range they fade to the timeline. Memory bandwidth was measured by nobody and stays the timeline's.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincast.files import read_json, write_json
from traincast.noun import noun
from traincast.spec import MATMULS, RESOURCES, Activity, Graph, ResourceProfile, Timeline

Array = NDArray[np.float64]

ON_GPUS = Path(__file__).parent / "weights" / "gpus.json.gz"
BUSY_INPUTS = (
    "communication", "waiting", "memory", "log2_devices", "log10_samples_per_s", "log10_kernels_per_s", "log10_step_s", "half",
    "log10_flop_per_sample", "log10_bytes_per_sample", "log10_parameters", "log10_flop_per_s", "log10_bytes_per_s",
)  # fmt: skip
"""Of the timeline, as shares: communication and waiting that nothing hides, waiting for slower ranks (what communication cannot
be), and time bound by memory. Of one node: devices and samples per second, which
an input pipeline has to feed. Of one device: kernels, FLOP and bytes per second, and what a sample needs of them."""
WIRE_INPUTS = ("wire_share", "log2_ranks", "log_unequal")
"""Bytes over the slowest link as a share of the step, ranks, and how much slower than the rank's own the slowest link is."""
BUSY_BOUND, WIRE_BOUND = 0.6, 1.0
FADE = 4.0
"""So many standard deviations outside of the measured runs a correction is down to a third."""
LEAST_NEARNESS = 0.05
HALF = frozenset({"fp16", "bf16"})
TIMELINE, GPU_RUNS, TESTBED, OWN_RUNS = "timeline", "GPU runs", "CPU test-bed", "own runs"
"""What a number rests on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Perceptron:
    """Networks of two hidden layers whose bounded answers are averaged, and the range of what they saw."""

    centre: Array
    scale: Array
    low: Array
    high: Array
    members: tuple[Mapping[str, Array], ...]
    bound: float

    def answer(self, point: Array) -> tuple[Array, float]:
        """The corrections, faded, and how near the point is to what was measured: 1 inside, 0 far outside."""
        beyond = np.maximum(self.low - point, 0.0) + np.maximum(point - self.high, 0.0)
        near = float(np.exp(-((beyond / (FADE * self.scale)) ** 2).sum()))
        flat = np.clip((point - self.centre) / self.scale, -4.0, 4.0)
        raw = np.mean([run_member(member, flat) for member in self.members], axis=0)
        return np.asarray(near * self.bound * np.tanh(raw / self.bound)), near


def run_member(member: Mapping[str, Array], flat: Array) -> Array:
    state = np.tanh(flat @ member["enter"] + member["enter_bias"])
    state = np.tanh(state @ member["middle"] + member["middle_bias"])
    return np.asarray(state @ member["leave"] + member["leave_bias"])


@noun
class BusyShare:
    """Mean GPU utilisation of a run, as a share of 1."""

    mean: float
    low: float
    high: float
    nearness: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuActivity:
    """Both networks, and what left-out runs missed."""

    busy: Perceptron
    wire: Perceptron
    errors: tuple[float, float]
    """5th and 95th percentile of measured less forecast utilisation, devices left out."""
    wire_errors: Mapping[str, tuple[float, float]]
    """5th and 95th percentile of what burst and peak missed, in logarithms, settings left out."""
    about: Mapping[str, str]

    def utilization(self, point: Array, derived: float) -> BusyShare:
        """`derived`: the share of time in which the timeline runs a kernel."""
        moved, near = self.busy.answer(point)
        mean = min(1.0, max(0.0, derived + float(moved[0])))
        # Far from every measured run nothing narrows it: three times as wide.
        low, high = ((3 - 2 * near) * error for error in self.errors)
        return BusyShare(mean=mean, low=max(0.0, mean + low), high=min(1.0, mean + high), nearness=near)


def describe_busy(graph: Graph, timeline: Timeline, *, num_nodes: int, num_devices: int, passes: int = 1) -> Array:
    """The inputs of the first network. `passes`: micro-batches of a step."""
    step_s = max(timeline.duration_s, 1e-12)
    flop, moved, kernels, half = _add_up(graph)
    batch = max(graph.batch_size, 1)
    local = num_devices / num_nodes
    return np.array([
        timeline.shares.get("communication", 0.0), waiting_share(timeline),
        timeline.shares.get("memory", 0.0), math.log2(local),
        math.log10(passes * batch * local / step_s), math.log10(1 + passes * kernels / step_s), math.log10(step_s), half,
        math.log10(1 + flop / batch), math.log10(1 + moved / batch), math.log10(1 + graph.num_parameters),
        math.log10(1 + passes * flop / step_s / 1e12), math.log10(1 + passes * moved / step_s / 1e11),
    ])  # fmt: skip


def waiting_share(timeline: Timeline) -> float:
    """Of the step in which ranks wait for a slower one, at the least: exposed time that no collective fills."""
    exposed = timeline.shares.get("communication", 0.0)
    return max(0.0, exposed - timeline.communication_s / max(timeline.duration_s, 1e-12))


def busy_share(timeline: Timeline) -> float:
    """Of the step in which a kernel runs; kernels of collectives count."""
    idle = timeline.shares.get("host", 0.0) + timeline.shares.get("bubble", 0.0) + waiting_share(timeline)
    return max(0.0, 1.0 - idle)


_TOTALS: dict[int, tuple[Graph, tuple[float, float, float, float]]] = {}
_MOST_KEPT = 64


def _add_up(graph: Graph) -> tuple[float, float, float, float]:
    """FLOP, bytes and kernels of one pass, and 1 where products run in 16 bits; kept for the last graphs."""
    found = _TOTALS.get(id(graph))
    if found is None:
        flop = moved = kernels = 0.0
        for op, count in zip(graph.ops, graph.counts(), strict=True):
            flop += count * (op.flop or 0.0)
            moved += count * op.num_bytes
            kernels += count * op.num_kernels
        half = float(any(op.dtype in HALF for op in graph.ops if op.kind in MATMULS))
        while len(_TOTALS) >= _MOST_KEPT:
            _TOTALS.pop(next(iter(_TOTALS)))
        # The graph is kept with its sums, so no other can come by its identity.
        found = _TOTALS[id(graph)] = graph, (flop, moved, kernels, half)
    return found[1]


def apply_busy(profile: ResourceProfile, busy: BusyShare, *, ground: str = GPU_RUNS) -> ResourceProfile:
    """The profile with bursts of the GPU as long as its mean utilisation says, at the level that the timeline gives them."""
    before, step_s = profile.gpu, profile.step_s
    if before.burst_s <= 0 or before.mean <= 0 or busy.nearness < LEAST_NEARNESS:
        return profile

    def share(mean: float) -> float:
        level = before.mean * step_s / before.burst_s
        return min(1.0, mean / max(level, 1e-9))

    burst_s = share(busy.mean) * step_s
    low_s, high_s = share(busy.low) * step_s, share(busy.high) * step_s
    gpu = replace(before, idle_s=step_s - burst_s, burst_s=burst_s, mean=min(busy.mean, before.peak))
    ranges = {"gpu_burst_s": (low_s, high_s), "gpu_idle_s": (step_s - high_s, step_s - low_s)}
    return replace(
        profile, gpu=gpu, basis="learned", ranges={**profile.ranges, **ranges},
        grounds={**grounds_of(profile), "gpu_idle_s": ground, "gpu_burst_s": ground},
    )  # fmt: skip


def apply_wire(
    profile: ResourceProfile, learned: GpuActivity, *, num_ranks: int, link_bytes_per_s: float, slowest: float = 1.0
) -> ResourceProfile:
    """The profile with bursts of sockets as the test-bed showed them. `link_bytes_per_s`: this rank's part of its node's link;
    `slowest`: the slowest link of all over it."""
    step_s, rate = profile.step_s, link_bytes_per_s * slowest
    found: dict[str, Activity] = {}
    ranges: dict[str, tuple[float, float]] = {}
    for resource, num_bytes in (("received", profile.received_bytes), ("sent", profile.sent_bytes)):
        before: Activity = getattr(profile, resource)
        if num_bytes <= 0 or before.burst_s <= 0:
            continue
        point = np.array([min(num_bytes / rate / step_s, 1.0), math.log2(num_ranks), math.log(slowest)])
        moved, near = learned.wire.answer(point)
        if near < LEAST_NEARNESS:
            continue
        burst_s = min(step_s, num_bytes / rate * math.exp(float(moved[0])))
        burst_s = math.exp(near * math.log(max(burst_s, 1e-12)) + (1 - near) * math.log(before.burst_s))
        # In bursts the test-bed's links were full; a network of their peaks was worse than that (11.7 against 10.7%).
        peak = math.exp(near * math.log(rate) + (1 - near) * math.log(max(before.peak, 1e-9)))
        # The bytes are what they are: a burst is at least as high as their mean over it.
        peak = max(peak, num_bytes / burst_s)
        found[resource] = replace(before, idle_s=max(step_s - burst_s, 0.0), burst_s=burst_s, peak=peak)
        low_s, high_s = (min(burst_s * math.exp(error), step_s) for error in learned.wire_errors["burst"])
        lowest, highest = (peak * math.exp(error) for error in learned.wire_errors["peak"])
        ranges[f"{resource}_idle_s"] = step_s - high_s, step_s - low_s
        ranges[f"{resource}_burst_s"] = low_s, high_s
        ranges[f"{resource}_peak"] = lowest, highest
    if not found:
        return profile
    return replace(
        profile, basis="learned", ranges={**profile.ranges, **ranges},
        grounds={**grounds_of(profile), **dict.fromkeys(ranges, TESTBED)},
        received=found.get("received", profile.received), sent=found.get("sent", profile.sent),
    )  # fmt: skip


def grounds_of(profile: ResourceProfile) -> dict[str, str]:
    """What each of the twelve rests on; the timeline where nothing is said."""
    names = [f"{resource}_{name}" for resource in RESOURCES for name in ("idle_s", "burst_s", "peak")]
    return {**dict.fromkeys(names, TIMELINE), **profile.grounds}


@functools.cache
def load_gpu_activity(path: Path = ON_GPUS) -> GpuActivity:
    data = read_json(path)
    return GpuActivity(
        busy=_read_perceptron(data["busy"]),
        wire=_read_perceptron(data["wire"]),
        errors=(float(data["errors"][0]), float(data["errors"][1])),
        wire_errors={name: (float(pair[0]), float(pair[1])) for name, pair in data["wire_errors"].items()},
        about=data["about"],
    )


def save_gpu_activity(learned: GpuActivity, path: Path = ON_GPUS) -> None:
    write_json(
        path,
        {
            "about": dict(learned.about),
            "errors": list(learned.errors),
            "wire_errors": {name: list(pair) for name, pair in learned.wire_errors.items()},
            "busy": _write_perceptron(learned.busy),
            "wire": _write_perceptron(learned.wire),
        },
    )


_RANGE = ("centre", "scale", "low", "high")


def _read_perceptron(data: Mapping[str, Any]) -> Perceptron:
    return Perceptron(
        **{name: np.array(data[name], dtype=np.float64) for name in _RANGE},
        members=tuple({name: np.array(one) for name, one in member.items()} for member in data["members"]),
        bound=float(data["bound"]),
    )


def _write_perceptron(network: Perceptron) -> dict[str, Any]:
    return {
        "bound": network.bound,
        **{name: _round(getattr(network, name)) for name in _RANGE},
        "members": [{name: _round(values) for name, values in member.items()} for member in network.members],
    }


def _round(values: Array | Sequence[float]) -> Any:
    table = np.asarray(values)
    if table.ndim > 1:
        return [_round(row) for row in table]
    return [float(f"{value:.5g}") for value in table.tolist()]
