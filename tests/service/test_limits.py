"""What one request may cost others: nothing that they notice."""

import contextlib
import json
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.conftest import PATIENCE_S, SMALL, Running, start_limited, wait_until
from traincast.capture._untrusted import tell_plainly
from traincast.service._pool import Busy, Pool, Worker

MODEL = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 128, "vocab_size": 100}  # fmt: skip


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that waits for nobody."""
    limits = {"header_s": 1.0, "body_s": 1.0, "connections": 40, "capture_cpu_s": 25.0}
    running = start_limited(tmp_path_factory.mktemp("hasty") / "state.db", **limits)
    yield running
    running.stop()


def connect(running: Running) -> socket.socket:
    where = urlsplit(running.url)
    return socket.create_connection((where.hostname or "", where.port or 0), timeout=PATIENCE_S)


def read_all(raw: socket.socket) -> bytes:
    found = b""
    # A connection that is closed before all was read ends with a reset.
    with contextlib.suppress(ConnectionResetError):
        while piece := raw.recv(4096):
            found += piece
    return found


def test_the_head_of_a_request_must_come_in_time_however_it_drips(hasty: Running) -> None:
    with connect(hasty) as silent, connect(hasty) as dripping:
        silent.sendall(b"GET /health HT")
        dripping.sendall(b"GET /")
        # A letter now and then does not begin the time anew.
        while not select.select([dripping], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):
                dripping.sendall(b"x")
        assert b" 408 " in read_all(silent)
        assert b" 408 " in read_all(dripping)
    assert hasty.get("/live").status == 200


def test_a_second_request_on_one_connection_must_come_in_time_too(hasty: Running) -> None:
    with connect(hasty) as raw:
        raw.sendall(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b" 200 " in raw.recv(4096)
        raw.sendall(b"GET /live HT")
        assert b" 408 " in read_all(raw)


def test_a_head_without_end_is_cut_off(service: Running) -> None:
    with connect(service) as raw:
        raw.sendall(b"GET /live HTTP/1.1\r\nhost: localhost\r\n")
        for number in range(64):
            try:
                raw.sendall(b"x-%d: " % number + b"y" * 2000 + b"\r\n")
            except OSError:
                break
        else:
            assert read_all(raw)[:12] in (b"HTTP/1.1 431", b"")
    assert service.get("/live").status == 200


def test_a_body_must_come_in_time(hasty: Running) -> None:
    head = (
        b"POST /forecast HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n"
    )
    with connect(hasty) as raw:
        raw.sendall(head + b'{"workload"')
        answer = b""
        while b"}" not in answer and (piece := raw.recv(4096)):
            answer += piece
        assert b" 408 " in answer.split(b"\r\n")[0]
        assert b"the body paused" in answer


def test_more_connections_than_may_be_are_refused_and_the_others_answered(tmp_path: Path) -> None:
    running = start_limited(tmp_path / "state.db", connections=40, header_s=PATIENCE_S)
    try:
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(connect(running)) for _ in range(60)]
            answers = []
            # Of sixty twenty are told; the others hear nothing, because they asked for nothing.
            while len(answers) < 20:
                ready, _, _ = select.select(held, [], [], PATIENCE_S)
                assert ready, f"only {len(answers)} were told"
                answers += [raw.recv(200) for raw in ready]
                held = [raw for raw in held if raw not in ready]
            assert all(b" 503 " in answer for answer in answers)
            held[0].sendall(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b" 200 " in held[0].recv(4096)
        wait_until(lambda: running.get("/live").status == 200)
    finally:
        running.stop()


def read_cpu_s(pid: int) -> float:
    """CPU time of one process, without its workers."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


LARGE = {
    "a graph of five megabytes": lambda: {
        "workload": {"graph": {"format": "x", "a": [[n, [n]] for n in range(280_000)]}}
    },
    "numbers where a name belongs": lambda: {"workload": {"name": [[n] for n in range(500_000)]}},
    "a config with many values": lambda: {"workload": {"config": {**MODEL, "x": [{"a": n} for n in range(300_000)]}}},
}


@pytest.mark.parametrize("what", list(LARGE))
def test_a_large_body_is_read_beside_the_event_loop(hasty: Running, what: str) -> None:
    content = json.dumps({**LARGE[what](), "cluster": {"device": "h100"}}).encode()
    assert 4_000_000 < len(content) < 6_000_000
    before_s = read_cpu_s(hasty.process.pid)
    assert hasty.ask("POST", "/forecast", raw=content).status == 422
    # The process of the event loop only passes it on; reading it there cost more than 3 s.
    assert read_cpu_s(hasty.process.pid) - before_s < 0.5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 2**63}, "num_hidden_layers = 9,223,372,036,854,775,808; at most 1,024"),
        (
            {"model_type": "convnext", "depths": [10**6]},
            "depths = 1000000.0; at most 1,024".replace("1000000.0", "1e+06"),
        ),
        ({"model_type": "swin", "depths": [600, 600]}, "depths"),
        ({"vocab_size": 10**400}, "a number of more than 30 digits"),
        ({"hidden_size": 2**40}, "hidden_size"),
        ({"model_type": "mixtral", "num_hidden_layers": 1000, "num_local_experts": 4000}, "experts each"),
        ({"layer_types": ["full_attention"] * 5000}, "5,000 items in layer_types"),
    ],
)
def test_sizes_of_a_config_are_refused_before_anything_is_built(
    hasty: Running, changes: dict[str, Any], words: str
) -> None:
    reply = hasty.post("/models", {**MODEL, **changes})
    assert reply.status == 422
    assert words in reply.error


def test_one_client_cannot_keep_the_others_out() -> None:
    import asyncio

    async def let_others_run() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def run() -> None:
        pool = Pool(size=1, memory_bytes=2**30, max_waiting=4)
        worker: Worker = await pool._take("first")
        greedy = [asyncio.ensure_future(pool._take("greedy")) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await pool._take("greedy")
        modest = asyncio.ensure_future(pool._take("modest"))
        await let_others_run()
        order, holder = [], "first"
        for _ in range(5):
            pool._give(worker, holder)
            await let_others_run()
            done = [each for each in (*greedy, modest) if each.done() and each not in order]
            order.extend(done)
            holder = "modest" if done == [modest] else "greedy"
        assert order == [greedy[0], modest, *greedy[1:]]
        assert pool.num_waiting == 0

    asyncio.run(run())


def test_a_worker_that_holds_too_much_is_replaced() -> None:
    import asyncio

    async def run() -> None:
        pool = Pool(size=1, memory_bytes=2**31, max_waiting=4, rest_bytes=2**20)
        try:
            task = {"task": "check", "kind": "schedule", "limits": {"json_depth": 40}}
            body = json.dumps({"trace": {"synthetic": 5}, "cluster": "1x8"}).encode()
            first = await pool.ask(task, body, timeout_s=PATIENCE_S)
            assert pool.pids == []
            assert await pool.ask(task, body, timeout_s=PATIENCE_S) == first
        finally:
            await pool.close()

    asyncio.run(run())


def test_a_long_trace_is_kept_as_it_was_sent(service: Running) -> None:
    """It passes the event loop as bytes: quotes, other alphabets and line ends are as they were."""
    rows = "".join(f"job-{number}-\u00e9\u4e16,{number},1,60\r\n" for number in range(600))
    text = "job_id,submit_s,num_gpus,duration_s\r\n" + rows
    asked = {"trace": {"text": text}, "cluster": "2x8:a100@2.5", "policies": ["fifo"]}
    assert len(json.dumps(asked)) > 8 * 1024
    ended = service.finish(service.post("/schedule", asked).body["id"])
    assert ended.body["state"] == "done", ended.body
    assert ended.body["result"]["policies"][0]["num_jobs"] == 600
    refused = service.post("/schedule", {**asked, "trace": {"text": "no table " * 2000}})
    assert service.finish(refused.body["id"]).body["state"] == "failed"


def test_a_task_is_ended_by_the_system_when_its_cpu_time_is_over(tmp_path: Path) -> None:
    import asyncio

    from traincast.errors import InvalidInput

    async def run() -> None:
        worker = Worker(memory_bytes=2**31)
        limits = {"json_depth": 40}
        endless = b"[" + b"[1],[2]," * 1_200_000 + b"[3]]"
        with pytest.raises(InvalidInput, match="more than 1 s of CPU time"):
            await worker.ask({"task": "check", "kind": "plan", "limits": limits}, endless, cpu_s=1.0)
        assert worker.pid is None
        with pytest.raises(InvalidInput, match="the request must be a table"):
            await worker.ask({"task": "check", "kind": "plan", "limits": limits}, b"[]", cpu_s=20.0)
        await worker.stop()

    asyncio.run(run())


def test_what_a_library_says_is_told_without_its_insides() -> None:
    said = RuntimeError(
        "Trying to create tensor with negative dimension -1: [-1, 64]\nException raised from check_size_nonnegative at "
        "/pytorch/aten/src/ATen/EmptyTensor.h:59 (most recent call first):\nframe #0: c10::Error::Error(...) (0x7f12ab34cd56)"
    )
    assert tell_plainly(said) == "Trying to create tensor with negative dimension -1: [-1, 64]"
    assert tell_plainly(ValueError("no file /root/.cache/x/y.py:12 here")) == "no file ... here"


def test_the_same_bytes_get_the_same_answer_from_memory(hasty: Running) -> None:
    first, second = hasty.post("/forecast", SMALL), hasty.post("/forecast", SMALL)
    assert first.body == second.body
    assert first.headers["content-type"] == second.headers["content-type"]
    hits = [line for line in hasty.get("/metrics").body.splitlines() if line.startswith("traincast_cache_hits_total")]
    assert float(hits[0].split()[1]) >= 1
    assert hasty.ask("POST", "/forecast", SMALL, content_type="text/plain").status == 415


def test_five_hundred_connections_at_once_are_all_answered(service: Running) -> None:
    """Known requests and new ones: 200, or 429 with a time to come back; never a fault and never silence."""
    import asyncio

    where = urlsplit(service.url)
    statuses: dict[int, int] = {}
    missing = []

    async def ask(number: int) -> None:
        body = SMALL if number % 4 else {**SMALL, "job": {"steps": 1000 + number}}
        content = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        head = "POST /forecast HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        status = int(answer.split(b" ", 2)[1])
        statuses[status] = statuses.get(status, 0) + 1
        if status == 429 and b"retry-after" not in answer.lower():
            missing.append(number)
        writer.close()

    async def run() -> None:
        await asyncio.gather(*(ask(number) for number in range(512)))

    service.post("/forecast", SMALL)
    asyncio.run(run())
    assert sum(statuses.values()) == 512
    assert set(statuses) <= {200, 429}
    assert statuses[200] >= 384
    assert not missing
