"""What costs a job time besides its work: preemption, checkpoints, node failures and repairs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidInput
from traincast.schedule._jobs import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Times between failures and to repair; `rack_share` of failures take the whole rack down."""

    @property
    def rack_share(self) -> float: ...

    def up_s(self, node: int, count: int) -> float:
        """How long this node works before its failure number `count`."""
        ...

    def repair_s(self, node: int, count: int) -> float: ...

    def takes_rack(self, node: int, count: int) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WeibullFailures:
    """Weibull times to failure per node (shape 1 = exponential); drawn per node and count, so order cannot matter."""

    mean_up_s: float
    mean_repair_s: float
    shape: float = 1.0
    rack_share: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mean_up_s <= 0 or self.mean_repair_s < 0 or self.shape <= 0 or not 0 <= self.rack_share <= 1:
            raise InvalidInput("failures need mean_up_s > 0, mean_repair_s >= 0, shape > 0 and rack_share within 0..1")

    def _draw(self, node: int, count: int, stream: int) -> float:
        return float(_uniform(self.seed, stream, np.array([node]), np.array([count]))[0])

    def up_s(self, node: int, count: int) -> float:
        return self._up_s(self._draw(node, count, 0))

    def repair_s(self, node: int, count: int) -> float:
        return self._repair_s(self._draw(node, count, 1))

    def _up_s(self, drawn: float) -> float:
        scale = self.mean_up_s / math.gamma(1 + 1 / self.shape)
        return float(scale * (-math.log1p(-drawn)) ** (1 / self.shape))

    def _repair_s(self, drawn: float) -> float:
        return -math.log1p(-drawn) * self.mean_repair_s

    def draw_table(self, num_nodes: int, depth: int) -> tuple[Floats, Floats, Ints]:
        """`up_s`, `repair_s` and `takes_rack` of every node and count below `depth`, a row per node."""
        nodes, counts = np.repeat(np.arange(num_nodes), depth), np.tile(np.arange(depth), num_nodes)
        up = [self._up_s(drawn) for drawn in _uniform(self.seed, 0, nodes, counts).tolist()]
        repair = [self._repair_s(drawn) for drawn in _uniform(self.seed, 1, nodes, counts).tolist()]
        takes = (_uniform(self.seed, 2, nodes, counts) < self.rack_share).astype(np.int64)
        return np.array(up), np.array(repair), takes

    def takes_rack(self, node: int, count: int) -> bool:
        return self._draw(node, count, 2) < self.rack_share


def _uniform(seed: int, stream: int, nodes: Ints, counts: Ints) -> Floats:
    """Numbers within 0..1 that depend on nothing but their four coordinates: SplitMix64 (Steele et al., 2014) of their sum."""
    start = np.uint64((seed * 0x9E3779B97F4A7C15 + (stream + 1) * 0xD1B54A32D192ED03) % 2**64)
    with np.errstate(over="ignore"):
        mixed = start + nodes.astype(np.uint64) * np.uint64(0x8CB92BA72F3D8DD7)
        mixed = _mix(mixed) + counts.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        found: Floats = (_mix(mixed) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = word ^ (word >> np.uint64(31))
    return mixed
