"""Where jobs go."""

import pytest

from schedule.builders import fleet, table
from traincast.errors import InvalidInput
from traincast.schedule._network import UniformTraffic, max_min_rates
from traincast.schedule._placement import CONSOLIDATED, NODE, PLACERS, RACK, SPINE, NodeMap, consolidate
from traincast.schedule._policies import POLICIES
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._speeds import ScalingLaw
from traincast.spec._fleet import Fleet, NodePool


def test_a_small_job_goes_to_the_fullest_node_that_holds_it() -> None:
    nodes = NodeMap(fleet(3, 8))
    nodes.take(((1, 6),))
    nodes.take(((2, 3),))
    assert CONSOLIDATED.place(nodes, 2, 0) == ((1, 2),)
    assert CONSOLIDATED.place(nodes, 3, 0) == ((2, 3),)
    assert CONSOLIDATED.place(nodes, 8, 0) == ((0, 8),)


def test_a_large_job_gets_empty_nodes_and_one_for_the_rest() -> None:
    nodes = NodeMap(fleet(4, 8))
    nodes.take(((0, 5),))
    assert CONSOLIDATED.place(nodes, 18, 0) == ((1, 8), (2, 8), (0, 2))
    assert consolidate(nodes, 18, 0, widest_rest=True) == ((1, 8), (2, 8), (3, 2))
    assert CONSOLIDATED.place(nodes, 32, 0) is None


def test_spread_never_waits_for_locality() -> None:
    nodes = NodeMap(fleet(2, 4))
    nodes.take(((0, 2),))
    nodes.take(((1, 2),))
    assert CONSOLIDATED.place(nodes, 4, 0) is None
    assert PLACERS["spread"].place(nodes, 4, 0) == ((0, 2), (1, 2))


def test_topology_prefers_one_rack_over_many() -> None:
    nodes = NodeMap(fleet(4, 4, nodes_per_rack=2))
    nodes.take(((0, 3),))
    placement = PLACERS["topology"].place(nodes, 8, 0)
    assert placement == ((2, 4), (3, 4))
    assert nodes.locality(placement) == RACK
    assert nodes.locality(((0, 1), (2, 1))) == SPINE
    assert nodes.locality(((0, 4),)) == NODE


def test_giving_back_restores_the_map() -> None:
    nodes = NodeMap(fleet(3, 8))
    before = (list(nodes.bits), list(nodes.hist))
    placement = CONSOLIDATED.place(nodes, 20, 0)
    nodes.take(placement)
    assert nodes.free_in_pool == [4]
    nodes.give(placement)
    assert (nodes.bits, nodes.hist) == before


def test_a_faster_type_is_taken_first_and_an_infeasible_one_never() -> None:
    class NotOnT4:
        def rate(self, job: int, pool: int, num_gpus: float, locality: int) -> float:
            return 1.0 if pool == 0 else 0.0

    mixed = Fleet(
        pools=(
            NodePool(device="a100", num_nodes=1, gpus_per_node=2),
            NodePool(device="t4", num_nodes=9, gpus_per_node=2),
        )
    )
    jobs = table((0, 2, 10), (0, 2, 10))
    schedule = simulate_cluster(jobs, POLICIES["fifo"], fleet=mixed, perf=NotOnT4())
    assert schedule.end_s.tolist() == [10.0, 20.0]
    quick = simulate_cluster(jobs, POLICIES["fifo"], fleet=mixed, perf=ScalingLaw((2.0, 2.0), pool_speeds=(1.0, 0.5)))
    assert quick.end_s.tolist() == [10.0, 20.0]
    assert quick.pool_gpu_s.tolist() == [20.0, 40.0]


def test_links_are_shared_max_min() -> None:
    rates = max_min_rates(
        {0: 10.0, 1: 10.0, 2: 2.0}, {0: frozenset({1}), 1: frozenset({1, 2}), 2: frozenset({2})}, {1: 10.0, 2: 6.0}
    )
    assert rates == pytest.approx({0: 6.0, 1: 4.0, 2: 2.0})


def test_a_neighbour_on_the_uplink_slows_a_job_down_until_it_leaves() -> None:
    racks = fleet(3, 2, nodes_per_rack=1, rack_uplink_bytes_per_s=4.0)
    jobs = table((0, 4, 100), (0, 4, 10))
    alone = simulate_cluster(
        jobs.select([0]), POLICIES["fifo"], fleet=racks, network=UniformTraffic(bytes_per_s_per_gpu=1.0, share=0.5)
    )
    assert alone.end_s.tolist() == [100.0]
    placed = PLACERS["spread"]
    crowded = table((0, 3, 100), (0, 3, 10))
    both = simulate_cluster(
        crowded,
        POLICIES["fifo"],
        fleet=racks,
        placer=placed,
        network=UniformTraffic(bytes_per_s_per_gpu=1.0, share=0.5),
    )
    # Node 1 carries both jobs: each asks for 3 of its 4 bytes/s and gets 2 while the other runs.
    slow = 1 / (0.5 + 0.5 * 3 / 2)
    first_end = 10 / slow
    assert both.end_s.tolist() == pytest.approx([first_end + (100 - first_end * slow), first_end])


def test_failures_need_nodes() -> None:
    with pytest.raises(InvalidInput, match="act on nodes"):
        simulate_cluster(
            table((0, 1, 1)),
            POLICIES["fifo"],
            fleet=fleet(2, 2, nodes_per_rack=1, rack_uplink_bytes_per_s=1.0),
            placer=PLACERS["count"],
            network=UniformTraffic(bytes_per_s_per_gpu=1.0),
        )


def test_a_large_job_clears_the_nodes_that_cost_least_and_no_others() -> None:
    long_ones = [(0.0, 2.0, 1000.0), (0.0, 3.0, 1001.0), (0.0, 3.0, 1002.0), (0.0, 3.0, 1003.0)]
    jobs = table(*long_ones, (10.0, 8.0, 50.0), (20.0, 1.0, 10.0))
    schedule = simulate_cluster(jobs, POLICIES["srtf"], fleet=fleet(4, 4))
    # Five GPUs are free, none of the nodes is: by count two jobs must go, and they are those on the two freest nodes.
    assert schedule.start_s[4] == 10.0
    assert schedule.preemptions.tolist() == [1, 1, 0, 0, 0, 0]
    assert schedule.end_s[4] == 60.0
    assert schedule.end_s[0] == 1050.0


def test_a_large_job_clears_no_node_of_a_job_before_it() -> None:
    jobs = table((0.0, 3.0, 40.0), (0.0, 3.0, 40.0), (0.0, 3.0, 1000.0), (1.0, 8.0, 100.0))
    schedule = simulate_cluster(jobs, POLICIES["srtf"], fleet=fleet(3, 4))
    assert schedule.preemptions.sum() == 0
    assert schedule.start_s[3] == 40.0


def test_a_job_waits_for_the_end_of_those_it_depends_on() -> None:
    jobs = table((0.0, 1.0, 50.0), (0.0, 1.0, 10.0), (5.0, 1.0, 10.0), job_ids=["7", "8_1", "9"],
                 dependencies=[None, None, "afterok:7:8"])  # fmt: skip
    schedule = simulate_cluster(jobs, POLICIES["fifo"], fleet=fleet(1, 8))
    assert schedule.start_s.tolist() == [0.0, 0.0, 50.0]
