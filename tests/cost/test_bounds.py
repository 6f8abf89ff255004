import pytest

from traincast import catalog
from traincast.catalog._workloads import from_shape
from traincast.cost._bounds import PowerLaw, is_systolic, sustained_clock, usable_share
from traincast.cost._pricing import default_ops


def share_of_peak(device_name: str) -> float:
    """Of the large products of a decoder's training step in bf16."""
    graph = from_shape(
        arch="llama", n_layers=1, hidden=8192, heads=64, ffn=28672, vocab=32000, seq=2048, batch=4, precision="bf16"
    )
    device = catalog.device(device_name)
    products = [op for op in graph.ops if op.kind == "matmul"]
    seconds = sum(estimate.seconds for estimate in default_ops().estimate_ops(products, device))
    return sum(op.flop or 0.0 for op in products) / seconds / device.matrix_flop_per_s["bf16"]


@pytest.mark.parametrize("name", ["tpu-v3", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "gaudi2", "trainium1"])
def test_large_products_keep_a_systolic_array_busy(name: str) -> None:
    assert is_systolic(catalog.device(name))
    assert 0.7 < share_of_peak(name) < 1.0


def test_the_watts_of_a_systolic_chip_say_nothing_about_its_clock() -> None:
    assert float(sustained_clock(catalog.device("tpu-v4"), "bf16", PowerLaw())) == 1.0
    assert float(sustained_clock(catalog.device("h100-sxm-80g"), "bf16", PowerLaw())) < 1.0


@pytest.mark.parametrize("name", ["h100-sxm-80g", "mi300x", "t4", "cpu"])
def test_other_devices_are_not_taken_for_systolic(name: str) -> None:
    assert not is_systolic(catalog.device(name))


def test_kepler_cannot_feed_all_its_lanes() -> None:
    kepler, pascal = catalog.device("k80-1die"), catalog.device("p100-pcie-16g")
    assert float(usable_share(kepler, "fp32", PowerLaw())) == pytest.approx(2 / 3)
    assert float(usable_share(pascal, "fp32", PowerLaw())) > 2 / 3


def test_the_power_of_an_mi300x_holds_its_matrix_units_further_back_than_an_mi325x() -> None:
    shares = [float(sustained_clock(catalog.device(name), "bf16", PowerLaw())) for name in ("mi300x", "mi325x")]
    assert 0.4 < shares[0] < shares[1] < 0.8
