"""What a replica must exchange, counted from the graph itself: a reduction that is forgotten changes every step."""

import pytest

from lower.test_lower import gpt
from traincast.catalog._workloads import workload
from traincast.lower import lower
from traincast.spec import Collective, Graph, Parallelism


@pytest.fixture(scope="module")
def graph() -> Graph:
    return workload("gpt2", batch=2, seq=256, precision="bf16")


TABLE_BYTES = 50257 * 768 * 2


def gradient_bytes(graph: Graph) -> float:
    return sum(tensor.num_bytes * tensor.copies for tensor in graph.tensors if tensor.role == "gradient")


def reductions(graph: Graph, plan: Parallelism) -> list[tuple[Collective, int]]:
    """Every collective of the gradients, and how often its layer repeats."""
    stage = lower(graph, plan).stages[0]
    tasks = zip(stage.tasks, stage.counts(), strict=True)
    kinds = ("all_reduce", "reduce_scatter")
    return [
        (task, count)
        for task, count in tasks
        if isinstance(task, Collective) and task.axis == "data" and task.kind in kinds
    ]


@pytest.mark.parametrize(("data", "context"), [(2, 1), (1, 2), (2, 2), (4, 2)])
def test_every_gradient_is_reduced_over_replicas_and_context_ranks(graph: Graph, data: int, context: int) -> None:
    """Ranks of one context group see different tokens, so their gradients differ as those of replicas do."""
    found = reductions(graph, Parallelism(data=data, context=context))
    assert {task.num_ranks for task, _ in found} == {data * context}
    assert {task.kind for task, _ in found} == {"all_reduce"}
    assert sum(task.num_bytes * count for task, count in found) == pytest.approx(gradient_bytes(graph), rel=1e-6)


@pytest.mark.parametrize("zero", [1, 2])
def test_sharded_state_scatters_gradients_and_gathers_weights_once(graph: Graph, zero: int) -> None:
    plan = Parallelism(data=4, zero=zero)
    scattered = reductions(graph, plan)
    assert {task.kind for task, _ in scattered} == {"reduce_scatter"}
    assert sum(task.num_bytes * count for task, count in scattered) == pytest.approx(gradient_bytes(graph), rel=1e-6)
    stage = lower(graph, plan).stages[0]
    gathered = sum(
        task.num_bytes * count
        for task, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(task, Collective) and task.kind == "all_gather"
    )
    weights = sum(tensor.num_bytes * tensor.copies for tensor in graph.tensors if tensor.role == "parameter")
    # Gathered unit by unit, the table of tokens may come twice: it is used at both ends of the model.
    assert weights * 0.999 <= gathered <= (weights + TABLE_BYTES) * 1.001


def test_full_sharding_gathers_the_weights_for_both_passes(graph: Graph) -> None:
    stage = lower(graph, Parallelism(data=4, zero=3)).stages[0]
    gathered = {"forward": 0.0, "backward": 0.0}
    for task, count in zip(stage.tasks, stage.counts(), strict=True):
        if isinstance(task, Collective) and task.kind == "all_gather":
            gathered[task.phase] += task.num_bytes * count
    weights = sum(tensor.num_bytes * tensor.copies for tensor in graph.tensors if tensor.role == "parameter")
    in_layers = 12 * 12 * 768**2 * 2
    # The table of tokens is used at both ends of the model, so it may be gathered twice; its own backward does not read it.
    assert weights * 0.95 <= gathered["forward"] <= (weights + TABLE_BYTES) * 1.05
    assert in_layers * 0.95 <= gathered["backward"] <= (weights + TABLE_BYTES) * 1.05


def test_state_is_a_share_on_each_replica(graph: Graph) -> None:
    def held(role: str, **plan: int) -> float:
        stage = lower(graph, Parallelism(data=8, **plan)).stages[0]
        return sum(tensor.num_bytes * tensor.copies for tensor in stage.tensors if tensor.role == role)

    for role, sharded_from in (("optimizer_state", 1), ("gradient", 2), ("parameter", 3)):
        for zero in (1, 2, 3):
            share = held(role, zero=zero) / held(role)
            assert share == pytest.approx(1 / 8 if zero >= sharded_from else 1.0, rel=0.01)


def test_tensor_ranks_split_the_arithmetic_and_reduce_each_layer_twice_each_way(graph: Graph) -> None:
    whole, split = lower(graph, Parallelism()).stages[0], lower(graph, Parallelism(tensor=4)).stages[0]

    def product_flop(stage: object) -> float:
        tasks = zip(stage.tasks, stage.counts(), strict=True)  # type: ignore[attr-defined]
        return sum((task.flop or 0.0) * count for task, count in tasks if getattr(task, "kind", "") == "matmul")

    assert product_flop(split) == pytest.approx(product_flop(whole) / 4, rel=0.02)
    reduced = [
        (task, count)
        for task, count in zip(split.tasks, split.counts(), strict=True)
        if isinstance(task, Collective) and task.axis == "tensor" and task.kind == "all_reduce"
    ]
    hidden_bytes = 2 * 256 * 768 * 2
    in_layers = sum(count for task, count in reduced if task.num_bytes == pytest.approx(hidden_bytes))
    # Two in the forward and two in the backward pass of each of the twelve layers (Shoeybi et al. 2019).
    assert in_layers >= 48
    assert {task.num_ranks for task, _ in reduced} == {4}


@pytest.mark.parametrize("context", [2, 4])
def test_keys_and_values_pass_context_ranks_forward_and_backward_with_their_gradients(
    graph: Graph, context: int
) -> None:
    stage = lower(graph, Parallelism(context=context)).stages[0]
    keys_and_values = 2 * (2 * 256 * 768) * 2
    moved = 0.0
    for task, count in zip(stage.tasks, stage.counts(), strict=True):
        if isinstance(task, Collective) and task.axis == "context":
            moved += task.num_bytes * count
            assert task.num_ranks == context
    assert moved == 3 * 12 * keys_and_values


def test_the_state_of_experts_lives_where_they_do() -> None:
    """Each of four ranks keeps a quarter of the experts, and the optimizer's numbers of that quarter alone."""
    graph = gpt(layers=2, vocab=1000, experts=8)
    kept, whole = (
        {
            role: sum(tensor.num_bytes * tensor.copies for tensor in lower(graph, plan).stages[0].tensors if tensor.role == role)
            for role in ("parameter", "gradient", "optimizer_state")
        }
        for plan in (Parallelism(data=4, expert=4), Parallelism())
    )  # fmt: skip
    share = kept["parameter"] / whole["parameter"]
    assert share < 0.7
    assert kept["optimizer_state"] / whole["optimizer_state"] == pytest.approx(share, rel=0.01)
