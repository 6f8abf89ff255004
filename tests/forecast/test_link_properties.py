"""What must hold of communication in every plan: faster links, fewer shards and fewer nodes never cost time."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_cluster, make_device
from traincast import catalog
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.cost._pricing import Pricing
from traincast.cost._roofline import Roofline
from traincast.forecast import forecast
from traincast.spec import Cluster, Estimate, Forecast, Graph, Job, Link, Parallelism
from traincast.spec._hardware import NETWORKS

COSTS = Pricing(ops=Roofline())


@cache
def gpt(layers: int = 6, hidden: int = 256) -> Graph:
    shape = TransformerShape(n_layers=layers, hidden=hidden, heads=4, vocab=4096, seq=128)
    return build_transformer(shape, Recipe(precision="bf16", attention="flash", implementation="fused"), batch=2)


def ask(cluster: Cluster, plan: Parallelism, *, hidden: int = 256) -> Forecast:
    return forecast(Job(graph=gpt(hidden=hidden)), cluster, plan, costs=COSTS)


def build(
    *,
    nodes: int = 2,
    per_node: int = 4,
    transport: str = "infiniband",
    inter: float = 2e10,
    intra: float = 1e11,
    latency_s: float = 5e-6,
) -> Cluster:
    return make_cluster(
        nodes=nodes,
        devices_per_node=per_node,
        device=make_device(),
        intra=Link(name="i", bytes_per_s=intra, latency_s=1e-6, transport="nvswitch"),
        inter=Link(name="n", bytes_per_s=inter, latency_s=latency_s, transport=transport),
    )


clusters = st.builds(
    build,
    nodes=st.sampled_from([1, 2, 4]),
    per_node=st.sampled_from([2, 4, 8]),
    transport=st.sampled_from(NETWORKS),
    inter=st.floats(1e8, 4e11),
    intra=st.floats(1e10, 1e12),
    latency_s=st.floats(0.0, 1e-4),
)


@settings(deadline=None, max_examples=50)
@given(
    cluster=clusters,
    tensor=st.sampled_from([1, 2]),
    rounds=st.sampled_from([1, 2, 5]),
    overlap=st.booleans(),
    hybrid=st.booleans(),
    hidden=st.sampled_from([128, 512]),
)
def test_sharding_weights_too_is_never_faster_than_gradients_alone(
    cluster: Cluster, tensor: int, rounds: int, overlap: bool, hybrid: bool, hidden: int
) -> None:
    data = cluster.num_devices // tensor
    shard = data // cluster.num_nodes if hybrid else None
    plan = Parallelism(data=data, tensor=tensor, zero=2, micro_batches=rounds, overlap=overlap, shard=shard)
    two, three = (ask(cluster, replace(plan, zero=zero), hidden=hidden).step.seconds for zero in (2, 3))
    assert three >= two * (1 - 1e-9)


@settings(deadline=None, max_examples=60)
@given(
    transport=st.sampled_from(NETWORKS),
    inter=st.floats(1e8, 4e11),
    nodes=st.integers(1, 12),
    more=st.integers(1, 4),
    overlap=st.booleans(),
)
def test_more_nodes_with_the_same_work_each_are_never_superlinear(
    transport: str, inter: float, nodes: int, more: int, overlap: bool
) -> None:
    few, many = (
        ask(build(nodes=n, transport=transport, inter=inter), Parallelism(data=4 * n, overlap=overlap)).step.seconds
        for n in (nodes, nodes + more)
    )
    assert many >= few * (1 - 1e-9)


@settings(deadline=None, max_examples=40)
@given(cluster=clusters, zero=st.sampled_from([0, 1, 2, 3]), factor=st.floats(1.0, 50.0))
def test_more_latency_is_never_faster_under_any_sharding(cluster: Cluster, zero: int, factor: float) -> None:
    group = cluster.groups[0]
    far = replace(
        cluster, groups=(replace(group, inter=replace(group.inter, latency_s=group.inter.latency_s * factor)),)
    )
    plan = Parallelism(data=cluster.num_devices, zero=zero)
    assert ask(far, plan).step.seconds >= ask(cluster, plan).step.seconds * (1 - 1e-9)


def test_ten_times_the_latency_changes_a_step() -> None:
    near, far = (ask(build(latency_s=s), Parallelism(data=8, zero=3)).step.seconds for s in (1e-5, 1e-4))
    assert far > 1.2 * near


def test_a_reduction_between_nodes_runs_beside_what_stays_inside_them() -> None:
    """A hybrid shard gathers and scatters on the links of a node while the network carries the sums of other layers."""
    cluster = build(nodes=2, inter=4e9)
    plan = Parallelism(data=8, zero=3, shard=4)
    spans = forecast(Job(graph=gpt()), cluster, plan, costs=COSTS, draw=True).timeline.spans
    network = [span for span in spans if span.stream == "network"]
    inside = [span for span in spans if span.stream == "node links"]
    assert network
    assert inside
    assert any(one.start_s < other.end_s and other.start_s < one.end_s for one in network for other in inside)


def test_gradients_that_travel_in_half_precision_take_half_the_time_on_a_slow_network() -> None:
    cluster = build(nodes=2, per_node=1, inter=1e8)
    wide, narrow = (
        ask(cluster, Parallelism(data=2, reduce_dtype=dtype)).timeline.communication_s for dtype in ("fp32", "bf16")
    )
    assert wide / narrow == pytest.approx(2, rel=0.05)


def test_asynchronous_tensor_parallelism_hides_most_of_its_transfers() -> None:
    cluster = build(nodes=1, per_node=4, intra=2e10)
    plan = Parallelism(tensor=4, sequence_parallel=True)
    waits, hides = (
        ask(cluster, replace(plan, async_tensor=on), hidden=1024).timeline.exposed_by_axis["tensor"]
        for on in (False, True)
    )
    assert hides < 0.95 * waits


def test_an_unknown_transport_is_named_in_the_answer() -> None:
    cluster = make_cluster(nodes=2, inter=Link(name="50 Gb/s", bytes_per_s=6.25e9, latency_s=2e-5))
    notes = ask(cluster, Parallelism(data=2)).notes
    assert any("sockets is assumed" in note for note in notes)


def test_a_tensor_group_over_the_hosts_of_a_rack_costs_what_it_costs_on_one_switch() -> None:
    rack, flat, islands = (
        catalog.cluster("gb200-nvl72", nodes=2),
        catalog.cluster(device="gb200", devices_per_node=8),
        catalog.cluster("gb200-nvl72", nodes=2, domains=()),
    )
    plan = Parallelism(tensor=4, data=2, zero=3)
    rack_s, flat_s, islands_s = (ask(each, plan).step.seconds for each in (rack, flat, islands))
    assert rack_s == pytest.approx(flat_s, rel=1e-6)
    assert islands_s > rack_s


@pytest.mark.parametrize("rate", [6.25e9, 1.25e10, 2.5e10])
def test_an_interval_covers_the_transport_that_an_unknown_network_may_have_instead(rate: float) -> None:
    def step(transport: str) -> Estimate:
        return ask(build(inter=rate, transport=transport), Parallelism(data=8), hidden=512).step

    unknown = step("")
    for transport in ("sockets", "infiniband"):
        assert unknown.low_s <= step(transport).seconds <= unknown.high_s
