"""Bytes from a stranger to a graph, inside a worker: a saved graph, a Hugging Face config or an ONNX file."""

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

from traincast.capture import record_untrusted
from traincast.errors import InvalidInput
from traincast.files import GRAPH_FORMAT, GRAPH_VERSION, decode_graph, encode
from traincast.service._requests import parse_json
from traincast.service._state import clean_text
from traincast.spec import Scalable
from traincast.units import show_bytes

MOST_CONFIG_BYTES = 1024 * 1024
"""A config with the names of ten thousand classes has half of this."""


def unpack(content: bytes | bytearray, *, most: int) -> bytes | bytearray:
    """A gzip file unpacked, up to a number of bytes; anything else as it is."""
    if content[:2] != b"\x1f\x8b":
        return content
    unpacking = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacking.decompress(content, most)
    except zlib.error as error:
        raise InvalidInput(f"the upload is a damaged gzip file: {error}") from error
    if unpacking.unconsumed_tail:
        raise InvalidInput(f"the upload unpacks to more than {show_bytes(most)}, the most that is read")
    if not unpacking.eof:
        raise InvalidInput("the upload is a gzip file that ends too early; send all of it")
    return unpacked


_TABLE = re.compile(rb"\s*\{")


def guess_kind(content: bytes | bytearray) -> str:
    """JSON is a graph or a config by its format; anything else can only be ONNX."""
    if _TABLE.match(content) is None:
        return "onnx"
    return "graph" if GRAPH_FORMAT.encode() in content[:4096] else "config"


def peek(content: bytes | bytearray) -> bytes:
    """The first bytes of what an upload holds, packed or not; little enough for any place."""
    if content[:2] != b"\x1f\x8b":
        return bytes(content[:4096])
    try:
        return zlib.decompressobj(wbits=31).decompress(content[:4096], 4096)
    except zlib.error:
        return b""


def read_upload(
    blob: bytes, *, kind: str, options: Mapping[str, Any], limits: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes]:
    """What the recorded step is about and the step itself as JSON, checked and in our own words."""
    if kind == "graph":
        if options:
            flags = ", ".join(f"--{name}" for name in options)
            raise InvalidInput(f"the model is a captured graph, so {flags} cannot change it; capture the model again")
        loaded = decode_graph(parse_json(blob, depth=limits["json_depth"]), where="the upload")
    elif kind == "config":
        if len(blob) > MOST_CONFIG_BYTES:
            raise InvalidInput(
                f"the config has {show_bytes(len(blob))}; at most {show_bytes(MOST_CONFIG_BYTES)} are taken"
            )
        loaded = record_untrusted(parse_json(blob, depth=limits["json_depth"]), options)
    else:
        loaded = record_untrusted(blob, options)
    graph = loaded.small if isinstance(loaded, Scalable) else loaded
    about = {
        "name": clean_text(graph.name),
        "batch_size": graph.batch_size,
        "any_batch": isinstance(loaded, Scalable),
        "num_ops": len(graph.ops),
        "parameters": float(graph.num_parameters),
    }
    if len(graph.ops) > limits["graph_ops"]:
        raise InvalidInput(
            f"the graph has {len(graph.ops):,} operations; one of at most {limits['graph_ops']:,} is taken"
        )
    key = "scalable" if isinstance(loaded, Scalable) else "graph"
    document = {"format": GRAPH_FORMAT, "version": GRAPH_VERSION, key: encode(loaded)}
    return about, json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
