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
    nodes and the fullest for the rest; types are tried in the order of the fleet. Under the rule "topology" a job that no
    node holds goes to the rack with the fewest free GPUs that holds it, else to any nodes, the emptiest first. A promise is
    a second and nodes that are free from then on as far as is believed. Nobody may be served in a way that breaks a promise."""

    def __init__(
        self,
        jobs: JobTable,
        believed: list[int],
        pools: tuple[tuple[str, int, int], ...],
        *,
        rule: str = "consolidated",
        per_rack: int = 99,
    ) -> None:
        self.jobs, self.believed, self.pools, self.rule = jobs, believed, pools, rule
        self.size = np.array([width for _, count, width in pools for _ in range(count)])
        self.pool_of = [pool for pool, (_, count, _) in enumerate(pools) for _ in range(count)]
        self.rack_of = [(pool, at // per_rack) for pool, (_, count, _) in enumerate(pools) for at in range(count)]
        self.where: dict[int, dict[int, int]] = {}
        self.until: dict[int, int] = {}
        self.start: dict[int, int] = {}
        self.promised: dict[int, int] = {}
        self.booked: dict[int, tuple[int, dict[int, int]]] = {}
        self.reserved: tuple[int, int, np.ndarray] | None = None

    def hold(self, free: np.ndarray, job: int, place: dict[int, int], sign: int) -> np.ndarray:
        for node, count in place.items():
            free[node] += sign * count
        return free

    def place(self, job: int, free: np.ndarray) -> dict[int, int] | None:
        need = int(self.jobs.num_gpus[job])
        wanted = self.jobs.gpu_types[job]
        for pool, (device, _, _) in enumerate(self.pools):
            if wanted is not None and len(self.pools) > 1 and device != wanted:
                continue
            nodes = [node for node, its in enumerate(self.pool_of) if its == pool]
            room = {node: int(free[node]) for node in nodes}
            width = int(self.size[nodes[0]])
            if need > width * len(nodes):
                continue
            found = self.gather(need, width, room) if self.rule == "consolidated" else self.draw_near(need, width, room)
            if found is not None:
                return found
        return None

    def gather(self, need: int, width: int, room: dict[int, int]) -> dict[int, int] | None:
        full, rest = divmod(need, width) if need > width else (0, need)
        empty = [node for node in room if room[node] >= width]
        if len(empty) < full:
            return None
        found = dict.fromkeys(empty[:full], width)
        fitting = [node for node in room if room[node] >= rest and node not in found]
        if rest and not fitting:
            return None
        if rest:
            found[min(fitting, key=lambda node: (room[node], node))] = rest
        return found

    def draw_near(self, need: int, width: int, room: dict[int, int]) -> dict[int, int] | None:
        fitting = [node for node in room if room[node] >= need]
        if need <= width and fitting:
            return {min(fitting, key=lambda node: (room[node], node)): need}
        racks: dict[tuple[int, int], int] = {}
        for node in room:
            racks[self.rack_of[node]] = racks.get(self.rack_of[node], 0) + room[node]
        holding = [rack for rack in racks if racks[rack] >= need]
        nodes = list(room)
        if holding:
            best = min(holding, key=lambda rack: (racks[rack], rack))
            nodes = [node for node in room if self.rack_of[node] == best]
        found = {}
        for node in sorted(nodes, key=lambda node: (-room[node], node)):
            if need and room[node]:
                found[node] = min(room[node], need)
                need -= found[node]
        return None if need else found

    def free_at(self, second: int) -> np.ndarray:
        """What running jobs leave free, as far as is believed."""
        free = self.size.astype(float)
        for job, place in self.where.items():
            if self.until[job] > second:
                free = self.hold(free, job, place, -1)
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
                    spare = self.hold(self.free_at(second), job, then, -1)
                    self.reserved = (job, second, spare)
                    self.promised.setdefault(job, second)
                    self.promised[job] = min(self.promised[job], second)
                continue
            if head >= 0:
                assert self.reserved is not None
                _, second, spare = self.reserved
                if now + self.believed[job] > second:
                    place = self.place(job, np.minimum(free, spare))
                    self.reserved = (*self.reserved[:2], self.hold(spare.copy(), job, place or {}, -1))
            if place is not None:
                self.begin(job, place, now)
                started.append(job)
        return started

    def free_from(self, without: int | None, begin: int, end: int) -> np.ndarray:
        """The least that is free on every node between two seconds, beside all bookings but one."""
        least = self.size.astype(float)
        for second in range(begin, max(end, begin + 1)):
            free = self.free_at(second)
            for job, (at, place) in self.booked.items():
                if job != without and at <= second < at + self.believed[job]:
                    free = self.hold(free, job, place, -1)
            least = np.minimum(least, free)
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


def agree(
    case: tuple[JobTable, list[int], str], policy: str, *, exact: bool, rule: str = "consolidated", per_rack: int = 99
) -> None:
    jobs, believed, name = case
    if exact:
        believed = [int(seconds) for seconds in jobs.duration_s]
    pools = tuple(NodePool(device=d, num_nodes=n, gpus_per_node=g) for d, n, g in FLEETS[name])
    place = Fleet(pools=pools, nodes_per_rack=None if per_rack == 99 else per_rack)
    beliefs = Believe(tuple(map(float, believed)))
    schedule = simulate_cluster(
        jobs, POLICIES[policy], fleet=place, estimator=beliefs, placer=PLACERS[rule], record=True
    )
    oracle = Oracle(jobs, believed, FLEETS[name], rule=rule, per_rack=per_rack)
    assert np.asarray(schedule.end_s).tolist() == oracle.run(policy)
    assert gpus_in_use_are_possible(schedule)


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@given(case=cases())
@settings(max_examples=25, deadline=None)
def test_backfill_on_nodes_agrees_with_looking_at_every_second(policy: str, case: tuple) -> None:
    agree(case, policy, exact=True)


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@given(case=cases())
@settings(max_examples=25, deadline=None)
def test_promises_are_kept_when_jobs_end_before_their_limit(policy: str, case: tuple) -> None:
    agree(case, policy, exact=False)


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@given(case=cases(), per_rack=st.integers(1, 3), exact=st.booleans())
@settings(max_examples=20, deadline=None)
def test_reservations_know_racks(policy: str, case: tuple, per_rack: int, exact: bool) -> None:
    agree(case, policy, exact=exact, rule="topology", per_rack=per_rack)


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


@dataclass(frozen=True)
class Halved:
    """Pool 1 runs everything at half the speed."""

    name: str = "halved"

    def rate(self, job: int, pool: int, num_gpus: float, locality: int) -> float:
        return 0.5 if pool == 1 else 1.0


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_a_job_on_a_slower_pool_is_believed_to_run_longer_and_delays_no_promise(policy: str) -> None:
    """A job that would end in time on the fast pool ends late on the slow one, so it must not take what is reserved there."""
    two = Fleet(
        pools=(NodePool(device="a", num_nodes=1, gpus_per_node=4), NodePool(device="b", num_nodes=1, gpus_per_node=4))
    )
    rows = [(0.0, 4.0, 100.0), (0.0, 3.0, 50.0), (1.0, 4.0, 20.0), (2.0, 1.0, 80.0)]
    jobs = table(*rows, gpu_types=["a", "b", "b", None])
    schedule = simulate_cluster(jobs, POLICIES[policy], fleet=two, perf=Halved())
    # The second job holds the slow pool until 100 s; 80 s of work take 160 s there.
    assert schedule.start_s.tolist()[:3] == [0.0, 0.0, 100.0]
