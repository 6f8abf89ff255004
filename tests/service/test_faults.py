"""Faults of storage on real files: the queue goes on by itself, callers are told, nothing acknowledged is lost."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.conftest import PATIENCE_S, SMALL, Reply, Running, start, wait_until
from service.test_jobs import SCHEDULE
from traincast.__main__ import main
from traincast.service import _storage as storage_module
from traincast.service._faults import StorageFault
from traincast.service._sqlite import SqliteDatabase
from traincast.service._state import State

DISK_BYTES = 3 * 2**20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs the rights of root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    file = disk / "filling"
    with file.open("wb", buffering=0) as stream:
        for size in (2**16, 2**12, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(b"\0" * size)
    yield
    file.unlink()


def metric(running: Running, line: str) -> float:
    found = [each for each in running.get("/metrics").body.splitlines() if each.startswith(line)]
    return float(found[0].rsplit(" ", 1)[1])


def ask_many(running: Running, count: int) -> tuple[list[str], list[Reply]]:
    """The jobs that were promised, and the refusals."""
    # A trace as text makes the request large enough to matter on a small disk.
    text = "job_id,submit_s,num_gpus,duration_s\n" + "".join(f"job-{n},{n},1,60\n" for n in range(1500))
    replies = [
        running.post("/schedule", {**SCHEDULE, "policies": ["fifo"], "trace": {"text": text}}) for _ in range(count)
    ]
    assert {reply.status for reply in replies} <= {202, 503}
    return [reply.body["id"] for reply in replies if reply.status == 202], [
        each for each in replies if each.status == 503
    ]


def test_a_full_disk_stops_nothing_for_longer_than_it_lasts(disk: Path) -> None:
    running = start(disk / "state.db", "--workers", "1")
    try:
        promised, _ = ask_many(running, 2)
        with filled(disk):
            more, refused = ask_many(running, 20)
            assert refused, "a full disk took twenty jobs"
            reply = refused[0]
            assert (reply.body["reason"], reply.headers["retry-after"]) == ("full", "5")
            assert "disk" in reply.error
            health = running.get("/health")
            assert (health.status, health.body["status"], health.body["storage"]["fault"]) == (503, "failing", "full")
            assert running.get("/ready").status == 503
            assert running.get("/live").status == 200
            assert running.post("/forecast", SMALL).status == 200
            assert metric(running, 'traincast_storage_faults_total{kind="full"}') > 0
        wait_until(lambda: running.get("/health").status == 200)
        for job in [*promised, *more, *ask_many(running, 1)[0]]:
            assert running.finish(job).body["state"] == "done"
        assert running.get("/health").body["queue"]["runners_alive"] == 2
    finally:
        running.stop()


def test_a_place_that_turns_read_only_keeps_results_readable_and_the_queue_goes_on_after(
    disk: Path, tmp_path: Path
) -> None:
    running = start(disk / "state.db", "--workers", "1")
    try:
        done = running.post("/schedule", SCHEDULE).body["id"]
        running.finish(done)
        copy = tmp_path / "copy"
        shutil.copytree(disk, copy)
        subprocess.run(["mount", "--bind", str(copy), str(disk)], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", str(disk)], check=True)
        refused = running.post("/schedule", SCHEDULE)
        assert (refused.status, refused.body["reason"]) == (503, "read-only")
        assert running.get(f"/jobs/{done}").body["state"] == "done"
        assert running.get("/health").body["storage"] == {"backend": "sqlite", "writable": False, "fault": "read-only"}
        subprocess.run(["umount", str(disk)], check=True)
        wait_until(lambda: running.get("/ready").status == 200)
        assert running.finish(running.post("/schedule", SCHEDULE).body["id"]).body["state"] == "done"
    finally:
        running.stop()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A service whose file the tests below may harm."""
    state = tmp_path_factory.mktemp("harmed") / "deep" / "state.db"
    running = start(state, "--workers", "1")
    yield running, state
    running.stop()


def test_a_locked_file_is_waited_for_and_named(one: tuple[Running, Path]) -> None:
    running, state = one
    done = running.post("/schedule", SCHEDULE).body["id"]
    assert running.finish(done).body["state"] == "done"
    with contextlib.closing(sqlite3.connect(state, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        refused = running.post("/schedule", SCHEDULE)
        assert (refused.status, refused.body["reason"]) == (503, "locked")
        assert running.post("/schedule", SCHEDULE).status == 503
        assert running.get("/live").status == 200
        other.execute("ROLLBACK")
    wait_until(lambda: running.get("/health").status == 200)
    assert running.finish(running.post("/schedule", SCHEDULE).body["id"]).body["state"] == "done"


HARMS = {
    "removed": lambda state: state.unlink(),
    "its folder removed": lambda state: shutil.rmtree(state.parent),
    "replaced": lambda state: (
        state.with_name("other").write_bytes(state.read_bytes()),
        state.with_name("other").replace(state),
    ),
    "cut to nothing": lambda state: os.truncate(state, 0),
    "overwritten": lambda state: state.write_bytes(os.urandom(20_000)),
    "an older copy in its place": lambda state: state.write_bytes(state.with_name("older").read_bytes()),
}


@pytest.mark.parametrize("harm", list(HARMS))
def test_a_file_that_is_harmed_while_it_is_used_takes_no_more_jobs_and_loses_none(tmp_path: Path, harm: str) -> None:
    """Noticed at the next write; what the service still held is beside the file, and the next start takes it over."""
    state = tmp_path / "deep" / "state.db"
    state.parent.mkdir()
    make_state(state).close()
    shutil.copyfile(state, state.with_name("older"))
    running = start(state, "--workers", "1")
    try:
        jobs = [running.finish(running.post("/schedule", SCHEDULE).body["id"]).body["id"] for _ in range(2)]
        before = {job: running.get(f"/jobs/{job}").body for job in jobs}
        HARMS[harm](state)
        refused = running.post("/schedule", SCHEDULE)
        assert refused.status == 503
        assert refused.body["reason"] in ("replaced", "corrupt")
        assert "start the service again" in refused.error
        health = running.get("/health")
        assert (health.status, health.body["storage"]["writable"]) == (503, False)
        assert running.post("/forecast", SMALL).status == 200
        assert running.get("/live").status == 200
    finally:
        running.stop()
    if harm == "its folder removed":
        return
    assert list(state.parent.glob("state.db.rescued-*")), "nothing was saved"
    if harm in ("replaced", "an older copy in its place"):
        # A sound file of somebody's choice is not thrown away for ours.
        return
    running = start(state, "--workers", "1")
    try:
        assert {job: running.get(f"/jobs/{job}").body for job in jobs} == before
        assert running.post("/schedule", SCHEDULE).status == 202
    finally:
        running.stop()


def test_a_damaged_page_stops_the_promises_and_a_start_saves_what_can_be_read(tmp_path: Path) -> None:
    state = tmp_path / "state.db"
    running = start(state, "--workers", "1")
    try:
        done = running.post("/schedule", SCHEDULE).body["id"]
        before = running.finish(done).body
    finally:
        running.stop()
    with contextlib.closing(sqlite3.connect(state)) as flush:
        page_bytes = flush.execute("PRAGMA page_size").fetchone()[0]
        root = flush.execute("SELECT rootpage FROM sqlite_master WHERE name = 'jobs_by_state'").fetchone()[0]
    with state.open("r+b") as file:
        file.seek((root - 1) * page_bytes)
        file.write(os.urandom(page_bytes))
    running = start(state, "--workers", "1")
    try:
        assert list(state.parent.glob("state.db.damaged-*")), "the damaged file is not kept"
        assert running.get(f"/jobs/{done}").body == before
        assert metric(running, "traincast_storage_rescued_rows_total") > 0
        assert running.get("/health").status == 200
    finally:
        running.stop()


@pytest.mark.parametrize("way", ["the same path", "a symbolic link", "a hard link"])
def test_a_second_service_on_one_file_is_refused_however_it_is_named(
    one: tuple[Running, Path], tmp_path: Path, way: str
) -> None:
    _, state = one
    named = state if way == "the same path" else state.with_name(way.replace(" ", "-"))
    if way == "a symbolic link":
        named.symlink_to(state)
    elif way == "a hard link":
        os.link(state, named)
    command = [sys.executable, "-m", "traincast", "serve", "--port", "0", "--state", str(named)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if named != state:
        named.unlink()
    assert second.returncode == 2
    assert "in use by another service" in second.stderr


def test_a_file_that_is_no_state_is_refused_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n" * 200)
    assert main(["serve", "--port", "0", "--state", str(path)]) == 2
    assert "cannot keep the service's state" in capsys.readouterr().err
    assert path.read_text().startswith("my notes")


def test_a_check_does_not_wait_behind_a_long_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But a state that is silent for longer than the patience is a fault."""
    monkeypatch.setattr(storage_module, "CHECK_EVERY_S", 0.0)
    finished = threading.Event()

    async def run() -> None:
        storage = storage_module.Storage(make_state(tmp_path / "state.db"))
        await storage.check()
        assert storage.fault is None
        writing = asyncio.create_task(storage.write(finished.wait))
        monkeypatch.setattr(storage_module, "CHECK_PATIENCE_S", 1e6)
        await storage.check()
        assert storage.fault is None
        monkeypatch.setattr(storage_module, "CHECK_PATIENCE_S", 0.0)
        await storage.check()
        assert storage.fault is not None
        assert storage.fault.kind == "unreachable"
        finished.set()
        await writing
        monkeypatch.setattr(storage_module, "CHECK_PATIENCE_S", PATIENCE_S)
        await storage.check()
        assert storage.fault is None
        await storage.close()

    asyncio.run(run())


def make_state(path: Path) -> State:
    return State(SqliteDatabase(path))


def test_half_of_a_damaged_table_is_saved_from_both_ends(tmp_path: Path) -> None:
    state = make_state(tmp_path / "state.db")
    jobs = [state.add_job("plan", "x" * 3000) for _ in range(40)]
    state.close()
    content = (tmp_path / "state.db").read_bytes()
    middle = len(content) // 2 // 4096 * 4096
    (tmp_path / "state.db").write_bytes(content[:middle] + os.urandom(4096) + content[middle + 4096 :])
    state = make_state(tmp_path / "state.db")
    saved = {job.id for job in state.list_jobs(limit=100)}
    assert len(saved) >= 30
    assert saved <= {job.id for job in jobs}
    state.close()


@pytest.mark.parametrize("moment", ["write", "commit"])
def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path, moment: str) -> None:
    state = make_state(tmp_path / "state.db")
    connection: Any = state.database._connection  # type: ignore[attr-defined]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + (0 if moment == 'write' else 1)}")
    with pytest.raises(StorageFault, match="full"):
        state.add_job("plan", "x" * 100_000)
    assert state.list_jobs() == []
    connection.execute("PRAGMA max_page_count = 100000")
    assert state.add_job("plan", "x" * 100_000).state == "queued"
    state.close()
