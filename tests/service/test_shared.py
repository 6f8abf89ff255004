"""Several services and workers on one PostgreSQL server that the tests start: each job is run once, whoever dies."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.conftest import PATIENCE_S, SMALL, Running, start, wait_until
from service.test_jobs import LONG, SCHEDULE
from traincast.__main__ import main

pytest.importorskip("psycopg")

from traincast.service._faults import StorageFault
from traincast.service._postgres import PostgresDatabase
from traincast.service._state import State, StoredJob, read_graph


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
    with state.database.transaction() as found:
        for table in ("jobs", "models", "tokens"):
            found.write(f"DELETE FROM {table}")
    yield state
    state.close()


def add_job(state: State) -> str:
    job = state.add_job("plan", "{}")
    assert isinstance(job, StoredJob)
    return job.id


def test_a_job_is_taken_once_however_many_ask(state: State, server: Server) -> None:
    others = [State(PostgresDatabase(server.url)) for _ in range(3)]
    jobs = [add_job(state) for _ in range(9)]
    taken = [other.take_job(f"owner-{place}", lease_s=60) for _ in range(4) for place, other in enumerate(others)]
    ids = [job.id for job in taken if job is not None]
    assert ids == jobs
    for other in others:
        other.close()


def test_a_job_whose_runner_is_silent_is_run_by_another_and_ends_once(state: State) -> None:
    job = add_job(state)
    assert state.take_job("first", lease_s=PATIENCE_S) is not None
    assert state.take_job("second", lease_s=60) is None
    with state.database.transaction() as found:
        found.write("UPDATE jobs SET lease_until_s = lease_until_s - ?", (PATIENCE_S + 1,))
    assert state.take_job("second", lease_s=PATIENCE_S) is not None
    assert not state.note_progress(job, done=1, total=2, words="", owner="first", lease_s=60)
    assert not state.finish_job(job, "done", result=b"late", owner="first")
    assert state.note_progress(job, done=1, total=2, words="", owner="second", lease_s=60)
    assert state.finish_job(job, "done", result=b"in time", owner="second")
    assert state.find_result(job) == b"in time"


def test_a_heartbeat_keeps_the_lease(state: State) -> None:
    job = add_job(state)
    state.take_job("first", lease_s=0.05)
    for _ in range(4):
        assert state.note_progress(job, done=0, total=0, words="", owner="first", lease_s=PATIENCE_S)
    time.sleep(0.1)  # longer than the first lease
    assert state.take_job("second", lease_s=1) is None


def test_models_tokens_and_kept_jobs_are_as_in_a_file(state: State, server: Server) -> None:
    for number in range(4):
        state.add_model(
            model=str(number), name="m", kind="graph", content=b"x", options="{}", graph=b"y", about='{"a": 1}'
        )
    assert state.find_model("0") is None
    assert state.find_graph("3", "{}") == {"a": 1}
    assert read_graph(server.url, "3", "{}") == b"y"
    state.add_token("ci", "run")
    assert [token.name for token in state.list_tokens()] == ["ci"]
    for job in [add_job(state) for _ in range(5)]:
        assert state.finish_job(job, "done", result=b"{}")
    assert state.count_jobs()["done"] == 3


def test_a_server_that_is_away_is_a_fault_that_ends_with_it(state: State, server: Server) -> None:
    job = add_job(state)
    server.stop()
    with pytest.raises(StorageFault):
        state.find_job(job)
    server.start()
    assert state.find_job(job).state == "queued"


def start_work(server: Server, *, inside: tuple[str, ...] = (), url: str | None = None) -> "subprocess.Popen[str]":
    """A machine that only works; `inside`: the command that runs commands there."""
    command = [*inside, sys.executable, "-m", "traincast", "work", "--job-workers", "1"]
    environment = {**os.environ, "TRAINCAST_DATABASE": url or server.url, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert "runs jobs" in process.stdout.readline()
    process.stdout.close()
    return process


def test_two_fronts_and_two_workers_share_the_jobs_and_survive_a_kill(server: Server, state: State) -> None:
    options = ("--workers", "1", "--job-workers", "0", "--database", server.url)
    fronts: list[Running] = [start(Path(), *options) for _ in range(2)]
    works = [start_work(server) for _ in range(2)]
    try:
        one, two = fronts
        long = one.post("/schedule", LONG).body["id"]
        jobs = [
            front.post("/schedule", {**SCHEDULE, "seed": number}).body["id"] for number, front in enumerate(fronts * 4)
        ]
        # What one front was asked the other knows, and can cancel; the worker that runs it lets go.
        two.wait_until_running(long)
        assert two.ask("DELETE", f"/jobs/{long}").body["state"] == "cancelled"
        works[0].send_signal(signal.SIGKILL)
        works[0].wait()
        ended = [two.finish(job).body for job in jobs]
        assert Counter(job["state"] for job in ended) == {"done": 8}
        assert one.get(f"/jobs/{long}").body["state"] == "cancelled"
        assert one.get("/health").body["storage"] == {"backend": "postgresql", "writable": True, "fault": None}
        assert one.post("/forecast", SMALL).body == two.post("/forecast", SMALL).body
        server.stop()
        refused = one.post("/schedule", SCHEDULE)
        assert (refused.status, refused.body["reason"]) == (503, "unreachable")
        wait_until(lambda: two.get("/ready").status == 503)
        server.start()
        wait_until(lambda: two.get("/ready").status == 200)
        again = two.post("/schedule", SCHEDULE)
        assert again.status == 202
        assert one.finish(again.body["id"]).body["state"] == "done"
    finally:
        for front in fronts:
            front.stop()
        for work in works:
            work.terminate()
            work.wait(PATIENCE_S)


@contextlib.contextmanager
def other_machine() -> Iterator[tuple[str, str]]:
    """A network namespace with a cable to this one: its name, and the address at which it sees us."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    number = os.getpid() % 250
    name, ours, theirs = f"tc-{number}", f"10.213.{number}.1", f"10.213.{number}.2"
    steps = (
        f"netns add {name}", f"link add tc{number}a type veth peer name tc{number}b netns {name}",
        f"addr add {ours}/24 dev tc{number}a", f"link set tc{number}a up",
        f"-n {name} addr add {theirs}/24 dev tc{number}b", f"-n {name} link set tc{number}b up", f"-n {name} link set lo up",
    )  # fmt: skip
    try:
        for step in steps:
            done = subprocess.run(["ip", *step.split()], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no network namespace can be made here: ip {step}: {done.stderr.strip()}")
        yield name, ours
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.slow
def test_a_machine_whose_cable_is_pulled_loses_its_job_to_another() -> None:
    with other_machine() as (name, ours), serving(network=f"{ours}/24") as server:
        far_url = server.url.replace("127.0.0.1", ours)
        front = start(Path(), "--workers", "1", "--job-workers", "0", "--database", server.url)
        far = start_work(server, inside=("ip", "netns", "exec", name), url=far_url)
        near = None
        try:
            # Nothing here but the other machine runs jobs.
            first = front.finish(front.post("/schedule", SCHEDULE).body["id"]).body
            assert first["state"] == "done"
            long = front.post("/schedule", {**LONG, "trace": {"synthetic": 800}}).body["id"]
            front.wait_until_running(long)
            subprocess.run(["ip", "link", "set", f"tc{os.getpid() % 250}a", "down"], check=True)
            near = start_work(server)
            assert front.finish(front.post("/schedule", SCHEDULE).body["id"]).body["state"] == "done"
            ended = front.finish(long).body
            assert ended["state"] == "done", ended
            subprocess.run(["ip", "link", "set", f"tc{os.getpid() % 250}a", "up"], check=True)
            time.sleep(2)
            assert front.get(f"/jobs/{long}").body == ended
        finally:
            front.stop()
            for work in (far, near):
                if work is not None:
                    work.kill()
                    work.wait(PATIENCE_S)


def test_a_database_that_cannot_be_used_is_refused_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "--database", "postgresql://u:secret-word@127.0.0.1:1/x"]) == 2
    said = capsys.readouterr().err
    assert "cannot keep the service's state in the database" in said
    assert "secret-word" not in said
    assert main(["serve", "--database", "mysql://x"]) == 2
    assert main(["serve", "--database", "postgresql://x", "--state", "y.db"]) == 2
