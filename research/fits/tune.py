"""Moves the constants of a stack towards measured steps, held by their priors (maximum a posteriori)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincast.cost import (
    TUNABLE,
    Pricing,
    find_route,
    part_replicas,
    price_collective,
    price_op,
    read_constants,
    replay,
    with_constants,
)
from traincast.forecast import Engine
from traincast.noun import noun
from traincast.simulate import add_waiting, simulate_step
from traincast.spec import Cluster, Collective, Estimate, Job, Op, Parallelism, PlanHabits, Program, Stack, Timeline

Array = NDArray[np.float64]

NOISE = 0.08
"""What one measured step is trusted to, in log time: repeats differ by 2-6%, and no set of constants fits every plan."""
MAX_STEPS = 120
HOST_TIMES = ("forward_call_s", "backward_call_s", "optimizer_call_s", "launch_s", "collective_call_s")
SLOWER_HOSTS = (2.5, 6.0)


@noun
class KnownStep:
    """A measured step, lowered and priced once without the constants of any stack."""

    program: Program
    estimates: tuple[tuple[Estimate, ...], ...]
    crossing: tuple[tuple[bool, ...], ...]
    """For each task, whether it is a collective that leaves its node."""
    seconds: float
    cuda_graphs: bool = False
    reads_back: bool = False
    """The host waits for the device before every update."""
    awaits_inputs: bool = False
    """The same before every micro-batch."""

    def predict(self, stack: Stack) -> float:
        """The duration of the step under a stack's constants."""
        return self.simulate(stack).duration_s

    def simulate(self, stack: Stack) -> Timeline:
        """The step under a stack's constants."""
        priced: dict[int, list[Estimate]] = {}
        for stage, estimates, crossing in zip(self.program.stages, self.estimates, self.crossing, strict=True):
            if id(stage.tasks) not in priced:
                priced[id(stage.tasks)] = [
                    price_op(stack, task, estimate)
                    if isinstance(task, Op)
                    else price_collective(stack, task, estimate, crosses_nodes=crosses)
                    for task, estimate, crosses in zip(stage.tasks, estimates, crossing, strict=True)
                ]
                if self.cuda_graphs:
                    priced[id(stage.tasks)] = list(replay(stage.tasks, priced[id(stage.tasks)]))
        timeline = simulate_step(
            self.program,
            [priced[id(stage.tasks)] for stage in self.program.stages],
            reads_back=self.reads_back and not self.cuda_graphs,
            awaits_inputs=self.awaits_inputs and not self.cuda_graphs,
        )
        return add_waiting(timeline, self.program)


def know_step(
    job: Job, cluster: Cluster, plan: Parallelism, seconds: float, *, costs: Pricing | None = None
) -> KnownStep:
    """Lower and price a step whose duration was measured."""
    # Constants are applied later; what the libraries of the stack's version do is not among them, nor how it runs replicas.
    bare = Stack(
        kernels=job.stack.kernels,
        plan=PlanHabits(runs=tuple({"own_containers"} & {*job.stack.plan.runs})),
    )
    engine = Engine(costs=replace(costs or Pricing(), stack=bare))
    program = engine.lower(job, cluster, plan)
    seen = part_replicas(cluster) if "own_containers" in bare.plan.runs else cluster
    crossing = {
        id(stage.tasks): tuple(isinstance(t, Collective) and find_route(t, seen).num_nodes > 1 for t in stage.tasks)
        for stage in {id(stage.tasks): stage for stage in program.stages}.values()
    }
    return KnownStep(
        program=program,
        # The stack's own calls are added later, and left out where graphs are replayed.
        estimates=engine.cost(program, replace(job, cuda_graphs=False), cluster),
        crossing=tuple(crossing[id(stage.tasks)] for stage in program.stages),
        seconds=seconds,
        cuda_graphs=job.cuda_graphs,
        reads_back="gradients" in job.stack.plan.awaits,
        awaits_inputs="inputs" in job.stack.plan.awaits,
    )


def tune(
    stack: Stack,
    known: Sequence[KnownStep],
    *,
    rounds: int = 8,
    spreads: Mapping[str, float] | None = None,
    max_steps: int = MAX_STEPS,
) -> Stack:
    """The most probable constants: Gauss-Newton on log time with Gaussian priors on log constants.

    Residuals far out count less (Huber), so that one mislabelled run does not move the rest.
    """
    steps = _thin(known, max_steps)
    if not steps:
        return stack
    allowed = spreads or TUNABLE
    start = read_constants(stack)
    names = tuple(name for name in allowed if start[name] > 0)
    prior = np.log([start[name] for name in names])
    width = np.array([allowed[name] for name in names])
    truth = np.log([step.seconds for step in steps])

    def guess(logs: Array) -> Array:
        moved = with_constants(stack, dict(zip(names, np.exp(logs).tolist(), strict=True)))
        return np.log([step.predict(moved) for step in steps])

    def loss(logs: Array, error: Array) -> float:
        scaled = np.abs(error) / NOISE
        huber = np.where(scaled < 2, 0.5 * scaled**2, 2 * scaled - 2)
        return float(huber.sum() + 0.5 * (((logs - prior) / width) ** 2).sum())

    starts = _list_starts(names, prior)
    errors = [guess(start) - truth for start in starts]
    losses = [loss(start, off) for start, off in zip(starts, errors, strict=True)]
    first = int(np.argmin(losses))
    logs, error, best = starts[first], errors[first], losses[first]
    damping = 1.0
    for _ in range(rounds):
        slope = np.stack([(guess(logs + 0.05 * unit) - truth - error) / 0.05 for unit in np.eye(len(names))], axis=1)
        weight = np.minimum(1.0, 2 * NOISE / np.maximum(np.abs(error), 1e-9)) / NOISE**2
        hessian = slope.T @ (slope * weight[:, None]) + np.diag(1 / width**2)
        gradient = slope.T @ (error * weight) + (logs - prior) / width**2
        while damping < 1e4:
            candidate = logs - np.linalg.solve(hessian + (damping - 1) * np.diag(np.diag(hessian)), gradient)
            candidate = np.clip(candidate, prior - 3 * width, prior + 3 * width)
            candidate_error = guess(candidate) - truth
            value = loss(candidate, candidate_error)
            if value < best:
                break
            damping *= 4
        else:
            break
        gained = best - value
        logs, error, best, damping = candidate, candidate_error, value, max(1.0, damping / 4)
        if gained < 1e-3 * (1 + best):
            break
    tuned = with_constants(stack, dict(zip(names, np.exp(logs).tolist(), strict=True)))
    log_sigma = math.sqrt(float(np.median(error**2)) / 0.455)
    return replace(tuned, log_sigma=max(0.03, log_sigma), num_steps=stack.num_steps + len(known))


def _list_starts(names: Sequence[str], prior: Array) -> list[Array]:
    """Where the device hides the host, no slope leads to a slower host: look there first."""
    is_host = np.array([name in HOST_TIMES for name in names])
    return [prior, *(prior + is_host * math.log(slower) for slower in SLOWER_HOSTS)]


def _thin(known: Sequence[KnownStep], most: int) -> list[KnownStep]:
    """Evenly spread over the given order, so that every part of a table keeps a voice."""
    if len(known) <= most:
        return list(known)
    picks = np.linspace(0, len(known) - 1, most).round().astype(int)
    return [known[pick] for pick in picks]
