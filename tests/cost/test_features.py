from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_device
from traincast.catalog import device as find_device
from traincast.cost._bounds import PowerLaw, generation, l2_bytes_per_s, soaked, sustained_clock, usable_share
from traincast.cost._features import FAMILIES, describe

LAW = PowerLaw()


def product(m: float, n: float, k: float, batch: float = 1.0) -> np.ndarray:
    return np.array([[batch, m, n, k, 0.0, 4.0, 4.0 * batch * (m * k + k * n + m * n)]])


def test_a_card_short_of_power_holds_less_of_its_clock_than_the_same_chip_with_more() -> None:
    low = sustained_clock(find_device("a100-pcie-40g"), "fp32", LAW)
    high = sustained_clock(find_device("a100-pcie-80g"), "fp32", LAW)
    assert 0.6 < low < high <= 1.0


def test_a_card_with_power_to_spare_holds_its_whole_clock() -> None:
    assert sustained_clock(find_device("p100-pcie-16g"), "fp32", LAW) > 0.98


def test_a_card_without_a_rated_power_is_not_capped() -> None:
    assert sustained_clock(make_device(power_watts=None), "fp32", LAW) == 1.0


def test_the_big_ampere_chip_is_not_taken_for_its_small_relatives() -> None:
    big = make_device(architecture="Ampere GA100", power_watts=100.0)
    small = make_device(architecture="Ampere GA102", power_watts=100.0)
    assert sustained_clock(big, "fp32", LAW) < sustained_clock(small, "fp32", LAW)


def test_heat_takes_clock_only_where_power_already_did() -> None:
    t4, p100 = find_device("t4"), find_device("p100-pcie-16g")
    assert sustained_clock(t4, "fp32", LAW, soak=1.0) < 0.9 * sustained_clock(t4, "fp32", LAW)
    assert sustained_clock(p100, "fp32", LAW, soak=1.0) == pytest.approx(sustained_clock(p100, "fp32", LAW), rel=0.02)


def test_a_longer_burst_soaks_more() -> None:
    assert soaked(0.0) == 0.0
    assert soaked(1.0) < soaked(30.0) < soaked(300.0) < 1.0


@pytest.mark.parametrize(
    ("architecture", "year", "older"),
    [("Volta GV100", 2017, "Pascal GP100"), ("Hopper GH100", 2022, "Ampere GA100"), ("", 2022, "Turing TU104")],
)
def test_generations_are_in_order_by_name_or_by_year(architecture: str, year: int, older: str) -> None:
    newer = make_device(architecture=architecture, year=year)
    assert generation(newer) > generation(make_device(architecture=older))


def test_l2_is_faster_than_memory_even_where_the_sheet_is_silent() -> None:
    device = make_device(num_sm=None)
    assert l2_bytes_per_s(device) > device.memory_bytes_per_s


@given(m=st.integers(1, 20_000), n=st.integers(1, 20_000), k=st.integers(1, 20_000))
def test_no_product_is_bounded_below_its_arithmetic_or_its_compulsory_traffic(m: int, n: int, k: int) -> None:
    device = make_device()
    bounded = describe("matmul", product(m, n, k), device, LAW, resident=np.zeros(1))
    num_bytes = 4.0 * (m * k + k * n + m * n)
    floor_s = max(2.0 * m * n * k / device.vector_flop_per_s["fp32"], num_bytes / device.memory_bytes_per_s)
    assert bounded.floor_s[0] >= floor_s * (1 - 1e-9)
    assert bounded.bound_s[0] >= floor_s * (1 - 1e-9)
    assert np.isfinite(bounded.features).all()


@given(scale=st.floats(1.5, 8.0))
def test_all_rates_of_a_device_scaled_scale_the_bound(scale: float) -> None:
    slow = make_device()
    fast = make_device(
        memory_bytes_per_s=scale * slow.memory_bytes_per_s,
        vector_flop_per_s={"fp32": scale * 1e13},
        matrix_flop_per_s={},
        clock_hz=scale * 1e9,
        power_watts=scale * 300.0,
    )
    slow = make_device(matrix_flop_per_s={})
    one = describe("matmul", product(4096, 1024, 1024), slow, LAW, resident=np.zeros(1))
    other = describe("matmul", product(4096, 1024, 1024), fast, LAW, resident=np.zeros(1))
    assert one.bound_s[0] / other.bound_s[0] == pytest.approx(scale, rel=1e-6)


def test_a_tensor_left_in_l2_is_read_faster() -> None:
    row = np.array([[2e6, 1.0, 0.0, 1.0]])
    cold = describe("pointwise", row, make_device(), LAW, resident=np.zeros(1))
    warm = describe("pointwise", row, make_device(), LAW, resident=np.ones(1))
    assert warm.memory_s[0] < cold.memory_s[0]


def test_old_kernels_read_transposed_panels_again_that_new_ones_keep() -> None:
    row = product(8192, 8192, 4096)
    row[0, 4] = 1.0
    old = describe("matmul", row, make_device(architecture="Pascal GP104"), LAW, resident=np.zeros(1))
    new = describe("matmul", row, make_device(architecture="Ampere GA100"), LAW, resident=np.zeros(1))
    assert old.memory_s[0] > 5 * new.memory_s[0]


def test_half_precision_shows_the_networks_the_same_product_as_fp32() -> None:
    device = make_device(power_watts=None)
    row = product(4096, 4096, 4096)
    half = row.copy()
    half[0, 5:] /= 2
    wide = describe("matmul", row, device, LAW, dtype="fp32", resident=np.zeros(1))
    narrow = describe("matmul", half, device, LAW, dtype="fp16", resident=np.zeros(1))
    assert narrow.bound_s[0] < 0.2 * wide.bound_s[0]
    assert narrow.features[0, 2:] == pytest.approx(wide.features[0, 2:], abs=0.8)


def _row(family: str, size: float) -> np.ndarray:
    columns: dict[str, Callable[[float], tuple[float, ...]]] = {
        "matmul": lambda s: (1, s, s, s, 0, 4, 12 * s * s),
        "conv": lambda s: (32, s, s, 1, 196, 196, 9, 0, 4),
        "pointwise": lambda s: (s * s * 8, 1, 0, 1),
        "softmax": lambda s: (s, 512, 4096 * s),
        "norm": lambda s: (s, 1024, 8192 * s),
    }
    return np.array([columns[family](size)], dtype=np.float64)


@pytest.mark.parametrize("family", FAMILIES)
def test_features_saturate_instead_of_growing_with_the_size(family: str) -> None:
    large = describe(family, _row(family, 2e5), make_device(), LAW).features
    larger = describe(family, _row(family, 4e6), make_device(), LAW).features
    assert np.abs(larger - large).max() <= 4.0
    assert np.abs(larger).max() <= 16.0


def test_wide_multiprocessors_feed_fewer_of_their_lanes_unless_power_already_holds_them_back() -> None:
    h100, l4 = find_device("h100-sxm-80g"), find_device("l4")
    assert usable_share(h100, "fp32", LAW) < sustained_clock(h100, "fp32", LAW)
    assert usable_share(l4, "fp32", LAW) == sustained_clock(l4, "fp32", LAW)
    assert usable_share(h100, "bf16", LAW) == sustained_clock(h100, "bf16", LAW)
