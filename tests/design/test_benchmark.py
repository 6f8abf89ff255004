"""The published curves come from this script; it must run where the data are, and say so where they are not."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("design_benchmark", ROOT / "benchmarks" / "design.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_time_to_reach_an_error_is_read_off_the_last_crossing(benchmark: ModuleType) -> None:
    curve = benchmark.Curve(
        method="d-optimal", spent_s=[0.0, 1.0, 2.0, 4.0], error=[0.5, 0.1, 0.3, 0.1], low=[0.0] * 4, high=[1.0] * 4
    )
    assert 2.0 < benchmark.time_to_reach(curve, 0.2) < 4.0
    assert benchmark.time_to_reach(curve, 0.05) == float("inf")


def test_curves_fall_as_more_is_measured_and_can_be_drawn(benchmark: ModuleType) -> None:
    random = np.random.default_rng(0)
    logs = random.normal(size=(3000, 2))
    host = np.array(["old"] * 1000 + ["new"] * 2000)
    log_seconds = 0.8 * logs[:, 0] + 0.3 * logs[:, 1] - 6 + np.where(host == "new", 0.7, 0.0)
    problem = benchmark.Problem(
        name="made up", logs=logs, sizes=benchmark.quadratic(logs), machine=np.zeros((3000, 1)),
        seconds=np.exp(log_seconds + 0.02 * random.normal(size=3000)), host=host,
    )  # fmt: skip
    found, full_s, full_error = benchmark.curves(problem, "new", num_seeds=1)
    for curve in found:
        assert curve.error[-1] < 0.1 < curve.error[0]
        assert curve.spent_s == sorted(curve.spent_s)
    assert benchmark.draw("made up", found, (full_s, full_error)).startswith("<svg")


@pytest.mark.skipif(
    not (ROOT.parent / "shared" / "data").exists(), reason="the shared data are not beside the repository"
)
def test_the_shared_data_hold_machines_to_leave_out(benchmark: ModuleType) -> None:
    problem = benchmark.collective_problem()
    assert len(set(problem.host)) >= 3
    assert np.isfinite(problem.sizes).all()
