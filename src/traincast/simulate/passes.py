"""Runs the tasks of one pass on four clocks: host, device, network and copies; repeated layers in closed form or one by one.

A kernel starts when the one before it has ended and the host has issued it: end = max(end before, issued) + duration. That
recurrence is linear in the (max, +) algebra, so a layer repeated n times needs no loop (Baccelli et al. 1992).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from traincast.spec import HOST, Collective, Estimate, Span, Stage, Task
from traincast.spec.graph import segments

PASSES = ("forward", "backward", "optimizer")


@dataclass(slots=True)
class Clocks:
    """When each of them is free again."""

    host_s: float = 0.0
    device_s: float = 0.0
    network_s: float = 0.0
    copies_s: float = 0.0
    network_link: str = ""
    """Which link the network's last collective uses."""


@dataclass(slots=True)
class Spent:
    """Where the device's time went, in seconds."""

    compute_s: float = 0.0
    memory_s: float = 0.0
    host_s: float = 0.0
    exposed_s: dict[str, float] = field(default_factory=dict)
    communication_s: float = 0.0

    def expose(self, axis: str, seconds: float) -> None:
        if seconds > 0:
            self.exposed_s[axis] = self.exposed_s.get(axis, 0.0) + seconds

    @property
    def total_exposed_s(self) -> float:
        return sum(self.exposed_s.values())

    def copy(self) -> "Spent":
        return Spent(self.compute_s, self.memory_s, self.host_s, dict(self.exposed_s), self.communication_s)

    def add(self, after: "Spent", before: "Spent", times: int) -> None:
        """Add what lies between two moments, several times."""
        self.compute_s += times * (after.compute_s - before.compute_s)
        self.memory_s += times * (after.memory_s - before.memory_s)
        self.host_s += times * (after.host_s - before.host_s)
        self.communication_s += times * (after.communication_s - before.communication_s)
        for axis, seconds in after.exposed_s.items():
            self.expose(axis, times * (seconds - before.exposed_s.get(axis, 0.0)))


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive tasks of one pass that repeat together, reduced to what the clocks need."""

    count: int
    tasks: tuple[Task, ...]
    estimates: tuple[Estimate, ...]
    device_s: float
    """All tasks the device runs or waits for, once."""
    host_s: float
    chain_s: float
    """Longest way from the part's start on the host to its end on the device."""
    compute_s: float
    memory_s: float
    blocking: tuple[tuple[Collective, float], ...]
    before: tuple[tuple[Collective, float], ...]
    """Collectives that must end before the part starts, and may be issued one repetition ahead."""
    during: tuple[tuple[Collective, float, float], ...]
    """(what, device seconds after the start when it is ready, duration) of collectives nobody in the part waits for."""
    gradients: tuple[tuple[Collective, float, float], ...]
    """The same, for collectives that run only in the last micro-batch."""
    deferred: tuple[tuple[Collective, float], ...]
    """Reductions that are not overlapped: they run when the last backward pass is over."""
    slowdown: float = 0.0
    """Of kernels while a collective of this part runs beside them."""
    blocked_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds for which the device waits for collectives, by the link they use."""
    loose_links: Mapping[int, str] = field(default_factory=dict)
    """The links of collectives that nobody in the part waits for, by the identity of their task."""


def split_passes(stage: Stage, estimates: Sequence[Estimate]) -> dict[str, list[Part]]:
    """The parts of each pass in order."""
    parts: dict[str, list[Part]] = {name: [] for name in PASSES}
    for segment in segments(stage.repeats, num_tasks=len(stage.tasks)):
        start = segment.start
        while start < segment.stop:
            name = _pass_of(stage.tasks[start])
            stop = start + 1
            while stop < segment.stop and _pass_of(stage.tasks[stop]) == name:
                stop += 1
            parts[name].append(_measure(stage.tasks[start:stop], tuple(estimates[start:stop]), segment.count))
            start = stop
    return parts


def run_pass(parts: Sequence[Part], clocks: Clocks, spent: Spent, *, last: bool = True, spans: list[Span] | None = None,
             rank: int = 0) -> None:  # fmt: skip
    """Move the clocks over the parts. `last`: gradients are reduced. `spans`: also write down every task."""
    for part in parts:
        loose = (*part.during, *part.gradients) if last else part.during
        if spans is not None:
            for _ in range(part.count):
                _run_once(part, clocks, spent, loose, spans, rank)
        elif (
            part.before
            or part.slowdown
            or any(task.axis == HOST for task, _, _ in loose)
            or _contends(part, clocks, loose)
        ):
            for _ in range(part.count):
                _run_once(part, clocks, spent, loose, None, rank)
        else:
            _run_repeated(part, clocks, spent, loose)
    for part in parts if last else ():
        for task, seconds in part.deferred:
            start_s = max(clocks.network_s, clocks.device_s)
            clocks.network_s = start_s + part.count * seconds
            spent.communication_s += part.count * seconds
            if spans is not None:
                whole = replace(task, num_bytes=part.count * task.num_bytes)
                spans.append(_span("gradients", whole, start_s, clocks.network_s, rank))


def _pass_of(task: Task) -> str:
    if task.phase in ("recompute", "gradient"):
        return "backward"
    return task.phase


def _measure(tasks: tuple[Task, ...], estimates: tuple[Estimate, ...], count: int) -> Part:
    device_s = host_s = chain_s = compute_s = memory_s = 0.0
    blocking: list[tuple[Collective, float]] = []
    before: list[tuple[Collective, float]] = []
    deferred: list[tuple[Collective, float]] = []
    loose: dict[bool, list[tuple[Collective, float, float]]] = {True: [], False: []}
    slowdown = 0.0
    blocked_s: dict[str, float] = {}
    loose_links: dict[int, str] = {}
    for task, estimate in zip(tasks, estimates, strict=True):
        host_s += estimate.host_s
        if isinstance(task, Collective) and task.axis == "pipeline":
            continue  # a hop between stages: the pipeline's order places it
        if isinstance(task, Collective) and task.overlapped:
            slowdown = max(slowdown, estimate.slowdown)
            if task.kind == "all_gather":
                before.append((task, estimate.seconds))
            else:
                loose[task.phase == "gradient"].append((task, device_s, estimate.seconds))
                loose_links[id(task)] = estimate.link
            continue
        if isinstance(task, Collective) and task.phase == "gradient":
            deferred.append((task, estimate.seconds))
            continue
        device_s += estimate.seconds
        chain_s = max(chain_s, host_s) + estimate.seconds
        if isinstance(task, Collective):
            blocking.append((task, estimate.seconds))
            if estimate.link:
                blocked_s[estimate.link] = blocked_s.get(estimate.link, 0.0) + estimate.seconds
        elif estimate.limit == "compute":
            compute_s += estimate.seconds
        else:
            memory_s += estimate.seconds
    return Part(
        count=count,
        tasks=tasks,
        estimates=estimates,
        device_s=device_s,
        host_s=host_s,
        chain_s=max(chain_s, host_s),
        compute_s=compute_s,
        memory_s=memory_s,
        blocking=tuple(blocking),
        before=tuple(before),
        during=tuple(loose[False]),
        gradients=tuple(loose[True]),
        deferred=tuple(deferred),
        slowdown=slowdown,
        blocked_s=blocked_s,
        loose_links=loose_links,
    )


def _contends(part: Part, clocks: Clocks, loose: Sequence[tuple[Collective, float, float]]) -> bool:
    """Whether the device waits for collectives on a link that others are on at the same time."""
    if not part.blocked_s:
        return False
    busy = clocks.network_s > clocks.device_s and clocks.network_link in part.blocked_s
    return busy or any(part.loose_links[id(task)] in part.blocked_s for task, _, _ in loose)


def _repeat(count: int, *, free_s: float, start_s: float, period_s: float, chain_s: float, work_s: float) -> float:
    """When a server is free after `count` rounds: round i arrives at start + i x period, needs `work` of it, and ends no
    sooner than `chain` after its arrival."""
    latest = max(start_s, start_s + (count - 1) * (period_s - work_s))
    return max(free_s + count * work_s, latest + chain_s + (count - 1) * work_s)


def _run_repeated(part: Part, clocks: Clocks, spent: Spent, loose: Sequence[tuple[Collective, float, float]]) -> None:
    begin_s = clocks.device_s
    count = part.count
    clocks.device_s = _repeat(
        count,
        free_s=begin_s,
        start_s=clocks.host_s,
        period_s=part.host_s,
        chain_s=part.chain_s,
        work_s=part.device_s,
    )
    clocks.host_s += count * part.host_s
    elapsed_s = clocks.device_s - begin_s
    _account(part, spent, count, waited_s=elapsed_s - count * part.device_s)
    if loose:
        stretch = elapsed_s / (count * part.device_s) if part.device_s else 1.0
        chain_s = 0.0
        for _, ready_s, seconds in loose:
            chain_s = max(chain_s, ready_s * stretch) + seconds
        work_s = sum(seconds for _, _, seconds in loose)
        clocks.network_s = _repeat(
            count,
            free_s=clocks.network_s,
            start_s=begin_s,
            period_s=elapsed_s / count,
            chain_s=chain_s,
            work_s=work_s,
        )
        clocks.network_link = part.loose_links[id(loose[-1][0])]
        spent.communication_s += count * work_s


def _run_once(part: Part, clocks: Clocks, spent: Spent, loose: Sequence[tuple[Collective, float, float]],
              spans: list[Span] | None, rank: int) -> None:  # fmt: skip
    begin_s = clocks.device_s
    for task, seconds in part.before:
        ready_s = max(clocks.network_s, begin_s - part.device_s)
        clocks.network_s = ready_s + seconds
        spent.communication_s += seconds
        spent.expose(task.axis, clocks.network_s - clocks.device_s)
        if spans is not None:
            spans.append(_span("all_gather", task, ready_s, clocks.network_s, rank))
        clocks.device_s = max(clocks.device_s, clocks.network_s)
    start_s, host_s = clocks.device_s, clocks.host_s
    if _contends(part, clocks, loose):
        _run_shared(part, clocks, spent, loose, spans, rank)
        busy_s = sum(seconds for _, seconds in part.before) + sum(seconds for _, _, seconds in loose)
        _slow_down(part, clocks, spent, busy_s=busy_s, elapsed_s=clocks.device_s - start_s)
        return
    if spans is None:
        clocks.device_s = max(clocks.device_s + part.device_s, host_s + part.chain_s)
    else:
        _write_down(part, clocks, spans, rank)
    clocks.host_s = host_s + part.host_s
    elapsed_s = clocks.device_s - start_s
    _account(part, spent, 1, waited_s=elapsed_s - part.device_s)
    stretch = elapsed_s / part.device_s if part.device_s else 1.0
    beside_s = sum(seconds for _, seconds in part.before)
    for task, ready_s, seconds in loose:
        beside_s += seconds
        _send(part, task, seconds, clocks, spent, ready_s=start_s + ready_s * stretch, spans=spans, rank=rank)
    _slow_down(part, clocks, spent, busy_s=beside_s, elapsed_s=elapsed_s)


def _run_shared(part: Part, clocks: Clocks, spent: Spent, loose: Sequence[tuple[Collective, float, float]],
                spans: list[Span] | None, rank: int) -> None:  # fmt: skip
    """Task by task, where the device waits for collectives on a link that others are still on. Both then have half of it (max-min
    fairness), so each is late by as long as both were on it."""
    sent = {id(task) for task, _, _ in loose}
    start_s, late_s = clocks.device_s, 0.0
    for task, estimate in zip(part.tasks, part.estimates, strict=True):
        clocks.host_s += estimate.host_s
        if isinstance(task, Collective) and (task.overlapped or task.phase == "gradient" or task.axis == "pipeline"):
            if id(task) in sent:
                _send(part, task, estimate.seconds, clocks, spent, ready_s=clocks.device_s, spans=spans, rank=rank)
            continue
        begin_s = max(clocks.device_s, clocks.host_s)
        both_s = 0.0
        if isinstance(task, Collective) and estimate.link == clocks.network_link:
            both_s = max(0.0, min(estimate.seconds, clocks.network_s - begin_s))
            clocks.network_s += both_s
            spent.expose(task.axis, both_s)
            late_s += both_s
        clocks.device_s = begin_s + estimate.seconds + both_s
        if spans is not None:
            spans.append(_task_span(task, estimate, begin_s, clocks.device_s, rank))
    clocks.device_s = max(clocks.device_s, clocks.host_s)
    _account(part, spent, 1, waited_s=clocks.device_s - start_s - part.device_s - late_s)


def _send(part: Part, task: Collective, seconds: float, clocks: Clocks, spent: Spent, *, ready_s: float,
          spans: list[Span] | None, rank: int) -> None:  # fmt: skip
    """Queue a collective that nobody in the part waits for."""
    send_s = max(clocks.network_s, ready_s)
    if task.axis == HOST:
        # A gradient is copied when it is reduced; what the network does later is not waited for.
        send_s = max(clocks.copies_s, send_s)
        clocks.copies_s = send_s + seconds
        if spans is not None:
            spans.append(_span(task.kind, task, send_s, clocks.copies_s, rank, stream="copies"))
        return
    clocks.network_s, clocks.network_link = send_s + seconds, part.loose_links[id(task)]
    spent.communication_s += seconds
    if spans is not None:
        spans.append(_span("gradients", task, send_s, clocks.network_s, rank))


def _slow_down(part: Part, clocks: Clocks, spent: Spent, *, busy_s: float, elapsed_s: float) -> None:
    """Kernels beside collectives take longer; what a step cannot hide behind them counts as communication."""
    extra_s = part.slowdown * min(busy_s, elapsed_s)
    if extra_s > 0:
        clocks.device_s += extra_s
        axis = next(task.axis for task in part.tasks if isinstance(task, Collective) and task.overlapped)
        spent.expose(axis, extra_s)


def _account(part: Part, spent: Spent, count: int, *, waited_s: float) -> None:
    spent.compute_s += count * part.compute_s
    spent.memory_s += count * part.memory_s
    spent.host_s += max(0.0, waited_s)
    for task, seconds in part.blocking:
        spent.expose(task.axis, count * seconds)
        spent.communication_s += count * seconds if task.axis != HOST else 0.0


def _write_down(part: Part, clocks: Clocks, spans: list[Span], rank: int) -> None:
    host_s = clocks.host_s
    for task, estimate in zip(part.tasks, part.estimates, strict=True):
        host_s += estimate.host_s
        if isinstance(task, Collective) and (task.overlapped or task.phase == "gradient"):
            continue
        start_s = max(clocks.device_s, host_s)
        clocks.device_s = start_s + estimate.seconds
        spans.append(_task_span(task, estimate, start_s, clocks.device_s, rank))
    clocks.device_s = max(clocks.device_s, host_s)


def _task_span(task: Task, estimate: Estimate, start_s: float, end_s: float, rank: int) -> Span:
    if isinstance(task, Collective):
        return _span(task.kind, task, start_s, end_s, rank, stream=HOST if task.axis == HOST else "device")
    return Span(
        name=task.name,
        start_s=start_s,
        end_s=end_s,
        stream="device",
        category=estimate.limit,
        rank=rank,
        layer=task.layer,
        num_bytes=task.num_bytes,
    )


def _span(name: str, task: Collective, start_s: float, end_s: float, rank: int, stream: str = "network") -> Span:
    return Span(
        name=f"{name}[{task.axis}]",
        start_s=start_s,
        end_s=end_s,
        stream=stream,
        category=HOST if task.kind == "host_update" else "communication",
        rank=rank,
        layer=task.layer,
        collective=task,
    )
