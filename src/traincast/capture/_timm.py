"""A name of timm to a model without weights and images of the size that it was trained with."""

import importlib
from typing import Any

from traincast.capture._huggingface import Source
from traincast.errors import CaptureFailed, InvalidInput, MissingExtra, did_you_mean

_USUAL_SIZE = (3, 224, 224)


def describe_timm(name: str) -> Source:
    """What a recording needs. Pretrained weights are never asked for."""
    timm = _import_timm()
    if not timm.is_model(name.partition(".")[0]):
        known = timm.list_models()
        raise InvalidInput(
            f"timm {timm.__version__} has no model {name!r}{did_you_mean(name, known)}; list them with timm.list_models()"
        )
    size = _input_size(timm, name)

    def build() -> Any:
        try:
            return timm.create_model(name, pretrained=False)
        except Exception as error:
            raise CaptureFailed(f"timm cannot build {name!r}: {' '.join(str(error).split())[:200]}") from error

    def make_inputs(batch: int) -> Any:
        import torch

        return {"x": torch.zeros(batch, *size)}

    return Source(name=name, build=build, make_inputs=make_inputs, tokens_per_sample=1, samples_unit="samples")


def _input_size(timm: Any, name: str) -> tuple[int, ...]:
    found = timm.get_pretrained_cfg(name, allow_unregistered=True)
    size = getattr(found, "input_size", None)
    return tuple(size) if size else _USUAL_SIZE


def _import_timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise MissingExtra("timm", "timm", "building a model by its name in timm") from error
