"""Traces of the PyTorch profiler become measurements."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from traincast.errors import InvalidInput
from traincast.store import Store, import_kineto

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
