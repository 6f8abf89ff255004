from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import make_mlp
from traincast.catalog._models.recipe import Recipe
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.catalog._workloads import workload
from traincast.errors import IllegalPlan
from traincast.lower import lower
from traincast.simulate import replay_memory
from traincast.spec import Collective, Graph, Op, Parallelism, Program


@cache
def gpt(
    *,
    layers: int = 8,
    batch: int = 2,
    vocab: int = 32_000,
    experts: int = 0,
    precision: str = "bf16",
    attention: str = "flash",
    gated: bool = False,
) -> Graph:
    shape = TransformerShape(
        n_layers=layers,
        hidden=512,
        heads=8,
        vocab=vocab,
        seq=256,
        gated=gated,
        experts=experts,
        experts_per_token=2 if experts else 0,
        moe_ffn=1024 if experts else 0,
    )
    recipe = Recipe(precision=precision, attention=attention, implementation="fused")
    return build_transformer(shape, recipe, batch=batch)


def flop(program: Program, *, kinds: tuple[str, ...] = ("matmul", "attention"), phases: tuple[str, ...] = ()) -> float:
    return sum(
        (task.flop or 0.0) * count
        for stage in program.stages
        for task, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(task, Op) and task.kind in kinds and (not phases or task.phase in phases)
    )


def collectives(program: Program, axis: str) -> list[tuple[Collective, int]]:
    return [
        (task, count)
        for stage in program.stages
        for task, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(task, Collective) and task.axis == axis
    ]


def parameters(program: Program) -> float:
    return sum(t.numel * t.copies for stage in program.stages for t in stage.tensors if t.role == "parameter")


def test_one_device_changes_nothing() -> None:
    graph = gpt()
    stage = lower(graph, Parallelism()).stages[0]
    assert stage.tasks == graph.ops
    assert stage.repeats == graph.repeats


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("gated", [False, True])
def test_tensor_parallelism_divides_the_products_evenly(ranks: int, gated: bool) -> None:
    whole = flop(lower(gpt(gated=gated), Parallelism()))
    split = flop(lower(gpt(gated=gated), Parallelism(tensor=ranks)))
    assert split == pytest.approx(whole / ranks, rel=0.02)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-amp"])
@pytest.mark.parametrize("gated", [False, True])
def test_a_transformer_layer_is_reduced_twice_forward_and_twice_backward(precision: str, gated: bool) -> None:
    program = lower(gpt(precision=precision, gated=gated), Parallelism(tensor=2))
    in_layers = [task for task, count in collectives(program, "tensor") if count > 1]
    assert [task.kind for task in in_layers] == ["all_reduce"] * 4
    assert [task.phase for task in in_layers] == ["forward", "forward", "backward", "backward"]


def test_tokens_that_a_condition_scales_stay_whole_and_are_reduced_on_the_way_back_too() -> None:
    """A diffusion transformer shifts and scales its tokens by what a small matmul makes of the time step."""
    program = lower(workload("dit-s-2", batch=2), Parallelism(tensor=2))
    in_layers = [task for task, count in collectives(program, "tensor") if count > 1]
    assert [task.phase for task in in_layers] == ["forward", "forward", "backward", "backward"]
    assert len({task.num_bytes for task in in_layers}) == 1


def test_sequence_parallelism_moves_the_same_bytes_and_holds_less() -> None:
    plain = lower(gpt(), Parallelism(tensor=4))
    split = lower(gpt(), Parallelism(tensor=4, sequence_parallel=True))
    moved = [sum(task.num_bytes * count for task, count in collectives(p, "tensor")) for p in (plain, split)]
    assert moved[1] == pytest.approx(2 * moved[0])  # reduce-scatter + all-gather, each half an all-reduce
    held = [replay_memory(p.stages[0], capacity_bytes=1e12).by_role["activation"] for p in (plain, split)]
    assert held[1] < held[0]


def test_a_model_without_pairs_of_products_cannot_be_split() -> None:
    graph = make_mlp(layers=1, width=3, folded=False)
    with pytest.raises(IllegalPlan, match="tensor = 2"):
        lower(graph, Parallelism(tensor=2))


@settings(deadline=None, max_examples=20)
@given(stages=st.integers(2, 8), order=st.sampled_from(["gpipe", "1f1b"]))
def test_pipeline_stages_together_do_the_work_of_the_whole(stages: int, order: str) -> None:
    program = lower(gpt(), Parallelism(pipeline=stages, micro_batches=4, order=order))
    whole = lower(gpt(), Parallelism())
    kinds = ("matmul", "attention", "norm", "elementwise", "softmax", "embedding", "optimizer")
    assert flop(program, kinds=kinds) == pytest.approx(flop(whole, kinds=kinds), rel=0.01)
    assert parameters(program) == pytest.approx(parameters(whole), rel=1e-9)


def test_a_model_without_repeats_is_cut_by_cost() -> None:
    graph = make_mlp(layers=8, width=64, folded=False)
    program = lower(graph, Parallelism(pipeline=4, micro_batches=4))
    whole = flop(lower(graph, Parallelism()))
    work = [flop(replace(program, stages=(stage,))) for stage in program.stages]
    assert sum(work) == pytest.approx(whole)
    assert max(work) <= 1.5 * whole / 4


def test_more_stages_than_layers_are_refused_with_the_limit() -> None:
    with pytest.raises(IllegalPlan, match="allowed: pipeline"):
        lower(make_mlp(layers=2, folded=False), Parallelism(pipeline=8, micro_batches=8))


def test_the_first_stage_holds_more_micro_batches_than_the_last() -> None:
    program = lower(gpt(), Parallelism(pipeline=4, micro_batches=8))
    assert [stage.num_in_flight for stage in program.stages] == [4, 3, 2, 1]


def test_full_recomputation_runs_the_layers_forward_twice_and_keeps_little() -> None:
    graph = gpt(batch=64, vocab=512)
    plain, full = lower(graph, Parallelism()), lower(graph, Parallelism(recompute="full"))
    again = flop(full, phases=("recompute",))
    layers_forward = sum(
        (op.flop or 0) * count
        for op, count in zip(graph.ops, graph.counts(), strict=True)
        if count > 1 and op.phase == "forward" and op.kind in ("matmul", "attention")
    )
    # The last product of a layer only makes what is kept anyway.
    assert 0.6 * layers_forward <= again <= layers_forward
    memory = [replay_memory(p.stages[0], capacity_bytes=1e12).by_role["activation"] for p in (plain, full)]
    assert memory[1] < 0.7 * memory[0]


def test_selective_recomputation_drops_the_attention_matrix() -> None:
    graph = gpt(attention="eager", batch=64, vocab=512)
    plain, some = lower(graph, Parallelism()), lower(graph, Parallelism(recompute="selective"))
    memory = [replay_memory(p.stages[0], capacity_bytes=1e12).by_role["activation"] for p in (plain, some)]
    assert memory[1] < memory[0]
    assert flop(some) < 1.1 * flop(plain)


def test_gradients_are_reduced_once_byte_for_byte() -> None:
    graph = gpt()
    program = lower(graph, Parallelism(data=4))
    assert sum(task.num_bytes * count for task, count in collectives(program, "data")) == graph.role_bytes("gradient")


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_sharding_over_replicas_shrinks_what_it_says(zero: int) -> None:
    program = lower(gpt(), Parallelism(data=8, zero=zero))
    roles = {
        role: sum(t.num_bytes * t.copies for t in program.stages[0].tensors if t.role == role)
        for role in ("optimizer_state", "gradient", "parameter")
    }
    sharded = {
        1: ("optimizer_state",),
        2: ("optimizer_state", "gradient"),
        3: ("optimizer_state", "gradient", "parameter"),
    }[zero]
    for role, amount in roles.items():
        expected = gpt().role_bytes(role) / (8 if role in sharded else 1)
        assert amount == pytest.approx(expected, rel=0.01)


def test_fully_sharded_weights_are_gathered_forward_and_backward() -> None:
    program = lower(gpt(), Parallelism(data=8, zero=3))
    gathered = sum(task.num_bytes * count for task, count in collectives(program, "data") if task.kind == "all_gather")
    # Tables are read by the forward pass only.
    assert 1.3 * gpt().role_bytes("parameter") < gathered <= 2 * gpt().role_bytes("parameter")


def test_context_parallelism_divides_the_work_on_tokens() -> None:
    program = lower(gpt(), Parallelism(context=4))
    assert flop(program) == pytest.approx(flop(lower(gpt(), Parallelism())) / 4, rel=0.01)
    assert collectives(program, "context")


def test_experts_are_spread_and_tokens_sent_to_them_and_back() -> None:
    graph = gpt(experts=8)
    program = lower(graph, Parallelism(data=4, expert=4))
    assert flop(program) == pytest.approx(flop(lower(graph, Parallelism())), rel=0.01)
    assert parameters(program) < graph.num_parameters
    assert all(task.kind == "all_to_all" for task, _ in collectives(program, "expert"))
    assert len(collectives(program, "expert")) >= 4


def expert_flop(program: Program) -> float:
    stage = program.stages[0]
    return sum(
        count * (task.flop or 0.0)
        for task, count in zip(stage.tasks, stage.counts(), strict=True)
        if isinstance(task, Op) and "experts" in task.layer.split(".") and task.kind == "matmul"
    )


@pytest.mark.parametrize(
    ("changes", "load"),
    [
        ({"expert_imbalance": 1.5}, 1.5),
        ({"expert_capacity": 1.25}, 1.25),
        ({"expert_capacity": 2.0, "expert_imbalance": 4.0}, 2.0),
    ],
)
def test_the_busiest_rank_computes_and_receives_its_tokens_or_its_capacity(
    changes: dict[str, float], load: float
) -> None:
    even = lower(gpt(experts=8), Parallelism(data=4, expert=4))
    loaded = lower(gpt(experts=8), Parallelism(data=4, expert=4, **changes))  # type: ignore[arg-type]
    assert expert_flop(loaded) == pytest.approx(load * expert_flop(even), rel=1e-3)
    sent = [sum(task.num_bytes * count for task, count in collectives(p, "expert")) for p in (even, loaded)]
    assert sent[1] == pytest.approx(load * sent[0], rel=1e-3)
    weights = [sum(t.num_bytes for t in p.stages[0].tensors if t.role == "parameter") for p in (even, loaded)]
    assert weights[0] == weights[1]


def test_a_capacity_fills_up_experts_that_are_not_spread_too() -> None:
    whole, padded = (lower(gpt(experts=8), Parallelism(expert_capacity=c)) for c in (None, 1.25))
    assert expert_flop(padded) == pytest.approx(1.25 * expert_flop(whole), rel=1e-3)


@pytest.mark.parametrize("values", [{"expert_imbalance": 5.0}, {"expert_imbalance": 0.5}, {"expert_capacity": 0.0}])
def test_loads_that_no_routing_has_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(IllegalPlan, match="expert_"):
        Parallelism(data=4, expert=4, **values)  # type: ignore[arg-type]


def test_a_head_is_never_split_and_the_legal_neighbours_are_named() -> None:
    with pytest.raises(IllegalPlan, match=r"tensor = 8 does not divide the 12 heads .* such as 6 or 12"):
        lower(workload("gpt2", batch=1, precision="bf16"), Parallelism(tensor=8))


def test_a_dense_model_has_no_experts_to_spread() -> None:
    with pytest.raises(IllegalPlan, match="no experts"):
        lower(gpt(), Parallelism(expert_capacity=1.5))
    with pytest.raises(IllegalPlan, match="no experts"):
        lower(gpt(), Parallelism(data=4, expert=2))


def test_all_axes_combine() -> None:
    plan = Parallelism(data=2, tensor=2, pipeline=2, context=2, expert=2, micro_batches=4, zero=1, recompute="full")
    program = lower(gpt(experts=8), plan)
    assert len(program.stages) == 2
    assert {task.axis for stage in program.stages for task in stage.tasks if isinstance(task, Collective)} == {
        "data", "tensor", "pipeline", "context", "expert",
    }  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-amp", "fp16"])
def test_gradients_are_split_as_their_weights_are(precision: str) -> None:
    stage = lower(gpt(precision=precision), Parallelism(tensor=4)).stages[0]
    numel = {
        role: sum(t.numel * t.copies for t in stage.tensors if t.role == role) for role in ("parameter", "gradient")
    }
    assert numel["gradient"] == pytest.approx(numel["parameter"], rel=0.01)


def test_gradients_of_spread_experts_are_reduced_over_their_own_replicas() -> None:
    program = lower(gpt(experts=8), Parallelism(data=8, expert=4))
    groups = {task.num_ranks: task.stride for task, _ in collectives(program, "data")}
    assert groups == {8: 1, 2: 4}
    assert {
        task.num_ranks for task, _ in collectives(lower(gpt(experts=8), Parallelism(data=4, expert=4)), "data")
    } == {4}


@pytest.mark.parametrize(
    "plan",
    [
        Parallelism(data=4, expert=4, tensor=2, sequence_parallel=True),
        Parallelism(data=4, expert=4, context=2),
        Parallelism(data=4, expert=8, tensor=2, sequence_parallel=True, expert_tensor=1),
    ],
)
def test_a_rank_with_part_of_the_sequence_sends_that_part_to_the_experts(plan: Parallelism) -> None:
    whole = lower(gpt(experts=8), Parallelism(data=4, expert=4))
    programs = (whole, lower(gpt(experts=8), plan))
    sent = [sum(task.num_bytes * count for task, count in collectives(p, "expert")) for p in programs]
    assert sent[1] == pytest.approx(sent[0] / 2)


def test_folded_experts_do_the_same_work_whole_and_without_reductions() -> None:
    graph = gpt(experts=8)
    split = lower(graph, Parallelism(data=4, tensor=2, sequence_parallel=True, expert=4))
    folded = lower(graph, Parallelism(data=4, tensor=2, sequence_parallel=True, expert=8, expert_tensor=1))
    assert flop(folded) == pytest.approx(flop(split), rel=0.01)
    assert parameters(folded) == pytest.approx(parameters(split), rel=0.01)
    reduced = [sum(task.num_bytes * count for task, count in collectives(p, "tensor")) for p in (split, folded)]
    assert reduced[1] < reduced[0]
    assert {(task.num_ranks, task.stride) for task, _ in collectives(folded, "expert")} == {(8, 1)}


def test_gradients_of_folded_experts_are_reduced_over_what_is_left() -> None:
    plan = Parallelism(data=4, tensor=2, sequence_parallel=True, expert=4, expert_tensor=1)
    groups = {(task.num_ranks, task.stride) for task, _ in collectives(lower(gpt(experts=8), plan), "data")}
    assert groups == {(4, 2), (2, 4)}


def test_an_expert_split_that_no_framework_has_is_refused() -> None:
    with pytest.raises(IllegalPlan, match="allowed: 1 or tensor = 4"):
        Parallelism(tensor=4, expert_tensor=2)
    with pytest.raises(IllegalPlan, match="sequence_parallel"):
        Parallelism(tensor=4, expert_tensor=1)
    with pytest.raises(IllegalPlan, match="data x context x tensor = 8"):
        Parallelism(data=4, tensor=2, sequence_parallel=True, expert=3, expert_tensor=1)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_ranks_of_the_tensor_axis_each_send_their_part_to_the_next_stage(sequence_parallel: bool) -> None:
    whole = lower(gpt(), Parallelism(pipeline=2, micro_batches=4))
    split = lower(gpt(), Parallelism(pipeline=2, micro_batches=4, tensor=4, sequence_parallel=sequence_parallel))
    sizes = [{task.num_bytes for task, _ in collectives(p, "pipeline")} for p in (whole, split)]
    assert {size / 4 for size in sizes[0]} == sizes[1]


def test_gradients_of_a_head_tied_to_the_embedding_are_made_in_the_last_stage() -> None:
    program = lower(workload("gpt2", batch=2, seq=128), Parallelism(pipeline=4, micro_batches=4))
    heads = [
        [
            task.phase
            for task in stage.tasks
            if isinstance(task, Op) and task.kind == "matmul" and task.layer.startswith("head")
        ]
        for stage in program.stages
    ]
    assert heads == [[], [], [], ["forward", "backward", "backward"]]


def test_passes_of_a_captured_step_that_is_padded_to_the_largest_input_do_not_vary() -> None:
    images, speech = (workload(name, batch=2) for name in ("maskrcnn", "rnnt"))
    assert lower(images, Parallelism()).input_variation == images.input_variation > 0
    assert lower(images, Parallelism(), captured=True).input_variation == 0
    assert lower(speech, Parallelism(), captured=True).input_variation == speech.input_variation > 0
