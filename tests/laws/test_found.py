"""What the laws found broken, one small case each."""

from dataclasses import replace

import pytest

from laws.draws import build
from traincast.catalog._stacks import stack
from traincast.errors import IllegalPlan
from traincast.lower import lower
from traincast.lower._rewrite import is_expert
from traincast.resolve._habits import check_passes
from traincast.spec import Collective, Op, Parallelism, Stage


def held(stage: Stage, role: str) -> int:
    return sum(tensor.numel * tensor.copies for tensor in stage.tensors if tensor.role == role)


def expert_state(stage: Stage) -> int:
    return sum(t.numel * t.copies for t in stage.tensors if t.role == "optimizer_state" and is_expert(t.name))


def test_states_of_adapters_lie_with_the_layers_that_have_them() -> None:
    stages = lower(build("adapters"), Parallelism(pipeline=4, micro_batches=4)).stages
    assert len({held(stage, "optimizer_state") for stage in stages}) == 1


def test_the_bias_of_a_column_parallel_layer_is_cut_with_it() -> None:
    (stage,) = lower(build("dense"), Parallelism(tensor=4)).stages
    sizes = {tensor.name: tensor.numel for tensor in stage.tensors if tensor.role == "parameter"}
    assert sizes["layers.attention.query.bias"] == 128
    assert sizes["layers.attention.output.bias"] == 512


def test_casts_of_weights_are_not_divided_by_the_context_axis() -> None:
    def casts(context: int) -> float:
        (stage,) = lower(build("dense", "bf16-amp"), Parallelism(context=context)).stages
        return sum(
            task.num_bytes for task in stage.tasks
            if isinstance(task, Op) and task.kind == "copy" and stage.tensors[task.reads[0]].role == "parameter"
        )  # fmt: skip

    assert casts(4) == casts(1) > 0


def test_weights_that_are_cast_are_gathered_again_for_the_backward_pass() -> None:
    (stage,) = lower(build("dense", "bf16-amp"), Parallelism(data=4, zero=3)).stages
    phases = {task.phase for task in stage.tasks if isinstance(task, Collective) and task.kind == "all_gather"}
    assert phases == {"forward", "backward"}


def test_an_update_of_sharded_experts_touches_the_state_a_rank_holds() -> None:
    (stage,) = lower(build("moe"), Parallelism(data=4, expert=2, zero=3)).stages
    (update,) = [task for task in stage.tasks if isinstance(task, Op) and task.kind == "optimizer"]
    assert update.attrs["numel"] == pytest.approx(held(stage, "optimizer_state") / 3, rel=1e-4)


def test_a_framework_that_adds_up_whole_gradients_refuses_sharded_ones_in_a_pipeline() -> None:
    plan = Parallelism(data=2, pipeline=2, micro_batches=4, zero=2)
    with pytest.raises(IllegalPlan, match="no pipeline with ZeRO 2"):
        check_passes(plan, stack("deepspeed"))
    check_passes(plan, stack("torchtitan"))


def test_folded_experts_of_one_replica_reduce_their_gradients_among_tensor_ranks() -> None:
    plan = Parallelism(tensor=4, expert=2, expert_tensor=1, sequence_parallel=True)
    (stage,) = lower(build("moe"), plan).stages
    assert {task.num_ranks for task in stage.tasks if isinstance(task, Collective) and task.axis == "data"} == {2}


def test_folded_experts_of_one_replica_shard_their_state_among_tensor_ranks() -> None:
    plan = Parallelism(tensor=4, expert=2, expert_tensor=1, sequence_parallel=True)
    whole, sharded = (lower(build("moe"), replace(plan, zero=zero)).stages[0] for zero in (0, 1))
    assert expert_state(sharded) == expert_state(whole) / 2
    assert held(sharded, "optimizer_state") - expert_state(sharded) == held(whole, "optimizer_state") - expert_state(
        whole
    )


def test_folded_experts_are_gathered_among_all_ranks_that_shard_them() -> None:
    plan = Parallelism(data=2, tensor=4, expert=2, expert_tensor=1, sequence_parallel=True, zero=3)
    (stage,) = lower(build("moe"), plan).stages
    gathers = [
        task
        for task in stage.tasks
        if isinstance(task, Collective) and task.kind == "all_gather" and task.axis == "data"
    ]
    assert {task.num_ranks for task in gathers} == {2, 4}


def test_a_whole_second_copy_of_the_weights_is_not_gathered_again() -> None:
    (stage,) = lower(build("dense"), Parallelism(data=4, zero=3, regather=1)).stages
    phases = {task.phase for task in stage.tasks if isinstance(task, Collective) and task.kind == "all_gather"}
    assert phases == {"forward"}


def test_tokens_that_go_back_from_their_experts_are_no_split_scores() -> None:
    """Where a tensor rank holds a part of the same shape by chance, whole experts were split a second time."""
    plan = Parallelism(tensor=2, context=2, expert_tensor=1, sequence_parallel=True)
    (stage,) = lower(build("moe", "bf16-amp"), plan).stages
    products = [
        task for task in stage.tasks if isinstance(task, Op) and task.kind == "matmul" and is_expert(task.layer)
    ]
    assert {task.attrs["batch"] for task in products} == {8}
