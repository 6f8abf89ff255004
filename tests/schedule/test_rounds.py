"""Time-sharing in rounds: what is recorded, charged and believed, and shares are the best there are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.schedule import _kernels as kernels
from traincast.schedule import _shares as shares
from traincast.schedule._generate import Mix, generate_jobs
from traincast.schedule._rounds import GAVEL, GAVEL_BLIND, RoundRules, Shareholders, simulate_rounds
from traincast.schedule._shares import SHARE_POLICIES
from traincast.spec._fleet import Fleet, NodePool, Schedule

FLEET = Fleet(
    pools=tuple(
        NodePool(device=name, num_nodes=count, gpus_per_node=1) for name, count in zip("abc", (8, 12, 0), strict=True)
    )
)


def rows(count: int, seed: int) -> tuple[object, np.ndarray]:
    mix = Mix(sizes={1: 4, 2: 2, 4: 1}, load=1.3, median_s=1500)
    jobs = generate_jobs(count, num_gpus=20, mix=mix, seed=seed)
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.2, 1.0, (count, 3)) * [4.0, 2.0, 1.0]
    rates[rng.random((count, 3)) < 0.1] = 0.0
    rates[:, 0] = np.maximum(rates[:, 0], 0.5)
    return replace(jobs, steps=np.floor(jobs.duration_s * 2) + 1), rates


def run(policy: str, *, seed: int = 3, count: int = 60, **more: object) -> Schedule:
    jobs, rates = rows(count, seed=seed)
    more.setdefault("engine", "interpreted")
    return simulate_rounds(jobs, SHARE_POLICIES[policy], fleet=FLEET, rates=rates, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", [RoundRules(), GAVEL, GAVEL_BLIND], ids=["clean", "gavel", "gavel-blind"])
@pytest.mark.parametrize("policy", ["isolated", "gavel-fifo", "max-min"])
def test_recorded_turns_add_up_to_what_every_job_got(
    policy: str, rules: RoundRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "compiled", lambda: None)
    plain, recorded = run(policy, rules=rules), run(policy, rules=rules, record=True)
    assert np.asarray(plain.end_s).tobytes() == np.asarray(recorded.end_s).tobytes()
    seconds = np.zeros(60)
    used = np.zeros(3)
    for held in recorded.occupations:
        seconds[held.job] += held.end_s - held.start_s
        used[held.nodes[0][0]] += (held.end_s - held.start_s) * held.num_gpus
    np.testing.assert_allclose(seconds, recorded.run_s, atol=1e-6)
    np.testing.assert_allclose(used, recorded.pool_gpu_s, atol=1e-4)


def test_an_interruption_costs_its_time_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "compiled", lambda: None)
    free, dear = run("isolated"), run("isolated", preempt_s=np.full(60, 30.0))
    assert free.preemptions.sum() > 0
    assert np.nanmean(dear.end_s) > np.nanmean(free.end_s)
    jobs, _ = rows(60, seed=3)
    np.testing.assert_allclose(dear.lost_gpu_s, dear.preemptions * 30.0 * jobs.num_gpus)


def test_rounds_end_at_the_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "compiled", lambda: None)
    whole = run("max-min")
    half = float(np.nanmedian(whole.end_s))
    cut = run("max-min", until_s=half)
    assert np.nanmax(cut.end_s) <= half
    assert np.isnan(cut.end_s).sum() > 0
    done = ~np.isnan(cut.end_s)
    assert (np.asarray(cut.end_s)[done] == np.asarray(whole.end_s)[done]).all()


def test_wrong_beliefs_change_shares_that_look_at_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "compiled", lambda: None)
    jobs, _ = rows(25, seed=3)
    wrong = jobs.steps * np.where(np.arange(25) % 2, 3.0, 0.3)
    for policy, changes in (("makespan", True), ("max-min", False)):
        right, misled = run(policy, count=25), run(policy, count=25, believed_steps=wrong)
        assert (np.asarray(right.end_s).tobytes() != np.asarray(misled.end_s).tobytes()) == changes


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["max-min", "max-min-perf", "makespan"])
def test_compiled_rounds_equal_interpreted_ones(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels.compiled() is None:
        pytest.skip("numba is not installed")
    jobs, rates = rows(150, seed=1)
    run = SHARE_POLICIES[policy]
    fast = simulate_rounds(jobs, run, fleet=FLEET, rates=rates, rules=GAVEL, engine="compiled")
    monkeypatch.setattr(kernels, "compiled", lambda: None)
    plain = simulate_rounds(jobs, run, fleet=FLEET, rates=rates, rules=GAVEL, engine="interpreted")
    assert np.asarray(fast.end_s).tobytes() == np.asarray(plain.end_s).tobytes()


def holders(rates: np.ndarray, gpus: np.ndarray, capacity: np.ndarray) -> Shareholders:
    count = len(rates)
    return Shareholders(
        jobs=np.arange(count),
        rates=rates,
        num_gpus=gpus,
        weights=np.ones(count),
        waited_s=np.zeros(count),
        steps_left=np.ones(count),
        capacity=capacity,
        usd_per_gpu_s=np.ones(len(capacity)),
    )


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    capacity=st.tuples(st.integers(0, 12), st.integers(4, 12), st.integers(0, 12)),
    spread=st.sampled_from([0.0, 1.0, 6.0]),
)
@settings(max_examples=40, deadline=None)
def test_no_division_lifts_the_worst_job_higher(
    seed: int, count: int, capacity: tuple[int, int, int], spread: float
) -> None:
    """Against a simplex on the same program; rates of a job may differ a thousandfold from those of another."""
    from scipy import optimize

    rng = np.random.default_rng(seed)
    worth = rng.uniform(0.2, 1.0, (count, 3)) * np.exp(spread * rng.uniform(-1, 1, (count, 1)))
    gpus = rng.choice([1.0, 2.0, 4.0], count)
    room = np.array(capacity, dtype=np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "compiled", lambda: None)
        level, given_shares = shares._raise_level(holders(worth, gpus, room), worth)
    rows_of = np.repeat(np.eye(count), 3, axis=1)
    types = np.tile(np.eye(3), count) * np.repeat(gpus, 3)
    matrix = np.block(
        [
            [rows_of, np.zeros((count, 1))],
            [types, np.zeros((3, 1))],
            [-rows_of * worth.ravel(), np.ones((count, 1))],
        ]
    )
    limits = np.concatenate([np.ones(count), room, np.zeros(count)])
    costs = np.append(np.zeros(3 * count), -1.0)
    bounds = [(0, None)] * (3 * count) + [(None, None)]
    best = -optimize.linprog(costs, A_ub=matrix, b_ub=limits, bounds=bounds).fun
    assert level == pytest.approx(best, rel=2e-5)
    assert (worth * given_shares).sum(axis=1).min() >= level * (1 - 1e-9)
    assert (given_shares >= 0).all()
    assert given_shares.sum(axis=1).max() <= 1 + 1e-9
    assert ((gpus[:, None] * given_shares).sum(axis=0) <= room + 1e-9).all()


def test_blind_shares_of_a_full_fleet_are_split_like_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closed form reaches the program's level and lies further from all borders, which is what the middle means."""
    monkeypatch.setattr(kernels, "compiled", lambda: None)
    gpus = np.array([1.0, 1, 2, 4, 1, 2, 8, 1, 1, 1, 1, 1])
    room = np.array([3.0, 2.0, 5.0])
    present = holders(np.ones((12, 3)), gpus, room)
    by_hand = shares.max_min(present)
    by_program = shares._max_min(present, np.ones((12, 3)))
    assert (gpus[:, None] * by_hand).sum(axis=0) == pytest.approx(room)
    assert (gpus * by_hand.sum(axis=1)).min() == pytest.approx((gpus * by_program.sum(axis=1)).min(), rel=1e-5)
    assert np.log(by_hand).sum() >= np.log(by_program).sum()
    assert by_hand == pytest.approx(by_program, abs=0.02)
