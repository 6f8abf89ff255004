"""Ernest's design, CherryPick and GHN + SVR against values worked out by hand."""

import itertools
import math

import numpy as np
import pytest

from builders import make_mlp
from research.baselines.cherrypick import cherrypick, expected_improvement, matern, posterior
from research.baselines.ernest import Run, choose_runs, fit_ernest
from research.baselines.ghn_svr import describe_plainly, fit_svr, fit_svr_by_grid, solve_dual, weight_shape
from traincast.errors import InvalidInput
from traincast.spec._graph import Op


def test_ernest_finds_the_coefficients_that_made_the_times() -> None:
    runs = [Run(size=size, machines=machines) for size in (4, 16) for machines in (1, 2, 3, 4)]
    seconds = [0.1 + 0.02 * run.size / run.machines + 0.05 * math.log(run.machines) for run in runs]
    assert fit_ernest(runs, seconds) == pytest.approx([0.1, 0.02, 0.05, 0.0], abs=1e-9)


def test_ernest_without_a_run_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        fit_ernest([], [])


def test_the_design_stays_within_its_budget_and_near_the_best_subset() -> None:
    candidates = [Run(size=size * machines, machines=machines) for size in (1, 2, 4, 8) for machines in (1, 2, 4, 8)]
    costs = [1.0 + run.size / 16 for run in candidates]
    budget = 0.5 * sum(costs)
    chosen = choose_runs(candidates, costs, budget=budget)
    assert 4 <= len(chosen) < len(candidates)
    # Rounding up shares above 0.3 may overspend a little, as in the original.
    assert sum(costs[index] for index in chosen) <= budget / 0.3
    rows = np.array([run.terms for run in candidates])
    rows = rows / rows.max(axis=0)

    def trace(picked: tuple[int, ...] | list[int]) -> float:
        part = rows[list(picked)]
        return float(np.trace(np.linalg.inv(part.T @ part + 1e-6 * np.eye(4))))

    same_size = itertools.islice(itertools.combinations(range(len(rows)), len(chosen)), 0, 3000, 7)
    assert trace(chosen) <= float(np.median([trace(each) for each in same_size]))


def test_with_money_for_everything_everything_is_run() -> None:
    candidates = [Run(size=size, machines=machines) for size in (2, 8) for machines in (1, 2, 4)]
    assert choose_runs(candidates, [1.0] * 6, budget=100.0) == [0, 1, 2, 3, 4, 5]


def test_a_dearer_candidate_is_taken_last() -> None:
    candidates = [
        Run(size=4, machines=1),
        Run(size=4, machines=1),
        *(Run(size=s, machines=m) for s in (2, 8) for m in (2, 4)),
    ]
    chosen = choose_runs(candidates, [50.0, 1.0, 1.0, 1.0, 1.0, 1.0], budget=5.0)
    assert 0 not in chosen
    assert 1 in chosen


def test_matern_five_halves_at_distances_worked_out_by_hand() -> None:
    kernel = matern(np.array([[0.0]]), np.array([[0.0], [1.0]]), length=1.0)
    root = math.sqrt(5)
    assert kernel[0] == pytest.approx([1.0, (1 + root + 5 / 3) * math.exp(-root)])


def test_expected_improvement_at_the_mean_is_the_density() -> None:
    # With mean = best the gain is sigma / sqrt(2 pi).
    found = expected_improvement(np.array([1.0, 0.0]), np.array([2.0, 1e-9]), best=1.0)
    assert found == pytest.approx([2 / math.sqrt(2 * math.pi), 1.0])


def test_the_process_goes_through_what_it_knows_and_forgets_far_away() -> None:
    known, values = np.array([[0.0], [1.0]]), np.array([1.0, -1.0])
    mean, deviation = posterior(known, values, np.array([[0.0], [1.0], [50.0]]), length=0.5, noise=1e-4)
    assert mean == pytest.approx([1.0, -1.0, 0.0], abs=1e-3)
    assert deviation[2] == pytest.approx(1.0)
    assert deviation[0] < 0.01


def test_cherrypick_finds_a_good_configuration_without_trying_all() -> None:
    grid = [(float(x), float(y)) for x in range(8) for y in range(6)]
    costs = [math.exp(0.08 * ((x - 5) ** 2 + (y - 2) ** 2)) for x, y in grid]
    found = cherrypick(grid, lambda index: costs[index], seed=1)
    assert found.cost <= 1.15 * min(costs)
    assert len(found.runs) < len(grid) / 2
    assert len(set(found.runs)) == len(found.runs)
    assert found.search_cost == pytest.approx(sum(costs[index] for index in found.runs))
    assert found.cost == costs[found.chosen]


def test_cherrypick_stops_at_its_limit_and_never_runs_nothing() -> None:
    found = cherrypick([[0.0], [1.0], [2.0]], lambda index: 1.0 + index, max_runs=2)
    assert len(found.runs) == 2
    with pytest.raises(InvalidInput, match="no configurations"):
        cherrypick([], lambda index: 1.0)


def test_the_dual_of_one_row_is_solved_by_hand() -> None:
    # min b^2/2 - 2b + 0.5|b|: b = 1.5; with the box at 1 it is 1.
    assert solve_dual(np.array([[1.0]]), np.array([2.0]), cost=10.0, margin=0.5) == pytest.approx([1.5], abs=1e-4)
    assert solve_dual(np.array([[1.0]]), np.array([2.0]), cost=1.0, margin=0.5) == pytest.approx([1.0], abs=1e-6)


def test_values_inside_the_margin_need_no_support() -> None:
    rows = np.linspace(0, 1, 9)[:, None]
    model = fit_svr(rows, 0.01 * rows[:, 0], cost=10.0, gamma=1.0, margin=0.05)
    assert len(model.known) == 0
    assert model.predict(rows) == pytest.approx(np.full(9, 0.005))


def test_a_smooth_curve_is_followed_within_the_margin() -> None:
    rows = np.linspace(0, 1, 40)[:, None]
    values = np.sin(4 * rows[:, 0])
    model = fit_svr_by_grid(rows, values, [str(index) for index in range(40)])
    assert float(np.abs(model.predict(rows) - values).mean()) < 0.1


def test_plain_nodes_know_the_forward_pass_and_weights_but_no_batch() -> None:
    small, large = (describe_plainly(make_mlp(batch=batch, width=256)) for batch in (2, 64))
    assert np.array_equal(small.features, large.features)
    assert small.num_nodes == sum(op.phase == "forward" for op in make_mlp().ops)
    wide = describe_plainly(make_mlp(width=512))
    assert not np.array_equal(small.features, wide.features)


def test_the_shape_of_a_convolution_is_out_in_height_width() -> None:
    attrs = {
        "batch": 1, "in_channels": 3, "out_channels": 8, "groups": 1, "in_size": "9x9", "out_size": "9x9", "kernel": "3x5",
        "stride": "1x1", "pass": "forward",
    }  # fmt: skip
    conv = Op(name="aten.convolution", kind="conv", flop=1.0, bytes_read=1.0, bytes_written=1.0, attrs=attrs)
    assert weight_shape(conv) == (8, 3, 3, 5)
