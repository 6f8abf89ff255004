"""A model's file to its recorded graph, kept between commands: what was recorded once is answered without PyTorch."""

import contextlib
import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traincast.errors import CaptureFailed, InvalidInput, TraincastError
from traincast.resolve._source import MODEL_FOLDERS, find_configuration
from traincast.spec import Graph, Scalable, WorkloadOptions

FOLDER = "TRAINCAST_CACHE"
"""The variable that names the folder; empty: nothing is kept."""
MOST_KEPT = 64
"""Graphs; the one that was not used for longest goes first."""
_RECORDERS = ("torch", "transformers", "timm")


_CAPTURED = ("batch", "seq", "precision", "mode", "optimizer", "attention", "kernels")
"""What can be said about a model that is recorded."""


def capture(source: str, options: WorkloadOptions) -> Graph:
    """Record a model from its file; this is the only way that may need PyTorch."""
    if options.adapter_rank or options.frozen_dtype:
        raise InvalidInput(
            f"adapters are added to workloads of the catalogue only; build them into the model of {source}"
        )
    given = options.given()
    fixed = [f"--{name.replace('_', '-')}" for name in given if name not in _CAPTURED]
    if fixed:
        raise InvalidInput(f"{source} is recorded as it is, so {', '.join(fixed)} cannot change it")
    loaded = record_any_batch(source, options)
    if loaded is None:
        loaded = _record(source, tuple(sorted(given.items())), _date_of(source))
    if isinstance(loaded, Scalable):
        return loaded.at(options.batch) if options.batch is not None else loaded.small
    return loaded


def record_any_batch(source: str, options: WorkloadOptions) -> Graph | Scalable | None:
    """A config.json, a name in timm or a configuration of the catalogue: its inputs are made here for any batch. None for a file
    of somebody's, which makes its own, and for a model that does not scale with its batch."""
    if not source.startswith("timm:") and not source.endswith(".json") and find_configuration(source) is None:
        return None
    rest = {name: value for name, value in options.given().items() if name != "batch"}
    return _try_any_batch(source, tuple(sorted(rest.items())), _date_of(source))


@functools.lru_cache(maxsize=8)
def _try_any_batch(source: str, given: tuple[tuple[str, Any], ...], date_ns: int) -> Graph | Scalable | None:
    try:
        return _record(source, (*given, ("scalable", True)), date_ns)
    except CaptureFailed:
        return None


@functools.lru_cache(maxsize=4)
def _record(source: str, given: tuple[tuple[str, Any], ...], _date_ns: int) -> Graph | Scalable:
    """One question looks at its model more than once; it is recorded again when its file has changed."""
    configuration = find_configuration(source)

    def record() -> Graph | Scalable:
        from traincast.capture import load_source as capture_source

        try:
            # What a model prints must not end up inside the answer.
            with contextlib.redirect_stdout(sys.stderr):
                return capture_source(configuration or source, **dict(given))
        except SystemExit as error:
            raise CaptureFailed(f"{source} called sys.exit({error.code!r}) while it was recorded") from error

    path = Path(source)
    if configuration is not None:
        return recall(json.dumps(configuration, sort_keys=True).encode(), dict(given), record)
    if source.startswith("timm:"):
        return recall(source.encode(), dict(given), record)
    if path.suffix == ".json" and path.is_file():
        return recall(str(path.resolve()).encode() + path.read_bytes(), dict(given), record)
    # A program of somebody's may read whatever it likes, so it is run again.
    return record()


def _date_of(source: str) -> int:
    path = Path(source.rpartition(":")[0] if ".py:" in source else source)
    inner = [path / name for name in MODEL_FOLDERS if (path / name).is_file()]
    return max((each.stat().st_mtime_ns for each in (path, *inner) if each.exists()), default=0)


def recall(content: bytes, given: Mapping[str, Any], record: Callable[[], Graph | Scalable]) -> Graph | Scalable:
    """What was recorded from the same content with the same options, code and libraries; else what is recorded now."""
    folder = _folder()
    if folder is None:
        return record()
    from traincast.files import load_graph, save_graph

    file = folder / f"{_key(content, given)}.json.gz"
    if file.is_file():
        try:
            kept = load_graph(file)
            file.touch()
            return kept
        except (TraincastError, OSError):
            # Half a file, or one of another format: it is recorded again.
            file.unlink(missing_ok=True)
    made = record()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_graph(made, file)
        _drop_oldest(folder)
    except (TraincastError, OSError):
        # Where nothing can be kept, the answer is the same.
        pass
    return made


def _folder() -> Path | None:
    own = os.environ.get(FOLDER)
    if own is not None:
        return Path(own) if own else None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "traincast" / "graphs"


def _key(content: bytes, given: Mapping[str, Any]) -> str:
    from importlib.metadata import PackageNotFoundError, version

    from traincast import __version__

    digest = hashlib.sha256(content)
    digest.update(repr(sorted(given.items())).encode())
    digest.update(__version__.encode())
    for name in _RECORDERS:
        try:
            digest.update(f"{name}={version(name)}".encode())
        except PackageNotFoundError:
            continue
    # A version that is being worked on changes without its number.
    for file in sorted((Path(__file__).parents[1] / "capture").rglob("*.py")):
        stat = file.stat()
        digest.update(f"{file.name}={stat.st_size},{stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:40]


def _drop_oldest(folder: Path) -> None:
    kept = sorted(folder.glob("*.json.gz"), key=lambda file: file.stat().st_mtime_ns)
    for file in kept[:-MOST_KEPT]:
        file.unlink(missing_ok=True)
