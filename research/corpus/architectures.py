"""The architectures of our own corpus that can be measured again: those of a calibration, some for large images, and random ones.

The committed corpus has more families (densenet, unet, lstm, dlrm ...): their graphs are kept with it. Importing this adds the
random ones to the families that `traincast.profile` builds by name.
"""
# mypy: disallow-subclassing-any=False

import random
from collections.abc import Callable

import torch
from torch import nn

from traincast.profile._architectures import (
    CLASSES,
    FAMILIES,
    VOCABULARY,
    Attention,
    Embedded,
    Head,
    Inputs,
    Loss,
    Residual,
    _images,
    _tokens,
    _vectors,
    architecture_names,
    write_name,
)
from traincast.profile._architectures import (
    build_architecture as build_architecture,
)


def corpus_names(*, num_random: int = 24) -> list[str]:
    """The grids of all families, then random ones."""
    return [*architecture_names(), *(write_name("random", seed=seed) for seed in range(num_random))]


def large_image_names() -> list[str]:
    """Architectures for images of 224 x 224, as ImageNet's are cut; the others see 16 x 16 to 48 x 48."""
    size = 224
    return [
        *(write_name("resnet", depth=depth, width=width, size=size) for depth, width in ((1, 8), (2, 8), (1, 12))),
        *(write_name("mobilenet", depth=d, width=16, expand=e, size=size) for d, e in ((3, 2), (3, 4), (5, 2))),
        *(write_name("vit", depth=d, width=w, patch=16, size=size) for d, w in ((2, 48), (4, 48), (2, 96))),
    ]


class Transposed(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(data.transpose(1, 2)).transpose(1, 2)
        return result


class RandomCell(nn.Module):
    """A random acyclic graph of operations on equal shapes; each node sums one or two earlier ones."""

    def __init__(self, edges: list[tuple[list[int], nn.Module]]) -> None:
        super().__init__()
        self.sources = [sources for sources, _ in edges]
        self.operations = nn.ModuleList(operation for _, operation in edges)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        values = [data]
        for sources, operation in zip(self.sources, self.operations, strict=True):
            total = values[sources[0]]
            for source in sources[1:]:
                total = total + values[source]
            values.append(operation(total))
        unused = [value for index, value in enumerate(values) if not any(index in sources for sources in self.sources)]
        return torch.stack(unused).sum(0) if len(unused) > 1 else unused[0]


def _random(*, seed: int = 0) -> tuple[nn.Module, Inputs]:
    """A random image, sequence or vector model; the seed decides everything."""
    choose = random.Random(f"traincast architecture {seed}")
    world = choose.choice(("image", "sequence", "vector"))
    makers = {"image": _random_image, "sequence": _random_sequence, "vector": _random_vector}
    return makers[world](choose)


def _random_cell(choose: random.Random, operations: Callable[[], nn.Module]) -> RandomCell:
    edges = []
    for node in range(choose.randint(2, 6)):
        sources = choose.sample(range(node + 1), min(node + 1, choose.choice((1, 1, 2))))
        edges.append((sources, operations()))
    return RandomCell(edges)


def _activation(choose: random.Random) -> nn.Module:
    return choose.choice((nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Hardswish, nn.LeakyReLU))()


def _random_image(choose: random.Random) -> tuple[nn.Module, Inputs]:
    size, width = choose.choice((16, 24, 32)), choose.choice((8, 12, 16, 24, 32))

    def operation(width: int) -> nn.Module:
        kernel = choose.choice((1, 3, 3, 5))
        groups = choose.choice((1, 1, 2, width))
        norm = choose.choice((nn.BatchNorm2d(width), nn.GroupNorm(4, width), nn.Identity()))
        return nn.Sequential(
            nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=groups), norm, _activation(choose)
        )

    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(choose.randint(1, 3)):
        layers.append(_random_cell(choose, lambda: operation(width)))  # noqa: B023
        wider = width * choose.choice((1, 2))
        layers += [nn.Conv2d(width, wider, 1), choose.choice((nn.MaxPool2d(2), nn.AvgPool2d(2)))]
        width = wider
    return Loss(nn.Sequential(*layers, Head(width))), _images(size)


def _random_sequence(choose: random.Random) -> tuple[nn.Module, Inputs]:
    width, length = choose.choice((32, 48, 64, 96)), choose.choice((16, 24, 48, 64))

    def operation() -> nn.Module:
        kind = choose.choice(("attention", "mlp", "mlp", "conv", "norm"))
        if kind == "attention":
            return Residual(nn.Sequential(nn.LayerNorm(width), Attention(width, choose.choice((2, 4)), causal=True)))
        if kind == "conv":
            return Transposed(nn.Conv1d(width, width, 3, padding=1))
        if kind == "norm":
            return nn.Sequential(nn.LayerNorm(width), _activation(choose))
        wide = width * choose.choice((1, 2, 4))
        return nn.Sequential(nn.Linear(width, wide), _activation(choose), nn.Linear(wide, width))

    cells = [_random_cell(choose, operation) for _ in range(choose.randint(1, 3))]
    body = nn.Sequential(*cells, nn.LayerNorm(width), nn.Linear(width, VOCABULARY))
    return Loss(Embedded(body, width=width, length=length)), _tokens(length)


def _random_vector(choose: random.Random) -> tuple[nn.Module, Inputs]:
    width = choose.choice((64, 128, 192, 256, 384))

    def operation() -> nn.Module:
        norm = choose.choice((nn.LayerNorm(width), nn.BatchNorm1d(width), nn.Identity()))
        return nn.Sequential(nn.Linear(width, width), norm, _activation(choose))

    cells = [_random_cell(choose, operation) for _ in range(choose.randint(1, 4))]
    return Loss(nn.Sequential(nn.Linear(64, width), *cells, nn.Linear(width, CLASSES))), _vectors(64)


FAMILIES["random"] = _random
