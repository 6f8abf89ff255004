"""What is assumed about links that a question names only by their rate."""

import pytest

from traincast.cost import describe_links
from traincast.cost._routes import settle_transport
from traincast.resolve._place import read_cluster


def assumed(device: str, rate: str) -> tuple[str, str]:
    """The transport between nodes, and what the answer says."""
    cluster, _ = read_cluster({"device": device, "nodes": 2, "devices_per_node": 4, "inter": rate})
    link = settle_transport(cluster.groups[0].inter, between_nodes=True)
    return link.transport, " ".join(describe_links(cluster))


@pytest.mark.parametrize(
    ("rate", "transport", "other"),
    [("25 Gb/s", "sockets", "infiniband"), ("50 Gb/s", "sockets", "infiniband"), ("100 Gb/s", "infiniband", "sockets"),
     ("400 Gb/s", "infiniband", "tcpx")],
)  # fmt: skip
def test_a_rate_alone_says_the_transport_and_the_interval_covers_the_other(
    rate: str, transport: str, other: str
) -> None:
    found, said = assumed("a100-80g", rate)
    assert found == transport
    assert f"{transport} is assumed, and the interval covers {other}" in said


def test_connections_of_rented_devices_are_limited_and_the_answer_says_so() -> None:
    assert "one connection is taken to carry 5 Gb/s" in assumed("t4", "50 Gb/s")[1]
    assert "one connection" not in assumed("rtx-2080ti", "50 Gb/s")[1]
    assert "one connection" not in assumed("t4", "100 Gb/s")[1]


@pytest.mark.parametrize(("device", "transport"), [("rtx-2080ti", "pcie-host"), ("quadro-rtx-6000", "pcie")])
def test_a_rate_inside_the_node_does_not_give_peer_access(device: str, transport: str) -> None:
    cluster, _ = read_cluster({"device": device, "devices_per_node": 8, "intra": "15.75 GB/s"})
    assert cluster.groups[0].intra.transport == transport


def test_nvlink_joins_nodes_into_domains_of_any_size() -> None:
    table = {"device": "h100-80g", "nodes": 8, "devices_per_node": 8}
    apart, _ = read_cluster(table)
    joined, _ = read_cluster({**table, "nvlink_domain": 16})
    assert not apart.groups[0].domains
    assert [(one.num_devices, one.link) for one in joined.groups[0].domains] == [(16, joined.groups[0].intra)]
    racks, _ = read_cluster({"device": "gb200", "nodes": 18, "devices_per_node": 4, "nvlink_domain": 36})
    assert [one.num_devices for one in racks.groups[0].domains] == [36]
