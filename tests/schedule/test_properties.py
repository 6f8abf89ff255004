"""Laws that every schedule obeys, whatever the policy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule.builders import fleet, gpus_in_use_are_possible, job_tables, table
from traincast.schedule._elastic import ELASTIC
from traincast.schedule._hazards import Overheads, WeibullFailures
from traincast.schedule._jobs import JobTable
from traincast.schedule._known import find_policy
from traincast.schedule._metrics import queue_curve
from traincast.schedule._placement import PLACERS
from traincast.schedule._policies import POLICIES
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._speeds import ScalingLaw
from traincast.spec._fleet import Schedule

NAMES = [*POLICIES, "quota"]


def run(jobs: JobTable, name: str, **more: object) -> Schedule:
    many = fleet(3, 4)
    policy = find_policy(name, jobs, many)
    return simulate_cluster(jobs, policy, fleet=many, record=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
@given(jobs=job_tables())
@settings(max_examples=15, deadline=None)
def test_nodes_are_never_oversubscribed_and_every_job_ends_once(name: str, jobs: JobTable) -> None:
    schedule = run(jobs, name)
    assert gpus_in_use_are_possible(schedule)
    assert not np.isnan(schedule.end_s).any()
    assert len(schedule.rejected) == 0


@pytest.mark.parametrize("name", NAMES)
@given(jobs=job_tables(), cost=st.sampled_from([0.0, 5.0]))
@settings(max_examples=10, deadline=None)
def test_gpu_seconds_are_work_plus_what_preemption_costs(name: str, jobs: JobTable, cost: float) -> None:
    schedule = run(jobs, name, overheads=Overheads(preempt_s=cost))
    expected = (jobs.duration_s + schedule.preemptions * cost) * jobs.num_gpus
    np.testing.assert_allclose(schedule.gpu_s, expected, rtol=1e-9, atol=1e-6)
    recorded = np.zeros(len(jobs))
    for held in schedule.occupations:
        recorded[held.job] += (held.end_s - held.start_s) * held.num_gpus
    np.testing.assert_allclose(recorded, expected, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_input_gives_the_same_schedule(name: str) -> None:
    rng = np.random.default_rng(5)
    jobs = table(
        *[(float(rng.integers(0, 300)), float(rng.choice([1, 2, 4])), float(rng.integers(1, 90))) for _ in range(60)]
    )
    first, second = run(jobs, name), run(jobs, name)
    assert np.asarray(first.end_s).tobytes() == np.asarray(second.end_s).tobytes()


@given(jobs=job_tables(max_jobs=40))
@settings(max_examples=25, deadline=None)
def test_littles_law_holds(jobs: JobTable) -> None:
    """The area under the queue is the sum of the waits until the first start."""
    schedule = run(jobs, "fifo")
    times, waiting = queue_curve(schedule)
    area = float((np.diff(times) * waiting[:-1]).sum())
    assert area == pytest.approx(float((schedule.start_s - schedule.submit_s).sum()))


@given(jobs=job_tables(sizes=(1,), max_jobs=30))
@settings(max_examples=50, deadline=None)
def test_shortest_remaining_first_never_has_a_longer_mean_than_fifo_on_one_gpu(jobs: JobTable) -> None:
    one = fleet(1, 1)
    shortest = simulate_cluster(jobs, POLICIES["srtf"], fleet=one)
    fifo = simulate_cluster(jobs, POLICIES["fifo"], fleet=one)
    assert np.mean(shortest.end_s - jobs.submit_s) <= np.mean(fifo.end_s - jobs.submit_s) + 1e-9


@pytest.mark.parametrize("name", list(ELASTIC))
@given(jobs=job_tables(max_jobs=8, sizes=(1, 2, 4)))
@settings(max_examples=6, deadline=None)
def test_elastic_jobs_all_end_and_never_oversubscribe(name: str, jobs: JobTable) -> None:
    schedule = simulate_cluster(
        jobs, ELASTIC[name], fleet=fleet(3, 4), perf=ScalingLaw(tuple(jobs.num_gpus)), record=True
    )
    assert gpus_in_use_are_possible(schedule)
    assert not np.isnan(schedule.end_s).any()


@pytest.mark.parametrize("placer", ["consolidated", "spread", "topology"])
@given(jobs=job_tables(max_jobs=15), seed=st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_failures_lose_work_but_no_job(placer: str, jobs: JobTable, seed: int) -> None:
    schedule = simulate_cluster(
        jobs,
        POLICIES["first-fit"],
        fleet=fleet(3, 4, nodes_per_rack=2),
        placer=PLACERS[placer],
        failures=WeibullFailures(mean_up_s=300.0, mean_repair_s=20.0, seed=seed),
        overheads=Overheads(checkpoint_every_s=10.0, restart_s=1.0),
        record=True,
    )
    assert not np.isnan(schedule.end_s).any()
    assert gpus_in_use_are_possible(schedule)
    assert (np.asarray(schedule.run_s) >= jobs.duration_s - 1e-6).all()


def test_a_job_larger_than_the_fleet_is_rejected_with_a_reason() -> None:
    schedule = simulate_cluster(table((0, 2, 5), (1, 99, 5)), POLICIES["fifo"], fleet=fleet(2, 4))
    assert schedule.status(1) == "rejected"
    assert "99 GPUs" in schedule.rejected[1]
    assert schedule.outcome(0).end_s == 5.0
    assert schedule.outcome(1).end_s is None


def test_what_runs_at_the_end_of_the_horizon_is_unfinished() -> None:
    schedule = simulate_cluster(table((0, 1, 100), (0, 1, 5)), POLICIES["fifo"], fleet=fleet(), until_s=50.0)
    assert [schedule.status(job) for job in range(2)] == ["unfinished", "finished"]
    assert schedule.run_s[0] == 50.0
    assert math.isnan(schedule.end_s[0])
