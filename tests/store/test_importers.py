"""Traces of the PyTorch profiler and the output of nccl-tests become measurements."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from traincast.errors import InvalidInput
from traincast.store import Store, import_kineto, import_nccl_tests

NCCL = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  11 on      node-1 device  0 [0x10] NVIDIA Example GPU
#  Rank  1 Group  0 Pid  12 on      node-2 device  0 [0x10] NVIDIA Example GPU
NCCL version 2.18.5+cuda12.2
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    20.50    0.00    0.00      0    20.25    0.00    0.00      0
    67108864      16777216     float     sum      -1   1000.0   67.11   67.11      0    990.0   67.79   67.79    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 33.7
"""

RECORDER = """
import sys, torch
from torch.profiler import ProfilerActivity, profile
left, right = torch.rand(512, 256), torch.rand(256, 256)
torch.relu(left @ right)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    for _ in range(2):
        with torch.profiler.record_function("ProfilerStep#1"):
            torch.relu(left @ right)
profiler.export_chrome_trace(sys.argv[1])
"""


def test_nccl_tests_lines_become_collectives_with_ranks_nodes_and_seconds() -> None:
    rows = import_nccl_tests(NCCL, collective="all_reduce")
    assert len(rows) == 4
    experiment, environment, block = rows[2]
    assert experiment.name == "all_reduce"
    assert experiment.attrs == {
        "num_ranks": 2,
        "num_nodes": 2,
        "num_bytes": 67108864,
        "dtype": "fp32",
        "in_place": False,
    }
    assert environment.device == "NVIDIA Example GPU"
    assert environment.software == {"nccl": "2.18.5+cuda12.2"}
    assert block.wall_s == (pytest.approx(1e-3),)


def test_nccl_tests_under_mpirun_with_prefixed_lines_is_the_same() -> None:
    prefixed = "".join(f"[1,0]<stdout>:{line}\n" for line in NCCL.splitlines())
    assert import_nccl_tests(prefixed, collective="all_reduce") == import_nccl_tests(NCCL, collective="all_reduce")


def test_the_collective_is_read_from_the_command_line_in_the_output() -> None:
    rows = import_nccl_tests("mpirun -np 2 ./build/alltoall_perf -b 8\n" + NCCL)
    assert rows[0][0].name == "all_to_all"


def test_nccl_output_that_does_not_name_its_collective_is_asked_for_it() -> None:
    with pytest.raises(InvalidInput, match="--collective"):
        import_nccl_tests(NCCL)
    with pytest.raises(InvalidInput, match="lists no '# Rank"):
        import_nccl_tests("nothing", collective="all_reduce")


def test_a_real_profiler_trace_becomes_operator_and_step_measurements(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "trace.json"
    # In its own process: the profiler of torch keeps global state that outlives it.
    subprocess.run([sys.executable, "-c", RECORDER, str(path)], check=True, capture_output=True)
    rows = import_kineto(path)
    matmuls = [row for row in rows if row[0].name == "aten::mm"]
    assert len(matmuls) == 1
    assert matmuls[0][0].attrs["shapes"].startswith("[[512, 256], [256, 256]")  # type: ignore[union-attr]
    assert len(matmuls[0][2].wall_s) == 2
    assert any(row[0].subject == "step" and len(row[2].wall_s) == 2 for row in rows)
    outer = next(row for row in rows if row[0].name == "aten::matmul")
    # A wrapper's own time does not hold the time of what it calls.
    spans = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "cpu_op"]
    whole_us = {
        name: sum(event["dur"] for event in spans if event["name"] == name) for name in ("aten::matmul", "aten::mm")
    }
    assert sum(outer[2].wall_s) == pytest.approx(
        (whole_us["aten::matmul"] - whole_us["aten::mm"]) * 1e-6, rel=1e-3, abs=1e-9
    )
    with Store(tmp_path / "m.db") as store:
        assert store.append_all(rows) == len(rows)
        assert store.append_all(import_kineto(path)) == 0


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[1, 2]")
    with pytest.raises(InvalidInput, match="not a Kineto trace"):
        import_kineto(tmp_path / "t.json")
