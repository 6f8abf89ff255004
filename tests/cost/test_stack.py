from dataclasses import replace

import pytest

from traincast.catalog._stacks import stacks
from traincast.cost._stack import TUNABLE, price_collective, read_constants, replay, with_constants
from traincast.spec import DYNAMIC, HOST, Collective, Estimate, Op, Stack

ONE_MS = Estimate(seconds=1e-3, low_s=5e-4, high_s=2e-3)


def gather(**changes: object) -> Collective:
    task = Collective(kind="all_gather", num_bytes=1e6, axis="tensor", num_ranks=16, stride=1, phase="forward")
    return replace(task, **changes)  # type: ignore[arg-type]


def test_every_step_of_a_ring_between_nodes_adds_its_latency() -> None:
    stack = Stack(ring_step_s=5e-5)
    assert price_collective(stack, gather(), ONE_MS, crosses_nodes=True).seconds == pytest.approx(1e-3 + 15 * 5e-5)


def test_inside_a_node_and_for_trees_there_are_no_such_steps() -> None:
    stack = Stack(ring_step_s=5e-5)
    assert price_collective(stack, gather(), ONE_MS, crosses_nodes=False).seconds == 1e-3
    assert price_collective(stack, gather(kind="all_reduce"), ONE_MS, crosses_nodes=True).seconds == 1e-3


def test_a_gradient_in_a_bucket_pays_its_part_of_the_steps() -> None:
    stack = Stack(ring_step_s=5e-5)
    part = price_collective(stack, gather(kind="reduce_scatter", bucket_bytes=4e6), ONE_MS, crosses_nodes=True)
    assert part.seconds == pytest.approx(1e-3 + 15 * 5e-5 / 4)


def test_a_gradient_that_follows_others_through_the_network_pays_no_steps() -> None:
    stack = Stack(ring_step_s=5e-5)
    gradient = gather(kind="reduce_scatter", phase="gradient")
    assert price_collective(stack, gradient, ONE_MS, crosses_nodes=True).seconds == 1e-3


def test_weights_that_are_gathered_ahead_pay_no_steps() -> None:
    ahead = gather(axis="data", overlapped=True)
    assert price_collective(Stack(ring_step_s=5e-5), ahead, ONE_MS, crosses_nodes=True).seconds == 1e-3


def test_factors_of_links_do_not_touch_copies_to_the_host() -> None:
    copy = Collective(kind="copy_out", num_bytes=1e6, axis=HOST, num_ranks=1, stride=1, phase="gradient")
    assert price_collective(Stack(intra_factor=3.0), copy, ONE_MS, crosses_nodes=False).seconds == 1e-3


def test_constants_survive_being_read_and_set() -> None:
    for stack in stacks():
        constants = read_constants(stack)
        assert set(constants) == set(TUNABLE)
        assert with_constants(stack, constants) == stack


def test_a_captured_step_pays_the_host_only_for_what_depends_on_the_data() -> None:
    plain = Op(name="add", kind="other", flop=0.0, bytes_read=0.0, bytes_written=0.0)
    dynamic = replace(plain, attrs={DYNAMIC: True})
    issued = replace(ONE_MS, host_s=3e-3)
    captured, late, quick = replay((plain, dynamic, dynamic), (issued, issued, ONE_MS))
    assert (captured.seconds, captured.host_s) == (1e-3, 0.0)
    assert (late.seconds, late.host_s, late.limit) == (3e-3, 0.0, "host")
    assert quick.seconds == 1e-3
