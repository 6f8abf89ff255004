"""Bytes in and bytes out told apart, and energy by device."""

import pytest

from builders import make_cluster, make_device, make_mlp
from traincast.forecast import forecast
from traincast.resources._profile import profile_resources, profile_samples
from traincast.resources._traffic import count_traffic
from traincast.spec import Collective, Job, Parallelism, Span, Timeline


def message(kind: str, *, ranks: int, size: float = 1e6) -> Collective:
    return Collective(kind=kind, num_bytes=size, axis="pipeline", num_ranks=ranks, stride=1, phase="forward")


def make_span(direction: str, start_s: float) -> Span:
    return Span(name="send", category="communication", stream="network", rank=0, start_s=start_s, end_s=start_s + 0.1,
                collective=message("send_recv", ranks=2), direction=direction)  # fmt: skip


def make_timeline(*spans: Span) -> Timeline:
    return Timeline(duration_s=1.0, spans=spans, shares={"communication": 1.0}, busy_s=0.0)


@pytest.mark.parametrize(("direction", "received", "sent"), [("in", 1e6, 0.0), ("out", 0.0, 1e6), ("both", 1e6, 1e6)])
def test_what_comes_in_is_received_and_what_goes_out_is_sent(direction: str, received: float, sent: float) -> None:
    cluster = make_cluster(nodes=2)
    found = profile_resources(make_timeline(make_span(direction, 0.2)), cluster)[0]
    assert (found.received_bytes, found.sent_bytes) == (pytest.approx(received), pytest.approx(sent))
    assert (found.received.peak > 0, found.sent.peak > 0) == (received > 0, sent > 0)


def test_counters_of_a_run_keep_their_direction() -> None:
    times = [0.0, 1.0, 2.0, 3.0]
    found = profile_samples(
        times,
        busy_s=times,
        memory_share=[0.5] * 4,
        received_bytes=[0, 10, 20, 30],
        sent_bytes=[0, 1, 2, 3],
        num_steps=3,
    )
    assert (found.received_bytes, found.sent_bytes) == (10.0, 1.0)


@pytest.mark.parametrize(
    ("kind", "ranks", "nodes", "link", "network"),
    [
        ("all_reduce", 4, 4, 2 * 3 / 4, 2 * 3 / 4),
        ("all_reduce", 8, 2, 2 * 7 / 8, 2 * 1 / 2 / 4),
        ("all_gather", 4, 4, 3 / 4, 3 / 4),
        ("all_to_all", 8, 2, 7 / 8, 4 / 8),
        ("send_recv", 2, 2, 1.0, 1.0),
        ("all_reduce", 1, 1, 0.0, 0.0),
    ],
)
def test_the_bytes_of_one_rank_are_those_of_the_optimal_algorithm(
    kind: str, ranks: int, nodes: int, link: float, network: float
) -> None:
    cluster = make_cluster(nodes=nodes, devices_per_node=max(1, ranks // nodes))
    found = count_traffic(message(kind, ranks=ranks, size=1.0), cluster)
    assert (found.link_bytes, found.network_bytes) == (pytest.approx(link), pytest.approx(network))


def test_a_pipeline_receives_before_it_sends_in_the_middle_and_only_one_way_at_its_ends() -> None:
    graph = make_mlp(layers=4, folded=False)
    answer = forecast(Job(graph=graph), make_cluster(nodes=2), Parallelism(pipeline=2), draw=True)
    first, last = profile_resources(answer.timeline, make_cluster(nodes=2))
    # Activations go forwards and their gradients, as large, come back.
    assert first.sent_bytes == pytest.approx(last.received_bytes)
    assert first.received_bytes == pytest.approx(last.sent_bytes)


def test_a_device_of_one_rank_spends_its_own_power() -> None:
    watts = 250.0
    cluster = make_cluster(nodes=1, devices_per_node=4, device=make_device(power_watts=watts))
    answer = forecast(Job(graph=make_mlp()), cluster, Parallelism(data=4), draw=True)
    found = answer.resources[0]
    assert found.energy_joules is not None
    assert 0 < found.energy_joules <= watts * answer.timeline.duration_s * (1 + 1e-9)
