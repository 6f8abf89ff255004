import pytest

from traincast import catalog
from traincast.catalog.workloads import from_shape
from traincast.cost.bounds import PowerLaw, is_systolic, sustained_clock
from traincast.cost.pricing import default_ops


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
