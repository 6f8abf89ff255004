import datetime
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.catalog import cluster, cluster_from, device, devices, link, node, nodes
from traincast.catalog._names import load_facts
from traincast.catalog._nodes import find_offer, read_cluster
from traincast.errors import InvalidInput, UnknownName
from traincast.files import encode
from traincast.spec import Device, Link

DEVICE_NAMES = tuple(load_facts("device").entries)


def test_every_node_names_a_known_device_and_known_links() -> None:
    names = {each.name for each in devices()}
    known_links = load_facts("link").entries
    for name, entry in load_facts("node").entries.items():
        assert entry["device"] in names, name
        assert entry["inter"] in known_links, name
        assert entry.get("intra") in {None, *known_links}, name
        assert (entry.get("intra") is not None) or entry["devices_per_node"] == 1, name


def test_there_are_nodes_of_every_large_provider_and_known_systems() -> None:
    providers = {each.provider for each in nodes()}
    assert {"aws", "gcp", "azure", "oracle", "lambda", "nebius", "runpod", "coreweave", "onprem"} <= providers


def test_every_price_has_a_region_a_date_and_a_source() -> None:
    priced = [each for each in nodes() if each.usd_per_hour is not None]
    assert priced
    for each in priced:
        assert 2022 <= datetime.date.fromisoformat(each.price_date).year <= 2026, each.name
        assert each.price_source, each.name
        assert each.price_region, each.name
        assert 0.05 < each.usd_per_hour / each.devices_per_node < 20, each.name


def test_a_node_without_a_price_has_no_date_of_one() -> None:
    for each in nodes():
        assert (each.usd_per_hour is None) == (each.price_date == "") == (each.price_source == ""), each.name


def test_a_machine_brings_its_devices_links_and_price() -> None:
    made = cluster("aws-p4d.24xlarge", nodes=2)
    (group,) = made.groups
    assert (made.num_nodes, made.num_devices, group.device.name) == (2, 16, "a100-sxm4-40g")
    assert group.intra == link("nvswitch-a100")
    assert group.inter.bytes_per_s == 50e9
    assert made.usd_per_hour == pytest.approx(2 * (node("p4d.24xlarge").usd_per_hour or 0))
    assert made.price_date
    assert made.price_source


def test_a_device_alone_gets_its_typical_node() -> None:
    (group,) = cluster(device="h100", nodes=2).groups
    assert (group.devices_per_node, group.intra.name, group.inter.name) == (8, "nvswitch-h100", "8x infiniband-ndr")
    (small,) = cluster(device="t4").groups
    assert (small.intra.name, small.inter.name) == ("pcie3-x16", "ethernet-25g-rented")


@pytest.mark.parametrize("name", DEVICE_NAMES)
def test_every_device_makes_a_cluster(name: str) -> None:
    made = cluster(device=name, nodes=2, devices_per_node=2)
    assert made.num_devices == 4
    assert made.groups[0].device == device(name)


def test_a_device_name_may_stand_in_the_place_of_a_machine() -> None:
    assert cluster("h100", nodes=3) == cluster(device="h100", nodes=3, name="3 x h100")


def test_everything_can_be_overridden() -> None:
    mine = Link(name="mine", bytes_per_s=1e9, latency_s=1e-6)
    made = cluster(
        device="a100", nodes=3, devices_per_node=4, intra=mine, inter="100 Gb/s", price=12.5, speed=0.9, name="lab"
    )
    (group,) = made.groups
    assert (group.num_nodes, group.devices_per_node, group.intra, group.speed) == (3, 4, mine, 0.9)
    assert group.inter.bytes_per_s == 12.5e9
    assert (made.name, made.usd_per_hour, made.price_source, made.price_date) == ("lab", 37.5, "given", "")


def test_no_price_is_unknown_and_not_zero() -> None:
    assert cluster(device="h100", price=None).usd_per_hour is None
    assert cluster(device="rtx-2080-maxq").usd_per_hour is None
    assert cluster("dgx-h100").usd_per_hour is None


@given(count=st.integers(1, 16))
def test_more_devices_in_a_node_never_have_less_network(count: int) -> None:
    def network(devices_per_node: int) -> float:
        return cluster(device="a100", devices_per_node=devices_per_node).groups[0].inter.bytes_per_s

    assert network(count) <= network(count + 1) <= network(8)


def test_the_looked_up_price_lies_between_the_offers_and_says_where_it_comes_from() -> None:
    offers = [
        each.usd_per_hour
        for each in nodes()
        if each.device.name == "h100-sxm-80g" and each.devices_per_node == 8 and each.usd_per_hour is not None
    ]
    found = find_offer(device("h100"), devices_per_node=8)
    assert found.usd_per_hour is not None
    assert min(offers) <= found.usd_per_hour <= max(offers)
    assert "aws-p5.48xlarge" in found.source
    assert found.date


def test_a_size_nobody_sells_is_priced_by_device_and_says_so() -> None:
    three, four = (find_offer(device("a10"), devices_per_node=count) for count in (3, 4))
    assert three.usd_per_hour == pytest.approx(0.75 * (four.usd_per_hour or math.nan))
    assert "scaled from 4 to 3" in three.source


def test_part_of_a_machine_may_be_used_but_not_more_than_it_has() -> None:
    assert cluster("dgx-h100", devices_per_node=4).num_devices == 4
    with pytest.raises(InvalidInput, match="dgx-h100 has 8"):
        cluster("dgx-h100", devices_per_node=9)


@pytest.mark.parametrize(
    "bad",
    [
        {"nodes": 0},
        {"nodes": -1},
        {"nodes": 1.5},
        {"nodes": True},
        {"nodes": "2"},
        {"devices_per_node": 0},
        {"devices_per_node": 2.0},
        {"price": math.nan},
        {"price": -1.0},
        {"price": math.inf},
        {"price": "cheap"},
        {"speed": 0.0},
        {"speed": math.nan},
        {"intra": "0 Gb/s"},
        {"inter": math.nan},
        {"inter": "carrier-pigeon"},
    ],
)
def test_a_bad_value_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        cluster(device="h100", **bad)


def test_a_machine_and_a_device_together_or_neither_are_refused() -> None:
    with pytest.raises(InvalidInput, match="not both"):
        cluster("dgx-h100", device="h100")
    with pytest.raises(InvalidInput, match="give a machine"):
        cluster()


def test_an_unknown_machine_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match=r"did you mean 'aws-p4d\.24xlarge'"):
        cluster("aws-p4d.24xlage")
    with pytest.raises(UnknownName, match="did you mean 'h100'"):
        cluster("h10")


def test_a_device_of_ones_own_needs_its_own_links() -> None:
    own = {"name": "mine", "memory_bytes": 8e9, "memory_bytes_per_s": 1e11, "vector_flop_per_s": {"fp32": 1e12}}
    with pytest.raises(InvalidInput, match="devices_per_node, intra and inter"):
        cluster_from({"device": own, "nodes": 2})
    made = cluster_from({"device": own, "devices_per_node": 2, "intra": "pcie4", "inter": "25gbe", "nodes": 2})
    assert (made.groups[0].device.name, made.num_devices, made.usd_per_hour) == ("mine", 4, None)
    with pytest.raises(InvalidInput, match="not in the catalogue"):
        cluster(device=Device(name="mine", memory_bytes=1e9, memory_bytes_per_s=1e9, vector_flop_per_s={"fp32": 1e9}))


def test_mixed_groups_come_from_a_plain_table() -> None:
    made = cluster_from(
        {
            "name": "lab",
            "groups": [
                {"node": "dgx-h100", "num_nodes": 2},
                {"device": "a100", "nodes": 3, "devices_per_node": 4, "inter": {"bytes_per_s": 1e9}, "price": 9},
            ],
        }
    )
    assert made.name == "lab"
    assert [(g.device.name, g.num_devices) for g in made.groups] == [("h100-sxm-80g", 16), ("a100-sxm4-40g", 12)]
    assert made.groups[1].inter.bytes_per_s == 1e9
    assert made.usd_per_hour is None


def test_one_group_needs_no_list() -> None:
    assert cluster_from({"device": "h100", "nodes": 2}).groups == cluster(device="h100", nodes=2).groups


def test_a_cluster_written_as_plain_data_comes_back_equal() -> None:
    made = cluster("aws-p4d.24xlarge", nodes=2)
    assert cluster_from(encode(made)) == made


def test_a_cluster_is_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text('[cluster]\nname = "lab"\n[[cluster.groups]]\ndevice = "t4"\nnodes = 4\ndevices_per_node = 1\n')
    assert read_cluster(path).num_devices == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"device": "h100", "nodez": 2}, "unknown key 'nodez'"),
        ({"device": "h100", "devices_per_nod": 2}, "did you mean 'devices_per_node'"),
        ({"device": "h100", "nodes": 2, "num_nodes": 2}, "mean the same"),
        ({"device": "h100", "nodes": 0}, "at least 1"),
        ({"device": "h100", "usd_per_hour": math.nan}, "usd_per_hour is nan"),
        ({"device": "h100", "speed": "fast"}, "speed is 'fast'"),
        ({"device": 5}, "must be a name or a table"),
        ({"groups": []}, "at least one group"),
        ({"groups": [3]}, "must be a table"),
        ({"name": 5, "device": "h100"}, "must be a text"),
        ({"device": {"name": "x"}}, "lacks"),
    ],
)
def test_a_bad_table_is_refused_with_its_place(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        cluster_from(data)


def test_a_slice_of_a_pod_has_the_network_of_all_its_hosts() -> None:
    host = cluster(device="tpu-v5e").groups[0]
    whole = cluster(device="tpu-v5e", nodes=2, devices_per_node=256).groups[0]
    assert whole.inter.bytes_per_s == pytest.approx(32 * host.inter.bytes_per_s)
    assert whole.intra == host.intra


def test_more_gpus_than_a_node_usually_has_do_not_bring_ports() -> None:
    usual, many = cluster(device="h100").groups[0], cluster(device="h100", devices_per_node=16).groups[0]
    assert many.inter.bytes_per_s == usual.inter.bytes_per_s


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72", "p6e-gb200", "a4x", "nd-gb200-v6"])
def test_hosts_of_a_rack_share_one_domain(name: str) -> None:
    group = cluster(name, nodes=18).groups[0]
    assert (group.devices_per_node, group.num_devices) == (4, 72)
    assert [(domain.num_devices, domain.link.transport) for domain in group.domains] == [(72, "nvswitch")]


def test_hosts_around_a_device_share_the_domain_that_it_usually_has() -> None:
    assert cluster(device="gb200", nodes=16).groups[0].domains[0].num_devices == 72
    assert cluster(device="gb200", nodes=2, devices_per_node=64).groups[0].domains == ()
    assert cluster(device="tpu-v5p", nodes=8, devices_per_node=4).groups[0].domains[0].link.transport == "ici"


def test_domains_of_ones_own_are_read_from_plain_data() -> None:
    table = {"device": "a100-pcie-80g", "nodes": 2, "devices_per_node": 4, "intra": "pcie4",
             "domains": [{"num_devices": 2, "link": "nvlink3-pairs"}]}  # fmt: skip
    assert [domain.num_devices for domain in cluster_from(table).groups[0].domains] == [2]
    with pytest.raises(InvalidInput, match="divide"):
        cluster_from({**table, "domains": [{"num_devices": 3, "link": "nvlink3-pairs"}]})
    with pytest.raises(InvalidInput, match="unknown key 'size'"):
        cluster_from({**table, "domains": [{"size": 2}]})


def test_domains_can_be_written_in_words() -> None:
    shape = {"device": "a100-pcie-80g", "nodes": 2, "devices_per_node": 4}
    words = cluster_from({**shape, "domains": "2:nvlink3-pairs,8:2x infiniband-hdr"})
    table = cluster_from(
        {
            **shape,
            "domains": [{"num_devices": 2, "link": "nvlink3-pairs"}, {"num_devices": 8, "link": "2x infiniband-hdr"}],
        }
    )
    assert words == table
    with pytest.raises(InvalidInput, match="2:nvlink3-pairs"):
        cluster_from({**shape, "domains": "nvlink3-pairs"})
