"""Small models whose work can be counted by hand."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from traincast import catalog
from traincast.capture import capture
from traincast.errors import CaptureFailed, InvalidInput, UnknownName
from traincast.spec._graph import KINDS, Graph, Op


def ops_of(graph: Graph, kind: str, phase: str | None = None) -> list[Op]:
    return [op for op in graph.ops if op.kind == kind and (phase is None or op.phase == phase)]


class Attending(nn.Module):
    def __init__(self, *, dropout: float = 0.0, causal: bool = True, kv_heads: int = 4) -> None:
        super().__init__()
        self.dropout, self.causal, self.kv_heads = dropout, causal, kv_heads
        self.query = nn.Linear(32, 32, bias=False)
        self.key_value = nn.Linear(32, 2 * kv_heads * 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, 4, 8).transpose(1, 2)
        key, value = self.key_value(x).view(batch, length, 2, self.kv_heads, 8).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout, is_causal=self.causal, enable_gqa=self.kv_heads != 4
        )
        return attended.transpose(1, 2).reshape(batch, length, 32)


def test_a_linear_layer_is_counted_by_hand() -> None:
    graph = capture(nn.Linear(16, 8), torch.zeros(4, 16), loss="mse", optimizer="sgd", folded=False)
    forward, grad_weight = ops_of(graph, "matmul")
    assert forward.flop == 2 * 4 * 16 * 8
    assert forward.bytes_read == 4 * (4 * 16 + 16 * 8 + 8)
    assert forward.bytes_written == 4 * (4 * 8)
    assert dict(forward.attrs) == {"batch": 1, "m": 4, "n": 8, "k": 16, "layout": "tn"}
    # The input needs no gradient, so the only product of the backward pass is the weight gradient.
    assert dict(grad_weight.attrs) == {"batch": 1, "m": 8, "n": 16, "k": 4, "layout": "nt"}
    assert graph.num_parameters == 16 * 8 + 8
    assert graph.batch_size == 4


def test_an_inner_linear_layer_has_both_gradients() -> None:
    graph = capture(nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 8)), torch.zeros(2, 4), folded=False)
    backward = [op for op in ops_of(graph, "matmul", "backward") if op.layer == "1"]
    assert sorted((op.attrs["layout"], op.flop) for op in backward) == [("nn", 512.0), ("nt", 512.0)]


def test_every_op_has_the_attributes_of_its_kind_and_only_views_vanish() -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(2, 3, 4).transpose(1, 2).reshape(2, 12).relu()

    graph = capture(Views(), torch.zeros(2, 12), mode="inference")
    assert [op.name for op in graph.ops] == ["aten.clone", "aten.relu"]
    # view and transpose are calls of the host in front of the copy; the last view is one in front of relu.
    assert [op.num_calls for op in graph.ops] == [3, 2]
    assert all(set(KINDS[op.kind]) <= set(op.attrs) for op in graph.ops)


def test_convolution_backward_is_an_input_and_a_weight_gradient() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, stride=2, groups=8, bias=False))
    graph = capture(model, torch.zeros(2, 3, 8, 8), folded=False)
    passes = [(op.layer, op.attrs["pass"], op.flop) for op in ops_of(graph, "conv")]
    dense, depthwise = 2 * 2 * 64 * 9 * 3 * 8, 2 * 2 * 9 * 9 * 8
    assert passes == [
        ("0", "forward", dense),
        ("1", "forward", depthwise),
        ("1", "grad_input", depthwise),
        ("1", "grad_weight", depthwise),
        ("0", "grad_weight", dense),
    ]
    last = ops_of(graph, "conv")[1]
    assert (last.attrs["in_size"], last.attrs["out_size"], last.attrs["kernel"]) == ("8x8", "3x3", "3x3")


def test_a_transposed_convolution_is_the_mirror_of_a_convolution() -> None:
    graph = capture(nn.ConvTranspose2d(8, 4, 2, stride=2, bias=False), torch.zeros(2, 8, 5, 5), mode="inference")
    (op,) = ops_of(graph, "conv")
    assert op.flop == 2 * 2 * 25 * 4 * 8 * 4
    assert op.attrs["pass"] == "grad_input"
    assert (op.attrs["in_channels"], op.attrs["out_channels"]) == (4, 8)
    assert (op.attrs["in_size"], op.attrs["out_size"]) == ("10x10", "5x5")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_is_one_op_with_or_without_dropout(dropout: float) -> None:
    graph = capture(Attending(dropout=dropout), torch.zeros(2, 16, 32), folded=False)
    forward, backward = ops_of(graph, "attention")
    full = 4 * 2 * 4 * 16 * 16 * 8
    assert forward.flop == full / 2
    assert backward.flop == 2.5 * full / 2
    assert not ops_of(graph, "softmax")


def test_attention_without_a_causal_mask_does_all_the_work() -> None:
    (op,) = ops_of(capture(Attending(causal=False), torch.zeros(2, 16, 32), mode="inference"), "attention")
    assert op.flop == 4 * 2 * 4 * 16 * 16 * 8
    assert op.attrs["causal"] is False


def test_grouped_query_attention_reads_fewer_keys() -> None:
    few, many = (
        ops_of(capture(Attending(kv_heads=heads), torch.zeros(2, 16, 32), mode="inference"), "attention")[0]
        for heads in (1, 4)
    )
    assert few.attrs["kv_heads"] == 1
    assert few.flop == many.flop
    # Keys and values of one head instead of four.
    assert many.bytes_read > few.bytes_read


def test_an_embedding_reads_its_rows_only() -> None:
    graph = capture(nn.Embedding(1000, 16), torch.zeros(4, 8, dtype=torch.int64), mode="inference")
    (op,) = ops_of(graph, "embedding")
    assert op.bytes_read == 32 * 16 * 4 + 32 * 8
    assert op.bytes_written == 32 * 16 * 4
    assert dict(op.attrs) == {"rows": 32, "cols": 16, "vocab": 1000}


def test_an_expanded_input_counts_its_real_storage() -> None:
    class Adding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(1, 16).expand(8, 16)

    graph = capture(Adding(), torch.zeros(8, 16), mode="inference")
    (op,) = [op for op in graph.ops if op.name == "aten.add"]
    assert op.bytes_read == 4 * (8 * 16 + 16)


def test_an_lstm_is_one_op() -> None:
    graph = capture(
        nn.LSTM(12, 20, num_layers=2, batch_first=True, bidirectional=True), torch.zeros(3, 7, 12), folded=False
    )
    forward, backward = ops_of(graph, "rnn")
    steps = 3 * 7
    assert forward.flop == 2 * steps * 4 * 20 * (12 + 20) * 2 + 2 * steps * 4 * 20 * (40 + 20) * 2
    assert backward.flop == 2 * forward.flop
    assert (forward.attrs["cell"], forward.attrs["batch"], forward.attrs["length"]) == ("lstm", 3, 7)
    assert graph.num_parameters == sum(
        p.numel() for p in nn.LSTM(12, 20, num_layers=2, bidirectional=True).parameters()
    )


def test_a_packed_sequence_counts_its_real_steps() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 6, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]

    graph = capture(Packed(), (torch.zeros(2, 5, 4), torch.tensor([5, 3])), folded=False)
    forward, backward = ops_of(graph, "rnn")
    assert forward.flop == 2 * (5 + 3) * 3 * 6 * (4 + 6)
    assert backward.flop == 2 * forward.flop


def test_dropout_is_one_op_with_a_byte_per_element() -> None:
    graph = capture(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)), torch.zeros(4, 8), folded=False)
    forward, backward = ops_of(graph, "dropout")
    assert forward.bytes_written == 32 * 4 + 32
    assert backward.phase == "backward"


def test_the_optimizer_is_one_op_over_all_parameters_and_their_state() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))
    graph = capture(model, torch.zeros(2, 16), folded=False, holds_output=False)
    (op,) = ops_of(graph, "optimizer")
    numel = 16 * 8 + 8 + 8 * 4 + 4
    assert op.attrs["numel"] == numel
    assert op.attrs["num_tensors"] == 4
    assert (op.bytes_read, op.bytes_written) == (12 * 4 * numel, 8 * 4 * numel)
    assert graph.role_bytes("optimizer_state") == 2 * graph.role_bytes("parameter") == 2 * graph.role_bytes("gradient")
    roles = {graph.tensors[index].role for index in op.reads}
    assert roles == {"parameter", "gradient", "optimizer_state"}


def test_a_fused_optimizer_moves_less() -> None:
    plain, fused = (
        ops_of(capture(nn.Linear(8, 8), torch.zeros(2, 8), implementation=way, folded=False), "optimizer")[0]
        for way in ("foreach", "fused")
    )
    assert fused.num_bytes == 7 * 4 * 72 < plain.num_bytes


def test_a_torch_optimizer_gives_its_groups_and_algorithm() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[1].parameters(), "momentum": 0.9}], lr=0.1
    )
    graph = capture(model, torch.zeros(2, 8), optimizer=optimizer, folded=False)
    assert [op.attrs["algorithm"] for op in ops_of(graph, "optimizer")] == ["sgd", "momentum"]
    assert graph.role_bytes("optimizer_state") == 4 * 72


def test_the_loss_and_its_gradient_are_in_the_step() -> None:
    graph = capture(nn.Linear(8, 10), torch.zeros(4, 8), loss="cross_entropy")
    names = [op.name for op in graph.ops]
    assert "aten._log_softmax" in names
    assert "aten.nll_loss_backward" in names


def test_without_a_loss_the_assumption_is_told() -> None:
    graph = capture(nn.Linear(8, 10), torch.zeros(4, 8))
    assert any("mean of the output" in sentence for sentence in graph.assumptions)


def test_backward_ops_carry_the_path_of_their_layer() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.GELU()), nn.LayerNorm(8), nn.Linear(8, 2))
    graph = capture(model, torch.zeros(2, 8), folded=False)
    layers = {(op.phase, op.kind): op.layer for op in graph.ops if op.kind in ("norm", "elementwise")}
    assert layers["forward", "norm"] == layers["backward", "norm"] == "1"
    gelu = [op.layer for op in graph.ops if "gelu" in op.name]
    assert gelu == ["0.1", "0.1"]


def test_tied_weights_are_one_parameter_with_one_gradient() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(50, 16)
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))

    graph = capture(Tied(), torch.zeros(2, 3, dtype=torch.int64), loss="cross_entropy")
    assert graph.num_parameters == 50 * 16
    assert graph.role_bytes("gradient") == 50 * 16 * 4


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_are_recomputed(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.blocks = nn.ModuleList(
                [nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(4)]
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return x

    graph = capture(Checkpointed(), torch.zeros(4, 8), folded=False)
    forward = sum(op.flop or 0 for op in ops_of(graph, "matmul", "forward") if op.layer != "first")
    recomputed = ops_of(graph, "matmul", "recompute")
    assert {op.layer.split(".")[0] for op in recomputed} == {"blocks"}
    # The non-reentrant kind stops as soon as all that is needed is back: the last product is not run again.
    assert sum(op.flop or 0 for op in recomputed) == (forward if reentrant else forward / 2)
    from capture.replay import peak_bytes

    folded = capture(Checkpointed(), torch.zeros(4, 8))
    assert folded.repeats
    assert peak_bytes(folded) == pytest.approx(peak_bytes(graph), rel=0.01)


def test_attention_inside_a_checkpoint_is_still_one_op() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attending(dropout=0.1)
            self.first = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=False)

    graph = capture(Checkpointed(), torch.zeros(2, 16, 32), folded=False)
    assert [op.phase for op in ops_of(graph, "attention")] == ["forward", "recompute", "backward"]


def test_accumulated_gradients_are_added_and_the_batch_grows() -> None:
    one, two = (
        capture(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.zeros(4, 8), accumulate=n, folded=False)
        for n in (1, 2)
    )
    assert (one.batch_size, two.batch_size) == (4, 8)
    assert sum(op.flop or 0 for op in ops_of(two, "matmul")) == 2 * sum(op.flop or 0 for op in ops_of(one, "matmul"))
    assert len(ops_of(two, "optimizer")) == 1
    assert two.role_bytes("gradient") == one.role_bytes("gradient")
    added = [op for op in two.ops if op.name == "aten.add_" and op.phase == "backward"]
    assert {op.attrs["numel"] for op in added} == {64, 8}


def test_clipping_reads_and_scales_every_gradient() -> None:
    graph = capture(nn.Linear(8, 8), torch.zeros(4, 8), max_grad_norm=1.0)
    added = {op.name: op for op in graph.ops if op.phase == "optimizer" and op.kind != "optimizer"}
    assert set(added) == {"norm_of_gradients", "clip_gradients"}
    assert added["clip_gradients"].num_bytes == 2 * 4 * 72


def test_a_compiled_model_is_recorded_as_the_eager_one() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(model, backend="eager")
    assert capture(compiled, torch.zeros(4, 8)) == capture(model, torch.zeros(4, 8))


@pytest.mark.parametrize(("precision", "gradient_bytes"), [("bf16", 4), ("fp16", 2)])
def test_a_cast_model_computes_in_its_dtype_and_its_optimizer_keeps_fp32_weights(
    precision: str, gradient_bytes: int
) -> None:
    graph = capture(nn.Linear(8, 8), torch.zeros(4, 8), precision=precision, loss="mse", folded=False)
    assert {op.dtype for op in ops_of(graph, "matmul")} == {precision}
    assert graph.role_bytes("parameter") == 2 * 72
    assert graph.role_bytes("gradient") == gradient_bytes * 72
    assert graph.role_bytes("optimizer_state") == 3 * 4 * 72


def test_pure_half_precision_stores_everything_in_it() -> None:
    graph = capture(nn.Linear(8, 8), torch.zeros(4, 8), precision="bf16-pure", loss="mse", folded=False)
    assert graph.role_bytes("parameter") == graph.role_bytes("gradient") == 2 * 72
    assert graph.role_bytes("optimizer_state") == 4 * 72


def test_a_word_for_precision_means_the_same_for_a_recorded_model_and_for_one_of_the_catalogue() -> None:
    def build() -> nn.Module:
        return nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(3)])

    recorded = capture(build, torch.zeros(4, 64), precision="bf16", optimizer="adamw", loss="mse")
    listed = catalog.workload("gpt2", batch=1, seq=64, precision="bf16")
    for graph in (recorded, listed):
        weights = graph.num_parameters
        per_weight = [graph.role_bytes(role) / weights for role in ("parameter", "gradient", "optimizer_state")]
        assert per_weight == pytest.approx([2, 4, 12])
        update = next(op for op in graph.ops if op.kind == "optimizer")
        assert (update.bytes_read / weights, update.bytes_written / weights) == pytest.approx((48, 38))


@pytest.mark.parametrize("precision", ["bf16-amp", "fp16-amp"])
def test_autocast_computes_in_half_and_keeps_fp32_weights(precision: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1))
    graph = capture(model, torch.zeros(4, 8), precision=precision, folded=False)
    half = precision.removesuffix("-amp")
    assert {op.dtype for op in ops_of(graph, "matmul")} == {half}
    # On an accelerator layer norm and softmax run in fp32 under autocast, unlike on a CPU.
    assert {op.dtype for op in graph.ops if op.kind in ("norm", "softmax")} == {"fp32"}
    assert graph.role_bytes("parameter") == graph.role_bytes("gradient") == 4 * (2 * 72 + 16)
    assert ("unscale_gradients" in [op.name for op in graph.ops]) == (precision == "fp16-amp")


def test_tf32_marks_products_only() -> None:
    graph = capture(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.zeros(4, 8), precision="tf32", folded=False)
    assert {op.dtype for op in ops_of(graph, "matmul")} == {"tf32"}
    assert {op.dtype for op in ops_of(graph, "elementwise")} == {"fp32"}
    assert {tensor.dtype for tensor in graph.tensors} == {"fp32"}


def test_modes_leave_out_what_they_do_not_run() -> None:
    phases = {
        mode: {op.phase for op in capture(nn.Linear(8, 8), torch.zeros(4, 8), mode=mode).ops}
        for mode in ("inference", "forward_backward", "training_step")
    }
    assert phases == {
        "inference": {"forward"},
        "forward_backward": {"forward", "backward"},
        "training_step": {"forward", "backward", "optimizer"},
    }


def test_the_users_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    capture(model, torch.randn(4, 8), precision="bf16")
    assert not model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model(torch.zeros(2, 8)).shape == (2, 8)


def test_a_builder_may_convert_its_model_and_keeps_ties() -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
        model[1].weight = model[0].weight
        return model.to(torch.bfloat16).cuda()

    graph = capture(build, lambda: torch.zeros(2, 8, dtype=torch.bfloat16))
    assert graph.role_bytes("parameter") == 2 * 64


def test_a_huge_model_needs_no_memory() -> None:
    graph = capture(lambda: nn.Linear(2**17, 2**17), lambda: torch.zeros(1, 2**17), mode="inference")
    assert graph.num_parameters == 2**34 + 2**17


def test_models_that_ask_for_a_gpu_are_recorded_without_one() -> None:
    class Demanding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8, 8, device="cuda"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return x.to("cuda") @ self.weight.cuda() + torch.zeros(8, device=torch.device("cuda", 0))

    graph = capture(Demanding, torch.zeros(4, 8))
    assert {op.dtype for op in ops_of(graph, "matmul")} == {"bf16"}


def test_frozen_parameters_have_no_gradient_and_no_state() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[0].requires_grad_(False)
    graph = capture(model, torch.zeros(4, 8))
    assert graph.role_bytes("gradient") == 4 * 72
    assert graph.role_bytes("parameter") == 2 * 4 * 72


def test_two_recordings_are_the_same() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    first, second = (capture(model, torch.zeros(4, 8), loss="cross_entropy") for _ in range(2))
    assert first == second


def test_multi_head_attention_is_found_inside_torch() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    for mode in ("training_step", "inference"):
        graph = capture(layer, torch.zeros(2, 6, 16), mode=mode, folded=False)
        assert len(ops_of(graph, "attention", "forward")) == 1


def test_an_unknown_op_has_no_flop_instead_of_zero() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.matrix_exp(x)

    graph = capture(Odd(), torch.zeros(4, 4), mode="inference")
    assert graph.unknown_ops() == ("aten.linalg_matrix_exp",)
    assert math.isfinite(graph.num_bytes)


def test_a_model_that_raises_names_its_module_in_one_line() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no\nluck")

    with pytest.raises(
        CaptureFailed,
        match=r"^Sequential cannot be captured: .*ValueError in module '1' \(at test_trace.py:\d+\): no luck$",
    ):
        capture(nn.Sequential(nn.Linear(4, 4), Broken()), torch.zeros(2, 4))


def test_an_impossible_op_is_named() -> None:
    with pytest.raises(CaptureFailed, match=r"operation aten\.\w+ in module '1' failed"):
        capture(nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4)), torch.zeros(2, 4))


def test_a_model_without_trainable_parameters_cannot_be_trained() -> None:
    with pytest.raises(CaptureFailed, match="gradient"):
        capture(nn.ReLU(), torch.zeros(2, 4))


def test_wrong_options_say_what_is_allowed() -> None:
    with pytest.raises(UnknownName, match="bf16-amp"):
        capture(nn.Linear(4, 4), torch.zeros(2, 4), precision="bf61")
    with pytest.raises(UnknownName, match="did you mean 'adam"):
        capture(nn.Linear(4, 4), torch.zeros(2, 4), optimizer="adamv")
    with pytest.raises(InvalidInput, match="accumulate = 0"):
        capture(nn.Linear(4, 4), torch.zeros(2, 4), accumulate=0)
    with pytest.raises(UnknownName, match="training_step"):
        capture(nn.Linear(4, 4), torch.zeros(2, 4), mode="train")


def test_a_module_used_in_several_places_gets_its_own_weights_back() -> None:
    shared = nn.Linear(8, 8)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    weight = shared.weight
    capture(model, torch.randn(2, 8))
    assert shared.weight is weight
    assert type(model(torch.randn(2, 8))) is torch.Tensor


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_memory_format_of_a_convolution_is_recorded_in_all_passes(memory_format: torch.memory_format) -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        return model.to(memory_format=memory_format)

    graph = capture(build, lambda: torch.zeros(2, 3, 16, 16).to(memory_format=memory_format))
    flags = {bool(op.attrs.get("channels_last")) for op in graph.ops if op.kind == "conv"}
    assert flags == {memory_format is torch.channels_last}
