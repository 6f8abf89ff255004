import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_cluster, make_device
from traincast.cost._routes import find_route
from traincast.cost._sharing import Flow, share_links, share_network
from traincast.errors import InvalidInput
from traincast.spec import Cluster, Collective, Link, NodeGroup

LINKS = ("a", "b", "c")
flows = st.builds(
    Flow,
    uses=st.dictionaries(st.sampled_from(LINKS), st.floats(0.1, 4.0), min_size=1),
    limit_bytes_per_s=st.one_of(st.just(math.inf), st.floats(0.1, 50.0)),
    weight=st.floats(0.5, 4.0),
)
capacities = st.fixed_dictionaries({link: st.floats(1.0, 100.0) for link in LINKS})


def ring(num_ranks: int, stride: int) -> Collective:
    return Collective(
        kind="all_reduce", num_bytes=1e9, axis="data", num_ranks=num_ranks, stride=stride, phase="gradient"
    )


@given(many=st.lists(flows, min_size=1, max_size=6), links=capacities)
def test_no_link_carries_more_than_it_can(many: list[Flow], links: dict[str, float]) -> None:
    rates = share_links(many, links)
    for link, capacity in links.items():
        assert sum(rate * flow.uses.get(link, 0.0) for rate, flow in zip(rates, many, strict=True)) <= capacity * (
            1 + 1e-9
        )
    assert all(rate <= flow.limit_bytes_per_s * (1 + 1e-9) for rate, flow in zip(rates, many, strict=True))


@given(many=st.lists(flows, min_size=1, max_size=6), links=capacities)
def test_every_flow_is_held_by_its_limit_or_by_a_full_link_where_none_is_faster(
    many: list[Flow], links: dict[str, float]
) -> None:
    rates = share_links(many, links)
    for rate, flow in zip(rates, many, strict=True):
        held = rate >= flow.limit_bytes_per_s * (1 - 1e-6)
        for link in flow.uses:
            users = [(r, f) for r, f in zip(rates, many, strict=True) if link in f.uses]
            full = sum(r * f.uses[link] for r, f in users) >= links[link] * (1 - 1e-6)
            held = held or (full and all(rate / flow.weight >= r / f.weight * (1 - 1e-6) for r, f in users))
        assert held


@given(many=st.lists(flows, min_size=2, max_size=5), links=capacities)
def test_one_flow_less_never_hurts_the_slowest(many: list[Flow], links: dict[str, float]) -> None:
    plain = [Flow(uses=flow.uses) for flow in many]
    assert min(share_links(plain[1:], links)) >= min(share_links(plain, links)) * (1 - 1e-9)


def test_jobs_on_one_uplink_share_it_and_the_modest_one_keeps_what_it_needs() -> None:
    jobs = [Flow(uses={"uplink": 1.0}, limit_bytes_per_s=limit) for limit in (1.0, 50.0, 50.0)]
    assert share_links(jobs, {"uplink": 11.0}) == pytest.approx([1.0, 5.0, 5.0])


def test_an_unknown_link_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'x'"):
        share_links([Flow(uses={"x": 1.0})], {"a": 1.0})


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
