"""A name of timm to a model without weights and images of the size that it was trained with."""

import enum
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

from traincast.capture._extras import need
from traincast.capture._huggingface import Source
from traincast.errors import CaptureFailed, InvalidInput, did_you_mean

_USUAL_SIZE = (3, 224, 224)


def describe_timm(name: str) -> Source:
    """What a recording needs. Pretrained weights are never asked for."""
    timm = import_timm()
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


def import_timm() -> Any:
    try:
        importlib.import_module("torchvision")
    except Exception:
        # Absent, or built for another PyTorch. Models of timm need none of it; its readers of images do.
        for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.meta_path.insert(0, _StandIn())
    return need("timm", extra="timm", purpose="building a model by its name in timm")


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for torchvision: every module of it is there, and every name in it is a class that does nothing."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        is_wanted = name.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_wanted else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = _make_name  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


def _make_name(name: str) -> Any:
    import torch

    if name.startswith("__"):
        raise AttributeError(name)
    if name == "InterpolationMode":
        modes = ("NEAREST", "NEAREST_EXACT", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS")
        return enum.Enum(name, {mode: mode.lower() for mode in modes})
    return type(name, (torch.nn.Module,), {})
