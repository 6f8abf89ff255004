"""Steps and memory that can be written down by hand."""

from dataclasses import replace

import numpy as np
import pytest

from builders import make_matmul, make_mlp
from traincast.lower._rewrite import as_stage
from traincast.simulate import replay_memory
from traincast.simulate._allocator import LARGE_ROUNDING_BYTES, ROUNDING_BYTES, CachingAllocator
from traincast.simulate._beside import hide_pieces
from traincast.simulate._memory import _course_of
from traincast.simulate._order import _by_formula
from traincast.simulate._passes import Spent
from traincast.simulate._reserve import BESIDE_STREAM, reserve, reserved_bytes
from traincast.simulate._step import StageRun, join_stages
from traincast.spec import Collective, Estimate, Repeat, Stage, Task


def estimate(seconds: float) -> Estimate:
    return Estimate(seconds=seconds, low_s=seconds, high_s=seconds)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_gather_in_pieces_hides_all_but_one_behind_its_product(ranks: int) -> None:
    gather = Collective(
        kind="all_gather", num_bytes=1e6, axis="tensor", num_ranks=ranks, stride=1, phase="forward", chunked=True
    )
    shown = hide_pieces(_one_layer(gather, make_matmul()), (estimate(3.0), estimate(8.0)))
    assert shown[0].seconds == pytest.approx(3.0 / ranks)
    # What is longer than the product stays.
    shown = hide_pieces(_one_layer(gather, make_matmul()), (estimate(10.0), estimate(4.0)))
    assert shown[0].seconds == pytest.approx(10.0 - 4.0 * (1 - 1 / ranks))


def test_gradients_that_are_reduced_between_a_matmul_and_its_scatter_do_not_part_them() -> None:
    matmul = replace(make_matmul(), phase="backward")
    gradient = Collective(kind="all_reduce", num_bytes=1e6, axis="data", num_ranks=2, stride=4, phase="gradient")
    scatter = Collective(
        kind="reduce_scatter", num_bytes=1e6, axis="tensor", num_ranks=4, stride=1, phase="backward", chunked=True
    )
    shown = hide_pieces(_one_layer(matmul, gradient, scatter), (estimate(8.0), estimate(1.0), estimate(4.0)))
    assert shown[2].seconds == pytest.approx(1.0)


def test_the_last_gather_of_a_layer_hides_behind_the_first_matmul_of_the_next() -> None:
    gather = Collective(
        kind="all_gather", num_bytes=1e6, axis="tensor", num_ranks=4, stride=1, phase="forward", chunked=True
    )
    times = estimate(8.0), estimate(4.0)
    assert hide_pieces(_one_layer(make_matmul(), gather, count=3), times)[1].seconds == pytest.approx(1.0)
    assert hide_pieces(_one_layer(make_matmul(), gather), times)[1].seconds == 4.0


def _one_layer(*tasks: Task, count: int = 1) -> Stage:
    return Stage(tasks=tasks, repeats=(Repeat(start=0, stop=len(tasks), count=count),), tensors=())


def test_activations_and_their_gradients_cross_each_boundary_of_a_pipeline() -> None:
    without, with_hops = (max(_by_formula("1f1b", [1.0] * 4, [2.0] * 4, hop_s, 8, 1)) for hop_s in (0.0, 0.25))
    assert with_hops - without == pytest.approx(2 * 3 * 0.25)


def test_every_micro_batch_in_flight_keeps_its_activations() -> None:
    stage = as_stage(make_mlp())
    three, five, seven = (
        replay_memory(replace(stage, num_in_flight=count), capacity_bytes=1e12).peak_bytes for count in (3, 5, 7)
    )
    # Two micro-batches more keep the outputs of four layers and their products: 8 tensors of 32 x 256 numbers each.
    assert five - three == pytest.approx(2 * 8 * 32 * 256 * 4)
    assert seven - five == pytest.approx(five - three)


def test_memory_is_reserved_for_each_pass_in_flight_but_the_own() -> None:
    stage = as_stage(make_mlp())
    profile = replay_memory(stage, capacity_bytes=1e12)
    one, two, three = (
        reserved_bytes(replace(stage, num_in_flight=count), profile, accumulates=False) for count in (1, 2, 3)
    )
    beside = sum(profile.by_role.get(part, 0.0) for part in BESIDE_STREAM)
    assert one == pytest.approx(reserve(stage, accumulates=False) + beside)
    assert two - one == pytest.approx(three - two)
    assert one < two


@pytest.mark.parametrize("batch", [4, 32])
def test_the_fullest_moment_may_be_in_the_last_repetition(batch: int) -> None:
    """Each layer of the backward pass leaves a gradient that is larger than what it frees: the last one holds them all."""

    def find(*, folded: bool) -> tuple[float, tuple[int, int, int]]:
        graph = make_mlp(layers=6, batch=batch, folded=folded)
        sizes = np.array([tensor.num_bytes for tensor in graph.tensors], dtype=np.float64)
        return _course_of(as_stage(graph), accumulates=False).find_peak(sizes, 0.0)

    peak, (_, _, repetition) = find(folded=True)
    assert peak == pytest.approx(find(folded=False)[0])
    assert repetition == 5


def test_an_allocator_rounds_requests_and_segments_up() -> None:
    allocator = CachingAllocator()
    allocator.allocate("a", 1.0)
    allocator.allocate("b", ROUNDING_BYTES + 1.0)
    assert allocator.allocated_bytes == 3 * ROUNDING_BYTES
    large = CachingAllocator()
    large.allocate("a", 20 * LARGE_ROUNDING_BYTES + 1.0)
    assert large.reserved_bytes == 21 * LARGE_ROUNDING_BYTES


def test_the_bubble_is_what_the_slowest_stage_does_not_work() -> None:
    def run(forward_s: float) -> StageRun:
        return StageRun(
            forward_s=forward_s, backward_s=2 * forward_s, tail_s=0.0, spent=Spent(), tail=Spent(), before=Spent()
        )

    _, _, bubble_s = join_stages([run(1.0), run(2.0)], [27.0, 27.0], micro_batches=4)
    assert bubble_s == pytest.approx(27.0 - 4 * 6.0)
