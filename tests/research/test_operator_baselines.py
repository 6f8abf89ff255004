import numpy as np
import pytest

from builders import make_device, make_matmul
from research.baselines.operators import fit_additive, roofline_seconds, scale_waves
from traincast.errors import InvalidInput


def test_the_roofline_is_the_longer_of_arithmetic_and_traffic() -> None:
    device = make_device(matrix_flop_per_s={})
    large, thin = make_matmul(m=4096, n=4096, k=4096), make_matmul(m=4096, n=1, k=4096)
    seconds = roofline_seconds([large, thin], device)
    assert seconds[0] == pytest.approx((large.flop or 0) / 1e13)
    assert seconds[1] == pytest.approx(thin.num_bytes / 1e12)


def test_a_line_through_ops_at_half_the_peak_finds_the_half() -> None:
    device = make_device(matrix_flop_per_s={})
    ops = [make_matmul(m=m, n=2048, k=k) for m in (1024, 2048, 4096) for k in (512, 2048, 8192)]
    seconds = [2 * (op.flop or 0) / 1e13 for op in ops]
    line = fit_additive(ops, seconds, [device] * len(ops))
    asked = make_matmul(m=3000, n=2048, k=4000)
    assert line.seconds([asked], device)[0] == pytest.approx(2 * (asked.flop or 0) / 1e13, rel=0.02)
    assert all(value >= 0 for term in line.terms.values() for value in term)


def test_a_line_needs_a_point() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        fit_additive([], [], [])


def test_waves_scale_streams_with_bandwidth_and_products_with_multiprocessors() -> None:
    origin = make_device(matrix_flop_per_s={})
    wide = make_device(matrix_flop_per_s={}, memory_bytes_per_s=4e12, vector_flop_per_s={"fp32": 4e13})
    big = make_device(matrix_flop_per_s={}, num_sm=160, vector_flop_per_s={"fp32": 2e13})
    stream = make_matmul(m=100_000, n=1, k=1)
    product = make_matmul(m=8192, n=8192, k=8192)
    one = np.array([1.0])
    assert scale_waves(one, [stream], origin=origin, target=wide)[0] == pytest.approx(0.25, rel=0.1)
    assert scale_waves(one, [product], origin=origin, target=big)[0] == pytest.approx(0.5, rel=0.05)


def test_a_device_is_its_own_scale() -> None:
    device = make_device()
    assert scale_waves(np.array([2.0]), [make_matmul()], origin=device, target=device)[0] == pytest.approx(2.0)


def test_waves_need_multiprocessors() -> None:
    with pytest.raises(InvalidInput, match="num_sm"):
        scale_waves(np.array([1.0]), [make_matmul()], origin=make_device(num_sm=None), target=make_device())
