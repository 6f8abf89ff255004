"""A folded step is the same step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from capture.replay import peak_bytes
from traincast.capture import capture, capture_scalable, fold
from traincast.errors import CaptureFailed, InvalidInput
from traincast.files import encode
from traincast.spec._graph import Graph


def assert_same_step(flat: Graph, folded: Graph, *, slack_bytes: float = 0.0) -> None:
    """`slack_bytes`: a chain of n results has n + 1 ends, so tiny models may be off by one of them."""
    assert folded.flop == pytest.approx(flat.flop, rel=1e-12)
    assert folded.num_bytes == pytest.approx(flat.num_bytes, rel=1e-12)
    assert folded.num_parameters == flat.num_parameters
    for role in ("parameter", "gradient", "optimizer_state", "buffer", "input"):
        assert folded.role_bytes(role) == flat.role_bytes(role)
    assert sum(folded.counts()) == len(flat.ops)
    kernels = sum(op.num_kernels * count for op, count in zip(folded.ops, folded.counts(), strict=True))
    assert kernels == sum(op.num_kernels for op in flat.ops)
    flat_bytes = peak_bytes(flat)
    assert abs(peak_bytes(folded) - flat_bytes) <= max(0.01 * flat_bytes, slack_bytes)


class Residual(nn.Module):
    def __init__(self, width: int, *, norm_first: bool) -> None:
        super().__init__()
        self.norm, self.norm_first = nn.LayerNorm(width), norm_first
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.norm_first:
            return x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


@settings(max_examples=10, deadline=None)
@given(
    depths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    norm_first=st.booleans(),
    mode=st.sampled_from(["training_step", "forward_backward", "inference"]),
)
def test_folding_keeps_flop_bytes_parameters_and_memory(depths: list[int], norm_first: bool, mode: str) -> None:
    stages: list[nn.Module] = [nn.Linear(4, 8)]
    for number, depth in enumerate(depths):
        width = 8 * (number + 1)
        stages += [
            nn.Sequential(*(Residual(width, norm_first=norm_first) for _ in range(depth))),
            nn.Linear(width, width + 8),
        ]
    flat = capture(nn.Sequential(*stages), torch.zeros(4, 4), mode=mode, folded=False)
    folded = fold(flat)
    assert_same_step(flat, folded, slack_bytes=4 * 4 * 8 * len(depths))
    if max(depths) >= 4:
        assert len(folded.ops) < len(flat.ops)


def test_forward_and_backward_runs_have_the_same_count() -> None:
    graph = capture(nn.Sequential(*(Residual(8, norm_first=True) for _ in range(10))), torch.zeros(4, 8))
    assert len(graph.repeats) == 2
    forward, backward = graph.repeats
    assert forward.count == backward.count >= 8
    weights = [t for t in graph.tensors if t.role == "parameter" and t.copies > 1]
    assert {t.copies for t in weights} == {forward.count}
    assert any(t.name == "*.up.weight" for t in weights)
    assert any(op.layer == "*.up" for op in graph.ops)


def test_results_that_are_read_later_are_not_folded_away() -> None:
    class Collecting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = []
            for layer in self.layers:
                x = layer(x).relu()
                kept.append(x)
            return torch.cat(kept, -1)

    flat = capture(Collecting(), torch.zeros(4, 8), folded=False)
    assert_same_step(flat, fold(flat))


def test_layers_that_share_weights_keep_one_copy() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Residual(8, norm_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(8):
                x = self.layer(x)
            return x

    flat = capture(Shared(), torch.zeros(64, 8), folded=False)
    folded = fold(flat)
    assert_same_step(flat, folded)
    assert all(t.copies == 1 for t in folded.tensors)


def test_embedding_tables_of_one_size_are_folded() -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(100, 8, mode="sum") for _ in range(12))
            self.top = nn.Linear(96, 1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.top(torch.cat([table(ids) for table in self.tables], 1))

    flat = capture(Tables(), torch.zeros(4, 3, dtype=torch.int64), folded=False)
    assert_same_step(flat, fold(flat))


def test_accumulated_passes_are_folded_each() -> None:
    model = nn.Sequential(*(Residual(8, norm_first=True) for _ in range(6)))
    flat = capture(model, torch.zeros(16, 8), accumulate=2, folded=False)
    folded = fold(flat)
    assert_same_step(flat, folded)
    assert len(folded.repeats) == 4


def test_a_folded_graph_is_not_folded_twice() -> None:
    graph = capture(nn.Sequential(*(Residual(8, norm_first=True) for _ in range(6))), torch.zeros(4, 8))
    with pytest.raises(InvalidInput, match="folded already"):
        fold(graph)


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_a_graph_at_another_batch_is_the_graph_recorded_there(batch: int) -> None:
    def build() -> nn.Module:
        blocks = [Residual(8, norm_first=True) for _ in range(5)]
        return nn.Sequential(nn.Linear(4, 8), *blocks, nn.Linear(8, 3))

    scalable = capture_scalable(build, lambda size: torch.zeros(size, 4), loss="cross_entropy")
    recorded = capture(build, torch.zeros(batch, 4), loss="cross_entropy", folded=False)
    answered = scalable.at(batch)
    assert_same_step(recorded, answered)
    assert answered.batch_size == batch
    assert encode(scalable.at(2)) == encode(scalable.small)


def test_a_model_that_changes_with_its_batch_is_refused() -> None:
    class Looping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.layer(row) for row in x])

    with pytest.raises(CaptureFailed, match="at one batch"):
        capture_scalable(Looping, lambda size: torch.zeros(size, 4))
    with pytest.raises(InvalidInput, match="rising"):
        capture_scalable(Looping, lambda size: torch.zeros(size, 4), batches=(4, 2))
