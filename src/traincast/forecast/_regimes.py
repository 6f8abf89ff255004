"""A job with a regime to a forecast: every model that runs in a step is forecast by itself, and the phases are joined."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.forecast._activity import describe_activity
from traincast.forecast._assemble import assemble, stretch
from traincast.forecast._memory import outside_bytes
from traincast.forecast._rollout import LOG_SIGMA, Generation, generate
from traincast.noun import noun
from traincast.spec import (
    BusyTime,
    Cluster,
    Estimate,
    Forecast,
    Job,
    MemoryProfile,
    Moment,
    Parallelism,
    Pass,
    Phase,
    Regime,
    Rollout,
    Span,
    Timeline,
)
from traincast.units import NORMAL_90, show_bytes, show_seconds

if TYPE_CHECKING:
    from traincast.forecast._engine import Engine, Shown

KEPT_ROLES = ("parameter", "optimizer_state", "buffer")
"""What stays on a device between the steps of a model."""
FROZEN_ROLE, CACHE_ROLE, KEPT_ROLE = "other models", "key-value cache", "training state"
ROLLOUT, SCORING, TRAINING, SYNC = "rollout", "scoring", "training", "weight sync"


@noun
class Beside:
    """The forecast of a model that runs beside the trained one."""

    run: Pass
    plan: Parallelism
    step: Estimate
    timeline: Timeline
    memory: MemoryProfile
    utilization: float

    @property
    def kept_bytes(self) -> float:
        """Of it on a device while others run."""
        return 0.0 if self.run.is_shared else _resident(self.memory) + self.run.kept_bytes / self.plan.tensor

    @property
    def own_bytes(self) -> float:
        """Its peak without what belongs to another model."""
        shared = self.memory.by_role.get("parameter", 0.0) if self.run.is_shared else 0.0
        return self.memory.peak_bytes - shared

    @property
    def seconds(self) -> float:
        return self.step.seconds * self.run.times


def plan_of(run: Pass, plan: Parallelism) -> Parallelism:
    """A frozen model is split and sharded as the trained one; nothing of it is reduced, updated or run again. A model without
    experts has none to spread."""
    if plan.expert > 1 and not any("experts" in op.layer.split(".") for op in run.graph.ops):
        plan = replace(plan, expert=1, expert_tensor=None, expert_capacity=None, expert_imbalance=1.0, dispatch_once=False,
                       overlap_experts=False)  # fmt: skip
    if run.is_trained:
        return plan
    return replace(plan, zero=3 if plan.zero == 3 else 0, shard=plan.shard if plan.zero == 3 else None, regather=None,
                   recompute="none", offload_optimizer=False, offload_activations=False)  # fmt: skip


def forecast_regime(engine: "Engine", job: Job, cluster: Cluster, plan: Parallelism, shown: "Shown") -> Forecast:
    """The whole step of a regime."""
    regime, plain = job.regime, replace(job, regime=None)
    main = engine.forecast(plain, cluster, plan, shown=replace(shown, activity=None))
    if regime is None:
        return main
    if regime.sizes:
        main = _join_sizes(engine, main, plain, regime, cluster, plan)
    beside = [_forecast_pass(engine, run, plain, cluster, plan) for run in regime.passes]
    generation = None
    if regime.rollout is not None:
        generation = _generate(engine, regime.rollout, plain, cluster, plan, main.memory, beside)
    memory = _join_memory(main.memory, beside, generation)
    phases, step = _join_phases(regime, main, beside, generation, cluster)
    timeline = _join_timeline(regime, main, beside, generation, step)
    global_batch = main.global_batch if regime.rollout is None else regime.rollout.num_responses
    num_extra = regime.rollout.num_devices if regime.rollout is not None else 0
    worked = main.utilization * main.step.seconds * regime.num_updates + sum(
        one.utilization * one.seconds for one in beside
    )
    resources = describe_activity(plain, cluster, plan, timeline) if timeline.spans else ()
    num_devices = cluster.num_devices + num_extra
    return replace(
        main, **assemble(plain, cluster, step, timeline, global_batch=global_batch, num_devices=num_devices, only_trains=False),
        memory=memory, phases=phases, resources=resources,
        utilization=worked / (step.seconds * (num_devices / cluster.num_devices)) if step.seconds else 0.0,
        notes=(*main.notes, *_notes(regime, generation, memory, num_extra)),
    )  # fmt: skip


def regime_memory(
    engine: "Engine", main: MemoryProfile, job: Job, regime: Regime, cluster: Cluster, plan: Parallelism
) -> MemoryProfile:
    """The memory of a step whose trained model alone takes `main`."""
    plain = replace(job, regime=None)
    main = _largest(engine, main, plain, regime, cluster, plan)
    beside = [_forecast_pass(engine, run, plain, cluster, plan, timed=False) for run in regime.passes]
    generation = None
    if regime.rollout is not None:
        generation = _generate(engine, regime.rollout, plain, cluster, plan, main, beside)
    return _join_memory(main, beside, generation)


def _largest(
    engine: "Engine", main: MemoryProfile, job: Job, regime: Regime, cluster: Cluster, plan: Parallelism
) -> MemoryProfile:
    """The memory of the samples that take most of it."""
    found = [
        engine.memory(engine.lower(posed, cluster, plan), posed, cluster)
        for posed in (replace(job, graph=size.graph) for size in regime.sizes)
    ]
    return max([main, *found], key=lambda memory: memory.peak_bytes)


def _join_sizes(
    engine: "Engine", main: Forecast, job: Job, regime: Regime, cluster: Cluster, plan: Parallelism
) -> Forecast:
    """The mean step over samples of all sizes. Where replicas have different sizes at once, all wait for the largest: of n
    passes spread evenly it lies sqrt(3) (n - 1) / (n + 1) standard deviations above their mean, and passes of one step
    average out."""
    seen = [
        (size, engine.forecast(replace(job, graph=size.graph), cluster, plan)) for size in regime.sizes if size.share
    ]
    mean_s = sum(size.share * found.step.seconds for size, found in seen)
    deviation_s = math.sqrt(sum(size.share * (found.step.seconds - mean_s) ** 2 for size, found in seen))
    replicas = 1 if regime.is_grouped else plan.data
    waited_s = deviation_s / math.sqrt(plan.micro_batches) * math.sqrt(3) * (replicas - 1) / (replicas + 1)
    waited_s = min(waited_s, max(found.step.seconds for _, found in seen) - mean_s)
    factor = max(1.0, (mean_s + waited_s) / main.step.seconds)
    work = sum(size.share * size.graph.flop for size, _ in seen) / job.graph.flop if job.graph.flop else 1.0
    words = ", ".join(f"{size.label} ({size.share:.0%}) {show_seconds(found.step.seconds)}" for size, found in seen)
    notes = [f"steps by the size of samples: {words}"]
    if waited_s > 0.01 * mean_s:
        notes.append(
            f"replicas have different sizes at once and wait {show_seconds(waited_s)} of a step for the largest"
        )
    return replace(
        main, step=main.step.scaled(factor), timeline=stretch(main.timeline, factor), notes=(*main.notes, *notes),
        utilization=main.utilization * work / factor,
        memory=_largest(engine, main.memory, job, regime, cluster, plan),
    )  # fmt: skip


def extra_bytes(engine: "Engine", main: MemoryProfile, job: Job, cluster: Cluster, plan: Parallelism) -> float:
    """Bytes at the peak that the regime adds to the trained model alone."""
    if job.regime is None:
        return 0.0
    joined = regime_memory(engine, main, job, job.regime, cluster, plan)
    return joined.peak_bytes - main.peak_bytes


def _forecast_pass(
    engine: "Engine", run: Pass, job: Job, cluster: Cluster, plan: Parallelism, *, timed: bool = True
) -> Beside:
    own = plan_of(run, plan)
    posed = replace(job, graph=run.graph)
    if timed:
        found = engine.forecast(posed, cluster, own)
        return Beside(
            run=run,
            plan=own,
            step=found.step,
            timeline=found.timeline,
            memory=found.memory,
            utilization=found.utilization,
        )
    memory = engine.memory(engine.lower(posed, cluster, own), posed, cluster)
    none = Estimate(seconds=0.0, low_s=0.0, high_s=0.0)
    return Beside(
        run=run,
        plan=own,
        step=none,
        timeline=Timeline(duration_s=0.0, spans=(), shares={}),
        memory=memory,
        utilization=0.0,
    )


def _generate(
    engine: "Engine", rollout: Rollout, job: Job, cluster: Cluster, plan: Parallelism, main: MemoryProfile,
    beside: Sequence[Beside],
) -> Generation:  # fmt: skip
    kept = _resident(main) + sum(one.kept_bytes for one in beside)
    outside = outside_bytes(cluster, plan, job.stack)
    return generate(engine, rollout, job, cluster, plan, resident_bytes=kept, outside_bytes=outside)


def _resident(memory: MemoryProfile) -> float:
    return sum(memory.by_role.get(role, 0.0) for role in KEPT_ROLES)


def _join_memory(main: MemoryProfile, beside: Sequence[Beside], generation: Generation | None) -> MemoryProfile:
    """The phase that comes nearest to filling a device."""
    others = sum(one.kept_bytes for one in beside)
    found = replace(
        main, peak_bytes=main.peak_bytes + others, by_role=_with(main.by_role, {FROZEN_ROLE: others}),
        stage_peaks=tuple([peak + others for peak in main.stage_peaks]),
        moments=tuple([_beside_moment(one, others) for one in main.moments]),
    )  # fmt: skip
    kept = _resident(main)
    for one in beside:
        waiting = kept + others - one.kept_bytes
        if one.own_bytes + waiting > found.peak_bytes:
            roles = dict(one.memory.by_role)
            if one.run.is_shared:
                roles.pop("parameter", None)
            found = replace(
                one.memory, moments=found.moments, host=found.host, peak_bytes=one.own_bytes + waiting,
                by_role=_with(roles, {FROZEN_ROLE: waiting}), peak_at=f"{one.run.name}, {one.memory.peak_at}", stage_peaks=(),
            )  # fmt: skip
    if generation is not None and generation.needed_bytes > found.peak_bytes:
        roles = {CACHE_ROLE: generation.cache_bytes, KEPT_ROLE: generation.needed_bytes - generation.cache_bytes}
        found = replace(found, peak_bytes=generation.needed_bytes, by_role=roles, peak_at=ROLLOUT, stage_peaks=())
    return found


def _beside_moment(one: Moment, others: float) -> Moment:
    return replace(one, peak_bytes=one.peak_bytes + others, by_role=_with(one.by_role, {FROZEN_ROLE: others}))


def _with(roles: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    joined = dict(roles)
    for role, amount in more.items():
        if amount:
            joined[role] = joined.get(role, 0.0) + amount
    return joined


def _say_sync(rollout: Rollout, generation: Generation) -> str:
    words = f"{show_bytes(rollout.synced_bytes)} of weights to {generation.num_generators} generators"
    return words + (", training state to the host and back" if rollout.offloads else "")


def _join_phases(
    regime: Regime, main: Forecast, beside: Sequence[Beside], generation: Generation | None, cluster: Cluster
) -> tuple[tuple[Phase, ...], Estimate]:
    """Phases in order, and the step that they make up."""
    scored = [one for one in beside if not one.run.is_trained]
    trained = [one for one in beside if one.run.is_trained]
    training = _add(main.step.scaled(regime.num_updates), [one.step.scaled(one.run.times) for one in trained])
    scoring = _add(None, [one.step.scaled(one.run.times) for one in scored])
    rollout, sync = (
        _believe(generation.seconds if generation else 0.0),
        _believe(generation.sync_s if generation else 0.0),
    )
    lag = regime.rollout.lag if regime.rollout is not None else 0
    rest = _add(training, [scoring])
    step = _add(_longer(rest, rollout) if lag else _add(rest, [rollout]), [sync])
    step = replace(step, limit=main.step.limit, ground=main.step.ground)
    num_devices = cluster.num_devices
    peaks = _peaks(main, beside)
    phases: list[Phase] = []

    def show(name: str, spent: Estimate, peak: float, says: str, *, fits: bool, devices: int = num_devices) -> None:
        share = spent.seconds / step.seconds if step.seconds else 0.0
        phases.append(
            Phase(name=name, step=spent, share=share, num_devices=devices, peak_bytes=peak, fits=fits, says=says)
        )

    capacity = main.memory.capacity_bytes - main.memory.outside_bytes
    if generation is not None and regime.rollout is not None:
        devices = regime.rollout.num_devices or num_devices
        peak = max(generation.needed_bytes, _rollout_bytes(generation))
        show(ROLLOUT, rollout, peak, _say_rollout(generation), fits=generation.fits, devices=devices)
    if scored:
        words = ", ".join(f"{one.run.name} {show_seconds(one.seconds)}" for one in scored)
        show(SCORING, scoring, peaks[SCORING], words, fits=peaks[SCORING] <= capacity)
    words = f"{regime.num_updates} optimizer step{'s' * (regime.num_updates > 1)} of {show_seconds(main.step.seconds)}"
    words += "".join(f", {one.run.name} {show_seconds(one.seconds)}" for one in trained)
    show(TRAINING, training, peaks[TRAINING], words, fits=peaks[TRAINING] <= capacity)
    if generation is not None and regime.rollout is not None:
        show(SYNC, sync, 0.0, _say_sync(regime.rollout, generation), fits=True)
    return tuple(phases), step


def _rollout_bytes(generation: Generation) -> float:
    """Of a device when its cache is fullest: what one longest response needs, and the others'."""
    return min(
        generation.needed_bytes + generation.cache_bytes, max(generation.capacity_bytes, generation.needed_bytes)
    )


def _peaks(main: Forecast, beside: Sequence[Beside]) -> dict[str, float]:
    others, kept = sum(one.kept_bytes for one in beside), _resident(main.memory)
    alone = {one.run.name: one.own_bytes + kept + others - one.kept_bytes for one in beside}
    trained = [alone[one.run.name] for one in beside if one.run.is_trained]
    scored = [alone[one.run.name] for one in beside if not one.run.is_trained]
    return {TRAINING: max([main.memory.peak_bytes + others, *trained]), SCORING: max(scored, default=0.0)}


def _say_rollout(generation: Generation) -> str:
    return (
        f"prefill {show_seconds(generation.prefill_s)}, decode {show_seconds(generation.decode_s)}: {generation.num_generators} "
        f"generators of {generation.tensor} device{'s' * (generation.tensor > 1)}, at most {generation.most_at_once} and on "
        f"average {generation.mean_at_once:.0f} responses at once, {show_seconds(generation.token_s)} a token, "
        f"{show_seconds(generation.tail_s)} of it for the longest; cache {show_bytes(generation.cache_bytes)}"
    )


def _believe(seconds: float) -> Estimate:
    factor = math.exp(NORMAL_90 * LOG_SIGMA)
    return Estimate(seconds=seconds, low_s=seconds / factor, high_s=seconds * factor, limit="memory")


def _add(first: Estimate | None, others: Iterable[Estimate]) -> Estimate:
    """Errors of phases on the same machine go the same way, so their bounds add up."""
    parts = [*([first] if first is not None else []), *others]
    return Estimate(
        seconds=sum(part.seconds for part in parts),
        low_s=sum(part.low_s for part in parts),
        high_s=sum(part.high_s for part in parts),
    )


def _longer(one: Estimate, other: Estimate) -> Estimate:
    return Estimate(
        seconds=max(one.seconds, other.seconds), low_s=max(one.low_s, other.low_s), high_s=max(one.high_s, other.high_s)
    )


def _join_timeline(
    regime: Regime,
    main: Forecast,
    beside: Sequence[Beside],
    generation: Generation | None,
    step: Estimate,
) -> Timeline:
    """Shares by the time of each phase; generation reads memory. Drawn: one optimizer step in full, every other phase whole."""
    parts: list[tuple[str, float, Timeline | None, str]] = []
    if generation is not None:
        parts.append((ROLLOUT, generation.seconds, None, "memory"))
    parts += [(one.run.name, one.seconds, one.timeline, "compute") for one in beside]
    parts.append((TRAINING, main.step.seconds * regime.num_updates, main.timeline, "compute"))
    if generation is not None:
        parts.append((SYNC, generation.sync_s, None, "communication"))
    total = sum(seconds for _, seconds, _, _ in parts) or 1.0
    shares: dict[str, float] = {}
    exposed: dict[str, float] = {}
    busy = sent = 0.0
    for _, seconds, timeline, category in parts:
        if timeline is None or not timeline.duration_s:
            shares[category] = shares.get(category, 0.0) + seconds / total
            busy += seconds if category == "memory" else 0.0
            sent += seconds if category == "communication" else 0.0
            continue
        times = seconds / timeline.duration_s
        for name, share in timeline.shares.items():
            shares[name] = shares.get(name, 0.0) + share * seconds / total
        for axis, waited in timeline.exposed_by_axis.items():
            exposed[axis] = exposed.get(axis, 0.0) + waited * times
        busy += timeline.busy_s * times
        sent += timeline.communication_s * times
    scale = step.seconds / total
    spans = _draw(parts, main.timeline, scale) if main.timeline.spans else ()
    return Timeline(
        duration_s=step.seconds, spans=spans, shares=shares, exposed_by_axis=exposed, busy_s=min(busy, step.seconds),
        communication_s=sent, work=_list_work(parts, main.timeline, scale),
    )  # fmt: skip


def _list_work(
    parts: Sequence[tuple[str, float, Timeline | None, str]], main: Timeline, scale: float
) -> tuple[BusyTime, ...]:
    """The optimizer's steps sort by sort, every other phase whole; nothing where nobody asked."""
    if not main.work:
        return ()
    found: list[BusyTime] = []
    for name, seconds, timeline, category in parts:
        if timeline is main:
            times = scale * seconds / main.duration_s if main.duration_s else 0.0
            found += [replace(one, seconds=one.seconds * times) for one in main.work]
        else:
            found.append(BusyTime(name=name, category=category, layer=name, seconds=seconds * scale))
    return tuple(found)


def _draw(parts: Sequence[tuple[str, float, Timeline | None, str]], main: Timeline, scale: float) -> tuple[Span, ...]:
    """Phases one after the other on every rank; `scale` below 1 where some of them run beside others."""
    ranks = sorted({span.rank for span in main.spans}) or [0]
    at, spans = 0.0, []
    for name, seconds, timeline, category in parts:
        drawn_s = 0.0
        if timeline is main:
            drawn_s = main.duration_s
            spans += [
                replace(span, start_s=(at + span.start_s) * scale, end_s=(at + span.end_s) * scale)
                for span in main.spans
            ]
        if seconds - drawn_s > 0:
            spans += [
                Span(
                    name=name, start_s=(at + drawn_s) * scale, end_s=(at + seconds) * scale, stream="compute",
                    category=category, rank=rank, layer=name,
                )
                for rank in ranks
            ]  # fmt: skip
        at += seconds
    return tuple(spans)


def _notes(regime: Regime, generation: Generation | None, memory: MemoryProfile, num_extra: int) -> tuple[str, ...]:
    if generation is None or regime.rollout is None:
        return ()
    notes = [
        f"generation was not measured here: decode reads weights and keys and values at memory speed, {regime.name}'s rollout is "
        f"sure to a factor of {math.exp(NORMAL_90 * LOG_SIGMA):.1f}"
    ]
    if num_extra:
        notes.append(f"{num_extra} devices generate beside those that train, and are paid too")
    else:
        notes.append("the generator's weights and cache are freed while the same devices train")
    if not generation.fits:
        notes.append(
            "the generator does not fit beside the training state; raise --rollout-tp, or give --rollout-offload or "
            "--rollout-gpus"
        )
    return tuple(notes)
