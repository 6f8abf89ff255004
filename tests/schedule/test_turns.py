"""Shares of time in the event loop: the same turns as in Gavel's rounds, on nodes, with everything that can happen to them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule.builders import fleet, table
from traincast.errors import InvalidInput
from traincast.schedule._generate import Mix, generate_jobs
from traincast.schedule._hazards import Overheads, WeibullFailures
from traincast.schedule._placement import PLACERS
from traincast.schedule._shares import SHARE_POLICIES
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._turns import ROUND_S
from traincast.spec import Fleet, NodePool, Schedule

TYPES = Fleet(
    pools=tuple(
        NodePool(device=name, num_nodes=count, gpus_per_node=1) for name, count in zip("ab", (8, 12), strict=True)
    )
)


class ByTable:
    """Rates by job and pool, wherever it runs."""

    def __init__(self, rates: np.ndarray) -> None:
        self._rates = rates

    def rate(self, job: int, pool: int, num_gpus: float, locality: int) -> float:
        return float(self._rates[job, pool])


def crowd(count: int, seed: int, *, num_gpus: int = 20, **mix: Any) -> Any:
    known = {"sizes": {1: 4, 2: 2, 4: 1}, "load": 1.3, "median_s": 1500, **mix}
    return generate_jobs(count, num_gpus=num_gpus, mix=Mix(**known), seed=seed)


def run(policy: str, jobs: Any, where: Fleet, **options: Any) -> Schedule:
    options.setdefault("record", True)
    return simulate_cluster(jobs, SHARE_POLICIES[policy], fleet=where, **options)


def ends(schedule: Schedule) -> np.ndarray:
    return np.asarray(schedule.end_s)


def busiest(schedule: Schedule, num_nodes: int) -> np.ndarray:
    """The most GPUs that were held on every node at once."""
    most = np.zeros(num_nodes)
    for node in range(num_nodes):
        steps = [
            step
            for held in schedule.occupations
            for at, gpus in held.nodes
            if at == node
            for step in ((held.end_s, -gpus), (held.start_s, gpus))
        ]
        most[node] = np.max(np.cumsum([change for _, change in sorted(steps)]), initial=0.0)
    return most


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    policy=st.sampled_from(["max-min", "isolated", "gavel-fifo"]),
    placer=st.sampled_from(["consolidated", "spread", "topology"]),
    fails=st.booleans(),
)
def test_turns_are_on_nodes_that_have_room_and_add_up(seed: int, policy: str, placer: str, fails: bool) -> None:
    jobs = crowd(40, seed, num_gpus=24, sizes={1: 3, 2: 2, 3: 1, 4: 1, 6: 1, 8: 1})
    nodes = NodePool(device="a", num_nodes=4, gpus_per_node=4)
    where = Fleet(pools=(nodes, NodePool(device="b", num_nodes=2, gpus_per_node=4)), nodes_per_rack=2)
    failures = WeibullFailures(mean_up_s=40_000.0, mean_repair_s=3000.0, seed=seed) if fails else None
    schedule = run(policy, jobs, where, placer=PLACERS[placer], failures=failures, overheads=Overheads(preempt_s=20.0))
    assert (busiest(schedule, 6) <= 4).all()
    seconds = np.zeros(len(jobs))
    for held in schedule.occupations:
        seconds[held.job] += held.end_s - held.start_s
        assert sum(gpus for _, gpus in held.nodes) == jobs.num_gpus[held.job]
    np.testing.assert_allclose(seconds, schedule.run_s, atol=1e-6)
    done = ~np.isnan(ends(schedule))
    assert done.sum() + len(schedule.rejected) == len(jobs)
    if not fails:
        worked = np.asarray(schedule.run_s) - 20.0 * np.asarray(schedule.preemptions)
        np.testing.assert_allclose(worked[done], jobs.duration_s[done], rtol=1e-9)


def test_an_interruption_costs_its_time_once() -> None:
    jobs = crowd(60, 3)
    free, dear = (run("isolated", jobs, TYPES, overheads=Overheads(preempt_s=cost)) for cost in (0.0, 30.0))
    assert free.preemptions.sum() > 0
    assert np.nanmean(ends(dear)) > np.nanmean(ends(free))
    np.testing.assert_allclose(dear.lost_gpu_s, dear.preemptions * 30.0 * jobs.num_gpus)


def test_an_interruption_longer_than_a_round_is_refused() -> None:
    with pytest.raises(InvalidInput, match="would never end"):
        run("max-min", crowd(5, 1), TYPES, overheads=Overheads(preempt_s=ROUND_S))


def test_rounds_end_at_the_horizon() -> None:
    jobs = crowd(60, 3)
    whole = run("max-min", jobs, TYPES)
    half = float(np.nanmedian(ends(whole)))
    cut = run("max-min", jobs, TYPES, until_s=half)
    done = ~np.isnan(ends(cut))
    assert np.nanmax(ends(cut)) <= half
    assert not done.all()
    assert (ends(cut)[done] == ends(whole)[done]).all()
    assert max(held.end_s for held in cut.occupations) == half


def test_wrong_beliefs_change_shares_that_look_at_what_is_left() -> None:
    from traincast.schedule._estimators import Noisy

    jobs = crowd(25, 3)
    for policy, changes in (("makespan", True), ("max-min", False)):
        right, misled = run(policy, jobs, TYPES), run(policy, jobs, TYPES, estimator=Noisy(sigma=1.0))
        assert (ends(right).tobytes() != ends(misled).tobytes()) == changes


def test_two_jobs_that_ask_for_everything_take_turns_of_a_round() -> None:
    """By hand: 360 s each in turn, from the first on; each of two interruptions costs 10 s of work, done at the end."""
    schedule = run("max-min", table((0, 4, 720), (0, 4, 720)), fleet(1, 4), overheads=Overheads(preempt_s=10.0))
    spans = [(held.job, held.start_s, held.end_s) for held in schedule.occupations]
    assert spans == [
        (0, 0.0, 360.0), (1, 360.0, 720.0), (0, 720.0, 1080.0), (1, 1080.0, 1440.0), (0, 1440.0, 1460.0),
        (1, 1800.0, 1820.0),
    ]  # fmt: skip


def test_a_wide_job_gets_whole_nodes_though_every_node_is_in_use() -> None:
    """Three small jobs stand on two nodes; when the wide one has its turn, those who stay move together."""
    jobs = table((0, 3, 5000), (0, 3, 5000), (0, 1, 5000), (10, 4, 3000))
    schedule = run("max-min", jobs, fleet(2, 4))
    wide = [held for held in schedule.occupations if held.job == 3]
    assert wide[0].start_s == 720.0
    assert all(held.nodes[0][1] == 4 for held in wide)
    assert (busiest(schedule, 2) <= 4).all()


def test_a_node_that_fails_in_a_round_loses_what_was_done_since_the_last_checkpoint() -> None:
    class OneFailure:
        def up_s(self, node: int, count: int) -> float:
            return 500.0 if node == 0 and count == 0 else 1e9

        def repair_s(self, node: int, count: int) -> float:
            return 1000.0

    jobs = table((0, 4, 2000), (0, 4, 2000))
    safe, struck = (run("max-min", jobs, fleet(2, 4), failures=model) for model in (None, OneFailure()))
    assert ends(safe).tolist() == [2000.0, 2000.0]
    assert np.asarray(struck.failures).sum() == 1
    loser = int(np.argmax(struck.failures))
    # It starts from nothing at the next round on whatever is up, and takes turns with the other until the node is back.
    assert struck.lost_gpu_s[loser] == pytest.approx(4 * 500.0)
    down = [
        held for held in struck.occupations if held.nodes[0][0] == 0 and held.start_s < 1500.0 and held.end_s > 500.0
    ]
    assert not down


def test_dependencies_limits_and_gpu_types_are_kept() -> None:
    jobs = table((0, 1, 1000), (0, 1, 500), (0, 1, 3000))
    jobs = replace(
        jobs,
        dependencies=[None, f"afterany:{jobs.job_ids[0]}", None],
        gpu_types=["a", None, "b"],
        limit_s=np.array([np.nan, np.nan, 600.0]),
    )
    where = Fleet(pools=tuple(NodePool(device=name, num_nodes=1, gpus_per_node=1) for name in "ab"))
    schedule = run("max-min", jobs, where, kill_at_limit=True)
    assert schedule.start_s[1] >= ends(schedule)[0]
    assert ends(schedule)[2] == 600.0
    assert schedule.killed == {2}
    assert {held.nodes[0][0] for held in schedule.occupations if held.job == 2} == {1}
