"""How long /health takes while the worst accepted requests are read, beside a bare Starlette answer asked at the same moments.

python benchmarks/health.py [--seconds 15]

A process of its own asks the service and the bare application by turns, so that both wait for the same cores, and a second one
sends the load. The bare application does nothing else: what it waits is the machine's, what the service waits beyond that is
ours.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from load import Bare, ask_raw
from serve import Connection, Service, make_request, serving

PROBE = """
import json, socket, sys, time
ports, seconds = [int(each) for each in sys.argv[1:3]], float(sys.argv[3])
paths = ["GET /health", "GET /live"]
def connect(port):
    found = socket.create_connection(("127.0.0.1", port), timeout=60)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found
def receive(link):
    found = link.recv(65536)
    if not found:
        raise ConnectionError
    return found
links = [connect(port) for port in ports]
waits, bad = [[], []], [0, 0]
end = time.monotonic() + seconds
while time.monotonic() < end:
    for at, link in enumerate(links):
        began = time.monotonic()
        try:
            link.sendall(f"{paths[at]} HTTP/1.1\\r\\nhost: localhost\\r\\n\\r\\n".encode())
            answer = b""
            while b"\\r\\n\\r\\n" not in answer:
                answer += receive(link)
            head, _, body = answer.partition(b"\\r\\n\\r\\n")
            length = int(head.lower().split(b"content-length:")[1].split()[0])
            while len(body) < length:
                body += receive(link)
            bad[at] += b" 200 " not in head[:20]
        except OSError:
            bad[at] += 1
            links[at] = connect(ports[at])
        waits[at].append(1e3 * (time.monotonic() - began))
    time.sleep(0.005)
print(json.dumps([waits, bad]))
"""


def worst_bodies() -> list[tuple[str, bytes]]:
    """Near the limits of size and depth, each costly in its own way: rows, numbers, texts, depth, a wrong type, a config."""
    deep = "[" * 38 + "1" + "]" * 38
    return [
        ("/forecast", json.dumps({"workload": {"graph": {"format": "x", "a": [[n, [n]] for n in range(280_000)]}},
                                  "cluster": {"device": "h100"}}).encode()),
        ("/forecast", json.dumps({"workload": {"name": [[n] for n in range(500_000)]}, "cluster": {}}).encode()),
        ("/schedule", json.dumps({"trace": {"text": "job_id,submit_s,num_gpus,duration_s\n" + "a,1,1,5\n" * 490_000},
                                  "cluster": "1x8"}).encode()),
        ("/forecast", ('{"workload": {"graph": {"format": [' + ",".join([deep] * 60_000) + "]}}}").encode()),
        ("/forecast", json.dumps({"workload": {"config": {"depths": [1_000_000], "model_type": "swin"}},
                                  "cluster": {"device": "h100"}}).encode()),
        ("/forecast", ("{" + ",".join(f'"k{n}": {n}' for n in range(380_000)) + "}").encode()),
        ("/models", json.dumps({"format": "traincast", "ops": [[n, "mm"] for n in range(1_500_000)]}).encode()),
    ]  # fmt: skip


async def send_bodies(port: int, seconds: float) -> None:
    bodies, end = worst_bodies(), time.monotonic() + seconds

    async def run(first: int) -> None:
        for path, content in itertools.islice(itertools.cycle(bodies), first, None):
            if time.monotonic() > end:
                return
            with contextlib.suppress(OSError, IndexError, ValueError, TimeoutError):
                async with asyncio.timeout(30):
                    await ask_raw(port, path, content)

    await asyncio.gather(*(run(first) for first in range(len(bodies))))


async def send_new(port: int, seconds: float) -> None:
    """Forecasts that were never asked, from more connections than there are places."""
    numbers, end = itertools.count(500_000), time.monotonic() + seconds

    async def run() -> None:
        connection = Connection(port)
        while time.monotonic() < end:
            status, _ = await connection.ask("POST", "/forecast", make_request(next(numbers)))
            if status == 429:
                await asyncio.sleep(1.0)
        connection.close()

    await asyncio.gather(*(run() for _ in range(128)))


async def send_halves(port: int, seconds: float) -> None:
    """Heads that never end and bodies that never come, opened again when the service closes them."""
    heads = (b"POST /forecast HTTP/1.1\r\nhost: localhost\r\nx", b"POST /forecast HTTP/1.1\r\nhost: localhost\r\n"
             b"content-type: application/json\r\ncontent-length: 5000\r\n\r\n{")  # fmt: skip
    end = time.monotonic() + seconds

    async def run(number: int) -> None:
        while time.monotonic() < end:
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(heads[number % 2])
                async with asyncio.timeout(max(0.1, end - time.monotonic())):
                    await reader.read()
                writer.close()

    await asyncio.gather(*(run(number) for number in range(1100)))


LOADS: dict[str, Callable[[int, float], object]] = {
    "nothing": lambda port, seconds: asyncio.sleep(seconds),
    "seven kinds of bodies of 4 to 30 MB": send_bodies,
    "1,100 half-sent requests": send_halves,
    "new forecasts, 128 connections": send_new,
}


@contextlib.contextmanager
def bare_beside(port: int) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = free.getsockname()[1]
    bare = Bare(chosen, 300)
    try:
        asyncio.run(bare.wait())
        yield chosen
    finally:
        bare.stop()


def measure(service: Service, bare_port: int, name: str, seconds: float) -> tuple[float, float]:
    """The row of one load; the 99th percentiles of the service and of the bare application in ms."""
    sender = threading.Thread(
        target=subprocess.run,
        args=([sys.executable, __file__, "--send", name, "--port", str(service.port), "--seconds", str(seconds)],),
    )
    sender.start()
    time.sleep(1.0)
    command = [sys.executable, "-c", PROBE, str(service.port), str(bare_port), str(max(1.0, seconds - 1))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    sender.join()
    waits, bad = json.loads(done.stdout)
    shown = []
    for found in waits:
        ordered = sorted(found)
        shown.append((ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))], ordered[-1], len(ordered)))
    (p50, p99, most, count), (bare50, bare99, bare_most, _) = shown
    print(f"| {name} | {count:,} | {p50:.1f} / {p99:.0f} / {most:.0f} | {bare50:.1f} / {bare99:.0f} / {bare_most:.0f} | "
          f"{p99 - bare99:+.0f} | {bad[0]} |", flush=True)  # fmt: skip
    return p99, bare99


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--send", choices=LOADS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        asyncio.run(LOADS[options.send](options.port, options.seconds))  # type: ignore[arg-type]
        return 0
    print(f"{os.cpu_count()} cores, load average before {os.getloadavg()[0]:.1f}, {options.seconds:g} s each")
    print("| load | asked | /health p50 / p99 / most, ms | bare | p99 beyond bare, ms | not 200 |")
    print("|---|--:|--:|--:|--:|--:|")
    slow = 0
    with serving() as service, bare_beside(service.port) as bare_port:
        for name in LOADS:
            p99, bare99 = measure(service, bare_port, name, options.seconds)
            slow += p99 - bare99 > 100
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
