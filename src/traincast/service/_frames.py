"""Messages between the service and its workers: a kind, a length, and bytes of JSON or of a file. Nothing is unpickled."""

import json
import struct
from typing import IO, Any

HEADER = struct.Struct(">cQ")
TASK, BLOB, ANSWER, ERROR, PROGRESS = b"T", b"B", b"A", b"E", b"P"


def pack(kind: bytes, payload: bytes) -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def pack_json(kind: bytes, value: Any) -> bytes:
    return pack(kind, json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode())


def read_frame(stream: IO[bytes]) -> tuple[bytes, bytes] | None:
    """The next message; None once the other side is gone."""
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    kind, length = HEADER.unpack(head)
    payload = stream.read(length)
    return (kind, payload) if len(payload) == length else None
