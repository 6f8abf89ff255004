"""Formats with a scale for each block: their bytes, their kernels, and where they run."""

from typing import Any

import pytest

from traincast import catalog
from traincast.plan._ask import ask
from traincast.spec import Forecast, Graph, Question, WorkloadOptions


def llama(precision: str) -> Graph:
    return catalog.workload("llama-3.2-1b", batch=1, seq=512, precision=precision)


def answer(precision: str, device: str, **options: Any) -> Forecast:
    workload = WorkloadOptions(precision=precision, batch=1, seq=4096, **options)
    return ask(
        Question(source="llama-3.1-8b", workload=workload, cluster={"device": device, "devices_per_node": 8},
                 parallelism={"zero": 3})
    )  # fmt: skip


def written(graph: Graph, name: str) -> float:
    return sum(op.bytes_written * count for op, count in zip(graph.ops, graph.counts(), strict=True) if op.name == name)


@pytest.mark.parametrize(
    ("name", "like", "bits", "block"), [("mxfp8", "fp8", 8, 32), ("mxfp4", "fp4", 4, 32), ("nvfp4", "fp4", 4, 16)]
)
def test_a_block_has_a_byte_of_scale_in_each_direction(name: str, like: str, bits: int, block: int) -> None:
    """A number takes 8 + 8/32 bits in MXFP8, 4 + 8/32 in MXFP4 and 4 + 8/16 in NVFP4 (OCP Microscaling 2023; NVIDIA 2025)."""
    plain = written(llama(like), "te.cast_transpose")
    scaled = written(llama(name), "te.quantize_blocks")
    assert scaled / plain == pytest.approx((bits + 8 / block) / bits, rel=1e-3)


def test_block_scales_cost_time_but_products_run_at_the_rate_of_their_format() -> None:
    times = {name: answer(name, "b200").step.seconds for name in ("bf16", "fp8", "mxfp8", "fp4", "mxfp4", "nvfp4")}
    assert times["fp8"] < times["mxfp8"] < 1.05 * times["fp8"] < times["bf16"]
    assert times["fp4"] < times["mxfp4"] < times["nvfp4"] < times["mxfp8"]


def test_a_device_without_such_units_says_what_it_runs() -> None:
    found = answer("mxfp8", "h100-80g")
    assert found.step.seconds == answer("bf16", "h100-80g").step.seconds
    assert any("no matrix units with scales for blocks" in text for text in found.assumptions)
