"""Policies written as objects in the one event loop: the same time, failures, links and accounts as everybody's."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from schedule.builders import Called, fleet, table
from traincast.schedule._floor import Floor
from traincast.schedule._hazards import Overheads
from traincast.schedule._network import UniformTraffic
from traincast.schedule._policies import POLICIES, Quotas
from traincast.schedule._simulator import simulate_cluster

SHORT_FIRST = Called(lambda floor, now_s: sorted(floor.waiting, key=lambda job: floor.estimate_s[job]))


def test_a_called_policy_meets_dependencies_limits_and_the_end_of_the_run() -> None:
    jobs = table((0.0, 4, 50.0), (0.0, 4, 20.0), (0.0, 4, 30.0))
    jobs = replace(
        jobs, dependencies=[None, f"afterany:{jobs.job_ids[0]}", None], limit_s=np.array([math.nan, math.nan, 25.0])
    )
    schedule = simulate_cluster(jobs, SHORT_FIRST, fleet=fleet(1, 4), kill_at_limit=True, until_s=80.0, record=True)
    # The third is killed at its limit, then the first runs, and the second may only follow it.
    assert schedule.end_s[[2, 0]].tolist() == [25.0, 75.0]
    assert schedule.killed == {2}
    assert schedule.status(1) == "unfinished"
    assert sorted((held.job, held.start_s, held.end_s) for held in schedule.occupations) == [
        (0, 25.0, 75.0),
        (1, 75.0, 80.0),
        (2, 0.0, 25.0),
    ]


def test_links_are_shared_while_two_jobs_cross_racks_and_no_longer() -> None:
    """Each alone needs the whole uplink for half of its time: together that half takes twice as long."""
    cluster = replace(fleet(4, 1, nodes_per_rack=2), rack_uplink_bytes_per_s=2.0)
    jobs = table((0.0, 2, 90.0), (0.0, 2, 30.0))
    schedule = simulate_cluster(
        jobs,
        POLICIES["first-fit"],
        fleet=cluster,
        placer=_Across(),
        network=UniformTraffic(bytes_per_s_per_gpu=1.0, share=0.5),
    )
    assert schedule.end_s.tolist() == pytest.approx([45 + 60.0, 45.0])


@dataclass(frozen=True, slots=True)
class _Across:
    """One GPU in either rack, for jobs of two GPUs."""

    name: str = "across"

    def place(self, nodes, num_gpus: float, pool: int):  # type: ignore[no-untyped-def]
        free = [node for node, count in enumerate(nodes.free) if count]
        return ((free[0], 1), (free[-1], 1)) if len(free) >= 2 else None

    def could_ever(self, nodes, num_gpus: float, pool: int) -> bool:  # type: ignore[no-untyped-def]
        return num_gpus == 2


def test_an_owner_takes_its_gpus_back_and_the_borrower_pays_for_the_interruption() -> None:
    jobs = replace(table((0.0, 4, 100.0), (10.0, 4, 20.0)), tenants=["guest", "owner"])
    schedule = simulate_cluster(
        jobs, Quotas(owned=(("owner", 4.0),)), fleet=fleet(1, 4), overheads=Overheads(preempt_s=5.0)
    )
    assert schedule.end_s.tolist() == [125.0, 30.0]
    assert schedule.preemptions.tolist() == [1, 0]
    assert schedule.lost_gpu_s.tolist() == [20.0, 0.0]


def test_a_policy_is_asked_at_every_moment() -> None:
    seen: list[tuple[float, int, int]] = []

    def order(floor: Floor, now_s: float) -> list[int]:
        if floor.waiting:
            seen.append((now_s, len(floor.waiting), len(floor.running)))
        return list(floor.waiting)

    simulate_cluster(table((0.0, 4, 10.0), (1.0, 4, 10.0), (2.0, 4, 10.0)), Called(order), fleet=fleet(1, 4))
    assert seen == [(0.0, 1, 0), (1.0, 1, 1), (2.0, 2, 1), (10.0, 2, 0), (20.0, 1, 0)]
