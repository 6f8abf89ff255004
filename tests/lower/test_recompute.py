"""Recomputation keeps what its policy says and runs the rest again."""

import pytest

from traincast.catalog._workloads import from_shape
from traincast.lower import lower
from traincast.simulate import replay_memory
from traincast.spec import Graph, Op, Parallelism, Stage


@pytest.fixture(scope="module")
def graph() -> Graph:
    return from_shape(
        arch="llama", n_layers=8, hidden=256, heads=8, vocab=512, seq=512, batch=16, ffn=1024, precision="bf16"
    )


def stage_of(graph: Graph, how: str) -> Stage:
    return lower(graph, Parallelism(recompute=how)).stages[0]


def peak_of(graph: Graph, how: str) -> float:
    return replay_memory(stage_of(graph, how), capacity_bytes=1e12).peak_bytes


def test_saving_every_second_product_lies_between_none_and_all(graph: Graph) -> None:
    assert peak_of(graph, "full") < peak_of(graph, "selective-op") < peak_of(graph, "none")


def test_half_of_the_products_and_no_attention_run_again(graph: Graph) -> None:
    again = [
        task for task in stage_of(graph, "selective-op").tasks if isinstance(task, Op) and task.phase == "recompute"
    ]
    forward = [task for task in stage_of(graph, "none").tasks if isinstance(task, Op) and task.phase == "forward"]
    layer = [task for task in forward if task.kind == "matmul" and "layers" in task.layer]
    assert sum(task.kind == "matmul" for task in again) == len(layer) // 2
    assert not any(task.kind == "attention" for task in again)


def test_what_is_saved_is_held_until_its_layer_runs_again(graph: Graph) -> None:
    """As much as the kept results weigh: each layer's input, attention, and the first, third, ... of its products."""
    tokens, hidden, ffn, layers = 16 * 512, 256, 1024, 8
    kept = 2 * tokens * (5 * hidden + ffn) * layers
    without = peak_of(graph, "full")
    assert peak_of(graph, "selective-op") - without == pytest.approx(kept - 2 * tokens * hidden * layers, rel=0.3)


def test_every_layer_that_runs_forward_in_a_stage_runs_backward_there_too() -> None:
    """Also where the model's own code runs layers again and the stages have unequal numbers of them."""
    graph = from_shape(
        arch="llama", n_layers=6, hidden=256, heads=8, vocab=512, seq=512, batch=2, precision="bf16", recompute="full"
    )
    for stage in lower(graph, Parallelism(pipeline=4, micro_batches=4, recompute="full")).stages:
        assert len({repeat.count for repeat in stage.repeats}) == 1
    whole = [lower(graph, Parallelism(pipeline=4, micro_batches=4)).stages[at].repeats[-1].count for at in range(4)]
    assert sum(whole) == 6
