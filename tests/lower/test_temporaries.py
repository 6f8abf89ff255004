import pytest

from traincast.catalog._workloads import from_shape
from traincast.lower import lower
from traincast.spec import Parallelism


def held_by_update(**plan: int) -> float:
    graph = from_shape(
        arch="llama", n_layers=8, hidden=256, heads=8, vocab=32_000, seq=64, batch=2, implementation="foreach"
    )
    stage = lower(graph, Parallelism(**plan)).stages[0]
    return sum(tensor.numel for tensor in stage.tensors if tensor.name == "adamw temporary")


@pytest.mark.parametrize("plan", [{"tensor": 4}, {"data": 4, "zero": 1}, {"data": 4, "zero": 3}])
def test_the_temporary_of_the_optimizer_shrinks_with_the_weights_it_updates(plan: dict[str, int]) -> None:
    assert held_by_update(**plan) == pytest.approx(held_by_update() / 4, rel=0.02)
