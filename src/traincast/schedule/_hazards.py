"""What costs a job time besides its work: preemption, checkpoints, node failures and repairs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from traincast.errors import InvalidInput


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
        return float(np.random.default_rng((self.seed, stream, node, count)).random())

    def up_s(self, node: int, count: int) -> float:
        scale = self.mean_up_s / math.gamma(1 + 1 / self.shape)
        return float(scale * (-math.log1p(-self._draw(node, count, 0))) ** (1 / self.shape))

    def repair_s(self, node: int, count: int) -> float:
        return -math.log1p(-self._draw(node, count, 1)) * self.mean_repair_s

    def takes_rack(self, node: int, count: int) -> bool:
        return self._draw(node, count, 2) < self.rack_share
