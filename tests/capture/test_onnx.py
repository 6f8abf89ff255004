"""ONNX files give the step of the model they were exported from."""

import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from traincast.capture import capture, load_source
from traincast.errors import CaptureFailed, InvalidInput
from traincast.spec._graph import Graph


def export(model: nn.Module, inputs: Any, path: Path, *, free_batch: bool = True) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            inputs,
            str(path),
            dynamo=False,
            input_names=["data"],
            dynamic_axes={"data": {0: "batch"}} if free_batch else None,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
        )
    return path


def product_flop(graph: Graph) -> float:
    kinds = ("matmul", "conv", "rnn")
    return sum((op.flop or 0) * count for op, count in zip(graph.ops, graph.counts(), strict=True) if op.kind in kinds)


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(nn.functional.hardswish(self.norm(self.first(x)))))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.MaxPool2d(2),
        Block(8),
        Block(8),
        Block(8),
        nn.Upsample(scale_factor=2.0),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8, 4),
    )


class Encoder(nn.Module):
    """Attention written out, as an exporter leaves it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(t: torch.Tensor) -> torch.Tensor:
            return t.view(t.size(0), t.size(1), 4, -1).transpose(1, 2)

        query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        scores = (query @ key.transpose(-1, -2) / 2.0).softmax(-1)
        x = self.norm(x + (scores @ value).transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(32, 16)
        self.layers = nn.Sequential(*(Encoder() for _ in range(4)))
        self.head = nn.Linear(16, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.layers(x))


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (convolutional, torch.zeros(4, 3, 32, 32)),
        (Language, torch.ones(4, 12, dtype=torch.int64)),
        (lambda: nn.LSTM(8, 12, 1), torch.zeros(4, 3, 8)),
        (lambda: nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1), torch.zeros(4, 4, 8, 8)),
    ],
    ids=["convolutional", "language", "lstm", "transposed"],
)
def test_an_exported_model_does_the_same_products_in_training(make: Any, inputs: torch.Tensor, tmp_path: Path) -> None:
    model = make()
    graph = load_source(str(export(model, inputs, tmp_path / "model.onnx")), batch=4)
    recorded = capture(model, (inputs,))
    assert isinstance(graph, Graph)
    assert product_flop(graph) == product_flop(recorded)
    assert graph.num_parameters == recorded.num_parameters
    assert graph.role_bytes("gradient") == recorded.role_bytes("gradient")
    assert graph.unknown_ops() == ()
    assert graph.source == "onnx"


def test_layers_keep_the_names_of_the_file_and_are_folded(tmp_path: Path) -> None:
    graph = load_source(
        str(export(Language(), torch.ones(2, 12, dtype=torch.int64), tmp_path / "language.onnx")), batch=3
    )
    assert isinstance(graph, Graph)
    assert graph.batch_size == 3
    assert any(op.layer.startswith("layers.layers.*.up") or "up" in op.layer for op in graph.ops)
    assert max(repeat.count for repeat in graph.repeats) >= 3


def test_a_fixed_batch_is_told(tmp_path: Path) -> None:
    path = str(export(nn.Linear(4, 4), torch.zeros(2, 4), tmp_path / "fixed.onnx", free_batch=False))
    graph = load_source(path)
    assert isinstance(graph, Graph)
    assert graph.batch_size == 2
    with pytest.raises(InvalidInput, match="fixed batch of 2"):
        load_source(path, batch=8)


def test_an_unsupported_operation_is_named(tmp_path: Path) -> None:
    data = onnx.helper.make_tensor_value_info("data", onnx.TensorProto.FLOAT, [2, 4])
    out = onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, [2, 4])
    node = onnx.helper.make_node("Celu", ["data"], ["out"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "odd", [data], [out]))
    onnx.save(model, str(tmp_path / "odd.onnx"))
    with pytest.raises(CaptureFailed, match="Celu"):
        load_source(str(tmp_path / "odd.onnx"))


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\x00\x01not an onnx file")
    with pytest.raises(InvalidInput, match="not a readable ONNX file"):
        load_source(str(path))


def test_open_axes_are_listed_and_a_single_slope_is_a_weight(tmp_path: Path) -> None:
    kind = onnx.TensorProto.FLOAT
    data = onnx.helper.make_tensor_value_info("data", kind, ["batch", 3, "height", "width"])
    out = onnx.helper.make_tensor_value_info("out", kind, ["batch", 3, "height", "width"])
    slope = onnx.helper.make_tensor("slope", kind, [1], [0.25])
    node = onnx.helper.make_node("PRelu", ["data", "slope"], ["out"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "open", [data], [out], [slope]))
    onnx.save(model, tmp_path / "open.onnx")
    graph = load_source(str(tmp_path / "open.onnx"), batch=2)
    assert isinstance(graph, Graph)
    assert graph.num_parameters == 1
    said = [text for text in graph.assumptions if "is open in the file" in text]
    assert ["(height) and taken as 224" in said[0], "axis 3" in said[1], len(said)] == [True, True, 2]
