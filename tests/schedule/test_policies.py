"""What each policy is for."""

import numpy as np
import pytest

from schedule.builders import fleet, table
from traincast.errors import UnknownName
from traincast.schedule._elastic import Optimus
from traincast.schedule._estimators import FromHistory, Noisy
from traincast.schedule._hazards import Overheads
from traincast.schedule._known import find_policy
from traincast.schedule._policies import (
    POLICIES,
    LeastAttained,
    Quotas,
)
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._speeds import ScalingLaw


def ends(jobs, policy, *, gpus: int = 4, **more):
    return simulate_cluster(jobs, policy, fleet=fleet(1, gpus), **more).end_s.tolist()


def test_fifo_blocks_behind_its_head_and_first_fit_does_not() -> None:
    jobs = table((0, 3, 10), (1, 4, 10), (2, 1, 5))
    assert ends(jobs, POLICIES["fifo"]) == [10, 20, 25]
    assert ends(jobs, POLICIES["first-fit"]) == [10, 20, 7]


def test_easy_backfills_only_what_does_not_delay_the_head() -> None:
    jobs = table((0, 3, 10), (1, 4, 10), (2, 1, 5), (3, 1, 50))
    assert ends(jobs, POLICIES["easy"]) == [10, 20, 7, 70]


def test_conservative_keeps_every_reservation() -> None:
    jobs = table((0, 3, 10), (1, 4, 10), (2, 2, 10), (3, 1, 17))
    easy, kept = ends(jobs, POLICIES["easy"]), ends(jobs, POLICIES["conservative"])
    assert kept[1] == easy[1] == 20
    assert kept == [10, 20, 30, 37]


def test_shortest_remaining_preempts_and_pays_for_it() -> None:
    jobs = table((0, 4, 100), (10, 4, 5))
    assert ends(jobs, POLICIES["srtf"]) == [105, 15]
    assert ends(jobs, POLICIES["srtf"], overheads=Overheads(preempt_s=7.0)) == [112, 15]


def test_attained_service_sinks_long_jobs() -> None:
    jobs = table((0, 4, 100), (10, 4, 5))
    assert ends(jobs, LeastAttained(limits=(50.0,))) == [105, 55]


def test_deadlines_decide_under_edf() -> None:
    jobs = table((0, 4, 10), (1, 4, 10), (2, 4, 10), deadline_s=[100.0, 90.0, 30.0])
    assert ends(jobs, POLICIES["edf"]) == [30, 21, 12]


def test_owners_take_borrowed_gpus_back() -> None:
    jobs = table((0, 4, 100), (10, 2, 10), tenants=["a", "b"])
    shared = Quotas(owned=(("a", 2.0), ("b", 2.0)))
    assert ends(jobs, shared) == [110, 20]


def test_history_orders_by_what_a_users_jobs_took_before() -> None:
    jobs = table((0, 4, 10), (0, 4, 100), (200, 4, 5), (201, 4, 100), (201, 4, 10), users=["a", "b", "c", "b", "a"])
    done = ends(jobs, POLICIES["qssf"], estimator=FromHistory())
    assert done[4] < done[3]


@pytest.mark.parametrize("policy", [Optimus()])
def test_a_lonely_elastic_job_gets_all_it_can_use(policy) -> None:
    jobs = table((0, 1, 100), min_gpus=[1.0], max_gpus=[4.0])
    law = ScalingLaw((1.0,), overhead=0.0)
    assert ends(jobs, policy, perf=law) == pytest.approx([25.0])


def test_worse_estimates_never_change_the_truth() -> None:
    rng = np.random.default_rng(0)
    jobs = table(*[(float(i), 1.0, float(rng.integers(5, 50))) for i in range(40)])
    wrong = simulate_cluster(jobs, POLICIES["srtf"], fleet=fleet(1, 4), estimator=Noisy(sigma=1.0))
    np.testing.assert_allclose(wrong.run_s, jobs.duration_s)
    exact = simulate_cluster(jobs, POLICIES["srtf"], fleet=fleet(1, 4))
    assert wrong.end_s.mean() > exact.end_s.mean()


def test_errors_belong_to_jobs_not_to_rows() -> None:
    jobs = table((0, 1, 10), (1, 1, 10), (2, 1, 10))
    error = Noisy(sigma=0.5, seed=3)
    assert error.factors(jobs)[2] == error.factors(jobs.select([2]))[0]


def test_an_unknown_policy_names_its_neighbours() -> None:
    with pytest.raises(UnknownName, match="srtf"):
        find_policy("strf", table((0, 1, 1)), fleet())
