"""The stages of a program to their peaks outside the step: during an evaluation and while a checkpoint is made."""

from collections.abc import Iterator, Sequence

from traincast.memo import Remember, compute
from traincast.simulate import keeps_gradients, replay_forward
from traincast.spec import Graph, Job, MemoryProfile, Moment, Parallelism, Program, Stage

EVALUATION, CHECKPOINT = "evaluation", "checkpoint"
ALWAYS = ("parameter", "optimizer_state", "buffer", "gradient buckets", "communication buffers", "workspace")
"""Roles of a step's peak that are there between steps too."""
STATE_BYTES = 4
"""Of a weight in a gathered state dict: shards are kept in fp32."""
GATHERED_UNITS = 2
"""Wide copies of a unit beside the narrow ones of a step."""


def list_moments(
    program: Program, profiles: Sequence[MemoryProfile], job: Job, *, remember: Remember = compute
) -> tuple[Moment, ...]:
    """Those that the job has, each of the stage where it is the largest."""
    plan = program.parallelism
    evaluates, saves = job.evaluation_every_steps is not None, job.checkpoint_every_steps is not None
    found: dict[str, Moment] = {}
    if not evaluates and not saves:
        return ()
    for stage, profile in zip(program.stages, profiles, strict=True):
        kept = dict(_kept(stage, profile, job, plan))
        if evaluates:
            _take_larger(found, _evaluate(stage, profile, kept, remember=remember))
        if saves:
            _take_larger(found, _save(profile, kept, job, plan))
    return tuple(found.values())


def _take_larger(found: dict[str, Moment], one: Moment) -> None:
    if one.name not in found or found[one.name].peak_bytes < one.peak_bytes:
        found[one.name] = one


def _kept(stage: Stage, profile: MemoryProfile, job: Job, plan: Parallelism) -> Iterator[tuple[str, float]]:
    """What no step gives back. Gradients are dropped between steps, but not those that add up in buffers of their own."""
    for role in ALWAYS:
        yield role, profile.by_role.get(role, 0.0)
    adds_up = keeps_gradients(stage, 1 if plan.pipeline == 1 else plan.micro_batches)
    if adds_up or job.stack.memory.flat_gradients:
        yield "gradient", profile.by_role.get("gradient", 0.0)
    if job.cuda_graphs:
        # A captured graph has a pool of its own, which nothing else may use.
        yield "pool of captured graphs", profile.by_role.get("activation", 0.0)


def _evaluate(stage: Stage, profile: MemoryProfile, kept: dict[str, float], *, remember: Remember) -> Moment:
    """A forward pass of the same batch, of which nothing is kept."""
    more = {
        "activation": remember(replay_forward, stage.tasks, stage.repeats, stage.tensors),
        "gathered weights": profile.by_role.get("gathered weights", 0.0),
    }
    return _moment(EVALUATION, {**kept, **more}, profile)


def _save(profile: MemoryProfile, kept: dict[str, float], job: Job, plan: Parallelism) -> Moment:
    """Weights that are sharded come together on the device, unless every rank writes its own."""
    gathered, how = 0.0, "shards" if job.checkpoint_sharded else job.stack.memory.checkpoint
    if plan.zero == 3 and how != "shards":
        gathered = STATE_BYTES * count_weights(job.graph) / (plan.tensor * plan.pipeline)
    if how == "layers":
        gathered = min(gathered, GATHERED_UNITS * profile.by_role.get("gathered weights", 0.0))
    return _moment(CHECKPOINT, {**kept, "gathered state": gathered}, profile)


def _moment(name: str, parts: dict[str, float], profile: MemoryProfile) -> Moment:
    """With what the caching allocator holds on top, as in the step."""
    reserved = profile.by_role.get("allocator", 0.0)
    share = reserved / max(1.0, profile.peak_bytes - reserved - profile.by_role.get("workspace", 0.0))
    parts = {**parts, "allocator": share * sum(parts.values())}
    by_role = {role: amount for role, amount in parts.items() if amount > 0}
    return Moment(name=name, peak_bytes=sum(by_role.values()), by_role=by_role)


def count_weights(graph: Graph) -> float:
    """Weights of the whole model, in all its repeated layers."""
    return float(sum(tensor.numel * tensor.copies for tensor in graph.tensors if tensor.role == "parameter"))
