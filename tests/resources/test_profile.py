"""Profiles of drawn steps and of sampled runs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_mlp
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.errors import InvalidInput
from traincast.forecast import forecast
from traincast.profile._resources import Sample, Samples, sampling
from traincast.resources import profile_resources
from traincast.resources._profile import profile_samples
from traincast.resources._traffic import count_traffic
from traincast.spec import RESOURCES, Collective, Job, Parallelism, ResourceProfile, Span, Timeline


def make_timeline(*spans: Span, duration_s: float = 10.0) -> Timeline:
    return Timeline(duration_s=duration_s, spans=spans, shares={})


def make_span(start_s: float, end_s: float, **changes: object) -> Span:
    values: dict[str, object] = {"name": "work", "stream": "device", "category": "compute"}
    return Span(start_s=start_s, end_s=end_s, **{**values, **changes})  # type: ignore[arg-type]


def make_collective(
    kind: str = "all_reduce", *, num_bytes: float = 8e6, num_ranks: int = 4, stride: int = 1
) -> Collective:
    return Collective(kind=kind, num_bytes=num_bytes, axis="data", num_ranks=num_ranks, stride=stride, phase="gradient")


def profile_mlp(*, nodes: int = 1, per_node: int = 1, width: int = 1024, **plan: object) -> tuple[ResourceProfile, ...]:
    answer = forecast(
        Job(graph=make_mlp(layers=8, width=width, batch=256)),
        make_cluster(nodes=nodes, devices_per_node=per_node),
        Parallelism(**plan) if plan else None,  # type: ignore[arg-type]
        costs=Pricing(ops=Roofline()),
        draw=True,
    )
    assert answer.resources[0].step_s == answer.step.seconds
    return answer.resources


def test_half_a_step_of_kernels_is_half_a_step_of_burst_at_full_utilisation():
    (profile,) = profile_resources(make_timeline(make_span(2, 7, num_bytes=1e12)), make_cluster())
    assert (profile.gpu.idle_s, profile.gpu.burst_s, profile.gpu.peak) == pytest.approx((5, 5, 1))
    assert profile.gpu.mean == pytest.approx(0.5)
    assert profile.memory.peak == pytest.approx(0.2)
    assert (profile.memory_bytes, profile.sent_bytes) == (1e12, 0)


def test_kernels_and_gaps_shorter_than_a_window_show_as_half_a_utilisation():
    spans = [make_span(0.01 * k, 0.01 * k + 0.005) for k in range(1000)]
    (profile,) = profile_resources(make_timeline(*spans), make_cluster())
    assert profile.gpu.idle_s == pytest.approx(0, abs=1e-9)
    assert profile.gpu.peak == pytest.approx(0.5)


def test_the_kernel_of_a_collective_keeps_the_device_busy():
    spans = [make_span(0, 5), make_span(4, 9, stream="network", collective=make_collective())]
    (profile,) = profile_resources(make_timeline(*spans), make_cluster(nodes=4))
    assert profile.gpu.burst_s == pytest.approx(9)
    assert profile.sent.burst_s == profile.received.burst_s == pytest.approx(5)
    assert profile.sent_bytes == pytest.approx(2 * 3 / 4 * 8e6)
    assert profile.sent.peak == pytest.approx(2 * 3 / 4 * 8e6 / 5)


def test_a_sampler_slower_than_the_step_sees_its_mean():
    (profile,) = profile_resources(make_timeline(make_span(0, 0.004), duration_s=0.01), make_cluster(), window_s=0.1)
    assert profile.gpu.idle_s == pytest.approx(0, abs=1e-9)
    assert profile.gpu.peak == pytest.approx(0.4)


@given(start=st.floats(0.0, 4.0), length=st.floats(1.0, 5.0), window_s=st.floats(0.02, 0.1))
def test_the_profile_hardly_depends_on_the_sampling_period(start, length, window_s):
    timeline = make_timeline(make_span(start, start + length))
    (fine,) = profile_resources(timeline, make_cluster())
    (other,) = profile_resources(timeline, make_cluster(), window_s=window_s)
    assert other.gpu.burst_s == pytest.approx(fine.gpu.burst_s, abs=2 * fine.window_s)
    assert other.gpu.mean == pytest.approx(fine.gpu.mean, abs=0.02)


@pytest.mark.parametrize(
    ("kind", "link", "network"),
    [
        ("all_reduce", 2 * 7 / 8, 2 * 1 / 2 / 4),
        ("reduce_scatter", 7 / 8, 1 / 2 / 4),
        ("all_gather", 7 / 8, 1 / 2 / 4),
        ("all_to_all", 7 / 8, 4 / 8),
    ],
)
def test_each_rank_of_two_nodes_of_four_carries_its_part_of_what_leaves_the_node(kind, link, network):
    traffic = count_traffic(
        make_collective(kind, num_bytes=1.0, num_ranks=8), make_cluster(nodes=2, devices_per_node=4)
    )
    assert (traffic.link_bytes, traffic.network_bytes) == pytest.approx((link, network))


def test_a_hop_between_stages_leaves_the_node_only_when_they_are_on_different_nodes():
    hop = make_collective("send_recv", num_bytes=1.0, num_ranks=2, stride=4)
    assert count_traffic(hop, make_cluster(nodes=1, devices_per_node=8)).network_bytes == 0
    assert count_traffic(hop, make_cluster(nodes=2, devices_per_node=4)).network_bytes == 1


@settings(max_examples=30)
@given(
    kind=st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv"]),
    nodes=st.integers(1, 8),
    per_node=st.integers(1, 8),
)
def test_no_more_leaves_the_node_than_is_sent(kind, nodes, per_node):
    ranks = 2 if kind == "send_recv" else nodes * per_node
    traffic = count_traffic(
        make_collective(kind, num_ranks=ranks), make_cluster(nodes=nodes, devices_per_node=per_node)
    )
    assert 0 <= traffic.network_bytes <= traffic.link_bytes * (1 + 1e-12)
    if nodes == 1:
        assert traffic.network_bytes == 0


def test_one_device_uses_no_network():
    (profile,) = profile_mlp()
    assert profile.sent_bytes == profile.received_bytes == profile.sent.peak == profile.sent.burst_s == 0
    assert profile.sent.idle_s == pytest.approx(profile.step_s)


@pytest.mark.parametrize(("plan", "rounds"), [({"zero": 0}, 2), ({"zero": 3}, 3)])
def test_data_parallel_ranks_send_their_gradients_once_per_step(plan, rounds):
    width, layers, ranks = 1024, 8, 4
    (profile,) = profile_mlp(nodes=ranks, width=width, data=ranks, **plan)
    weights = 4 * layers * width * width
    # All-reduce is two rounds; full sharding gathers weights twice and scatters gradients once.
    assert profile.sent_bytes == pytest.approx(rounds * (ranks - 1) / ranks * weights)
    assert profile.received_bytes == pytest.approx(profile.sent_bytes)
    assert profile.sent.mean * profile.step_s == pytest.approx(profile.sent_bytes, rel=1e-6)


def test_each_stage_of_a_pipeline_has_its_own_profile_and_waits_in_the_bubble():
    stages = profile_mlp(nodes=4, pipeline=4, micro_batches=4)
    assert [stage.rank for stage in stages] == [0, 1, 2, 3]
    assert all(0.2 < stage.gpu.mean < 0.95 for stage in stages)
    assert stages[0].sent_bytes == pytest.approx(stages[0].received_bytes)
    assert stages[1].sent_bytes == pytest.approx(2 * stages[0].sent_bytes)
    assert sum(stage.sent_bytes for stage in stages) == pytest.approx(sum(stage.received_bytes for stage in stages))


@settings(max_examples=15, deadline=None)
@given(
    data=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2]),
    pipeline=st.sampled_from([1, 2]),
    micro_batches=st.integers(1, 4),
)
def test_every_profile_is_physical(data, tensor, pipeline, micro_batches):
    per_node = 2
    devices = data * tensor * pipeline
    nodes = max(1, devices // per_node)
    stages = profile_mlp(
        nodes=nodes, per_node=devices // nodes, data=data, tensor=tensor, pipeline=pipeline, micro_batches=micro_batches
    )
    for profile in stages:
        for name in RESOURCES:
            assert getattr(profile, name).cycle_s == pytest.approx(profile.step_s)
        assert 0 < profile.gpu.mean <= 1 + 1e-9
        assert profile.gpu.peak <= 1 + 1e-9
        assert profile.memory.peak <= 1 + 1e-9
        assert profile.energy_joules is not None
        assert profile.energy_joules <= 300 * profile.step_s * (1 + 1e-9)
    assert len(stages[0].twelve()) == 12


def test_a_step_without_spans_has_no_profile():
    with pytest.raises(InvalidInput, match="draw"):
        profile_resources(make_timeline(), make_cluster())


def test_forecasts_that_are_not_drawn_have_no_profile():
    answer = forecast(Job(graph=make_mlp()), make_cluster(), costs=Pricing(ops=Roofline()))
    assert answer.resources == ()


def test_the_sampler_s_readings_of_a_real_run_give_the_same_twelve_numbers():
    """Ten steps of 0.2 s at 50 Hz: busy for the first 0.1 s, sending 1 MB in the last 0.05 s."""
    samples = Samples()
    for reading in range(101):
        at_s = reading / 50
        step, inside = divmod(at_s + 1e-9, 0.2)
        samples.values.append(
            Sample(
                at_s=at_s,
                rss_bytes=2e9,
                cpu_s=0.1 * step + min(inside, 0.1),
                sent_bytes=1e6 * step + 1e6 * max(0.0, inside - 0.15) / 0.05,
                received_bytes=5.0,
            )
        )
    measured = profile_samples(
        [value.at_s for value in samples.values],
        busy_s=[value.cpu_s for value in samples.values],
        memory_share=[value.rss_bytes / 8e9 for value in samples.values],
        received_bytes=[value.received_bytes for value in samples.values],
        sent_bytes=[value.sent_bytes for value in samples.values],
        num_steps=10,
    )
    assert measured.step_s == pytest.approx(0.2)
    assert (measured.gpu.idle_s, measured.gpu.burst_s, measured.gpu.peak) == pytest.approx((0.1, 0.1, 1), abs=0.01)
    assert (measured.memory.idle_s, measured.memory.peak) == pytest.approx((0, 0.25))
    assert (measured.sent.idle_s, measured.sent.burst_s) == pytest.approx((0.15, 0.05), abs=0.02)
    assert measured.sent.peak == pytest.approx(2e7, rel=0.01)
    assert measured.sent_bytes == pytest.approx(1e6)
    assert (measured.received.burst_s, measured.received.peak) == (0, 0)


def test_a_real_run_under_the_sampler_gives_a_physical_profile():
    num_steps, sink = 5, 0
    with sampling(interval_s=0.02) as samples:
        for _ in range(num_steps):
            sink += sum(number * number for number in range(300_000))
    values = samples.values
    measured = profile_samples(
        [value.at_s for value in values],
        busy_s=[value.cpu_s for value in values],
        memory_share=[value.rss_bytes / 4e9 for value in values],
        received_bytes=[value.received_bytes for value in values],
        sent_bytes=[value.sent_bytes for value in values],
        num_steps=num_steps,
    )
    cpu_s = values[-1].cpu_s - values[0].cpu_s
    assert sink > 0
    assert measured.step_s * num_steps == pytest.approx(values[-1].at_s - values[0].at_s)
    assert measured.gpu.mean * measured.step_s * num_steps == pytest.approx(cpu_s)
    assert measured.gpu.burst_s > 0
    assert measured.memory.peak > 0
    for name in RESOURCES:
        assert getattr(measured, name).cycle_s == pytest.approx(measured.step_s)
