"""Sends gigabytes of hostile requests to a service on the loopback and watches its memory and its answers meanwhile.

python benchmarks/hostile.py [--gigabytes 5] [--minutes 10] [--write research/results/hostile.md]

One process attacks from 127.0.0.1: half-sent uploads, packed bombs, large bodies of every content type, endless heads behind a
request, thousands of fields, clients that never read. Another asks /live from 127.0.0.7, and by turns a bare server that does
nothing else, so that what the machine itself costs can be told apart. The attack ends after so many bytes or minutes.
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
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from service.conftest import start  # noqa: E402

MIB = 2**20
HEAD = "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
LIVE = b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n"
LIVE_LIMIT_S, MEMORY_LIMIT_MIB = 0.25, 512


async def send(writer: asyncio.StreamWriter, content: bytes, sent: Counter[str], kind: str) -> None:
    for at in range(0, len(content), MIB):
        writer.write(content[at : at + MIB])
        await asyncio.wait_for(writer.drain(), 20)
        sent[kind] += min(MIB, len(content) - at)


async def half_upload(reader: Any, writer: Any, sent: Counter[str], draw: random.Random) -> None:
    writer.write(HEAD.format(path="/models", kind="application/octet-stream", length=31 * MIB).encode())
    await send(writer, b"x" * (draw.randrange(4, 30) * MIB), sent, "half-sent uploads")
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
    await send(writer, b"a" * (100 * MIB), sent, "endless heads behind a request")


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
ATTACKS = (half_upload, half_upload, bomb, large_body, endless_head, many_fields, never_reads)


def attack(port: int, most_bytes: float, until_s: float, told: Any) -> None:
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
                await ATTACKS[number % len(ATTACKS)](reader, writer, sent, draw)
            except (OSError, TimeoutError):
                sent["cut off"] += 0
            finally:
                writer.transport.abort()

    async def run() -> None:
        await asyncio.gather(*(one(number) for number in range(70)))

    asyncio.run(run())
    told.put(dict(sent))


def bare(told: Any) -> None:
    """A server that answers /live and nothing else."""

    async def answer(reader: Any, writer: Any) -> None:
        while await reader.read(4096):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        told.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    told: Any = multiprocessing.Queue()
    beside = multiprocessing.Process(target=bare, args=(told,), daemon=True)
    beside.start()
    bare_port = told.get()
    with tempfile.TemporaryDirectory() as folder:
        running = start(Path(folder) / "state.db", "--workers", "2")
        port, pid = urlsplit(running.url).port or 0, running.process.pid
        before, cores = resident_mib(pid), core_s(pid)
        until_s = time.monotonic() + 60 * options.minutes
        attacker = multiprocessing.Process(target=attack, args=(port, options.gigabytes * 1e9, until_s, told))
        attacker.start()
        live_s, bare_s, held = [], [], [before]
        while attacker.is_alive() and time.monotonic() < until_s + 120 and told.empty():
            live_s.append(ask_live(port))
            bare_s.append(ask_live(bare_port))
            held.append(resident_mib(pid))
            time.sleep(0.05)
        sent = told.get(timeout=120)
        attacker.join(60)
        health = running.get("/health").status
        ran_s, waited_s = (late - early for late, early in zip(core_s(pid), cores, strict=True))
        running.stop()
    beside.terminate()
    live_s.sort()
    bare_s.sort()
    lines = [
        "# The service under hostile traffic", "", f"`python benchmarks/hostile.py --gigabytes {options.gigabytes:g}`", "",
        "| sent | MiB |", "|---|--:|", *(f"| {kind} | {count / MIB:,.0f} |" for kind, count in sorted(sent.items()) if count),
        f"| all | {sum(sent.values()) / MIB:,.0f} |", "",
        f"Main process: {before:.0f} MiB before, {max(held):.0f} MiB at most (limit {MEMORY_LIMIT_MIB}).",
        f"/health afterwards: {health}. It ran for {ran_s:.0f} s and waited {waited_s:.0f} s for a core that others had.",
        "", "| asked meanwhile | times | p50 ms | p99 ms | most ms |", "|---|--:|--:|--:|--:|",
    ]  # fmt: skip
    for name, found in (("/live", live_s), ("a bare server", bare_s)):
        quantiles = (found[len(found) // 2], found[int(len(found) * 0.99)], found[-1])
        lines.append(f"| {name} | {len(found):,} | {' | '.join(f'{1e3 * each:.1f}' for each in quantiles)} |")
    lines += ["", f"Load average: {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores."]
    print("\n".join(lines))
    if options.write:
        options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(max(held) > MEMORY_LIMIT_MIB or live_s[-1] > LIVE_LIMIT_S + bare_s[-1])


if __name__ == "__main__":
    sys.exit(main())
