"""A TensorFlow graph (GraphDef, MetaGraphDef or SavedModel) to the graph of its step, without TensorFlow.

A SavedModel is walked from one of its signatures; any other graph from its updates and results. Nodes of the name scopes
`gradients` and `gradient_tape` are the backward pass; what is computed from them outside these scopes is the update. A variable
that the update writes is a parameter where the passes read it, else optimizer state.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from traincast.capture._extras import need
from traincast.capture._folding import fold
from traincast.capture._tensorflow.frames import find_frames
from traincast.capture._tensorflow.nodes import source_of
from traincast.capture._tensorflow.reader import Scope, find_frozen, find_targets, needed, note_shapes
from traincast.capture._tensorflow.recording import Recording
from traincast.errors import InvalidInput
from traincast.spec import Graph


def read_tensorflow(
    path: str | Path, *, batch: int | None = None, precision: str = "fp32", name: str = "", seq: int | None = None,
    loop_length: int | None = None, signature: str = "",
) -> Graph:  # fmt: skip
    """Read a .pb, .pbtxt, .meta or SavedModel directory.

    Open first dims are taken as the batch (1 unless it is given), open second dims as `seq`. `loop_length` is how often a loop
    runs that the data end.
    `signature` chooses one of a SavedModel; otherwise it is `serving_default`, or the only one.
    """
    if batch is not None and batch < 1:
        raise InvalidInput(f"a batch of {batch}; it must be at least 1")
    if precision not in ("fp32", "tf32"):
        raise InvalidInput(
            f"a TensorFlow graph has its own precision; {precision!r} cannot be asked of it (fp32 or tf32)"
        )
    definition, signatures = _parse(Path(path))
    if not definition.node:
        raise InvalidInput(f"{path} holds no TensorFlow graph")
    recording = Recording(
        batch=batch or 1, seq=seq, loop_length=loop_length, tf32=precision == "tf32",
        functions={function.signature.name: function for function in definition.library.function},
    )  # fmt: skip
    nodes, recording.frames = find_frames({node.name: node for node in definition.node})
    note_shapes(recording, nodes)
    recording.frozen = find_frozen(nodes)
    targets = _signature_targets(path, signatures, signature) or find_targets(list(nodes.values()))
    Scope(recording, nodes, {}).run(needed(nodes, targets))
    graph = recording.graph(name=name or Path(path).stem)
    return fold(replace(graph, batch_size=_batch_of(graph, batch, is_open=recording.is_open, path=path)))


def _batch_of(graph: Graph, asked: int | None, *, is_open: bool, path: str | Path) -> int:
    """The first dim of the first input, where the graph fixes it."""
    fixed = next((tensor.shape[0] for tensor in graph.tensors if tensor.role == "input" and tensor.shape), None)
    if is_open or fixed is None:
        return asked or 1
    if asked is not None and asked != fixed:
        raise InvalidInput(
            f"{path} has a fixed batch of {fixed}, not {asked}; trace it with an open batch, or at {asked}"
        )
    return fixed


def _signature_targets(path: str | Path, signatures: Any, wanted: str) -> list[str]:
    known = {key: item for key, item in signatures.items() if not key.startswith("__")}
    if wanted and wanted not in known:
        raise InvalidInput(f"{path} has no signature {wanted!r}; it has: {', '.join(known) or 'none'}")
    if not known:
        return []
    chosen = known.get(wanted or "serving_default") or next(iter(known.values()))
    return list(dict.fromkeys(source_of(output.name)[0] for output in chosen.outputs.values()))


def _parse(path: Path) -> tuple[Any, Any]:
    """The graph, and the signatures of a SavedModel."""
    why = {"extra": "tensorflow", "purpose": "reading a TensorFlow graph"}
    graph_pb2, meta_graph_pb2 = (
        need(f"tensorboard.compat.proto.{name}_pb2", **why) for name in ("graph", "meta_graph")
    )
    text_format, message = (need(f"google.protobuf.{name}", **why) for name in ("text_format", "message"))
    file = path / "saved_model.pb" if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput(f"there is no file {file}")
    raw = file.read_bytes()
    definition = graph_pb2.GraphDef()
    try:
        if file.suffix == ".pbtxt":
            return text_format.Parse(raw.decode(), definition), {}
        if file.name == "saved_model.pb" or file.suffix == ".meta":
            meta = meta_graph_pb2.MetaGraphDef()
            meta.ParseFromString(raw if file.suffix == ".meta" else _field(raw, 2))
            return meta.graph_def, meta.signature_def if file.suffix != ".meta" else {}
        definition.ParseFromString(raw)
    except (message.DecodeError, text_format.ParseError, ValueError, UnicodeDecodeError, RuntimeWarning) as error:
        raise InvalidInput(
            f"{file} is not a readable TensorFlow graph: {' '.join(str(error).split())[:200]}"
        ) from error
    return definition, {}


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
