import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.catalog._models.layers import Net
from traincast.catalog._models.recipe import OPTIMIZERS, PRECISIONS, Recipe
from traincast.catalog._models.tape import Value
from traincast.catalog._models.transformer import TransformerShape, build_transformer
from traincast.errors import InvalidInput, UnknownName
from traincast.spec._graph import Graph, Op, segments
from traincast.units import DTYPE_BYTES


def stack(num_layers: int, recipe: Recipe, **fields: object) -> Graph:
    shape = TransformerShape(n_layers=num_layers, hidden=32, heads=4, vocab=100, seq=16, **fields)  # type: ignore[arg-type]
    return build_transformer(shape, recipe, batch=2)


def total_kernels(graph: Graph) -> int:
    return sum(op.num_kernels * count for op, count in zip(graph.ops, graph.counts(), strict=True))


def ops_in(graph: Graph, phase: str) -> list[Op]:
    return [op for op in graph.ops if op.phase == phase]


def flop_in(graph: Graph, phase: str) -> float:
    pairs = zip(graph.ops, graph.counts(), strict=True)
    return sum(
        (op.flop or 0.0) * count for op, count in pairs if op.phase == phase and op.kind in ("matmul", "attention")
    )


RECIPES = [
    Recipe(
        mode="forward_backward", precision=precision, recompute=recompute, attention=attention, fused=fused, dropout=0.1
    )
    for precision in ("fp32", "bf16-amp", "bf16", "fp8")
    for recompute, attention in (("none", "flash"), ("none", "eager"), ("full", "flash"), ("selective", "eager"))
    for fused in (False, True)
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: f"{r.precision}-{r.recompute}-{r.attention}-{r.fused}")
def test_a_folded_stack_costs_as_much_as_its_layers_written_out(recipe: Recipe) -> None:
    one, two, five = (stack(count, recipe) for count in (1, 2, 5))
    assert not one.repeats
    assert {repeat.count for repeat in five.repeats} == {5}
    assert five.flop == pytest.approx(one.flop + 4 * (two.flop - one.flop))
    assert five.num_bytes == pytest.approx(one.num_bytes + 4 * (two.num_bytes - one.num_bytes))
    assert total_kernels(five) == total_kernels(one) + 4 * (total_kernels(two) - total_kernels(one))
    assert five.num_parameters == one.num_parameters + 4 * (two.num_parameters - one.num_parameters)


def test_a_layer_costs_the_same_folded_and_alone() -> None:
    recipe = Recipe(mode="forward_backward", attention="eager")
    one, two = stack(1, recipe), stack(2, recipe)
    layer_flop = sum(op.flop or 0.0 for op in one.ops if op.layer.startswith("layers"))
    assert two.flop - one.flop == pytest.approx(layer_flop)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: f"{r.precision}-{r.recompute}-{r.attention}-{r.fused}")
def test_every_tensor_is_written_before_it_is_read(recipe: Recipe) -> None:
    graph = stack(3, recipe, norm="rms_norm", gated=True, bias=False, positions="rotary", kv_heads=2)
    known = {i for i, tensor in enumerate(graph.tensors) if tensor.role in ("parameter", "input", "buffer", "gradient")}
    for part in segments(graph.repeats, num_tasks=len(graph.ops)):
        written = {tensor for op in graph.ops[part.start : part.stop] for tensor in op.writes}
        for op in graph.ops[part.start : part.stop]:
            for tensor in op.reads:
                assert tensor in known or (part.count > 1 and tensor in written), (
                    op.name,
                    op.layer,
                    graph.tensors[tensor],
                )
            known.update(op.writes)


def test_forward_and_backward_repeat_the_same_number_of_times() -> None:
    graph = stack(7, Recipe())
    forward, backward = graph.repeats
    assert forward.count == backward.count == 7
    assert graph.ops[forward.start].phase == "forward"
    assert graph.ops[backward.start].phase == "backward"


def test_the_residual_stream_is_carried_from_layer_to_layer() -> None:
    graph = stack(4, Recipe())
    for repeat in graph.repeats:
        written: set[int] = set()
        carried = set()
        for op in graph.ops[repeat.start : repeat.stop]:
            carried |= set(op.reads) - written
            written |= set(op.writes)
        assert carried & written


def test_every_weight_gets_one_gradient_of_its_size() -> None:
    graph = stack(3, Recipe(), tied=True)
    weights = sorted(t.numel * t.copies for t in graph.tensors if t.role == "parameter")
    gradients = sorted(t.numel * t.copies for t in graph.tensors if t.role == "gradient")
    assert weights == gradients


def test_full_recomputation_runs_the_layers_again_and_keeps_little() -> None:
    plain, again = stack(8, Recipe()), stack(8, Recipe(recompute="full", fused=False))
    kept_plain = sum(t.num_bytes for t in plain.tensors if t.role == "activation")
    kept_again = sum(t.num_bytes for t in again.tensors if t.role == "activation")
    assert flop_in(plain, "recompute") == 0
    assert 0.6 * flop_in(plain, "forward") < flop_in(again, "recompute") < flop_in(plain, "forward")
    assert kept_again < 0.5 * kept_plain


def test_selective_recomputation_repeats_only_attention() -> None:
    graph = stack(8, Recipe(recompute="selective", attention="eager"))
    again = ops_in(graph, "recompute")
    assert again
    assert all("attention.core" in op.layer for op in again)


def test_recomputed_ops_come_just_before_the_backward_of_their_layer() -> None:
    graph = stack(4, Recipe(recompute="full"))
    backward = graph.repeats[1]
    phases = [op.phase for op in graph.ops[backward.start : backward.stop]]
    assert phases == sorted(phases, key=("recompute", "backward").index)
    assert phases[0] == "recompute"


def test_inference_has_no_backward_no_dropout_and_keeps_nothing() -> None:
    graph = stack(3, Recipe(mode="inference", dropout=0.5))
    assert {op.phase for op in graph.ops} == {"forward"}
    assert not [op for op in graph.ops if op.kind == "dropout"]
    assert graph.role_bytes("activation") == graph.role_bytes("gradient") == graph.role_bytes("optimizer_state") == 0


def test_without_a_loss_the_gradient_of_the_outputs_is_given() -> None:
    graph = stack(2, Recipe(mode="forward_backward", loss=False))
    assert not [op for op in graph.ops if op.layer.startswith("loss")]
    assert flop_in(graph, "backward") > flop_in(graph, "forward")


@pytest.mark.parametrize(
    ("precision", "per_weight"), [("fp32", 16), ("bf16-amp", 16), ("fp16", 16), ("bf16", 18), ("fp8", 18)]
)
def test_weights_gradients_and_adam_take_the_bytes_everybody_counts(precision: str, per_weight: int) -> None:
    graph = stack(4, Recipe(precision=precision, optimizer="adamw"))
    held = sum(graph.role_bytes(role) for role in ("parameter", "gradient", "optimizer_state"))
    assert held / graph.num_parameters == pytest.approx(per_weight)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer_updates_every_weight_once(optimizer: str) -> None:
    graph = stack(3, Recipe(optimizer=optimizer))
    last = graph.ops[-1]
    assert last.kind == "optimizer"
    assert last.attrs["numel"] == graph.num_parameters
    assert last.attrs["algorithm"] == optimizer
    update = OPTIMIZERS[optimizer]
    size = 1 if update.state_dtype == "int8" else 4
    per_weight = graph.role_bytes("optimizer_state") / graph.num_parameters
    # Factors of rows and columns, and the scales of 8-bit states, come on top.
    slack = 2.0 if update.factored else 0.1 if update.state_dtype else 1e-9
    assert per_weight == pytest.approx(size * len(update.states), abs=slack)


def test_fused_adamw_reads_four_numbers_and_writes_three() -> None:
    last = stack(3, Recipe(implementation="fused")).ops[-1]
    numel = int(last.attrs["numel"])
    assert (last.bytes_read, last.bytes_written) == (16 * numel, 12 * numel)


def test_autocast_casts_every_matrix_once_and_its_gradient_back() -> None:
    graph = stack(3, Recipe(precision="fp16-amp", mode="forward_backward", dropout=0.0))
    assert {op.dtype for op in graph.ops if op.kind in ("matmul", "attention")} == {"fp16"}
    assert {op.dtype for op in graph.ops if op.kind in ("norm", "softmax")} == {"fp32"}
    assert {tensor.dtype for tensor in graph.tensors if tensor.role in ("parameter", "gradient")} == {"fp32"}
    assert len([op for op in ops_in(graph, "backward") if op.name == "aten._to_copy"]) > 5


def test_tf32_changes_the_arithmetic_of_products_and_no_byte() -> None:
    exact, rough = stack(2, Recipe()), stack(2, Recipe(precision="tf32"))
    assert exact.num_bytes == rough.num_bytes
    assert {op.dtype for op in rough.ops if op.kind == "matmul"} == {"tf32"}
    assert {op.dtype for op in rough.ops if op.kind == "norm"} == {"fp32"}


def test_fused_kernels_are_fewer_and_move_less() -> None:
    plain = stack(4, Recipe(precision="bf16", attention="eager", dropout=0.1))
    fused = stack(4, Recipe(precision="bf16", attention="eager", dropout=0.1, fused=True))
    assert total_kernels(fused) < 0.7 * total_kernels(plain)
    assert fused.num_bytes < plain.num_bytes


def test_a_loss_over_a_split_vocabulary_takes_a_pass_for_every_step() -> None:
    """Ranks exchange the largest score and the sum between them, so no kernel can do it all: maximum, difference, exponential,
    sum and quotient read and write fp32 scores eight times, and the gradient twice."""
    graph = stack(2, Recipe(precision="bf16", fused=True))
    num_scores = 2 * 16 * 100
    passes = {phase: [op for op in ops_in(graph, phase) if op.layer == "loss" and op.kind in ("elementwise", "reduce")]
              for phase in ("forward", "backward")}  # fmt: skip
    assert [op.name for op in passes["forward"]] == ["aten.amax", "aten.sub", "aten.exp", "aten.sum", "aten.div"]
    moved = {phase: sum(op.num_bytes for op in ops) / num_scores for phase, ops in passes.items()}
    assert moved["forward"] == pytest.approx(8 * 4, rel=0.01)
    assert moved["backward"] == pytest.approx(2 * 4, rel=0.01)
    whole = stack(2, Recipe(precision="bf16", fused=True, fused_loss=True))
    assert whole.num_bytes < graph.num_bytes


def test_accumulating_gradients_adds_one_kernel_per_weight() -> None:
    once, more = stack(3, Recipe()), stack(3, Recipe(accumulate=True))
    num_tensors = int(once.ops[-1].attrs["num_tensors"])
    assert sum(more.counts()) == sum(once.counts()) + num_tensors


def test_fused_products_add_to_the_gradients_that_are_there() -> None:
    plain, fused = (stack(3, Recipe(precision="fp16", accumulate=True, fused=fused)) for fused in (False, True))
    products = [op for op in ops_in(fused, "backward") if op.kind == "matmul" and set(op.reads) & set(op.writes)]
    assert products
    assert {fused.tensors[tensor].role for op in products for tensor in set(op.reads) & set(op.writes)} == {"gradient"}
    adds = [[op for op in ops_in(graph, "backward") if op.name == "aten.add_"] for graph in (plain, fused)]
    assert len(adds[0]) - len(adds[1]) >= len(products)


def test_a_recipe_with_channels_last_says_so_of_every_convolution() -> None:
    for channels_last in (False, True):
        tape = Net(Recipe(mode="forward_backward", channels_last=channels_last))
        out = tape.conv(tape.input("x", (2, 3, 8, 8), "fp32"), 4, 3)
        graph = tape.finish([out], name="test", batch_size=2)
        assert {bool(op.attrs.get("channels_last")) for op in graph.ops if op.kind == "conv"} == {channels_last}


def test_shared_layers_have_weights_once_and_gradients_added_up() -> None:
    own, shared = stack(6, Recipe()), stack(6, Recipe(), shared_layers=True)
    assert shared.num_parameters == stack(1, Recipe()).num_parameters
    assert flop_in(shared, "backward") == flop_in(own, "backward")
    assert shared.ops[-1].attrs["numel"] == shared.num_parameters


def test_a_value_read_by_every_repetition_collects_its_gradient() -> None:
    tape = Net(Recipe(mode="forward_backward"))
    outside = tape.linear(tape.input("x", (4, 8), "fp32"), 8, name="outside")
    start = tape.linear(tape.input("y", (4, 8), "fp32"), 8, name="start")

    def body(value: Value) -> Value:
        return tape.add(tape.softmax(value), outside)

    graph = tape.finish([tape.repeat(5, start, body)], name="test", batch_size=4)
    backward = graph.repeats[1]
    adds = [op for op in graph.ops[backward.start : backward.stop] if op.name == "aten.add_"]
    assert len(adds) == 1
    assert set(adds[0].reads) & set(adds[0].writes)
    assert [op for op in graph.ops if op.layer == "outside" and op.phase == "backward"]


def test_a_sparse_table_updates_only_the_rows_it_read() -> None:
    tape = Net(Recipe(optimizer="sgd"))
    looked = tape.embedding(tape.input("ids", (10,), "int64"), vocab=1000, width=8, sparse=True)
    graph = tape.finish([looked], name="test", batch_size=10)
    assert graph.num_parameters == 8000
    assert graph.ops[-1].attrs["numel"] == 80


def test_dropout_keeps_one_byte_per_element() -> None:
    tape = Net(Recipe(mode="forward_backward"))
    x = tape.input("x", (16, 16), "fp32", needs_gradient=True)
    graph = tape.finish([tape.dropout(x, 0.5)], name="test", batch_size=16)
    assert graph.role_bytes("activation") == 256
    assert [op.kind for op in graph.ops] == ["dropout", "dropout"]


def test_a_repeated_layer_must_return_what_it_takes() -> None:
    tape = Net(Recipe())
    x = tape.input("x", (4, 8), "fp32")
    with pytest.raises(InvalidInput, match="turns"):
        tape.repeat(3, x, lambda value: tape.linear(value, 16))


@pytest.mark.parametrize(
    "fields",
    [{"precision": "fp7"}, {"optimizer": "adamm"}, {"attention": "fast"}, {"recompute": "some"}, {"mode": "train"}],
)
def test_an_unknown_setting_is_named(fields: dict[str, str]) -> None:
    with pytest.raises(UnknownName, match=next(iter(fields.values()))):
        Recipe(**fields)


@settings(max_examples=40, deadline=None)
@given(
    n_layers=st.integers(1, 6),
    heads=st.sampled_from([1, 2, 4, 8]),
    dim=st.sampled_from([8, 16, 40]),
    groups=st.sampled_from([1, 2]),
    ffn=st.integers(1, 300),
    vocab=st.integers(2, 500),
    precision=st.sampled_from(sorted(PRECISIONS)),
    recompute=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["eager", "flash"]),
    gated=st.booleans(),
)
def test_any_shape_has_the_weights_its_formula_says(
    n_layers: int,
    heads: int,
    dim: int,
    groups: int,
    ffn: int,
    vocab: int,
    precision: str,
    recompute: str,
    attention: str,
    gated: bool,
) -> None:
    kv_heads = max(1, heads // groups)
    hidden = heads * dim
    shape = TransformerShape(
        n_layers=n_layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn, vocab=vocab, seq=8, gated=gated, bias=False,
        norm="rms_norm", positions="rotary",
    )  # fmt: skip
    graph = build_transformer(shape, Recipe(precision=precision, recompute=recompute, attention=attention), batch=3)
    layer = 2 * hidden * hidden + 2 * hidden * kv_heads * dim + (3 if gated else 2) * hidden * ffn + 2 * hidden
    assert graph.num_parameters == n_layers * layer + 2 * vocab * hidden + hidden
    tokens = 3 * 8
    dense = 2 * tokens * (n_layers * (layer - 2 * hidden) + vocab * hidden)
    outside = {"core", "rotary"}
    forward = sum(
        (op.flop or 0.0) * count
        for op, count in zip(graph.ops, graph.counts(), strict=True)
        if op.phase == "forward" and op.kind == "matmul" and not outside & set(op.layer.split("."))
    )
    assert forward == pytest.approx(dense)
    for op in graph.ops:
        if op.kind == "elementwise":
            smallest = min((DTYPE_BYTES[graph.tensors[i].dtype] for i in op.writes), default=0)
            assert op.bytes_written >= smallest


def test_a_transposed_convolution_is_the_mirror_of_a_convolution() -> None:
    tape = Net(Recipe(mode="forward_backward"))
    out = tape.conv(tape.input("x", (2, 8, 5, 5), "fp32"), 4, 2, stride=2, padding=0, transposed=True)
    graph = tape.finish([out], name="up", batch_size=2, samples_unit="images", source="")
    forward = next(op for op in graph.ops if op.kind == "conv")
    assert forward.flop == 2 * 2 * 25 * 4 * 8 * 4
    assert forward.attrs["pass"] == "grad_input"
    assert (forward.attrs["in_channels"], forward.attrs["out_channels"]) == (4, 8)
    assert (forward.attrs["in_size"], forward.attrs["out_size"]) == ("10x10", "5x5")
