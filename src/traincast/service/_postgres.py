"""A PostgreSQL database that one service keeps its state in: connections mended, faults told apart."""

import contextlib
import importlib
import time
from collections.abc import Iterator
from typing import Any

from traincast.errors import InvalidInput, MissingExtra
from traincast.service._faults import StorageFault, Unstorable
from traincast.service._state import ADDED_COLUMNS, SCHEMA, Execute

SCHEMA_LOCK, OWNER_LOCK = 0x7472_6373, 0x7472_6374
"""Advisory locks: two programs that start at once must not both make the tables, nor two services run the same jobs."""
OWNER_PATIENCE_S = 10.0
"""The server needs a moment to notice that a service was killed."""
CONNECT_TIMEOUT_S = 3
OPTIONS = (
    "-c statement_timeout=10000 -c idle_in_transaction_session_timeout=30000 -c tcp_keepalives_idle=10 "
    "-c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
)


class PostgresDatabase:
    """One connection, opened again after any fault of it; an owner's holds a lock that no other service can have."""

    name = "postgresql"
    num_rescued = 0

    def __init__(self, url: str, *, is_owner: bool = True) -> None:
        self._url, self._is_owner = url, is_owner
        try:
            self._driver: Any = importlib.import_module("psycopg")
        except ImportError as error:
            raise MissingExtra("psycopg", "postgresql", "a PostgreSQL database") from error
        self._connection: Any = None
        until_s = time.monotonic() + OWNER_PATIENCE_S
        while True:
            try:
                with self.transaction() as execute:
                    execute("SELECT pg_advisory_xact_lock(?)", (SCHEMA_LOCK,))
                    for statement in SCHEMA:
                        execute(statement)
                    for table, column, kind in ADDED_COLUMNS:
                        execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} {kind}")
                return
            except StorageFault as fault:
                self.close()
                if fault.kind != "locked" or time.monotonic() > until_s:
                    words = f"cannot keep the service's state in the database: {fault.details}"
                    raise InvalidInput(words) from fault
            time.sleep(0.2)

    @contextlib.contextmanager
    def transaction(self, *, changes: bool = True) -> Iterator[Execute]:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._driver.connect(
                    self._url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, options=OPTIONS
                )
                query = "SELECT pg_try_advisory_lock(%s)"
                if self._is_owner and not self._connection.execute(query, (OWNER_LOCK,)).fetchone()[0]:
                    self.close()
                    raise StorageFault(
                        "locked", "it is in use by another service; stop that one, or use another database"
                    )
            with self._connection.transaction(), self._connection.cursor() as cursor:
                yield lambda statement, values=(): cursor.execute(statement.replace("?", "%s"), values)
        except (self._driver.DataError, UnicodeError) as error:
            raise Unstorable(f"this cannot be stored: {_say(error)}") from error
        except self._driver.Error as error:
            self.close()
            raise StorageFault(_kind_of(error), _say(error)) from error

    def check_room(self) -> None:
        """The server tells only when it writes."""

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(self._driver.Error):
                connection.close()


def _say(error: Exception) -> str:
    return " ".join(str(error).split())


def _kind_of(error: Any) -> str:
    state = str(getattr(error, "sqlstate", None) or "")
    if state in ("53100", "53200"):
        return "full"
    if state in ("25006", "42501"):
        return "read-only"
    if state in ("55P03", "40P01", "40001", "57014"):
        return "locked"
    return "corrupt" if state.startswith("XX") else "unreachable"
