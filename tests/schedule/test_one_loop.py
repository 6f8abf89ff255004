"""Every option in the event loop, under every kind of policy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from schedule.builders import gpus_in_use_are_possible
from traincast.schedule._estimators import EXACT, FromHistory, Noisy
from traincast.schedule._generate import Mix, generate_jobs
from traincast.schedule._hazards import Overheads, WeibullFailures, helios_checkpoint_s
from traincast.schedule._jobs import JobTable
from traincast.schedule._network import UniformTraffic
from traincast.schedule._placement import PLACERS
from traincast.schedule._policies import POLICIES, ByScore, LeastAttained, Policy
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._speeds import ScalingLaw
from traincast.spec._fleet import Fleet, NodePool, Schedule

QUEUEING: dict[str, Policy] = {
    **{
        name: POLICIES[name]
        for name in ("fifo", "first-fit", "sjf", "easy", "srtf", "srsf", "edf", "priority-preemptive", "qssf")
    },
    "las": LeastAttained(limits=(500.0, 3000.0)),
    "score": ByScore("score", lambda jobs, seconds: jobs.num_gpus * np.sqrt(seconds), fit="easy"),
}
OPTIONS = (
    "pools",
    "types",
    "spread",
    "topology",
    "history",
    "speeds",
    "racks",
    "parents",
    "links",
    "everything",
)


def make_jobs(seed: int, count: int = 70) -> JobTable:
    rng = np.random.default_rng(seed)
    mix = Mix(sizes={1: 4, 2: 3, 3: 1, 4: 2, 6: 1, 8: 1, 10: 1}, load=1.5, median_s=400, tenants=3)
    jobs = generate_jobs(count, num_gpus=26, mix=mix, seed=seed)
    names = [f"user-{who}" for who in rng.integers(0, 6, count).tolist()]
    limits = jobs.duration_s * rng.choice([0.8, 1.5, 6.0], count)
    return replace(
        jobs,
        users=names,
        workloads=[f"model-{which}" for which in rng.integers(0, 3, count).tolist()],
        priority=rng.integers(0, 3, count).astype(float),
        deadline_s=np.where(rng.random(count) < 0.7, jobs.submit_s + 3 * jobs.duration_s, np.nan),
        limit_s=np.where(rng.random(count) < 0.9, limits, np.nan),
    )


def make_run(option: str, seed: int) -> tuple[JobTable, dict[str, Any]]:
    """Jobs and conditions in which an option is turned on; `everything` turns several on at once."""
    rng = np.random.default_rng(seed + 100)
    jobs = make_jobs(seed)
    pool = NodePool(device="a", num_nodes=5, gpus_per_node=4)
    second = NodePool(device="b", num_nodes=2, gpus_per_node=3)
    both = option in ("pools", "types", "everything")
    words: dict[str, Any] = {"estimator": Noisy(sigma=0.5, seed=seed) if seed % 2 else EXACT}
    fleet = Fleet(pools=(pool, second) if both else (pool,))
    if option in ("types", "everything"):
        wanted = rng.choice(np.array(["a", "b", None], dtype=object), len(jobs)).tolist()
        jobs = replace(jobs, gpu_types=wanted)
    if option in ("spread", "topology", "everything"):
        words["placer"] = PLACERS["topology" if option == "everything" else option]
        fleet = replace(fleet, nodes_per_rack=2)
    if option in ("history", "everything"):
        words["estimator"] = Noisy(sigma=0.4, seed=seed, base=FromHistory()) if seed % 2 else FromHistory()
    if option in ("speeds", "racks", "everything"):
        words["perf"] = ScalingLaw(
            tuple(jobs.num_gpus.tolist()), far_factor=0.8, pool_speeds=(1.0, 0.6)[: len(fleet.pools)]
        )
        fleet = replace(fleet, nodes_per_rack=2 if option == "racks" else fleet.nodes_per_rack)
    if option == "links":
        # Racks of one node and narrow uplinks, so that every job of several nodes slows others down.
        fleet = replace(fleet, nodes_per_rack=1, rack_uplink_bytes_per_s=6.0)
        words["network"] = UniformTraffic(bytes_per_s_per_gpu=1.0, share=0.6)
        words["placer"] = PLACERS["spread" if seed % 2 else "consolidated"]
    if option in ("parents", "everything"):
        parents = [
            f"afterany:{jobs.job_ids[rng.integers(0, at)]}" if at > 3 and rng.random() < 0.3 else None
            for at in range(len(jobs))
        ]
        jobs = replace(jobs, dependencies=parents)
    return jobs, {"fleet": fleet, "overheads": Overheads(preempt_s=helios_checkpoint_s, restart_s=30.0), **words}


@pytest.mark.parametrize("option", OPTIONS)
def test_under_every_option_no_node_holds_more_than_it_has_and_all_work_is_done(option: str) -> None:
    for seed, (name, policy) in enumerate(QUEUEING.items()):
        jobs, words = make_run(option, seed)
        if name == "score" and option in ("history", "everything"):
            words["estimator"] = EXACT  # a score over columns is made before the run
        if seed % 3 == 2:
            words["failures"] = WeibullFailures(mean_up_s=6000.0, mean_repair_s=600.0, seed=seed)
        found: Schedule = simulate_cluster(jobs, policy, record=True, **words)
        again = simulate_cluster(jobs, policy, record=True, **words)
        assert np.asarray(found.end_s).tobytes() == np.asarray(again.end_s).tobytes()
        assert gpus_in_use_are_possible(found)
        ended = ~np.isnan(found.end_s)
        assert ended.sum() + len(found.rejected) == len(jobs)
        assert (found.start_s[ended] >= jobs.submit_s[ended]).all()
        held = np.zeros(len(jobs))
        for run in found.occupations:
            held[run.job] += run.end_s - run.start_s
        assert held[ended] == pytest.approx(np.asarray(found.run_s)[ended], abs=1e-6)
