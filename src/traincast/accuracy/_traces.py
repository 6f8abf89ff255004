"""A Kineto trace beside the forecast of the same job: which operations make up the difference."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.spec import Estimate, Forecast, Graph, Span
from traincast.store import read_kineto

DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
ALIASES = {
    "aten.scaled_dot_product_attention": "traincast.attention",
    "aten._scaled_dot_product_flash_attention": "traincast.attention",
    "aten._scaled_dot_product_efficient_attention": "traincast.attention",
    "aten._scaled_dot_product_flash_attention_for_cpu": "traincast.attention",
    "aten._scaled_dot_product_flash_attention_backward": "traincast.attention_backward",
    "aten._scaled_dot_product_efficient_attention_backward": "traincast.attention_backward",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": "traincast.attention_backward",
    "aten.dropout": "aten.native_dropout",
}
"""What the profiler calls an operation that the forecast names otherwise."""
COMPUTES = (
    ("communication", r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"),
    ("attention", r"scaled_dot_product|attention|fmha|flash_fwd|flash_bwd|_attn_"),
    ("conv", r"conv|cudnn.*(fprop|dgrad|wgrad)|implicit_gemm|winograd|miopen"),
    (
        "matmul",
        r"\b(add)?mm\b|\bbaddbmm\b|\bbmm\b|matmul|linear|gemm|gemv|cutlass|cublas|xmma|cijk_|nvjet|\bdot\b|einsum",
    ),
    ("norm", r"layer_?norm|batch_?norm|group_?norm|rms_?norm|instance_?norm"),
    ("softmax", r"soft_?max|cross_entropy|nll_loss"),
    ("optimizer", r"optimizer|multi_tensor|foreach|adam|\bsgd\b|lamb"),
    ("embedding", r"embedding"),
    ("index", r"index|gather|scatter"),
    ("pool", r"pool"),
    ("dropout", r"dropout"),
    ("copy", r"copy|memcpy|memset|clone|contiguous|\bcat\b|transpose|fill|zeros|empty"),
    (
        "elementwise",
        r"elementwise|vectorized|\b(add|mul|div|sub)_?\b|gelu|relu|silu|sigmoid|tanh|\bpow\b|sqrt|\bexp\b|where|mask",
    ),
    ("reduce", r"reduce|\bsum\b|\bmean\b|norm\b|\bmax\b|\bmin\b"),
)
"""What an operator or a kernel of any vendor computes, by a word of its name; the first that fits counts."""
UNFORECAST = "not forecast"
"""The kind of operations that the forecast has no name for."""


@noun
class OpDifference:
    """One operation in both, in seconds of one step."""

    name: str
    kind: str
    forecast_s: float
    measured_s: float
    num_measured: float
    """Calls in one step of the trace."""

    @property
    def difference_s(self) -> float:
        return self.measured_s - self.forecast_s

    @property
    def is_calibrated_away(self) -> bool:
        """Whether measuring this machine would remove the difference: both sides have it, so only its speed is in doubt."""
        return self.forecast_s > 0 and self.num_measured > 0


@noun
class TraceComparison:
    """A measured step beside a forecast one."""

    trace: str
    device: str
    """Of the trace; 'cpu' where it holds no GPU."""
    num_steps: int
    forecast: Estimate
    measured_s: float
    ops: tuple[OpDifference, ...]
    """By their contribution to the difference, largest first."""
    forecast_gap_s: float
    """Of the forecast step, in which the device waits for the host or an empty pipeline."""
    measured_gap_s: float
    """Of the measured step, in which no operation runs."""

    @property
    def missing(self) -> tuple[OpDifference, ...]:
        """Forecast and not in the trace."""
        return tuple(op for op in self.ops if not op.num_measured)

    @property
    def extra(self) -> tuple[OpDifference, ...]:
        """In the trace and not forecast."""
        return tuple(op for op in self.ops if op.num_measured and op.forecast_s == 0)

    def by_kind(self) -> dict[str, tuple[float, float]]:
        """(forecast, measured) seconds of each kind, largest difference first."""
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for op in self.ops:
            sums[op.kind][0] += op.forecast_s
            sums[op.kind][1] += op.measured_s
        ranked = sorted(sums.items(), key=lambda item: (-abs(item[1][1] - item[1][0]), item[0]))
        return {kind: (forecast_s, measured_s) for kind, (forecast_s, measured_s) in ranked}


def device_of_trace(path: str | os.PathLike[str]) -> str | None:
    """The name of the first GPU in a trace; None where it holds none."""
    trace, _ = read_kineto(path)
    devices = trace.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    return str(first["name"]) if isinstance(first, dict) and first.get("name") else None


def _read_steps(path: str | os.PathLike[str], num_steps: int | None) -> tuple[list[dict[str, Any]], float, int]:
    """The events of all steps, the mean seconds of one, and their number."""
    _, events = read_kineto(path)
    windows = _steps_of(events)
    if windows:
        inside = [event for event in events if any(start <= float(event["ts"]) < stop for start, stop in windows)]
        return inside, sum(stop - start for start, stop in windows) / len(windows) * 1e-6, len(windows)
    if not events:
        raise InvalidInput(f"{path} holds no complete events; record it with torch.profiler.profile")
    updates = sum(str(event.get("name", "")).startswith("Optimizer.step") for event in events)
    count = num_steps or updates or 1
    begun = min(float(event["ts"]) for event in events)
    ended = max(float(event["ts"]) + float(event["dur"]) for event in events)
    return events, (ended - begun) / count * 1e-6, count


def compare_trace(
    path: str | os.PathLike[str], forecast: Forecast, graph: Graph, *, num_steps: int | None = None
) -> TraceComparison:
    """Lay a trace beside a forecast whose timeline was drawn. `num_steps` says how many steps a trace without marks holds."""
    events, measured_s, count = _read_steps(path, num_steps)
    if not forecast.timeline.spans:
        raise InvalidInput("the forecast has no timeline to compare with; make it with draw=True")
    kinds = {op.name: op.kind for op in graph.ops}
    expected = _forecast_seconds(forecast.timeline.spans, kinds)
    on_device = [event for event in events if event.get("cat") in DEVICE_CATEGORIES]
    found = _device_seconds(events, on_device, expected) if on_device else _host_seconds(events, expected)
    if not found:
        raise InvalidInput(f"{path} holds no operators or kernels; record it with torch.profiler.profile")
    ops = [
        OpDifference(
            name=name, kind=kinds.get(name) or _kind_of(name), forecast_s=expected.get(name, 0.0),
            measured_s=found[name][0] / count if name in found else 0.0,
            num_measured=found[name][1] / count if name in found else 0.0,
        )
        for name in {**expected, **found}
    ]  # fmt: skip
    ops = _match_by_work(ops)
    busy_s = _covered_s(on_device) / count if on_device else sum(op.measured_s for op in ops)
    shares = forecast.timeline.shares
    return TraceComparison(
        trace=Path(path).name, device=device_of_trace(path) or "cpu", num_steps=count, forecast=forecast.step,
        measured_s=measured_s, ops=tuple(sorted(ops, key=lambda op: (-abs(op.difference_s), op.name))),
        forecast_gap_s=forecast.timeline.duration_s * (shares.get("host", 0.0) + shares.get("bubble", 0.0)),
        measured_gap_s=max(0.0, measured_s - busy_s),
    )  # fmt: skip


def _steps_of(events: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Start and end of each marked step, by the host's clock."""
    return sorted(
        (float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in events
        if str(event.get("name", "")).startswith("ProfilerStep") and not str(event.get("cat", "")).startswith("gpu")
    )


def _forecast_seconds(spans: Sequence[Span], kinds: Mapping[str, str]) -> dict[str, float]:
    """Of each operation of the first rank; a collective goes by its kind."""
    rank = min(span.rank for span in spans)
    seconds: dict[str, float] = defaultdict(float)
    for span in spans:
        is_op = span.name in kinds or span.collective is not None
        if span.rank == rank and is_op:
            seconds[span.collective.kind if span.collective is not None else span.name] += span.end_s - span.start_s
    return dict(seconds)


def _host_seconds(events: Sequence[Mapping[str, Any]], expected: Mapping[str, float]) -> dict[str, tuple[float, int]]:
    """Self times of operators on a CPU, each given to the outermost operation around it that the forecast knows."""
    sums: dict[str, tuple[float, int]] = {}
    for _, owner, own_us, is_itself in _walk(events, expected):
        if owner:
            seconds, calls = sums.get(owner, (0.0, 0))
            sums[owner] = (seconds + own_us * 1e-6, calls + is_itself)
    return sums


def _device_seconds(
    events: Sequence[Mapping[str, Any]], on_device: Sequence[Mapping[str, Any]], expected: Mapping[str, float]
) -> dict[str, tuple[float, int]]:
    """Times of kernels, each given to the operation that launched it; NCCL's go by their collective."""
    owners: dict[Any, str] = {}
    for index, owner, _, _ in _walk(events, expected):
        launched = (events[index].get("args") or {}).get("External id")
        if launched is not None:
            owners[str(launched)] = owner
    sums: dict[str, tuple[float, int]] = {}
    for event in on_device:
        args = event.get("args") or {}
        name = str(event.get("name", ""))
        if "nccl" in name.lower() or "rccl" in name.lower():
            owner = _collective_of(str(args.get("Collective name") or name))
        else:
            owner = owners.get(str(args.get("External id"))) or f"kernel {name}"
        seconds, calls = sums.get(owner, (0.0, 0))
        sums[owner] = (seconds + float(event["dur"]) * 1e-6, calls + 1)
    return sums


def _walk(events: Sequence[Mapping[str, Any]], expected: Mapping[str, float]) -> Iterator[tuple[int, str, float, bool]]:
    """(event, the operation it belongs to, its self time in µs, whether it is that operation itself), thread by thread."""
    threads: dict[tuple[str, str], list[int]] = {}
    for index, event in enumerate(events):
        if event.get("cat") in ("cpu_op", "user_annotation"):
            threads.setdefault((str(event.get("pid")), str(event.get("tid"))), []).append(index)
    for indices in threads.values():
        indices.sort(key=lambda index: (float(events[index]["ts"]), -float(events[index]["dur"])))
        own = {index: float(events[index]["dur"]) for index in indices}
        stack: list[tuple[float, int, str, bool]] = []
        found: list[tuple[int, str, bool]] = []
        for index in indices:
            start, duration = float(events[index]["ts"]), float(events[index]["dur"])
            while stack and stack[-1][0] <= start:
                stack.pop()
            inherited, settled = (stack[-1][2], stack[-1][3]) if stack else ("", False)
            name = _operation(str(events[index].get("name", "")), expected)
            if stack:
                own[stack[-1][1]] -= duration
            # The outermost operation that the forecast knows; else the outermost that is an operator at all.
            owner = inherited if settled or not name or (inherited and name not in expected) else name
            settled = settled or name in expected
            found.append((index, owner, owner != inherited))
            stack.append((start + duration, index, owner, settled))
        for index, owner, is_itself in found:
            yield index, owner, max(0.0, own[index]), is_itself


def _operation(name: str, expected: Mapping[str, float]) -> str:
    """As the forecast would call it; empty for what only wraps operations."""
    if name.startswith("Optimizer.step#"):
        return next((known for known in expected if known.startswith("optimizer.")), "optimizer")
    if not name.startswith("aten::"):
        return ""
    plain = name.replace("aten::", "aten.")
    return plain if plain in expected else ALIASES.get(plain, plain)


def _collective_of(name: str) -> str:
    plain = name.lower().replace("_", "")
    words = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
             "alltoall": "all_to_all", "broadcast": "broadcast", "sendrecv": "send_recv"}  # fmt: skip
    return next((kind for word, kind in words.items() if word in plain), name)


def _kind_of(name: str) -> str:
    """What an operator that the forecast does not name computes, as far as its name tells."""
    if name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"):
        return "communication"
    lower = name.lower()
    return next((kind for kind, words in COMPUTES if re.search(words, lower)), UNFORECAST)


def _match_by_work(ops: Sequence[OpDifference]) -> list[OpDifference]:
    """Operations that only one side names are matched by what they compute: a library may split or join what another does in one
    call. Names that both sides have stay as they are."""
    alone: dict[str, tuple[list[OpDifference], list[OpDifference]]] = {}
    for op in ops:
        if not (op.forecast_s and op.num_measured):
            sides = alone.setdefault(_sort_of(op), ([], []))
            sides[0 if op.forecast_s else 1].append(op)
    matched = {sort: sides for sort, sides in alone.items() if all(sides) and sort != UNFORECAST}
    kept = [op for op in ops if (op.forecast_s and op.num_measured) or _sort_of(op) not in matched]
    for sort, (planned, found) in matched.items():
        names = [
            [each.name for each in sorted(side, key=lambda op: -abs(op.difference_s))] for side in (planned, found)
        ]
        kept.append(
            OpDifference(
                name=f"{_list(names[0])} = {_list(names[1])}",
                kind=sort,
                forecast_s=sum(op.forecast_s for op in planned),
                measured_s=sum(op.measured_s for op in found),
                num_measured=sum(op.num_measured for op in found),
            )
        )
    return kept


def _sort_of(op: OpDifference) -> str:
    """What an operation computes in the words of a trace, so that both sides use the same."""
    named = _kind_of(op.name)
    return named if named != UNFORECAST else op.kind


def _list(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def _covered_s(events: Sequence[Mapping[str, Any]]) -> float:
    """Seconds in which at least one of these runs."""
    covered_us, end_us = 0.0, float("-inf")
    for start_us, stop_us in sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in events):
        covered_us += max(0.0, stop_us - max(start_us, end_us))
        end_us = max(end_us, stop_us)
    return covered_us * 1e-6
