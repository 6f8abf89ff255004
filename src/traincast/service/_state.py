"""Models, jobs and tokens of the service in a database; what is committed survives a kill at any moment."""

import hashlib
import secrets
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from traincast.errors import InvalidInput
from traincast.noun import noun
from traincast.service._faults import Busy, NotFound

if TYPE_CHECKING:
    from traincast.service._postgres import PostgresDatabase
    from traincast.service._sqlite import SqliteDatabase

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS models (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, kind TEXT NOT NULL, content BYTEA NOT NULL,
        used_s DOUBLE PRECISION NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS graphs (
        model TEXT NOT NULL REFERENCES models(id) ON DELETE CASCADE, options TEXT NOT NULL, content BYTEA NOT NULL,
        about TEXT, PRIMARY KEY (model, options))""",
    """CREATE TABLE IF NOT EXISTS jobs (
        id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, request TEXT NOT NULL,
        done BIGINT NOT NULL DEFAULT 0, total BIGINT NOT NULL DEFAULT 0, words TEXT NOT NULL DEFAULT '',
        starts BIGINT NOT NULL DEFAULT 0, created_s DOUBLE PRECISION NOT NULL, finished_s DOUBLE PRECISION,
        result BYTEA, error TEXT, owner TEXT)""",
    "CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, created_s)",
    """CREATE TABLE IF NOT EXISTS tokens (
        name TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, scope TEXT NOT NULL, created_s DOUBLE PRECISION NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS beats (id BIGINT PRIMARY KEY, at_s DOUBLE PRECISION NOT NULL)",
)
"""Of both kinds of databases: SQLite takes the names of PostgreSQL's types."""
ADDED_COLUMNS = (
    ("graphs", "about", "TEXT"),
    ("jobs", "owner", "TEXT"),
    ("jobs", "client", "TEXT"),
    ("jobs", "started_s", "DOUBLE PRECISION"),
)
"""What the tables of earlier versions lack."""
TABLES = ("models", "graphs", "jobs", "tokens")
STATES = ("queued", "running", "done", "failed", "cancelled")
SCOPES = ("read", "run", "admin")
"""Each scope allows what the ones before it allow."""
MOST_DEATHS = 3
"""A job whose worker died by itself so often is not tried again. The end of the service or of the machine does not count."""


Execute = Callable[..., Any]
"""A statement with marks `?` and its values to the driver's cursor, inside a transaction."""


Database: TypeAlias = "SqliteDatabase | PostgresDatabase"
"""One connection, used by one thread at a time. Every method may raise StorageFault, or Unstorable for bad data. In a
transaction everything is kept, or nothing is; one that changes nothing also works where nothing can be written."""


@noun
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
    client: str | None = None
    request: str = ""
    """What was asked, as JSON; only of a job that was taken to be run."""


@noun
class StoredToken:
    """Who may ask for what; the token itself is not kept, only its SHA-256."""

    name: str
    digest: str
    scope: str
    created_s: float


@noun
class Queue:
    """How the jobs stand."""

    counts: dict[str, int]
    oldest_s: float
    """How long the first that waits has waited; 0 where none waits."""


_COLUMNS = "id, kind, state, done, total, words, created_s, finished_s, error, client"


class State:
    """Every change is one transaction of the database. Calls belong to one thread at a time."""

    def __init__(self, database: Database, *, kept_jobs: int = 2_000, kept_models: int = 200) -> None:
        self.database = database
        self._kept_jobs, self._kept_models = kept_jobs, kept_models
        self._last_s = 0.0

    def close(self) -> None:
        self.database.close()

    # Models: what was uploaded, and the graphs that were recorded from it; contents come and go packed.

    def add_model(
        self, *, model: str, name: str, kind: str, content: bytes, options: str, graph: bytes, about: str
    ) -> None:
        """An upload and what was recorded from it, together."""
        with self.database.transaction() as execute:
            execute(
                "INSERT INTO models (id, name, kind, content, used_s) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET used_s = excluded.used_s",
                (model, clean_text(name)[:200], kind, content, time.time()),
            )
            # This one stays, whatever the clock said when the others came.
            execute(
                "DELETE FROM models WHERE id <> ? AND id NOT IN "
                "(SELECT id FROM models WHERE id <> ? ORDER BY used_s DESC LIMIT ?)",
                (model, model, self._kept_models - 1),
            )
            execute(
                "INSERT INTO graphs (model, options, content, about) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (model, options) DO UPDATE SET content = excluded.content, about = excluded.about",
                (model, options, graph, about),
            )

    def find_model(self, model: str) -> tuple[str, bytes] | None:
        """The kind and the packed content of an upload."""
        with self.database.transaction(changes=False) as execute:
            row = execute("SELECT kind, content FROM models WHERE id = ?", (model,)).fetchone()
        return None if row is None else (row[0], bytes(row[1]))

    def find_graph(self, model: str, options: str) -> tuple[str, bytes] | None:
        """What a recorded graph is about, as JSON, and the packed graph; None where there is none."""
        with self.database.transaction(changes=False) as execute:
            query = "SELECT about, content FROM graphs WHERE model = ? AND options = ?"
            row = execute(query, (model, options)).fetchone()
        return None if row is None else (row[0], bytes(row[1]))

    # Jobs: asked, run, finished.

    def add_job(
        self, kind: str, request: str, *, client: str = "", most_waiting: int = 2**31, most_of_client: int = 2**31
    ) -> StoredJob:
        """The job that this JSON asks for, once it is sure to be run; Busy where too many wait."""
        with self.database.transaction() as execute:
            query = "SELECT count(CASE WHEN client = ? THEN 1 END), count(*) FROM jobs WHERE state = 'queued'"
            mine, all_waiting = execute(query, (client,)).fetchone()
            for words, waiting, most in (
                ("jobs of this client", mine, most_of_client), ("jobs", all_waiting, most_waiting),
            ):  # fmt: skip
                if waiting >= most:
                    raise Busy(f"{waiting} {words} wait already, the most that may; ask again later", retry_after_s=5)
            # Jobs are taken in this order, so no two of one process have the same time.
            self._last_s = max(time.time(), self._last_s + 1e-5)
            row = execute(
                "INSERT INTO jobs (id, kind, state, request, created_s, client) "  # noqa: S608
                f"VALUES (?, ?, 'queued', ?, ?, ?) RETURNING {_COLUMNS}",
                (uuid.uuid4().hex, kind, request, self._last_s, client),
            ).fetchone()
        return _job(row)

    def find_job(self, job: str) -> StoredJob:
        with self.database.transaction(changes=False) as execute:
            row = execute(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", (job,)).fetchone()  # noqa: S608
        if row is None:
            raise NotFound(f"there is no job {job[:40]!r}; it was never asked for, or is too old to be kept")
        return _job(row)

    def list_jobs(self, *, limit: int = 100) -> list[StoredJob]:
        query = f"SELECT {_COLUMNS} FROM jobs ORDER BY created_s DESC, id LIMIT ?"  # noqa: S608
        with self.database.transaction(changes=False) as execute:
            return [_job(row) for row in execute(query, (limit,)).fetchall()]

    def find_result(self, job: str) -> bytes | None:
        with self.database.transaction(changes=False) as execute:
            row = execute("SELECT result FROM jobs WHERE id = ? AND result IS NOT NULL", (job,)).fetchone()
        return None if row is None else zlib.decompress(row[0])

    def take_job(self, owner: str = "", *, not_of: Sequence[str] = ()) -> StoredJob | None:
        """One that waits, marked as running by this owner: clients take turns, and each client's oldest comes first."""
        marks = "".join(", ?" for _ in not_of)
        query = (
            "UPDATE jobs SET state = 'running', owner = ?, started_s = ? WHERE id = ("  # noqa: S608
            f"SELECT id FROM jobs WHERE state = 'queued' AND coalesce(client, '') NOT IN ('\u0001'{marks}) ORDER BY "
            "(SELECT coalesce(max(other.started_s), 0) FROM jobs AS other WHERE other.client = jobs.client), created_s, id "
            f"LIMIT 1) RETURNING {_COLUMNS}, request"
        )
        with self.database.transaction() as execute:
            row = execute(query, (owner, time.time(), *not_of)).fetchone()
        return None if row is None else _job(row)

    def finish_job(
        self, job: str, state: str, *, result: bytes | None = None, error: str | None = None, owner: str | None = None,
        progress: dict[str, Any] | None = None,
    ) -> bool:  # fmt: skip
        """Whether this was the end of it: what has ended before, or is another owner's now, stays as it is."""
        packed = None if result is None else zlib.compress(result, 1)
        with self.database.transaction() as execute:
            ended = execute(
                "UPDATE jobs SET state = ?, result = ?, error = ?, finished_s = ? "
                "WHERE id = ? AND state IN ('queued', 'running') AND (CAST(? AS TEXT) IS NULL OR owner = ?)",
                (state, packed, None if error is None else clean_text(error), time.time(), job, owner, owner),
            ).rowcount
            if ended and progress is not None:
                execute(
                    "UPDATE jobs SET done = ?, total = ?, words = ? WHERE id = ?",
                    (progress["done"], progress["total"], clean_text(progress["words"]), job),
                )
            execute(
                "DELETE FROM jobs WHERE finished_s IS NOT NULL AND id <> ? AND id NOT IN "
                "(SELECT id FROM jobs WHERE finished_s IS NOT NULL AND id <> ? ORDER BY finished_s DESC LIMIT ?)",
                (job, job, self._kept_jobs - 1),
            )
        return bool(ended)

    def put_back(self, job: str, *, owner: str, died: str = "") -> bool:
        """Let a job that this owner could not run wait again. `died`: what its worker died of, at most a few times."""
        with self.database.transaction() as execute:
            mine = "WHERE id = ? AND state = 'running' AND owner = ?"
            if died:
                execute(f"UPDATE jobs SET starts = starts + 1 {mine}", (job, owner))  # noqa: S608
                execute(
                    f"UPDATE jobs SET state = 'failed', error = ?, finished_s = ? {mine} AND starts >= ?",  # noqa: S608
                    (f"{clean_text(died)} ({MOST_DEATHS} times)", time.time(), job, owner, MOST_DEATHS),
                )
            return bool(execute(f"UPDATE jobs SET state = 'queued', owner = NULL {mine}", (job, owner)).rowcount)  # noqa: S608

    def recover(self) -> int:
        """After a start: what a dead service left running waits again; the number of such jobs."""
        with self.database.transaction() as execute:
            return int(execute("UPDATE jobs SET state = 'queued', owner = NULL WHERE state = 'running'").rowcount)

    def check(self) -> None:
        """Write; raise a StorageFault where that is not possible, or will not be soon."""
        with self.database.transaction() as execute:
            execute(
                "INSERT INTO beats (id, at_s) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET at_s = excluded.at_s",
                (time.time(),),
            )
        self.database.check_room()

    def read_queue(self) -> Queue:
        with self.database.transaction(changes=False) as execute:
            counts = dict(execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall())
            (first,) = execute("SELECT min(created_s) FROM jobs WHERE state = 'queued'").fetchone()
        return Queue(
            counts={state: int(counts.get(state, 0)) for state in STATES},
            oldest_s=0.0 if first is None else max(0.0, time.time() - float(first)),
        )

    # Tokens: who may ask.

    def add_token(self, name: str, scope: str) -> str:
        """A new token; it is told once, here, and kept only as its digest."""
        if scope not in SCOPES:
            raise InvalidInput(f"unknown scope {scope!r}; known scopes: {', '.join(SCOPES)}")
        if not (1 <= len(name) <= 100) or not name.isprintable():
            raise InvalidInput("the name of a token has 1 to 100 printable characters")
        token = f"tc_{secrets.token_urlsafe(32)}"
        with self.database.transaction() as execute:
            if execute("SELECT 1 FROM tokens WHERE name = ?", (name,)).fetchone():
                raise InvalidInput(f"there is a token {name!r} already; remove it first")
            execute(
                "INSERT INTO tokens (name, digest, scope, created_s) VALUES (?, ?, ?, ?)",
                (name, digest_token(token), scope, time.time()),
            )
        return token

    def remove_token(self, name: str) -> bool:
        with self.database.transaction() as execute:
            return bool(execute("DELETE FROM tokens WHERE name = ?", (name,)).rowcount)

    def list_tokens(self) -> list[StoredToken]:
        with self.database.transaction(changes=False) as execute:
            rows = execute("SELECT name, digest, scope, created_s FROM tokens ORDER BY created_s, name").fetchall()
        return [StoredToken(**dict(zip(("name", "digest", "scope", "created_s"), row, strict=True))) for row in rows]


def clean_text(text: str) -> str:
    """Text that every database holds: without NUL and half characters."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def digest_token(token: str) -> str:
    """Tokens of ours have 256 random bits, so a plain digest cannot be reversed by guessing."""
    return hashlib.sha256(token.encode()).hexdigest()


def open_database(where: str, *, is_owner: bool = True) -> Database:
    """The SQLite file of a path, or the PostgreSQL database of a URL. Who is no owner may use it beside a service, for short
    changes and not for running jobs."""
    if is_url(where):
        from traincast.service._postgres import PostgresDatabase

        return PostgresDatabase(where, is_owner=is_owner)
    from traincast.service._sqlite import SqliteDatabase

    return SqliteDatabase(Path(where), is_owner=is_owner)


def is_url(where: str) -> bool:
    return where.startswith(("postgresql://", "postgres://"))


def _job(row: Sequence[Any]) -> StoredJob:
    return StoredJob(**dict(zip((*_COLUMNS.split(", "), "request"), row, strict=False)))
