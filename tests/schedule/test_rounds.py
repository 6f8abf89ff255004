"""Shares of time: they are the best there are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.schedule import _shares as shares
from traincast.schedule._programs import raise_level
from traincast.schedule._shares import Shareholders


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
    level, given_shares = raise_level(holders(worth, gpus, room), worth)
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
    assert (worth * given_shares).sum(axis=1).min() >= level * (1 - 1e-5)
    assert (given_shares >= 0).all()
    assert given_shares.sum(axis=1).max() <= 1 + 1e-6
    assert ((gpus[:, None] * given_shares).sum(axis=0) <= room + 1e-5).all()


def test_blind_shares_of_a_full_fleet_are_split_like_the_fleet() -> None:
    """The closed form reaches the program's level and lies further from all borders, which is what the middle means."""
    gpus = np.array([1.0, 1, 2, 4, 1, 2, 8, 1, 1, 1, 1, 1])
    room = np.array([3.0, 2.0, 5.0])
    present = holders(np.ones((12, 3)), gpus, room)
    by_hand = shares.max_min(present)
    by_program = shares._max_min(present, np.ones((12, 3)))
    assert (gpus[:, None] * by_hand).sum(axis=0) == pytest.approx(room)
    assert (gpus * by_hand.sum(axis=1)).min() == pytest.approx((gpus * by_program.sum(axis=1)).min(), rel=1e-5)
    assert np.log(by_hand).sum() >= np.log(by_program).sum()
    assert by_hand == pytest.approx(by_program, abs=0.02)
