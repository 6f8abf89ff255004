"""What a run can be made of beside a policy: conditions, allocation in rounds, packing, and departures from clean semantics."""

import math
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from traincast.noun import noun
from traincast.schedule._estimators import EXACT, Estimator
from traincast.schedule._hazards import FailureModel, Overheads
from traincast.schedule._network import UniformTraffic
from traincast.schedule._placement import CONSOLIDATED, Placer
from traincast.schedule._speeds import PerfModel, SameSpeed
from traincast.spec import Fleet

if TYPE_CHECKING:
    from traincast.schedule._floor import Floor


@noun
class Compat:
    """Named departures from clean semantics that other simulators need to be matched to the second.

    `coalesce=False`: one event per pass even at equal times (CQSim). `end_lag_s`: every job ends this much late (Helios SRTF).
    """

    coalesce: bool = True
    end_lag_s: float = 0.0


CLEAN = Compat()


@noun
class Conditions:
    """Everything about a run but its jobs and its policy.

    `until_s` ends the run; what is left is unfinished. `kill_at_limit` ends a job that runs longer than its user asked for.
    `record` keeps who held which nodes when. `progress` hears how many more jobs have ended, `notify` what takes long. `engine`:
    the loop is compiled where that pays ("auto"), always ("compiled", refused where it cannot be) or never ("interpreted").
    """

    fleet: Fleet
    placer: Placer = CONSOLIDATED
    perf: PerfModel = field(default_factory=SameSpeed)
    estimator: Estimator = EXACT
    overheads: Overheads = field(default_factory=Overheads)
    failures: FailureModel | None = None
    network: UniformTraffic | None = None
    compat: Compat = CLEAN
    until_s: float = math.inf
    kill_at_limit: bool = False
    record: bool = False
    progress: Callable[[int], None] | None = None
    notify: Callable[[str], None] | None = None
    engine: str = "auto"


@runtime_checkable
class RoundPolicy(Protocol):
    """Decides how many GPUs of which pool every job holds, at every event and at least every `interval_s`."""

    @property
    def name(self) -> str: ...

    @property
    def interval_s(self) -> float: ...

    @property
    def uses_progress(self) -> bool:
        """Whether the answer can change while the same jobs are there; if not, ticks without change are skipped."""
        ...

    def allocate(self, floor: "Floor", now_s: float) -> dict[int, tuple[int, int]]:
        """Job to (pool, GPUs); jobs left out hold nothing."""
        ...
