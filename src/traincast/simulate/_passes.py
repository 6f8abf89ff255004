"""Runs the tasks of one pass on four clocks: host, device, network and copies; repeated layers in closed form or one by one.

A kernel starts when the one before it has ended and the host has issued it: end = max(end before, issued) + duration. That
recurrence is linear in the (max, +) algebra, so a layer repeated n times needs no loop (Baccelli et al. 1992).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from traincast.simulate._hide import hide_exchanges
from traincast.spec import HOST, Collective, Estimate, Span, Stage, Task, segments

PASSES = ("forward", "backward", "optimizer")
INSIDE = "intra"
"""What estimates call the links inside a node."""


@dataclass(frozen=True, slots=True)
class Loose:
    """A collective that nobody in its part waits for."""

    task: Collective
    ready_s: float
    """Device seconds after the start of the part."""
    seconds: float
    link: str = ""
    lost_s: float = 0.0
    """What kernels that run beside it lose."""
    follows: bool = False
    """It sends what the one before it has made: the second half of a hybrid shard's reduction."""


@dataclass(slots=True)
class Clocks:
    """When each of them is free again."""

    host_s: float = 0.0
    device_s: float = 0.0
    network_s: float = 0.0
    fabric_s: float = 0.0
    """The links inside a node: what runs on them does not wait for the network between nodes."""
    copies_s: float = 0.0
    gathered_s: float | None = None
    """When the weights of the next unit are there, if their gather was issued ahead of it."""

    def free_s(self, link: str) -> float:
        """When the last collective on this link has ended."""
        if link == HOST:
            return self.copies_s
        return self.fabric_s if link == INSIDE else self.network_s

    def occupy(self, link: str, until_s: float) -> None:
        if link == HOST:
            self.copies_s = until_s
        elif link == INSIDE:
            self.fabric_s = until_s
        else:
            self.network_s = until_s

    @property
    def reduced_s(self) -> float:
        """When every collective has ended."""
        return max(self.network_s, self.fabric_s)


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
    before: tuple[Loose, ...]
    """Collectives that must end before the part starts, and are issued one unit ahead (FSDP's prefetch)."""
    during: tuple[Loose, ...]
    gradients: tuple[Loose, ...]
    """Of collectives that run only in the last micro-batch."""
    deferred: tuple[Loose, ...]
    """Reductions that are not overlapped: they run when the last backward pass is over."""
    blocked_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds for which the device waits for collectives, by the link they use."""


def split_passes(stage: Stage, estimates: Sequence[Estimate]) -> dict[str, list[Part]]:
    """The parts of each pass in order."""
    parts: dict[str, list[Part]] = {name: [] for name in PASSES}
    estimates = hide_exchanges(stage, hide_chunks(stage.tasks, estimates))
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


def time_last_buckets(parts: Sequence[Part]) -> dict[str, float]:
    """Until when each link is busy with the last bucket of gradients, counted from the end of the backward pass: a bucket is sent
    when its last gradient is there. Where the size of the last one is not known, it is half full on average; and all gradients
    that fill no more than one bucket leave together."""
    sent: dict[str, tuple[float, float, float]] = {}
    left_s: dict[str, float] = {}
    for part in parts:
        left_s = {link: seconds + part.count * part.device_s for link, seconds in left_s.items()}
        for item in part.gradients:
            if item.task.bucket_bytes:
                num_bytes, seconds, _ = sent.get(item.link, (0.0, 0.0, 0.0))
                num_bytes += part.count * item.task.num_bytes
                sent[item.link] = num_bytes, seconds + part.count * item.seconds, _last_bytes(item.task, num_bytes)
                left_s[item.link] = part.device_s - item.ready_s
    return {
        link: seconds * min(1.0, last / num_bytes) - left_s[link]
        for link, (num_bytes, seconds, last) in sent.items()
        if num_bytes
    }


def _last_bytes(task: Collective, num_bytes: float) -> float:
    """What the last bucket of so many bytes of gradients holds."""
    whole = task.bucket_bytes or 0.0
    if task.last_bucket_bytes is None:
        return whole / 2
    return num_bytes if num_bytes <= whole else task.last_bucket_bytes


def hide_chunks(tasks: Sequence[Task], estimates: Sequence[Estimate]) -> Sequence[Estimate]:
    """What remains to wait for of a collective that is sent in pieces beside a product (Wang et al. 2023): its first or last
    piece, and all by which it is longer than the product."""
    if not any(isinstance(task, Collective) and task.chunked for task in tasks):
        return estimates
    shown = list(estimates)
    for index, task in enumerate(tasks):
        if not isinstance(task, Collective) or not task.chunked or task.num_ranks < 2 or task.kind == "all_to_all":
            continue
        place = _nearest_product(tasks, index)
        if place is None:
            continue
        whole = estimates[index]
        hidden_s = (1 - 1 / task.num_ranks) * min(whole.seconds, estimates[place].seconds)
        left = 1 - hidden_s / whole.seconds if whole.seconds else 1.0
        shown[index] = replace(
            whole, seconds=whole.seconds * left, low_s=whole.low_s * left, high_s=whole.high_s * left
        )
    return tuple(shown)


def _nearest_product(tasks: Sequence[Task], index: int) -> int | None:
    """A gather feeds the product behind it, a reduction sends what the product before it makes."""
    ahead = tasks[index].kind == "all_gather"
    for place in range(index + 1, len(tasks)) if ahead else range(index - 1, -1, -1):
        task = tasks[place]
        if task.phase != tasks[index].phase:
            return None
        if not isinstance(task, Collective) and task.kind == "matmul":
            return place
    return None


def run_pass(parts: Sequence[Part], clocks: Clocks, spent: Spent, *, first: bool = True, last: bool = True,
             spans: list[Span] | None = None, rank: int = 0) -> None:  # fmt: skip
    """Move the clocks over the parts. `first`: what is gathered once in a step is gathered now. `last`: gradients are reduced.
    `spans`: also write down every task."""
    if not first and any(item.task.once for part in parts for item in part.before):
        parts = [replace(part, before=_again(part.before)) if part.before else part for part in parts]
    for place, part in enumerate(parts):
        loose = (*part.during, *part.gradients) if last else part.during
        beyond = parts[place + 1].before if place + 1 < len(parts) else ()
        if spans is not None or beyond or _must_be_walked(part, clocks, loose):
            for number in range(part.count):
                upcoming = part.before if number + 1 < part.count else beyond
                _run_once(part, clocks, spent, loose, spans, rank, upcoming=upcoming)
        else:
            _run_repeated(part, clocks, spent, loose)
    for part in parts if last else ():
        _run_deferred(part, clocks, spent, spans, rank)


def _must_be_walked(part: Part, clocks: Clocks, loose: Sequence[Loose]) -> bool:
    """Whether the repetitions of a part may differ, so that each is run on its own."""
    on_host = any(item.task.axis == HOST for item in loose)
    return bool(part.before) or on_host or _contends(part, clocks, loose)


def _run_deferred(part: Part, clocks: Clocks, spent: Spent, spans: list[Span] | None, rank: int) -> None:
    """What waits for the end of the pass: one transfer for all repetitions."""
    for item in part.deferred:
        start_s = max(clocks.free_s(item.link), clocks.device_s)
        clocks.occupy(item.link, start_s + part.count * item.seconds)
        spent.communication_s += part.count * item.seconds
        if spans is not None:
            whole = replace(item.task, num_bytes=part.count * item.task.num_bytes)
            stream = _stream(item.link)
            spans.append(_span("gradients", whole, start_s, clocks.free_s(item.link), rank, stream=stream))


def _again(gathers: Sequence[Loose]) -> tuple[Loose, ...]:
    """Those that every pass has to repeat."""
    return tuple(item for item in gathers if not item.task.once)


def _pass_of(task: Task) -> str:
    if task.phase in ("recompute", "gradient"):
        return "backward"
    return task.phase


def _measure(tasks: tuple[Task, ...], estimates: tuple[Estimate, ...], count: int) -> Part:
    device_s = host_s = chain_s = compute_s = memory_s = 0.0
    blocking: list[tuple[Collective, float]] = []
    before: list[Loose] = []
    deferred: list[Loose] = []
    loose: dict[bool, list[Loose]] = {True: [], False: []}
    blocked_s: dict[str, float] = {}
    for place, (task, estimate) in enumerate(zip(tasks, estimates, strict=True)):
        host_s += estimate.host_s
        if isinstance(task, Collective) and task.axis == "pipeline":
            continue  # a hop between stages: the pipeline's order places it
        if isinstance(task, Collective) and task.overlapped:
            lost_s = estimate.slowdown * estimate.seconds
            item = Loose(task, device_s, estimate.seconds, estimate.link, lost_s, _follows(tasks, place))
            if task.kind == "all_gather" or (task.kind == "copy_in" and task.phase != "optimizer"):
                before.append(item)
            else:
                loose[task.phase == "gradient"].append(item)
            continue
        if isinstance(task, Collective) and task.phase == "gradient":
            deferred.append(Loose(task, device_s, estimate.seconds, estimate.link))
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
        blocked_s=blocked_s,
    )


def _follows(tasks: Sequence[Task], place: int) -> bool:
    """Whether the task sums between groups what the task right before it has scattered inside them."""
    task, one = tasks[place], tasks[place - 1] if place else None
    return (
        isinstance(task, Collective)
        and isinstance(one, Collective)
        and task.overlapped
        and (task.kind, one.kind, task.axis, one.axis) == ("all_reduce", "reduce_scatter", "data", "data")
    )


def _contends(part: Part, clocks: Clocks, loose: Sequence[Loose]) -> bool:
    """Whether the device waits for collectives on a link that others are on at the same time."""
    if not part.blocked_s:
        return False
    busy = any(clocks.free_s(link) > clocks.device_s for link in part.blocked_s)
    return busy or any(item.link in part.blocked_s for item in loose)


def _repeat(count: int, *, free_s: float, start_s: float, period_s: float, chain_s: float, work_s: float) -> float:
    """When a server is free after `count` rounds: round i arrives at start + i x period, needs `work` of it, and ends no
    sooner than `chain` after its arrival."""
    latest = max(start_s, start_s + (count - 1) * (period_s - work_s))
    return max(free_s + count * work_s, latest + chain_s + (count - 1) * work_s)


def _run_repeated(part: Part, clocks: Clocks, spent: Spent, loose: Sequence[Loose]) -> None:
    begin_s = clocks.device_s
    count = part.count
    lost_s = _lost(part, loose)
    work_s = part.device_s + lost_s
    clocks.device_s = _repeat(
        count,
        free_s=begin_s,
        start_s=clocks.host_s,
        period_s=part.host_s,
        chain_s=part.chain_s + lost_s,
        work_s=work_s,
    )
    clocks.host_s += count * part.host_s
    elapsed_s = clocks.device_s - begin_s
    _account(part, spent, count, waited_s=elapsed_s - count * work_s)
    if lost_s:
        spent.expose(loose[0].task.axis, count * lost_s)
    if loose:
        stretch = elapsed_s / (count * part.device_s) if part.device_s else 1.0
        chains, work = _chain(loose, stretch)
        for link, chain_s in chains.items():
            free_s = _repeat(
                count,
                free_s=clocks.free_s(link),
                start_s=begin_s,
                period_s=elapsed_s / count,
                chain_s=chain_s,
                work_s=work[link],
            )
            clocks.occupy(link, free_s)
            spent.communication_s += count * work[link]


def _chain(loose: Sequence[Loose], stretch: float) -> tuple[dict[str, float], dict[str, float]]:
    """For each link, when it has sent what one repetition gives it, counted from its start, and how long it is busy."""
    ends: dict[str, float] = {}
    work: dict[str, float] = {}
    before_s = 0.0
    for item in loose:
        ready_s = max(item.ready_s * stretch, before_s if item.follows else 0.0)
        before_s = max(ends.get(item.link, 0.0), ready_s) + item.seconds
        ends[item.link] = before_s
        work[item.link] = work.get(item.link, 0.0) + item.seconds
    return ends, work


def _run_once(part: Part, clocks: Clocks, spent: Spent, loose: Sequence[Loose], spans: list[Span] | None, rank: int, *,
              upcoming: Sequence[Loose] = ()) -> None:  # fmt: skip
    _await_gather(part, clocks, spent, spans, rank)
    start_s, host_s = clocks.device_s, clocks.host_s
    # The next unit's weights are asked for before this unit's gradients are there to be sent.
    clocks.gathered_s = _gather(upcoming, clocks, spent, spans, rank, ready_s=start_s) if upcoming else None
    beside = (*part.before, *loose)
    lost_s = _lost(part, beside)
    if _contends(part, clocks, loose):
        _run_shared(part, clocks, spent, loose, spans, rank)
        _slow_down(clocks, spent, beside, lost_s)
        return
    if spans is None:
        clocks.device_s = max(clocks.device_s + part.device_s, host_s + part.chain_s)
    else:
        _write_down(part, clocks, spans, rank)
    _slow_down(clocks, spent, beside, lost_s)
    clocks.host_s = host_s + part.host_s
    elapsed_s = clocks.device_s - start_s
    _account(part, spent, 1, waited_s=elapsed_s - part.device_s - lost_s)
    stretch = elapsed_s / part.device_s if part.device_s else 1.0
    sent_s = 0.0
    for item in loose:
        ready_s = max(start_s + item.ready_s * stretch, sent_s if item.follows else 0.0)
        sent_s = _send(item, clocks, spent, ready_s=ready_s, spans=spans, rank=rank)


def _await_gather(part: Part, clocks: Clocks, spent: Spent, spans: list[Span] | None, rank: int) -> None:
    """The device waits until the weights of this unit are there. The first unit of a pass is asked for in the pass before."""
    if not part.before:
        clocks.gathered_s = None
        return
    ahead_s = clocks.device_s - part.device_s
    there_s = clocks.gathered_s
    if there_s is None:
        there_s = _gather(part.before, clocks, spent, spans, rank, ready_s=ahead_s)
    spent.expose(part.before[0].task.axis, there_s - clocks.device_s)
    clocks.device_s = max(clocks.device_s, there_s)


def _gather(gathers: Sequence[Loose], clocks: Clocks, spent: Spent, spans: list[Span] | None, rank: int, *,
            ready_s: float) -> float:  # fmt: skip
    """When the last of them has ended."""
    for item in gathers:
        begin_s = max(clocks.free_s(item.link), ready_s)
        clocks.occupy(item.link, begin_s + item.seconds)
        spent.communication_s += item.seconds
        if spans is not None:
            end_s = begin_s + item.seconds
            spans.append(_span(item.task.kind, item.task, begin_s, end_s, rank, stream=_stream(item.link)))
    return max(clocks.free_s(item.link) for item in gathers)


def _run_shared(part: Part, clocks: Clocks, spent: Spent, loose: Sequence[Loose], spans: list[Span] | None,
                rank: int) -> None:  # fmt: skip
    """Task by task, where the device waits for collectives on a link that others are still on. Both then have half of it (max-min
    fairness), so each is late by as long as both were on it."""
    sent = {id(item.task): item for item in loose}
    start_s, late_s, sent_s = clocks.device_s, 0.0, 0.0
    for task, estimate in zip(part.tasks, part.estimates, strict=True):
        clocks.host_s += estimate.host_s
        if isinstance(task, Collective) and (task.overlapped or task.phase == "gradient" or task.axis == "pipeline"):
            if id(task) in sent:
                item = sent[id(task)]
                ready_s = max(clocks.device_s, sent_s if item.follows else 0.0)
                sent_s = _send(item, clocks, spent, ready_s=ready_s, spans=spans, rank=rank)
            continue
        begin_s = max(clocks.device_s, clocks.host_s)
        both_s = 0.0
        if isinstance(task, Collective):
            both_s = max(0.0, min(estimate.seconds, clocks.free_s(estimate.link) - begin_s))
            clocks.occupy(estimate.link, clocks.free_s(estimate.link) + both_s)
            spent.expose(task.axis, both_s)
            late_s += both_s
        clocks.device_s = begin_s + estimate.seconds + both_s
        if spans is not None:
            spans.append(_task_span(task, estimate, begin_s, clocks.device_s, rank))
    clocks.device_s = max(clocks.device_s, clocks.host_s)
    _account(part, spent, 1, waited_s=clocks.device_s - start_s - part.device_s - late_s)


def _send(item: Loose, clocks: Clocks, spent: Spent, *, ready_s: float, spans: list[Span] | None, rank: int) -> float:
    """Queue a collective that nobody in the part waits for; when it has ended."""
    task = item.task
    if task.axis == HOST:
        # A gradient is copied when it is reduced; what the network does later is not waited for.
        send_s = max(clocks.copies_s, clocks.reduced_s, ready_s)
        clocks.copies_s = send_s + item.seconds
        if spans is not None:
            spans.append(_span(task.kind, task, send_s, clocks.copies_s, rank, stream="copies"))
        return clocks.copies_s
    send_s = max(clocks.free_s(item.link), ready_s)
    clocks.occupy(item.link, send_s + item.seconds)
    spent.communication_s += item.seconds
    if spans is not None:
        spans.append(_span("gradients", task, send_s, send_s + item.seconds, rank, stream=_stream(item.link)))
    return send_s + item.seconds


def _stream(link: str) -> str:
    if link == HOST:
        return "copies"
    return "node links" if link == INSIDE else "network"


def _lost(part: Part, beside: Sequence[Loose]) -> float:
    """What the kernels of a part lose to collectives beside them; none takes more than twice its time."""
    return min(sum(item.lost_s for item in beside), part.device_s)


def _slow_down(clocks: Clocks, spent: Spent, beside: Sequence[Loose], lost_s: float) -> None:
    """Kernels beside collectives take longer; what a step cannot hide behind them counts as communication."""
    if lost_s > 0:
        clocks.device_s += lost_s
        spent.expose(beside[0].task.axis, lost_s)


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
