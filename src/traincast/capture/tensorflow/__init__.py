"""A TensorFlow graph (frozen GraphDef or SavedModel) to the graph of its step; shapes are inferred here, without TensorFlow.

A graph that holds `Apply...` nodes is a training step and is walked back from them; any other graph from its results. Nodes of
the name scopes `gradients` and `gradient_tape` are the backward pass.
"""

import importlib
from pathlib import Path
from typing import Any

from traincast.capture.folding import fold
from traincast.capture.tensorflow.reader import Reader
from traincast.errors import InvalidInput, MissingExtra
from traincast.spec.graph import Graph


def read_tensorflow(path: str | Path, *, batch: int = 1, precision: str = "fp32", name: str = "") -> Graph:
    """Read a .pb, .pbtxt or SavedModel directory; open first dims are taken as the batch."""
    if batch < 1:
        raise InvalidInput(f"a batch of {batch}; it must be at least 1")
    if precision not in ("fp32", "tf32"):
        raise InvalidInput(
            f"a TensorFlow graph has its own precision; {precision!r} cannot be asked of it (fp32 or tf32)"
        )
    definition = _parse(Path(path))
    if not definition.node:
        raise InvalidInput(f"{path} holds no TensorFlow graph")
    reader = Reader(definition, batch=batch, tf32=precision == "tf32")
    reader.run()
    return fold(reader.graph(name=name or Path(path).stem))


def _parse(path: Path) -> Any:
    try:
        text_format = importlib.import_module("google.protobuf.text_format")
        message = importlib.import_module("google.protobuf.message")
        from tensorboard.compat.proto import graph_pb2, meta_graph_pb2
    except ImportError as error:
        raise MissingExtra("tensorboard", "tensorflow", "reading a TensorFlow graph") from error
    file = path / "saved_model.pb" if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput(f"there is no file {file}")
    raw = file.read_bytes()
    definition = graph_pb2.GraphDef()
    try:
        if file.suffix == ".pbtxt":
            return text_format.Parse(raw.decode(), definition)
        if file.name == "saved_model.pb":
            meta = meta_graph_pb2.MetaGraphDef()
            meta.ParseFromString(_field(raw, 2))
            return meta.graph_def
        definition.ParseFromString(raw)
    except (message.DecodeError, text_format.ParseError, ValueError, UnicodeDecodeError, RuntimeWarning) as error:
        raise InvalidInput(
            f"{file} is not a readable TensorFlow graph: {' '.join(str(error).split())[:200]}"
        ) from error
    return definition


def _field(raw: bytes, wanted: int) -> bytes:
    """The first length-delimited field of a message: a SavedModel is a list of meta graphs in field 2."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            if position >= len(raw):
                raise ValueError("the message ends early")
            byte = raw[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(raw):
        key = varint()
        if key & 7 == 2:
            size = varint()
            if key >> 3 == wanted:
                return raw[position : position + size]
            position += size
        elif key & 7 == 0:
            varint()
        else:
            position += 8 if key & 7 == 1 else 4
    raise ValueError("no meta graph in it")
