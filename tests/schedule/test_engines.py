"""The loop compiled and interpreted: the same bits."""

import numpy as np
import pytest

from traincast.errors import InvalidInput, UnknownName
from traincast.schedule._estimators import Noisy
from traincast.schedule._generate import Mix, generate_jobs
from traincast.schedule._hazards import Overheads, WeibullFailures, helios_checkpoint_s
from traincast.schedule._jobs import JobTable
from traincast.schedule._placement import PLACERS
from traincast.schedule._policies import POLICIES, ByScore, LeastAttained, Policy
from traincast.schedule._simulator import simulate_cluster
from traincast.spec._fleet import Fleet, NodePool

COVERED: dict[str, Policy] = {
    **{name: POLICIES[name] for name in ("fifo", "first-fit", "sjf", "easy", "srtf", "srsf", "edf", "priority")},
    "las": LeastAttained(limits=(500.0, 3000.0)),
    "las-2d": LeastAttained("las-2d", by_gpu=True, limits=(500.0, 3000.0)),
    "score": ByScore("score", lambda jobs, seconds: seconds * jobs.num_gpus, fit="easy"),
}


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["count", "consolidated"])
def test_the_compiled_loop_equals_the_interpreted_one(placement: str) -> None:
    pytest.importorskip("numba")
    for pools in (
        (NodePool(num_nodes=20, gpus_per_node=8),),
        (NodePool(num_nodes=9, gpus_per_node=8), NodePool(num_nodes=9, gpus_per_node=4)),
    ):
        fleet = Fleet(pools=pools)
        jobs = generate_jobs(800, num_gpus=fleet.num_gpus, mix=Mix(load=1.3, deadline_slack=1.0), seed=2)
        for name, policy in COVERED.items():
            one, other = (
                simulate_cluster(
                    jobs, policy, fleet=fleet, placer=PLACERS[placement], estimator=Noisy(sigma=0.5), engine=engine,
                    overheads=Overheads(preempt_s=helios_checkpoint_s), until_s=float(jobs.submit_s[-50]),
                )
                for engine in ("interpreted", "compiled")
            )  # fmt: skip
            for column in ("start_s", "end_s", "run_s", "preemptions", "lost_gpu_s", "pool_gpu_s"):
                assert np.asarray(getattr(one, column)).tobytes() == np.asarray(getattr(other, column)).tobytes(), name


def test_what_cannot_be_compiled_is_not_said_to_be() -> None:
    fleet = Fleet(pools=(NodePool(num_nodes=2, gpus_per_node=8),))
    jobs = generate_jobs(5, num_gpus=16)
    with pytest.raises(InvalidInput, match="use the engine auto"):
        simulate_cluster(jobs, POLICIES["conservative"], fleet=fleet, engine="compiled")
    with pytest.raises(UnknownName, match="engine"):
        simulate_cluster(jobs, POLICIES["fifo"], fleet=fleet, engine="quick")


def test_near_equal_jobs_do_not_swap_for_ever() -> None:
    """Believed remaining times that are equal but for rounding once made two jobs evict each other without end."""
    fleet = Fleet(pools=(NodePool(num_nodes=3, gpus_per_node=8),))
    jobs = generate_jobs(400, num_gpus=24, mix=Mix(load=2.0, sigma=0.05, median_s=100), seed=5)
    schedule = simulate_cluster(jobs, POLICIES["srtf"], fleet=fleet, estimator=Noisy(bias=1.35))
    assert not np.isnan(schedule.end_s).any()
    assert schedule.preemptions.sum() < 40 * len(jobs)


def test_a_job_longer_than_nodes_live_is_given_up() -> None:
    fleet = Fleet(pools=(NodePool(num_nodes=2, gpus_per_node=4),))
    jobs = JobTable.build(submit_s=[0.0, 5.0], num_gpus=[8.0, 2.0], duration_s=[50_000.0, 10.0])
    for name in ("fifo", "easy", "srtf", "conservative"):
        failures = WeibullFailures(mean_up_s=500.0, mean_repair_s=9.0)
        found = simulate_cluster(jobs, POLICIES[name], fleet=fleet, failures=failures)
        assert "checkpoints more often" in found.rejected[0]
        assert not np.isnan(found.end_s[1])
