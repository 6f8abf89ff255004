"""A real profiler trace beside the forecast of the same step."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import make_cluster, make_mlp
from traincast.accuracy._traces import compare_trace
from traincast.errors import InvalidInput
from traincast.forecast import forecast
from traincast.learn import save_calibration
from traincast.report import format_comparison
from traincast.spec import Calibration, Job, MachineRates, Rates
from traincast.spec._measurement import Environment

Run = Callable[..., Any]

MODEL = """
import torch
from torch import nn

def build(batch_size=16):
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.LayerNorm(128), nn.Linear(128, 10))
    return model, (torch.zeros(batch_size, 64),)
"""
RECORDER = """
import sys, torch
from model import build
model, inputs = build(16)
update = torch.optim.AdamW(model.parameters())
def step():
    update.zero_grad()
    model(*inputs).mean().backward()
    update.step()
step()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    for number in range(3):
        with torch.profiler.record_function(f"ProfilerStep#{number}"):
            step()
        torch.rand(300, 300) @ torch.rand(300, 300)
profiler.export_chrome_trace(sys.argv[1])
"""


def make_calibration() -> MachineRates:
    rates = Rates(flop_per_s=1e10, bytes_per_s=5e9, overhead_s=5e-6, log_spread=0.3, num_measurements=1)
    return MachineRates(
        name="here", environment=Environment(device="a CPU", settings={"threads": 1}), rates={"matmul": rates},
        fallback=rates, step_log_spread=0.2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In its own process: the profiler of torch keeps global state that outlives it."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "model.py").write_text(MODEL)
    (folder / "record.py").write_text(RECORDER)
    subprocess.run(
        [sys.executable, "record.py", "trace.json"], cwd=folder, check=True, capture_output=True, timeout=240
    )
    save_calibration(Calibration(name="here", machine=make_calibration()), folder / "here.json")
    return folder


def test_operations_of_a_real_trace_are_ranked_by_what_they_add(run: Run, recorded: Path) -> None:
    ran = run(
        "compare", recorded / "trace.json", f"{recorded}/model.py:build", "--batch", 16, "--calibration",
        recorded / "here.json", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["num_steps"] == 3
    sizes = [abs(op["difference_s"]) for op in found["ops"]]
    assert sizes == sorted(sizes, reverse=True)
    ops = {op["name"]: op for op in found["ops"]}
    # Two linear layers forward; the product outside of the marked steps does not count.
    assert ops["aten.addmm"]["num_measured"] == 2
    assert ops["aten.addmm"]["kind"] == "matmul"
    for name in ("aten.mm", "aten.native_layer_norm", "optimizer.adamw"):
        assert ops[name]["forecast_s"] > 0, name
        assert ops[name]["measured_s"] > 0, name
    parts_s = sum(op["measured_s"] for op in found["ops"]) + found["gap"]["measured_s"]
    assert parts_s == pytest.approx(found["measured_s"], rel=1e-6)
    assert found["kinds"]["matmul"]["measured_s"] == pytest.approx(
        sum(op["measured_s"] for op in found["ops"] if op["kind"] == "matmul")
    )


def test_a_person_sees_both_steps_kinds_and_operations(run: Run, recorded: Path) -> None:
    source = f"{recorded}/model.py:build"
    ran = run("compare", recorded / "trace.json", source, "-b", 16, "--calibration", recorded / "here.json", "--top", 3)
    assert ran.code == 0
    for wanted in ("measured", "forecast", "90% interval", "largest differences", "gaps"):
        assert wanted in ran.out


def test_a_trace_of_a_cpu_without_calibration_is_one_line_and_exit_code_2(run: Run, recorded: Path) -> None:
    ran = run("compare", recorded / "trace.json", "resnet18")
    assert ran.code == 2
    assert "--calibration" in ran.err


def write_trace(path: Path, events: list[dict[str, Any]], **others: Any) -> Path:
    path.write_text(json.dumps({"traceEvents": events, **others}))
    return path


def event(name: str, category: str, start_us: float, duration_us: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start_us,
        "dur": duration_us,
        "pid": 1,
        "tid": 1,
        "args": args,
    }


def test_kernels_of_a_gpu_belong_to_the_operation_that_launched_them(tmp_path: Path) -> None:
    answer = forecast(Job(graph=make_mlp()), make_cluster(), draw=True)
    path = write_trace(
        tmp_path / "gpu.json",
        [
            event("ProfilerStep#1", "user_annotation", 0, 1000),
            event("aten::linear", "cpu_op", 10, 100, **{"External id": 1}),
            event("aten::mm", "cpu_op", 20, 50, **{"External id": 2}),
            event("sgemm", "kernel", 200, 300, **{"External id": 2}),
            event("ncclDevKernel_AllReduce_Sum", "kernel", 400, 200, **{"Collective name": "allreduce"}),
            event("mystery", "kernel", 700, 50, **{"External id": 77}),
        ],
        deviceProperties=[{"name": "NVIDIA A100-SXM4-80GB"}],
    )
    compared = compare_trace(path, answer, make_mlp())
    ops = {op.name: op for op in compared.ops}
    assert compared.device == "NVIDIA A100-SXM4-80GB"
    assert ops["aten.mm"].measured_s == pytest.approx(300e-6)
    assert ops["all_reduce"].kind == "communication"
    assert [op.name for op in compared.extra] == ["all_reduce", "kernel mystery"]
    # 200..600 and 700..750 of 1000 µs are busy.
    assert compared.measured_gap_s == pytest.approx(550e-6)


def test_what_only_the_forecast_has_is_missing(tmp_path: Path) -> None:
    answer = forecast(Job(graph=make_mlp()), make_cluster(), draw=True)
    path = write_trace(tmp_path / "t.json", [event("aten::mm", "cpu_op", 0, 10)])
    compared = compare_trace(path, answer, make_mlp(), num_steps=1)
    assert {op.name for op in compared.missing} == {op.name for op in make_mlp().ops} - {"aten.mm"}


def test_a_trace_without_operations_says_how_to_record_one(tmp_path: Path) -> None:
    answer = forecast(Job(graph=make_mlp()), make_cluster(), draw=True)
    with pytest.raises(InvalidInput, match=r"torch\.profiler"):
        compare_trace(write_trace(tmp_path / "t.json", []), answer, make_mlp())


@pytest.mark.parametrize(
    ("device", "kernel", "reduction"),
    [
        ("NVIDIA H100 80GB HBM3", "sm90_xmma_gemm_bf16", "ncclDevKernel_AllReduce_Sum"),
        ("AMD Instinct MI300X", "Cijk_Ailk_Bljk_BBS_BH_MT128x128", "rccl_AllReduce_kernel"),
    ],
)
def test_kernels_of_any_vendor_are_matched_by_what_they_compute(
    tmp_path: Path, device: str, kernel: str, reduction: str
) -> None:
    """A library that splits or joins operators otherwise shows kernels that no operation of the forecast launched."""
    answer = forecast(Job(graph=make_mlp()), make_cluster(), draw=True)
    path = write_trace(
        tmp_path / "gpu.json",
        [
            event("ProfilerStep#1", "user_annotation", 0, 1000),
            event(kernel, "kernel", 200, 300),
            event(reduction, "kernel", 600, 100),
        ],
        deviceProperties=[{"name": device}],
    )
    compared = compare_trace(path, answer, make_mlp())
    products = next(op for op in compared.ops if op.kind == "matmul")
    assert products.measured_s == pytest.approx(300e-6)
    assert products.forecast_s > 0
    assert products.is_calibrated_away
    assert not any(kernel in op.name for op in compared.extra)
    assert next(op for op in compared.ops if op.name == "all_reduce").kind == "communication"
    planned = sum(span.end_s - span.start_s for span in answer.timeline.spans if span.rank == 0 and "mm" in span.name)
    assert products.forecast_s == pytest.approx(planned), "nothing of the forecast is lost or counted twice"


def test_an_operator_split_otherwise_on_a_cpu_is_no_missing_one(tmp_path: Path) -> None:
    answer = forecast(Job(graph=make_mlp()), make_cluster(), draw=True)
    path = write_trace(
        tmp_path / "t.json", [event("aten::linear", "cpu_op", 0, 10), event("aten::gelu", "cpu_op", 20, 5)]
    )
    compared = compare_trace(path, answer, make_mlp(), num_steps=1)
    assert not any("mm" in op.name for op in compared.missing)
    assert "calibration removes" in format_comparison(compared)
    assert "would remove" in format_comparison(compared)
