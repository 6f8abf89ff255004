"""Turns a program and its estimates into the timeline of one step, with what ranks wait for each other."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TypeVar

from traincast.catalog import read_constant_table
from traincast.memo import Remember, compute
from traincast.noun import noun
from traincast.simulate._beside import Runs, after_chunks, when_it_runs
from traincast.simulate._passes import BETWEEN, INSIDE, Clocks, Part, Spent, run_pass, split_passes, time_last_buckets
from traincast.spec import (
    HOST,
    BusyTime,
    Collective,
    Estimate,
    Parallelism,
    Program,
    Repeat,
    Span,
    Stage,
    Task,
    Timeline,
)

Made = TypeVar("Made")


def simulate_step(
    program: Program, estimates: Sequence[Sequence[Estimate]], *, draw: bool = False, reads_back: bool = False,
    awaits_inputs: bool = False, remember: Remember = compute,
) -> Timeline:  # fmt: skip
    """One optimizer step. `draw`: also give every span, one by one. `reads_back`: before the update the host reads a number that
    the gradients give, so it issues the update only when the device has come that far. `awaits_inputs`: the same before every
    micro-batch; passes of a pipeline always start so."""
    if len(program.stages) > 1:
        return _run_pipeline(program, estimates, draw=draw, reads_back=reads_back, remember=remember)
    stage, micro_batches = program.stages[0], program.parallelism.micro_batches
    known = stage.tasks, stage.repeats, tuple(estimates[0]), micro_batches, awaits_inputs, reads_back
    spans: list[Span] = []
    seconds, spent = _step_alone(*known, spans) if draw else remember(_step_alone, *known)
    return _summarize(seconds, spent, bubble_s=0.0, spans=spans)


def _step_alone(
    tasks: tuple[Task, ...], repeats: tuple[Repeat, ...], estimates: tuple[Estimate, ...], micro_batches: int,
    awaits_inputs: bool, reads_back: bool, spans: list[Span] | None = None,
) -> tuple[float, Spent]:  # fmt: skip
    """A whole step without a pipeline: its seconds, and where they went."""
    passes = split_passes(Stage(tasks=tasks, repeats=repeats, tensors=()), estimates)
    clocks, spent = Clocks(), Spent()
    _run_rounds(passes, micro_batches, clocks, spent, spans=spans, awaits_inputs=awaits_inputs)
    _run_update(passes, clocks, spent, spans=spans, reads_back=reads_back)
    return clocks.device_s, spent


def _time_stage(
    tasks: tuple[Task, ...], repeats: tuple[Repeat, ...], estimates: tuple[Estimate, ...], reads_back: bool,
    chunks: tuple[int, int],
) -> tuple["StageRun", float]:  # fmt: skip
    """(a stage of a pipeline by itself, the longest hop from it to another)."""
    passes = split_passes(Stage(tasks=tasks, repeats=repeats, tensors=()), estimates)
    run = run_stage(passes, reads_back=reads_back, chunks=chunks)
    return run, _longest_hop_s(tasks, estimates)


def _run_rounds(passes: Mapping[str, Sequence[Part]], rounds: int, clocks: Clocks, spent: Spent, *,
                spans: list[Span] | None, awaits_inputs: bool = False) -> None:  # fmt: skip
    """All micro-batches of a step; those between the second and the last are alike, so one of them is run."""

    def run(*, first: bool = False, last: bool = False) -> None:
        if awaits_inputs:
            clocks.host_s = max(clocks.host_s, clocks.device_s)
        for name in ("forward", "backward"):
            run_pass(passes[name], clocks, spent, first=first, last=last, spans=spans)

    if spans is not None or rounds <= 3:
        for number in range(rounds):
            run(first=number == 0, last=number == rounds - 1)
        return
    run(first=True)
    start, before = replace(clocks), spent.copy()
    run()
    after, times = spent.copy(), rounds - 3
    for name in ("device_s", "host_s", "network_s", "fabric_s", "copies_s"):
        now = getattr(clocks, name)
        setattr(clocks, name, now + times * (now - getattr(start, name)))
    spent.add(after, before, times)
    run(last=True)


def _run_update(passes: Mapping[str, Sequence[Part]], clocks: Clocks, spent: Spent, *, spans: list[Span] | None,
                rank: int = 0, reads_back: bool = False, chunks: tuple[int, int] = (1, 1)) -> None:  # fmt: skip
    """The optimizer waits for the last gradient, wherever it goes; the step ends when new weights have come back."""
    backward_s = sum(part.count * part.device_s for part in passes["backward"])
    if not any(part.deferred for part in passes["backward"]):
        for link in (INSIDE, BETWEEN):
            left_s = clocks.free_s(link) - clocks.device_s
            if left_s > 0:
                clocks.occupy(
                    link, clocks.device_s + after_chunks(left_s, backward_s, stages=chunks[0], virtual=chunks[1])
                )
    for link, bucket_s in time_last_buckets(passes["backward"]).items():
        clocks.occupy(link, max(clocks.free_s(link), clocks.graded_s.get(link, 0.0) + bucket_s))
    if clocks.reduced_s > clocks.device_s:
        spent.expose("data", clocks.reduced_s - clocks.device_s)
        clocks.device_s = clocks.reduced_s
    _await_copies(clocks, spent)
    if reads_back:
        clocks.host_s = max(clocks.host_s, clocks.device_s)
    run_pass(passes["optimizer"], clocks, spent, spans=spans, rank=rank)
    _await_copies(clocks, spent)


def _await_copies(clocks: Clocks, spent: Spent) -> None:
    if clocks.copies_s > clocks.device_s:
        spent.expose(HOST, clocks.copies_s - clocks.device_s)
        clocks.device_s = clocks.copies_s


@noun
class StageRun:
    """One stage of a pipeline: its passes alone, and what its last backward adds at the end of the step."""

    forward_s: float
    backward_s: float
    tail_s: float
    """The gradients that the last backward cannot hide, and the update."""
    spent: Spent
    """By one forward and one backward."""
    tail: Spent
    """With the last backward and the update, counted from its start ..."""
    before: Spent
    """... of which this much came before the tail."""
    late_s: float = 0.0
    """What its first forward waits for weights that are gathered once in a step, if nothing else makes it wait."""


def run_stage(
    passes: Mapping[str, Sequence[Part]], *, reads_back: bool = False, chunks: tuple[int, int] = (1, 1)
) -> StageRun:
    """Each pass of a stage once, as if no other stage made it wait; `chunks`: stages, and virtual stages in each."""
    clocks, spent, tail = Clocks(), Spent(), Spent()
    run_pass(passes["forward"], clocks, spent, first=False, last=False)
    forward_s, end = clocks.device_s, replace(clocks)
    run_pass(passes["backward"], clocks, spent, first=False, last=False)
    # The last micro-batch reduces its gradients: run it once more to see what it cannot hide, and how much longer those that are
    # sent beside it make it than the others.
    run_pass(passes["backward"], end, tail, first=False, last=True)
    before = tail.copy()
    if "data" in before.exposed_s:
        before.exposed_s["data"] = max(0.0, before.exposed_s["data"] - (end.device_s - clocks.device_s))
    _run_update(passes, end, tail, spans=None, reads_back=reads_back, chunks=chunks)
    first = Clocks()
    run_pass(passes["forward"], first, Spent(), first=True, last=False)
    late_s = max(0.0, first.device_s - forward_s)
    return StageRun(
        forward_s=forward_s,
        backward_s=clocks.device_s - forward_s,
        tail_s=end.device_s - clocks.device_s,
        spent=spent,
        tail=tail,
        before=before,
        late_s=after_chunks(late_s, forward_s, stages=chunks[0], virtual=chunks[1]),
    )


def join_stages(runs: Sequence[StageRun], ends: Sequence[float], *, micro_batches: int) -> tuple[float, Spent, float]:
    """(seconds of the step, where they went on the slowest stage, seconds of bubble) once the order says when each ends."""
    late_s, waited_s = 0.0, 0.0
    for run in runs:
        # A stage gathers while it waits for the first micro-batch to reach it.
        late_s = max(late_s, run.late_s - waited_s)
        waited_s += run.forward_s
    finishes = [late_s + end_s + run.tail_s for end_s, run in zip(ends, runs, strict=True)]
    last = max(range(len(finishes)), key=lambda stage: finishes[stage])
    slowest = max(runs, key=lambda run: run.forward_s + run.backward_s)
    total = Spent()
    total.add(slowest.spent, Spent(), micro_batches)
    bubble_s = max(0.0, ends[last] - micro_batches * (slowest.forward_s + slowest.backward_s))
    total.add(runs[last].tail, runs[last].before, 1)
    total.expose("data", late_s)
    return finishes[last], total, bubble_s


def _run_pipeline(
    program: Program, estimates: Sequence[Sequence[Estimate]], *, draw: bool, reads_back: bool, remember: Remember
) -> Timeline:
    plan = program.parallelism
    # A chunk runs for as many micro-batches as there are stages, if there are so many, before the next has its turn.
    chunks = min(plan.pipeline, plan.micro_batches), plan.virtual_stages
    timed = _for_each_sort(
        program, estimates,
        lambda stage, priced: remember(_time_stage, stage.tasks, stage.repeats, tuple(priced), reads_back, chunks),
    )  # fmt: skip
    runs, hop_s = [run for run, _ in timed], max(0.0, *(hop_s for _, hop_s in timed))
    forward_s, backward_s = tuple(run.forward_s for run in runs), tuple(run.backward_s for run in runs)
    # Numbers are given one by one, so that they are remembered by their values.
    ends = remember(
        _finish, plan.only(("order", "micro_batches", "virtual_stages")), *forward_s, *backward_s, hop_s
    )  # fmt: skip
    seconds, total, bubble_s = join_stages(runs, ends, micro_batches=plan.micro_batches)
    spans = _draw(program, estimates, forward_s, backward_s, hop_s, reads_back) if draw else ()
    timeline = _summarize(seconds, total, bubble_s=bubble_s, spans=spans)
    return replace(timeline, busy_s=_mean_busy_s(runs, micro_batches=plan.micro_batches))


def _for_each_sort(
    program: Program, estimates: Sequence[Sequence[Estimate]], make: Callable[[Stage, Sequence[Estimate]], Made]
) -> list[Made]:
    """Stages with the same tasks and prices run alike: a pipeline of 64 has three or four sorts of them."""
    keys = [(id(stage.tasks), id(priced)) for stage, priced in zip(program.stages, estimates, strict=True)]
    one_of = dict(zip(keys, zip(program.stages, estimates, strict=True), strict=True))
    made = {key: make(*one) for key, one in one_of.items()}
    return [made[key] for key in keys]


def _mean_busy_s(runs: Sequence[StageRun], *, micro_batches: int) -> float:
    """Seconds in which a device computes, over all stages alike."""
    whole = Spent()
    for run in runs:
        whole.add(run.spent, Spent(), micro_batches)
        whole.add(run.tail, run.before, 1)
    return (whole.compute_s + whole.memory_s) / len(runs)


def _finish(plan: Parallelism, *times_s: float) -> list[float]:
    """When each stage has ended its last backward pass."""
    from traincast.simulate._order import finish_times

    num_stages = len(times_s) // 2
    return finish_times(
        plan.order,
        forward_s=times_s[:num_stages],
        backward_s=times_s[num_stages : 2 * num_stages],
        hop_s=times_s[-1],
        micro_batches=plan.micro_batches,
        virtual_stages=plan.virtual_stages,
    )


def _draw(
    program: Program,
    estimates: Sequence[Sequence[Estimate]],
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    hop_s: float,
    reads_back: bool,
) -> list[Span]:
    """Every span of every stage."""
    from traincast.simulate._draw import draw_patterns, draw_pipeline
    from traincast.simulate._order import place_passes

    plan = program.parallelism
    # A chunk runs for as many micro-batches as there are stages, if there are so many, before the next has its turn.
    chunks = min(plan.pipeline, plan.micro_batches), plan.virtual_stages
    patterns = _for_each_sort(
        program, estimates,
        lambda stage, priced: draw_patterns(
            split_passes(stage, priced),
            update=lambda *parts: _run_update(*parts[:3], spans=parts[3], reads_back=reads_back, chunks=chunks),
        ),
    )  # fmt: skip
    placed = place_passes(
        plan.order,
        forward_s=forward_s,
        backward_s=backward_s,
        hop_s=hop_s,
        micro_batches=plan.micro_batches,
        virtual_stages=plan.virtual_stages,
    )
    return draw_pipeline(patterns, placed, hop=_find_hop(program), hop_s=hop_s)


def _longest_hop_s(tasks: Sequence[Task], priced: Sequence[Estimate]) -> float:
    hops = (one.seconds for task, one in zip(tasks, priced, strict=True) if when_it_runs(task) is Runs.BETWEEN_STAGES)
    return max(hops, default=0.0)


def _find_hop(program: Program) -> Collective | None:
    """The largest tensor that crosses between stages; with virtual stages it crosses once for each."""
    hops = [
        task
        for stage in program.stages
        for task in stage.tasks
        if isinstance(task, Collective) and task.axis == "pipeline"
    ]
    largest = max(hops, key=lambda hop: hop.num_bytes, default=None)
    return largest and replace(largest, num_bytes=largest.num_bytes * program.parallelism.virtual_stages)


def _summarize(duration_s: float, spent: Spent, *, bubble_s: float, spans: Sequence[Span]) -> Timeline:
    seconds = {
        "compute": spent.compute_s,
        "memory": spent.memory_s,
        "communication": sum(spent.exposed_s.values()),
        "host": spent.host_s,
        "bubble": bubble_s,
    }
    whole = sum(seconds.values())
    return Timeline(
        duration_s=duration_s,
        spans=tuple(spans),
        shares={name: amount / whole if whole else 0.0 for name, amount in seconds.items()},
        exposed_by_axis=dict(spent.exposed_s),
        busy_s=spent.compute_s + spent.memory_s,
        communication_s=spent.communication_s,
    )


def list_busy(
    program: Program, estimates: Sequence[Sequence[Estimate]], *, remember: Remember = compute
) -> tuple[BusyTime, ...]:
    """What keeps the first rank busy in a step, without a span being drawn."""
    stage, micro_batches = program.stages[0], program.parallelism.micro_batches
    found: tuple[BusyTime, ...] = remember(
        _busy_times, stage.tasks, stage.repeats, tuple(estimates[0]), micro_batches
    )  # fmt: skip
    hop = _find_hop(program) if len(program.stages) > 1 else None
    if hop is None:
        return found
    hop_s = max(_longest_hop_s(one.tasks, priced) for one, priced in zip(program.stages, estimates, strict=True))
    return *found, BusyTime(name=hop.name, category="communication", layer="", seconds=2 * micro_batches * hop_s)


def _busy_times(
    tasks: tuple[Task, ...], repeats: tuple[Repeat, ...], estimates: tuple[Estimate, ...], micro_batches: int
) -> tuple[BusyTime, ...]:
    totals: dict[tuple[str, str, str], float] = {}
    for name, parts in split_passes(Stage(tasks=tasks, repeats=repeats, tensors=()), estimates).items():
        for part in parts:
            for task, estimate in zip(part.tasks, part.estimates, strict=True):
                runs, times = when_it_runs(task), part.count * (1 if name == "optimizer" else micro_batches)
                key = task.name, estimate.limit, task.layer
                if runs is Runs.BETWEEN_STAGES:
                    continue
                if isinstance(task, Collective):
                    queued = runs in (Runs.BESIDE, Runs.BESIDE_LAST, Runs.AT_END) and task.axis != HOST
                    kind = "gradients" if queued else task.kind
                    key = f"{kind}[{task.axis}]", HOST if task.kind == "host_update" else "communication", task.layer
                    times = part.count if task.phase == "gradient" or task.once else times
                totals[key] = totals.get(key, 0.0) + times * estimate.seconds
    return tuple(
        BusyTime(name=name, category=sort, layer=layer, seconds=seconds)
        for (name, sort, layer), seconds in totals.items()
    )


STRAGGLERS = "stragglers"
"""What the wait for the slowest rank is called beside the axes."""
DEVICE_VARIATION: float = read_constant_table(float, "waiting")["device_variation"]


def add_waiting(timeline: Timeline, program: Program) -> Timeline:
    """The step with what devices wait for their inputs and for each other.

    Devices of one type differ in speed, normally distributed, and the step is that of the slowest. Where inputs have several
    sizes, so have the passes of replicas; sizes are bounded, and the largest of n that are spread evenly lies
    sqrt(3) (n - 1) / (n + 1) standard deviations above their mean. Passes of one step add up, so their sizes average out.
    """
    plan = program.parallelism
    prepared_s = plan.micro_batches * program.preparation_s
    waited_s = 0.0
    if plan.num_devices > 1 and not plan.asynchronous:
        replicas = plan.data * plan.context
        size = program.input_variation / math.sqrt(plan.micro_batches) * math.sqrt(3) * (replicas - 1) / (replicas + 1)
        speed = DEVICE_VARIATION * expect_largest(plan.num_devices)
        waited_s = speed * timeline.busy_s + size * (timeline.busy_s + prepared_s)
    if not prepared_s and not waited_s:
        return timeline
    longer_s = timeline.duration_s + prepared_s + waited_s
    shares = {name: share * timeline.duration_s / longer_s for name, share in timeline.shares.items()}
    shares["host"] = shares.get("host", 0.0) + prepared_s / longer_s
    shares["communication"] = shares.get("communication", 0.0) + waited_s / longer_s
    exposed = dict(timeline.exposed_by_axis)
    if waited_s:
        exposed[STRAGGLERS] = waited_s
    return replace(timeline, duration_s=longer_s, shares=shares, exposed_by_axis=exposed)


def expect_largest(number: int) -> float:
    """The expected largest of so many standard normal values (Blom 1958)."""
    return NormalDist().inv_cdf((number - 3 / 8) / (number + 1 / 4)) if number > 1 else 0.0
