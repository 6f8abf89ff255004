"""What a stack runs on gradients beside the backward pass and before the update."""

from dataclasses import replace

import pytest

from tests.builders import make_mlp
from traincast.lower import lower
from traincast.spec import Collective, Op, Parallelism, PlanHabits

HABITS = PlanHabits(calls=(("backward", 6), ("update", 8)))


def statistics(plan: Parallelism, phase: str, habits: PlanHabits = HABITS, dtype: str = "fp32") -> int:
    graph = make_mlp(layers=3)
    graph = replace(graph, ops=tuple(replace(op, dtype=dtype) if op.kind == "matmul" else op for op in graph.ops))
    stage = lower(graph, plan, habits=habits).stages[0]
    return sum(
        task.num_calls * count
        for task, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(task, Op) and task.layer == "statistics" and task.phase == phase
    )


def num_gradients() -> int:
    return sum(tensor.copies for tensor in make_mlp(layers=3).tensors if tensor.role == "gradient")


def test_hooks_and_statistics_are_called_for_each_gradient() -> None:
    assert statistics(Parallelism(data=2), "backward") == 6 * num_gradients()
    assert statistics(Parallelism(data=2), "optimizer") == 8 * num_gradients()


def test_a_stack_without_statistics_runs_what_it_did() -> None:
    graph = make_mlp(layers=3)
    assert lower(graph, Parallelism(data=2), habits=PlanHabits()) == lower(graph, Parallelism(data=2))


def test_a_distributed_optimizer_updates_a_part_of_the_weights_on_each_device() -> None:
    graph = make_mlp(layers=3)
    algorithm = next(str(op.attrs["algorithm"]) for op in graph.ops if op.kind == "optimizer")
    habits = PlanHabits(shared_updates=((algorithm, 8),))

    def updated(plan: Parallelism, habits: PlanHabits) -> float:
        stage = lower(graph, plan, habits=habits).stages[0]
        return sum(task.num_bytes for task in stage.tasks if isinstance(task, Op) and task.kind == "optimizer")

    whole = updated(Parallelism(data=16), PlanHabits())
    assert updated(Parallelism(data=16), habits) == whole / 8
    assert updated(Parallelism(data=2), habits) == whole / 2
    assert updated(Parallelism(), habits) == whole
    assert updated(Parallelism(data=16), PlanHabits(shared_updates=(("other", 8),))) == whole


def test_a_stack_that_knows_its_last_bucket_says_so_on_every_reduction_in_buckets() -> None:
    program = lower(make_mlp(layers=3), Parallelism(data=2), habits=PlanHabits(amounts=(("last_bucket_bytes", 1e6),)))
    reductions = [task for task in program.stages[0].tasks if isinstance(task, Collective)]
    assert reductions
    assert all(task.last_bucket_bytes == 1e6 for task in reductions)


def test_a_scaled_loss_costs_calls_on_each_gradient_and_an_unscaled_one_none() -> None:
    habits = PlanHabits(calls=(("update scaled", 12),))
    assert statistics(Parallelism(data=2), "optimizer", habits, dtype="fp16") == 12 * num_gradients()
    assert statistics(Parallelism(data=2), "optimizer", habits, dtype="bf16") == 0
    assert statistics(Parallelism(data=2), "optimizer", habits) == 0


def test_a_device_waits_for_inputs_that_are_copied_in_the_loop() -> None:
    graph = make_mlp(layers=3)
    assert lower(graph, Parallelism()).preparation_s == 0
    copied = lower(graph, Parallelism(), habits=PlanHabits(amounts=(("input_bytes_per_s", 4e9),)))
    assert copied.preparation_s == pytest.approx(graph.role_bytes("input") / 4e9)
    assert copied.preparation_s > 0
