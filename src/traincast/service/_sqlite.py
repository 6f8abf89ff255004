"""One SQLite file as the service's database: owned by one process, watched while it is used, faults told apart."""

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from traincast.errors import InvalidInput
from traincast.service._faults import StorageFault, Unstorable
from traincast.service._state import ADDED_COLUMNS, SCHEMA, TABLES, Execute

log = logging.getLogger("traincast.service")

BUSY_TIMEOUT_S = 2.0
NEEDED_BYTES = 64 * 1024
"""A disk with less room than this is called full before a write fails."""
MAGIC = b"SQLite format 3\0"
APPLICATION = 0x7472_6373
HEADER_BYTES = 100
DATA_ERRORS = (sqlite3.DataError, sqlite3.ProgrammingError, sqlite3.InterfaceError, UnicodeError, OverflowError)


class SqliteDatabase:
    """The embedded default.

    An owner holds a lock on the file itself (its inode, whatever names it has) and writes a number of its own, the
    generation, into its header. Before each change it looks whether the path still is this file with this header: a file that
    was replaced, cut or overwritten takes no more changes, and what could still be read of it is saved beside it.
    """

    name = "sqlite"

    def __init__(self, path: Path, *, is_owner: bool = True) -> None:
        # One name for the file and its log, however it was reached.
        self._path = path.resolve()
        self._connection: sqlite3.Connection | None = None
        self._file: int | None = None
        self._generation = secrets.randbits(30) + 1
        self._damage: StorageFault | None = None
        self._rescued: Path | None = None
        self.num_rescued = 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if is_owner:
                self._hold()
                if self._list_rescued() and not _looks_ours(self._path):
                    self._mend("it was removed or overwritten")
            try:
                self._open()
            except StorageFault as fault:
                if fault.kind != "corrupt" or not is_owner or not _looks_ours(self._path):
                    raise
                self._mend(fault.details)
                self._open()
        except (OSError, StorageFault) as error:
            self.close()
            details = f": {error.details}" if isinstance(error, StorageFault) else ""
            raise InvalidInput(f"cannot keep the service's state in {path}: {error}{details}") from error

    @contextlib.contextmanager
    def transaction(self, *, changes: bool = True) -> Iterator[Execute]:
        try:
            if changes:
                self._check_file()
            connection = self._connection or self._open()
            connection.execute("BEGIN IMMEDIATE" if changes else "BEGIN")
            try:
                yield connection.execute
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
        except DATA_ERRORS as error:
            raise Unstorable(f"this cannot be stored: {error}") from error
        except (sqlite3.Error, OSError) as error:
            fault = self._name_fault(error)
            if fault.kind == "corrupt":
                self._damage = fault
                self._rescue(fault)
            raise fault from error

    def check_room(self) -> None:
        if self._free_bytes() < NEEDED_BYTES:
            raise StorageFault("full", f"{self._free_bytes():,.0f} bytes are free beside {self._path}")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        # Last: to close any descriptor of the file ends the locks that SQLite holds on it.
        if self._file is not None:
            os.close(self._file)
            self._file = None

    # One owner.

    def _hold(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise InvalidInput(
                f"{self._path} is in use by another service; stop that one, or choose another --state"
            ) from error
        if os.fstat(self._file).st_nlink > 1:
            self.close()
            raise InvalidInput(
                f"{self._path} has another name (a hard link), under which its log would not be found; remove that name"
            )

    def _open(self) -> sqlite3.Connection:
        with contextlib.ExitStack() as undo:
            try:
                connection = sqlite3.connect(
                    self._path, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False
                )
                undo.callback(connection.close)
                self._path.chmod(0o600)
                self._prepare(connection)
            except (sqlite3.Error, OSError) as error:
                raise self._name_fault(error) from error
            undo.pop_all()
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        _make_tables(connection)
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("database disk image is malformed")
        if self._file is not None:
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {self._generation}")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # A file that is watched.

    def _check_file(self) -> None:
        """Whether the path still is the file that was opened, with its header, and not shorter than that says."""
        if self._file is None:
            return
        if self._damage is not None:
            raise StorageFault(self._damage.kind, self._damage.details)
        if self._is_read_only():
            raise StorageFault("read-only", f"{self._path.parent} is read-only")
        held = os.fstat(self._file)
        try:
            found = self._path.stat()
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            fault = StorageFault("replaced", f"{self._path} was {'removed' if found is None else 'replaced'}")
            self._rescue(fault)
            raise fault
        header = os.pread(self._file, HEADER_BYTES, 0)
        if not self._is_mine(header, held.st_size):
            self._damage = StorageFault("corrupt", f"the header of {self._path} is not the one that was written")
            self._rescue(self._damage)
            raise self._damage

    def _is_mine(self, header: bytes, size: int) -> bool:
        if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
            return False
        page_bytes, num_pages = struct.unpack_from(">H", header, 16)[0], struct.unpack_from(">I", header, 28)[0]
        marks = struct.unpack_from(">I", header, 60)[0], struct.unpack_from(">I", header, 68)[0]
        return marks == (self._generation, APPLICATION) and size >= num_pages * (
            65536 if page_bytes == 1 else page_bytes
        )

    def _rescue(self, fault: StorageFault) -> None:
        """Save beside the file, once, what this process still reads of it, and the log."""
        if self._rescued is not None or self._connection is None:
            return
        self._rescued = self._path.with_name(f"{self._path.name}.rescued-{time.strftime('%Y%m%dT%H%M%S')}")
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(f"{self._path}-wal", f"{self._rescued}.log")
            self.num_rescued += _copy_tables(self._connection, self._rescued)
        except (sqlite3.Error, OSError) as error:
            log.error("what %s held could not be saved: %s", self._path, error)
        log.error("%s; no more is written to it, and %d rows of it are saved in %s", fault.details, self.num_rescued,
                  self._rescued)  # fmt: skip

    def _mend(self, why: str) -> None:
        """At a start: keep a damaged file under another name, and begin a new one with what was rescued and can be read."""
        stamp = f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        aside = self._path.with_name(f"{self._path.name}.damaged-{stamp}")
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}{suffix}").rename(f"{aside}{suffix}")
        self.close()
        self._hold()
        for source in (*self._list_rescued(), aside):
            if _looks_ours(source):
                with contextlib.closing(sqlite3.connect(source)) as old:
                    self.num_rescued = _copy_tables(old, self._path)
        for source in self._list_rescued():
            source.rename(source.with_name(source.name.replace(".rescued-", ".used-")))
        log.error("%s was damaged (%s); %d rows were saved, and it is kept as %s", self._path, why, self.num_rescued,
                  aside.name)  # fmt: skip

    def _list_rescued(self) -> list[Path]:
        found = self._path.parent.glob(f"{self._path.name}.rescued-*")
        return sorted((each for each in found if _looks_ours(each)), key=lambda each: -each.stat().st_mtime)

    # Faults told apart.

    def _free_bytes(self) -> float:
        with contextlib.suppress(OSError):
            return float(shutil.disk_usage(self._path.parent).free)
        return float("inf")

    def _name_fault(self, error: Exception) -> StorageFault:
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
            return "read-only" if self._path.exists() else "replaced"
        return "full" if self._free_bytes() < NEEDED_BYTES else "unreachable"

    def _is_read_only(self) -> bool:
        # The system refuses this on a file system that is read-only to whomever it is.
        return self._path.parent.exists() and not os.access(self._path.parent, os.W_OK)


def _looks_ours(path: Path) -> bool:
    """Never set aside what is not a state file, such as one named by mistake."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in SCHEMA:
        connection.execute(statement)
    for table, column, kind in ADDED_COLUMNS:
        if column not in _columns(connection, table):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _copy_tables(old: sqlite3.Connection, into: Path) -> int:
    """Copy the rows that can be read, from both ends of each table towards a damaged place; their number."""
    with contextlib.closing(sqlite3.connect(into, isolation_level=None)) as new:
        into.chmod(0o600)
        _make_tables(new)
        new.execute("BEGIN")
        for table in TABLES:
            with contextlib.suppress(sqlite3.Error):
                columns = [name for name in _columns(old, table) if name in _columns(new, table)]
                listed, marks = ", ".join(columns), ", ".join("?" for _ in columns)
                for order in ("ASC", "DESC"):
                    with contextlib.suppress(sqlite3.Error):
                        for row in old.execute(f"SELECT {listed} FROM {table} ORDER BY rowid {order}"):  # noqa: S608
                            new.execute(f"INSERT OR IGNORE INTO {table} ({listed}) VALUES ({marks})", row)  # noqa: S608
                        break
        new.execute("COMMIT")
        return sum(new.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)  # noqa: S608
