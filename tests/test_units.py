"""Prefixes, units and sizes: the numbers that everything else trusts."""

import math

import pytest

from traincast.errors import InvalidInput
from traincast.units import (
    DTYPE_BYTES,
    GIB,
    KWH_JOULES,
    MIB,
    NORMAL_90,
    parse_bytes,
    parse_count,
    parse_seconds,
    show_bytes,
    show_seconds,
)  # fmt: skip


def test_sizes_have_their_prefix() -> None:
    assert (parse_bytes("80GiB"), parse_bytes("25 MB"), parse_bytes("1e9")) == (80 * 2**30, 25e6, 1e9)
    assert (MIB, GIB, parse_bytes("2TiB")) == (2**20, 2**30, 2**41)
    assert show_bytes(48.5 * 2**30) == "48.5 GiB"


def test_times_have_their_unit() -> None:
    assert parse_seconds("36h") == 129_600.0
    assert parse_seconds("2d") == 172_800.0
    assert parse_seconds("90min") == 5_400.0
    assert math.isclose(parse_seconds("250ms"), 0.25)
    assert math.isclose(parse_seconds("3us"), 3e-6)
    assert show_seconds(129_600.0) == "36 h"


def test_counts_have_their_prefix() -> None:
    assert (parse_count("10k"), parse_count("7B"), parse_count("15T"), parse_count("1,024")) == (1e4, 7e9, 15e12, 1024)


def test_types_have_their_size() -> None:
    assert {name: DTYPE_BYTES[name] for name in ("fp32", "fp16", "bf16", "fp8", "fp4", "int64")} == {
        "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 0.5, "int64": 8,
    }  # fmt: skip


def test_nine_of_ten_draws_of_a_normal_distribution_lie_inside() -> None:
    assert math.erf(NORMAL_90 / math.sqrt(2)) == pytest.approx(0.9, abs=1e-3)


def test_a_kilowatt_hour_is_a_kilowatt_for_an_hour() -> None:
    assert KWH_JOULES == 1000 * 3600


@pytest.mark.parametrize("text", ["", "GB", "1..2GB", "-1GB", "12 parsecs", "nan"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    for parse in (parse_bytes, parse_seconds, parse_count):
        with pytest.raises(InvalidInput):
            parse(text)
