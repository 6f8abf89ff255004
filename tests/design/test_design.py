"""The design finds what brute force finds, keeps its budget, and beats chance."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.design import (
    a_optimal,
    d_optimal,
    explain,
    information,
    k_medoids,
    mean_distances,
    prediction_spread,
    random_design,
)
from traincast.errors import InvalidInput


def exhaustive(features: np.ndarray, *, num_rows: int) -> list[int]:
    subsets = itertools.combinations(range(len(features)), num_rows)
    return list(max(subsets, key=lambda rows: information(features, rows)))


@st.composite
def problems(draw: st.DrawFn, max_rows: int = 12) -> tuple[np.ndarray, np.ndarray]:
    seed = draw(st.integers(0, 10_000))
    random = np.random.default_rng(seed)
    num_rows, num_columns = draw(st.integers(4, max_rows)), draw(st.integers(1, 4))
    features = random.normal(size=(num_rows, num_columns)) * 10 ** random.uniform(-3, 3, size=num_columns)
    return features, random.uniform(0.1, 5.0, size=num_rows)


@given(problem=problems(), count=st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_greedy_with_exchange_is_within_a_hair_of_brute_force(
    problem: tuple[np.ndarray, np.ndarray], count: int
) -> None:
    features, _ = problem
    found = information(features, d_optimal(features, budget=count))
    best = information(features, exhaustive(features, num_rows=count))
    # Exchange finds a local optimum; over these problems it is the global one, or its determinant is close to it.
    assert found >= best - 0.35
    assert found <= best + 1e-9


def test_exchange_finds_the_true_optimum_almost_always() -> None:
    hits = 0
    for seed in range(100):
        features = np.random.default_rng(seed).normal(size=(12, 3))
        found = information(features, d_optimal(features, budget=4))
        hits += found >= information(features, exhaustive(features, num_rows=4)) - 1e-9
    assert hits >= 85


@given(problem=problems(), count=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_exchange_never_makes_a_greedy_design_worse(problem: tuple[np.ndarray, np.ndarray], count: int) -> None:
    features, costs = problem
    for options in ({"budget": count}, {"budget": float(count), "costs": costs}):
        greedy = information(features, d_optimal(features, exchange=False, **options))
        assert information(features, d_optimal(features, **options)) >= greedy - 1e-9


@given(problem=problems(max_rows=10), budget=st.floats(0.0, 12.0))
@settings(max_examples=80, deadline=None)
def test_no_affordable_design_is_much_better_than_the_cost_aware_one(
    problem: tuple[np.ndarray, np.ndarray], budget: float
) -> None:
    features, costs = problem
    chosen = d_optimal(features, budget=budget, costs=costs)
    assert costs[chosen].sum() <= budget * (1 + 1e-9)
    subsets = (
        rows
        for size in range(len(features) + 1)
        for rows in itertools.combinations(range(len(features)), size)
        if costs[list(rows)].sum() <= budget
    )
    nothing = information(features, [])
    best = max(information(features, rows) for rows in subsets) - nothing
    # The theory promises 0.31 of the best gain; exchange brings more.
    assert information(features, chosen) - nothing >= 0.8 * best - 1e-9


@given(problem=problems(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_forbidden_and_measured_rows_are_never_chosen_and_none_twice(
    problem: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    features, costs = problem
    rows = st.sets(st.integers(0, len(features) - 1), max_size=len(features) // 2)
    forbidden, measured = data.draw(rows), data.draw(rows)
    for chosen in (
        d_optimal(features, budget=6.0, costs=costs, forbidden=forbidden, measured=measured),
        a_optimal(features, budget=6.0, costs=costs, forbidden=forbidden, measured=measured),
        random_design(len(features), budget=6.0, costs=costs, forbidden=forbidden, measured=measured),
    ):
        assert not set(chosen) & (forbidden | measured)
        assert len(set(chosen)) == len(chosen)
        assert costs[chosen].sum() <= 6.0 * (1 + 1e-9)


def test_a_row_that_repeats_what_is_measured_is_worth_less_than_a_new_direction() -> None:
    features = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert d_optimal(features, budget=1, measured=[0]) == [2]


def test_a_dear_row_loses_to_a_cheap_one_with_the_same_information() -> None:
    features = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    chosen = d_optimal(features, budget=2.0, costs=[10.0, 1.0, 1.0])
    assert sorted(chosen) == [1, 2]


def test_units_of_a_column_do_not_change_the_design() -> None:
    features = np.random.default_rng(3).normal(size=(30, 4))
    scaled = features * np.array([1.0, 1e9, 1e-6, 42.0])
    assert d_optimal(features, budget=7) == d_optimal(scaled, budget=7)


def test_the_gains_of_a_design_add_up_to_its_information() -> None:
    features = np.random.default_rng(1).normal(size=(40, 5))
    rows = d_optimal(features, budget=9)
    total = sum(choice.gain for choice in explain(features, rows))
    assert total == pytest.approx(information(features, rows) - information(features, []))


def test_more_measurements_never_make_a_prediction_less_sure() -> None:
    features = np.random.default_rng(2).normal(size=(40, 5))
    rows = d_optimal(features, budget=12)
    for shorter, longer in itertools.pairwise(range(0, 13, 3)):
        before, after = (prediction_spread(features, rows[:count]) for count in (shorter, longer))
        assert (after <= before + 1e-9).all()


def test_a_optimal_for_given_targets_is_at_least_as_sure_of_them_as_d_optimal() -> None:
    random = np.random.default_rng(5)
    features = random.normal(size=(60, 4))
    targets = random.normal(size=(20, 4)) * np.array([5.0, 1.0, 0.1, 0.1])
    scale = np.sqrt((features**2).mean(axis=0))

    def variance(rows: list[int]) -> float:
        scaled = features[rows] / scale
        inverse = np.linalg.inv(scaled.T @ scaled + 1e-3 * np.eye(4))
        return float(np.einsum("ij,jk,ik->", targets / scale, inverse, targets / scale))

    assert variance(a_optimal(features, budget=8, targets=targets)) <= variance(d_optimal(features, budget=8))


@given(problem=problems(), num_targets=st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_every_row_of_an_a_optimal_design_lowers_the_variance_of_forecasts_most_per_cost(
    problem: tuple[np.ndarray, np.ndarray], num_targets: int
) -> None:
    features, costs = problem
    targets = np.random.default_rng(num_targets).normal(size=(num_targets, features.shape[1])) if num_targets else None
    asked = np.eye(features.shape[1]) if targets is None else targets

    def variance(rows: list[int]) -> float:
        matrix = features[rows].T @ features[rows] + 0.5 * np.eye(features.shape[1])
        return float(np.trace(asked @ np.linalg.solve(matrix, asked.T)))

    chosen = a_optimal(features, budget=4.0, costs=costs, ridge=0.5, targets=targets, scaled=False)
    for count, row in enumerate(chosen):
        before, spent = variance(chosen[:count]), costs[chosen[:count]].sum()
        worth = [
            (before - variance([*chosen[:count], other])) / costs[other]
            for other in range(len(features))
            if other not in chosen[:count] and spent + costs[other] <= 4.0
        ]
        assert (before - variance([*chosen[:count], row])) / costs[row] >= max(worth) - 1e-6 * max(1.0, before)


def test_a_least_squares_fit_on_a_d_optimal_design_beats_random_designs_of_equal_cost() -> None:
    random = np.random.default_rng(7)
    features = np.concatenate([random.normal(size=(300, 5)) * 0.2, random.normal(size=(30, 5)) * 2.0])
    truth = random.normal(size=5)
    targets = features @ truth + random.normal(size=len(features)) * 0.3

    def error(rows: list[int]) -> float:
        found = np.linalg.lstsq(features[rows], targets[rows], rcond=None)[0]
        return float(np.abs(features @ (found - truth)).mean())

    chance = [error(random_design(len(features), budget=12, seed=seed)) for seed in range(30)]
    assert error(d_optimal(features, budget=12)) < float(np.median(chance)) / 2


def test_the_same_problem_gives_the_same_design() -> None:
    features = np.random.default_rng(4).normal(size=(500, 6))
    assert d_optimal(features, budget=20) == d_optimal(features, budget=20)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"budget": -1}, "budget"),
        ({"budget": 1, "ridge": 0.0}, "ridge"),
        ({"budget": 1, "costs": [1.0]}, "one cost per row"),
        ({"budget": 1, "costs": [1.0, 0.0]}, "above 0"),
        ({"budget": 1, "measured": [2]}, "measured names row 2"),
        ({"budget": 1, "forbidden": [-1]}, "forbidden names row -1"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        d_optimal([[1.0], [2.0]], **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="shape"):
        d_optimal([1.0, 2.0], budget=1)
    with pytest.raises(InvalidInput, match="finite"):
        d_optimal([[math.nan]], budget=1)


@given(problem=problems(), count=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_medoids_keep_the_budget_and_bring_the_rest_nearer_each_time(
    problem: tuple[np.ndarray, np.ndarray], count: int
) -> None:
    points, costs = problem
    rows = k_medoids(points, budget=count, measured=[0])
    assert len(rows) == len(set(rows)) == min(count, len(points) - 1)
    assert 0 not in rows
    apart = mean_distances(points, rows, measured=[0])
    assert all(before >= after - 1e-9 for before, after in itertools.pairwise(apart))
    others = [mean_distances(points, [row], measured=[0])[1] for row in range(1, len(points))]
    assert apart[1] == pytest.approx(min(others))
    assert sum(costs[k_medoids(points, budget=float(costs.sum()) / 2, costs=costs)]) <= costs.sum() / 2 * (1 + 1e-9)


def test_medoids_lie_in_the_middle_of_groups_and_not_at_the_edge() -> None:
    random = np.random.default_rng(0)
    groups = np.concatenate([random.normal(at, 0.3, (30, 2)) for at in (0.0, 6.0)])
    points = np.vstack([groups, [[30.0, 30.0]]])
    first, second = k_medoids(points, budget=2)
    assert {first // 30, second // 30} == {0, 1}
    assert d_optimal(points, budget=1, scaled=False) == [60]
