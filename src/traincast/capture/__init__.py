"""A model to the graph of its training step. PyTorch is needed to record one, not to import this room."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from traincast.capture._extras import need
from traincast.capture._folding import fold
from traincast.facade import load_lazily
from traincast.spec import Graph, Scalable

__all__ = ["capture", "capture_scalable", "fold", "load_source"]


def capture(model: Any, inputs: Any = (), **options: Any) -> Graph:
    """Record one step of a PyTorch model; the options are listed below.

    `model` is a module, or a function that builds one: then its weights are never allocated. `inputs` are the arguments of
    its forward. Options: loss, target, optimizer, mode, precision, name, accumulate, max_grad_norm, implementation,
    batch_size, samples_unit, tokens_per_sample, source, folded, holds_output, kernels,
    mask_density, rules.
    """
    graph: Graph = _room("trace").capture(model, inputs, **options)
    return graph


def capture_scalable(
    build: Any, make_inputs: Callable[[int], Any], *, batches: tuple[int, int] = (2, 4), **options: Any
) -> Scalable:
    """Record a model at two batch sizes, so that any other batch follows without PyTorch."""
    scalable: Scalable = _room("scalable").capture_scalable(build, make_inputs, batches=batches, **options)
    return scalable


def load_source(source: Any, **options: Any) -> Graph | Scalable:
    """A Python file, ONNX file, Hugging Face config, TensorFlow graph or saved graph as a graph."""
    loaded: Graph | Scalable = importlib.import_module("traincast.capture._load").load_source(source, **options)
    return loaded


def _room(name: str) -> Any:
    need("torch", extra="torch", purpose="recording a PyTorch model")
    return importlib.import_module(f"traincast.capture._{name}")


if TYPE_CHECKING:
    from traincast.capture._jax import capture_jax, read_jax_plan
    from traincast.capture._load import is_program, is_tensorflow
    from traincast.capture._operators import Call, Work, work
    from traincast.capture._untrusted import record_untrusted

__getattr__ = load_lazily(__name__)
