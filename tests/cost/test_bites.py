"""Collectives by the bytes that must cross the slowest link: no algorithm can do with less time."""

import math
from dataclasses import replace

import pytest

from builders import make_cluster, make_device, make_matmul
from traincast.cost._collectives import Pipelined
from traincast.cost._routes import CONSTANTS, Transport
from traincast.cost._stack import price_op
from traincast.spec import Cluster, Collective, Estimate, Link, NodeGroup, Stack

SIZE = 4e9
IDEAL = replace(
    CONSTANTS,
    launch_s=0.0, pipeline=0.0, local_copy=0.0, exchange_copy=0.0, in_switch_gain=1.0, step_s=0.0, fill=0.0, long_step_s=0.0,
    long_hop_s=0.0, pair_gain=1.0, exchange_start_s=0.0, switch_start_s=0.0,
    transports={name: Transport(efficiency=1.0, log_sigma=0.3) for name in CONSTANTS.transports},
)  # fmt: skip
"""Links that reach their nominal rate, so that times can be written down."""


def seconds(kind: str, cluster: Cluster, *, ranks: int, stride: int = 1, size: float = SIZE) -> float:
    task = Collective(kind=kind, num_bytes=size, axis="data", num_ranks=ranks, stride=stride, phase="gradient")
    return Pipelined(constants=IDEAL).estimate(task, cluster).seconds


def one_node(devices: int) -> Cluster:
    return make_cluster(
        devices_per_node=devices, intra=Link(name="i", bytes_per_s=1e11, latency_s=0.0, transport="nvlink")
    )


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("kind", "rounds"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1), ("all_to_all", 1)]
)
def test_each_rank_moves_all_but_its_own_part(kind: str, rounds: int, ranks: int) -> None:
    """(p-1)/p of the message, twice for an all-reduce (Patarasuk and Yuan 2009)."""
    expected_s = rounds * (ranks - 1) / ranks * SIZE / 1e11
    assert seconds(kind, one_node(ranks), ranks=ranks) == pytest.approx(expected_s, rel=1e-6)


def test_a_message_to_one_neighbour_crosses_once() -> None:
    assert seconds("send_recv", one_node(2), ranks=2) == pytest.approx(SIZE / 1e11, rel=1e-6)


@pytest.mark.parametrize("nodes", [2, 4])
def test_an_exchange_between_nodes_sends_what_belongs_to_the_others(nodes: int) -> None:
    """Each of 4 ranks sends (p - 4)/p of its message over its part of the node's network."""
    cluster = make_cluster(
        nodes=nodes, devices_per_node=4, intra=Link(name="i", bytes_per_s=1e13, latency_s=0.0, transport="nvlink"),
        inter=Link(name="n", bytes_per_s=4e10, latency_s=0.0, transport="infiniband"),
    )  # fmt: skip
    ranks = 4 * nodes
    expected_s = (ranks - 4) / ranks * SIZE / 1e10
    assert seconds("all_to_all", cluster, ranks=ranks) == pytest.approx(expected_s, rel=1e-6)


def mixed(*rates: float, devices: int = 1) -> Cluster:
    groups = tuple(
        NodeGroup(
            device=make_device(name=f"d{place}"), num_nodes=1, devices_per_node=devices,
            intra=Link(name="i", bytes_per_s=1e13, latency_s=0.0, transport="nvlink"),
            inter=Link(name=f"n{place}", bytes_per_s=rate, latency_s=0.0, transport="infiniband"),
        )
        for place, rate in enumerate(rates)
    )  # fmt: skip
    return Cluster(name="mixed", groups=groups)


@pytest.mark.parametrize("rates", [(1e9, 1e10), (1e10, 1e9), (1e10, 1e9, 5e9)])
def test_a_ring_waits_for_the_slowest_of_unequal_links(rates: tuple[float, ...]) -> None:
    ranks = len(rates)
    expected_s = 2 * (ranks - 1) / ranks * SIZE / min(rates)
    assert seconds("all_reduce", mixed(*rates), ranks=ranks) == pytest.approx(expected_s, rel=1e-6)


def test_a_slower_link_inside_one_of_the_nodes_counts_too() -> None:
    network = Link(name="n", bytes_per_s=1e10, latency_s=0.0)
    slow = NodeGroup(device=make_device(), num_nodes=1, devices_per_node=4,
                     intra=Link(name="s", bytes_per_s=1e10, latency_s=0.0, transport="pcie"), inter=network)  # fmt: skip
    fast = NodeGroup(device=make_device(), num_nodes=1, devices_per_node=4,
                     intra=Link(name="f", bytes_per_s=1e11, latency_s=0.0, transport="nvlink"), inter=network)  # fmt: skip
    only_slow = seconds("all_reduce", Cluster(name="s", groups=(slow,)), ranks=4)
    only_fast = seconds("all_reduce", Cluster(name="f", groups=(fast,)), ranks=4)
    assert only_slow == pytest.approx(10 * only_fast, rel=0.01)


def test_latency_is_paid_on_every_hop_of_a_ring() -> None:
    def small(ranks: int) -> float:
        link = Link(name="i", bytes_per_s=1e15, latency_s=1e-5, transport="nvlink")
        return seconds("all_gather", make_cluster(devices_per_node=ranks, intra=link), ranks=ranks, size=1.0)

    assert small(8) == pytest.approx(7 * 1e-5, rel=1e-3)
    assert small(4) == pytest.approx(3 * 1e-5, rel=1e-3)


def test_the_interval_of_a_long_message_is_what_left_out_machines_showed() -> None:
    sigma = 0.25
    constants = replace(
        CONSTANTS, transports={name: Transport(efficiency=1.0, log_sigma=sigma) for name in CONSTANTS.transports}
    )
    task = Collective(kind="all_reduce", num_bytes=1e12, axis="data", num_ranks=4, stride=1, phase="gradient")
    found = Pipelined(constants=constants).estimate(task, one_node(4))
    assert math.log(found.high_s / found.seconds) == pytest.approx(1.645 * sigma, rel=0.02)
    assert math.log(found.seconds / found.low_s) == pytest.approx(1.645 * sigma, rel=0.02)


def test_a_ring_of_unequal_networks_pays_the_latency_of_the_slowest() -> None:
    def small(*latencies: float) -> float:
        groups = tuple(
            NodeGroup(
                device=make_device(), num_nodes=2, devices_per_node=1,
                intra=Link(name="i", bytes_per_s=1e13, latency_s=0.0, transport="nvlink"),
                inter=Link(name=f"n{latency}", bytes_per_s=1e3 / latency, latency_s=latency, transport="infiniband"),
            )
            for latency in latencies
        )  # fmt: skip
        return seconds("all_gather", Cluster(name="mixed", groups=groups), ranks=4, size=1e-6)

    assert small(1e-6, 1e-4) == pytest.approx(small(1e-4, 1e-4), rel=0.01)
    assert small(1e-4, 1e-6) == pytest.approx(small(1e-4, 1e-4), rel=0.01)


def test_a_large_cluster_of_unequal_networks_is_as_slow_as_its_slowest() -> None:
    def large(*rates: float) -> float:
        groups = tuple(
            NodeGroup(
                device=make_device(), num_nodes=2 * CONSTANTS.most_exact_devices // 8, devices_per_node=8,
                intra=Link(name="i", bytes_per_s=1e15, latency_s=0.0, transport="nvlink"),
                inter=Link(name=f"n{rate}", bytes_per_s=rate, latency_s=0.0, transport="infiniband"),
            )
            for rate in rates
        )  # fmt: skip
        return seconds("all_reduce", Cluster(name="mixed", groups=groups), ranks=4 * CONSTANTS.most_exact_devices)

    assert large(1e9, 1e11) == pytest.approx(large(1e9, 1e9), rel=0.01)
    assert large(1e11, 1e9) == pytest.approx(large(1e9, 1e9), rel=0.01)


def test_workers_share_the_links_of_their_servers() -> None:
    def push(workers: int, servers: int) -> float:
        cluster = make_cluster(
            nodes=workers, inter=Link(name="n", bytes_per_s=1e10, latency_s=0.0, transport="infiniband")
        )
        task = Collective(
            kind="push", num_bytes=SIZE, axis="data", num_ranks=workers, stride=1, phase="gradient", num_servers=servers
        )
        return Pipelined(constants=IDEAL).estimate(task, cluster).seconds

    assert push(8, 2) == pytest.approx(4 * push(8, 8), rel=1e-6)
    assert push(8, 8) == pytest.approx(SIZE / 1e10, rel=1e-6)


@pytest.mark.parametrize(("phase", "call_s"), [("forward", 1e-5), ("backward", 2e-5), ("optimizer", 3e-5)])
def test_a_stack_adds_its_calls_and_scales_once(phase: str, call_s: float) -> None:
    stack = Stack(forward_call_s=1e-5, backward_call_s=2e-5, optimizer_call_s=3e-5, launch_s=4e-6, product_factor=1.5)
    op = make_matmul(phase=phase, num_calls=3, num_kernels=2)
    base = Estimate(seconds=1.0, low_s=0.5, high_s=2.0, limit="compute", ground="transfer")
    found = price_op(stack, op, base)
    assert (found.seconds, found.low_s, found.high_s) == (1.5, 0.75, 3.0)
    assert found.host_s == pytest.approx(3 * call_s + 2 * 4e-6)


@pytest.mark.parametrize("devices", [1, 8])
def test_devices_of_a_node_share_the_memory_of_its_host(devices: int) -> None:
    from traincast.cost._offload import host_bytes_per_s

    alone, shared = (host_bytes_per_s(make_cluster(devices_per_node=count).groups[0]) for count in (1, devices))
    assert shared == pytest.approx(alone / devices)


def test_a_synchronous_step_waits_for_the_slowest_node() -> None:
    from traincast.cost._calibrated import clock_scale, slowest_speed

    group = make_cluster().groups[0]
    cluster = Cluster(name="two", groups=(replace(group, speed=0.25), replace(group, speed=1.0)))
    assert slowest_speed(cluster) == 0.25
    assert clock_scale(1.2, cluster) == pytest.approx(4.8)
    assert clock_scale(1.2, make_cluster()) == 1.0, "a whole core is not throttled"


def test_the_interval_of_an_operator_holds_nine_of_ten_log_errors() -> None:
    from traincast.cost._learned import load_learned

    costs = load_learned()
    ops, device = (make_matmul(m=4096),), make_device()
    sigma = float(costs.predict(ops, device).log_sigma[0])
    found = costs.estimate_ops(ops, device)[0]
    assert math.log(found.high_s / found.low_s) == pytest.approx(2 * 1.645 * sigma, rel=1e-3)


def test_the_interval_of_a_calibrated_operator_holds_nine_of_ten_log_errors() -> None:
    from traincast.cost._calibrated import _with_interval

    found = _with_interval(2.0, 0.3, limit="compute", ground="measured")
    assert math.log(found.high_s / found.low_s) == pytest.approx(2 * 1.645 * 0.3)


def test_half_of_an_exchange_over_pcie_goes_through_the_link_between_two_bridges() -> None:
    def node(devices: int) -> Cluster:
        return make_cluster(
            devices_per_node=devices, intra=Link(name="i", bytes_per_s=1e11, latency_s=0.0, transport="pcie")
        )

    assert seconds("all_to_all", node(8), ranks=8) == pytest.approx(2 * SIZE / 1e11, rel=1e-6)
    assert seconds("all_to_all", node(2), ranks=2) == pytest.approx(SIZE / 2 / 1e11, rel=1e-6)
