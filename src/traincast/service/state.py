"""Models and jobs of the service in one SQLite file; what is committed survives a kill at any moment."""

import json
import os
import sqlite3
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput

SCHEMA = """
CREATE TABLE IF NOT EXISTS models (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT NULL, content BLOB NOT NULL, used_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS graphs (
    model TEXT NOT NULL REFERENCES models(id) ON DELETE CASCADE, options TEXT NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (model, options)
);
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, request TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0, total INTEGER NOT NULL DEFAULT 0, words TEXT NOT NULL DEFAULT '',
    starts INTEGER NOT NULL DEFAULT 0, created_s REAL NOT NULL, finished_s REAL, result BLOB, error TEXT
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, created_s);
"""
STATES = ("queued", "running", "done", "failed", "cancelled")
MOST_STARTS = 3
"""A job that was running at this many crashes of the service is not tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job as a caller sees it; its result is read apart."""

    id: str
    kind: str
    state: str
    request: dict[str, Any]
    done: int
    total: int
    words: str
    created_s: float
    finished_s: float | None
    error: str | None


_COLUMNS = "id, kind, state, request, done, total, words, created_s, finished_s, error"


class State:
    """One open file. Connections belong to one process and one thread; workers open their own to read."""

    def __init__(self, path: Path, *, kept_jobs: int = 2_000, kept_models: int = 200) -> None:
        self._kept_jobs, self._kept_models = kept_jobs, kept_models
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10)
            path.chmod(0o600)
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;")
            self._db.executescript(SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise InvalidInput(f"cannot keep the service's state in {path}: {error}") from error

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # Models: what was uploaded, and the graphs that were recorded from it.

    def add_model(self, *, model: str, name: str, kind: str, content: bytes) -> None:
        with self._transaction() as db:
            db.execute(
                "INSERT INTO models VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET used_s = excluded.used_s",
                (model, name, kind, zlib.compress(content, 1), time.time()),
            )
            db.execute(
                "DELETE FROM models WHERE id IN (SELECT id FROM models ORDER BY used_s DESC LIMIT -1 OFFSET ?)",
                (self._kept_models,),
            )

    def find_model(self, model: str) -> tuple[str, str, bytes] | None:
        """(name, kind, content) of an upload."""
        row = self._db.execute("SELECT name, kind, content FROM models WHERE id = ?", (model,)).fetchone()
        return None if row is None else (row[0], row[1], zlib.decompress(row[2]))

    def model_kind(self, model: str) -> str | None:
        row = self._db.execute("SELECT kind FROM models WHERE id = ?", (model,)).fetchone()
        return None if row is None else str(row[0])

    def add_graph(self, *, model: str, options: str, content: bytes) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO graphs VALUES (?, ?, ?)", (model, options, zlib.compress(content, 1)))

    def has_graph(self, model: str, options: str) -> bool:
        found = self._db.execute("SELECT 1 FROM graphs WHERE model = ? AND options = ?", (model, options))
        return found.fetchone() is not None

    def read_graph(self, model: str, options: str) -> bytes:
        row = self._db.execute(
            "SELECT content FROM graphs WHERE model = ? AND options = ?", (model, options)
        ).fetchone()
        if row is None:
            raise KeyError(model)
        return zlib.decompress(row[0])

    # Jobs: asked, run, finished.

    def add_job(self, kind: str, request: dict[str, Any]) -> StoredJob:
        job = uuid.uuid4().hex
        with self._transaction() as db:
            db.execute(
                "INSERT INTO jobs (id, kind, state, request, created_s) VALUES (?, ?, 'queued', ?, ?)",
                (job, kind, json.dumps(request), time.time()),
            )
        return self.find_job(job)

    def find_job(self, job: str) -> StoredJob:
        row = self._db.execute(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (job,)).fetchone()  # noqa: S608
        if row is None:
            raise KeyError(job)
        return _job(row)

    def list_jobs(self, *, limit: int = 100) -> list[StoredJob]:
        rows = self._db.execute(
            f"SELECT {_COLUMNS} FROM jobs ORDER BY created_s DESC, rowid DESC LIMIT ?",  # noqa: S608
            (limit,),
        )
        return [_job(row) for row in rows]

    def find_result(self, job: str) -> bytes | None:
        row = self._db.execute("SELECT result FROM jobs WHERE id = ?", (job,)).fetchone()
        return None if row is None or row[0] is None else zlib.decompress(row[0])

    def take_job(self) -> StoredJob | None:
        """The oldest one that waits, marked as running."""
        with self._transaction() as db:
            row = db.execute(
                "UPDATE jobs SET state = 'running', starts = starts + 1 WHERE id = "
                "(SELECT id FROM jobs WHERE state = 'queued' ORDER BY created_s, rowid LIMIT 1) RETURNING id"
            ).fetchone()
        return None if row is None else self.find_job(row[0])

    def note_progress(self, job: str, *, done: int, total: int, words: str) -> None:
        with self._transaction() as db:
            db.execute("UPDATE jobs SET done = ?, total = ?, words = ? WHERE id = ?", (done, total, words, job))

    def finish_job(self, job: str, state: str, *, result: bytes | None = None, error: str | None = None) -> bool:
        """Whether this was the end of it: what has ended before stays as it ended."""
        packed = None if result is None else zlib.compress(result, 1)
        with self._transaction() as db:
            ended = db.execute(
                "UPDATE jobs SET state = ?, result = ?, error = ?, finished_s = ? "
                "WHERE id = ? AND state IN ('queued', 'running')",
                (state, packed, error, time.time(), job),
            ).rowcount
            db.execute(
                "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE finished_s IS NOT NULL "
                "ORDER BY finished_s DESC LIMIT -1 OFFSET ?)",
                (self._kept_jobs,),
            )
        return bool(ended)

    def recover(self) -> int:
        """After a start: what a dead service left running waits again; the number of such jobs."""
        words = f"the service was stopped {MOST_STARTS} times while this ran; it is not tried again"
        with self._transaction() as db:
            db.execute(
                "UPDATE jobs SET state = 'failed', error = ?, finished_s = ? WHERE state = 'running' AND starts >= ?",
                (words, time.time(), MOST_STARTS),
            )
            again = db.execute("UPDATE jobs SET state = 'queued', done = 0 WHERE state = 'running'").rowcount
        return int(again)

    def count_jobs(self) -> dict[str, int]:
        found = dict(self._db.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
        return {state: int(found.get(state, 0)) for state in STATES}


def read_graph(path: str | os.PathLike[str], model: str, options: str) -> bytes | None:
    """The JSON of a recorded graph, for a worker that only reads."""
    db = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True, timeout=10)
    try:
        row = db.execute("SELECT content FROM graphs WHERE model = ? AND options = ?", (model, options)).fetchone()
    finally:
        db.close()
    return None if row is None else zlib.decompress(row[0])


def _job(row: tuple[Any, ...]) -> StoredJob:
    names = [name.strip() for name in _COLUMNS.split(",")]
    values = dict(zip(names, row, strict=True))
    return StoredJob(**{**values, "request": json.loads(values["request"])})
