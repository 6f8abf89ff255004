import pytest

from builders import make_cluster, make_device
from traincast.cost._routes import find_route
from traincast.cost._sharing import share_network
from traincast.spec import Cluster, Collective, Link, NodeGroup


def ring(num_ranks: int, stride: int) -> Collective:
    return Collective(
        kind="all_reduce", num_bytes=1e9, axis="data", num_ranks=num_ranks, stride=stride, phase="gradient"
    )


def network_share(task: Collective, cluster: Cluster) -> float:
    outermost = find_route(task, cluster).levels[-1]
    return outermost.bytes_per_s * outermost.inside


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_equal_nodes_share_as_the_closed_form_says(stride: int) -> None:
    cluster = make_cluster(nodes=4, devices_per_node=8)
    task = ring(32 // stride, stride)
    assert share_network(task, cluster) == pytest.approx(network_share(task, cluster))


def test_a_node_with_a_slow_network_or_with_more_groups_slows_them_all() -> None:
    def mixed(inter: float, small: int) -> Cluster:
        fast = make_cluster(nodes=1, devices_per_node=4).groups[0]
        slow = NodeGroup(device=make_device(), num_nodes=4 // small, devices_per_node=small, intra=fast.intra,
                         inter=Link(name="slow", bytes_per_s=inter, latency_s=1e-5))  # fmt: skip
        return Cluster(name="mixed", groups=(fast, slow))

    # Four rings of two cross from a node of four to another: each has a quarter of the slower network.
    assert network_share(ring(2, 4), mixed(1e10, 4)) == pytest.approx(2.5e9)
    assert network_share(ring(2, 4), mixed(4e9, 4)) == pytest.approx(1e9)
    # Against two nodes of two the node of four still carries four rings.
    assert network_share(ring(2, 4), mixed(1e10, 2)) == pytest.approx(2.5e9)
