"""Programs that look at their data."""

from typing import Any

import pytest
import torch
from torch import nn

from traincast.capture import capture
from traincast.errors import CaptureFailed


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(8, 8), nn.Linear(8, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.large(x) if x.sum() > 0 else self.small(x)


def layers(graph: object) -> set[str]:
    return {op.layer for op in graph.ops if op.kind == "matmul" and op.phase == "forward"}  # type: ignore[attr-defined]


def test_a_branch_on_known_input_values_is_exact() -> None:
    assert layers(capture(Choosing(), torch.ones(2, 8))) == {"large"}
    graph = capture(Choosing(), -torch.ones(2, 8))
    assert layers(graph) == {"small"}
    assert not any("read" in sentence for sentence in graph.assumptions)


def test_a_branch_on_unknown_values_is_an_assumption_told_to_the_user() -> None:
    graph = capture(nn.Sequential(nn.Linear(8, 8), Choosing()), torch.ones(2, 8))
    assert layers(graph) == {"0", "1.large"}
    assert any(
        "read from a tensor is taken as True" in sentence and "(in 1)" in sentence for sentence in graph.assumptions
    )


def test_a_loop_until_an_unknown_condition_ends() -> None:
    class Iterating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.step(x)
            while x.abs().max() > 1e-3:
                x = x * 0.5
            return x

    graph = capture(Iterating(), torch.ones(2, 8), mode="inference")
    assert 1 < sum(count for op, count in zip(graph.ops, graph.counts(), strict=True) if op.name == "aten.mul") < 1000


def test_known_masks_and_lengths_have_their_true_size() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.layer(x[mask])

    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[0, :5] = True
    mask[2, 1] = True
    graph = capture(Masked(), (torch.zeros(4, 6, 8), mask), mode="inference")
    (product,) = [op for op in graph.ops if op.kind == "matmul"]
    assert product.attrs["m"] == 6


def test_an_unknown_mask_keeps_every_second_element() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(1, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            return self.second(x[x > 0].unsqueeze(1))

    graph = capture(Sparse(), torch.zeros(4, 8))
    (product,) = [op for op in graph.ops if op.kind == "matmul" and op.layer == "second" and op.phase == "forward"]
    assert product.attrs["m"] == 16
    assert any("every second element" in sentence for sentence in graph.assumptions)


def test_a_router_spreads_its_tokens_evenly_over_the_experts() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 4)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            chosen = self.router(x).topk(2, dim=-1).indices
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                rows = (chosen == number).any(-1).nonzero().squeeze(1)
                out = out.index_add(0, rows, expert(x[rows]))
            return out

    graph = capture(Experts(), torch.zeros(32, 8), folded=False)
    rows = [
        op.attrs["m"] for op in graph.ops if op.kind == "matmul" and "experts" in op.layer and op.phase == "forward"
    ]
    assert rows == [16, 16, 16, 16]
    assert any("spread evenly" in sentence for sentence in graph.assumptions)


def test_layer_drop_and_constants_in_constructors_need_no_assumption() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            rates = [rate.item() for rate in torch.linspace(0, 0.1, 3)]
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(rate)) for rate in rates)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                if torch.rand([]) < 0.1:
                    continue
                x = block(x)
            return x

    graph = capture(Dropping, torch.zeros(2, 8), loss="mse")
    assert len(layers(graph)) == 3 or graph.repeats
    assert graph.assumptions == ()


def test_an_unknown_write_ends_what_is_known() -> None:
    class Overwriting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flags = torch.zeros(4)
            part = flags[:2]
            part.copy_(self.layer(x)[0, :2].detach())
            return self.layer(x) if flags.sum() > 0 else self.layer(x) * 2

    graph = capture(Overwriting(), torch.zeros(2, 4))
    assert any("taken as True" in sentence for sentence in graph.assumptions)


class Guarded(nn.Module):
    """Every sort of check, often enough that an answer would be changed for the other one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        for _ in range(100):
            if not torch.isfinite(y).all():
                raise ValueError("not finite")
            if (y > 3).any() or not (y > -3).all():
                raise ValueError("out of bounds")
            assert (y < 5).all()
            assert not (y > 9).any()
            y = y + 1
        factor, info = torch.linalg.cholesky_ex(y.T @ y)
        if torch.any(info):
            raise ValueError("not positive definite")
        return torch.cholesky_solve(y.T, factor)


def test_checks_of_a_program_pass_and_are_named() -> None:
    graph = capture(Guarded(), torch.zeros(4, 8))
    assert sum("a check of the program is taken to pass (test_values.py:" in text for text in graph.assumptions) == 4
    assert "factorisations of matrices are taken to succeed" in graph.assumptions


def test_nodes_of_graphs_are_padded_to_the_largest_graph() -> None:
    """As to_dense_batch of torch_geometric does it, by room for whole numbers that is written afterwards."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Any, graph: Any) -> Any:
            sizes = torch.zeros(3, dtype=torch.long).scatter_add_(0, graph, torch.ones_like(graph))
            starts = sizes.new_empty(4)
            starts[:1].zero_()
            torch.cumsum(sizes, 0, out=starts[1:])
            largest = int(sizes.max())
            places = torch.arange(len(graph)) - starts[graph] + graph * largest
            mask = torch.zeros(3 * largest, dtype=torch.bool)
            mask[places] = True
            padded = x.new_zeros(3 * largest, 4).index_put((places,), x)
            return x + self.inner(padded)[mask]

    graph = capture(Padded(), (torch.zeros(9, 4), torch.tensor([0, 0, 1, 1, 1, 1, 2, 2, 2])), mode="forward_backward")
    assert next(op.flop for op in graph.ops if op.kind == "matmul") == 2 * 12 * 4 * 4
    assert not any("taken" in each for each in graph.assumptions if "loss" not in each)


def test_a_large_mask_of_equal_elements_is_known() -> None:
    class Masked(nn.Linear):
        def forward(self, x: Any) -> Any:
            rows = torch.arange(4096)
            seen = (rows[:, None] >= 0) & torch.ones(2, 1, 1, 4096, dtype=torch.bool)
            bias = torch.where(seen.expand(2, 1, 4096, 4096), 0.0, -1.0)[:, 0, 0]
            bias[bias > 0] = 2.0
            return super().forward(x) if (bias < 0).any() else x * super().forward(x)

    graph = capture(Masked(8, 8), torch.zeros(2, 8), mode="forward_backward")
    assert not [each for each in graph.assumptions if "loss" not in each]
    assert any("mul" in op.name for op in graph.ops if op.phase == "forward")


def test_a_condition_of_a_tensor_takes_its_first_branch_and_says_so() -> None:
    class Branching(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return torch.cond(y.sum() > 0, lambda z: z @ z.T, lambda z: z - 1, (y,))

    graph = capture(Branching(8, 8), torch.zeros(4, 8))
    assert any("first branch" in text for text in graph.assumptions)
    assert [op.attrs["n"] for op in graph.ops if op.kind == "matmul" and op.phase == "forward"] == [8, 4]


def test_packed_sequences_hand_their_gradient_to_the_embedding_before_them() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.cell = nn.Embedding(10, 8), nn.GRU(8, 8, batch_first=True)

        def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(self.cell(packed)[0], batch_first=True)[0]

    graph = capture(Packed(), (torch.zeros(4, 5, dtype=torch.long), torch.tensor([5, 3, 2, 5])))
    gradients = {tensor.name for tensor in graph.tensors if tensor.role == "gradient"}
    assert "table.weight" in gradients


def test_heads_that_their_keys_do_not_divide_are_refused() -> None:
    class Attention(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = super().forward(x)
            return nn.functional.scaled_dot_product_attention(q, q[:, :7], q[:, :7], enable_gqa=True)

    with pytest.raises(CaptureFailed, match="32 heads and 7 of keys"):
        capture(Attention(8, 8), torch.zeros(2, 32, 16, 8))


@pytest.mark.parametrize("layer", [nn.EmbeddingBag, nn.Embedding])
def test_an_optimizer_that_takes_no_sparse_gradients_is_refused(layer: type[nn.Module]) -> None:
    def build() -> nn.Module:
        return layer(100, 8, sparse=True)  # type: ignore[call-arg]

    ids = torch.zeros(4, 3, dtype=torch.long)
    with pytest.raises(CaptureFailed, match="adamw takes no sparse gradients"):
        capture(build, ids)
    assert capture(build, ids, optimizer="sgd").num_parameters == 800
