"""Small trainable architectures by name: 'resnet(depth=2,width=16)' to a model that returns its loss, and its inputs.

They are what a calibration of this machine measures: several shapes of several families, small enough for a CPU. A name
is the whole recipe, so a stored measurement can be rebuilt from it.
"""
# mypy: disallow-subclassing-any=False
# torch is not followed by the type checker, so nn.Module has no type to inherit.

import itertools
import re
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from traincast.errors import InvalidInput, UnknownName

CLASSES = 10
VOCABULARY = 500
Inputs = Callable[[int], tuple[torch.Tensor, ...]]
"""Batch size to the arguments of the model."""


class Loss(nn.Module):
    """A model together with its loss, so that a training step is one call and one backward pass."""

    def __init__(self, body: nn.Module, *, kind: str = "classes") -> None:
        super().__init__()
        self.body = body
        self.kind = kind

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        *inputs, target = arguments
        output = self.body(*inputs)
        if self.kind == "values":
            return functional.mse_loss(output, target)
        return functional.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))


def build_architecture(name: str, *, seed: int = 0) -> tuple[nn.Module, Inputs]:
    """The model of this name with fixed random weights, and how to make a batch for it."""
    family, options = parse_name(name)
    torch.manual_seed(seed)
    try:
        return FAMILIES[family](**options)
    except TypeError as error:
        raise InvalidInput(f"architecture {name!r}: {error}") from error


def parse_name(name: str) -> tuple[str, dict[str, int]]:
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", name)
    if match is None:
        raise InvalidInput(
            f"{name!r} is not an architecture; write family(option=number, ...), as in resnet(depth=2,width=16)"
        )
    family, text = match[1], match[2] or ""
    if family not in FAMILIES:
        raise UnknownName("architecture family", family, FAMILIES, plural="families")
    options = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        option = re.fullmatch(r"(\w+)\s*=\s*(\d+)", part)
        if option is None:
            raise InvalidInput(f"{part!r} in {name!r} is not option=number")
        options[option[1]] = int(option[2])
    return family, options


def write_name(family: str, **options: int) -> str:
    return f"{family}({','.join(f'{key}={value}' for key, value in options.items())})"


def architecture_names() -> list[str]:
    """Several sizes of every family."""
    return [name for family, options in SIZES.items() for name in write_grid(family, **options)]


def write_grid(family: str, **options: tuple[int, ...]) -> list[str]:
    return [
        write_name(family, **dict(zip(options, values, strict=True))) for values in itertools.product(*options.values())
    ]


SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp": {"depth": (2, 4, 8), "width": (128, 256, 512, 768)},
    "vgg": {"depth": (2, 3), "width": (8, 16, 32), "size": (24, 32)},
    "resnet": {"depth": (1, 2, 3), "width": (8, 16, 24, 32)},
    "mobilenet": {"depth": (3, 5), "width": (16, 32), "expand": (2, 4)},
    "vit": {"depth": (2, 4), "width": (48, 96), "patch": (4, 8)},
    "gpt": {"depth": (2, 4), "width": (64, 128), "length": (32, 64)},
    "bert": {"depth": (2, 4), "width": (64, 128), "length": (32, 64)},
}


def _images(size: int, channels: int = 3) -> Inputs:
    return lambda batch: (torch.rand(batch, channels, size, size), torch.randint(CLASSES, (batch,)))


def _vectors(width: int) -> Inputs:
    return lambda batch: (torch.rand(batch, width), torch.randint(CLASSES, (batch,)))


def _tokens(length: int) -> Inputs:
    return lambda batch: (torch.randint(VOCABULARY, (batch, length)), torch.randint(VOCABULARY, (batch, length)))


def _conv(inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Residual(nn.Module):
    """x + f(x), with a projection where the shapes differ."""

    def __init__(self, body: nn.Module, projection: nn.Module | None = None, *, after: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.projection = projection if projection is not None else nn.Identity()
        self.after = after if after is not None else nn.Identity()

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.after(self.projection(data) + self.body(data))
        return result


class Head(nn.Module):
    """Positions averaged, then classes."""

    def __init__(self, width: int, dims: tuple[int, ...] = (-2, -1)) -> None:
        super().__init__()
        self.dims = dims
        self.linear = nn.Linear(width, CLASSES)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(data.mean(self.dims))
        return result


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.project = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        batch, length, width = data.shape
        parts = self.project(data).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


def _transformer_block(width: int, heads: int, *, causal: bool = False, widen: int = 4) -> nn.Sequential:
    return nn.Sequential(
        Residual(nn.Sequential(nn.LayerNorm(width), Attention(width, heads, causal=causal))),
        Residual(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, widen * width), nn.GELU(), nn.Linear(widen * width, width)
            )
        ),
    )


class Embedded(nn.Module):
    """Token and position embeddings in front of a body."""

    def __init__(self, body: nn.Module, *, width: int, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.body = body

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(self.token(tokens) + self.position)
        return result


def _mlp(*, depth: int = 4, width: int = 256) -> tuple[nn.Module, Inputs]:
    hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(width, width), nn.ReLU())]
    body = nn.Sequential(nn.Linear(256, width), nn.ReLU(), *hidden, nn.Linear(width, CLASSES))
    return Loss(body), _vectors(256)


def _vgg(*, depth: int = 2, width: int = 16, size: int = 32) -> tuple[nn.Module, Inputs]:
    layers: list[nn.Module] = []
    channels = 3
    for stage in range(3):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width * 2**stage, 3, padding=1), nn.ReLU()]
            channels = width * 2**stage
        layers.append(nn.MaxPool2d(2))
    flat = channels * (size // 8) ** 2
    body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    return Loss(body), _images(size)


def _resnet(*, depth: int = 2, width: int = 16, size: int = 32) -> tuple[nn.Module, Inputs]:
    layers: list[nn.Module] = [_conv(3, width), nn.ReLU()]
    channels = width
    for stage in range(3):
        for block in range(depth):
            outputs, stride = width * 2**stage, 2 if stage and not block else 1
            body = nn.Sequential(_conv(channels, outputs, stride=stride), nn.ReLU(), _conv(outputs, outputs))
            projection = _conv(channels, outputs, 1, stride=stride) if stride > 1 or channels != outputs else None
            layers.append(Residual(body, projection, after=nn.ReLU()))
            channels = outputs
    return Loss(nn.Sequential(*layers, Head(channels))), _images(size)


def _mobilenet(*, depth: int = 4, width: int = 16, expand: int = 4, size: int = 32) -> tuple[nn.Module, Inputs]:
    layers: list[nn.Module] = [_conv(3, width, stride=2), nn.ReLU6()]
    for block in range(depth):
        wide = width * expand
        body = nn.Sequential(
            _conv(width, wide, 1), nn.ReLU6(), _conv(wide, wide, groups=wide, kernel=3 if block % 2 else 5), nn.ReLU6(),
            _conv(wide, width, 1),
        )  # fmt: skip
        layers.append(Residual(body))
    return Loss(nn.Sequential(*layers, Head(width))), _images(size)


class Patches(nn.Module):
    """An image as a sequence of patches with position embeddings."""

    def __init__(self, width: int, patch: int, size: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, stride=patch)
        self.position = nn.Parameter(torch.zeros((size // patch) ** 2, width))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.cut(data).flatten(2).transpose(1, 2) + self.position
        return result


def _vit(*, depth: int = 2, width: int = 48, patch: int = 4, size: int = 32) -> tuple[nn.Module, Inputs]:
    blocks = [_transformer_block(width, 3) for _ in range(depth)]
    body = nn.Sequential(Patches(width, patch, size), *blocks, nn.LayerNorm(width), Head(width, (1,)))
    return Loss(body), _images(size)


def _gpt(*, depth: int = 2, width: int = 64, length: int = 32) -> tuple[nn.Module, Inputs]:
    blocks = [_transformer_block(width, 4, causal=True) for _ in range(depth)]
    body = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False))
    return Loss(Embedded(body, width=width, length=length)), _tokens(length)


def _bert(*, depth: int = 2, width: int = 64, length: int = 32) -> tuple[nn.Module, Inputs]:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    body = nn.Sequential(encoder, nn.Linear(width, VOCABULARY))
    return Loss(Embedded(body, width=width, length=length)), _tokens(length)


FAMILIES: dict[str, Callable[..., tuple[nn.Module, Inputs]]] = {
    "mlp": _mlp, "vgg": _vgg, "resnet": _resnet, "mobilenet": _mobilenet, "vit": _vit, "gpt": _gpt, "bert": _bert,
}  # fmt: skip
"""A study may add its own."""
