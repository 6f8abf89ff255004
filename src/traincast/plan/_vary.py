"""A job or a request to the same job at other batches and recomputations, and to the plans that may be tried."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput
from traincast.files import decode
from traincast.forecast import load_source, pose_with
from traincast.noun import noun
from traincast.plan._nouns import SEARCHED, JobAt, Space
from traincast.resolve import (
    HALVES,
    OLDER_WORDS,
    choose_stack,
    fill_in,
    find_length,
    find_training,
    plan_habits,
    usual_bucket,
    usual_global_batch,
    with_defaults,
)
from traincast.spec import RECOMPUTES, Cluster, Graph, Job, Parallelism, Question, Scalable, Stack, WorkloadOptions


@dataclass(frozen=True, slots=True)
class _Fixed:
    """A graph that was recorded at one batch."""

    job: Job

    def __call__(self, batch: int, plan: Parallelism) -> Job:
        if batch != self.job.graph.batch_size:
            raise InvalidInput(
                f"the graph was recorded at a batch of {self.job.graph.batch_size}, not {batch}; give a request, or a "
                "space whose batches are only that"
            )
        return self.job


def vary_job(job: Job, space: Space | None) -> tuple[JobAt, Space]:
    """A job keeps its batch per pass; without a space a step has one pass of one replica."""
    batch = job.graph.batch_size
    return _Fixed(job), replace(space or Space(global_batch=batch), batches=(batch,))


@dataclass(frozen=True, slots=True)
class JobsOnce:
    """Each job built once: plans under which a model is built alike share it."""

    build: "BuildJob"
    stack_of: Callable[[Parallelism], Stack]
    """What a plan is run with."""
    built_in: bool
    """Whether a builder of the catalogue makes the model, which asks how the plan runs it."""
    _known: dict[tuple[int, Parallelism, str], Job] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, batch: int, plan: Parallelism) -> Job:
        stack = self.stack_of(plan)
        alike = _what_builders_read(plan, stack, built_in=self.built_in)
        key = batch, alike, stack.name
        if key not in self._known:
            self._known[key] = self.build(batch, alike, stack)
        return self._known[key]


BuildJob = Callable[[int, Parallelism, Stack], Job]
"""(samples of one pass of one replica, plan, what it is run with) -> the job."""


@dataclass(frozen=True, slots=True)
class StackOf:
    """What plans of a request are run with; picklable, so that processes can share it."""

    request: Question

    def __call__(self, plan: Parallelism) -> Stack:
        return choose_stack(self.request, plan=plan)


@dataclass(frozen=True, slots=True)
class _Named:
    """A request whose batch and plan may be changed; picklable, so that processes can share it."""

    request: Question
    global_batch: int

    def __call__(self, batch: int, plan: Parallelism, stack: Stack) -> Job:
        request = self.request

        def load(options: WorkloadOptions, source: str | None = None, /) -> Graph:
            # What only runs forward runs nothing again.
            own = plan if options.mode == request.workload.mode else replace(plan, recompute="none")
            return load_source(source or request.source, options, plan=own, stack=stack)

        # How replicas and passes share the samples of a step is the candidate's; how many there are is not.
        whole = Parallelism(micro_batches=max(1, self.global_batch // batch))
        return pose_with(load, request, replace(request.workload, batch=batch), plan=whole, stack=stack)[0]


def _what_builders_read(plan: Parallelism, stack: Stack, *, built_in: bool) -> Parallelism:
    """A plan under which a model is built as it is under this one; plans that share it share a graph.

    What is recorded from a file is the same under every plan. A builder of the catalogue asks how layers are recomputed,
    whether gradients are summed over passes, whether weights are sharded and, where a stack's softmax needs whole multiples, how
    heads are split.
    """
    if not built_in:
        return Parallelism()
    sharded = plan.zero == 3
    return Parallelism(
        recompute=plan.recompute,
        micro_batches=min(plan.micro_batches, 2),
        zero=3 if sharded else 0,
        data=2 if sharded else 1,
        tensor=plan.tensor if stack.recipe.option("softmax_multiple") else 1,
    )


def _is_file(source: str) -> bool:
    return Path(source.rpartition(":")[0] if ".py:" in source else source).exists()


def vary_request(request: Question, space: Space | None, *, num_devices: int | None = None) -> tuple[JobAt, Space]:
    """A request at any batch, but for a graph that was saved at one. Without a space the plan of the request says how many
    samples a step has and which degrees are fixed; with one, what is not searched is still as the request says."""
    whole = fill_in(request)
    if space is None:
        space = space_of(whole, num_devices=num_devices)
    elif space.base is None:
        space = replace(space, base=base_of(whole), **_sharded_habits(whole))
    fixed = _recorded_batch(whole.source)
    if fixed is not None:
        space = replace(space, batches=(fixed,))
    jobs = JobsOnce(_Named(whole, space.global_batch), StackOf(whole), built_in=not _is_file(whole.source))
    return jobs, space


@noun
class Settled:
    """A request with the defaults that every plan shares, and the clusters that can run it so."""

    request: Question
    clusters: tuple[Cluster, ...]
    notes: tuple[str, ...] = ()


def settle(request: Question, clusters: Sequence[Cluster]) -> Settled:
    """The request with a number format and a length, the same for every plan. Where none is named, the preferred half precision
    that any cluster has is taken, and clusters without it are left out."""
    whole, kept = fill_in(request), tuple(clusters)
    if whole.workload.precision is None:
        able = ([each for each in clusters if _has(each, dtype)] for dtype in HALVES)
        kept = tuple(next((found for found in able if found), clusters))
    devices = [group.device for cluster in kept for group in cluster.groups]
    settled, assumed = with_defaults(whole, devices, choose_stack(whole))
    notes = list(assumed)
    largest = max(cluster.num_devices for cluster in kept)
    cut = _stack_with(settled, "tensor")
    whole_stack = choose_stack(settled, num_devices=largest)
    if largest > 1 and cut.name != whole_stack.name:
        notes.append(
            f"no framework is named: plans that cut layers, stages or experts are priced with {cut.name}, others with "
            f"{whole_stack.name} (--framework to compare all under one)"
        )
    if len(kept) < len(clusters):
        notes.append(f"{len(clusters) - len(kept)} clusters without it are left out (--precision fp32 would keep them)")
    return Settled(request=settled, clusters=kept, notes=tuple(notes))


def _has(cluster: Cluster, dtype: str) -> bool:
    return all(dtype in group.device.matrix_flop_per_s for group in cluster.groups)


def space_of(
    request: Question, *, global_batch: int | None = None, num_devices: int | None = None, **asked: Any
) -> Space:
    """The space that a request leaves open. What its plan names is fixed: a searched field at its value (`data` and
    `micro_batches` only say how many samples a step has), any other in the base. `num_devices`: of the largest cluster, which
    says how many samples a step has where the request does not. `asked`: fields of a space that win."""
    named: dict[str, Any] = {}
    for key, value in request.parallelism.items():
        if key in ("data", "micro_batches") or key not in SEARCHED:
            continue
        named["orders" if key == "order" else key] = (value,)
    training = find_training(request)
    offered, length = training.axes, find_length(request.source, request.workload)
    if training.tokens_per_device and length:
        # Twice what fills every kernel.
        named["most_samples"] = min(64, max(1, 2 * training.tokens_per_device // length))
    elif training.samples_per_device:
        named["most_samples"] = max(64, training.samples_per_device)
    named |= {axis: (1,) for axis in ("tensor", "pipeline") if axis not in offered and axis not in named}
    stack, split = choose_stack(request), _stack_with(request, "tensor")
    if split.plan.sequence_parallel and "sequence_parallel" not in named:
        # It always splits the sequence where there is a tensor axis; a search leaves the split out where there is none.
        named["sequence_parallel"] = (True,)
    asked = {name: value for name, value in asked.items() if value is not None}
    # A stack's word may mean another recomputation than ours; then ours is nothing that it can be asked for.
    words = {**OLDER_WORDS["recompute"], **dict(stack.plan.recompute_words)}
    chosen = {"recompute": RECOMPUTES, **named, **asked}["recompute"]
    asked["recompute"] = tuple(dict.fromkeys(words.get(word, word) for word in chosen))
    samples = global_batch if global_batch is not None else global_batch_of(request, num_devices=num_devices)
    return Space(global_batch=samples, base=base_of(request), **{**named, **_sharded_habits(request), **asked})


def _sharded_habits(request: Question) -> dict[str, Any]:
    """What a stack does with sharded state and with spread experts only; what the request says of it wins."""
    habits = choose_stack(request).plan
    said = request.parallelism
    spread = _stack_with(request, "expert").plan
    sharded = "sharded_gradients" in habits.overlaps or said.get("overlap") is True
    whole = None if sharded or "bucket_bytes" in said else usual_bucket(choose_stack(request), overlaps=False)
    return {
        "sharded_bucket": whole,
        "dispatch_once": "dispatch_once" in spread.runs and "dispatch_once" not in said,
        "overlap_sharded": sharded,
        "plain_pipelines": "plain_pipelines" in _stack_with(request, "pipeline").plan.runs,
        "reshard_in_pipeline": "gathered_pipelines" not in habits.runs
        if said.get("reshard") is None
        else bool(said["reshard"]),
    }


def _stack_with(request: Question, axis: str) -> Stack:
    """What plans along an axis are run with."""
    return choose_stack(replace(request, parallelism={**request.parallelism, axis: 2}))


def base_of(request: Question) -> Parallelism:
    """What the request says of a plan beside the fields that are searched. Where one of them only goes with certain degrees,
    such degrees stand in until the search puts its own there."""
    said = {key: value for key, value in request.parallelism.items() if key not in (*SEARCHED, "reshard")}
    kept = {**plan_habits(choose_stack(request)), **said}
    stand_ins: dict[str, Any] = {}
    if kept.get("shard") is not None:
        stand_ins = {"zero": 1, "data": kept["shard"]}
    if kept.get("regather") is not None:
        stand_ins = {"zero": 3, "data": kept.get("shard") or kept["regather"]}
    if kept.get("expert_tensor") not in (None, 1):
        stand_ins["tensor"] = kept["expert_tensor"]
    imbalance = kept.get("expert_imbalance", 1.0)
    if isinstance(imbalance, (int, float)) and imbalance > 1:
        stand_ins["expert"] = stand_ins["data"] = math.ceil(imbalance)
    if kept.get("overlap_experts"):
        stand_ins = {"expert": 2, "data": 2, "micro_batches": 2, **stand_ins}
    return decode(Parallelism, {**kept, **stand_ins}, where="parallelism")


def global_batch_of(request: Question, *, num_devices: int | None = None) -> int:
    """Samples of one step as the request describes it; for a language model on so many devices, else as is usual."""
    batch = request.workload.batch
    length = find_length(request.source, request.workload)
    if batch is None and num_devices:
        training = find_training(request)
        whole = usual_global_batch(training, num_devices=num_devices, tokens=length or 1)
        if whole is not None:
            return whole
        if training.samples_per_device is not None and _recorded_batch(request.source) is None:
            return training.samples_per_device * num_devices
    if batch is None:
        raise InvalidInput(
            "how many samples an optimizer step has is not known; give --global-batch, which every plan keeps"
        )
    factors = (request.parallelism.get("data", 1), request.parallelism.get("micro_batches", 1))
    for factor in factors:
        batch *= factor if isinstance(factor, int) else 1
    return batch


def _recorded_batch(source: str) -> int | None:
    if not source.endswith((".json", ".json.gz")) or not Path(source).exists():
        return None
    from traincast.files import load_saved

    loaded = load_saved(source)
    return None if loaded is None or isinstance(loaded, Scalable) else loaded.batch_size
