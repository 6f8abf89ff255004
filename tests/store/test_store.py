"""The measurement store keeps what it was given, whoever else writes and however a writer dies."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.errors import InvalidInput
from traincast.spec import Block, Environment, Experiment
from traincast.store import MIGRATIONS, Row, Store, export_table, import_table

MACHINE = Environment(device="test cpu", machine="here", software={"python": "3.11"}, settings={"threads": 1})

WRITER = """
import sys
from traincast.spec import Block, Environment, Experiment
from traincast.store import Store
path, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Store(path) as store:
    for number in range(count):
        experiment = Experiment(subject="operator", name="matmul", attrs={"writer": who, "number": number})
        environment = Environment(device="test cpu", machine="here")
        block = Block(started_at="2026-01-01T00:00:00", wall_s=(0.1, 0.2, 0.3), source=f"writer {who}")
        store.append(experiment, environment, block)
        print(number, flush=True)
"""


def matmul(**attrs: int | float | str | bool) -> Experiment:
    return Experiment(subject="operator", name="matmul", attrs=attrs or {"m": 8, "k": 8, "n": 8})


def block(*wall_s: float, at: str = "2026-01-01T00:00:00", **others: object) -> Block:
    return Block(started_at=at, wall_s=wall_s or (0.1, 0.3, 0.2), **others)  # type: ignore[arg-type]


def write_in_another_process(path: Path, who: str, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(path), who, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_block_comes_back_with_every_repeat(tmp_path: Path) -> None:
    given_block = block(
        0.1, 0.3, 0.2, cpu_s=(0.1, 0.1, 0.2), switches=(0, 5, 1), canary_s=0.01, resources={"rss_bytes": 5.0}
    )
    with Store(tmp_path / "m.db") as store:
        assert store.append(matmul(), MACHINE, given_block)
    with Store(tmp_path / "m.db") as store:
        (row,) = store.rows()
    assert row == (matmul(), MACHINE, given_block)


def test_the_same_block_is_kept_once(tmp_path: Path) -> None:
    with Store(tmp_path / "m.db") as store:
        assert store.append(matmul(), MACHINE, block())
        assert not store.append(matmul(), MACHINE, block())
        assert store.append(matmul(), MACHINE, block(at="2026-01-01T00:00:01"))
        assert store.counts() == {"experiments": 1, "environments": 1, "blocks": 2, "repeats": 6}


def test_blocks_of_one_experiment_become_one_measurement_with_a_median_of_medians(tmp_path: Path) -> None:
    with Store(tmp_path / "m.db") as store:
        for minute, seconds in enumerate((0.1, 0.11, 0.9)):
            store.append(matmul(), MACHINE, block(seconds, seconds, 5.0, at=f"2026-01-01T00:0{minute}:00"))
        (measurement,) = store.measurements()
    assert measurement.seconds == 0.11
    assert measurement.num_repeats == 9


def test_a_query_keeps_only_what_was_asked_for(tmp_path: Path) -> None:
    with Store(tmp_path / "m.db") as store:
        store.append(matmul(m=8), MACHINE, block())
        store.append(matmul(m=16), MACHINE, block())
        store.append(Experiment(subject="step", name="resnet-2", attrs={"batch": 4}), MACHINE, block(source="kineto:a"))
        assert [row[0].attrs["m"] for row in store.rows(subject="operator")] == [8, 16]
        assert [row[0].attrs["m"] for row in store.rows(attrs={"m": 16})] == [16]
        assert [row[0].name for row in store.rows(name="resnet*")] == ["resnet-2"]
        assert [row[0].name for row in store.rows(source="kineto:*")] == ["resnet-2"]
        assert list(store.rows(device="another")) == []
        with pytest.raises(InvalidInput, match=r"unknown subject 'steps'.*did you mean 'step'"):
            list(store.rows(subject="steps"))
        with pytest.raises(InvalidInput, match="not the name of an attribute"):
            list(store.rows(attrs={"m') = 8 OR ('1": 1}))


def test_the_file_itself_refuses_to_change_or_forget(tmp_path: Path) -> None:
    with Store(tmp_path / "m.db") as store:
        store.append(matmul(), MACHINE, block())
    database = sqlite3.connect(tmp_path / "m.db")
    for statement in (
        "DELETE FROM repeats",
        "UPDATE repeats SET wall_s = 0",
        "DELETE FROM blocks",
        "DELETE FROM experiments",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            database.execute(statement)
    database.close()


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    writers = [write_in_another_process(path, str(who), 25) for who in range(4)]
    for writer in writers:
        writer.communicate(timeout=240)
        assert writer.returncode == 0
    with Store(path) as store:
        store.check()
        assert store.counts()["blocks"] == 100
        assert store.counts()["repeats"] == 300


def test_a_writer_killed_in_the_middle_loses_nothing_it_had_finished(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    for attempt in range(3):
        writer = write_in_another_process(path, f"victim {attempt}", 1_000_000)
        assert writer.stdout is not None
        finished = [int(writer.stdout.readline()) for _ in range(5 + 7 * attempt)]
        os.kill(writer.pid, signal.SIGKILL)
        finished += [int(line) for line in writer.communicate()[0].splitlines()]
        assert writer.returncode == -signal.SIGKILL
        with Store(path) as store:
            store.check()
            kept = list(store.rows(attrs={"writer": f"victim {attempt}"}))
            numbers = [row[0].attrs["number"] for row in kept]
            # One more may have been committed just before its number was printed.
            assert numbers[: len(finished)] == finished
            assert len(numbers) <= len(finished) + 1
            assert all(len(row[2].wall_s) == 3 for row in kept)
            assert store.append(matmul(), MACHINE, block(at=f"attempt {attempt}"))


def test_a_writer_waits_for_a_lock_instead_of_failing(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with Store(path) as store:
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        writer = write_in_another_process(path, "patient", 1)
        time.sleep(1.5)
        assert writer.poll() is None
        blocker.execute("COMMIT")
        blocker.close()
        writer.communicate(timeout=240)
        assert writer.returncode == 0
        assert store.counts()["blocks"] == 1


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_an_older_file_is_lifted_to_the_present_schema_with_its_content(tmp_path: Path, version: int) -> None:
    path = tmp_path / "old.db"
    old = sqlite3.connect(path)
    old.executescript("".join(MIGRATIONS[:version]))
    old.execute(
        "INSERT INTO experiments VALUES (1, ?, 'operator', 'matmul', ?)", (matmul().key, json.dumps(matmul().attrs))
    )
    old.execute("INSERT INTO environments VALUES (1, 'k', 'cpu', 'm', '{}', '{}')")
    old.execute("INSERT INTO blocks VALUES (1, 'd', 1, 1, '2020', 'old', NULL, '{}')")
    old.execute("INSERT INTO repeats VALUES (1, 0, 0.5, NULL, NULL)")
    old.execute(f"PRAGMA user_version = {version}")
    old.execute(f"PRAGMA application_id = {0x74726373}")
    old.commit()
    old.close()
    with Store(path) as store:
        assert store.version == len(MIGRATIONS)
        ((experiment, _, kept),) = store.rows()
        assert (experiment, kept.wall_s, kept.cpu_s) == (matmul(), (0.5,), ())


def test_a_newer_file_is_refused_not_guessed(tmp_path: Path) -> None:
    Store(tmp_path / "m.db").close()
    database = sqlite3.connect(tmp_path / "m.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(InvalidInput, match="schema version 99"):
        Store(tmp_path / "m.db")


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all, just some text that is long enough\n" * 20)
    with pytest.raises(InvalidInput, match="cannot be opened"):
        Store(text)
    other = tmp_path / "other.db"
    database = sqlite3.connect(other)
    database.execute("CREATE TABLE cats (name TEXT)")
    database.commit()
    database.close()
    with pytest.raises(InvalidInput, match="not a measurement store"):
        Store(other)
    with pytest.raises(InvalidInput, match="there is no measurement store"):
        Store(tmp_path / "absent.db", create=False)


def test_merging_twice_is_the_same_as_once(tmp_path: Path) -> None:
    with Store(tmp_path / "a.db") as first, Store(tmp_path / "b.db") as second:
        first.append(matmul(m=1), MACHINE, block())
        second.append(matmul(m=1), MACHINE, block())
        second.append(matmul(m=2), MACHINE, block())
    with Store(tmp_path / "a.db") as first:
        assert first.merge(tmp_path / "b.db") == 1
        assert first.merge(tmp_path / "b.db") == 0
        assert first.counts()["blocks"] == 2


seconds = st.floats(min_value=0, max_value=1e6, allow_nan=False)


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[Experiment, Environment, Block]]:
    result = []
    for number in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 4))
        times = tuple(draw(st.lists(seconds, min_size=count, max_size=count)))
        switches = tuple(draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count)))
        attrs = {
            "number": number,
            "text": draw(st.text(max_size=8)),
            "flag": draw(st.booleans()),
            "ratio": draw(seconds),
        }
        result.append(
            (
                Experiment(subject="step", name="any", attrs=attrs),
                Environment(device="cpu", machine=draw(st.text(max_size=5)), settings={"quota": draw(seconds)}),
                Block(
                    started_at=f"2026-01-01T00:00:0{number}",
                    wall_s=times,
                    cpu_s=draw(st.sampled_from([(), times])),
                    switches=draw(st.sampled_from([(), switches])),
                    canary_s=draw(st.none() | seconds),
                    resources={"sent_bytes": draw(seconds)},
                ),
            )
        )
    return result


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@given(given_rows=rows())
@settings(max_examples=25, deadline=None)
def test_a_table_brings_every_number_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, given_rows: list[tuple[Experiment, Environment, Block]]
) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path_factory.mktemp("table") / f"rows.{suffix}"
    export_table(given_rows, path)
    assert import_table(path) == given_rows


def test_a_table_imported_into_the_store_it_came_from_adds_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "m.db") as store:
        store.append(matmul(), MACHINE, block(resources={"rss_bytes": 3}))
        assert export_table(store.rows(), tmp_path / "t.csv") == 3
        assert store.append_all(import_table(tmp_path / "t.csv")) == 0


def test_a_table_without_the_right_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInput, match="lacks the columns subject"):
        import_table(tmp_path / "t.csv")
    with pytest.raises(InvalidInput, match=r"must end in \.csv or \.parquet"):
        import_table(tmp_path / "t.xls")


def test_a_full_disk_keeps_what_was_there_and_says_what_to_do(tmp_path: Path) -> None:
    with Store(tmp_path / "m.db") as store:
        row = make_row(1)
        store.append(*row)
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(InvalidInput, match=r"cannot be written: .* full; what it held before is kept"):
            store.append_all(make_row(number) for number in range(2, 4000))
        assert store.counts()["blocks"] == 1
        store._db.execute("PRAGMA max_page_count = 100000")
        assert store.append_all(make_row(number) for number in range(2, 50)) == 48


def test_a_damaged_store_is_told_from_an_empty_one(tmp_path: Path) -> None:
    with Store(tmp_path / "m.db") as store:
        store.append_all(make_row(number) for number in range(400))
    content = bytearray((tmp_path / "m.db").read_bytes())
    content[8192:-8192] = b"\xff" * (len(content) - 16384)
    (tmp_path / "m.db").write_bytes(content)
    with Store(tmp_path / "m.db") as store:
        with pytest.raises(InvalidInput, match=r"cannot be read|damaged"):
            store.check()
        with pytest.raises(InvalidInput, match=r"cannot be read"):
            list(store.rows())


def test_an_export_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    export_table([make_row(1)], path)
    before = path.read_text()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InvalidInput, match="No space left"):
        export_table([make_row(1), make_row(2)], path)
    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["t.csv"]


def make_row(number: int) -> Row:
    return (
        Experiment(subject="operator", name="matmul", attrs={"m": number}),
        Environment(device="cpu"),
        Block(started_at="2024-01-01T00:00:00", wall_s=(1e-3 * (number + 1), 2e-3)),
    )
