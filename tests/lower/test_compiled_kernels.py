"""Fused kernels beside those of torch.compile itself, as far as its generated code; nothing is built or run."""

from typing import Any

import pytest

from scripts import load_benchmark

torch = pytest.importorskip("torch")


def unit(inputs: int, outputs: int) -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), torch.nn.BatchNorm2d(outputs), torch.nn.ReLU(inplace=True)
    )  # fmt: skip


class Small(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Pools over one and over several reads, gates by means, joins by copies, sums residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.stem, self.first, self.second = unit(8, 16), unit(16, 16), unit(16, 16)
        self.squeeze, self.excite = torch.nn.Conv2d(16, 4, 1), torch.nn.Conv2d(4, 16, 1)
        self.mix, self.head = unit(48, 16), torch.nn.Linear(16, 10)
        self.pool = torch.nn.MaxPool2d(2)

    def forward(self, images: Any) -> Any:
        stem = self.pool(self.stem(self.pool(torch.relu(self.plain(images)))))
        first = self.first(stem)
        second = self.second(first)
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(second.mean((2, 3), keepdim=True)))))
        mixed = self.mix(torch.cat([stem, first, second * gate + stem], 1))
        return self.head((mixed + stem).mean((2, 3)))


def test_the_kernels_of_a_compiled_model_are_those_of_the_compiler() -> None:
    benchmark = load_benchmark("compiled_kernels")
    model, images = Small().eval(), torch.randn(2, 3, 32, 32)
    real = benchmark.count_inductor(model, images)
    assert real is not None
    ours = benchmark.count_ours(model, images)
    assert (ours.external, ours.reductions) == (real.external, real.reductions)
    assert ours.generated == pytest.approx(real.generated, rel=0.1)
