"""Work: splitting never creates or removes FLOP; what is added is what runs again, and a causal mask halves attention."""

import math

import pytest
from hypothesis import given, settings

from laws.draws import DECODERS, Draw, build, count_flop, draws
from traincast.lower import lower
from traincast.lower._recompute import recompute
from traincast.lower._rewrite import as_stage
from traincast.spec import Op, Parallelism, Stage

MATMULS = ("matmul", "attention", "convolution")
PASSES = ("forward", "backward")


def over_ranks(draw: Draw, phases: tuple[str, ...]) -> float:
    """FLOP of one micro-batch of every replica, over all ranks of one replica."""
    return draw.plan.tensor * draw.plan.context * sum(
        count_flop(stage, phases=phases, kinds=MATMULS) for stage in draw.program.stages
    )  # fmt: skip


@settings(max_examples=200)
@given(draw=draws(families=DECODERS))
def test_flop_over_all_ranks_are_those_of_the_graph_and_of_what_runs_again(draw: Draw) -> None:
    whole = as_stage(draw.graph)
    again = recompute(whole, draw.plan.recompute)
    replicated = replicated_flop(whole, draw.plan.tensor)
    least = count_flop(draw.graph, phases=PASSES, kinds=MATMULS)
    most = least + (draw.plan.tensor - 1) * replicated
    # The gradient of a router may be split or run on every rank; all else is exact.
    assert (least if draw.family == "moe" else most) * (1 - 1e-6) <= over_ranks(draw, PASSES) <= most * (1 + 1e-6), str(
        draw
    )
    if draw.family not in ("moe", "adapters"):
        rerun = count_flop(again, phases=("recompute",), kinds=MATMULS)
        assert over_ranks(draw, ("recompute",)) == pytest.approx(rerun, rel=1e-6), str(draw)


def replicated_flop(stage: Stage, tensor: int) -> float:
    """Of products that every rank of the tensor axis runs: routers, and the small matrices of adapters that are not split."""
    if tensor == 1:
        return 0.0
    split = lower_tensor(stage, tensor)
    return (tensor * split - matmul_flop(stage)) / (tensor - 1)


def matmul_flop(stage: Stage) -> float:
    return count_flop(stage, phases=PASSES, kinds=MATMULS)


def lower_tensor(stage: Stage, tensor: int) -> float:
    from traincast.lower._tensor import split_tensors

    return matmul_flop(split_tensors(stage, Parallelism(tensor=tensor)))


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("family", ["dense", "grouped", "tied"])
def test_the_tensor_axis_divides_all_matmuls_of_a_dense_decoder(family: str, tensor: int) -> None:
    stage = as_stage(build(family))
    assert tensor == 1 or lower_tensor(stage, tensor) == pytest.approx(matmul_flop(stage) / tensor, rel=1e-6)


def attention_pairs(stage: Stage) -> float:
    """Pairs of queries and keys that attention scores, a causal mask as half of them."""
    return sum(
        count * float(op.attrs["batch"]) * float(op.attrs["heads"]) * float(op.attrs["q_len"]) * float(op.attrs["kv_len"])
        * (0.5 if op.attrs.get("causal") else 1.0)
        for op, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(op, Op) and op.kind == "attention" and op.phase == "forward"
    )  # fmt: skip


@pytest.mark.parametrize("context", [1, 2, 4])
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("exchange", ["ring", "ulysses"])
def test_a_causal_mask_halves_attention_at_every_context_degree(context: int, tensor: int, exchange: str) -> None:
    graph = build("dense")
    (stage,) = lower(graph, Parallelism(context=context, tensor=tensor, context_method=exchange)).stages
    assert context * tensor * attention_pairs(stage) == pytest.approx(attention_pairs(as_stage(graph)), rel=0.005)


@settings(max_examples=100)
@given(draw=draws(families=DECODERS, servers=0))
def test_updates_over_all_devices_touch_each_trained_weight_as_often_as_it_is_held(draw: Draw) -> None:
    plan = draw.plan
    for stage in draw.program.stages:
        updates = [task for task in stage.tasks if isinstance(task, Op) and task.kind == "optimizer"]
        states = [t for t in stage.tensors if t.role == "optimizer_state" and t.name.endswith(".exp_avg")]
        held = sum(tensor.numel * tensor.copies for tensor in states)
        updated = sum(int(task.attrs["numel"]) for task in updates)
        if states:
            assert math.isclose(updated, held, rel_tol=1e-3, abs_tol=plan.num_shards * len(states) * 8), str(draw)
