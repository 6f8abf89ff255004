"""What a run can be made of beside a policy: allocation in rounds, packing, and departures from clean semantics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from traincast.schedule.jobs import JobTable
from traincast.schedule.placement import NodeMap


@dataclass(frozen=True, slots=True, kw_only=True)
class Compat:
    """Named departures from clean semantics that other simulators need to be matched to the second.

    `coalesce=False`: one event per pass even at equal times (CQSim). `keep_quota`: a selected job that cannot be
    placed keeps its count, so others are preempted for nothing; `end_lag_s`: every job ends this much late;
    `recheck_s`: look again this long after any change (all Helios SRTF).
    """

    coalesce: bool = True
    keep_quota: bool = False
    end_lag_s: float = 0.0
    recheck_s: float | None = None


CLEAN = Compat()


@runtime_checkable
class RoundPolicy(Protocol):
    """Decides how many GPUs of which pool every job holds, at every event and at least every `interval_s`."""

    @property
    def name(self) -> str: ...

    @property
    def interval_s(self) -> float: ...

    @property
    def on_events(self) -> bool: ...

    @property
    def uses_progress(self) -> bool:
        """Whether the answer can change while the same jobs are there; if not, ticks without change are skipped."""
        ...

    def allocate(self, cluster: "ElasticView", now_s: float) -> dict[int, tuple[int, int]]:
        """Job to (pool, GPUs); jobs left out hold nothing."""
        ...


class ElasticView(Protocol):
    """What an elastic policy may ask."""

    jobs: JobTable
    nodes: NodeMap

    def active(self) -> Sequence[int]: ...

    def holding(self, job: int) -> tuple[int, int] | None: ...

    def speed(self, job: int, pool: int, num_gpus: int) -> float: ...

    def remaining_s(self, job: int, now_s: float) -> float: ...

    def bounds(self, job: int) -> tuple[int, int]: ...


@runtime_checkable
class Packing(Protocol):
    """A policy that may put two jobs on the same GPUs when none are free."""

    def packed_rate(self, job: int, other: int) -> float:
        """Speed of each of the two relative to running alone; 0 forbids the pair."""
        ...
