"""A PostgreSQL database that several services and their workers share: connections mended, faults told apart."""

import atexit
import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from traincast.errors import InvalidInput, MissingExtra
from traincast.service._database import Statements
from traincast.service._faults import StorageFault

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
        result BYTEA, error TEXT, owner TEXT, lease_until_s DOUBLE PRECISION)""",
    "CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, created_s)",
    """CREATE TABLE IF NOT EXISTS tokens (
        name TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, scope TEXT NOT NULL, created_s DOUBLE PRECISION NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS beats (id BIGINT PRIMARY KEY, at_s DOUBLE PRECISION NOT NULL)",
)
SCHEMA_LOCK = 0x7472_6373
"""Two services that start at once must not both make the tables."""
CONNECT_TIMEOUT_S = 3
STATEMENT_TIMEOUT_MS = 10_000


class PostgresStatements:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self._cursor.execute(statement.replace("?", "%s"), values)
        return list(self._cursor.fetchall())

    def write(self, statement: str, values: Sequence[Any] = ()) -> int:
        self._cursor.execute(statement.replace("?", "%s"), values)
        return int(self._cursor.rowcount)


class PostgresDatabase:
    """One connection, opened again after any fault of it."""

    name = "postgresql"
    lock_rows = "FOR UPDATE SKIP LOCKED"
    is_shared = True
    num_rescued = 0

    def __init__(self, url: str) -> None:
        self._url = url
        self._driver = _load_driver()
        self._connection: Any = None
        try:
            with self.transaction() as found:
                found.read("SELECT pg_advisory_xact_lock(?)", (SCHEMA_LOCK,))
                for statement in SCHEMA:
                    found.write(statement)
        except StorageFault as fault:
            self.close()
            raise InvalidInput(f"cannot keep the service's state in the database: {fault.details}") from fault

    @contextlib.contextmanager
    def transaction(self, *, changes: bool = True) -> Iterator[PostgresStatements]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = _connect(self._driver, self._url)
            with self._connection.transaction(), self._connection.cursor() as cursor:
                yield PostgresStatements(cursor)
        except self._driver.Error as error:
            self.close()
            raise StorageFault(_kind_of(error), " ".join(str(error).split())) from error

    def clock_s(self, statements: Statements) -> float:
        return float(statements.read("SELECT extract(epoch FROM clock_timestamp())")[0][0])

    def check(self) -> None:
        with self.transaction() as found:
            now_s = self.clock_s(found)
            found.write(
                "INSERT INTO beats (id, at_s) VALUES (pg_backend_pid(), ?) "
                "ON CONFLICT (id) DO UPDATE SET at_s = excluded.at_s",
                (now_s,),
            )
            # Of connections that are long gone.
            found.write("DELETE FROM beats WHERE at_s < ?", (now_s - 3600,))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(self._driver.Error):
                connection.close()


def _load_driver() -> Any:
    try:
        return importlib.import_module("psycopg")
    except ImportError as error:
        raise MissingExtra("psycopg", "postgresql", "a PostgreSQL database") from error


def _connect(driver: Any, url: str) -> Any:
    return driver.connect(
        url,
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_S,
        options=f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c idle_in_transaction_session_timeout=30000",
    )


def _kind_of(error: Any) -> str:
    state = str(getattr(error, "sqlstate", None) or "")
    if state in ("53100", "53200"):
        return "full"
    if state in ("25006", "42501"):
        return "read-only"
    if state in ("55P03", "40P01", "40001", "57014"):
        return "locked"
    if state.startswith("XX"):
        return "corrupt"
    return "unreachable"


_readers: dict[str, Any] = {}
"""By address: a worker reads the graphs of many requests over one connection."""


def read_graph(url: str, model: str, options: str) -> bytes | None:
    """The packed JSON of a recorded graph, over a connection that is kept until the process ends."""
    driver = _load_driver()
    try:
        connection = _readers.get(url)
        if connection is None or connection.closed:
            connection = _readers[url] = _connect(driver, url)
        row = connection.execute(
            "SELECT content FROM graphs WHERE model = %s AND options = %s", (model, options)
        ).fetchone()
    except driver.Error as error:
        _close_reader(url)
        raise StorageFault(_kind_of(error), " ".join(str(error).split())) from error
    return None if row is None else bytes(row[0])


def _close_reader(url: str) -> None:
    connection = _readers.pop(url, None)
    if connection is not None:
        # It may have ended already; what it held was read or raised.
        with contextlib.suppress(OSError, _load_driver().Error):
            connection.close()


@atexit.register
def close_readers() -> None:
    for url in list(_readers):
        _close_reader(url)
