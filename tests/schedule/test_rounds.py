"""Shares of time: they are the best there are, and runs of Gavel's simulator are the same compiled or not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.schedule import _kernels as kernels
from traincast.schedule import _shares as shares
from traincast.schedule._generate import Mix, generate_jobs
from traincast.schedule._rounds import GAVEL, Shareholders, simulate_rounds
from traincast.schedule._shares import SHARE_POLICIES
from traincast.spec._fleet import Fleet, NodePool

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
