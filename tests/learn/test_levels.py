from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_matmul
from traincast.catalog import device as find_device
from traincast.cost import load_learned, with_levels
from traincast.errors import InvalidInput, UnknownName
from traincast.learn import learn_levels, parse_product, read_products, save_calibration
from traincast.learn._calibrations import load_calibration
from traincast.learn._levels import MeasuredProduct, expect_product_s
from traincast.spec import Calibration, DeviceLevel


def test_a_product_is_read_from_words_and_a_slip_is_named() -> None:
    product = parse_product("h100-sxm-80g bf16 8192x4096x1024 1.6 ms")
    assert product == MeasuredProduct(device="h100-sxm-80g", dtype="bf16", m=8192, n=4096, k=1024, seconds=1.6e-3)
    for slip in ("h100-sxm-80g bf16 8192 1ms", "h100-sxm-80g bf16", "h100-sxm-80g fp64 8x8x8 1ms"):
        with pytest.raises(InvalidInput):
            parse_product(slip)
    with pytest.raises(UnknownName):
        learn_levels([parse_product("h1000 bf16 8192x8192x8192 1ms")])


def test_a_product_as_expected_changes_nothing_and_many_of_twice_the_time_double_products(tmp_path: Path) -> None:
    device = find_device("b200-sxm-180g")
    product = parse_product("b200-sxm-180g bf16 8192x8192x8192 1ms")
    expected_s = expect_product_s(product)
    big = make_matmul(m=16384, n=16384, k=16384, dtype="bf16")
    plain = load_learned()
    before = plain.predict([big], device).seconds[0]
    for ratio in (1.0, 2.0):
        levels = learn_levels([replace(product, seconds=ratio * expected_s)] * 100)
        after = with_levels(plain, levels).estimate_ops([big], device)[0].seconds
        assert after == pytest.approx(ratio * before, rel=0.02)
    other = find_device("h100-sxm-80g")
    assert with_levels(plain, levels).estimate_ops([big], other) == plain.estimate_ops([big], other)
    save_calibration(Calibration(name="one", devices=levels), tmp_path / "one.json")
    assert load_calibration(tmp_path / "one.json").devices == levels


def test_one_product_is_believed_in_part_and_several_more() -> None:
    product = parse_product("l40s bf16 16384x2048x4096 1ms")
    slow = replace(product, seconds=1.2 * expect_product_s(product))
    one, ten = learn_levels([slow])[0], learn_levels([slow] * 10)[0]
    assert 1.05 < one.products["bf16"] < ten.products["bf16"] < 1.2
    assert ten.log_sigma < one.log_sigma < 0.1


def test_a_format_that_was_not_measured_has_the_level_of_those_that_were() -> None:
    level = DeviceLevel(device="b200-sxm-180g", products={"bf16": 1.2}, log_sigma=0.07, num_products=1)
    device, op = find_device("b200-sxm-180g"), make_matmul(m=16384, n=16384, k=16384, dtype="fp8")
    plain = load_learned()
    slower = with_levels(plain, [level]).estimate_ops([op], device)[0].seconds
    assert slower == pytest.approx(1.2 * plain.estimate_ops([op], device)[0].seconds, rel=0.02)


@settings(max_examples=40, deadline=None)
@given(ratio=st.floats(0.3, 3.0), faster=st.floats(1.0, 3.0), what=st.sampled_from(["memory_bytes_per_s", "clock_hz"]))
def test_a_measured_level_leaves_faster_devices_faster(ratio: float, faster: float, what: str) -> None:
    device = find_device("a100-sxm4-80g")
    level = DeviceLevel(device=device.name, products={"bf16": ratio}, log_sigma=0.07, num_products=1)
    model = with_levels(load_learned(), [level])
    ops = [make_matmul(m=m, n=4096, k=4096, dtype="bf16") for m in (8, 64, 512, 8192)]
    quick = replace(device, **{what: getattr(device, what) * faster})
    for slow, fast in zip(model.estimate_ops(ops, device), model.estimate_ops(ops, quick), strict=True):
        assert fast.seconds <= slow.seconds * (1 + 1e-9)


def test_a_table_of_products_needs_its_columns(tmp_path: Path) -> None:
    table = tmp_path / "gemms.csv"
    table.write_text("device,dtype,m,n,k,time_s\nl40s,bf16,8192,8192,8192,0.0041\n")
    assert read_products(table)[0].seconds == 0.0041
    table.write_text("device,dtype,m,n,k\nl40s,bf16,1,1,1\n")
    with pytest.raises(InvalidInput, match="time_s"):
        read_products(table)
    table.write_text("device,dtype,m,n,k,time_s\nl40s,bf16,a,1,1,1\n")
    with pytest.raises(InvalidInput, match="row 1"):
        read_products(table)
