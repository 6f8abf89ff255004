"""A model of failures to the tables from which the event loop reads when nodes fail."""

import numpy as np

from traincast.schedule._hazards import FailureModel, Overheads, WeibullFailures
from traincast.schedule._jobs import Floats, Ints, JobTable
from traincast.schedule._kernels.hazards import Hazards
from traincast.schedule._layout import Shell
from traincast.schedule._placement import NodeMap


class Danger:
    """Failures as the loop sees them; more times are drawn when it has used up those of a node."""

    def __init__(
        self, failures: FailureModel | None, jobs: JobTable, nodes: NodeMap, *, overheads: Overheads, shell: Shell
    ) -> None:
        self._failures = failures
        self._shell, self._num_jobs = shell, len(jobs)
        wanted = failures is not None
        num_nodes = len(nodes.free) if wanted else 1
        count = len(jobs) if wanted else 1

        def floats(size: int) -> Floats:
            return shell(np.zeros(size))  # type: ignore[no-any-return]

        def ints(size: int) -> Ints:
            return shell(np.zeros(size, dtype=np.int64))  # type: ignore[no-any-return]

        self.hazards = Hazards(
            wanted=int(wanted),
            up=floats(1),
            repair=floats(1),
            depth=0,
            counts=ints(num_nodes),
            keys=floats(num_nodes + 1),
            tokens=ints(num_nodes + 1),
            size=ints(1),
            every_s=float(overheads.checkpoint_every_s or 0.0),
            restart_s=float(overheads.restart_s),
            since_checkpoint=floats(count),
            failed=ints(count),
            lost=floats(count),
            struck=ints(count + 1),
            racks=int(failures is not None and failures.rack_share > 0),
            takes=ints(1),
            rack_of=shell(np.array(nodes.rack_of if wanted else [0], dtype=np.int64)),
            down=ints(num_nodes),
        )
        if failures is not None:
            self._begin(failures, jobs, num_nodes)

    def _begin(self, failures: FailureModel, jobs: JobTable, num_nodes: int) -> None:
        """The first failure of every node."""
        horizon_s = float(jobs.submit_s[-1]) if len(jobs) else 0.0
        mean_up_s = failures.mean_up_s if isinstance(failures, WeibullFailures) else max(horizon_s, 1.0)
        self.draw(4 + int(1.5 * min(horizon_s / mean_up_s, 1000.0)))
        first = np.array(self.hazards.up[:: self.hazards.depth])
        order = np.argsort(first, kind="stable")
        self.hazards = self.hazards._replace(
            keys=self._shell(np.append(first[order], 0.0)),
            tokens=self._shell(np.append(order, 0)),
            size=self._shell(np.array([num_nodes])),
        )

    def draw(self, depth: int | None = None) -> None:
        if self._failures is None:
            return
        depth = depth or 2 * self.hazards.depth
        up, repair, takes = _draw_table(self._failures, len(self.hazards.counts), depth)
        self.hazards = self.hazards._replace(
            up=self._shell(up), repair=self._shell(repair), takes=self._shell(takes), depth=depth
        )

    @property
    def failed(self) -> Ints:
        """Of each job; without a model of failures the loop counts none."""
        if self._failures is None:
            return np.zeros(self._num_jobs, dtype=np.int64)
        return np.array(self.hazards.failed, dtype=np.int64)

    @property
    def lost(self) -> Floats:
        if self._failures is None:
            return np.zeros(self._num_jobs)
        return np.array(self.hazards.lost, dtype=np.float64)


def _draw_table(failures: FailureModel, num_nodes: int, depth: int) -> tuple[Floats, Floats, Ints]:
    """Times to failure and to repair, and whether the rack goes too, of every node and count below `depth`, a row per node."""
    if isinstance(failures, WeibullFailures):
        return failures.draw_table(num_nodes, depth)
    pairs = [(node, count) for node in range(num_nodes) for count in range(depth)]
    up = np.array([failures.up_s(*pair) for pair in pairs])
    repair = np.array([failures.repair_s(*pair) for pair in pairs])
    return up, repair, np.array([int(failures.takes_rack(*pair)) for pair in pairs], dtype=np.int64)
