import pytest

from traincast.catalog._workloads import from_shape
from traincast.errors import IllegalPlan
from traincast.lower import lower
from traincast.spec import Collective, Graph, Parallelism, Program


def small_model() -> Graph:
    return from_shape(
        arch="llama", n_layers=4, hidden=512, heads=8, vocab=1000, seq=128, batch=2, precision="bf16", optimizer="adamw"
    )


def reductions(program: Program, kind: str) -> list[Collective]:
    return [task for task in program.stages[0].tasks if isinstance(task, Collective) and task.kind == kind]


def state_bytes(program: Program) -> float:
    return sum(tensor.num_bytes for tensor in program.stages[0].tensors if tensor.role == "optimizer_state")


def test_groups_of_a_hybrid_shard_sum_what_they_hold_alike() -> None:
    program = lower(small_model(), Parallelism(data=16, zero=3, shard=4))
    scattered, summed = reductions(program, "reduce_scatter"), reductions(program, "all_reduce")
    assert {task.num_ranks for task in scattered} == {4}
    assert {(task.num_ranks, task.stride) for task in summed} == {(4, 4)}
    assert sum(task.num_bytes for task in summed) == pytest.approx(sum(task.num_bytes for task in scattered) / 4)
    assert {task.num_ranks for task in reductions(program, "all_gather")} == {4}


def test_a_hybrid_shard_holds_what_the_same_shard_alone_holds() -> None:
    hybrid = lower(small_model(), Parallelism(data=16, zero=3, shard=4))
    assert state_bytes(hybrid) == state_bytes(lower(small_model(), Parallelism(data=4, zero=3)))


def test_sharding_over_all_replicas_is_the_plain_shard() -> None:
    graph = small_model()
    assert (
        lower(graph, Parallelism(data=8, zero=3, shard=8)).stages[0].tasks
        == lower(graph, Parallelism(data=8, zero=3)).stages[0].tasks
    )


@pytest.mark.parametrize(
    ("plan", "reason"),
    [({"zero": 0, "shard": 4}, "zero"), ({"zero": 3, "shard": 3}, "divide"), ({"zero": 3, "shard": 0}, "divide")],
)
def test_an_impossible_shard_is_refused(plan: dict[str, int], reason: str) -> None:
    with pytest.raises(IllegalPlan, match=reason):
        Parallelism(data=8, **plan)
