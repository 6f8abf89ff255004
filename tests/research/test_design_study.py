"""The published curves come from this script; it must run where the data are, and say so where they are not."""

import importlib
import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return importlib.import_module("research.studies.design")


@pytest.fixture(scope="module")
def transfer() -> ModuleType:
    return importlib.import_module("research.studies.transfer")


def made_up(transfer: ModuleType, hosts: dict[str, int], *, quirk: float) -> Any:
    """Machines that differ by a constant; each shape has a quirk of its own, the same on all of them."""
    random = np.random.default_rng(0)
    shapes = random.normal(size=(max(hosts.values()), 2))
    quirks = quirk * random.normal(size=len(shapes))
    logs = np.concatenate([shapes[:count] for count in hosts.values()])
    host = np.repeat(list(hosts), list(hosts.values()))
    level = np.repeat(0.7 * np.arange(len(hosts)), list(hosts.values()))
    own = np.concatenate([quirks[:count] for count in hosts.values()])
    log_seconds = 0.8 * logs[:, 0] + 0.3 * logs[:, 1] - 6 + level + own + 0.02 * random.normal(size=len(logs))
    return transfer.Problem(
        name="made up", logs=logs, sizes=transfer.quadratic(logs), machine=np.zeros((len(logs), 1)),
        seconds=np.exp(log_seconds), host=host,
    )  # fmt: skip


def test_the_time_to_reach_an_error_is_read_off_the_last_crossing(benchmark: ModuleType) -> None:
    curve = benchmark.Curve(
        method="d-optimal", spent_s=[0.0, 1.0, 2.0, 4.0], error=[0.5, 0.1, 0.3, 0.1], low=[0.0] * 4, high=[1.0] * 4
    )
    assert 2.0 < benchmark.time_to_reach(curve, 0.2) < 4.0
    assert benchmark.time_to_reach(curve, 0.05) == float("inf")


def test_curves_fall_as_more_is_measured_and_can_be_drawn(benchmark: ModuleType, transfer: ModuleType) -> None:
    problem = made_up(transfer, {"old": 1000, "new": 2000}, quirk=0.0)
    found, full_s, full_error = benchmark.curves(problem, "new", num_seeds=1)
    for curve in found:
        assert curve.error[-1] < 0.1 < curve.error[0]
        assert curve.spent_s == sorted(curve.spent_s)
    assert benchmark.draw("made up", found, (full_s, full_error)).startswith("<svg")


def test_what_a_shape_needed_on_other_machines_is_expected_of_a_new_one(transfer: ModuleType) -> None:
    problem = made_up(transfer, {"a": 300, "b": 300, "c": 300, "new": 400}, quirk=0.3)
    trees = transfer.trees_of(problem)
    spreads = transfer.learn_spreads(problem, "new", trees=trees)
    rows = np.flatnonzero(problem.host == "new")
    lesson = transfer.ask_others(problem, rows, without=["new"], trees=trees, random=np.random.default_rng(0))
    truth = np.log(problem.seconds[rows])
    shared, unseen = slice(0, 300), slice(300, 400)
    left = truth - transfer.prior_of(lesson, spreads)
    assert np.std(left[shared]) < 0.5 * np.std((truth - lesson.regression)[shared])
    assert np.std(left[unseen]) < 1.2 * np.std((truth - lesson.regression)[unseen])


@pytest.mark.parametrize("method", ["d-optimal", "a-optimal"])
def test_a_design_is_chosen_by_expected_and_paid_at_real_prices(benchmark: ModuleType, method: str) -> None:
    random = np.random.default_rng(5)
    features, real_s = random.normal(size=(60, 4)), random.uniform(0.1, 5.0, size=60)
    now = benchmark.View(features=features, expected_s=np.ones(60), targets=features)
    batches = list(benchmark.designs(method, lambda _: now, real_s, seed=0))
    others = list(benchmark.designs(method, lambda _: now, real_s[::-1], seed=0))
    for share, measured in zip(benchmark.SHARES, batches, strict=True):
        assert real_s[measured].sum() <= share * real_s.sum()
    # Real prices say when the money is spent, not which row comes first.
    first, second = (next(rows for rows in found if rows) for found in (batches, others))
    assert first[0] == second[0]
    assert all(long[: len(short)] == short for short, long in itertools.pairwise(batches))


@pytest.mark.skipif(
    not (ROOT.parent / "shared" / "data").exists(), reason="the shared data are not beside the repository"
)
def test_the_shared_data_hold_machines_to_leave_out(transfer: ModuleType) -> None:
    problem = transfer.collective_problem()
    assert len(set(problem.host)) >= 3
    assert np.isfinite(problem.sizes).all()
