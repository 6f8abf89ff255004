"""A step of one rank to a step of all: devices wait for their inputs and for the slowest rank."""

import math
from dataclasses import replace
from statistics import NormalDist

from traincast.spec import Program, Timeline

DEVICE_VARIATION = 0.02
"""Standard deviation of the speed of equal devices beside their mean: some 8% lie between the best and the worst of some
hundreds (Sinha et al. 2022)."""


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
        exposed["data"] = exposed.get("data", 0.0) + waited_s
    return replace(timeline, duration_s=longer_s, shares=shares, exposed_by_axis=exposed)


def expect_largest(number: int) -> float:
    """The expected largest of so many standard normal values (Blom 1958)."""
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25)) if number > 1 else 0.0
