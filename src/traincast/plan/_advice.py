"""A forecast to plain sentences: what dominates, whether it fits, what one change would bring, and what is not known."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from traincast.cost import CostModel
from traincast.errors import TraincastError
from traincast.files import read_calibration
from traincast.forecast import Engine, pose_job
from traincast.noun import noun
from traincast.plan._nouns import Plan
from traincast.plan._remedies import change_plan, train_less
from traincast.plan._what_if import Delta, what_if
from traincast.spec import SAFE_CONFIDENCE, Calibration, Cluster, Forecast, Parallelism, Question, WorkloadOptions
from traincast.units import show_bytes, show_change, show_seconds, show_usd

ALTERNATIVES = ("a100-80g", "h100-80g", "h200-sxm-141g", "l40s")
WORTH_SAYING = 0.02
"""A change of less than this is not worth a sentence."""
_WHY = {
    "compute": "arithmetic",
    "memory": "access to device memory",
    "communication": "communication that nothing hides",
    "host": "waiting for the host to issue work",
    "bubble": "the empty ends of the pipeline",
}
_MEASURE = {
    "bound": "no kernel of this sort was measured anywhere: `traincast profile` on the target device, then "
    "`traincast calibrate`, would replace the bound",
    "transfer": "the kernels were measured on other devices: one profile of this job on one device of the target "
    "(`traincast profile`, `traincast calibrate`) would narrow the interval most",
}


@noun
class Suggestion:
    """One change that was tried, and what it does; ratios below 1 are less than now."""

    change: str
    says: str
    time_ratio: float
    usd_ratio: float | None
    memory_ratio: float
    fit_probability: float
    kind: str
    """plan: another arrangement on the same devices; devices: other hardware."""


@noun
class Advice:
    """A job in sentences, and the same as numbers."""

    plan: Plan
    sentences: tuple[str, ...]
    suggestions: tuple[Suggestion, ...]


def advise(
    request: Question, cluster: Cluster, parallelism: Parallelism, *, confidence: float = SAFE_CONFIDENCE,
    costs: CostModel | None = None, calibration: Calibration | None = None,
) -> Advice:  # fmt: skip
    """Forecast a request, try each single change, and say what matters. `costs` or `calibration`: what prices tasks instead of
    the models that ship with the package."""
    learned = read_calibration(request.calibration) if calibration is None else calibration
    engine = Engine(costs=costs, calibration=learned)
    job = pose_job(request, parallelism, cluster=cluster)
    answer = engine.forecast(job, cluster, parallelism)
    plan = Plan.of(answer, cluster, parallelism, batch=job.graph.batch_size)
    suggestions = sorted(_try_changes(plan, request, engine), key=lambda one: one.time_ratio)
    helpful = [one for one in suggestions if one.time_ratio < 1 - WORTH_SAYING and one.fit_probability >= confidence]
    cheaper = [
        one
        for one in suggestions
        if one.usd_ratio is not None and one.usd_ratio < 1 - WORTH_SAYING and one.fit_probability >= confidence
    ]
    sentences = [
        *_say_time(answer),
        *_say_fit(plan, request, confidence, engine),
        *_say_changes(helpful, cheaper),
        *_say_unknown(answer),
    ]
    return Advice(plan=plan, sentences=tuple(sentences), suggestions=tuple(suggestions))


def _say_time(answer: Forecast) -> Iterator[str]:
    step = answer.step
    yield (
        f"One step of {answer.workload} with {answer.global_batch:,} samples takes {show_seconds(step.seconds)} on "
        f"{answer.num_devices} x {answer.device}, with 90% probability between {show_seconds(step.low_s)} and "
        f"{show_seconds(step.high_s)}, {answer.utilization:.0%} MFU."
    )
    shares = sorted(answer.timeline.shares.items(), key=lambda item: -item[1])
    first, second = shares[0], shares[1]
    more = f", then {_WHY[second[0]]} ({second[1]:.0%})" if second[1] >= 0.1 else ""
    yield f"What takes longest is {_WHY[first[0]]} ({first[1]:.0%} of the step){more}."
    if answer.job.num_steps > 1:
        total = answer.job.total
        cost = "" if answer.usd is None else f" and costs {show_usd(answer.usd.value)}"
        yield (
            f"The whole job of {answer.job.num_steps:,.0f} steps takes {show_seconds(total.seconds)} "
            f"({show_seconds(total.low_s)} to {show_seconds(total.high_s)}){cost}."
        )


def _say_fit(plan: Plan, request: Question, confidence: float, engine: Engine) -> Iterator[str]:
    memory = plan.forecast.memory
    largest = max(memory.by_role, key=lambda role: memory.by_role[role])
    amounts = (
        f"{show_bytes(memory.needed_bytes)} of {show_bytes(memory.capacity_bytes)} in {memory.peak_where}, most of it "
        f"{largest.replace('_', ' ')}"
    )
    if memory.fit_probability >= confidence:
        yield f"It is {memory.fit_probability:.0%} likely to fit: a device needs {amounts}."
        return
    verdict = "It may not fit" if memory.fits else "It does not fit"
    yield f"{verdict} ({memory.fit_probability:.0%} likely): a device needs {amounts}."

    for remedy in [*train_less(request)][:2]:
        yield f"To make it fit: {remedy.change}; it then needs {show_bytes(remedy.needed_bytes or 0.0)}."
    changes = change_plan(
        request, plan.cluster, plan.parallelism, batch=plan.batch, confidence=confidence, engine=engine
    )
    fitting = [change for change in changes if change.fits]
    for change in fitting[:2]:
        yield (
            f"To make it fit: {change.name}; it then needs {show_bytes(change.needed_bytes)}, and a sample takes "
            f"{show_change(change.seconds_ratio)} time."
        )
    if not fitting:
        yield "No single change and no few of them make it fit; use more devices or devices with more memory."


def _say_changes(helpful: Sequence[Suggestion], cheaper: Sequence[Suggestion]) -> Iterator[str]:
    # What the same devices can do costs nothing to try, so it comes before other devices.
    said = [one for kind in ("plan", "devices") for one in [each for each in helpful if each.kind == kind][:2]]
    yield from (f"Faster: {one.says}." for one in said)
    for one in sorted(cheaper, key=lambda entry: entry.usd_ratio or math.inf)[:2]:
        if one not in said:
            yield f"Cheaper: {one.says}."
    if not helpful and not cheaper:
        yield "No single change that was tried makes it faster or cheaper by more than 2%; `traincast plan` searches further."


def _say_unknown(answer: Forecast) -> Iterator[str]:
    rests = max(answer.grounds, key=lambda name: answer.grounds[name]) if answer.grounds else "bound"
    if rests in _MEASURE:
        share = answer.grounds.get(rests, 0.0)
        yield f"Uncertainty: {share:.0%} of the device time rests on {_name_ground(rests)}; {_MEASURE[rests]}."
    if answer.unknown_ops:
        names = ", ".join(answer.unknown_ops[:5])
        yield f"Not known: {names} have no FLOP formula and are timed by their bytes alone."
    yield from (f"Assumed: {note}." for note in answer.notes[:3])


def _name_ground(ground: str) -> str:
    return {"bound": "the physical bound alone", "transfer": "measurements of other devices"}[ground]


def _try_changes(plan: Plan, request: Question, engine: Engine) -> Iterator[Suggestion]:
    for kind, change, words in _changes(plan, request):
        try:
            delta = what_if(plan, request, change, engine=engine)
        except TraincastError:
            # Not every model, device or batch allows every change; what cannot be built is no advice.
            continue
        yield Suggestion(
            change=change,
            says=_say_delta(words, delta),
            time_ratio=delta.job_ratio if delta.after.job.num_steps > 1 else delta.step_ratio,
            usd_ratio=delta.usd_ratio,
            memory_ratio=delta.memory_ratio,
            fit_probability=delta.after.memory.fit_probability,
            kind=kind,
        )


def _changes(plan: Plan, request: Question) -> Iterator[tuple[str, str, str]]:
    degrees = plan.parallelism
    if plan.forecast.global_batch % (2 * plan.batch * degrees.data) == 0:
        yield "plan", f"batch={2 * plan.batch}", f"micro-batch {2 * plan.batch} instead of {plan.batch}"
    for recompute in ("none", "selective-op", "full"):
        if recompute != degrees.recompute:
            yield (
                "plan",
                f"recompute={recompute}",
                f"activation checkpointing {recompute} instead of {degrees.recompute}",
            )
    if degrees.data * degrees.context > 1:
        for zero in range(4):
            if zero != degrees.zero:
                yield "plan", f"zero={zero}", f"ZeRO {zero} instead of {degrees.zero}"
    for tensor in {max(1, degrees.tensor // 2), 2 * degrees.tensor} - {degrees.tensor}:
        yield "plan", f"tensor={tensor}", f"tensor parallelism {tensor} instead of {degrees.tensor}"
    for pipeline in {max(1, degrees.pipeline // 2), 2 * degrees.pipeline} - {degrees.pipeline}:
        yield "plan", f"pipeline={pipeline}", f"{pipeline} pipeline stages instead of {degrees.pipeline}"
    if degrees.tensor > 1 and not degrees.sequence_parallel:
        yield "plan", "sequence_parallel=true", "sequence parallelism along the tensor axis"
    if not request.job.get("compiled"):
        yield "plan", "compiled=true", "torch.compile"
    if request.workload.precision == "fp32":
        yield "plan", "precision=bf16-amp", "mixed precision (bf16)"
    yield "devices", f"nodes={2 * plan.cluster.num_nodes}", f"{2 * plan.cluster.num_nodes} nodes"
    if plan.cluster.num_nodes > 1:
        yield "devices", f"nodes={plan.cluster.num_nodes // 2}", f"{plan.cluster.num_nodes // 2} nodes"
    for name in ALTERNATIVES:
        yield "devices", f"device={name}", f"{name} devices"


def _say_delta(words: str, delta: Delta) -> str:
    ratio = delta.job_ratio if delta.after.job.num_steps > 1 else delta.step_ratio
    # Without a length the job is one step, whose price is mostly that of starting.
    money = (
        "" if delta.usd_ratio is None or delta.after.job.num_steps <= 1 else f", {show_change(delta.usd_ratio)} money"
    )
    return (
        f"{words}: {show_change(ratio)} time{money}, {show_change(delta.memory_ratio)} memory per device, "
        f"{delta.after.memory.fit_probability:.0%} likely to fit"
    )


def with_batch(workload: WorkloadOptions) -> WorkloadOptions:
    """A request without a batch is advised at one sample per pass."""
    return workload if workload.batch is not None else dataclasses.replace(workload, batch=1)
