"""Shares of time in the event loop: at the beginning of every round the jobs that are owed most of their share get nodes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.errors import InvalidInput
from traincast.schedule._floor import Floor
from traincast.schedule._jobs import Floats, Ints
from traincast.schedule._lines import ServingLine
from traincast.schedule._placement import NODE, NodeMap, Placement
from traincast.schedule._shares import Shareholders, SharePolicy

ROUND_S = 360.0
"""Gavel's rounds (Narayanan et al., 2020)."""
_SOON_S = 1e-6
"""A round waits for jobs that end so shortly after the last one that only rounding keeps them apart."""
_LEAST_LEFT_S = 1.0
"""A job that outlives its estimate is believed to end any moment."""


@dataclass(frozen=True, slots=True)
class InTurns:
    """A share policy in the event loop: jobs hold nodes for whole rounds, and keep them while they have turns.

    Turns go by count to the jobs that have had least of their share. Who has a turn again stays on its nodes. Where others do
    not find nodes by the rule of placement, some are moved out of their way. If there are not nodes for all, those who are
    owed least wait for the next round, and GPUs that are left go to jobs behind them. Where jobs go in order of arrival, the
    first that finds no nodes blocks the rest, and nobody is moved.
    """

    shares: SharePolicy
    round_s: float = ROUND_S
    preemptive: bool = True
    fit: str = "rounds"

    @property
    def name(self) -> str:
        return self.shares.name

    def line(self, floor: Floor) -> "TurnsLine":
        return TurnsLine(floor, self.shares, self.round_s)


class TurnsLine(ServingLine):
    """All jobs in the system, with what each was given of its share of every GPU type."""

    def __init__(self, floor: Floor, policy: SharePolicy, round_s: float) -> None:
        self._floor, self._policy, self._round_s = floor, policy, round_s
        self._decide = policy.begin()
        self._num_types = len(floor.fleet.pools)
        self._rates = self._find_rates()
        self._weights = np.where(floor.jobs.priority > 0, floor.jobs.priority, 1.0)
        self._usd = np.array([(pool.usd_per_gpu_hour or 1.0) / 3600 for pool in floor.fleet.pools])
        self._active: dict[int, None] = {}
        self._capacity: list[float] = []
        self._stale = True
        self._next_s = -math.inf
        self._began_s = self._divided_s = 0.0
        self._check_costs()
        self._time_run = np.full_like(self._rates, round_s / 2)
        self._deficit, self._share = np.zeros_like(self._rates), np.zeros_like(self._rates)

    def _check_costs(self) -> None:
        costs = [self._floor.overheads.preemption_s(gpus) for gpus in set(self._floor.num_gpus)]
        if costs and max(costs) >= self._round_s:
            raise InvalidInput(
                f"{self._policy.name}: an interruption costs {max(costs):g} s (--preempt-cost) and a round lasts "
                f"{self._round_s:g} s; a job that is stopped after every round would never end"
            )

    def _find_rates(self) -> Floats:
        """Work per second of every job in every pool on the nearest nodes it could have; 0 where it cannot run."""
        floor = self._floor
        rates = np.zeros((len(floor.jobs), self._num_types))
        for job, gpus in enumerate(floor.num_gpus):
            for pool in floor.pools(job):
                locality = NODE if gpus <= floor.nodes.width[pool] else 1
                rates[job, pool] = floor.perf.rate(job, pool, gpus, locality) * floor.useful
        return rates

    # What the loop tells.

    def refusal(self, job: int) -> str | None:
        if self._floor.pools(job):
            return None
        return f"needs {self._floor.num_gpus[job]:g} GPUs of one type that can run it, which this fleet never has free"

    def join(self, job: int, now_s: float) -> None:
        self._active[job] = None
        self._stale = True

    def leave(self, job: int, now_s: float) -> None:
        del self._active[job]
        self._stale = True

    def stopped(self, job: int, now_s: float) -> None:
        """A turn ends at the end of its round, or when its node fails."""
        self._time_run[job, self._floor.pool[job]] += now_s - self._began_s

    def wakeup_s(self, now_s: float) -> float:
        return self._next_s if self._next_s > now_s else math.inf

    # Rounds.

    def serve(self, now_s: float) -> None:
        """In the middle of a round nobody is moved: GPUs of a job that has ended are given away in the next one."""
        if now_s < self._next_s or self._awaits_ends(now_s):
            return
        self._close_round(now_s)
        self._next_s = -math.inf
        if not self._active:
            return
        up = [float(count) for count in self._floor.nodes.up_in_pool]  # nodes that are down have nothing to give
        if self._stale or up != self._capacity:
            self._capacity = up
            self._divide(now_s)
        self._hand_out(self._give_turns(), now_s)
        if self._floor.running:  # else whatever happens next begins a round
            self._next_s = now_s + self._round_s

    def _awaits_ends(self, now_s: float) -> bool:
        jobs = self._floor.job
        soon = [at for job in self._floor.running if now_s < (at := jobs[job].expect) <= now_s + _SOON_S]
        if soon:
            self._next_s = max(soon)
        return bool(soon)

    def _close_round(self, now_s: float) -> None:
        for job in self._floor.running:
            self._time_run[job, self._floor.pool[job]] += now_s - self._began_s
        self._began_s = now_s

    def _give_turns(self) -> dict[int, int]:
        """Who has a turn in the round that begins now, by count, type after type: those who wait longest for their share."""
        found: dict[int, int] = {}
        index = np.array(sorted(self._active), dtype=np.int64)
        gpus = self._floor.num_gpus
        for kind, capacity in enumerate(self._capacity):
            able = index[self._rates[index, kind] > 0]
            share, deficit = self._share[able, kind], self._deficit[able, kind]
            if self._policy.head_only:
                able, share, deficit = (column[share > 0] for column in (able, share, deficit))
            order = np.lexsort((able, -share, -deficit, -share / self._time_run[able, kind]))
            free = capacity
            for job in able[order].tolist():
                if free <= 0:
                    break
                if job not in found and gpus[job] <= free:
                    found[job] = kind
                    free -= gpus[job]
        return found

    def _settle_accounts(self, index: Ints, now_s: float) -> None:
        """What jobs were owed and did not get is kept when shares are divided anew."""
        owed = self._share[index] * (now_s - self._divided_s)
        self._deficit[index] += owed - (self._time_run[index] - self._round_s / 2)
        self._time_run[index] = self._round_s / 2
        self._divided_s, self._stale = now_s, False

    def _divide(self, now_s: float) -> None:
        floor = self._floor
        index = np.array(sorted(self._active), dtype=np.int64)
        self._settle_accounts(index, now_s)
        capacity = np.array(floor.nodes.up_in_pool, dtype=np.float64)
        gpus = floor.jobs.num_gpus[index]
        rates = np.where(gpus[:, None] <= capacity[None, :], self._rates[index], 0.0)
        given = np.zeros_like(rates)
        able = rates.any(axis=1)  # the others wait for nodes that are down
        if able.any():
            left = np.array([floor.remaining_s(job, now_s) for job in index[able].tolist()])
            given[able] = self._decide(
                Shareholders(
                    jobs=index[able],
                    rates=rates[able],
                    num_gpus=gpus[able],
                    weights=self._weights[index[able]],
                    waited_s=now_s - floor.jobs.submit_s[index[able]],
                    steps_left=np.maximum(left, _LEAST_LEFT_S),
                    capacity=capacity,
                    usd_per_gpu_s=self._usd,
                )
            )
        self._share[index] = given

    # Nodes.

    def _hand_out(self, wanted: dict[int, int], now_s: float) -> None:
        """Nodes for everybody who has a turn: those who have them already stay where they are."""
        floor = self._floor
        for job in [job for job in floor.running if wanted.get(job) != self._floor.pool[job]]:
            self._stop(job, now_s)
        new = [job for job in wanted if not floor.is_running(job)]
        if self._policy.head_only:
            for job in sorted(new):
                if not self._start(job, wanted[job], now_s):
                    return
            return
        new.sort(key=lambda job: -floor.num_gpus[job])
        left = [job for job in new if not self._start(job, wanted[job], now_s)]
        short = sorted({wanted[job] for job in left})
        for pool in short:
            members = [job for job, kind in wanted.items() if kind == pool]
            for job in left:
                if wanted[job] == pool and not floor.is_running(job):
                    self._squeeze_in(job, members, pool, now_s)
        if any(floor.nodes.free_in_pool[pool] for pool in short):
            self._fill(short, now_s)

    def _start(self, job: int, pool: int, now_s: float) -> bool:
        place = self._find(self._floor.nodes, job, pool)
        if place is not None:
            self._floor.start(job, place, now_s)
        return place is not None

    def _stop(self, job: int, now_s: float) -> None:
        floor = self._floor
        cost_s = floor.overheads.preemption_s(floor.num_gpus[job])
        floor.job[job].preemptions += 1
        floor.stop(job, now_s, extra_s=cost_s * floor.job[job].rate, lost_s=cost_s)
        floor.since_checkpoint[job] = 0.0

    def _find(self, nodes: NodeMap, job: int, pool: int) -> Placement | None:
        floor, gpus = self._floor, self._floor.num_gpus[job]
        place = floor.placer.place(nodes, gpus, pool)
        return place if place is not None and floor.rate_of(job, place) > 0 else None

    def _squeeze_in(self, job: int, members: Sequence[int], pool: int, now_s: float) -> None:
        found = self._make_way(job, members, pool)
        if found is not None:
            self._move(found, found, now_s)
        else:
            self._move(members, self._by_urgency(members, pool), now_s)

    def _make_way(self, job: int, members: Sequence[int], pool: int) -> dict[int, Placement] | None:
        """Nodes for the job and for those who move out of its way, from the emptiest nodes on; None if somebody would be
        left without."""
        floor = self._floor
        nodes = floor.nodes.copy()
        first = {other: floor.where(other)[0][0] for other in members if floor.is_running(other)}
        freed: list[int] = []
        for other in sorted(first, key=lambda other: (-floor.nodes.free[first[other]], first[other], other)):
            nodes.give(floor.where(other))
            freed.append(other)
            if self._find(nodes, job, pool) is not None:
                freed.sort(key=lambda one: -floor.num_gpus[one])
                found = self._settle(nodes.copy(), [job, *freed], pool)
                if len(found) == len(freed) + 1:
                    return found
        return None

    def _by_urgency(self, members: Sequence[int], pool: int) -> dict[int, Placement]:
        """Nodes for as many as find some, those who are owed most first."""
        nodes = self._floor.nodes.copy()
        for job in members:
            if self._floor.is_running(job):
                nodes.give(self._floor.where(job))
        return self._settle(nodes, members, pool)

    def _settle(self, nodes: NodeMap, members: Iterable[int], pool: int) -> dict[int, Placement]:
        """Nodes for the members in this order, of which none holds any; whoever runs stays there if that is still free."""
        floor = self._floor
        found: dict[int, Placement] = {}
        for job in members:
            held = floor.where(job) if floor.is_running(job) else ()
            stays = bool(held) and all(1 <= count <= nodes.free[node] for node, count in held)
            place = held if stays else self._find(nodes, job, pool)
            if place is not None:
                nodes.take(place)
                found[job] = place
        return found

    def _move(self, concerned: Iterable[int], found: dict[int, Placement], now_s: float) -> None:
        floor = self._floor
        for job in concerned:
            if floor.is_running(job) and found.get(job) != floor.where(job):
                self._stop(job, now_s)
        for job, place in found.items():
            if not floor.is_running(job):
                floor.start(job, place, now_s)

    def _fill(self, pools: Sequence[int], now_s: float) -> None:
        """GPUs that those with a turn could not use go to others, most urgent first."""
        floor = self._floor
        for pool in pools:
            urgent = sorted(
                (-self._share[job, pool] / self._time_run[job, pool], job)
                for job in floor.waiting
                if self._rates[job, pool] > 0
            )
            no_room: set[int] = set()
            for _, job in urgent:
                if not floor.nodes.free_in_pool[pool]:
                    break
                kind = floor.job[job].kind
                if kind not in no_room and not self._start(job, pool, now_s):
                    no_room.add(kind)
