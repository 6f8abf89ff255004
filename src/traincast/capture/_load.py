"""What a user names to a graph: a Python file, an ONNX file, a Hugging Face config, a TensorFlow graph or a saved graph."""

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from traincast.capture._extras import need
from traincast.errors import CaptureFailed, InvalidInput, TraincastError
from traincast.files import GRAPH_FORMAT, load_graph, read_json
from traincast.noun import noun
from traincast.spec import Graph, Scalable

FORMS = (
    "my_file.py:build, timm:name, model.onnx, a Hugging Face config.json, a TensorFlow saved_model/, graph.pb or model.meta, "
    "model.keras, a StableHLO step.mlir, or a saved graph"
)

_PROGRAMS = (".mlir", ".stablehlo")
_TENSORFLOW = (".pb", ".pbtxt", ".meta")
_JAX_FILE = re.compile(rb"^framework\s*=\s*['\"]jax['\"]", re.MULTILINE)


@noun
class Asked:
    """What a user says beside the source; None leaves it to the source."""

    batch: int | None = None
    seq: int | None = None
    precision: str | None = None
    mode: str | None = None
    optimizer: str | None = None
    attention: str | None = None
    accumulate: int | None = None
    checkpointing: bool = False
    scalable: bool = False
    """Record two batch sizes, so that any batch follows."""
    loop_length: int | None = None
    """Rounds of a loop of a TensorFlow graph that the data end."""
    kernels: str | None = None
    mask_density: float | None = None

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch < 1:
            raise InvalidInput(f"a batch of {self.batch}; it must be at least 1")

    def options(self) -> dict[str, Any]:
        """Those that recording a PyTorch model takes."""
        keys = ("precision", "mode", "optimizer", "accumulate", "kernels", "mask_density")
        given = {key: getattr(self, key) for key in keys if getattr(self, key) is not None}
        if given.get("optimizer") == "none":
            del given["optimizer"]
            given.setdefault("mode", "forward_backward")
        return given


def load_source(source: str | Mapping[str, Any], **asked: Any) -> Graph | Scalable:
    """The step that a source names; what may be asked are the fields of `Asked`."""
    wanted = Asked(**asked)
    options, batch, seq, scalable = wanted.options(), wanted.batch, wanted.seq, wanted.scalable
    if isinstance(source, Mapping) and "timm" in source:
        return _from_timm(source["timm"], wanted)
    if isinstance(source, Mapping):
        return _from_config(source, batch, seq, wanted.attention, wanted.checkpointing, scalable, options)
    text = str(source)
    path = Path(text)
    if text.startswith("timm:"):
        return _from_timm(text.removeprefix("timm:"), wanted)
    if ".py" in text and (path.suffix == ".py" or ".py:" in text):
        return _from_python(text, batch, seq, scalable, options)
    if not path.exists():
        raise InvalidInput(f"there is no file {text}; a model is given as {FORMS}")
    if path.suffix == ".jaxpr":
        raise InvalidInput(
            f"{text}: a jaxpr is not read from its text; write jax.jit(step).lower(...).as_text(debug_info=True) to a .mlir "
            "file, or name the function itself (my_file.py:build with framework = 'jax')"
        )
    if path.suffix == ".onnx":
        _need_torch()
        return _onnx(path, batch, scalable, options)
    if path.suffix == ".keras":
        return _from_keras(path, batch, seq, scalable, options)
    if path.suffix in _PROGRAMS or is_tensorflow(text):
        return _from_program(path, wanted)
    if path.suffix in (".json", ".gz"):
        content = read_json(path)
        if isinstance(content, dict) and content.get("format") == GRAPH_FORMAT:
            return load_graph(path)
    elif not (path.is_dir() and (path / "config.json").exists()):
        raise InvalidInput(f"{text} is not a model that can be read; allowed: {FORMS}")
    return _from_config(path, batch, seq, wanted.attention, wanted.checkpointing, scalable, options)


def is_program(source: str) -> bool:
    """Whether a source is a whole step in its own number formats, perhaps with annotations of how it is spread over devices: a
    JAX function, what was written of one, or a TensorFlow graph. Nothing is run to know it."""
    if source.endswith(_PROGRAMS) or is_tensorflow(source):
        return True
    file = Path(source.rpartition(":")[0] if ".py:" in source else source)
    return file.suffix == ".py" and file.is_file() and _JAX_FILE.search(file.read_bytes()) is not None


def is_tensorflow(source: str) -> bool:
    return source.endswith(_TENSORFLOW) or (Path(source) / "saved_model.pb").is_file()


def _from_program(path: Path, asked: Asked) -> Graph:
    """A graph that another framework has written out."""
    if asked.kernels is not None:
        raise InvalidInput(f"{path} holds the operations that run, so --kernels cannot change them; leave it out")
    if asked.scalable:
        kind = "StableHLO file" if path.suffix in _PROGRAMS else "TensorFlow graph"
        raise InvalidInput(f"{path}: a {kind} is read at one batch; leave out the two batch sizes")
    if path.suffix in _PROGRAMS:
        _refuse_precision(str(path), asked.precision)
        from traincast.capture._stablehlo import read_stablehlo

        return read_stablehlo(path, batch_size=asked.batch)
    room = importlib.import_module("traincast.capture._tensorflow")
    graph: Graph = room.read_tensorflow(
        path, batch=asked.batch, precision=asked.precision or "fp32", seq=asked.seq, loop_length=asked.loop_length
    )
    return graph


def _refuse_precision(source: str, precision: str | None) -> None:
    if precision is not None:
        raise InvalidInput(
            f"{source} has the number formats that it was written in, so precision {precision!r} cannot change it; leave it out, "
            "or write the program in that format"
        )


def _need_torch() -> None:
    need("torch", extra="torch", purpose="recording a model")


def _record(
    build: Any, make_inputs: Callable[[int], Any], *, batch: int | None, scalable: bool, options: dict[str, Any]
) -> Graph | Scalable:
    from traincast.capture import capture, capture_scalable

    if scalable:
        return capture_scalable(build, make_inputs, **options)
    size = 1 if batch is None else batch
    return capture(build, lambda: make_inputs(size), batch_size=size, **options)


def _from_config(
    config: Any, batch: int | None, seq: int | None, attention: str | None, checkpointing: bool, scalable: bool,
    options: dict[str, Any],
) -> Graph | Scalable:  # fmt: skip
    _need_torch()
    from traincast.capture._huggingface import describe_config

    described = describe_config(config, seq=seq, attention=attention, checkpointing=checkpointing)
    options = {
        **options, "name": described.name, "source": "huggingface", "tokens_per_sample": described.tokens_per_sample,
        "samples_unit": described.samples_unit,
    }  # fmt: skip
    return _record(described.build, described.make_inputs, batch=batch, scalable=scalable, options=options)


def _from_timm(name: str, asked: Asked) -> Graph | Scalable:
    """Recorded with the loss of a classifier."""
    _need_torch()
    from traincast.capture._timm import describe_timm

    described = describe_timm(name)
    options = {"loss": "cross_entropy", **asked.options(), "name": described.name, "source": "timm"}
    return _record(described.build, described.make_inputs, batch=asked.batch, scalable=asked.scalable, options=options)


def _from_keras(
    path: Path, batch: int | None, seq: int | None, scalable: bool, options: dict[str, Any]
) -> Graph | Scalable:
    """Recorded as Keras runs it on PyTorch; what was compiled into the file is used."""
    _need_torch()
    from traincast.capture._keras import describe_keras

    described = describe_keras(path, seq=seq)
    known = {"name": described.name, "source": "keras", "loss": described.loss, "optimizer": described.optimizer}
    options = {**{key: value for key, value in known.items() if value is not None}, **options}
    return _record(described.build, described.make_inputs, batch=batch, scalable=scalable, options=options)


def _onnx(path: Path, batch: int | None, scalable: bool, options: dict[str, Any]) -> Graph | Scalable:
    from traincast.capture._onnx import describe_onnx

    described = describe_onnx(path)
    if scalable and not described.batch_is_free:
        raise InvalidInput(
            f"{path} has a fixed batch of {described.batch}; export it with a dynamic batch, or leave out --any-batch"
        )
    if batch is not None and not described.batch_is_free and batch != described.batch:
        raise InvalidInput(
            f"{path} has a fixed batch of {described.batch}, not {batch}; export it with a dynamic batch"
        )
    options = {**options, "name": described.name, "source": "onnx"}
    graph = _record(
        described.build, described.make_inputs, batch=batch or described.batch, scalable=scalable, options=options
    )
    if isinstance(graph, Scalable):
        return replace(graph, **{size: _assuming(getattr(graph, size), described) for size in ("small", "large")})
    return _assuming(graph, described)


def _assuming(graph: Graph, described: Any) -> Graph:
    return replace(graph, assumptions=(*graph.assumptions, *described.assumptions))


def _from_python(
    source: str, batch: int | None, seq: int | None, scalable: bool, options: dict[str, Any]
) -> Graph | Scalable:
    """`build()` returns a model, (model, inputs) or (model, make_inputs); its parameters `batch` and `seq` are passed on.

    A `loss` or `make_inputs` function beside it in the file is used too.
    """
    file, _, name = source.rpartition(":") if ".py:" in source else (source, "", "build")
    module = _run_file(Path(file))
    build = getattr(module, name, None)
    if getattr(module, "framework", "") == "jax" and callable(build):
        _refuse_precision(source, options.get("precision"))
        return _from_jax(source, build, batch, scalable)
    _need_torch()
    if build is None:
        functions = [
            key for key, item in vars(module).items() if inspect.isfunction(item) and item.__module__ == module.__name__
        ]
        raise InvalidInput(f"{file} has no {name!r}; it defines: {', '.join(functions) or 'no function'}")
    given = _Given(source=source, module=module, build=build, asked={"batch": batch, "batch_size": batch, "seq": seq})

    def loss(output: Any, *target: Any) -> Any:
        return module.loss(output, *target)

    try:
        if inspect.isfunction(build) and ("batch" in inspect.signature(build).parameters) and scalable:
            raise InvalidInput(f"{source} builds for one batch; return (model, make_inputs) to record any batch")
        options = {**options, "name": Path(file).stem, "source": source}
        if getattr(module, "loss", None) is not None:
            options["loss"] = loss
        if getattr(module, "optimizer", None) is not None and "optimizer" not in options:
            options["optimizer"] = module.optimizer
        graph = _record_python(given, batch, scalable, options)
    except TraincastError:
        raise
    except Exception as error:
        raise CaptureFailed(f"{source} raised {type(error).__name__}: {_one_line(error)}") from error
    return graph


@dataclass(slots=True, kw_only=True)
class _Given:
    """A Python file: how it makes a model and its inputs."""

    source: str
    module: Any
    build: Any
    asked: dict[str, int | None]
    inputs: Any = None
    is_fixed: bool = False
    """The inputs have one batch, whatever is asked."""

    def _call(self, function: Any, **values: Any) -> Any:
        accepted = inspect.signature(function).parameters
        return function(**{key: value for key, value in values.items() if key in accepted and value is not None})

    def make_model(self) -> Any:
        is_model = hasattr(self.build, "named_parameters") and not inspect.isclass(self.build)
        result = self.build if is_model else self._call(self.build, **self.asked)
        if isinstance(result, (tuple, list)):
            self.inputs = result[1] if len(result) > 1 else None
            return result[0]
        return result

    def make_inputs(self, size: int | None) -> Any:
        """None: as they are; of a function that makes them, one sample."""
        given = self.inputs if self.inputs is not None else getattr(self.module, "make_inputs", None)
        if given is None:
            raise CaptureFailed(
                f"{self.source} returned no inputs; return (model, inputs) or define make_inputs(batch) beside it"
            )
        if not callable(given) or hasattr(given, "shape"):
            self.is_fixed = not (self._makes_batch and self.asked["batch"])
            dim = getattr(self.module, "batch_dim", None)
            if dim is not None and self.is_fixed and size:
                self.is_fixed = False
                return _resized(given, dim, size)
            return given
        parameters = inspect.signature(given).parameters
        if any(name in ("batch", "batch_size", "seq") for name in parameters):
            self.is_fixed = not self._makes_batch and not {"batch", "batch_size"} & parameters.keys()
            return self._call(given, **{**self.asked, "batch": size or 1, "batch_size": size or 1})
        self.is_fixed = not self._makes_batch and not parameters
        return given(size or 1) if parameters else given()

    @property
    def _makes_batch(self) -> bool:
        """`build` itself takes the batch."""
        is_function = inspect.isfunction(self.build)
        return is_function and bool({"batch", "batch_size"} & inspect.signature(self.build).parameters.keys())

    def batch_of(self, asked: int) -> int | None:
        """The samples of the inputs: as many as were asked of a function that makes them, whatever their first dims. Of inputs
        that are given what the file says; None: their first dim."""
        said: int | None = getattr(self.module, "batch_size", None)
        return said if self.is_fixed else asked


def _resized(inputs: Any, dim: int, size: int) -> Any:
    """The same samples again and again, or fewer of them, in every tensor that has as many along this dim as the first."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    own = next(leaf.shape[dim] for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.dim() > dim)

    def resize(leaf: Any) -> Any:
        has_batch = isinstance(leaf, torch.Tensor) and leaf.dim() > dim and leaf.shape[dim] == own
        return leaf.index_select(dim, torch.arange(size) % own) if has_batch else leaf

    return tree_map(resize, inputs)


def _from_jax(source: str, build: Any, batch: int | None, scalable: bool) -> Graph:
    """`build()` of a file with `framework = "jax"` returns (function, arguments)."""
    from traincast.capture._jax import capture_jax

    if scalable:
        raise InvalidInput(f"{source}: a JAX function is recorded at one batch; leave out the two batch sizes")

    def record(size: int | None) -> Graph:
        try:
            accepted = inspect.signature(build).parameters
            function, arguments = build(**({"batch": size} if size is not None and "batch" in accepted else {}))
        except Exception as error:
            raise CaptureFailed(f"{source} raised {type(error).__name__}: {_one_line(error)}") from error
        return capture_jax(function, *arguments, name=source.partition(".py")[0].rsplit("/", 1)[-1])

    graph = record(batch)
    if batch is not None and graph.plan is not None and graph.batch_size * graph.plan.data == batch:
        # The program is written for all replicas, and the batch that is asked for is one's.
        graph = record(batch * graph.plan.data)
    if batch is not None and graph.batch_size != batch:
        raise InvalidInput(f"{source} has a batch of {graph.batch_size}, not {batch}; let build(batch) make it")
    return graph


def _record_python(given: _Given, batch: int | None, scalable: bool, options: dict[str, Any]) -> Graph | Scalable:
    from traincast.capture import capture, capture_scalable

    if scalable:
        loaded = capture_scalable(given.make_model, given.make_inputs, **options)
        if given.is_fixed:
            raise InvalidInput(
                f"the inputs of {given.source} have a fixed batch; let make_inputs(batch) make them, or say batch_dim = 0"
            )
        return loaded
    options = {"batch_dim": getattr(given.module, "batch_dim", 0), **options}
    graph = capture(given.make_model, lambda: given.make_inputs(batch), **options)
    passes = options.get("accumulate", 1) if graph.mode != "inference" else 1
    size = given.batch_of(batch or 1)
    graph = graph if size is None else replace(graph, batch_size=size * passes)
    if batch is not None and graph.batch_size != batch * passes:
        raise InvalidInput(
            f"the inputs of {given.source} are {graph.batch_size // passes} samples, not {batch}; let make_inputs(batch) make "
            "them, or say beside it which of their dims is the batch: batch_dim = 0 (None: they are one sample)"
        )
    return graph


def _run_file(path: Path) -> Any:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    specification = importlib.util.spec_from_file_location(f"traincast_source_{path.stem}", path)
    if specification is None or specification.loader is None:
        raise InvalidInput(f"{path} cannot be read as Python")
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    # A model file may import its neighbours, as it does when it is run.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        raise CaptureFailed(
            f"{path} raised {type(error).__name__} when it was read{line}: {_one_line(error)}"
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
