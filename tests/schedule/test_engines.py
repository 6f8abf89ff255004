"""Called policies, interpreted rules and compiled rules in the one loop: the same bits."""

import subprocess
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from traincast.errors import InvalidInput, UnknownName
from traincast.schedule import _kernels as kernels
from traincast.schedule._estimators import EXACT, Noisy
from traincast.schedule._generate import Mix, generate_jobs
from traincast.schedule._hazards import Overheads, WeibullFailures, helios_checkpoint_s
from traincast.schedule._jobs import JobTable
from traincast.schedule._placement import PLACERS
from traincast.schedule._policies import POLICIES, ByScore, LeastAttained, Policy
from traincast.schedule._protocols import CLEAN, Compat
from traincast.schedule._simulator import simulate_cluster
from traincast.spec._fleet import Fleet, NodePool, Schedule

COVERED: dict[str, Policy] = {
    **{name: POLICIES[name] for name in ("fifo", "first-fit", "sjf", "easy", "srtf", "srsf")},
    "las": LeastAttained(limits=(500.0, 3000.0)),
    "las-2d": LeastAttained("las-2d", by_gpu=True, limits=(500.0, 3000.0)),
}


RECORDED = ("fifo", "first-fit", "sjf", "easy", "priority", "srtf", "srsf", "las", "edf", "priority-preemptive")


def same(left: object, right: object) -> bool:
    return np.asarray(left).tobytes() == np.asarray(right).tobytes()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("placement", ["count", "consolidated"])
@pytest.mark.parametrize("name", list(COVERED))
def test_rules_over_columns_decide_as_the_called_policies_do(name: str, placement: str, seed: int) -> None:
    fleet = Fleet(pools=(NodePool(num_nodes=3 + 30 * (seed == 3), gpus_per_node=4 if seed % 2 else 8),))
    mix = Mix(sizes={1: 4, 2: 2, 3: 1, 4: 1, 8: 1, 12: 1, 16: 1}, load=1.4, median_s=300)
    jobs = generate_jobs(150, num_gpus=fleet.num_gpus, mix=mix, seed=seed)
    for estimator in (EXACT, Noisy(sigma=0.7, seed=seed)):
        answers = [
            simulate_cluster(
                jobs,
                COVERED[name],
                fleet=fleet,
                placer=PLACERS[placement],
                estimator=estimator,
                overheads=Overheads(preempt_s=helios_checkpoint_s),
                engine=engine,
            )
            for engine in ("called", "interpreted")
        ]
        assert same(answers[0].end_s, answers[1].end_s)
        assert same(answers[0].start_s, answers[1].start_s)
        assert same(answers[0].preemptions, answers[1].preemptions)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("placement", ["count", "consolidated"])
@pytest.mark.parametrize(
    "name",
    ["fifo", "first-fit", "sjf", "easy", "priority", "custom", "srtf", "srsf", "las", "edf", "priority-preemptive"],
)
def test_records_horizons_and_single_events_are_the_same_in_the_loops(name: str, placement: str, seed: int) -> None:
    fleet = Fleet(pools=(NodePool(num_nodes=4, gpus_per_node=4),))
    mix = Mix(sizes={1: 4, 2: 2, 3: 1, 6: 1, 8: 1}, load=1.6, median_s=300)
    jobs = generate_jobs(80, num_gpus=16, mix=mix, seed=seed)
    jobs = replace(
        jobs, priority=np.arange(80) % 3.0, deadline_s=np.where(np.arange(80) % 4, jobs.duration_s * 3, np.nan)
    )
    policy: Policy = ByScore("custom", lambda jobs, seconds: seconds * jobs.num_gpus, fit="easy")
    policy = policy if name == "custom" else {**POLICIES, **COVERED}[name]
    until_s = float(np.quantile(jobs.submit_s, 0.8))
    for compat in (CLEAN,) if policy.preemptive else (CLEAN, Compat(coalesce=False)):
        one, other = (
            simulate_cluster(
                jobs, policy, fleet=fleet, placer=PLACERS[placement], compat=compat, until_s=until_s, record=True,
                engine=engine,
            )
            for engine in ("called", "interpreted")
        )  # fmt: skip
        assert same(one.preemptions, other.preemptions)
        for column in ("start_s", "end_s", "run_s"):
            np.testing.assert_allclose(getattr(one, column), getattr(other, column), rtol=1e-12)
        assert dict(one.rejected) == dict(other.rejected)
        left, right = (
            sorted(
                (held.job, held.start_s, held.end_s, held.num_gpus, sorted(held.nodes)) for held in found.occupations
            )
            for found in (one, other)
        )
        assert left == right


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["count", "consolidated"])
@pytest.mark.parametrize("name", list(COVERED))
def test_compiled_loops_equal_interpreted_ones_at_size(name: str, placement: str) -> None:
    if kernels.compiled() is None:
        pytest.skip("numba is not installed")
    fleet = Fleet(pools=(NodePool(num_nodes=70, gpus_per_node=8),))
    jobs = generate_jobs(3000, num_gpus=fleet.num_gpus, mix=Mix(load=1.3), seed=2)
    answers = [
        simulate_cluster(jobs, COVERED[name], fleet=fleet, placer=PLACERS[placement], engine=engine)
        for engine in ("interpreted", "compiled")
    ]
    assert same(answers[0].end_s, answers[1].end_s)
    assert same(answers[0].preemptions, answers[1].preemptions)


def test_a_policy_without_rules_over_columns_is_not_said_to_be_compiled() -> None:
    fleet = Fleet(pools=(NodePool(num_nodes=2, gpus_per_node=8),))
    jobs = generate_jobs(5, num_gpus=16)
    with pytest.raises(InvalidInput, match="called as an object"):
        simulate_cluster(replace(jobs, num_gpus=jobs.num_gpus / 2), POLICIES["fifo"], fleet=fleet, engine="interpreted")
    with pytest.raises(UnknownName, match="engine"):
        simulate_cluster(jobs, POLICIES["fifo"], fleet=fleet, engine="quick")


def test_preempted_jobs_that_move_at_no_cost_do_not_fill_the_event_heap() -> None:
    fleet = Fleet(pools=(NodePool(num_nodes=4, gpus_per_node=8),))
    jobs = generate_jobs(1500, num_gpus=32, mix=Mix(load=3.0, median_s=100, arrivals="bursts"), seed=1)
    schedule = simulate_cluster(jobs, POLICIES["srtf"], fleet=fleet, engine="interpreted")
    assert not np.isnan(schedule.end_s).any()
    assert schedule.preemptions.sum() > 0


@pytest.mark.parametrize("engine", ["called", "interpreted"])
def test_near_equal_jobs_do_not_swap_for_ever(engine: str) -> None:
    """Believed remaining times that are equal but for rounding once made two jobs evict each other without end."""
    fleet = Fleet(pools=(NodePool(num_nodes=3, gpus_per_node=8),))
    jobs = generate_jobs(400, num_gpus=24, mix=Mix(load=2.0, sigma=0.05, median_s=100), seed=5)
    schedule = simulate_cluster(jobs, POLICIES["srtf"], fleet=fleet, estimator=Noisy(bias=1.35), engine=engine)
    assert not np.isnan(schedule.end_s).any()
    assert schedule.preemptions.sum() < 40 * len(jobs)


HAZARDS = {
    "from nothing": Overheads(preempt_s=helios_checkpoint_s, restart_s=60.0),
    "checkpoints": Overheads(preempt_s=5.0, restart_s=20.0, checkpoint_every_s=100.0),
}


def everything(schedule: Schedule) -> list[object]:
    runs = sorted(
        (held.job, held.start_s, held.end_s, held.num_gpus, sorted(held.nodes)) for held in schedule.occupations
    )
    columns = ("start_s", "end_s", "preemptions", "failures", "run_s", "lost_gpu_s")
    found: list[object] = [np.round(np.asarray(getattr(schedule, name), dtype=float), 6).tolist() for name in columns]
    return [str(found), dict(schedule.rejected), set(schedule.killed), runs]


@pytest.mark.parametrize("engine", ["interpreted", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("overheads", list(HAZARDS))
@pytest.mark.parametrize("name", ["fifo", "first-fit", "sjf", "easy", "srtf", "srsf", "las", "edf"])
def test_failures_and_limits_are_the_same_in_the_loops(name: str, overheads: str, engine: str) -> None:
    if engine == "compiled" and kernels.compiled() is None:
        pytest.skip("numba is not installed")
    fleet = Fleet(pools=(NodePool(num_nodes=5, gpus_per_node=4),))
    mix = Mix(sizes={1: 4, 2: 2, 3: 1, 6: 1, 8: 1}, load=1.3, median_s=300)
    for seed in range(3 if engine == "interpreted" else 1):
        jobs = generate_jobs(90, num_gpus=20, mix=mix, seed=seed)
        limits = jobs.duration_s * np.random.default_rng(seed).choice([0.7, 1.4, 9.0], 90)
        jobs = replace(jobs, limit_s=np.where(np.arange(90) % 7, limits, np.nan))
        failures = WeibullFailures(mean_up_s=4000.0, mean_repair_s=600.0, seed=seed)
        for kill, until_s in ((False, np.inf), (True, float(jobs.submit_s[70]))):
            one, other = (
                simulate_cluster(
                    jobs, {**POLICIES, **COVERED}[name], fleet=fleet, estimator=Noisy(sigma=0.4, seed=seed), failures=failures,
                    overheads=HAZARDS[overheads], kill_at_limit=kill, until_s=until_s, record=True, engine=which,
                )
                for which in ("called", engine)
            )  # fmt: skip
            assert np.asarray(one.failures).sum() > 0
            assert everything(one) == everything(other)


def test_a_job_longer_than_nodes_live_is_given_up_in_the_loops_too() -> None:
    fleet = Fleet(pools=(NodePool(num_nodes=2, gpus_per_node=4),))
    jobs = JobTable.build(submit_s=[0.0, 5.0], num_gpus=[8.0, 2.0], duration_s=[50_000.0, 10.0])
    for name in ("fifo", "easy", "srtf"):
        one, other = (
            simulate_cluster(
                jobs, POLICIES[name], fleet=fleet, failures=WeibullFailures(mean_up_s=500.0, mean_repair_s=9.0), engine=which
            )
            for which in ("called", "interpreted")
        )  # fmt: skip
        assert dict(one.rejected) == dict(other.rejected) != {}
        assert same(one.end_s, other.end_s)


@pytest.mark.parametrize(("kept", "asked"), [({}, 1), ({"signature": "code"}, 0)])
def test_a_loop_that_was_never_compiled_is_compiled_in_another_process(
    kept: dict[str, str], asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's memory is then never held by the process that simulates."""
    file = SimpleNamespace(_load_index=lambda: kept)
    loop = SimpleNamespace(signatures=(), _cache=SimpleNamespace(_cache_file=file))
    monkeypatch.setattr(kernels, "compiled", cache(lambda: {"run_events": loop}))
    calls: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda words, **_: calls.append(words))
    kernels.compile_apart("run_events", "some.module")
    assert [words[1:] for words in calls] == [["-m", "some.module"]] * asked
