"""What a hostile client, a stopped machine or a huge request can do to the others: each attack that once worked, again."""

import concurrent.futures
import contextlib
import gzip
import os
import select
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from service.conftest import PATIENCE_S, SMALL, Running, start, start_limited, wait_until
from service.test_access import add_token
from service.test_jobs import LONG, SCHEDULE
from traincast.service._faults import Busy
from traincast.service._limits import Budget
from traincast.service._pool import Pool

MIB = 2**20


def resident_mib(running: Running) -> float:
    fields = Path(f"/proc/{running.process.pid}/statm").read_text().split()
    return float(fields[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def workers_of(running: Running) -> list[int]:
    lines = running.get("/metrics").body.splitlines()
    return [int(line.split('pid="')[1].split('"')[0]) for line in lines if 'process="worker"' in line]


def connect(running: Running, *, source: str = "") -> socket.socket:
    where = urlsplit(running.url)
    address = (where.hostname or "", where.port or 0)
    return socket.create_connection(address, timeout=PATIENCE_S, source_address=(source, 0) if source else None)


# Signals: a stop is no verdict.


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL"])
def test_a_signal_to_the_whole_group_leaves_running_jobs_for_the_next_start(tmp_path: Path, name: str) -> None:
    state = tmp_path / "state.db"
    running = start(state, "--workers", "1")
    job = running.post("/schedule", LONG).body["id"]
    running.wait_until_running(job)
    os.killpg(running.process.pid, signal.Signals[name])
    running.process.wait(PATIENCE_S)
    with contextlib.closing(sqlite3.connect(state)) as db:
        kept, tries, error = db.execute("SELECT state, starts, error FROM jobs WHERE id = ?", (job,)).fetchone()
    assert error is None
    assert kept in (("running",) if name in ("SIGKILL", "SIGHUP") else ("queued",))
    assert tries == 0
    running = start(state, "--workers", "1")
    try:
        running.wait_until_running(job)
        assert running.ask("DELETE", f"/jobs/{job}").body["state"] == "cancelled"
    finally:
        running.stop()


def test_a_signal_to_a_worker_alone_is_no_verdict_either_and_its_death_by_itself_is_tried_again(tmp_path: Path) -> None:
    running = start(tmp_path / "state.db", "--workers", "1")
    try:
        before = set(workers_of(running))
        job = running.post("/schedule", LONG).body["id"]
        running.wait_until_running(job)
        wait_until(lambda: set(workers_of(running)) - before)
        for pid in set(workers_of(running)) - before:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: running.get(f"/jobs/{job}").body["state"] == "running" and set(workers_of(running)) - before)
        found = running.get(f"/jobs/{job}").body
        assert found["error"] is None
        running.ask("DELETE", f"/jobs/{job}")
    finally:
        running.stop()


# Bytes: sizes are decided by length, and all that is under way has one budget.


def test_a_large_body_is_read_by_a_worker_whatever_it_is_said_to_be(service: Running) -> None:
    rows = b", ".join(b'{"a%d": [1, 2, 3]}' % number for number in range(250_000))
    body = b'{"workload": {"name": "gpt2"}, "cluster": {"device": "h100"}, "x": [' + rows + b"]}"
    assert 4 * MIB < len(body) < 6 * MIB
    service.ask("POST", "/forecast", raw=body)
    before, of_workers = cpu_s(service.process.pid), {pid: cpu_s(pid) for pid in workers_of(service)}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        kinds = ["application/json", "Application/JSON", "application/json; charset=utf-8", "APPLICATION/json"]
        replies = list(pool.map(lambda kind: service.ask("POST", "/forecast", raw=body, content_type=kind), kinds))
    spent = cpu_s(service.process.pid) - before
    by_workers = sum(cpu_s(pid) - earlier for pid, earlier in of_workers.items())
    assert {reply.status for reply in replies} == {422}
    assert spent < by_workers / 4
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert service.ask("POST", "/forecast", raw=body, content_type=kind).status == 415


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Running]:
    """A service with little room, so that tests need not send gigabytes."""
    limits = {"inflight_bytes": 48 * MIB, "client_bytes": 24 * MIB, "client_connections": 64, "body_s": PATIENCE_S,
              "write_s": 2.0}  # fmt: skip
    running = start_limited(tmp_path / "state.db", **limits)
    yield running
    running.stop()


def test_half_sent_uploads_fill_no_memory(small: Running) -> None:
    small.post("/forecast", SMALL)
    before = resident_mib(small)
    head = b"POST /models HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (30 * MIB)
    held: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            raw = stack.enter_context(connect(small))
            held.append(raw)
            raw.settimeout(2)
            with contextlib.suppress(OSError):
                raw.sendall(head)
                for _ in range(8):
                    raw.sendall(b"x" * MIB)
        assert resident_mib(small) - before < 48 + 64
        # Another client still has its part.
        other = stack.enter_context(connect(small, source="127.0.0.9"))
        other.sendall(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b" 200 " in other.recv(300)

        def is_refused(raw: socket.socket) -> bool:
            with contextlib.suppress(ConnectionResetError):
                return b" 429 " in raw.recv(200)
            return True

        wait_until(lambda: any(is_refused(raw) for raw in select.select(held, [], [], 0.5)[0]))
    wait_until(lambda: "traincast_inflight_bytes 0.0" in small.get("/metrics").body)


def test_packed_bombs_are_unpacked_by_workers_and_within_bounds(small: Running) -> None:
    small.post("/forecast", SMALL)
    bomb = gzip.compress(b'{"format": "traincast-graph", "x": "' + b"0" * (200 * MIB) + b'"}')
    before = resident_mib(small)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: small.ask("POST", "/models", raw=bomb), range(8)))
    assert {reply.status for reply in replies} <= {422, 429}
    assert any("unpacks to more than" in reply.error for reply in replies)
    assert resident_mib(small) - before < 64


def test_the_budget_is_one_for_all_and_one_for_each() -> None:
    budget = Budget(100, 60)
    with budget.hold("b") as take_b, budget.hold("c") as take_c:
        with budget.hold("a") as take_a:
            take_a(60)
            with pytest.raises(Busy, match="of this client"):
                take_a(1)
            take_b(40)
            with pytest.raises(Busy, match="of requests"):
                take_c(1)
        take_c(60)
        assert budget.num_bytes == 100
    assert budget.num_bytes == 0


# Heads and connections.


def test_an_endless_head_behind_a_request_is_cut_off(service: Running) -> None:
    before = resident_mib(service)
    body = b'{"model": "gpt2", "gpus": "8xa100-80g", "steps": 987654}'
    first = (
        b"POST /fit HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(body)
    )
    sent = 0
    with connect(service) as raw:
        raw.sendall(first + body + b"GET /live HTTP/1.1\r\nhost: localhost\r\nx: ")
        with contextlib.suppress(OSError):
            for _ in range(64):
                raw.sendall(b"a" * MIB)
                sent += 1
    assert sent < 64
    assert resident_mib(service) - before < 32
    assert service.get("/live").status == 200


@pytest.mark.parametrize("fields", [b"x: y\r\n" * 10_000, b"x: " + b"y" * 40_000 + b"\r\n"])
def test_more_header_fields_than_are_read_are_refused_in_one_packet_too(service: Running, fields: bytes) -> None:
    with connect(service) as raw:
        raw.sendall(b"GET /live HTTP/1.1\r\nhost: localhost\r\n" + fields + b"\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert raw.recv(300).split(b"\r\n")[0].split()[1] == b"431"
    assert service.get("/live").status == 200


def test_hundreds_of_requests_in_one_packet_are_not_kept(service: Running) -> None:
    with connect(service) as raw:
        raw.sendall(b"GET /catalog/devices HTTP/1.1\r\nhost: localhost\r\n\r\n" * 500)
        found = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := raw.recv(65536):
                found += piece.count(b"HTTP/1.1 200 OK")
    assert found < 500
    assert service.get("/live").status == 200


def test_one_address_has_so_many_connections_and_the_others_theirs(small: Running) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(small)) for _ in range(80)]
        told = 0
        until = time.monotonic() + PATIENCE_S
        while told < 80 - 64 and time.monotonic() < until:
            for raw in select.select(held, [], [], 0.5)[0]:
                told += b" 503 " in raw.recv(200)
                held.remove(raw)
        assert told == 80 - 64
        other = stack.enter_context(connect(small, source="127.0.0.8"))
        other.sendall(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b" 200 " in other.recv(300)


def test_a_client_that_never_reads_is_cut_off(small: Running) -> None:
    ended = select.poll()
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(10):
            raw = stack.enter_context(socket.socket())
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            where = urlsplit(small.url)
            raw.connect((where.hostname, where.port))
            raw.sendall(b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 4)
            held.append(raw)
            ended.register(raw, select.POLLERR | select.POLLHUP)
        wait_until(lambda: len(ended.poll(0)) == len(held))
    wait_until(lambda: "traincast_inflight_bytes 0.0" in small.get("/metrics").body)


def test_an_answer_that_has_no_room_is_refused_and_is_no_internal_error(tmp_path: Path) -> None:
    running = start_limited(tmp_path / "state.db", client_bytes=4 * MIB, write_s=PATIENCE_S)
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(8):
                raw = stack.enter_context(socket.socket())
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                where = urlsplit(running.url)
                raw.connect((where.hostname, where.port))
                raw.sendall(b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 4)
            wait_until(lambda: running.get("/docs/swagger-ui-bundle.js").status == 429)
        wait_until(lambda: running.get("/docs/swagger-ui-bundle.js").status == 200)
        assert 'status="500"' not in running.get("/metrics").body
    finally:
        running.stop()


# Turns.


def test_one_client_never_holds_all_recorders() -> None:
    import asyncio

    async def run() -> None:
        pool = Pool(size=2, memory_bytes=2**30, max_waiting=16, most_of_client=1)
        first = await pool._take("greedy")
        more = [asyncio.ensure_future(pool._take("greedy")) for _ in range(3)]
        await asyncio.sleep(0)
        other = await asyncio.wait_for(pool._take("modest"), PATIENCE_S)
        assert other is not first
        assert not any(each.done() for each in more)
        for each in more:
            each.cancel()
        await asyncio.gather(*more, return_exceptions=True)
        assert pool.num_waiting == 0

    asyncio.run(run())


def test_long_jobs_of_one_client_keep_nobody_else_waiting(tmp_path: Path) -> None:
    greedy, modest = (add_token(tmp_path, name, "run") for name in ("greedy", "modest"))
    running = start(tmp_path / "state.db", "--workers", "1")
    try:
        mine, theirs = ({"authorization": f"Bearer {token}"} for token in (greedy, modest))
        asked = [running.post("/schedule", LONG, **mine) for _ in range(20)]
        assert {reply.status for reply in asked} == {202, 429}
        assert "jobs of this client wait" in next(reply for reply in asked if reply.status == 429).error
        job = running.post("/schedule", SCHEDULE, **theirs)
        assert job.status == 202
        wait_until(lambda: running.get(f"/jobs/{job.body['id']}", **theirs).body["state"] == "done")
        states = [each["state"] for each in running.get("/jobs", **mine).body if each["id"] != job.body["id"]]
        assert states.count("running") == 1
        assert "done" not in states
    finally:
        running.kill()
