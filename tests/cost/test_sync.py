from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.cost._sync import clock_scale, collective_seconds, price_collectives
from traincast.errors import InvalidInput
from traincast.learn._sync_fit import Synced, SyncedStep, fit_sync
from traincast.spec._hardware import Cluster, Device, Link, NodeGroup
from traincast.spec._measurement import CollectiveRates
from traincast.spec._program import Collective, Stage

RATES = CollectiveRates(
    hop_s=2e-3, call_s=5e-3, bytes_per_s=1e15, cpu_s_per_byte=1e-9, cpu_s_per_tensor=2e-5, link_efficiency=0.8
)


def cluster(*nodes: tuple[float, float]) -> Cluster:
    """Nodes of (bytes per second, share of a core)."""
    device = Device(name="core", memory_bytes=1e9, memory_bytes_per_s=1e10, vector_flop_per_s={"fp32": 1e10})
    groups = []
    for rate, speed in nodes:
        link = Link(name="l", bytes_per_s=rate, latency_s=0.0)
        groups.append(NodeGroup(device=device, num_nodes=1, devices_per_node=1, intra=link, inter=link, speed=speed))
    return Cluster(name="c", groups=tuple(groups))


def gradient(num_bytes: float, *, num_ranks: int = 4, bucket_bytes: float = 25e6) -> Collective:
    return Collective(
        kind="all_reduce", num_bytes=num_bytes, axis="data", num_ranks=num_ranks, stride=1, phase="gradient",
        bucket_bytes=bucket_bytes,
    )  # fmt: skip


def test_a_part_of_a_core_is_throttled_and_a_whole_one_is_not() -> None:
    assert clock_scale(1.2, cluster((1e9, 0.25), (1e9, 0.5))) == pytest.approx(4.8)
    assert clock_scale(1.2, cluster((1e9, 1.0))) == 1.0


def test_a_ring_pays_hops_the_narrowest_link_and_the_slowest_core() -> None:
    seconds = collective_seconds(RATES, num_ranks=4, num_bytes=1e6, link_bytes_per_s=1e8, speed=0.25)
    # 6 hops, 1.5 MB on the wire at 80 MB/s, and 1.5 ms of CPU time on a quarter of a core.
    assert seconds == pytest.approx(5e-3 + 6 * 2e-3 + 1.5e6 / 0.8e8 + 1.5e-3 / 0.25)


def test_gradients_share_a_bucket_and_each_pays_its_part() -> None:
    stage = Stage(tasks=(gradient(3e6), gradient(1e6)), repeats=(), tensors=())
    nodes = cluster((1.25e8, 0.25), (2.5e7, 0.25), (1.25e8, 0.15), (1.25e8, 0.25))
    prices = price_collectives(stage, nodes, {"all_reduce": RATES})
    together = collective_seconds(RATES, num_ranks=4, num_bytes=4e6, link_bytes_per_s=2.5e7, speed=0.15)
    assert prices[0] + prices[1] == pytest.approx(together + 2 * 2e-5 / 0.15)
    assert prices[0] - 2e-5 / 0.15 == pytest.approx(0.75 * together)


def test_a_second_bucket_pays_the_hops_again() -> None:
    nodes = cluster((1.25e8, 1.0), (1.25e8, 1.0))
    one, two = (
        price_collectives(
            Stage(tasks=(gradient(4e6, num_ranks=2, bucket_bytes=bucket),), repeats=(), tensors=()), nodes,
            {"all_reduce": RATES},
        )[0]
        for bucket in (4e6, 2e6)
    )  # fmt: skip
    assert two - one == pytest.approx(5e-3 + 2 * 2e-3)


def test_one_rank_communicates_in_no_time() -> None:
    stage = Stage(tasks=(gradient(1e6, num_ranks=1),), repeats=(), tensors=())
    assert price_collectives(stage, cluster((1e8, 0.25)), {"all_reduce": RATES})[0] == 0.0


@given(factor=st.floats(1.0, 100.0))
@settings(max_examples=30, deadline=None)
def test_a_wider_link_is_never_slower(factor: float) -> None:
    slow, fast = (
        collective_seconds(RATES, num_ranks=3, num_bytes=2e6, link_bytes_per_s=rate) for rate in (1e7, 1e7 * factor)
    )
    assert fast <= slow


@given(share=st.floats(0.05, 1.0), link=st.floats(1e6, 1e10), exponent=st.floats(1.0, 50.0))
@settings(max_examples=60, deadline=None)
def test_bytes_that_travel_while_cores_wait_take_at_least_the_longer_and_at_most_both_times(
    share: float, link: float, exponent: float
) -> None:
    rates = CollectiveRates(
        hop_s=0.0, bytes_per_s=1e15, cpu_s_per_byte=1e-9, link_efficiency=1.0, overlap_exponent=exponent
    )
    seconds = collective_seconds(rates, num_ranks=2, num_bytes=1e6, link_bytes_per_s=link, speed=share)
    cpu_s, carried_s = 1e-3 / share, max(1e6 / link, 1e-9)
    assert max(cpu_s, carried_s) * (1 - 1e-9) <= seconds <= (cpu_s + carried_s) * (1 + 1e-9)


@pytest.mark.parametrize("exponent", [0.5, float("inf"), float("nan")])
def test_an_overlap_that_cannot_be_is_refused(exponent: float) -> None:
    with pytest.raises(InvalidInput, match="overlap_exponent"):
        CollectiveRates(hop_s=0.0, bytes_per_s=1e9, overlap_exponent=exponent)


TRUTH = Synced(wall_scale=1.1, rates=replace(RATES, overlap_exponent=2.0))


def steps_on(links: tuple[float, ...]) -> list[SyncedStep]:
    """As they would be measured without noise."""
    steps = []
    for compute_s in (1e-3, 4e-3, 2e-2):
        for num_ranks in (1, 2, 3, 4):
            for link in links:
                for num_bytes, num_tensors, speed in ((2e5, 10, 0.25), (3e6, 60, 0.15)):
                    step = SyncedStep(
                        seconds=0.0, compute_s=compute_s, num_ranks=num_ranks, speed=speed, link_bytes_per_s=link,
                        gradient_bytes=num_bytes, num_tensors=num_tensors,
                    )  # fmt: skip
                    steps.append(replace(step, seconds=TRUTH.seconds(step)))
    return steps


def test_the_constants_of_synchronised_steps_are_recovered() -> None:
    found = fit_sync(steps_on((1.25e7, 1.25e8, 1.25e9)))
    assert found.wall_scale == pytest.approx(1.1, rel=1e-3)
    assert found.rates.hop_s == pytest.approx(RATES.hop_s, rel=1e-2)
    assert found.rates.call_s == pytest.approx(RATES.call_s, rel=1e-2)
    assert found.rates.cpu_s_per_byte == pytest.approx(RATES.cpu_s_per_byte, rel=1e-2)
    assert found.rates.cpu_s_per_tensor == pytest.approx(RATES.cpu_s_per_tensor, rel=1e-2)
    assert found.rates.link_efficiency == pytest.approx(0.8, rel=1e-2)


def test_steps_of_one_link_leave_others_near_their_nominal_rate() -> None:
    found = fit_sync([replace(step, speed=0.25) for step in steps_on((1.25e8,)) if step.speed == 0.25])
    assert found.rates.link_efficiency == pytest.approx(1.0, rel=0.35)
    for step in steps_on((1.25e7,)):
        if step.speed == 0.25:
            assert found.seconds(step) == pytest.approx(step.seconds, rel=0.2)


def test_steps_of_single_ranks_leave_the_network_as_it_is_believed() -> None:
    found = fit_sync([step for step in steps_on((1.25e8,)) if step.num_ranks == 1])
    assert found.wall_scale == pytest.approx(1.1, rel=1e-3)
    assert found.rates.num_measurements == 0
    assert found.rates.link_efficiency == pytest.approx(1.0)
    assert found.rates.cpu_s_per_byte == pytest.approx(1e-9)


def test_a_synced_step_is_priced_like_its_stage() -> None:
    nodes = cluster((1.25e8, 0.25), (2.5e7, 0.15))
    stage = Stage(tasks=(gradient(3e6, num_ranks=2), gradient(1e6, num_ranks=2)), repeats=(), tensors=())
    step = SyncedStep(
        seconds=0.0, compute_s=0.0, num_ranks=2, speed=0.15, link_bytes_per_s=2.5e7, gradient_bytes=4e6, num_tensors=2
    )
    prices = price_collectives(stage, nodes, {"all_reduce": TRUTH.rates})
    assert sum(prices.values()) == pytest.approx(TRUTH.seconds(step))


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least three"):
        fit_sync([])
