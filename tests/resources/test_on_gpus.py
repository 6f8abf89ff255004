"""The twelve numbers on GPUs: networks that saw measured runs, each number with what it rests on."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.fits.resources.gpus import TWELVE
from traincast import catalog
from traincast.catalog._workloads import workload
from traincast.cost import is_gpu
from traincast.forecast import Engine, Shown
from traincast.report._document import document_forecast
from traincast.report._text import format_forecast
from traincast.resources import ON_GPUS, apply_busy, grounds_of, load_gpu_activity
from traincast.resources._on_gpus import (
    BUSY_INPUTS,
    GPU_RUNS,
    TESTBED,
    TIMELINE,
    GpuActivity,
    Perceptron,
    save_gpu_activity,
)
from traincast.spec import Forecast, Job, Parallelism

ENGINE = Engine()


def ask(nodes: int = 1, per_node: int = 8, *, inter: str | None = None, device: str = "a100-40g", batch: int = 64,
        **plan: int) -> Forecast:  # fmt: skip
    cluster = catalog.cluster(device, nodes=nodes, devices_per_node=per_node, **({"inter": inter} if inter else {}))
    parallelism = Parallelism(**(plan or {"data": cluster.num_devices}))
    return ENGINE.forecast(Job(graph=workload("resnet50", batch=batch)), cluster, parallelism, shown=Shown(spans=True))


def test_gpu_numbers_of_a_data_parallel_step_rest_on_runs_that_were_watched_and_say_so() -> None:
    answer = ask()
    (profile,) = answer.resources
    assert profile.basis == "learned"
    grounds = grounds_of(profile)
    assert {name for name, ground in grounds.items() if ground == GPU_RUNS} == {"gpu_idle_s", "gpu_burst_s"}
    assert {ground for name, ground in grounds.items() if name.startswith("memory")} == {TIMELINE}
    assert profile.gpu.idle_s + profile.gpu.burst_s == pytest.approx(profile.step_s)
    assert answer.run_utilization == pytest.approx(profile.gpu.mean)
    low, high = profile.ranges["gpu_burst_s"]
    assert low <= profile.gpu.burst_s <= high <= profile.step_s * (1 + 1e-9)
    document = document_forecast(answer)["resources"][0]
    assert document["grounds"]["gpu_idle_s"] == GPU_RUNS
    text = format_forecast(answer, explain=True)
    assert "runs that nvidia-smi watched" in text
    assert "as nobody measured it" in text


def test_sockets_between_nodes_burst_as_the_test_bed_showed_and_rdma_as_the_timeline() -> None:
    sockets, rdma = (ask(2, 1, inter=inter).resources[0] for inter in ("ethernet-1g", "infiniband-hdr"))
    names = {f"{resource}_{name}" for resource in ("received", "sent") for name in ("idle_s", "burst_s", "peak")}
    assert {name for name, ground in grounds_of(sockets).items() if ground == TESTBED} == names
    assert sockets.sent.burst_s >= sockets.sent_bytes / 1.25e8 * 0.9
    assert sockets.sent.burst_s * sockets.sent.peak >= sockets.sent_bytes * (1 - 1e-9)
    assert TESTBED not in grounds_of(rdma).values()


def test_plans_and_devices_that_were_never_watched_keep_the_timeline() -> None:
    assert {profile.basis for profile in ask(1, 2, tensor=2).resources} == {"derived"}
    assert not is_gpu(catalog.device("tpu-v4"))
    assert ask(1, 4, device="tpu-v4").resources[0].basis == "derived"


def test_a_faster_input_rate_never_makes_the_share_leave_its_bounds() -> None:
    for batch in (1, 16, 256):
        found = ask(batch=batch).run_utilization
        assert found is None or 0 <= found <= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=len(BUSY_INPUTS), max_size=len(BUSY_INPUTS)), st.floats(0, 1))
def test_any_point_gives_a_share_inside_its_range_and_far_points_the_timeline(
    point: list[float], derived: float
) -> None:
    found = load_gpu_activity().utilization(np.array(point), derived)
    assert 0 <= found.low <= found.mean <= found.high <= 1
    far = load_gpu_activity().utilization(np.array(point) + 1e4, derived)
    assert far.mean == pytest.approx(derived)
    assert far.nearness < 1e-6


def test_a_saved_file_reads_back_equal_and_says_what_taught_it(tmp_path) -> None:
    learned = load_gpu_activity()
    save_gpu_activity(learned, tmp_path / "gpus.json.gz")
    again = load_gpu_activity(tmp_path / "gpus.json.gz")
    point = learned.busy.centre
    assert again.utilization(point, 0.9) == learned.utilization(point, 0.9)
    assert int(learned.about["runs"]) > 300
    assert ON_GPUS.stat().st_size < 30_000


def test_without_the_networks_weights_the_answer_is_another() -> None:
    learned = load_gpu_activity()
    zero = replace(
        learned.busy,
        members=tuple({name: np.zeros_like(one) for name, one in member.items()} for member in learned.busy.members),
    )
    silent = GpuActivity(
        busy=zero, wire=learned.wire, errors=learned.errors, wire_errors=learned.wire_errors, about=learned.about
    )
    point = learned.busy.centre
    assert silent.utilization(point, 0.9).mean == pytest.approx(0.9)
    assert abs(learned.utilization(point, 0.9).mean - 0.9) > 0.005
    assert isinstance(zero, Perceptron)


def test_a_profile_that_never_bursts_is_left_alone() -> None:
    profile = ask().resources[0]
    still = replace(profile, gpu=replace(profile.gpu, burst_s=0.0, idle_s=profile.step_s, mean=0.0))
    assert apply_busy(still, load_gpu_activity().utilization(load_gpu_activity().busy.centre, 1.0)) is still
    assert set(grounds_of(still)) == set(TWELVE)
