"""Recorded graphs kept between commands: a configuration that was recorded once is answered without PyTorch."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traincast.errors import TraincastError
from traincast.spec import Graph, Scalable

FOLDER = "TRAINCAST_CACHE"
"""The variable that names the folder; empty: nothing is kept."""
MOST_KEPT = 64
"""Graphs; the one that was not used for longest goes first."""
_RECORDERS = ("torch", "transformers", "timm")


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
