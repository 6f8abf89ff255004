"""MFU is a share of what the device can do."""

from dataclasses import replace

from tests.builders import make_mlp
from traincast.catalog import device
from traincast.forecast._engine import _peak_flop_per_s


def test_a_format_that_a_device_lacks_counts_at_the_peak_of_the_wider_one_it_runs_in() -> None:
    graph = make_mlp(layers=2)
    narrow, half = (
        replace(graph, ops=tuple(replace(op, dtype=dtype) if op.kind == "matmul" else op for op in graph.ops))
        for dtype in ("fp8", "fp16")
    )
    old = device("v100-sxm2-32g")
    assert _peak_flop_per_s(narrow, old) == _peak_flop_per_s(half, old) == old.matrix_flop_per_s["fp16"]
