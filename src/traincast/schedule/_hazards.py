"""What costs a job time besides its work: preemption, checkpoints, node failures and repairs."""

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.schedule._loop import BIG


@noun
class Overheads:
    """Seconds lost at an interruption; `preempt_s` may depend on the number of GPUs.

    With `checkpoint_every_s`, a failed job falls back to its last checkpoint and every checkpoint costs
    `checkpoint_s`; without it a failed job starts again from nothing. A preempted job saves its state first.
    """

    preempt_s: float | Callable[[float], float] = 0.0
    restart_s: float = 0.0
    resize_s: float = 0.0
    checkpoint_every_s: float | None = None
    checkpoint_s: float = 0.0

    def __post_init__(self) -> None:
        if self.checkpoint_every_s is not None and self.checkpoint_every_s <= 0:
            raise InvalidInput(f"checkpoint_every_s is {self.checkpoint_every_s}; it must be above 0, or left out")

    def preemption_s(self, num_gpus: float) -> float:
        return self.preempt_s(num_gpus) if callable(self.preempt_s) else self.preempt_s

    @property
    def useful_share(self) -> float:
        """The share of running time that is not spent writing checkpoints."""
        if self.checkpoint_every_s is None:
            return 1.0
        return self.checkpoint_every_s / (self.checkpoint_every_s + self.checkpoint_s)


def helios_checkpoint_s(num_gpus: float) -> float:
    """Suspend and resume as measured by Hu et al. (2021)."""
    if num_gpus == 1:
        return 7.0
    return 30.0 if num_gpus <= 8 else 60.0


TYPICAL = Overheads(preempt_s=helios_checkpoint_s, restart_s=60.0, resize_s=30.0)
"""What interruptions cost where nobody says otherwise: suspending and resuming as measured by Hu et al. (2021), a minute to
start again after a failure, half a minute to change the number of GPUs."""


class FailureModel(Protocol):
    """Times between failures and to repair."""

    def up_s(self, node: int, count: int) -> float:
        """How long this node works before its failure number `count`."""
        ...

    def repair_s(self, node: int, count: int) -> float: ...


@noun
class WeibullFailures:
    """Weibull times to failure per node (shape 1 = exponential); drawn per node and count, so order cannot matter."""

    mean_up_s: float
    mean_repair_s: float
    shape: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mean_up_s <= 0 or self.mean_repair_s < 0 or self.shape <= 0:
            raise InvalidInput("failures need mean_up_s > 0, mean_repair_s >= 0 and shape > 0")

    def _draw(self, node: int, count: int, stream: int) -> float:
        """A number within 0..1 that depends on nothing but its coordinates: SplitMix64 (Steele et al., 2014) of their sum."""
        word = self.seed * 0x9E3779B97F4A7C15 + (stream + 1) * 0xD1B54A32D192ED03 + node * 0x8CB92BA72F3D8DD7
        return (_mix(_mix(word) + count * 0x9E3779B97F4A7C15) >> 11) * 2.0**-53

    def up_s(self, node: int, count: int) -> float:
        scale = self.mean_up_s / math.gamma(1 + 1 / self.shape)
        return float(scale * (-math.log1p(-self._draw(node, count, 0))) ** (1 / self.shape))

    def repair_s(self, node: int, count: int) -> float:
        return -math.log1p(-self._draw(node, count, 1)) * self.mean_repair_s


def _mix(word: int) -> int:
    word %= 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


MOST_FAILURES = 100
"""A job longer than nodes live, without checkpoints, would run for ever; after so many failures it is given up."""
GIVEN_UP = f"failed {MOST_FAILURES} times before its end; checkpoints more often would save it"


class Danger:
    """The next failure or repair of every node."""

    def __init__(self, failures: FailureModel, num_nodes: int) -> None:
        self._failures, self._count = failures, [0] * num_nodes
        self._events = [(failures.up_s(node, 0), node) for node in range(num_nodes)]
        heapify(self._events)

    @property
    def next_s(self) -> float:
        return self._events[0][0] if self._events else BIG

    def meet(self, now: float) -> tuple[int, bool]:
        """The node of the next event, and whether it breaks or is mended."""
        _, token = heappop(self._events)
        failures, num_nodes = self._failures, len(self._count)
        node = token % num_nodes
        if token < num_nodes:
            heappush(self._events, (now + failures.repair_s(node, self._count[node]), num_nodes + node))
        else:
            self._count[node] += 1
            heappush(self._events, (now + failures.up_s(node, self._count[node]), node))
        return node, token < num_nodes
