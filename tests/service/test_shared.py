"""The state in a PostgreSQL server that the tests start: one service owns it, and nothing that is asked stops its queue."""

import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.conftest import PATIENCE_S, start, wait_until
from service.test_answers import saved_graph
from service.test_jobs import LONG, SCHEDULE, keep_model
from traincast.__main__ import main

pytest.importorskip("psycopg")

from traincast.errors import InvalidInput
from traincast.service._faults import StorageFault, Unstorable
from traincast.service._postgres import PostgresDatabase
from traincast.service._state import State


class Server:
    """A PostgreSQL server of our own, on a port and a socket that nobody else knows."""

    def __init__(self, folder: Path, programs: Path, *, network: str | None = None) -> None:
        """`network`: other machines that may connect, such as 10.0.0.0/24."""
        self._folder, self._programs = folder, programs
        self._listen = "127.0.0.1" if network is None else "*"
        # The server refuses to be run by root.
        self._as: dict[str, Any] = {"cwd": folder}
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._as.update(user=user.pw_uid, group=user.pw_gid, extra_groups=[])
        self._run("initdb", "-D", "data", "-U", "traincast", "--auth=trust", "--no-sync", "-E", "UTF8")
        if network is not None:
            with (folder / "data" / "pg_hba.conf").open("a") as stream:
                stream.write(f"host all all {network} trust\n")
        self._find_port()

    def _find_port(self) -> None:
        """Another program may take a free port before the server does."""
        for attempts_left in range(4, -1, -1):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
            try:
                self.start()
                break
            except subprocess.CalledProcessError:
                if not attempts_left:
                    raise

    @property
    def url(self) -> str:
        return f"postgresql://traincast@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        settings = (
            f"-p {self.port} -k {self._folder} -c listen_addresses={self._listen} -c fsync=off -c max_connections=60"
        )
        self._run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", settings, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", "data", "-m", "immediate", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_S, **self._as)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@contextlib.contextmanager
def serving(*, network: str | None = None) -> Iterator[Server]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    where = shutil.which("initdb") or (str(found[-1]) if found else None)
    if where is None:
        pytest.skip("PostgreSQL is not installed; Debian's package is postgresql")
    # Not under pytest's own folder, which only its user may enter.
    folder = Path(tempfile.mkdtemp(prefix="traincast-postgres-"))
    try:
        running = Server(folder, Path(where).resolve().parent, network=network)
        yield running
        with contextlib.suppress(subprocess.CalledProcessError):
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def state(server: Server) -> Iterator[State]:
    state = State(PostgresDatabase(server.url), kept_jobs=3, kept_models=2)
    with state.database.transaction() as execute:
        for table in ("jobs", "models", "tokens"):
            execute(f"DELETE FROM {table}")
    yield state
    state.close()


def add_job(state: State) -> str:
    return state.add_job("plan", "{}").id


def test_models_tokens_and_kept_jobs_are_as_in_a_file(state: State) -> None:
    for number in range(4):
        keep_model(state, str(number))
    assert state.find_model("0") is None
    assert state.find_graph("3", "{}") == ('{"a": 1}', zlib.compress(b"y"))
    state.add_token("ci", "run")
    assert [token.name for token in state.list_tokens()] == ["ci"]
    for job in [add_job(state) for _ in range(5)]:
        assert state.finish_job(job, "done", result=b"{}")
    assert state.read_queue().counts["done"] == 3


def test_a_server_that_is_away_is_a_fault_that_ends_with_it(state: State, server: Server) -> None:
    job = add_job(state)
    server.stop()
    with pytest.raises(StorageFault):
        state.find_job(job)
    server.start()
    assert state.find_job(job).state == "queued"


def test_one_service_owns_the_database_and_the_next_one_takes_over_after_a_kill(server: Server, state: State) -> None:
    state.close()
    options = ("--workers", "1", "--database", server.url)
    first = start(Path(), *options)
    try:
        job = first.post("/schedule", LONG).body["id"]
        first.wait_until_running(job)
        with pytest.raises(InvalidInput, match="in use by another service"):
            PostgresDatabase(server.url)
        assert main(["token", "list", "--database", server.url]) == 0
    finally:
        first.kill()
    second = start(Path(), *options)
    try:
        second.wait_until_running(job)
        assert second.get("/health").body["storage"] == {"backend": "postgresql", "writable": True, "fault": None}
        assert second.ask("DELETE", f"/jobs/{job}").body["state"] == "cancelled"
        server.stop()
        refused = second.post("/schedule", SCHEDULE)
        assert (refused.status, refused.body["reason"]) == (503, "unreachable")
        wait_until(lambda: second.get("/ready").status == 503)
        server.start()
        wait_until(lambda: second.get("/ready").status == 200)
        assert second.finish(second.post("/schedule", SCHEDULE).body["id"]).body["state"] == "done"
    finally:
        second.stop()


def test_text_that_the_database_cannot_hold_stops_no_queue(server: Server, state: State) -> None:
    state.close()
    running = start(Path(), "--workers", "1", "--database", server.url)
    try:
        for name in ("hf:a\0b", "hf:a/\ud800"):
            reply = running.post(
                "/plan", {"workload": {"name": name}, "cluster": {"device": "h100"}, "global_batch": 8}
            )
            assert reply.status == 400, reply.body
        graph = saved_graph()
        graph["graph"]["name"] = "a\0b"
        assert running.ask("POST", "/models", raw=json.dumps(graph).encode()).status == 400
        assert running.get("/health").status == 200
        assert running.finish(running.post("/schedule", SCHEDULE).body["id"]).body["state"] == "done"
    finally:
        running.stop()


def test_a_result_that_cannot_be_stored_fails_its_job_and_the_next_one_runs(state: State) -> None:
    job = add_job(state)
    assert state.take_job("me") is not None
    with pytest.raises(Unstorable):
        state.finish_job(job, "a\0b", owner="me")
    assert state.find_job(job).state == "running"
    assert state.finish_job(job, "failed", error="its result has \0 in it", owner="me")
    assert state.find_job(job).error == "its result has \ufffd in it"


def test_a_database_that_cannot_be_used_is_refused_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "--database", "postgresql://u:secret-word@127.0.0.1:1/x"]) == 2
    said = capsys.readouterr().err
    assert "cannot keep the service's state in the database" in said
    assert "secret-word" not in said
    assert main(["serve", "--database", "mysql://x"]) == 2
    assert main(["serve", "--database", "postgresql://x", "--state", "y.db"]) == 2
