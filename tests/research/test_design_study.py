"""A few kernels of a new GPU, chosen by design, teach about as much as all of them."""

import numpy as np
import pytest

from research.studies.design import SHARED, KernelTable, LeftOutGpu, compare, measure_by, read_tables


def made_up() -> KernelTable:
    """Two GPUs that differ by a constant and a bend."""
    random = np.random.default_rng(0)
    sizes = random.normal(size=(1600, 2))
    is_new = np.arange(1600) % 2 == 1
    logs = 0.8 * sizes[:, 0] + 0.3 * sizes[:, 1] - 9 + is_new * (0.7 + 0.2 * sizes[:, 0])
    seconds = np.exp(logs + 0.02 * random.normal(size=1600))
    return KernelTable(
        name="made up", sizes=sizes, peaks=np.zeros((1600, 1)), seconds=seconds, device=np.where(is_new, "new", "old")
    )


def test_measuring_lowers_the_error_and_a_design_needs_less_than_the_full_grid() -> None:
    found = compare(made_up(), "new", num_seeds=1)
    assert found["full"] < 0.1 < found["before"]
    assert found["d-optimal"] < 0.2 * found["grid"]


@pytest.mark.parametrize("method", ["d-optimal", "random"])
def test_a_design_is_paid_at_real_prices_and_measures_nothing_twice(method: str) -> None:
    random = np.random.default_rng(0)
    gpu = LeftOutGpu(
        features=random.normal(size=(60, 4)), prior=np.zeros(60), seconds=np.exp(random.normal(size=60)),
        num_candidates=40,
    )  # fmt: skip
    for measured in measure_by(method, gpu, seed=0):
        assert len(set(measured)) == len(measured)
        assert gpu.costs[measured].sum() <= 0.5 * gpu.costs.sum()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the measured data are not here")
def test_the_shared_data_hold_gpus_to_leave_out() -> None:
    for table in read_tables():
        assert len(set(table.device)) > 3, table.name
