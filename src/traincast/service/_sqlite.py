"""One SQLite file as the service's database: owned by one process, mended where it can be, faults told apart."""

import contextlib
import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput
from traincast.service._database import Statements
from traincast.service._faults import StorageFault

log = logging.getLogger("traincast.service")

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
CREATE TABLE IF NOT EXISTS tokens (
    name TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, scope TEXT NOT NULL, created_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS beats (id INTEGER PRIMARY KEY, at_s REAL NOT NULL);
"""
ADDED_COLUMNS = (
    ("graphs", "about", "TEXT"),
    ("jobs", "owner", "TEXT"),
    ("jobs", "lease_until_s", "REAL"),
)
"""What files of earlier versions lack."""
TABLES = ("models", "graphs", "jobs", "tokens")
BUSY_TIMEOUT_S = 2.0
NEEDED_BYTES = 64 * 1024
"""A disk with less room than this is called full before a write fails."""
MAGIC = b"SQLite format 3\0"


class SqliteStatements:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def write(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self._connection.execute(statement, values).rowcount


class SqliteDatabase:
    """The embedded default. A fault closes the connection; the next call opens, and where needed mends, the file."""

    name = "sqlite"
    lock_rows = ""
    is_shared = False

    def __init__(self, path: Path, *, is_owner: bool = True) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._lock: int | None = None
        self._is_ours = False
        self.num_rescued = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"cannot keep the service's state in {path}: {error}") from error
        if is_owner:
            self._hold()
        try:
            self._open()
        except StorageFault as fault:
            self.close()
            raise InvalidInput(f"cannot keep the service's state in {path}: {fault}: {fault.details}") from fault

    @contextlib.contextmanager
    def transaction(self, *, changes: bool = True) -> Iterator[SqliteStatements]:
        try:
            connection = self._current(changes=changes)
            connection.execute("BEGIN IMMEDIATE" if changes else "BEGIN")
            try:
                yield SqliteStatements(connection)
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            fault = self._name_fault(error)
            if fault.kind == "unreachable":
                self._drop_connection()
            if fault.kind == "corrupt":
                self._set_aside(fault)
            raise fault from error

    def clock_s(self, statements: Statements) -> float:
        return time.time()

    def check(self) -> None:
        self._hold_again()
        with self.transaction() as found:
            found.write(
                "INSERT INTO beats (id, at_s) VALUES (1, ?) ON CONFLICT (id) DO UPDATE SET at_s = excluded.at_s",
                (time.time(),),
            )
        if self._free_bytes() < NEEDED_BYTES:
            raise StorageFault("full", f"{self._free_bytes():,.0f} bytes are free beside {self._path}")

    def close(self) -> None:
        self._drop_connection()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _hold(self) -> None:
        """One service owns a state file: two would run each job twice."""
        try:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            owner = os.pread(self._lock or 0, 40, 0).decode(errors="replace").strip() or "unknown"
            self.close()
            raise InvalidInput(
                f"{self._path} is in use by another service (process {owner}); stop that one, choose another --state, or let "
                "several services share --database postgresql://..."
            ) from error
        except OSError as error:
            # A lock that cannot be written is still held; a disk that is full must not keep the service from starting.
            if self._lock is None:
                raise InvalidInput(f"cannot keep the service's state in {self._path}: {error}") from error

    @property
    def _lock_path(self) -> Path:
        return self._path.with_name(self._path.name + ".lock")

    def _hold_again(self) -> None:
        """Take the lock of a folder that was removed and made again."""
        if self._lock is None:
            return
        with contextlib.suppress(FileNotFoundError):
            found, held = self._lock_path.stat(), os.fstat(self._lock)
            if (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino):
                return
        os.close(self._lock)
        self._lock = None
        self._hold()

    def _current(self, *, changes: bool = True) -> sqlite3.Connection:
        """The connection to the file that has this path now; what only reads may use the file that had it before."""
        old = self._connection
        if old is not None and self._identify() != self._identity:
            try:
                self._rescue(old)
            except StorageFault:
                if changes or self._connection is not old:
                    raise
        if self._connection is None:
            self._open()
        if self._connection is None:
            raise StorageFault("unreachable", f"{self._path} was opened and closed at once")
        return self._connection

    def _identify(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._is_ours and not self._path.exists():
                # A log without its file belongs to the one that is gone.
                self._remove_logs()
            connection = sqlite3.connect(
                self._path, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False
            )
        except (sqlite3.Error, OSError) as error:
            raise self._name_fault(error) from error
        try:
            self._path.chmod(0o600)
            self._prepare(connection)
        except (sqlite3.Error, OSError) as error:
            connection.close()
            fault = self._name_fault(error)
            if fault.kind == "corrupt" and (self._is_ours or self._looks_ours()):
                self._set_aside(fault)
                self._open()
                return
            raise fault from error
        self._connection, self._identity, self._is_ours = connection, self._identify(), True

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.executescript(SCHEMA)
        for table, column, kind in ADDED_COLUMNS:
            if column not in {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("database disk image is malformed")

    def _looks_ours(self) -> bool:
        """Never set aside what is not a state file, such as one named by mistake."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
        return False

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _rescue(self, old: sqlite3.Connection) -> None:
        """Somebody removed or replaced the file; this process still holds all of the old one."""
        exists = self._path.exists()
        log.error("%s was %s; its content is written again", self._path, "replaced" if exists else "removed")
        copy = self._path.with_name(f"{self._path.name}.rescued-{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            self._hold_again()
            with contextlib.closing(sqlite3.connect(copy)) as target:
                old.backup(target)
            if not self._path.exists():
                self._remove_logs()
                copy.replace(self._path)
                self._drop_connection()
                self._open()
                return
            if _is_open_here(self._path.with_name(self._path.name + "-wal")):
                # The log of the old file must not be applied to the new one.
                self._remove_logs()
            self._drop_connection()
            self._open()
            self._copy_rows(copy)
            copy.unlink()
        except (sqlite3.Error, OSError) as error:
            fault = self._name_fault(error)
            raise StorageFault("vanished" if fault.kind == "unreachable" else fault.kind, str(error)) from error

    def _set_aside(self, fault: StorageFault) -> None:
        """Keep the damaged file under another name, and save into a new one what can be read."""
        self._drop_connection()
        aside = self._path.with_name(f"{self._path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}")
        try:
            for suffix in ("", "-wal", "-shm"):
                file = self._path.with_name(self._path.name + suffix)
                if file.exists():
                    file.rename(aside.with_name(aside.name + suffix))
            self._open()
            self._copy_rows(aside)
        except (sqlite3.Error, OSError) as error:
            raise self._name_fault(error) from error
        log.error("%s was damaged (%s); it is kept as %s, and %d rows were saved", self._path, fault.details, aside.name,
                  self.num_rescued)  # fmt: skip

    def _copy_rows(self, source: Path) -> None:
        if self._connection is None:
            return
        with contextlib.closing(sqlite3.connect(source)) as old:
            for table in TABLES:
                self.num_rescued += _copy_table(old, self._connection, table)

    def _remove_logs(self) -> None:
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def _free_bytes(self) -> float:
        try:
            found = os.statvfs(self._path.parent)
        except OSError:
            return float("inf")
        return float(found.f_bavail) * found.f_frsize

    def _name_fault(self, error: Exception) -> StorageFault:
        if isinstance(error, StorageFault):
            return error
        return StorageFault(self._kind_of(error), f"{type(error).__name__}: {error}")

    def _kind_of(self, error: Exception) -> str:
        code = getattr(error, "sqlite_errorcode", None)
        primary = None if code is None else code & 0xFF
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "malformed" in str(error):
            return "corrupt"
        if primary == sqlite3.SQLITE_FULL or getattr(error, "errno", None) in (28, 122):
            return "full"
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return "locked"
        if primary == sqlite3.SQLITE_READONLY or self._is_read_only():
            # SQLite says so too of a file that was removed under it.
            return "read-only" if self._path.exists() else "vanished"
        if self._free_bytes() < NEEDED_BYTES:
            return "full"
        return "unreachable"

    def _is_read_only(self) -> bool:
        try:
            return bool(os.statvfs(self._path.parent).f_flag & os.ST_RDONLY) or not os.access(
                self._path.parent, os.W_OK
            )
        except OSError:
            return False


def _is_open_here(path: Path) -> bool:
    """Whether this process has the file of this name open; where that cannot be told, it is taken to."""
    try:
        wanted = path.stat()
        descriptors = list(Path("/proc/self/fd").iterdir())
    except FileNotFoundError:
        return path.exists()
    for each in descriptors:
        with contextlib.suppress(OSError):
            found = each.stat()
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False


def _copy_table(old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> int:
    """Copy what can be read, from both ends towards a damaged place; rows that are there already stay."""
    try:
        names = [row[1] for row in old.execute(f"PRAGMA table_info({table})")]
        known = {row[1] for row in new.execute(f"PRAGMA table_info({table})")}
    except sqlite3.Error:
        return 0
    columns = [name for name in names if name in known]
    if not columns:
        return 0
    listed, marks = ", ".join(columns), ", ".join("?" for _ in columns)
    copied, seen = 0, [-(2**62), 2**62]
    for end, order, test in ((0, "ASC", "rowid > ?"), (1, "DESC", "rowid < ? AND rowid > ?")):
        while True:
            values = (seen[0],) if end == 0 else (seen[1], seen[0])
            query = f"SELECT rowid, {listed} FROM {table} WHERE {test} ORDER BY rowid {order} LIMIT 1"  # noqa: S608
            try:
                row = old.execute(query, values).fetchone()
            except sqlite3.Error:
                break
            if row is None:
                return copied
            seen[end] = row[0]
            with contextlib.suppress(sqlite3.IntegrityError):
                changed = new.execute(f"INSERT OR IGNORE INTO {table} ({listed}) VALUES ({marks})", row[1:])  # noqa: S608
                copied += changed.rowcount
    return copied


def read_graph(path: str, model: str, options: str) -> bytes | None:
    """The packed JSON of a recorded graph, for a worker that only reads."""
    try:
        with contextlib.closing(
            sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True, timeout=10)
        ) as db:
            row = db.execute("SELECT content FROM graphs WHERE model = ? AND options = ?", (model, options)).fetchone()
    except sqlite3.Error as error:
        raise StorageFault("unreachable", str(error)) from error
    return None if row is None else bytes(row[0])
