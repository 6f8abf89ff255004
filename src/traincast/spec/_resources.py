"""The twelve resource numbers of a rank: how long it is idle, how long it bursts and how high, for four resources."""

import math
from collections.abc import Mapping
from dataclasses import field

from traincast.errors import InvalidInput
from traincast.noun import noun

RESOURCES = ("gpu", "memory", "received", "sent")
"""GPU utilisation, GPU memory utilisation (share of its bandwidth), network RX and network TX (bytes per second)."""


@noun
class Activity:
    """One resource over one cycle, which is one training step where steps are known. docs/theory/resources.md defines it.

    `peak` and `mean` are in the unit of the resource: a share of 1 for GPU and memory, bytes per second for the network.
    """

    idle_s: float
    """Seconds of a cycle below the threshold."""
    burst_s: float
    """Seconds of a cycle above it; idle_s + burst_s is the cycle."""
    peak: float
    """The level that a twentieth of the burst time reaches or exceeds."""
    mean: float
    """Over the whole cycle, idle included."""
    num_bursts: float = 1.0
    """Bursts in a cycle; burst_s / num_bursts is the mean length of one."""

    def __post_init__(self) -> None:
        for name in ("idle_s", "burst_s", "peak", "mean", "num_bursts"):
            amount = getattr(self, name)
            if not (amount >= 0 and math.isfinite(amount)):
                raise InvalidInput(f"an activity has {name} = {amount}; it must be a finite number of at least 0")

    @property
    def cycle_s(self) -> float:
        return self.idle_s + self.burst_s


@noun
class ResourceProfile:
    """How busy one rank keeps its device, its memory and its network, forecast or measured by the same definitions."""

    rank: int
    """A rank that stands for all with the same work: the pipeline stage's first."""
    step_s: float
    window_s: float
    """Levels are means over windows of this length, as a sampler of this period would see them."""
    gpu: Activity
    memory: Activity
    received: Activity
    sent: Activity
    memory_bytes: float | None
    """Read and written in one step; None where it cannot be counted."""
    received_bytes: float
    """That reach this rank from other nodes in one step."""
    sent_bytes: float
    energy_joules: float | None
    """Of one step of one device; None where its power is not known."""
    basis: str = "derived"
    """derived: from the timeline, or from the samples of a run; corrected: by what runs like it were measured to do; learned: by
    what measured runs taught, number by number as `grounds` says."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Where corrected: in which of nine out of ten measured runs each of the twelve numbers lies."""
    grounds: Mapping[str, str] = field(default_factory=dict)
    """What each of the twelve rests on where it is not the timeline: GPU runs, the CPU test-bed, own runs."""

    def twelve(self) -> dict[str, float]:
        """The numbers by name, in the order of RESOURCES."""
        return {
            f"{resource}_{name}": getattr(getattr(self, resource), name)
            for resource in RESOURCES
            for name in ("idle_s", "burst_s", "peak")
        }
