"""Preemption on several nodes against an oracle that steps through every second and tries everything on plain lists."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule.builders import fleet, job_tables, table
from traincast.schedule._jobs import JobTable
from traincast.schedule._placement import PLACERS
from traincast.schedule._policies import POLICIES, LeastAttained, Policy
from traincast.schedule._simulator import simulate_cluster

LIMITS = (24.0, 72.0)
"""Whole seconds also when divided by the GPUs of any job here."""
SIZES = (1, 2, 3, 4, 6, 8)
POLICY_OF: dict[str, Policy] = {
    "srtf": POLICIES["srtf"],
    "srsf": POLICIES["srsf"],
    "las": LeastAttained(limits=LIMITS),
    "las-2d": LeastAttained("las-2d", by_gpu=True, limits=LIMITS),
}
Place = dict[int, int]


class Stepper:
    """The rules in words. In order of the line, a waiting job is served that would fit by count if all behind it made way.
    It takes the tightest node, or whole nodes and the tightest for the rest. Where that is not free, those that its count
    asks to go are let go from the last on until it fits; failing that, the last in line, up to eight times its size, for
    a node, or those on the emptiest nodes that hold nobody before it, for several. Who was not needed stays. Who was
    pushed out this second pushes nobody. A size without room is not looked at again this second."""

    def __init__(self, jobs: JobTable, num_nodes: int, width: int, name: str) -> None:
        self.need = [int(gpus) for gpus in jobs.num_gpus]
        self.left = [int(seconds) for seconds in jobs.duration_s]
        self.submit = [int(at) for at in jobs.submit_s]
        self.served = [0] * len(jobs)
        self.ends = [-1.0] * len(jobs)
        self.name, self.width = name, width
        self.free = [width] * num_nodes
        self.where: dict[int, Place] = {}
        self.waiting: set[int] = set()
        self.pushed: set[int] = set()

    def level(self, job: int, served: int) -> int:
        by = self.need[job] if self.name == "las-2d" else 1
        return sum(served * by >= limit for limit in LIMITS)

    def rank(self, job: int) -> tuple[float, ...]:
        if self.name.startswith("las"):
            return (self.level(job, self.served[job]), job not in self.where, self.submit[job], job)
        by = self.need[job] if self.name == "srsf" else 1
        return (self.left[job] * by, self.submit[job], job)

    def find(self, need: int, free: Sequence[int]) -> Place | None:
        full, rest = divmod(need, self.width) if need > self.width else (0, need)
        empty = [node for node, count in enumerate(free) if count == self.width]
        if len(empty) < full:
            return None
        place = dict.fromkeys(empty[:full], self.width)
        if rest:
            fitting = [node for node, count in enumerate(free) if count >= rest and node not in place]
            if not fitting:
                return None
            place[min(fitting, key=lambda node: (free[node], node))] = rest
        return place

    def without(self, jobs: Sequence[int]) -> list[int]:
        return [count + sum(self.where[job].get(node, 0) for job in jobs) for node, count in enumerate(self.free)]

    def victims(self, job: int, movable: Sequence[int], most: float) -> list[int] | None:
        gone: list[int] = []
        for other in reversed(movable):
            if sum(self.need[one] for one in gone) >= most:
                return None
            gone.append(other)
            if self.find(self.need[job], self.without(gone)) is not None:
                break
        else:
            return None
        for other in gone[:-1].copy():
            fewer = [one for one in gone if one != other]
            if self.find(self.need[job], self.without(fewer)) is not None:
                gone = fewer
        return gone

    def in_the_way(self, job: int, behind: Sequence[int]) -> list[int]:
        empty = [node for node, count in enumerate(self.without(behind)) if count == self.width]
        wanted = math.ceil(self.need[job] / self.width)
        if len(empty) < wanted:
            return []
        cleared = sorted(empty, key=lambda node: (-self.free[node], node))[:wanted]
        return [other for other in behind if set(cleared) & set(self.where[other])]

    def release(self, job: int) -> None:
        for node, count in self.where.pop(job).items():
            self.free[node] += count

    def serve(self, aside: set[int]) -> bool:
        """Start one more job, or set its size aside; False if nobody is left to be served."""
        line = sorted([*self.waiting, *self.where], key=self.rank)
        quota = len(self.free) * self.width
        chosen, losers = -1, []
        for job in line:
            if job in self.where:
                if self.need[job] <= quota:
                    quota -= self.need[job]
                else:
                    losers.append(job)
            elif chosen < 0 and self.need[job] not in aside and self.need[job] <= quota:
                quota -= self.need[job]
                chosen = job
        if chosen < 0:
            return False
        gone: list[int] | None = []
        if self.find(self.need[chosen], self.free) is None:
            gone = None
            if chosen not in self.pushed:
                behind = [job for job in line[line.index(chosen) :] if job in self.where]
                if self.need[chosen] <= self.width:
                    gone = self.victims(chosen, losers, math.inf)
                    if gone is None:
                        gone = self.victims(chosen, behind, 8 * self.need[chosen])
                else:
                    gone = self.victims(chosen, self.in_the_way(chosen, behind), math.inf)
        if gone is None:
            aside.add(self.need[chosen])
            return True
        for job in gone:
            self.release(job)
            self.waiting.add(job)
            self.pushed.add(job)
        place = self.find(self.need[chosen], self.free)
        assert place is not None
        self.where[chosen] = place
        self.waiting.remove(chosen)
        for node, count in place.items():
            self.free[node] -= count
        return True

    def run(self) -> list[float]:
        now = 0
        while min(self.ends) < 0:
            done = [job for job in self.where if self.left[job] == 0]
            for job in done:
                self.release(job)
                self.ends[job] = float(now)
            come = [job for job, at in enumerate(self.submit) if at == now]
            self.waiting.update(come)
            sunk = self.name.startswith("las") and any(
                self.level(job, self.served[job]) > self.level(job, self.served[job] - 1) for job in self.where
            )
            if done or come or sunk:
                self.pushed.clear()
                aside: set[int] = set()
                while self.serve(aside):
                    pass
            for job in self.where:
                self.left[job] -= 1
                self.served[job] += 1
            now += 1
        return self.ends


def agree(jobs: JobTable, name: str, nodes: tuple[int, int]) -> None:
    schedule = simulate_cluster(jobs, POLICY_OF[name], fleet=fleet(*nodes), placer=PLACERS["consolidated"])
    assert np.asarray(schedule.end_s).tolist() == Stepper(jobs, *nodes, name).run()


@pytest.mark.parametrize("name", list(POLICY_OF))
@given(jobs=job_tables(max_jobs=20, sizes=SIZES), nodes=st.sampled_from([(2, 4), (3, 4), (2, 8), (4, 2)]))
@settings(max_examples=25, deadline=None)
def test_preemption_on_nodes_agrees_with_stepping_through_every_second(
    name: str, jobs: JobTable, nodes: tuple[int, int]
) -> None:
    agree(jobs, name, nodes)


def test_the_oracle_knows_a_schedule_worked_out_by_hand() -> None:
    """Two nodes of four. The job of four takes the emptier node from the longest job; the job of two stays."""
    jobs = table((0, 2, 50), (0, 3, 90), (10, 4, 20))
    assert Stepper(jobs, 2, 4, "srtf").run() == [50.0, 110.0, 30.0]
    agree(jobs, "srtf", (2, 4))
