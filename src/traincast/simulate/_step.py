"""Turns a program and its estimates into the timeline of one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from traincast.memo import Remember, compute
from traincast.simulate._draw import Pattern, draw_patterns, draw_pipeline
from traincast.simulate._order import finish_times, place_passes
from traincast.simulate._passes import Clocks, Part, Spent, run_pass, split_passes, time_last_buckets
from traincast.spec import HOST, Collective, Estimate, Parallelism, Program, Repeat, Span, Stage, Task, Timeline

MAX_SPANS = 200_000


def simulate_step(
    program: Program, estimates: Sequence[Sequence[Estimate]], *, draw: bool = False, reads_back: bool = False,
    awaits_inputs: bool = False, remember: Remember = compute,
) -> Timeline:  # fmt: skip
    """One optimizer step. `draw`: also give every span, one by one. `reads_back`: before the update the host reads a number that
    the gradients give, so it issues the update only when the device has come that far. `awaits_inputs`: the same before every
    micro-batch; passes of a pipeline always start so."""
    if len(program.stages) == 1:
        waits = HostWaits(before_inputs=awaits_inputs, before_update=reads_back)
        return _run_single(program, estimates[0], draw=draw, waits=waits, remember=remember)
    return _run_pipeline(program, estimates, draw=draw, reads_back=reads_back, remember=remember)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWaits:
    """When the host waits until the device has done all that was issued."""

    before_inputs: bool = False
    before_update: bool = False


def _run_single(
    program: Program, estimates: Sequence[Estimate], *, draw: bool, waits: HostWaits, remember: Remember
) -> Timeline:
    stage, micro_batches = program.stages[0], program.parallelism.micro_batches
    if not draw:
        seconds, spent = remember(_step_alone, stage.tasks, stage.repeats, tuple(estimates), micro_batches, waits)
        return _summarize(seconds, spent, bubble_s=0.0, spans=())
    spans: list[Span] = []
    passes = split_passes(stage, estimates)
    seconds, spent = run_alone(passes, micro_batches=micro_batches, waits=waits, spans=spans)
    return _summarize(seconds, spent, bubble_s=0.0, spans=spans)


def _step_alone(
    tasks: tuple[Task, ...], repeats: tuple[Repeat, ...], estimates: tuple[Estimate, ...], micro_batches: int,
    waits: HostWaits,
) -> tuple[float, Spent]:  # fmt: skip
    passes = split_passes(Stage(tasks=tasks, repeats=repeats, tensors=()), estimates)
    return run_alone(passes, micro_batches=micro_batches, waits=waits)


def _time_stage(
    tasks: tuple[Task, ...], repeats: tuple[Repeat, ...], estimates: tuple[Estimate, ...], reads_back: bool
) -> tuple["StageRun", float]:
    """(a stage of a pipeline by itself, the longest hop from it to another)."""
    passes = split_passes(Stage(tasks=tasks, repeats=repeats, tensors=()), estimates)
    run = run_stage(passes, reads_back=reads_back)
    return run, max(_hop_seconds(tasks, estimates), default=0.0)


def run_alone(
    passes: Mapping[str, Sequence[Part]], *, micro_batches: int, waits: HostWaits | None = None,
    spans: list[Span] | None = None,
) -> tuple[float, Spent]:  # fmt: skip
    """A whole step without a pipeline: its seconds, and where they went."""
    clocks, spent, waits = Clocks(), Spent(), waits or HostWaits()
    _run_rounds(passes, micro_batches, clocks, spent, spans=spans, awaits_inputs=waits.before_inputs)
    _run_update(passes, clocks, spent, spans=spans, reads_back=waits.before_update)
    return clocks.device_s, spent


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
                rank: int = 0, reads_back: bool = False) -> None:  # fmt: skip
    """The optimizer waits for the last gradient, wherever it goes; the step ends when new weights have come back."""
    for link, tail_s in time_last_buckets(passes["backward"]).items():
        clocks.occupy(link, max(clocks.free_s(link), clocks.device_s + tail_s))
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


def run_stage(passes: Mapping[str, Sequence[Part]], *, reads_back: bool = False) -> StageRun:
    """Each pass of a stage once, as if no other stage made it wait."""
    clocks, spent = Clocks(), Spent()
    run_pass(passes["forward"], clocks, spent, first=False, last=False)
    forward_s = clocks.device_s
    run_pass(passes["backward"], clocks, spent, first=False, last=False)
    # The last micro-batch reduces its gradients: run it once more to see what it cannot hide.
    end, tail = Clocks(), Spent()
    run_pass(passes["backward"], end, tail, first=False, last=True)
    plain_s, before = end.device_s, tail.copy()
    if any(item.lost_s for part in passes["backward"] for item in part.gradients):
        # Gradients that are sent beside it make the last backward longer than the others, which counts with the tail.
        other = Clocks()
        run_pass(passes["backward"], other, Spent(), first=False, last=False)
        for axis, seconds in before.exposed_s.items():
            before.exposed_s[axis] = max(0.0, seconds - (plain_s - other.device_s)) if axis == "data" else seconds
        plain_s = other.device_s
    _run_update(passes, end, tail, spans=None, reads_back=reads_back)
    return StageRun(
        forward_s=forward_s,
        backward_s=clocks.device_s - forward_s,
        tail_s=end.device_s - plain_s,
        spent=spent,
        tail=tail,
        before=before,
        late_s=_late_weights(passes, forward_s),
    )


def _late_weights(passes: Mapping[str, Sequence[Part]], forward_s: float) -> float:
    clocks = Clocks()
    run_pass(passes["forward"], clocks, Spent(), first=True, last=False)
    return max(0.0, clocks.device_s - forward_s)


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
    # Stages with the same tasks and prices run alike: a pipeline of 64 has three or four sorts of them.
    known: dict[tuple[int, int], tuple[StageRun, float]] = {}
    for stage, priced in zip(program.stages, estimates, strict=True):
        key = id(stage.tasks), id(priced)
        if key not in known:
            known[key] = remember(_time_stage, stage.tasks, stage.repeats, tuple(priced), reads_back)
    keys = [(id(stage.tasks), id(priced)) for stage, priced in zip(program.stages, estimates, strict=True)]
    runs = [known[key][0] for key in keys]
    hop_s = max(0.0, *(hop_s for _, hop_s in known.values()))
    forward_s, backward_s = tuple(run.forward_s for run in runs), tuple(run.backward_s for run in runs)
    ends = remember(_finish, plan, *_flat(forward_s, backward_s, hop_s))
    seconds, total, bubble_s = join_stages(runs, ends, micro_batches=plan.micro_batches)
    spans = _draw(program, estimates, forward_s, backward_s, hop_s, reads_back) if draw else ()
    timeline = _summarize(seconds, total, bubble_s=bubble_s, spans=spans)
    return replace(timeline, busy_s=_mean_busy_s(runs, micro_batches=plan.micro_batches))


def _mean_busy_s(runs: Sequence[StageRun], *, micro_batches: int) -> float:
    """Seconds in which a device computes, over all stages alike."""
    whole = Spent()
    for run in runs:
        whole.add(run.spent, Spent(), micro_batches)
        whole.add(run.tail, run.before, 1)
    return (whole.compute_s + whole.memory_s) / len(runs)


def _flat(forward_s: Sequence[float], backward_s: Sequence[float], hop_s: float) -> tuple[float, ...]:
    """As numbers one by one, which are remembered by their values."""
    return (*forward_s, *backward_s, hop_s)


def _finish(plan: Parallelism, *times_s: float) -> list[float]:
    """When each stage has ended its last backward pass."""
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
    plan = program.parallelism
    known: dict[tuple[int, int], Pattern] = {}
    for stage, priced in zip(program.stages, estimates, strict=True):
        key = id(stage.tasks), id(priced)
        if key not in known:
            known[key] = draw_patterns(
                split_passes(stage, priced),
                update=lambda *parts: _run_update(*parts[:3], spans=parts[3], reads_back=reads_back),
            )
    placed = place_passes(
        plan.order,
        forward_s=forward_s,
        backward_s=backward_s,
        hop_s=hop_s,
        micro_batches=plan.micro_batches,
        virtual_stages=plan.virtual_stages,
    )
    patterns = [known[id(stage.tasks), id(priced)] for stage, priced in zip(program.stages, estimates, strict=True)]
    return draw_pipeline(patterns, placed, hop=_find_hop(program), hop_s=hop_s)


def _hop_seconds(tasks: Sequence[object], priced: Sequence[Estimate]) -> list[float]:
    return [
        estimate.seconds
        for task, estimate in zip(tasks, priced, strict=True)
        if isinstance(task, Collective) and task.axis == "pipeline"
    ]


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
        "communication": spent.total_exposed_s,
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
