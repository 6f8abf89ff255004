import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import make_cluster
from traincast.cost.collectives import HYBRID_CUBE, LONGEST_RING, LinkConstants, Pipelined, Route, find_route
from traincast.spec import Collective, Link
from traincast.spec.program import COLLECTIVES

MODEL = Pipelined()
kinds = st.sampled_from(COLLECTIVES)
sizes = st.floats(1.0, 1e11)


def route(*, per_node: int = 4, nodes: int = 1, intra: float = 3e11, inter: float = 5e10, **changes: object) -> Route:
    return Route(
        num_ranks=per_node * nodes,
        per_node=per_node,
        num_nodes=nodes,
        intra_bytes_per_s=intra,
        inter_bytes_per_s=inter,
        **changes,  # type: ignore[arg-type]
    )


@given(kind=kinds, small=sizes, factor=st.floats(1.0, 100.0), nodes=st.integers(1, 64))
def test_more_bytes_are_never_faster(kind: str, small: float, factor: float, nodes: int) -> None:
    way = route(nodes=nodes)
    assert MODEL.seconds(kind, small * factor, way) >= MODEL.seconds(kind, small, way) * (1 - 1e-12)


@given(kind=kinds, size=sizes, factor=st.floats(1.0, 100.0), nodes=st.integers(1, 64))
def test_more_bandwidth_is_never_slower(kind: str, size: float, factor: float, nodes: int) -> None:
    fast = route(nodes=nodes, intra=3e11 * factor, inter=5e10 * factor)
    assert MODEL.seconds(kind, size, fast) <= MODEL.seconds(kind, size, route(nodes=nodes)) * (1 + 1e-12)


@given(size=sizes, nodes=st.integers(1, 63))
def test_a_node_more_is_never_faster_for_the_same_message(size: float, nodes: int) -> None:
    more = MODEL.seconds("all_reduce", size, route(nodes=nodes + 1))
    assert more >= MODEL.seconds("all_reduce", size, route(nodes=nodes)) * (1 - 1e-12)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_one_rank_sends_nothing(kind: str) -> None:
    assert MODEL.seconds(kind, 1e9, route(per_node=1)) == 0


def test_gathering_and_scattering_together_cost_about_a_reduction() -> None:
    way = route(per_node=8)
    halves = MODEL.seconds("reduce_scatter", 1e9, way) + MODEL.seconds("all_gather", 1e9, way)
    assert halves == pytest.approx(MODEL.seconds("all_reduce", 1e9, way), rel=0.02)


def _latency(kind: str, nodes: int, **changes: object) -> float:
    return MODEL.seconds(kind, 1.0, route(per_node=1, nodes=nodes, **changes)) - MODEL.constants.launch_s  # type: ignore[arg-type]


def test_rings_grow_with_the_nodes_and_trees_with_their_logarithm() -> None:
    assert _latency("all_gather", 32) / _latency("all_gather", 16) == pytest.approx(31 / 15, rel=0.01)
    assert _latency("all_reduce", 32) / _latency("all_reduce", 16) == pytest.approx(5 / 4, rel=0.01)


def test_very_long_rings_and_tori_are_not_walked_node_by_node() -> None:
    assert _latency("all_gather", 4 * LONGEST_RING) < 3.1 * _latency("all_gather", LONGEST_RING)
    assert _latency("all_gather", 16, inter_kind="ici") < _latency("all_gather", 16) / 1.5


@given(size=sizes, nodes=st.integers(1, 200))
def test_a_ring_over_a_node_more_is_never_faster(size: float, nodes: int) -> None:
    more = MODEL.seconds("reduce_scatter", size, route(nodes=nodes + 1))
    assert more >= MODEL.seconds("reduce_scatter", size, route(nodes=nodes)) * (1 - 1e-12)


def sockets(*, per_node: int, nodes: int, inter: float = 6e9) -> Route:
    return route(per_node=per_node, nodes=nodes, inter=inter, inter_kind="ethernet")


def test_every_link_of_a_ring_of_sockets_carries_what_a_rank_sends() -> None:
    one_each, four_each = (MODEL.seconds("all_reduce", 1e9, sockets(per_node=n, nodes=2)) for n in (1, 4))
    assert four_each / one_each == pytest.approx((7 / 8) / (1 / 2), rel=0.01)


def test_flows_between_two_hosts_only_are_slower_and_a_narrow_link_is_not() -> None:
    two, three = (MODEL.seconds("all_reduce", 1e9, sockets(per_node=1, nodes=n)) for n in (2, 3))
    assert two / (1 / 2) == pytest.approx(MODEL.constants.ethernet_pair_sharing * three / (2 / 3), rel=0.01)
    two, three = (MODEL.seconds("all_reduce", 1e9, sockets(per_node=1, nodes=n, inter=1e8)) for n in (2, 3))
    assert two / (1 / 2) == pytest.approx(three / (2 / 3), rel=0.01)


def test_eight_ranks_of_a_cube_mesh_use_all_links_and_two_only_one() -> None:
    two, eight = (route(per_node=n, intra=1.5e11, intra_kind="hybrid-cube") for n in (2, 8))
    assert MODEL.seconds("all_reduce", 1e9, two) > 2 * MODEL.seconds("all_reduce", 1e9, eight)
    assert HYBRID_CUBE[8] == 1


def test_a_group_across_nodes_shares_the_network_with_its_neighbours() -> None:
    cluster = make_cluster(nodes=4, devices_per_node=8)

    def share(num_ranks: int, stride: int) -> float:
        task = Collective(
            kind="all_reduce", num_bytes=1e6, axis="data", num_ranks=num_ranks, stride=stride, phase="gradient"
        )
        return find_route(task, cluster).inter_bytes_per_s / cluster.groups[0].inter.bytes_per_s

    assert share(32, 1) == 1  # all ranks in one group: it has the node's network to itself
    assert share(4, 8) == pytest.approx(1 / 8)  # eight groups side by side, one member each per node
    assert share(16, 1) == 1  # a tensor group that spans two nodes


def test_a_small_gradient_pays_its_part_of_a_bucket() -> None:
    cluster = make_cluster(nodes=2, inter=Link(name="e", bytes_per_s=1e9, latency_s=1e-5))
    common = {"kind": "all_reduce", "axis": "data", "num_ranks": 2, "stride": 1, "phase": "gradient"}
    alone = MODEL.estimate(Collective(num_bytes=1e5, **common), cluster)  # type: ignore[arg-type]
    together = MODEL.estimate(Collective(num_bytes=1e5, bucket_bytes=25e6, **common), cluster)  # type: ignore[arg-type]
    assert together.seconds < alone.seconds


def test_what_a_collective_takes_from_kernels_is_off_unless_asked_for_and_grows_with_its_rate() -> None:
    cluster = make_cluster(nodes=1, devices_per_node=8)
    task = Collective(
        kind="all_reduce", num_bytes=1e9, axis="data", num_ranks=8, stride=1, phase="gradient", overlapped=True
    )
    assert MODEL.estimate(task, cluster).slowdown == 0.0
    counted = Pipelined(constants=LinkConstants(overlap_slowdown=1.0))
    slow = counted.estimate(task, cluster).slowdown
    fast_link = Link(name="faster", bytes_per_s=4e11, latency_s=2e-6)
    fast = counted.estimate(task, make_cluster(nodes=1, devices_per_node=8, intra=fast_link)).slowdown
    assert 0 < slow < fast <= 1.0
