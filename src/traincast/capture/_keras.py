"""A .keras file to a builder of the model it holds, on PyTorch tensors without memory; its weights are not read."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from traincast.capture._extras import need
from traincast.errors import CaptureFailed, InvalidInput
from traincast.noun import noun

_ENTROPIES = ("categorical_crossentropy", "CategoricalCrossentropy", "SparseCategoricalCrossentropy")


@noun
class DescribedKeras:
    """What a .keras file says about a training step."""

    name: str
    build: Callable[[], nn.Module]
    make_inputs: Callable[[int], Any]
    loss: str | None
    optimizer: str | None


class _Called(nn.Module):  # type: ignore[misc]
    """A Keras model with the arguments that its inputs are."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> Any:
        return self.model(list(inputs) if len(inputs) > 1 else inputs[0], training=self.training)


def describe_keras(path: str | Path, *, seq: int | None = None) -> DescribedKeras:
    """Reads the configuration; open first dims are the batch, open second dims `seq`."""
    configuration = _read_configuration(Path(path))
    keras = _import_keras()
    shapes: list[tuple[tuple[int | None, ...], str]] = []

    def build() -> nn.Module:
        try:
            model = keras.saving.deserialize_keras_object(configuration)
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise CaptureFailed(f"{path}: Keras cannot build this model: {text}") from error
        if not getattr(model, "inputs", None):
            raise CaptureFailed(
                f"{path}: a model without inputs in its file cannot be recorded; save a built functional model"
            )
        shapes[:] = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in model.inputs]
        _keep_statistics(model)
        return _Called(model)

    def make_inputs(batch: int) -> Any:
        return tuple(
            torch.zeros(_sizes(shape, batch, seq, path), dtype=getattr(torch, dtype)) for shape, dtype in shapes
        )

    compiled = configuration.get("compile_config") or {}
    return DescribedKeras(
        name=Path(path).stem,
        build=build,
        make_inputs=make_inputs,
        loss="cross_entropy" if any(word in str(compiled.get("loss")) for word in _ENTROPIES) else None,
        optimizer=_optimizer(compiled.get("optimizer")),
    )


def _read_configuration(path: Path) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            content: dict[str, Any] = json.loads(archive.read("config.json"))
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise InvalidInput(f"{path} is not a .keras file: {' '.join(str(error).split())[:200]}") from error
    return content


def _import_keras() -> Any:
    """Keras decides at import what it runs on."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = need("keras", extra="keras", purpose="reading a .keras file")
    if keras.config.backend() != "torch":
        raise CaptureFailed(
            f"Keras runs on {keras.config.backend()} in this process; set KERAS_BACKEND=torch before it is imported"
        )
    return keras


def _sizes(shape: tuple[int | None, ...], batch: int, seq: int | None, path: str | Path) -> list[int]:
    sizes = [batch if place == 0 else seq if size is None and place == 1 else size for place, size in enumerate(shape)]
    if any(size is None for size in sizes):
        raise CaptureFailed(
            f"{path}: an input of shape {shape} has open dims besides the batch; say the length with --seq"
        )
    return [int(size or 0) for size in sizes]


def _keep_statistics(model: Any) -> None:
    """Moving averages and seeds are parameters without a gradient to Keras; here they are buffers."""
    kept = {
        id(variable.value)
        for layer in model._flatten_layers()
        for variable in getattr(layer, "_non_trainable_variables", ())
    }
    seeds = {id(variable.value) for variable in model.non_trainable_variables if "seed" in variable.path}
    for part in model.modules():
        for key, tensor in list(part._parameters.items()):
            if tensor is not None and id(tensor) in kept | seeds:
                del part._parameters[key]
                part._buffers[key] = tensor


def _optimizer(saved: Any) -> str | None:
    if not isinstance(saved, dict):
        return str(saved).lower() if saved else None
    name = str(saved.get("class_name", "")).lower()
    inner = (saved.get("config") or {}).get("inner_optimizer")
    if inner:
        # A scaled loss changes the gradients, and what updates the weights is inside.
        return _optimizer(inner)
    return "momentum" if name == "sgd" and (saved.get("config") or {}).get("momentum") else name or None
