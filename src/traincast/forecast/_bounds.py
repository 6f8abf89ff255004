"""What a step cannot be below, from the model as its ranks split it, before a pipeline cuts it and replicas share its state.

Cutting and sharing only move work and bytes between ranks, and what they add is communication. The slowest of p stages has at
least a p-th of the work, and the fullest at least a p-th of the bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from traincast.forecast._memory import outside_bytes, overheads_of, smallest_bytes
from traincast.lower import in_flight
from traincast.noun import noun
from traincast.simulate import Pass
from traincast.spec import (
    Cluster,
    Collective,
    Estimate,
    MemoryProfile,
    Op,
    Parallelism,
    Repeat,
    Stack,
    Stage,
    Task,
    segments,
)

ROUNDING = 0.99
"""Share of a bound that counts: stages round their parts of state, and caches serve the first ops of a stage otherwise."""
ZERO_BUBBLE = 4
"""Weight gradients fill the gaps, so only forward passes are waited for: at least a quarter of both."""
EVEN_CUT = 0.95
"""Share that counts of a bound which places what lies outside of the layers: a few of its ops may run in another stage."""
RUN_AGAIN = 0.5
"""What of a forward pass runs again is told from the model before it is split; this much of it counts."""


@noun
class Work:
    """Of one pass through a whole model, in seconds."""

    device_s: float
    """Kernels, and the collectives that they wait for."""
    host_s: float
    busy_s: float
    """Kernels alone."""
    forward_s: float
    """Kernels of the forward pass."""
    again_s: float
    """Kernels that run a second time before their backward pass."""
    num_layers: int = 0
    """That repeat, where there is one sort of them; 0: the times below are not known."""
    layers_s: float = 0.0
    """Of the device's, all layers, both ways."""
    before_s: float = 0.0
    """Of the device's, what is before the first layer, both ways."""
    behind_s: float = 0.0

    def run_again(self, share: float) -> "Work":
        """The same model when this share of its forward pass runs a second time."""
        again_s = share * self.forward_s
        return replace(
            self, device_s=self.device_s + again_s, busy_s=self.busy_s + again_s, again_s=again_s,
            layers_s=self.layers_s + again_s,
        )  # fmt: skip


def passes_of(stage: Stage) -> Stage:
    """The stage without its update."""
    end = next((place for place, task in enumerate(stage.tasks) if task.phase == "optimizer"), len(stage.tasks))
    kept = tuple(repeat for repeat in stage.repeats if repeat.stop <= end)
    return replace(stage, tasks=stage.tasks[:end], repeats=kept)


def add_up_work(tasks: tuple[Task, ...], repeats: tuple[Repeat, ...], estimates: tuple[Estimate, ...]) -> Work:
    """One after the other, as one device runs them and one host issues them."""
    device_s = host_s = busy_s = forward_s = again_s = 0.0
    parts: list[tuple[int, dict[bool, float]]] = []
    for part in segments(repeats, num_tasks=len(tasks)):
        ways = {True: 0.0, False: 0.0}
        for task, estimate in zip(tasks[part.start : part.stop], estimates[part.start : part.stop], strict=True):
            host_s += part.count * estimate.host_s
            if isinstance(task, Collective) and (task.overlapped or task.phase == "gradient"):
                continue
            amount = part.count * estimate.seconds
            ways[task.phase == "forward"] += amount
            if isinstance(task, Op):
                busy_s += amount
                forward_s += amount if task.phase == "forward" else 0.0
                again_s += amount if task.phase == "recompute" else 0.0
        device_s += sum(ways.values())
        parts.append((part.count, ways))
    work = Work(device_s=device_s, host_s=host_s, busy_s=busy_s, forward_s=forward_s, again_s=again_s)
    return _tell_layers(work, parts)


def _tell_layers(work: Work, parts: Sequence[tuple[int, Mapping[bool, float]]]) -> Work:
    """What lies before, in and behind the layers, where one range of the forward pass and one of the backward repeat."""
    repeated = [place for place, (count, _) in enumerate(parts) if count > 1]
    if len(repeated) != 2 or parts[repeated[0]][0] != parts[repeated[1]][0]:
        return work
    there, back = repeated
    if parts[there][1][False] or parts[back][1][True]:
        return work
    before_s = sum(ways[True] for _, ways in parts[:there]) + sum(ways[False] for _, ways in parts[back + 1 :])
    behind_s = sum(ways[True] + ways[False] for _, ways in parts[there + 1 : back])
    layers_s = parts[there][1][True] + parts[back][1][False]
    return replace(work, num_layers=parts[there][0], layers_s=layers_s, before_s=before_s, behind_s=behind_s)


def bound_time(work: Work, plan: Parallelism) -> tuple[float, float]:
    """(seconds of a step, seconds of it in which a device computes) that the plan cannot be below."""
    # Collectives that run inside the products they serve may be hidden whole.
    device_s = work.busy_s if plan.async_tensor else work.device_s
    step_s = max(device_s, work.host_s) * passes_in_a_step(plan)
    if not plan.async_tensor and plan.balance == "layers" and 1 < plan.pipeline <= work.num_layers:
        step_s = max(step_s, _bound_even_cut(work, plan))
    return ROUNDING * step_s, ROUNDING * work.busy_s * plan.micro_batches / plan.pipeline


def passes_in_a_step(plan: Parallelism) -> float:
    """Passes through the whole model that fit into the shortest step, however the layers are cut.

    Stage s waits for a first pass through the stages before it (its own part, if each has v chunks of layers), runs m passes, and
    then the stages before it have a last one: with w the time of a pass in a stage, T >= (w_0 + ... + w_s-1) / v + m w_s. The
    least T for a given sum of all w makes every one of these equal: w_s = w_0 (1 - 1 / (m v))^s.
    """
    shrink = 1 - 1 / (plan.micro_batches * _chunks(plan))
    return plan.micro_batches if plan.pipeline == 1 else 1 / (_chunks(plan) * (1 - shrink**plan.pipeline))


def _bound_even_cut(work: Work, plan: Parallelism) -> float:
    """The same inequality where every stage has as many layers, the first what comes before them and the last what follows."""
    fewest = work.num_layers // plan.pipeline
    stage_s = work.layers_s * fewest / work.num_layers
    first_s, last_s = stage_s + work.before_s, stage_s + work.behind_s
    ahead_s = first_s + (plan.pipeline - 2) * stage_s
    return EVEN_CUT * max(plan.micro_batches * first_s, ahead_s / _chunks(plan) + plan.micro_batches * last_s)


def _chunks(plan: Parallelism) -> int:
    return max(plan.virtual_stages, ZERO_BUBBLE if plan.order == "zero-bubble" else 1)


def _keeps_sums(plan: Parallelism) -> bool:
    """Whether gradients add up on the device over the passes of a step."""
    return plan.micro_batches > 1 and not plan.sums_on_host


def bound_memory(one: Pass, cluster: Cluster, plan: Parallelism, stack: Stack) -> MemoryProfile:
    """`one`: a pass that keeps its gradients through the whole model, which no rank shares yet.

    The fullest of p stages holds no less than any weighted mean of all, and two such means are taken. With even weights it holds
    a p-th of the state and of the activations of one pass. With weights in inverse proportion to the passes k that each stage
    keeps in flight, the kept activations of all stages count in full over the sum of 1 / k.
    """
    capacity, overheads, shards = smallest_bytes(cluster), overheads_of(stack, plan), plan.num_shards
    resident = one.resident
    state = (
        # Where the update has weights of its own, those of the passes exist only while they are gathered.
        (0.0 if plan.zero == 3 or plan.offload_weights else resident["parameter"])
        + (resident["gradient"] / (shards if plan.zero >= 2 else 1) if _keeps_sums(plan) else 0.0)
        + (0.0 if plan.offload_optimizer or plan.servers else resident["optimizer_state"] / shards)
    ) / (plan.tensor * plan.expert)
    num_parts = plan.tensor * plan.context
    activations = (one.live_bytes - sum(resident.values())) / num_parts
    held = (state + (0.0 if plan.offload_activations else activations)) / plan.pipeline
    if plan.pipeline > 1 and not plan.offload_activations:
        kept = [1 / in_flight(plan, index) for index in range(plan.pipeline)]
        held = max(held, (state * min(kept) + one.stash_bytes / num_parts) / sum(kept))
    by_role = {"held": ROUNDING * held}
    by_role["allocator"] = overheads.cache * by_role["held"]
    by_role["workspace"] = overheads.workspace_bytes
    return MemoryProfile(
        peak_bytes=sum(by_role.values()),
        by_role=by_role,
        peak_at="",
        capacity_bytes=capacity,
        outside_bytes=outside_bytes(cluster, plan, stack),
    )
