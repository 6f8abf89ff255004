"""Time: a rank is never busy longer than the step, and more of anything is never slower."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_device
from laws.draws import Draw, draws
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.resources import profile_resources
from traincast.simulate import simulate_step
from traincast.spec import Cluster, Link, Parallelism, Timeline

MORE = ("flop", "memory", "inside", "between")


def run(draw: Draw, cluster: Cluster, *, drawn: bool = False) -> Timeline:
    model = Pricing(ops=Roofline())
    return simulate_step(draw.program, [model.estimate(stage, cluster) for stage in draw.program.stages], draw=drawn)


def faster(what: str, factor: float) -> Cluster:
    device, intra, inter = (
        make_device(),
        Link(name="fast", bytes_per_s=1e11, latency_s=2e-6),
        Link(name="slow", bytes_per_s=1e10, latency_s=1e-5),
    )
    if what == "flop":
        device = replace(
            device, matrix_flop_per_s={k: v * factor for k, v in device.matrix_flop_per_s.items()},
            vector_flop_per_s={k: v * factor for k, v in device.vector_flop_per_s.items()},
        )  # fmt: skip
    if what == "memory":
        device = replace(device, memory_bytes_per_s=device.memory_bytes_per_s * factor)
    if what == "inside":
        intra = replace(intra, bytes_per_s=intra.bytes_per_s * factor)
    if what == "between":
        inter = replace(inter, bytes_per_s=inter.bytes_per_s * factor)
    return make_cluster(nodes=64, devices_per_node=8, device=device, intra=intra, inter=inter)


@settings(max_examples=40)
@given(
    # Gradients hide behind the kernels of virtual stages even where these wait for the host, which a faster device does not
    # shorten: up to 0.2% of a step.
    draw=draws(virtual_stages=1),
    what=st.sampled_from(MORE),
    factor=st.sampled_from([1.5, 2.0, 8.0]),
)
def test_more_of_anything_is_never_slower(draw: Draw, what: str, factor: float) -> None:
    assert run(draw, faster(what, factor)).duration_s <= run(draw, faster(what, 1.0)).duration_s * (1 + 1e-9), str(draw)


@settings(max_examples=30)
@given(draw=draws(families=("dense", "moe", "vision", "recommender")))
def test_a_rank_is_never_busy_longer_than_the_step(draw: Draw) -> None:
    cluster = faster("flop", 1.0)
    timeline = run(draw, cluster, drawn=True)
    for profile in profile_resources(timeline, cluster):
        assert profile.gpu.mean <= 1 + 1e-9, str(draw)
        assert profile.gpu.idle_s <= timeline.duration_s * (1 + 1e-9), str(draw)
    ends: dict[int, float] = {}
    for span in sorted(timeline.spans, key=lambda one: one.start_s):
        # Gradients that a pipeline reduces in every pass (ZeRO 2 and 3) may queue for a slow network longer than is counted;
        # those that virtual stages send while another chunk runs are drawn behind the last pass.
        if span.stream == "device" or draw.plan.pipeline == 1 or (draw.plan.zero < 2 and draw.plan.virtual_stages == 1):
            assert span.end_s <= timeline.duration_s * (1 + 1e-6), f"{span.name}: {draw}"
        if span.collective is None and span.stream == "device":
            assert span.start_s >= ends.get(span.rank, 0.0) - 1e-9, str(draw)
            ends[span.rank] = span.end_s


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", ["moe", "dense"])
def test_a_drawn_pipeline_ends_when_the_step_does(family: str, precision: str) -> None:
    """Gradients that are sent beside the last backward pass of a stage make it longer, drawn or not."""
    draw = Draw(family=family, precision=precision, plan=Parallelism(tensor=2, pipeline=2, context=2))
    timeline = run(draw, faster("flop", 1.0), drawn=True)
    assert max(span.end_s for span in timeline.spans) == pytest.approx(timeline.duration_s, rel=1e-6)


@pytest.mark.parametrize("factor", [1.5, 2.0, 8.0])
def test_kernels_that_the_host_issues_late_are_no_reason_to_send_the_last_bucket_later(factor: float) -> None:
    draw = Draw(family="adapters", precision="bf16", plan=Parallelism(data=2))
    assert run(draw, faster("flop", factor)).duration_s <= run(draw, faster("flop", 1.0)).duration_s


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_twice_the_replicas_with_half_of_the_accumulation_are_never_slower_but_for_the_exchange(zero: int) -> None:
    def seconds(data: int, micro_batches: int) -> float:
        plan = Parallelism(data=data, micro_batches=micro_batches, zero=zero)
        return run(Draw(family="dense", precision="bf16", plan=plan), faster("between", 1e6)).duration_s

    assert seconds(8, 4) <= seconds(4, 8) * (1 + 1e-9)


def test_a_single_micro_batch_hides_no_gradients_behind_virtual_stages() -> None:
    draw = Draw(family="dense", precision="bf16", plan=Parallelism(pipeline=2, context=2, virtual_stages=2))
    for what in MORE:
        assert run(draw, faster(what, 8.0)).duration_s <= run(draw, faster(what, 1.0)).duration_s * (1 + 1e-9), what


def test_a_worker_that_waits_for_its_servers_is_idle() -> None:
    draw = Draw(family="dense", precision="bf16", plan=Parallelism(data=4, servers=1))
    cluster = make_cluster(nodes=4, inter=Link(name="slow", bytes_per_s=1.25e7, latency_s=1e-4))
    timeline = run(draw, cluster, drawn=True)
    profile = profile_resources(timeline, cluster)[0]
    assert profile.gpu.mean < 0.05
    assert profile.sent_bytes == pytest.approx(draw.graph.role_bytes("gradient"))
    assert profile.received_bytes == pytest.approx(draw.graph.role_bytes("parameter"))
