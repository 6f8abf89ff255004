"""How fast a job runs where it was put: rates relative to the run its duration describes."""

from dataclasses import dataclass, field
from typing import Protocol


class PerfModel(Protocol):
    """Work per second of a job in a pool on so many GPUs at a locality; 0 means that it cannot run there."""

    def rate(self, job: int, pool: int, num_gpus: float, locality: int) -> float: ...


@dataclass(frozen=True, slots=True)
class SameSpeed:
    """Every placement of the requested GPUs is as fast as the one that was measured."""

    def rate(self, job: int, pool: int, num_gpus: float, locality: int) -> float:
        return 1.0
