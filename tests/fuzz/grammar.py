"""Valid files changed by their own grammar: what comes out can still be parsed, so it reaches what readers do after parsing."""

import gzip
import json
import random
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 0.5, -0.0, 1e-320, 1e308, -1e308, 2**31, 2**63, 10**30, -(2**63), 3.0, 1e18, 65_537, 0.1, 1e-9,
)  # fmt: skip
TEXTS = (
    "",
    "x",
    "fp16",
    "matmul",
    "../../etc/passwd",
    "a" * 3000,
    "\u0000",
    "💥",
    "nan",
    "1e999",
    "None",
    "-",
    "0x10",
    "%s",
)
CELLS = (
    "",
    "0",
    "-1",
    "nan",
    "inf",
    "1e308",
    "9" * 40,
    "x",
    '"',
    "2024-13-45",
    "[]",
    "{}",
    "a100",
    "1.5",
    "-0.0",
    " ",
    "\t",
)


def mutate_by_grammar(sample: bytes, other: bytes, draw: random.Random) -> bytes:
    """A file of the same kind with one to a few parts changed."""
    if sample[:2] == b"\x1f\x8b":
        try:
            return gzip.compress(mutate_by_grammar(gzip.decompress(sample), other, draw), 1)
        except (OSError, EOFError, zlib.error):
            return sample
    change = _change_for(sample)
    changed = sample
    for _ in range(draw.choice((1, 1, 2, 3, 6))):
        changed = change(changed, other, draw)
    return changed[: 1 << 20]


def _change_for(sample: bytes) -> Callable[[bytes, bytes, random.Random], bytes]:
    if sample.lstrip()[:1] in (b"{", b"["):
        return change_json
    if b"\0" in sample or any(byte > 0xF4 for byte in sample[:200]):
        return change_message
    return change_table


def change_json(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    """One value exchanged for another of its type, of another type, or of another place; lists and tables grown or shrunk."""
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    places = [place for place in _walk(data) if place[0] is not None]
    if not places:
        return json.dumps(draw.choice(NUMBERS)).encode()
    holder, key, value = draw.choice(places)
    action = draw.random()
    if action < 0.45:
        holder[key] = _like(value, draw)
    elif action < 0.6:
        holder[key] = draw.choice(places)[2]
    elif action < 0.7 and isinstance(holder, dict):
        names = [place[1] for place in places if isinstance(place[1], str)]
        holder[draw.choice(names)] = holder.pop(key)
    elif action < 0.8:
        del holder[key]
    elif action < 0.9 and isinstance(holder, list):
        holder[key:key] = [value] * draw.choice((1, 2, 30))
    else:
        holder[key] = draw.choice((None, True, [], {}, [value], {"a": value}, *NUMBERS[:4], *TEXTS[:3]))
    try:
        return json.dumps(data).encode()
    except (ValueError, RecursionError):
        return raw


def _walk(data: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(holder, key, value) of everything in a document."""
    pending: list[tuple[Any, Any, Any]] = [(None, None, data)]
    while pending:
        holder, key, value = pending.pop()
        yield holder, key, value
        if isinstance(value, dict):
            pending.extend((value, name, item) for name, item in value.items())
        elif isinstance(value, list):
            pending.extend((value, place, item) for place, item in enumerate(value))


def _like(value: Any, draw: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return draw.choice((True, False, None))
    if isinstance(value, (int, float)):
        return draw.choice((*NUMBERS, value * 10, value + 1, -value, value / 3))
    if isinstance(value, str):
        return draw.choice((*TEXTS, value + "x", value[:-1], value.upper(), value * 3))
    if isinstance(value, list):
        return draw.choice((value[::-1], value * 2, value[:1], []))
    return {}


_ASSIGNED = re.compile(rb"^(\s*(?:- )?[\w.\-]+\s*(?:=|:(?= ))\s*)(.*)$")
"""Of TOML, of shells and of YAML."""
_FLAG = re.compile(rb"^(\s*[+-]*[\w.\-]+(?: |=))(\S+)(.*)$")
"""Of a command: --flag value, or key=value."""


def change_table(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    """Lines of cells or of assignments: one cell or value changed, a line doubled, dropped or moved, columns exchanged."""
    lines = raw.split(b"\n")
    place = draw.randrange(len(lines))
    action = draw.random()
    if action < 0.6:
        lines[place] = _change_line(lines[place], draw)
    elif action < 0.7:
        lines[place:place] = [lines[place]] * draw.choice((1, 2, 40))
    elif action < 0.8 and len(lines) > 1:
        del lines[place]
    elif action < 0.9:
        lines.insert(draw.randrange(len(lines)), lines.pop(place))
    else:
        found = other.split(b"\n")
        lines[place] = found[draw.randrange(len(found))][:2000]
    return b"\n".join(lines)


def _change_line(line: bytes, draw: random.Random) -> bytes:
    assigned = _ASSIGNED.match(line)
    if assigned:
        return assigned[1] + draw.choice((*CELLS, '"x"', "true", "[1, 2]", "1e400", "2024-01-01", "''")).encode()
    flag = _FLAG.match(line) if draw.random() < 0.5 else None
    if flag and (line.lstrip()[:2] == b"--" or b"=" in flag[1]):
        return flag[1] + draw.choice((*CELLS, "true", "[1,2]", "$X", "1e400")).encode() + flag[3]
    mark = next((mark for mark in (b",", b"\t", b"|", b" ") if mark in line), b",")
    cells = line.split(mark)
    place = draw.randrange(len(cells))
    if draw.random() < 0.8:
        cells[place] = draw.choice(CELLS).encode()
    else:
        cells.insert(place, cells[draw.randrange(len(cells))])
    return mark.join(cells)


def change_message(raw: bytes, other: bytes, draw: random.Random) -> bytes:
    """A protocol buffer: one field of some message changed, doubled, dropped or moved, with every length made right again."""
    fields = parse_message(raw)
    if not fields:
        return raw
    place = draw.randrange(len(fields))
    number, kind, value = fields[place]
    action = draw.random()
    if kind == 2 and action < 0.65 and isinstance(value, bytes):
        inner = change_message(value, other, draw) if parse_message(value) else _change_text(value, draw)
        fields[place] = (number, kind, inner)
    elif action < 0.8:
        fields[place] = (number, kind, _other_scalar(kind, value, draw))
    elif action < 0.87:
        fields[place:place] = [fields[place]] * draw.choice((1, 2, 20))
    elif action < 0.94:
        del fields[place]
    else:
        fields[place] = (draw.choice((number + 1, max(1, number - 1), 15)), kind, value)
    return b"".join(_pack(*field) for field in fields)


def parse_message(raw: bytes) -> list[tuple[int, int, Any]]:
    """Fields as (number, wire type, value); [] where the bytes are no message."""
    fields: list[tuple[int, int, Any]] = []
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, kind = tag >> 3, tag & 7
        if at < 0 or not 0 < number < 2**20:
            return []
        if kind == 0:
            value, at = _varint(raw, at)
            if at < 0:
                return []
            fields.append((number, kind, value))
            continue
        if kind == 2:
            size, at = _varint(raw, at)
        else:
            size = {1: 8, 5: 4}.get(kind, -1)
        if at < 0 or size < 0 or at + size > len(raw):
            return []
        fields.append((number, kind, raw[at : at + size]))
        at += size
    return fields


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 70:
        value |= (raw[at] & 127) << shift
        at += 1
        if not raw[at - 1] & 128:
            return value, at
        shift += 7
    return 0, -1


def _pack_varint(value: int) -> bytes:
    value &= 2**64 - 1
    packed = bytearray()
    while value > 127:
        packed.append(value & 127 | 128)
        value >>= 7
    return bytes([*packed, value])


def _pack(number: int, kind: int, value: Any) -> bytes:
    tag = _pack_varint(number << 3 | kind)
    if kind == 0:
        return tag + _pack_varint(value)
    return tag + (_pack_varint(len(value)) if kind == 2 else b"") + value


def _other_scalar(kind: int, value: Any, draw: random.Random) -> Any:
    if kind == 0:
        return draw.choice((0, 1, 2, 7, 127, 2**31, 2**40, 2**63, 2**64 - 1, value + 1, value * 10))
    if kind == 5:
        return struct.pack("<f", draw.choice((0.0, -1.0, 3e38, float("nan"))))
    if kind == 1:
        return struct.pack("<d", draw.choice((0.0, -1.0, 1e308, float("nan"))))
    return _change_text(value, draw)


def _change_text(value: bytes, draw: random.Random) -> bytes:
    return draw.choice(
        (b"", value[::-1], value * 2, value[: len(value) // 2], b"Relu", b"x", b"\xff" * 3, value + b"x")
    )


def covered_lines(run: Callable[[], object]) -> set[int]:
    """The lines of ours that a call runs, as numbers; costs some twenty times the call."""
    seen: set[int] = set()

    def trace(frame: Any, event: str, _: object) -> Any:
        if "/traincast/" not in frame.f_code.co_filename:
            return None
        seen.add(hash((frame.f_code.co_filename, frame.f_lineno)))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return seen
