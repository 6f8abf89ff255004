"""Who changed what, and who was refused, as lines of JSON in a file that rotates."""

import json
import logging
import logging.handlers
import queue
import time
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput
from traincast.service._metrics import Meter

FILE_BYTES = 16 * 1024 * 1024
KEPT_FILES = 4
MOST_PENDING = 10_000


class _CountingFile(logging.handlers.RotatingFileHandler):
    """A disk that is full loses lines of the log, counted, and nothing else."""

    def __init__(self, path: Path, meter: Meter) -> None:
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=KEPT_FILES, encoding="utf-8")
        self._meter = meter

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        self._meter.audit_lost += 1


class AuditLog:
    """Lines are written by a thread of their own; None as a path: nothing is kept."""

    def __init__(self, path: Path | None, meter: Meter) -> None:
        self._meter = meter
        self._listener: logging.handlers.QueueListener | None = None
        self._pending: queue.Queue[Any] = queue.Queue(maxsize=MOST_PENDING)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = _CountingFile(path, meter)
            path.chmod(0o600)
        except OSError as error:
            raise InvalidInput(f"cannot keep the audit log in {path}: {error}") from error
        self._listener = logging.handlers.QueueListener(self._pending, file)
        self._file = file
        self._listener.start()

    def note(self, **facts: Any) -> None:
        if self._listener is None:
            return
        line = json.dumps({"at_s": round(time.time(), 3), **facts}, ensure_ascii=False)
        try:
            self._pending.put_nowait(logging.makeLogRecord({"msg": line}))
        except queue.Full:
            self._meter.audit_lost += 1

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
            self._file.close()
