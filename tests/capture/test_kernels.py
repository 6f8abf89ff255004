"""Parts that a CPU cannot run as an accelerator does, or that the data decide: what is recorded and what is said."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from traincast.capture import capture
from traincast.capture._operators import Call, Work, work
from traincast.errors import UnknownName
from traincast.spec._graph import Graph


def flop_of(graph: Graph, name: str) -> float:
    return sum(op.flop or 0 for op in graph.ops if name in op.name)


class Attending(nn.Module):
    def __init__(self, mask: Any) -> None:
        super().__init__()
        self.project, self.mask = nn.Linear(64, 192), mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).view(2, 128, 3, 4, 16).permute(2, 0, 3, 1, 4)
        block_mask = self.mask and create_block_mask(self.mask, None, None, 128, 128, device="cpu")
        return flex_attention(query, key, value, block_mask=block_mask)


def test_flex_attention_is_fused_attention_over_what_its_mask_keeps() -> None:
    def window(_: Any, __: Any, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return (row >= column) & (row - column < 32)

    full = 2 * 2 * 2 * 4 * 128 * 128 * 16
    assert flop_of(capture(Attending(None), torch.zeros(2, 128, 64)), "traincast.attention") == (1 + 2.5) * full
    graph = capture(Attending(window), torch.zeros(2, 128, 64))
    kept = sum(min(row + 1, 32) for row in range(128)) / 128**2
    assert flop_of(graph, "traincast.attention") == pytest.approx(3.5 * full * kept)


def test_flex_attention_is_itself_again_after_a_recording() -> None:
    query = torch.randn(1, 1, 16, 8)
    before = F.scaled_dot_product_attention(query, query, query)
    capture(Attending(None), torch.zeros(2, 128, 64))
    with torch.no_grad(), pytest.warns(UserWarning, match="flex_attention called without torch.compile"):
        torch.testing.assert_close(flex_attention(query, query, query), before)


def test_ctc_loss_keeps_a_table_of_the_widened_target() -> None:
    def loss(output: torch.Tensor) -> torch.Tensor:
        targets = torch.ones(4, 10, dtype=torch.long)
        return F.ctc_loss(output.log_softmax(-1), targets, torch.full((4,), 50), torch.full((4,), 10))

    graph = capture(nn.Linear(20, 30), torch.zeros(50, 4, 20), loss=loss)
    assert any(tensor.shape == (50 * 4 * 21,) and tensor.role == "activation" for tensor in graph.tensors)
    assert flop_of(graph, "traincast_kernels") == 3 * 12 * 50 * 4 * 21


def test_a_sparse_gradient_holds_the_touched_rows_only() -> None:
    table = nn.Embedding(1000, 8, sparse=True)
    graph = capture(nn.Sequential(table, nn.Linear(8, 2)), torch.zeros(4, 10, dtype=torch.long), optimizer="sparseadam")
    assert graph.role_bytes("gradient") == 4 * (40 * 8 + 8 * 2 + 2)
    assert graph.role_bytes("optimizer_state") == 2 * graph.role_bytes("parameter")
    (update,) = [op for op in graph.ops if op.kind == "optimizer"]
    assert update.bytes_written == pytest.approx(7 * 4 * (40 * 8 + 8 * 2 + 2))


@pytest.mark.parametrize("in_build", [True, False])
def test_lazy_layers_take_their_shapes(in_build: bool) -> None:
    def build() -> nn.Module:
        model = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
        if in_build:
            model(torch.zeros(2, 5))
        return model

    assert capture(build, lambda: torch.zeros(2, 5)).num_parameters == 5 * 8 + 8 + 16 + 8 * 2 + 2


def test_numbers_that_leave_pytorch_are_known_or_said() -> None:
    class Matching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 5)

        def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
            scores = self.head(x)
            order = scores.detach()[:, 0].numpy().argsort()[: int(sizes.numpy()[1])]
            return scores[torch.as_tensor(order)].sum() + torch.tensor([sizes[0], 2]).sum()

    graph = capture(Matching(), (torch.zeros(100, 4), torch.tensor([3, 7])), folded=False)
    assert any(op.name == "aten.index" and op.attrs["numel"] == 7 * 5 for op in graph.ops)
    assert any("took out of PyTorch" in sentence for sentence in graph.assumptions)


def test_the_share_of_unknown_conditions_can_be_set() -> None:
    class Filtered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.head(x)
            return y[y.sum(1) > 0].sum()

    graph = capture(Filtered(), torch.zeros(100, 4), mask_density=0.1)
    assert any("10% of the elements" in sentence for sentence in graph.assumptions)
    assert any(op.name == "aten.index" and op.attrs["numel"] == 10 * 4 for op in graph.ops)


def test_a_scan_is_its_fast_kernel_unless_the_loop_is_asked_for() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4, use_cache=False)
    ids = torch.zeros(2, 16, dtype=torch.long)

    def record(kernels: str) -> Graph:
        inputs = {"input_ids": ids, "labels": ids}
        return capture(lambda: transformers.MambaForCausalLM(config), inputs, kernels=kernels, folded=False)

    fast, loop = record("fast"), record("plain")
    assert flop_of(fast, "traincast_kernels.forward") == 9 * 2 * 32 * 16 * 4 + 2 * 2 * 32 * 16 * 4
    assert any("kernel of mamba-ssm" in sentence for sentence in fast.assumptions)
    assert len(loop.ops) > 2 * len(fast.ops)
    assert not any("mamba-ssm" in sentence for sentence in loop.assumptions)
    with pytest.raises(UnknownName, match="unknown kernels 'slow'"):
        record("slow")


def test_an_operation_takes_a_rule_from_outside() -> None:
    library = torch.library.Library("outside_test", "DEF")
    library.define("twist(Tensor x) -> Tensor")
    library.impl("twist", lambda x: x.new_empty(x.shape), "CompositeExplicitAutograd")

    class Twisted(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.ops.outside_test.twist(x)

    def rule(call: Call) -> Work:
        return work(call, "elementwise", 7.0, {"function": "twist", "numel": 12, "num_inputs": 1})

    for given, kind, flop in ((rule, "elementwise", 7.0), (lambda call: 5.0, "other", 5.0)):
        graph = capture(Twisted(), torch.zeros(3, 4), mode="inference", rules={"outside_test.twist": given})
        assert [(op.kind, op.flop) for op in graph.ops] == [(kind, flop)]
    assert capture(Twisted(), torch.zeros(3, 4), mode="inference").unknown_ops() == ("outside_test.twist",)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("mamba2", {"num_heads": 4, "head_dim": 32, "state_size": 16, "num_hidden_layers": 2, "expand": 2}),
        ("nemotron_h", {"hybrid_override_pattern": "M*-", "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16,
                        "num_key_value_heads": 2, "mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 16,
                        "intermediate_size": 128}),
    ],
)  # fmt: skip
def test_the_chunks_of_a_state_space_layer_are_one_kernel(kind: str, fields: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        kind, hidden_size=64, vocab_size=128, chunk_size=16, n_groups=1, use_cache=False, **fields
    )
    ids = torch.full((2, 32), 5)
    graph = capture(lambda: transformers.AutoModelForCausalLM.from_config(config), {"input_ids": ids, "labels": ids})
    kernels = [op for op in graph.ops if op.attrs.get("function") == "mamba-ssm" and op.phase == "forward"]
    assert {op.flop for op in kernels} == {2.0 * 2 * 32 * 4 * (16 * (16 + 32) + 2 * 16 * 32)}
    assert any(text.startswith("mamba2_chunk_scan is counted as the kernel") for text in graph.assumptions)


@pytest.mark.parametrize(("kernels", "names"), [("fast", {"norm"}), ("plain", {"elementwise", "reduce"})])
def test_a_root_mean_square_norm_is_one_kernel_each_way_unless_its_steps_are_asked_for(
    kernels: str, names: set[str]
) -> None:
    graph = capture(nn.RMSNorm(64), torch.zeros(8, 64), kernels=kernels, mode="inference")
    assert {op.kind for op in graph.ops} == names
    trained = capture(nn.Sequential(nn.Linear(64, 64), nn.RMSNorm(64)), torch.zeros(8, 64))
    norms = [op for op in trained.ops if op.kind == "norm"]
    assert [(op.phase, op.attrs["rows"], op.attrs["cols"]) for op in norms] == [("forward", 8, 64), ("backward", 8, 64)]
    assert trained.num_parameters == 64 * 65 + 64
