"""Measurements in one SQLite file: append-only, every repeat, safe under concurrent writers and sudden death."""

import contextlib
import csv
import hashlib
import importlib
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput, MissingExtra, UnknownName
from traincast.files import decode, read_json
from traincast.spec import SUBJECTS, Block, Environment, Experiment, Measurement, collect

Row = tuple[Experiment, Environment, Block]

BUSY_TIMEOUT_S = 60.0
_DAMAGED = (sqlite3.DatabaseError, UnicodeDecodeError)
"""A damaged file may give SQLite's own sentence about it letters that are none."""
APPLICATION_ID = 0x7472_6373  # "trcs": tells our files from other SQLite files

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE experiments (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, subject TEXT NOT NULL, name TEXT NOT NULL, attrs TEXT NOT NULL
    ) STRICT;
    CREATE TABLE environments (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, device TEXT NOT NULL, machine TEXT NOT NULL,
        software TEXT NOT NULL, settings TEXT NOT NULL
    ) STRICT;
    CREATE TABLE blocks (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE,
        experiment INTEGER NOT NULL REFERENCES experiments, environment INTEGER NOT NULL REFERENCES environments,
        started_at TEXT NOT NULL, source TEXT NOT NULL, canary_s REAL, resources TEXT NOT NULL
    ) STRICT;
    CREATE TABLE repeats (
        block INTEGER NOT NULL REFERENCES blocks, position INTEGER NOT NULL,
        wall_s REAL NOT NULL, cpu_s REAL, switches INTEGER, PRIMARY KEY (block, position)
    ) STRICT, WITHOUT ROWID;
    """,
    # Append-only is a promise of the file, not of this program: SQL from anywhere else is refused too.
    "".join(
        f"CREATE TRIGGER {table}_never_{verb.lower()} BEFORE {verb} ON {table} BEGIN "
        f"SELECT RAISE(ABORT, 'the store is append-only'); END;\n"
        for table in ("experiments", "environments", "blocks", "repeats")
        for verb in ("UPDATE", "DELETE")
    ),
    """
    CREATE INDEX blocks_by_experiment ON blocks (experiment, environment);
    CREATE INDEX experiments_by_name ON experiments (subject, name);
    """,
)
"""Each entry lifts a file from one schema version to the next; entries are only ever added."""

COLUMNS = (
    "subject", "name", "attrs", "device", "machine", "software", "settings",
    "started_at", "source", "canary_s", "resources", "block", "position", "wall_s", "cpu_s", "switches",
)  # fmt: skip
"""Of an exported table: one row per repeat."""


class Store:
    """An open measurement file. Blocks are added whole or not at all, and never twice."""

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        self.path = Path(path)
        if not create and not self.path.exists():
            raise InvalidInput(
                f"there is no measurement store {self.path}; make one with: traincast profile --store {path}"
            )
        try:
            self._db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        except sqlite3.DatabaseError as error:
            raise InvalidInput(f"{self.path} cannot be opened as a measurement store: {error}") from error
        try:
            self._migrate()
        except BaseException as error:
            # A connection that nobody holds would keep its locks.
            self._db.close()
            if isinstance(error, _DAMAGED):
                raise InvalidInput(f"{self.path} cannot be opened as a measurement store: {error}") from error
            raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    @property
    def version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def append(self, experiment: Experiment, environment: Environment, block: Block) -> bool:
        """Add one block; False where the store already holds it."""
        return self.append_all([(experiment, environment, block)]) == 1

    def append_all(self, rows: Iterable[Row]) -> int:
        """Add blocks in one transaction; how many were new."""
        with self._transaction():
            return sum(self._insert(*row) for row in rows)

    def rows(
        self,
        *,
        subject: str | None = None,
        name: str | None = None,
        device: str | None = None,
        machine: str | None = None,
        source: str | None = None,
        since: str | None = None,
        attrs: Mapping[str, object] | None = None,
    ) -> Iterator[Row]:
        """Blocks that match everything asked for, oldest first. `name` and `source` may hold * as in file names."""
        if subject is not None and subject not in SUBJECTS:
            raise UnknownName("subject", subject, SUBJECTS)
        tests: dict[str, object] = {
            "subject = ?": subject, "name GLOB ?": name, "device = ?": device, "machine = ?": machine,
            "source GLOB ?": source, "started_at >= ?": since,
        }  # fmt: skip
        wanted = {test: value for test, value in tests.items() if value is not None}
        for key, value in (attrs or {}).items():
            if not re.fullmatch(r"\w+", key):
                raise InvalidInput(f"{key!r} is not the name of an attribute; use letters, digits and _")
            wanted[f"json_extract(attrs, '$.{key}') = ?"] = value
        yield from self._read(" AND ".join(wanted) or "1", list(wanted.values()))

    def measurements(self, **wanted: Any) -> tuple[Measurement, ...]:
        """What `rows` would give, blocks of one experiment in one environment together."""
        return collect(self.rows(**wanted))

    def num_blocks(self, experiment: Experiment, environment: Environment) -> int:
        """How often this was visited already: what a resumed run need not repeat."""
        found = self._query(
            "SELECT count(*) FROM blocks JOIN experiments ON experiments.id = experiment "
            "JOIN environments ON environments.id = environment WHERE experiments.key = ? AND environments.key = ?",
            (experiment.key, environment.key),
        )
        return int(found[0][0])

    def counts(self) -> dict[str, int]:
        tables = ("experiments", "environments", "blocks", "repeats")
        return {name: int(self._query(f"SELECT count(*) FROM {name}")[0][0]) for name in tables}  # noqa: S608

    def check(self) -> None:
        """Refuse a damaged file."""
        verdict = [str(row[0]) for row in self._query("PRAGMA integrity_check")]
        orphans = self._query("PRAGMA foreign_key_check")
        if verdict != ["ok"] or orphans:
            raise InvalidInput(
                f"{self.path} is damaged: {'; '.join(verdict)}, {len(orphans)} rows without their parent"
            )

    def merge(self, other: str | os.PathLike[str]) -> int:
        """Add every block of another store that this one lacks."""
        with Store(other, create=False) as source:
            return self.append_all(source.rows())

    def _migrate(self) -> None:
        self._db.execute("PRAGMA foreign_keys = ON")
        if self.version < len(MIGRATIONS):
            self._use_write_ahead_log()
            with self._transaction():
                # Read again inside the lock: another process may have migrated meanwhile.
                start = self.version
                if start == 0:
                    self._refuse_foreign_file()
                    self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                for statements in MIGRATIONS[start:]:
                    for statement in _split(statements):
                        self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {max(start, len(MIGRATIONS))}")
        if self.version > len(MIGRATIONS):
            raise InvalidInput(
                f"{self.path} has schema version {self.version}, this program knows {len(MIGRATIONS)}; upgrade it"
            )
        if self._db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise InvalidInput(f"{self.path} is an SQLite file but not a measurement store")
        # A commit must survive the loss of power, too; blocks are seconds apart, so the price is nothing.
        self._db.execute("PRAGMA synchronous = FULL")

    def _use_write_ahead_log(self) -> None:
        # Changing the journal does not wait for other writers by itself; losing that race is harmless.
        with contextlib.suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA journal_mode = WAL")

    def _refuse_foreign_file(self) -> None:
        if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise InvalidInput(f"{self.path} is an SQLite file but not a measurement store")

    def _query(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except _DAMAGED as error:
            raise InvalidInput(
                f"{self.path} cannot be read: {error}; try: traincast store check {self.path}"
            ) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                # A full disk may have rolled back already.
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            raise InvalidInput(
                f"{self.path} cannot be written: {error}; what it held before is kept, and the same command goes on from there"
            ) from error

    def _insert(self, experiment: Experiment, environment: Environment, block: Block) -> bool:
        digest = digest_of(experiment, environment, block)
        if self._db.execute("SELECT 1 FROM blocks WHERE digest = ?", (digest,)).fetchone():
            return False
        experiment_id = self._identify(
            "experiments",
            experiment.key,
            subject=experiment.subject,
            name=experiment.name,
            attrs=_text(experiment.attrs),
        )
        environment_id = self._identify(
            "environments", environment.key, device=environment.device, machine=environment.machine,
            software=_text(environment.software), settings=_text(environment.settings),
        )  # fmt: skip
        added = self._db.execute(
            "INSERT INTO blocks (digest, experiment, environment, started_at, source, canary_s, resources) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                digest,
                experiment_id,
                environment_id,
                block.started_at,
                block.source,
                block.canary_s,
                _text(block.resources),
            ),
        )
        num_repeats = len(block.wall_s)
        columns = (block.wall_s, block.cpu_s or (None,) * num_repeats, block.switches or (None,) * num_repeats)
        self._db.executemany(
            "INSERT INTO repeats (block, position, wall_s, cpu_s, switches) VALUES (?, ?, ?, ?, ?)",
            [(added.lastrowid, position, *values) for position, values in enumerate(zip(*columns, strict=True))],
        )
        return True

    def _identify(self, table: str, key: str, **columns: str) -> int:
        found = self._db.execute(f"SELECT id FROM {table} WHERE key = ?", (key,)).fetchone()  # noqa: S608
        if found:
            return int(found[0])
        names, marks = ", ".join(columns), ", ".join("?" for _ in columns)
        added = self._db.execute(
            f"INSERT INTO {table} (key, {names}) VALUES (?, {marks})",  # noqa: S608
            (key, *columns.values()),
        )
        return int(added.lastrowid or 0)

    def _read(self, where: str, values: Sequence[object]) -> Iterator[Row]:
        columns = f"blocks.id, {', '.join(COLUMNS[:11])}"
        tables = (
            "blocks JOIN experiments ON experiments.id = experiment JOIN environments ON environments.id = environment"
        )
        blocks = self._query(f"SELECT {columns} FROM {tables} WHERE {where} ORDER BY blocks.id", values)  # noqa: S608
        for number, *head in blocks:
            repeats = self._query(
                "SELECT wall_s, cpu_s, switches FROM repeats WHERE block = ? ORDER BY position", (number,)
            )
            yield _row(head, repeats)


def digest_of(experiment: Experiment, environment: Environment, block: Block) -> str:
    """The same text for the same block, wherever it comes from: what makes merging twice harmless."""
    resources = {name: float(value) for name, value in block.resources.items()}
    times = [[float(value) for value in values] for values in (block.wall_s, block.cpu_s, block.switches)]
    canary_s = None if block.canary_s is None else float(block.canary_s)
    parts = [experiment.key, environment.key, block.started_at, block.source, times, canary_s, resources]
    content = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def export_table(rows: Iterable[Row], path: str | os.PathLike[str]) -> int:
    """Write one line per repeat to a .csv or .parquet file; how many lines."""
    lines = [line for row in rows for line in _lines(*row)]
    suffix = Path(path).suffix
    if suffix == ".csv":
        _write_csv(lines, Path(path))
    elif suffix == ".parquet":
        arrow = _load("pyarrow")
        parquet = _load("pyarrow.parquet")
        columns = {name: [line[position] for line in lines] for position, name in enumerate(COLUMNS)}
        types = {"canary_s": "double", "wall_s": "double", "cpu_s": "double", "position": "int64", "switches": "int64"}
        schema = arrow.schema([(name, arrow.type_for_alias(types.get(name, "string"))) for name in COLUMNS])
        with _replacing(Path(path)) as temporary:
            parquet.write_table(arrow.table(columns, schema=schema), temporary, compression="zstd")
    else:
        raise InvalidInput(f"cannot export to {path}; the name must end in .csv or .parquet")
    return len(lines)


def import_table(path: str | os.PathLike[str]) -> list[Row]:
    """Read back what `export_table` wrote."""
    suffix = Path(path).suffix
    if suffix == ".parquet":
        lines = _read_parquet(Path(path))
    elif suffix == ".csv":
        lines = _read_csv(Path(path))
    else:
        raise InvalidInput(f"cannot import {path}; the name must end in .csv or .parquet")
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault(str(line["block"]), []).append(line)
    try:
        return [_row_from_lines(group) for group in groups.values()]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{path} is not a table of measurements: {error}") from error


def read_kineto(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A trace of the PyTorch profiler and its complete events, each with a name, a category, a start and a duration."""
    trace = read_json(path)
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        raise InvalidInput(f"{path} is not a Kineto trace: it has no list 'traceEvents'")
    return trace, [event for event in events if isinstance(event, dict) and _is_complete(event)]


def _is_complete(event: Mapping[str, Any]) -> bool:
    # The first two tests leave out numbers of any size that no clock gives; the last, arguments that are no table.
    times = (event.get("ts"), event.get("dur"))
    return (
        event.get("ph") == "X"
        and all(isinstance(time, (int, float)) and abs(time) < 1e18 for time in times)
        and isinstance(event.get("args") or {}, dict)
    )


def _row(head: Sequence[Any], repeats: Sequence[Sequence[Any]]) -> Row:
    subject, name, attrs, device, machine, software, settings, started_at, source, canary_s, resources = head
    cpu_s = tuple(repeat[1] for repeat in repeats)
    switches = tuple(repeat[2] for repeat in repeats)
    block = {
        "started_at": started_at, "source": source, "canary_s": canary_s, "resources": json.loads(resources),
        "wall_s": [repeat[0] for repeat in repeats],
        "cpu_s": () if None in cpu_s else cpu_s,
        "switches": () if None in switches else switches,
    }  # fmt: skip
    return (
        decode(Experiment, {"subject": subject, "name": name, "attrs": json.loads(attrs)}),
        decode(
            Environment,
            {"device": device, "machine": machine, "software": json.loads(software), "settings": json.loads(settings)},
        ),
        decode(Block, block),
    )


def _lines(experiment: Experiment, environment: Environment, block: Block) -> Iterator[tuple[Any, ...]]:
    head = (
        experiment.subject, experiment.name, _text(experiment.attrs), environment.device, environment.machine,
        _text(environment.software), _text(environment.settings), block.started_at, block.source, block.canary_s,
        _text(block.resources), digest_of(experiment, environment, block),
    )  # fmt: skip
    for position, wall_s in enumerate(block.wall_s):
        cpu_s = block.cpu_s[position] if block.cpu_s else None
        switches = block.switches[position] if block.switches else None
        yield (*head, position, wall_s, cpu_s, switches)


def _row_from_lines(lines: list[dict[str, Any]]) -> Row:
    lines.sort(key=lambda line: int(line["position"]))
    head = [lines[0][name] for name in COLUMNS[:11]]
    head[9] = _number(head[9])
    repeats = [(float(line["wall_s"]), _number(line["cpu_s"]), _number(line["switches"])) for line in lines]
    return _row(head, repeats)


def _write_csv(lines: Sequence[Sequence[Any]], path: Path) -> None:
    with _replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        writer.writerows(
            [
                ["" if value is None else repr(value) if isinstance(value, float) else value for value in line]
                for line in lines
            ]
        )


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write beside the real one, which it replaces when all of it is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _read_csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            lines, names = list(reader), reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from error
    _require_columns(path, names)
    return lines


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    parquet = _load("pyarrow.parquet")
    try:
        table = parquet.read_table(path)
        _require_columns(path, table.schema.names)
        return list(table.to_pylist())
    except (OSError, ValueError, NotImplementedError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from error


def _require_columns(path: Path, names: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise InvalidInput(f"{path} is not a table of measurements: it lacks the columns {', '.join(missing)}")


def _number(value: Any) -> Any:
    """Foreign cells: empty text and None are unknown, a text of digits a whole number."""
    if value is None or value == "":
        return None
    return value if not isinstance(value, str) else int(value) if re.fullmatch(r"-?\d+", value) else float(value)


def _text(mapping: Mapping[str, Any]) -> str:
    return json.dumps(dict(mapping), sort_keys=True)


def _split(statements: str) -> Iterator[str]:
    """Single statements; sqlite3.executescript would end the transaction around them."""
    pending = ""
    for line in statements.splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra("pyarrow", "tables", "reading and writing parquet") from error
