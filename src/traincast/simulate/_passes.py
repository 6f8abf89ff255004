"""Runs the tasks of one pass on four clocks: host, device, network and copies.

A kernel starts when the one before it has ended and the host has issued it: end = max(end before, issued) + duration. That
recurrence is linear in the (max, +) algebra, so a layer is summed up once, however often it repeats (Baccelli et al. 1992).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from traincast.simulate._beside import Runs, follows, hide_pieces, last_bucket_bytes, pass_of, when_it_runs
from traincast.spec import HOST, Collective, Estimate, Span, Stage, Task, segments

PASSES = ("forward", "backward", "optimizer")
INSIDE = "intra"
BETWEEN = "inter"
"""What estimates call the links inside a node, and the network."""
STREAMS = {HOST: "copies", INSIDE: "node links"}
"""What is drawn of a link; the network where it is another."""


@dataclass(frozen=True, slots=True)
class Loose:
    """A collective that nobody in its part waits for."""

    task: Collective
    ready_s: float
    """Device seconds after the start of the part, if the host is ahead."""
    issued_s: float
    """Seconds after the host begins to issue the part, if the device waits for it."""
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
    graded_s: dict[str, float] = field(default_factory=dict)
    """When the last gradient that goes into a bucket was there, by the link that the bucket takes."""

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

    def copy(self) -> "Spent":
        return replace(self, exposed_s=dict(self.exposed_s))

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
    estimates = hide_pieces(stage, estimates)
    for segment in segments(stage.repeats, num_tasks=len(stage.tasks)):
        start = segment.start
        while start < segment.stop:
            name = pass_of(stage.tasks[start])
            stop = start + 1
            while stop < segment.stop and pass_of(stage.tasks[stop]) == name:
                stop += 1
            parts[name].append(_measure(stage.tasks[start:stop], tuple(estimates[start:stop]), segment.count))
            start = stop
    return parts


def time_last_buckets(parts: Sequence[Part]) -> dict[str, float]:
    """How long each link is busy with the last bucket of gradients."""
    sent: dict[str, tuple[float, float, float]] = {}
    for part in parts:
        for item in part.gradients:
            if item.task.bucket_bytes:
                num_bytes, seconds, _ = sent.get(item.link, (0.0, 0.0, 0.0))
                num_bytes += part.count * item.task.num_bytes
                last = last_bucket_bytes(item.task, num_bytes)
                sent[item.link] = num_bytes, seconds + part.count * item.seconds, last
    return {
        link: seconds * min(1.0, last / num_bytes) for link, (num_bytes, seconds, last) in sent.items() if num_bytes
    }


def run_pass(parts: Sequence[Part], clocks: Clocks, spent: Spent, *, first: bool = True, last: bool = True,
             spans: list[Span] | None = None, rank: int = 0) -> None:  # fmt: skip
    """Move the clocks over the parts. `first`: what is gathered once in a step is gathered now. `last`: gradients are reduced.
    `spans`: also write down every task."""
    if not first and any(item.task.once for part in parts for item in part.before):
        parts = [replace(part, before=tuple(item for item in part.before if not item.task.once)) for part in parts]
    for place, part in enumerate(parts):
        loose = (*part.during, *part.gradients) if last else part.during
        beyond = parts[place + 1].before if place + 1 < len(parts) else ()
        for number in range(part.count):
            upcoming = part.before if number + 1 < part.count else beyond
            _run_once(part, clocks, spent, loose, spans, rank, upcoming=upcoming)
    for part in parts if last else ():
        _run_deferred(part, clocks, spent, spans, rank)


def _run_deferred(part: Part, clocks: Clocks, spent: Spent, spans: list[Span] | None, rank: int) -> None:
    """What waits for the end of the pass: one transfer for all repetitions."""
    for item in part.deferred:
        start_s = max(clocks.free_s(item.link), clocks.device_s)
        clocks.occupy(item.link, start_s + part.count * item.seconds)
        spent.communication_s += part.count * item.seconds
        if spans is not None:
            whole = replace(item.task, num_bytes=part.count * item.task.num_bytes)
            stream = STREAMS.get(item.link, "network")
            spans.append(_span(whole, start_s, clocks.free_s(item.link), rank, stream=stream, name="gradients"))


def _measure(tasks: tuple[Task, ...], estimates: tuple[Estimate, ...], count: int) -> Part:
    device_s = host_s = chain_s = compute_s = memory_s = 0.0
    blocking: list[tuple[Collective, float]] = []
    loose: dict[Runs, list[Loose]] = {runs: [] for runs in Runs}
    blocked_s: dict[str, float] = {}
    for place, (task, estimate) in enumerate(zip(tasks, estimates, strict=True)):
        host_s += estimate.host_s
        runs = when_it_runs(task)
        if isinstance(task, Collective) and runs is not Runs.IN_ORDER:
            lost_s = estimate.slowdown * estimate.seconds if task.overlapped else 0.0
            issued_s = max(chain_s, host_s)
            item = Loose(task, device_s, issued_s, estimate.seconds, estimate.link, lost_s, follows(tasks, place))
            loose[runs].append(item)
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
        before=tuple(loose[Runs.AHEAD]),
        during=tuple(loose[Runs.BESIDE]),
        gradients=tuple(loose[Runs.BESIDE_LAST]),
        deferred=tuple(loose[Runs.AT_END]),
        blocked_s=blocked_s,
    )


def _contends(part: Part, clocks: Clocks, loose: Sequence[Loose]) -> bool:
    """Whether the device waits for collectives on a link that others are on at the same time."""
    if not part.blocked_s:
        return False
    busy = any(clocks.free_s(link) > clocks.device_s for link in part.blocked_s)
    return busy or any(item.link in part.blocked_s for item in loose)


def _ready(item: Loose, start_s: float, host_s: float, lost_s: float) -> float:
    """When what a collective sends is there: the device has made it, and the host had issued that."""
    return max(start_s + item.ready_s, host_s + item.issued_s) + min(lost_s, item.ready_s)


def _run_once(part: Part, clocks: Clocks, spent: Spent, loose: Sequence[Loose], spans: list[Span] | None, rank: int, *,
              upcoming: Sequence[Loose] = ()) -> None:  # fmt: skip
    _await_gather(part, clocks, spent, spans, rank)
    start_s, host_s = clocks.device_s, clocks.host_s
    # The next unit's weights are asked for before this unit's gradients are there to be sent.
    clocks.gathered_s = _gather(upcoming, clocks, spent, spans, rank, ready_s=start_s) if upcoming else None
    beside = (*part.before, *loose)
    lost_s = _lost(part, beside)
    if spans is not None or _contends(part, clocks, loose):
        _run_tasks(part, clocks, spent, loose, spans, rank, lost_s=lost_s)
        _slow_down(clocks, spent, beside, lost_s)
        return
    clocks.device_s = max(clocks.device_s + part.device_s, host_s + part.chain_s)
    _slow_down(clocks, spent, beside, lost_s)
    clocks.host_s = host_s + part.host_s
    _account(part, spent, 1, waited_s=clocks.device_s - start_s - part.device_s - lost_s)
    sent_s = 0.0
    for item in loose:
        ready_s = max(_ready(item, start_s, host_s, lost_s), sent_s if item.follows else 0.0)
        sent_s = _send(item, clocks, spent, ready_s=ready_s, spans=None, rank=rank)


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
            stream = STREAMS.get(item.link, "network")
            spans.append(_span(item.task, begin_s, begin_s + item.seconds, rank, stream=stream))
    return max(clocks.free_s(item.link) for item in gathers)


def _run_tasks(part: Part, clocks: Clocks, spent: Spent, loose: Sequence[Loose], spans: list[Span] | None, rank: int, *,
               lost_s: float) -> None:  # fmt: skip
    """Task by task: where spans are written down, or the device waits for collectives on a link that others are still on. Both
    then have half of it (max-min fairness), so each is late by as long as both were on it."""
    sent = {id(item.task): item for item in loose}
    start_s, late_s, sent_s = clocks.device_s, 0.0, 0.0
    for task, estimate in zip(part.tasks, part.estimates, strict=True):
        clocks.host_s += estimate.host_s
        if when_it_runs(task) is not Runs.IN_ORDER:
            if id(task) in sent:
                item = sent[id(task)]
                there_s = max(clocks.device_s, clocks.host_s) + min(lost_s, item.ready_s)
                ready_s = max(there_s, sent_s if item.follows else 0.0)
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
            stream = HOST if isinstance(task, Collective) and task.axis == HOST else "device"
            spans.append(_span(task, begin_s, clocks.device_s, rank, stream=stream, category=estimate.limit))
    clocks.device_s = max(clocks.device_s, clocks.host_s)
    _account(part, spent, 1, waited_s=clocks.device_s - start_s - part.device_s - late_s)


def _send(item: Loose, clocks: Clocks, spent: Spent, *, ready_s: float, spans: list[Span] | None, rank: int) -> float:
    """Queue a collective that nobody in the part waits for; when it has ended."""
    task, on_host = item.task, item.task.axis == HOST
    link = HOST if on_host else item.link
    # A gradient is copied to the host when it is reduced; what the network does later is not waited for.
    send_s = max(clocks.free_s(link), ready_s, clocks.reduced_s if on_host else 0.0)
    clocks.occupy(link, send_s + item.seconds)
    if task.bucket_bytes:
        clocks.graded_s[link] = ready_s
    spent.communication_s += 0.0 if on_host else item.seconds
    if spans is not None:
        name, stream = "" if on_host else "gradients", STREAMS.get(link, "network")
        spans.append(_span(task, send_s, send_s + item.seconds, rank, stream=stream, name=name))
    return send_s + item.seconds


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


def _span(
    task: Task, start_s: float, end_s: float, rank: int, *, stream: str = "device", name: str = "", category: str = ""
) -> Span:
    sent = task if isinstance(task, Collective) else None
    if sent is not None:
        category = HOST if sent.kind == "host_update" else "communication"
    return Span(
        name=task.name if sent is None else f"{name or sent.kind}[{sent.axis}]",
        start_s=start_s,
        end_s=end_s,
        stream=stream,
        category=category,
        rank=rank,
        layer=task.layer,
        num_bytes=0.0 if isinstance(task, Collective) else task.num_bytes,
        collective=sent,
    )
