"""Backfill on several nodes and GPU types against an oracle that looks at every second of every node."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule.builders import fleet, gpus_in_use_are_possible, table
from traincast.schedule._estimators import Beliefs, Fixed
from traincast.schedule._jobs import JobTable
from traincast.schedule._placement import PLACERS
from traincast.schedule._policies import POLICIES
from traincast.schedule._simulator import simulate_cluster
from traincast.spec._fleet import Fleet, NodePool

FLEETS = {
    "2x4": (("a", 2, 4),),
    "3x4": (("a", 3, 4),),
    "5x2": (("a", 5, 2),),
    "2x4+2x2": (("a", 2, 4), ("b", 2, 2)),
    "1x8+3x4": (("a", 1, 8), ("b", 3, 4)),
}
HORIZON_S = 4000


@dataclass(frozen=True)
class Believe:
    """Every job is believed to take so long."""

    seconds: tuple[float, ...]
    name: str = "believed"

    def start(self, jobs: JobTable) -> Beliefs:
        return Fixed(np.array(self.seconds))


class Oracle:
    """Rules in words. A job of at most a node goes to the fullest node of its type that holds it, a larger one to empty
    nodes and the fullest for the rest; types are tried in the order of the fleet. A promise is a second and nodes that
    are free from then on as far as is believed. Nobody may be served in a way that breaks a promise."""

    def __init__(self, jobs: JobTable, believed: list[int], pools: tuple[tuple[str, int, int], ...]) -> None:
        self.jobs, self.believed, self.pools = jobs, believed, pools
        self.size = [width for _, count, width in pools for _ in range(count)]
        self.pool_of = [pool for pool, (_, count, _) in enumerate(pools) for _ in range(count)]
        self.where: dict[int, dict[int, int]] = {}
        self.until: dict[int, int] = {}
        self.start: dict[int, int] = {}
        self.promised: dict[int, int] = {}
        self.booked: dict[int, tuple[int, dict[int, int]]] = {}
        self.reserved: tuple[int, int, list[int]] | None = None

    def place(self, job: int, free: list[int]) -> dict[int, int] | None:
        need = int(self.jobs.num_gpus[job])
        wanted = self.jobs.gpu_types[job]
        for pool, (device, count, width) in enumerate(self.pools):
            if need > count * width or (wanted is not None and len(self.pools) > 1 and device != wanted):
                continue
            nodes = [node for node, its in enumerate(self.pool_of) if its == pool]
            full, rest = divmod(need, width) if need > width else (0, need)
            empty = [node for node in nodes if free[node] == width]
            if len(empty) < full:
                continue
            found = dict.fromkeys(empty[:full], width)
            fitting = [node for node in nodes if free[node] >= rest and node not in found]
            if rest and not fitting:
                continue
            if rest:
                found[min(fitting, key=lambda node: (free[node], node))] = rest
            return found
        return None

    def free_at(self, second: int) -> list[int]:
        """What running jobs leave free, as far as is believed."""
        free = list(self.size)
        for job, place in self.where.items():
            if self.until[job] > second:
                for node, count in place.items():
                    free[node] -= count
        return free

    def run(self, policy: str) -> list[float]:
        ends = [-1.0] * len(self.jobs)
        waiting: list[int] = []
        now = 0
        while min(ends) < 0:
            early = False
            gone = [job for job in self.where if self.start[job] + int(self.jobs.duration_s[job]) == now]
            for job in gone:
                early |= self.until[job] > now
                del self.where[job]
                ends[job] = float(now)
            come = [job for job in range(len(self.jobs)) if self.jobs.submit_s[job] == now]
            waiting += come
            if gone or come or any(begin == now for begin, _ in self.booked.values()):
                serve = self.serve_easy if policy == "easy" else self.serve_conservative
                for job in serve(waiting, now, early):
                    waiting.remove(job)
            now += 1
            assert now < HORIZON_S
        return ends

    def begin(self, job: int, place: dict[int, int], now: int) -> None:
        self.where[job], self.start[job], self.until[job] = place, now, now + self.believed[job]
        assert now <= self.promised.get(job, now), "a promise was broken"

    def serve_easy(self, waiting: list[int], now: int, early: bool) -> list[int]:
        started: list[int] = []
        if early:
            self.reserved = None
        head = -1
        for job in waiting:
            free = self.free_at(now)
            place = self.place(job, free)
            if head < 0 and place is None:
                head = job
                if self.reserved is None or self.reserved[0] != job or now >= self.reserved[1]:
                    second = now
                    while (then := self.place(job, self.free_at(second))) is None:
                        second += 1
                    spare = [count - then.get(node, 0) for node, count in enumerate(self.free_at(second))]
                    self.reserved = (job, second, spare)
                    self.promised.setdefault(job, second)
                    self.promised[job] = min(self.promised[job], second)
                continue
            if head >= 0:
                assert self.reserved is not None
                _, second, spare = self.reserved
                if now + self.believed[job] > second:
                    place = self.place(job, [min(pair) for pair in zip(free, spare, strict=True)])
                    for node, count in (place or {}).items():
                        spare[node] -= count
            if place is not None:
                self.begin(job, place, now)
                started.append(job)
        return started

    def free_from(self, without: int | None, begin: int, end: int) -> list[int]:
        """The fewest GPUs that are free on every node between two seconds, beside all bookings but one."""
        least = list(self.size)
        for second in range(begin, max(end, begin + 1)):
            free = self.free_at(second)
            for job, (at, place) in self.booked.items():
                if job != without and at <= second < at + self.believed[job]:
                    for node, count in place.items():
                        free[node] -= count
            least = [min(pair) for pair in zip(least, free, strict=True)]
        return least

    def serve_conservative(self, waiting: list[int], now: int, early: bool) -> list[int]:
        for job in waiting:
            if job in self.booked and not early:
                continue
            known = self.booked.pop(job, None)
            second = now
            while known is None or second < known[0]:
                place = self.place(job, self.free_from(job, second, second + self.believed[job]))
                if place is not None:
                    known = (second, place)
                    break
                second += 1
            self.booked[job] = known
            self.promised[job] = min(self.promised.get(job, known[0]), known[0])
        due = [job for job in waiting if self.booked[job][0] <= now]
        for job in due:
            self.begin(job, self.booked.pop(job)[1], now)
        return due


@st.composite
def cases(draw: st.DrawFn) -> tuple[JobTable, list[int], str]:
    name = draw(st.sampled_from(list(FLEETS)))
    pools = FLEETS[name]
    rows, types, believed = [], [], []
    for _ in range(draw(st.integers(1, 14))):
        device, count, width = draw(st.sampled_from(pools))
        free_choice = draw(st.booleans())
        most = max(count * width for _, count, width in pools) if free_choice else count * width
        gpus = draw(st.sampled_from([size for size in (1, 2, 3, 4, 6, 8, 12) if size <= most]))
        lasts = draw(st.integers(1, 30))
        rows.append((float(draw(st.integers(0, 25))), float(gpus), float(lasts)))
        types.append(None if free_choice else device)
        believed.append(lasts + draw(st.sampled_from([0, 0, 3, 20])))
    jobs = table(*rows, gpu_types=types, users=[str(lasts) for lasts in believed])
    return jobs, [int(user or 0) for user in jobs.users], name


def agree(case: tuple[JobTable, list[int], str], policy: str, engine: str, *, exact: bool) -> None:
    jobs, believed, name = case
    if exact:
        believed = [int(seconds) for seconds in jobs.duration_s]
    place = Fleet(pools=tuple(NodePool(device=d, num_nodes=n, gpus_per_node=g) for d, n, g in FLEETS[name]))
    schedule = simulate_cluster(
        jobs, POLICIES[policy], fleet=place, estimator=Believe(tuple(map(float, believed))), record=True, engine=engine
    )
    assert np.asarray(schedule.end_s).tolist() == Oracle(jobs, believed, FLEETS[name]).run(policy)
    assert gpus_in_use_are_possible(schedule)


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_backfill_on_nodes_agrees_with_looking_at_every_second(policy: str, case: tuple) -> None:
    agree(case, policy, "auto", exact=True)


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_promises_are_kept_when_jobs_end_before_their_limit(policy: str, case: tuple) -> None:
    agree(case, policy, "auto", exact=False)


@pytest.mark.parametrize("placement", ["consolidated", "topology", "spread", "count"])
@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_a_job_of_two_nodes_does_not_starve_behind_small_ones(policy: str, placement: str) -> None:
    """Two nodes were never free together, and nothing was reserved: the wide job waited for the stream to end."""
    rows = [(float(at), 5.0, 190.0 + 13 * (at % 7)) for at in range(0, 20000, 20)]
    wide = len([row for row in rows if row[0] <= 1010])
    jobs = table(*rows[:wide], (1010.0, 16.0, 300.0), *rows[wide:])
    schedule = simulate_cluster(jobs, POLICIES[policy], fleet=fleet(10, 8), placer=PLACERS[placement])
    fifo = simulate_cluster(jobs, POLICIES["fifo"], fleet=fleet(10, 8), placer=PLACERS[placement])
    assert schedule.start_s[wide] <= fifo.start_s[wide] + 1e-9
    assert schedule.start_s[wide] < 1600
