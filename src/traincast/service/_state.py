"""Models, jobs and tokens of the service in a database; what is committed survives a kill at any moment."""

import hashlib
import json
import secrets
import uuid
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput
from traincast.service._database import Database, Statements

STATES = ("queued", "running", "done", "failed", "cancelled")
SCOPES = ("read", "run", "admin")
"""Each scope allows what the ones before it allow."""
MOST_STARTS = 3
"""A job that was running at this many crashes of the service is not tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job as a caller sees it; its result is read apart."""

    id: str
    kind: str
    state: str
    done: int
    total: int
    words: str
    created_s: float
    finished_s: float | None
    error: str | None
    request: str = ""
    """What was asked, as JSON; only of a job that was taken to be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredToken:
    """Who may ask for what; the token itself is not kept, only its SHA-256."""

    name: str
    digest: str
    scope: str
    created_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """How the jobs stand."""

    counts: dict[str, int]
    oldest_s: float
    """How long the first that waits has waited; 0 where none waits."""


_COLUMNS = "id, kind, state, done, total, words, created_s, finished_s, error"


class State:
    """Every change is one transaction of the database. Calls belong to one thread at a time."""

    def __init__(self, database: Database, *, kept_jobs: int = 2_000, kept_models: int = 200) -> None:
        self.database = database
        self._kept_jobs, self._kept_models = kept_jobs, kept_models
        self._last_s = 0.0

    def close(self) -> None:
        self.database.close()

    # Models: what was uploaded, and the graphs that were recorded from it.

    def add_model(
        self, *, model: str, name: str, kind: str, content: bytes | bytearray, options: str, graph: bytes, about: str
    ) -> None:
        """An upload and what was recorded from it, together."""
        packed, packed_graph = zlib.compress(content, 1), zlib.compress(graph, 1)
        with self.database.transaction() as found:
            found.write(
                "INSERT INTO models (id, name, kind, content, used_s) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET used_s = excluded.used_s",
                (model, name, kind, packed, self.database.clock_s(found)),
            )
            found.write(
                "DELETE FROM models WHERE id NOT IN (SELECT id FROM models ORDER BY used_s DESC LIMIT ?)",
                (self._kept_models,),
            )
            _write_graph(found, model, options, packed_graph, about)

    def find_model(self, model: str) -> tuple[str, str, bytes] | None:
        """(name, kind, content) of an upload."""
        with self.database.transaction(changes=False) as found:
            rows = found.read("SELECT name, kind, content FROM models WHERE id = ?", (model,))
        return (rows[0][0], rows[0][1], zlib.decompress(rows[0][2])) if rows else None

    def add_graph(self, *, model: str, options: str, content: bytes, about: str) -> None:
        packed = zlib.compress(content, 1)
        with self.database.transaction() as found:
            _write_graph(found, model, options, packed, about)

    def find_graph(self, model: str, options: str) -> dict[str, Any] | None:
        """What a recorded graph is about; None where there is none."""
        with self.database.transaction(changes=False) as found:
            rows = found.read("SELECT about FROM graphs WHERE model = ? AND options = ?", (model, options))
            if rows and rows[0][0] is None:
                # An earlier version kept this inside the graph.
                rows = found.read("SELECT content FROM graphs WHERE model = ? AND options = ?", (model, options))
                return dict(json.loads(zlib.decompress(rows[0][0]))["about"])
        return dict(json.loads(rows[0][0])) if rows else None

    # Jobs: asked, run, finished.

    def add_job(self, kind: str, request: str, *, most_waiting: int | None = None) -> StoredJob | int:
        """The job that this JSON asks for, once it is sure to be run; or how many wait, where that is as many as may."""
        job = uuid.uuid4().hex
        with self.database.transaction() as found:
            if most_waiting is not None:
                waiting = int(found.read("SELECT count(*) FROM jobs WHERE state = 'queued'")[0][0])
                if waiting >= most_waiting:
                    return waiting
            # Jobs are taken in this order, so no two of one process have the same time.
            self._last_s = max(self.database.clock_s(found), self._last_s + 1e-5)
            found.write(
                "INSERT INTO jobs (id, kind, state, request, created_s) VALUES (?, ?, 'queued', ?, ?)",
                (job, kind, request, self._last_s),
            )
            return _find_job(found, job)

    def find_job(self, job: str) -> StoredJob:
        with self.database.transaction(changes=False) as found:
            return _find_job(found, job)

    def list_jobs(self, *, limit: int = 100) -> list[StoredJob]:
        query = f"SELECT {_COLUMNS} FROM jobs ORDER BY created_s DESC, id LIMIT ?"  # noqa: S608
        with self.database.transaction(changes=False) as found:
            return [_job(row) for row in found.read(query, (limit,))]

    def find_result(self, job: str) -> bytes | None:
        with self.database.transaction(changes=False) as found:
            rows = found.read("SELECT result FROM jobs WHERE id = ?", (job,))
        return None if not rows or rows[0][0] is None else zlib.decompress(rows[0][0])

    def take_job(self, owner: str = "", *, lease_s: float | None = None) -> StoredJob | None:
        """The oldest one that waits, marked as running by this owner until its lease ends."""
        with self.database.transaction() as found:
            now_s = self.database.clock_s(found)
            if lease_s is not None:
                _release(found, "lease_until_s < ?", (now_s,), now_s)
            first = "SELECT id FROM jobs WHERE state = 'queued' ORDER BY created_s, id LIMIT 1"
            rows = found.read(f"{first} {self.database.lock_rows}")
            if not rows:
                return None
            found.write(
                "UPDATE jobs SET state = 'running', starts = starts + 1, owner = ?, lease_until_s = ? WHERE id = ?",
                (owner, None if lease_s is None else now_s + lease_s, rows[0][0]),
            )
            request = found.read("SELECT request FROM jobs WHERE id = ?", (rows[0][0],))[0][0]
            return replace(_find_job(found, rows[0][0]), request=request)

    def note_progress(
        self, job: str, *, done: int, total: int, words: str, owner: str = "", lease_s: float | None = None
    ) -> bool:
        """Whether the job is still this owner's to run; its lease begins anew."""
        with self.database.transaction() as found:
            until_s = None if lease_s is None else self.database.clock_s(found) + lease_s
            return bool(
                found.write(
                    "UPDATE jobs SET done = ?, total = ?, words = ?, lease_until_s = ? "
                    "WHERE id = ? AND state = 'running' AND owner = ?",
                    (done, total, words, until_s, job, owner),
                )
            )

    def finish_job(
        self,
        job: str,
        state: str,
        *,
        result: bytes | None = None,
        error: str | None = None,
        owner: str | None = None,
        progress: dict[str, Any] | None = None,
    ) -> bool:
        """Whether this was the end of it: what has ended before, or is another owner's now, stays as it is."""
        packed = None if result is None else zlib.compress(result, 1)
        with self.database.transaction() as found:
            now_s = self.database.clock_s(found)
            ended = found.write(
                "UPDATE jobs SET state = ?, result = ?, error = ?, finished_s = ?, lease_until_s = NULL "
                "WHERE id = ? AND state IN ('queued', 'running') AND (CAST(? AS TEXT) IS NULL OR owner = ?)",
                (state, packed, error, now_s, job, owner, owner),
            )
            if ended and progress is not None:
                found.write(
                    "UPDATE jobs SET done = ?, total = ?, words = ? WHERE id = ?",
                    (progress["done"], progress["total"], progress["words"], job),
                )
            found.write(
                "DELETE FROM jobs WHERE finished_s IS NOT NULL AND id NOT IN "
                "(SELECT id FROM jobs WHERE finished_s IS NOT NULL ORDER BY finished_s DESC LIMIT ?)",
                (self._kept_jobs,),
            )
        return bool(ended)

    def put_back(self, job: str, *, owner: str) -> bool:
        """Let a job that this owner could not run wait again."""
        with self.database.transaction() as found:
            return bool(
                found.write(
                    "UPDATE jobs SET state = 'queued', owner = NULL, lease_until_s = NULL "
                    "WHERE id = ? AND state = 'running' AND owner = ?",
                    (job, owner),
                )
            )

    def recover(self) -> int:
        """After a start: what a dead service left running waits again; the number of such jobs.

        Of a shared database only jobs whose lease has ended; the others are run elsewhere.
        """
        with self.database.transaction() as found:
            now_s = self.database.clock_s(found)
            if self.database.is_shared:
                return _release(found, "lease_until_s < ?", (now_s,), now_s)
            return _release(found, "1 = 1", (), now_s)

    def count_jobs(self) -> dict[str, int]:
        return self.read_queue().counts

    def read_queue(self) -> Queue:
        with self.database.transaction(changes=False) as found:
            counts = dict(found.read("SELECT state, count(*) FROM jobs GROUP BY state"))
            first = found.read("SELECT min(created_s) FROM jobs WHERE state = 'queued'")[0][0]
            now_s = self.database.clock_s(found)
        return Queue(
            counts={state: int(counts.get(state, 0)) for state in STATES},
            oldest_s=0.0 if first is None else max(0.0, now_s - float(first)),
        )

    # Tokens: who may ask.

    def add_token(self, name: str, scope: str) -> str:
        """A new token; it is told once, here, and kept only as its digest."""
        if scope not in SCOPES:
            raise InvalidInput(f"unknown scope {scope!r}; known scopes: {', '.join(SCOPES)}")
        if not (1 <= len(name) <= 100) or not name.isprintable():
            raise InvalidInput("the name of a token has 1 to 100 printable characters")
        token = f"tc_{secrets.token_urlsafe(32)}"
        with self.database.transaction() as found:
            if found.read("SELECT 1 FROM tokens WHERE name = ?", (name,)):
                raise InvalidInput(f"there is a token {name!r} already; remove it first")
            found.write(
                "INSERT INTO tokens (name, digest, scope, created_s) VALUES (?, ?, ?, ?)",
                (name, digest_token(token), scope, self.database.clock_s(found)),
            )
        return token

    def remove_token(self, name: str) -> bool:
        with self.database.transaction() as found:
            return bool(found.write("DELETE FROM tokens WHERE name = ?", (name,)))

    def list_tokens(self) -> list[StoredToken]:
        with self.database.transaction(changes=False) as found:
            rows = found.read("SELECT name, digest, scope, created_s FROM tokens ORDER BY created_s, name")
        return [StoredToken(name=row[0], digest=row[1], scope=row[2], created_s=row[3]) for row in rows]


def digest_token(token: str) -> str:
    """Tokens of ours have 256 random bits, so a plain digest cannot be reversed by guessing."""
    return hashlib.sha256(token.encode()).hexdigest()


def open_shared(where: str) -> Database:
    """The database beside a service that may use it now: for short changes, not for running jobs."""
    return open_database(where, is_owner=False)


def open_database(where: str, *, is_owner: bool = True) -> Database:
    """The SQLite file of a path, or the PostgreSQL database of a URL."""
    if is_url(where):
        from traincast.service._postgres import PostgresDatabase

        return PostgresDatabase(where)
    from traincast.service._sqlite import SqliteDatabase

    return SqliteDatabase(Path(where), is_owner=is_owner)


def is_url(where: str) -> bool:
    return where.startswith(("postgresql://", "postgres://"))


def read_graph(where: str, model: str, options: str) -> bytes | None:
    """The JSON of a recorded graph, for a worker that only reads."""
    if is_url(where):
        from traincast.service import _postgres as postgres

        packed = postgres.read_graph(where, model, options)
    else:
        from traincast.service import _sqlite as sqlite

        packed = sqlite.read_graph(where, model, options)
    return None if packed is None else zlib.decompress(packed)


def _write_graph(found: Statements, model: str, options: str, packed: bytes, about: str) -> None:
    found.write(
        "INSERT INTO graphs (model, options, content, about) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (model, options) DO UPDATE SET content = excluded.content, about = excluded.about",
        (model, options, packed, about),
    )


def _release(found: Statements, test: str, values: tuple[Any, ...], now_s: float) -> int:
    """Let what ran wait again, at most a few times."""
    words = f"the service was stopped {MOST_STARTS} times while this ran; it is not tried again"
    found.write(
        f"UPDATE jobs SET state = 'failed', error = ?, finished_s = ? WHERE state = 'running' AND starts >= ? AND {test}",  # noqa: S608
        (words, now_s, MOST_STARTS, *values),
    )
    return found.write(
        f"UPDATE jobs SET state = 'queued', done = 0, owner = NULL WHERE state = 'running' AND {test}",  # noqa: S608
        values,
    )


def _find_job(found: Statements, job: str) -> StoredJob:
    rows = found.read(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (job,))  # noqa: S608
    if not rows:
        raise KeyError(job)
    return _job(rows[0])


def _job(row: tuple[Any, ...]) -> StoredJob:
    names = [name.strip() for name in _COLUMNS.split(",")]
    return StoredJob(**dict(zip(names, row, strict=True)))
