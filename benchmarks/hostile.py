"""Sends gigabytes of hostile requests to a service on the loopback and watches its memory and its answers meanwhile.

python benchmarks/hostile.py [--gigabytes 5] [--minutes 10] [--write research/results/hostile.md]

One process attacks from 127.0.0.1: half-sent uploads, packed bombs, large bodies of every content type, endless heads behind a
request, thousands of fields, clients that never read. Another asks /live from 127.0.0.7, and by turns a server that does nothing
else and is not attacked. Then a bare Starlette, which reads every body and forgets it, is attacked in the same way but for the
heads, which hold it for a minute and more: the least that such bodies cost a service under this server on this machine. The
attack ends after so many bytes or minutes. Beside each time stands what is left of it without the time in which the process was
ready to run and others had the cores (/proc/PID/schedstat).
"""

import argparse
import asyncio
import gzip
import json
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from service.conftest import Running, run_service, start  # noqa: E402

MIB = 2**20
HEAD = "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
LIVE = b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n"
ANYTHING = memoryview(b"a" * (100 * MIB))
"""Sent again and again, so that the attack itself holds little."""
LIVE_LIMIT_S, MEMORY_LIMIT_MIB = 0.25, 512


async def send(writer: asyncio.StreamWriter, content: bytes | memoryview, sent: Counter[str], kind: str) -> None:
    for at in range(0, len(content), MIB):
        writer.write(content[at : at + MIB])
        await asyncio.wait_for(writer.drain(), 20)
        sent[kind] += min(MIB, len(content) - at)


async def half_upload(reader: Any, writer: Any, sent: Counter[str], draw: random.Random) -> None:
    writer.write(HEAD.format(path="/models", kind="application/octet-stream", length=31 * MIB).encode())
    await send(writer, ANYTHING[: draw.randrange(4, 30) * MIB], sent, "half-sent uploads")
    await asyncio.sleep(3)


async def bomb(reader: Any, writer: Any, sent: Counter[str], draw: random.Random) -> None:
    writer.write(HEAD.format(path="/models", kind="application/octet-stream", length=len(BOMB)).encode())
    await send(writer, BOMB, sent, "packed bombs of 256 MiB")
    await asyncio.wait_for(reader.read(300), 90)


async def large_body(reader: Any, writer: Any, sent: Counter[str], draw: random.Random) -> None:
    kind = draw.choice(["application/json", "Application/JSON", "text/plain", "x", "application/json; charset=utf-8"])
    writer.write(HEAD.format(path=draw.choice(["/forecast", "/plan", "/fit"]), kind=kind, length=len(LARGE)).encode())
    await send(writer, LARGE, sent, "bodies of 5.5 MB")
    await asyncio.wait_for(reader.read(300), 90)


async def endless_head(reader: Any, writer: Any, sent: Counter[str], draw: random.Random) -> None:
    body = json.dumps({"model": "gpt2", "gpus": "8xh100", "steps": draw.randrange(10**9)}).encode()
    writer.write(HEAD.format(path="/fit", kind="application/json", length=len(body)).encode() + body)
    writer.write(b"GET /live HTTP/1.1\r\nhost: localhost\r\nx: ")
    await send(writer, ANYTHING, sent, "endless heads behind a request")


async def many_fields(reader: Any, writer: Any, sent: Counter[str], draw: random.Random) -> None:
    await send(writer, b"GET /live HTTP/1.1\r\n" + b"x: y\r\n" * 40_000 + b"\r\n", sent, "thousands of fields")
    await asyncio.wait_for(reader.read(300), 30)


async def never_reads(reader: Any, writer: Any, sent: Counter[str], draw: random.Random) -> None:
    reader._transport.pause_reading()
    await send(writer, b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: localhost\r\n\r\n" * 6, sent, "never reading")
    await asyncio.sleep(10)


BOMB = gzip.compress(b'{"format": "traincast-graph", "x": "' + b"0" * (256 * MIB) + b'"}', 6)
LARGE = b'{"workload": {"name": "gpt2"}, "cluster": {"device": "h100"}, "x": [' + b", ".join(
    b'{"a%d": [1, 2, 3]}' % number for number in range(260_000)
) + b"]}"  # fmt: skip
BODIES = (half_upload, half_upload, bomb, large_body, never_reads)
ATTACKS = (*BODIES, endless_head, many_fields)


def attack(port: int, most_bytes: float, until_s: float, told: Any, kinds: Sequence[Any]) -> None:
    sent: Counter[str] = Counter()

    async def one(number: int) -> None:
        draw = random.Random(number)
        while sum(sent.values()) < most_bytes and time.monotonic() < until_s:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            try:
                await kinds[number % len(kinds)](reader, writer, sent, draw)
            except (OSError, TimeoutError):
                sent["cut off"] += 0
            finally:
                writer.transport.abort()

    async def run() -> None:
        await asyncio.gather(*(one(number) for number in range(70)))

    asyncio.run(run())
    told.put(dict(sent))


def idle(told: Any) -> None:
    """A server that answers /live and nothing else."""

    async def answer(reader: Any, writer: Any) -> None:
        while await reader.read(4096):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        told.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


BARE = """
import json, socket, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
async def answer(request):
    await request.body()
    return Response(b"x" * 1_400_000 if request.url.path.startswith("/docs") else b"{}")
app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
listener = socket.create_server(("127.0.0.1", 0))
print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=5)
uvicorn.Server(config).run(sockets=[listener])
"""


def ask_live(port: int) -> float:
    began_s = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=60, source_address=("127.0.0.7", 0)) as raw:
        raw.sendall(LIVE)
        if b" 200 " not in raw.recv(600):
            raise SystemExit("/live was refused")
    return time.perf_counter() - began_s


def core_s(pid: int) -> tuple[float, float]:
    """Seconds on a core, and seconds in which it could have run while others did."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def resident_mib(pid: int) -> float:
    return float(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


@dataclass(slots=True)
class Watched:
    """What one server held and how long its answers took while it was attacked."""

    before_mib: float
    most_mib: float = 0.0
    live: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of each answer, and without those in which others had the cores."""
    idle_s: list[float] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)

    def rows(self, name: str) -> list[str]:
        for_all = [
            ("", [each for each, _ in self.live]),
            (", without waiting for a core", [own for _, own in self.live]),
        ]
        return [show_times(f"{name}{words}", found) for words, found in for_all]


def show_times(name: str, found: list[float]) -> str:
    found = sorted(found)
    quantiles = (found[len(found) // 2], found[int(len(found) * 0.99)], found[-1])
    return f"| {name} | {len(found):,} | {' | '.join(f'{1e3 * each:.1f}' for each in quantiles)} |"


def watch(running: Running, idle_port: int, options: argparse.Namespace, kinds: Sequence[Any]) -> Watched:
    port, pid = urlsplit(running.url).port or 0, running.process.pid
    told: Any = multiprocessing.Queue()
    until_s = time.monotonic() + 60 * options.minutes
    attacker = multiprocessing.Process(target=attack, args=(port, 1e9 * options.gigabytes, until_s, told, kinds))
    seen = Watched(before_mib=resident_mib(pid))
    attacker.start()
    while attacker.is_alive() and time.monotonic() < until_s + 120 and told.empty():
        waited_s = core_s(pid)[1]
        took_s = ask_live(port)
        seen.live.append((took_s, max(0.0, took_s - (core_s(pid)[1] - waited_s))))
        seen.idle_s.append(ask_live(idle_port))
        seen.most_mib = max(seen.most_mib, resident_mib(pid))
        time.sleep(0.05)
    seen.sent = told.get(timeout=120)
    attacker.join(60)
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    told: Any = multiprocessing.Queue()
    beside = multiprocessing.Process(target=idle, args=(told,), daemon=True)
    beside.start()
    idle_port = told.get()
    with tempfile.TemporaryDirectory() as folder:
        running = start(Path(folder) / "state.db", "--workers", "2")
        cores = core_s(running.process.pid)
        ours = watch(running, idle_port, options, ATTACKS)
        health = running.get("/health").status
        ran_s, waited_s = (late - early for late, early in zip(core_s(running.process.pid), cores, strict=True))
        running.stop()
    load = os.getloadavg()[0]
    running = run_service([sys.executable, "-c", BARE], token=None)
    bare = watch(running, idle_port, options, BODIES)
    running.stop()
    beside.terminate()
    lines = [
        "# The service under hostile traffic", "", f"`python benchmarks/hostile.py --gigabytes {options.gigabytes:g}`", "",
        "| sent, MiB | service | bare Starlette |", "|---|--:|--:|",
        *(f"| {kind} | {ours.sent[kind] / MIB:,.0f} | {bare.sent.get(kind, 0) / MIB:,.0f} |" for kind in sorted(ours.sent)),
        f"| all | {sum(ours.sent.values()) / MIB:,.0f} | {sum(bare.sent.values()) / MIB:,.0f} |", "",
        f"Main process: {ours.before_mib:.0f} MiB before, {ours.most_mib:.0f} MiB at most (limit {MEMORY_LIMIT_MIB}); bare "
        f"Starlette {bare.most_mib:.0f} MiB at most.",
        f"/health afterwards: {health}. The main process ran for {ran_s:.0f} s and waited {waited_s:.0f} s for a core.",
        "", "| asked meanwhile | times | p50 ms | p99 ms | most ms |", "|---|--:|--:|--:|--:|",
        *ours.rows("/live"), show_times("a server that is not attacked", ours.idle_s),
        *bare.rows("bare Starlette under the bodies alone"), show_times("a server that is not attacked, then", bare.idle_s),
        "", f"Load average: {load:.0f} on {os.cpu_count()} cores.",
    ]  # fmt: skip
    print("\n".join(lines))
    if options.write:
        options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")
    floor_s = max(each for each, _ in bare.live)
    return int(ours.most_mib > MEMORY_LIMIT_MIB or max(each for each, _ in ours.live) > max(LIVE_LIMIT_S, floor_s))


if __name__ == "__main__":
    sys.exit(main())
