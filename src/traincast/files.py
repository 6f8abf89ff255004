"""Reads and writes TOML and JSON: foreign input in, checked nouns out, and back."""

import contextlib
import dataclasses
import functools
import gzip
import io
import json
import math
import os
import re
import tempfile
import tomllib
import types
import typing
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from traincast.errors import InvalidInput, UnknownName, did_you_mean
from traincast.spec import Calibration, Graph, MachineRates, Scalable
from traincast.units import MIB, show_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_FILE_BYTES = 256 * MIB
MAX_UNPACKED_BYTES = 1024 * MIB
GRAPH_FORMAT = "traincast-graph"
GRAPH_VERSION = 1
CALIBRATION_FORMAT = "traincast-calibration"
CALIBRATION_VERSION = 3

_HUGE = re.compile(rb"[0-9a-fA-F_]{300}")

T = TypeVar("T")


def encode(value: Any) -> Any:
    """A noun as plain dicts, lists and scalars; fields that hold their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {field.name: encode(item) for field, item in pairs if not _is_default(field, item)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], data: Any, *, where: str = "") -> T:
    """Plain data as a noun; a wrong or misspelt key is an error that names the place and the nearest right key."""
    return typing.cast(T, _decode(kind, data, where or kind.__name__.lower()))


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(_read_numbers(Path(path)).decode("utf-8"))
    except ValueError as error:
        # Bad syntax, bad encoding, and numbers of more digits than Python converts.
        raise InvalidInput(f"{path} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise InvalidInput(f"{path} is nested too deeply to be read") from error


def read_json(path: str | os.PathLike[str]) -> Any:
    """JSON, gzip or plain, with limits on size and depth."""
    try:
        return json.loads(_read_numbers(Path(path)), parse_constant=_refuse_constant)
    except ValueError as error:
        raise InvalidInput(f"{path} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidInput(f"{path} is nested too deeply to be read") from error


def write_json(path: str | os.PathLike[str], data: Any, *, indent: int | None = None) -> None:
    """JSON, gzip where the name ends in .gz; the same data gives the same bytes."""
    text = json.dumps(data, indent=indent, separators=(",", ":") if indent is None else None, allow_nan=False)
    raw = text.encode()
    if Path(path).suffix == ".gz":
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as stream:
            stream.write(raw)
        raw = packed.getvalue()
    write_whole(path, raw)


def write_whole(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a file completely or not at all."""
    target = Path(path)
    raw = content.encode() if isinstance(content, str) else content
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InvalidInput(f"cannot write {target}: {error.strerror or error}") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            # On the disk before it has its name: a machine that loses its power has the old file or the new one.
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        if isinstance(error, OSError):
            raise InvalidInput(f"cannot write {target}: {error.strerror or error}") from error
        raise


def save_graph(graph: Graph | Scalable, path: str | os.PathLike[str]) -> None:
    """A graph, or a model recorded at two batch sizes, as one JSON file."""
    key = "scalable" if isinstance(graph, Scalable) else "graph"
    write_json(path, {"format": GRAPH_FORMAT, "version": GRAPH_VERSION, key: encode(graph)})


def load_graph(path: str | os.PathLike[str]) -> Graph | Scalable:
    found = load_saved(path)
    return decode_graph(None, where=str(path)) if found is None else found


def load_saved(path: str | os.PathLike[str]) -> Graph | Scalable | None:
    """The graph of a JSON file; None where it holds something else. As long as the file stays, it is the same noun."""
    try:
        stat = Path(path).stat()
    except OSError:
        return _load_saved(str(path), 0, 0)
    return _load_saved(str(path), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=8)
def _load_saved(path: str, _changed_ns: int, _size: int) -> Graph | Scalable | None:
    data = read_json(path)
    is_graph = isinstance(data, dict) and data.get("format") == GRAPH_FORMAT
    return decode_graph(data, where=path) if is_graph else None


def decode_graph(data: Any, *, where: str) -> Graph | Scalable:
    """A graph, or a model recorded at two batch sizes, from the content of its file."""
    if not isinstance(data, dict) or data.get("format") != GRAPH_FORMAT:
        raise InvalidInput(f"{where} is not a traincast graph; make one with: traincast capture MODEL -o graph.json.gz")
    if data.get("version") != GRAPH_VERSION:
        version = str(data.get("version"))[:40]
        raise InvalidInput(f"{where} has graph version {version!r}; this traincast reads {GRAPH_VERSION}")
    if "scalable" in data:
        return decode(Scalable, data["scalable"], where=f"{where}: scalable")
    return decode(Graph, data.get("graph"), where=f"{where}: graph")


def save_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    data = {"format": CALIBRATION_FORMAT, "version": CALIBRATION_VERSION, "calibration": encode(calibration)}
    write_json(path, data, indent=None if str(path).endswith(".gz") else 1)


def load_calibration(source: str | os.PathLike[str]) -> Calibration:
    """A calibration by its file, or by the name under which it was kept. As long as the file stays, it is the same noun."""
    path = _find_calibration(source)
    try:
        stat = path.stat()
    except OSError:
        return decode_calibration(read_json(path), where=str(path))
    return _load_calibration(path, stat.st_mtime_ns, stat.st_size)


def read_calibration(named: str | Calibration | None) -> Calibration | None:
    """What a question names as learnt: by its name, its file, or itself."""
    return load_calibration(named) if isinstance(named, str) else named


@functools.lru_cache(maxsize=8)
def _load_calibration(path: Path, _changed_ns: int, _size: int) -> Calibration:
    return decode_calibration(read_json(path), where=str(path))


def decode_calibration(data: Any, *, where: str) -> Calibration:
    """A calibration from the content of its file."""
    if not isinstance(data, dict) or data.get("format") != CALIBRATION_FORMAT:
        raise InvalidInput(
            f"{where} is not a calibration; make one with: traincast calibrate --out FILE, or traincast learn RUNS -o FILE"
        )
    if data.get("version") == 1:
        rates = decode(MachineRates, data.get("calibration"), where=f"{where}: calibration")
        return Calibration(name=rates.name, machine=rates)
    if data.get("version") != CALIBRATION_VERSION:
        raise InvalidInput(
            f"{where} has calibration version {data.get('version')!r}; this traincast reads 1 and {CALIBRATION_VERSION}"
        )
    return decode(Calibration, data.get("calibration"), where=f"{where}: calibration")


def calibrations_folder() -> Path:
    """Where calibrations with a name are kept: $TRAINCAST_CALIBRATIONS, or the user's own data folder."""
    own = os.environ.get("TRAINCAST_CALIBRATIONS")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "traincast" / "calibrations"


def _find_calibration(source: str | os.PathLike[str]) -> Path:
    path = Path(source)
    if path.is_file() or path.suffix in (".json", ".gz") or len(path.parts) > 1:
        return path
    folder = calibrations_folder()
    kept = {file.name.removesuffix(".json"): file for file in sorted(folder.glob("*.json"))}
    if str(source) not in kept:
        raise UnknownName("calibration", str(source), kept)
    return kept[str(source)]


def read_safetensors(path: Path) -> tuple[dict[str, "NDArray[np.float64]"], dict[str, str]]:
    """The public format, read without its library: a length, a JSON header, raw little-endian numbers."""
    import numpy as np

    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    try:
        header = json.loads(raw[8 : 8 + length])
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} holds no weights in the format safetensors") from error
    notes = header.pop("__metadata__", {})
    arrays = {}
    for name, entry in header.items():
        start, stop = (8 + length + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(raw[start:stop], dtype="<f4").reshape(entry["shape"]).astype(np.float64)
    return arrays, notes


def write_safetensors(path: Path, arrays: Mapping[str, "NDArray[np.float64]"], notes: Mapping[str, str]) -> None:
    import numpy as np

    header: dict[str, object] = {"__metadata__": dict(notes)}
    blobs, offset = [], 0
    for name in sorted(arrays):
        blob = np.ascontiguousarray(arrays[name], dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(arrays[name].shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    write_whole(path, len(text).to_bytes(8, "little") + text + b"".join(blobs))


def _read_numbers(path: Path) -> bytes:
    """The bytes of a text whose numbers a float can hold; Python would read whole numbers of any size."""
    raw = _read_bytes(path)
    if _HUGE.search(raw):
        raise InvalidInput(f"{path} holds a number of 300 digits or more; amounts end near 1e308")
    return raw


def _read_bytes(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise InvalidInput(f"{path} has {show_bytes(size)}; files of at most {show_bytes(MAX_FILE_BYTES)} are read")
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}") from error
    if raw[:2] != b"\x1f\x8b":
        return raw
    unpacked = bytearray()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
            # Piece by piece: to ask for the most that is read would take the memory for it.
            while len(unpacked) <= MAX_UNPACKED_BYTES and (piece := stream.read(2**20)):
                unpacked += piece
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InvalidInput(f"{path} is a damaged gzip file: {error}") from error
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise InvalidInput(f"{path} unpacks to more than {show_bytes(MAX_UNPACKED_BYTES)}, the most that is read")
    return bytes(unpacked)


def _refuse_constant(text: str) -> float:
    raise InvalidInput(f"the number {text} is not allowed; every amount must be finite")


def _is_default(field: "dataclasses.Field[Any]", value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default)
    return field.default_factory is not dataclasses.MISSING and bool(value == field.default_factory())


@functools.cache
def _fields(kind: type) -> dict[str, tuple[Any, bool]]:
    hints = typing.get_type_hints(kind)
    required = (dataclasses.MISSING, dataclasses.MISSING)
    return {
        field.name: (hints[field.name], (field.default, field.default_factory) == required)
        for field in dataclasses.fields(kind)
    }


def _decode(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_noun(kind, data, where)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(args, data, where)
    if origin is tuple:
        return _decode_tuple(args, data, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise InvalidInput(f"{where} must be a table of names and values, not {_describe(data)}")
        return {str(key): _decode(args[1], item, f"{where}.{key}") for key, item in data.items()}
    return _decode_plain(kind, data, where)


def _decode_plain(kind: Any, data: Any, where: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            data = float(data)
        except OverflowError:
            raise InvalidInput(f"{where} is a number of {len(str(abs(data)))} digits; it must be finite") from None
    if kind is int and isinstance(data, float) and data.is_integer():
        data = int(data)
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise InvalidInput(f"{where} must be {_NAMES.get(kind, kind.__name__)}, not {_describe(data)}")
    if isinstance(data, float) and not math.isfinite(data):
        raise InvalidInput(f"{where} is {data}; it must be finite")
    return data


def _decode_noun(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{where} must be a table with the keys of {kind.__name__}, not {_describe(data)}")
    fields = _fields(kind)
    for key in data:
        if key not in fields:
            raise InvalidInput(
                f"{where} has the unknown key {key!r}; allowed: {', '.join(fields)}{did_you_mean(str(key), fields)}"
            )
    missing = [name for name, (_, required) in fields.items() if required and name not in data]
    if missing:
        raise InvalidInput(f"{where} lacks {', '.join(missing)}")
    return kind(**{key: _decode(fields[key][0], item, f"{where}.{key}") for key, item in data.items()})


def _decode_union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    exact = [option for option in options if isinstance(option, type) and type(data) is option]
    others = [option for option in options if option is not type(None) and option not in exact]
    complaint: InvalidInput | None = None
    for option in exact + others:
        try:
            return _decode(option, data, where)
        except InvalidInput as error:
            complaint = complaint or error
    raise complaint or InvalidInput(f"{where} must not be {_describe(data)}")


def _decode_tuple(args: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise InvalidInput(f"{where} must be a list, not {_describe(data)}")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_decode(args[0], item, f"{where}[{index}]") for index, item in enumerate(data))
    if len(args) != len(data):
        raise InvalidInput(f"{where} must have {len(args)} entries, not {len(data)}")
    return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(args, data, strict=True)))


_NAMES: dict[type, str] = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _describe(data: Any) -> str:
    if data is None:
        return "nothing"
    text = repr(data)
    return f"{type(data).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
