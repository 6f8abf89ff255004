"""Small trainable architectures by name: 'resnet(depth=2,width=16)' to a model that returns its loss, and its inputs.

They are the workloads of our own corpus: many shapes of many families, small enough for a CPU, plus a generator of random
ones. A name is the whole recipe, so a stored measurement can be rebuilt from it.
"""
# mypy: disallow-subclassing-any=False
# torch is not followed by the type checker, so nn.Module has no type to inherit.

import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

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


def corpus_names(*, num_random: int = 24) -> list[str]:
    """Every architecture of the corpus: the grids of all families, then random ones."""
    return [*itertools.chain.from_iterable(_grids()), *(write_name("random", seed=seed) for seed in range(num_random))]


def large_image_names() -> list[str]:
    """Architectures for images of 224 x 224, as ImageNet's are cut; the others see 16 x 16 to 48 x 48."""
    size = 224
    return [
        *(write_name("resnet", depth=depth, width=width, size=size) for depth, width in ((1, 8), (2, 8), (1, 12))),
        *(write_name("mobilenet", depth=d, width=16, expand=e, size=size) for d, e in ((3, 2), (3, 4), (5, 2))),
        *(write_name("convnext", depth=depth, width=width, size=size) for depth, width in ((2, 24), (4, 24), (2, 48))),
        *(write_name("vit", depth=d, width=w, patch=16, size=size) for d, w in ((2, 48), (4, 48), (2, 96))),
    ]


def family_of(name: str) -> str:
    return parse_name(name)[0]


def _grids() -> Iterator[list[str]]:
    def grid(family: str, **options: tuple[int, ...]) -> list[str]:
        return [
            write_name(family, **dict(zip(options, values, strict=True)))
            for values in itertools.product(*options.values())
        ]

    yield grid("mlp", depth=(2, 4, 8), width=(128, 256, 512, 768))
    yield grid("vgg", depth=(2, 3), width=(8, 16, 32), size=(24, 32))
    yield grid("resnet", depth=(1, 2, 3), width=(8, 16, 24, 32))
    yield grid("mobilenet", depth=(3, 5), width=(16, 32), expand=(2, 4))
    yield grid("densenet", depth=(4, 8), growth=(8, 16))
    yield grid("convnext", depth=(2, 4), width=(24, 48))
    yield grid("unet", depth=(2, 3), width=(8, 16))
    yield grid("vit", depth=(2, 4), width=(48, 96), patch=(4, 8))
    yield grid("mixer", depth=(2, 4), width=(48, 96))
    yield grid("gpt", depth=(2, 4), width=(64, 128), length=(32, 64))
    yield grid("bert", depth=(2, 4), width=(64, 128), length=(32, 64))
    yield grid("seq2seq", depth=(1, 2), width=(64, 96))
    yield grid("lstm", layers=(1, 2), width=(64, 128), length=(16, 32))
    yield grid("gru", layers=(1, 2), width=(64, 128), length=(24,))
    yield grid("dlrm", tables=(4, 12), width=(16, 32), rows=(1000, 5000))
    yield grid("gcn", layers=(2, 3), width=(32, 64), nodes=(128,))
    yield grid("autoencoder", depth=(2, 3), width=(128, 256))
    yield grid("moe", depth=(2,), width=(64, 96), experts=(2, 4))
    yield grid("tcn", depth=(3, 5), width=(32, 64))


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


class Dense(nn.Module):
    """Each layer reads everything before it."""

    def __init__(self, inputs: int, growth: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inputs + growth * index), nn.ReLU(),
                nn.Conv2d(inputs + growth * index, growth, 3, padding=1, bias=False),
            )
            for index in range(depth)
        )  # fmt: skip

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            data = torch.cat([data, layer(data)], dim=1)
        return data


def _densenet(*, depth: int = 4, growth: int = 8) -> tuple[nn.Module, Inputs]:
    first = 2 * growth
    middle = first + depth * growth
    half = middle // 2
    body = nn.Sequential(
        _conv(3, first), nn.ReLU(), Dense(first, growth, depth), nn.Conv2d(middle, half, 1), nn.AvgPool2d(2),
        Dense(half, growth, depth), Head(half + depth * growth),
    )  # fmt: skip
    return Loss(body), _images(24)


class ChannelsLast(nn.Module):
    """Runs a body of linear layers over the channels of an image."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(data.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return result


def _convnext(*, depth: int = 2, width: int = 24, size: int = 48) -> tuple[nn.Module, Inputs]:
    blocks = [
        Residual(
            nn.Sequential(
                nn.Conv2d(width, width, 7, padding=3, groups=width),
                ChannelsLast(
                    nn.Sequential(
                        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
                    )
                ),
            )
        )
        for _ in range(depth)
    ]
    return Loss(nn.Sequential(nn.Conv2d(3, width, 4, stride=4), *blocks, Head(width))), _images(size)


class UNet(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Sequential(_conv(3 if not level else width * 2 ** (level - 1), width * 2**level), nn.ReLU())
            for level in range(depth)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(width * 2 ** (level + 1), width * 2**level, 2, stride=2) for level in range(depth - 1)
        )
        self.join = nn.ModuleList(
            nn.Sequential(_conv(width * 2 ** (level + 1), width * 2**level), nn.ReLU()) for level in range(depth - 1)
        )
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        kept = []
        for level, layer in enumerate(self.down):
            data = layer(functional.max_pool2d(data, 2) if level else data)
            kept.append(data)
        for level in reversed(range(len(self.up))):
            data = self.join[level](torch.cat([kept[level], self.up[level](data)], dim=1))
        result: torch.Tensor = self.last(data)
        return result


def _unet(*, depth: int = 2, width: int = 8) -> tuple[nn.Module, Inputs]:
    return Loss(UNet(depth, width), kind="values"), lambda batch: (
        torch.rand(batch, 3, 32, 32),
        torch.rand(batch, 3, 32, 32),
    )


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


class Transposed(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(data.transpose(1, 2)).transpose(1, 2)
        return result


def _mixer(*, depth: int = 2, width: int = 48) -> tuple[nn.Module, Inputs]:
    patches = 64
    blocks: list[nn.Module] = []
    for _ in range(depth):
        across = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        along = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        blocks += [Residual(nn.Sequential(nn.LayerNorm(width), Transposed(across))), Residual(along)]
    return Loss(nn.Sequential(Patches(width, 4, 32), *blocks, Head(width, (1,)))), _images(32)


def _gpt(*, depth: int = 2, width: int = 64, length: int = 32) -> tuple[nn.Module, Inputs]:
    blocks = [_transformer_block(width, 4, causal=True) for _ in range(depth)]
    body = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False))
    return Loss(Embedded(body, width=width, length=length)), _tokens(length)


def _bert(*, depth: int = 2, width: int = 64, length: int = 32) -> tuple[nn.Module, Inputs]:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    body = nn.Sequential(encoder, nn.Linear(width, VOCABULARY))
    return Loss(Embedded(body, width=width, length=length)), _tokens(length)


class Translator(nn.Module):
    def __init__(self, depth: int, width: int, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.transformer = nn.Transformer(width, 4, depth, depth, 4 * width, dropout=0.0, batch_first=True)
        self.classify = nn.Linear(width, VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        encoded = self.token(source) + self.position
        decoded = self.transformer(encoded, self.token(target) + self.position)
        result: torch.Tensor = self.classify(decoded)
        return result


def _seq2seq(*, depth: int = 1, width: int = 64, length: int = 24) -> tuple[nn.Module, Inputs]:
    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randint(VOCABULARY, (batch, length)) for _ in range(3))

    return Loss(Translator(depth, width, length)), inputs


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase], layers: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.cell = cell(width, width, layers, batch_first=True)
        self.classify = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.classify(self.cell(self.token(tokens))[0])
        return result


def _lstm(*, layers: int = 1, width: int = 64, length: int = 16) -> tuple[nn.Module, Inputs]:
    return Loss(Recurrent(nn.LSTM, layers, width)), _tokens(length)


def _gru(*, layers: int = 1, width: int = 64, length: int = 16) -> tuple[nn.Module, Inputs]:
    return Loss(Recurrent(nn.GRU, layers, width)), _tokens(length)


class Recommender(nn.Module):
    """Embedding tables and dense features, crossed pairwise (Naumov et al. 2019)."""

    def __init__(self, tables: int, width: int, rows: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 64), nn.ReLU(), nn.Linear(64, CLASSES))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        low = self.bottom(dense)
        vectors = torch.stack([low, *(table(sparse[:, index]) for index, table in enumerate(self.tables))], dim=1)
        crossed = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs: Any = self.pairs
        result: torch.Tensor = self.top(torch.cat([low, crossed[:, pairs[0], pairs[1]]], dim=1))
        return result


def _dlrm(*, tables: int = 8, width: int = 16, rows: int = 1000) -> tuple[nn.Module, Inputs]:
    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return torch.rand(batch, 13), torch.randint(rows, (batch, tables)), torch.randint(CLASSES, (batch,))

    return Loss(Recommender(tables, width, rows)), inputs


class GraphConvolution(nn.Module):
    """Neighbours averaged through a fixed dense adjacency (Kipf and Welling 2017)."""

    def __init__(self, layers: int, width: int, nodes: int) -> None:
        super().__init__()
        adjacency = (torch.rand(nodes, nodes) < 8 / nodes).float() + torch.eye(nodes)
        self.register_buffer("adjacency", adjacency / adjacency.sum(1, keepdim=True))
        self.layers = nn.ModuleList(nn.Linear(16 if not index else width, width) for index in range(layers))
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            features = torch.relu(torch.matmul(self.adjacency, layer(features)))
        result: torch.Tensor = self.classify(features)
        return result


def _gcn(*, layers: int = 2, width: int = 32, nodes: int = 128) -> tuple[nn.Module, Inputs]:
    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return torch.rand(batch, nodes, 16), torch.randint(CLASSES, (batch, nodes))

    return Loss(GraphConvolution(layers, width, nodes)), inputs


def _autoencoder(*, depth: int = 2, width: int = 256) -> tuple[nn.Module, Inputs]:
    sizes = [784, *(max(16, width // 2**level) for level in range(depth))]
    encoder = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.SiLU())]
    decoder = [layer for a, b in itertools.pairwise(sizes[::-1]) for layer in (nn.Linear(a, b), nn.SiLU())]
    body = nn.Sequential(*encoder, *decoder[:-1], nn.Sigmoid())
    return Loss(body, kind="values"), lambda batch: (torch.rand(batch, 784), torch.rand(batch, 784))


class SoftExperts(nn.Module):
    """Every expert runs, a gate mixes them: sizes do not depend on the data."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(experts)
        )

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.gate(data), -1)
        return torch.stack(
            [weights[..., index : index + 1] * expert(data) for index, expert in enumerate(self.experts)]
        ).sum(0)


def _moe(*, depth: int = 2, width: int = 64, experts: int = 4) -> tuple[nn.Module, Inputs]:
    length = 32
    blocks: list[nn.Module] = []
    for _ in range(depth):
        blocks.append(Residual(nn.Sequential(nn.LayerNorm(width), Attention(width, 4, causal=True))))
        blocks.append(Residual(nn.Sequential(nn.LayerNorm(width), SoftExperts(width, experts))))
    body = nn.Sequential(*blocks, nn.Linear(width, VOCABULARY))
    return Loss(Embedded(body, width=width, length=length)), _tokens(length)


def _tcn(*, depth: int = 4, width: int = 32) -> tuple[nn.Module, Inputs]:
    blocks = [
        Residual(
            nn.Sequential(
                nn.Conv1d(width, width, 3, padding=2 ** (level % 3), dilation=2 ** (level % 3)),
                nn.GroupNorm(4, width),
                nn.ReLU(),
            )
        )
        for level in range(depth)
    ]
    body = nn.Sequential(nn.Conv1d(8, width, 3, padding=1), *blocks, Head(width, (-1,)))
    return Loss(body), lambda batch: (torch.rand(batch, 8, 128), torch.randint(CLASSES, (batch,)))


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


FAMILIES: dict[str, Callable[..., tuple[nn.Module, Inputs]]] = {
    "mlp": _mlp,
    "vgg": _vgg,
    "resnet": _resnet,
    "mobilenet": _mobilenet,
    "densenet": _densenet,
    "convnext": _convnext,
    "unet": _unet,
    "vit": _vit,
    "mixer": _mixer,
    "gpt": _gpt,
    "bert": _bert,
    "seq2seq": _seq2seq,
    "lstm": _lstm,
    "gru": _gru,
    "dlrm": _dlrm,
    "gcn": _gcn,
    "autoencoder": _autoencoder,
    "moe": _moe,
    "tcn": _tcn,
    "random": _random,
}
