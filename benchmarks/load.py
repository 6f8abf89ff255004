"""Rates of a real service beside a bare Starlette answer in the same run, with many connections and with callers who are slow.

python benchmarks/load.py [--seconds 6] [--connections 512]

The bare application reads the same body and answers with bytes of the same length under the same server, so that a ratio does
not depend on the machine. Clients are one asyncio process; a time-out is an answer that took more than two seconds.

Whether new forecasts use every core is asked of the kernel: a worker is busy while it runs on a core or waits for one
(/proc/PID/schedstat). On a machine that others use it runs less, but it is busy all the same.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from serve import Connection, Service, cycle, make_request, read_cpu_s, serving

BARE = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
ANSWER = b"x" * int(sys.argv[2])
async def answer(request):
    await request.body()
    return Response(ANSWER, media_type="application/json")
app = Starlette(routes=[Route("/forecast", answer, methods=["POST"]), Route("/live", answer)])
uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
"""
PATIENCE_S = 2.0


class Bare:
    """The least that an answer can cost under the same server."""

    def __init__(self, port: int, answer_bytes: int) -> None:
        self.port = port
        command = [sys.executable, "-c", BARE, str(port), str(answer_bytes)]
        self.process = subprocess.Popen(command)

    async def wait(self) -> None:
        for _ in range(200):
            try:
                await Connection(self.port).ask("POST", "/forecast", {})
                return
            except (ConnectionError, OSError):
                await asyncio.sleep(0.1)
        raise TimeoutError("the bare application did not start")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


class Seen:
    """What callers got."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.timeouts = 0
        self.per_client: Counter[int] = Counter()

    def row(self, name: str, elapsed_s: float, cpu_s: float) -> str:
        ordered = sorted(self.seconds) or [float("nan")]
        at = [1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99)]
        statuses = ", ".join(f"{status}: {count:,}" for status, count in sorted(self.statuses.items()))
        good = self.statuses[200]
        return (
            f"| {name} | {good / elapsed_s:,.0f} | {1e3 * cpu_s / max(1, len(self.seconds)):.2f} | {at[0]:.0f} | {at[1]:.0f} | "
            f"{statuses} | {self.timeouts} |"
        )


class Watch:
    """What the processes of a service did on which cores since the watch began."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = {child: read_turns(child) for child in list_children(pid)}
        self._after = self._before
        self._began_s = time.perf_counter()
        self._cores: dict[int, set[int]] = {}

    async def look(self, seconds: float) -> None:
        """While callers ask; afterwards they only wait for their last answers."""
        while time.perf_counter() - self._began_s < seconds:
            for child in self._before:
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                    if fields[0] == "R":
                        self._cores.setdefault(child, set()).add(int(fields[36]))
            await asyncio.sleep(0.05)
        self.elapsed_s = time.perf_counter() - self._began_s
        self._after = {child: read_turns(child) for child in self._before if Path(f"/proc/{child}").exists()}

    def rows(self) -> Iterator[str]:
        yield "| worker | CPU s | waiting for a core s | busy | seen on cores |"
        yield "|---|--:|--:|--:|---|"
        for child, after in self._after.items():
            ran_s, waited_s = (now - was for now, was in zip(after, self._before[child], strict=True))
            if ran_s + waited_s > 0.05 * self.elapsed_s:
                cores = ", ".join(str(core) for core in sorted(self._cores.get(child, ())))
                busy = (ran_s + waited_s) / self.elapsed_s
                yield f"| {child} | {ran_s:.2f} | {waited_s:.2f} | {busy:.0%} of {self.elapsed_s:.1f} s | {cores} |"


def read_turns(pid: int) -> tuple[float, float]:
    """Seconds on a core, and seconds in which it could have run but others did; of all its threads."""
    turns = [stat.read_text().split() for stat in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(each[0]) for each in turns) / 1e9, sum(int(each[1]) for each in turns) / 1e9


def list_children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


async def press(
    pid: int, port: int, *, seconds: float, connections: int, numbers: Iterator[int], source: str | None = None
) -> tuple[Seen, float, float]:
    """As fast as the connections can; a refused caller waits as it is told."""
    seen = Seen()
    cpu_s, begin = read_cpu_s(pid), time.perf_counter()

    async def run(client: int) -> None:
        connection = Connection(port, source=source)
        while time.perf_counter() - begin < seconds:
            body = make_request(next(numbers))
            started = time.perf_counter()
            try:
                status, _ = await connection.ask("POST", "/forecast", body)
            except (ConnectionError, OSError):
                seen.statuses[0] += 1
                await asyncio.sleep(0.05)
                continue
            took = time.perf_counter() - started
            seen.seconds.append(took)
            seen.timeouts += took > PATIENCE_S
            seen.statuses[status] += 1
            if status == 200:
                seen.per_client[client] += 1
            elif status == 429:
                await asyncio.sleep(1.0)
        connection.close()

    await asyncio.gather(*(run(client) for client in range(connections)))
    return seen, time.perf_counter() - begin, read_cpu_s(pid) - cpu_s


async def compare(options: argparse.Namespace) -> None:
    print(f"{os.cpu_count()} cores, load average before {os.getloadavg()[0]:.1f}, {options.seconds:g} s each")
    print("| requests | 200 per s | CPU ms each | p50 ms | p99 ms | answers | over 2 s |")
    print("|---|--:|--:|--:|--:|---|--:|")
    with serving() as service:
        known = 200
        warm = Connection(service.port)
        sizes = []
        for number in range(known):
            _, content = await warm.ask("POST", "/forecast", make_request(number))
            sizes.append(len(content))
        warm.close()
        bare = Bare(service.port + 1, int(statistics.median(sizes)))
        try:
            await bare.wait()
            await measure_known(service, bare, options, known)
        finally:
            bare.stop()
        fresh = iter(range(10_000, 10**9))
        for connections in (8, options.connections):
            watch = Watch(service.process.pid)
            looking = asyncio.create_task(watch.look(options.seconds))
            seen, elapsed_s, cpu_s = await press(
                service.process.pid, service.port, seconds=options.seconds, connections=connections, numbers=fresh
            )
            print(seen.row(f"new ones, {connections} connections", elapsed_s, cpu_s))
            await looking
            cores, workers = cpu_s / elapsed_s, list(watch.rows())
        least, most = min(seen.per_client.values(), default=0), max(seen.per_client.values(), default=0)
        print("", *workers, sep="\n")
        print(
            f"\nnew forecasts keep {cores:.2f} cores busy in the service; each of {len(seen.per_client)} connections that was "
        )
        print(f"answered got {least} to {most} answers")
        await measure_fairness(service, options)


async def measure_known(service: Service, bare: Bare, options: argparse.Namespace, known: int) -> None:
    rates: dict[str, list[float]] = {"bare": [], "known": []}
    costs: dict[str, list[float]] = {"bare": [], "known": []}
    for _ in range(options.rounds):
        for name, pid, port in (("bare", bare.process.pid, bare.port), ("known", service.process.pid, service.port)):
            seen, elapsed_s, cpu_s = await press(
                pid, port, seconds=options.seconds / options.rounds, connections=8, numbers=cycle(known)
            )
            rates[name].append(seen.statuses[200] / elapsed_s)
            costs[name].append(1e3 * cpu_s / len(seen.seconds))
            print(seen.row(f"{name}, 8 connections", elapsed_s, cpu_s))
    ratio = statistics.median(rates["known"]) / statistics.median(rates["bare"])
    cpu = statistics.median(costs["bare"]) / statistics.median(costs["known"])
    print(f"| **known beside bare** | **{ratio:.0%}** | {cpu:.0%} of its CPU budget | | | | |")
    for name, pid, port in (("bare", bare.process.pid, bare.port), ("known", service.process.pid, service.port)):
        seen, elapsed_s, cpu_s = await press(
            pid, port, seconds=options.seconds, connections=options.connections, numbers=cycle(known)
        )
        print(seen.row(f"{name}, {options.connections} connections", elapsed_s, cpu_s))


async def measure_fairness(service: Service, options: argparse.Namespace) -> None:
    """A client with hundreds of connections beside one with four: new forecasts of each, by their addresses."""
    fresh = iter(range(10**6, 10**9))
    greedy, modest = await asyncio.gather(
        *(
            press(
                service.process.pid,
                service.port,
                seconds=options.seconds,
                connections=count,
                numbers=fresh,
                source=source,
            )
            for count, source in ((options.connections, "127.0.0.1"), (4, "127.0.0.2"))
        )
    )
    for name, (seen, elapsed_s, _) in (("many", greedy), ("four", modest)):
        asked = sum(seen.statuses.values())
        print(
            f"client with {name} connections: {seen.statuses[200] / elapsed_s:.1f} answers per s, "
            f"{seen.statuses[429] / max(1, asked):.0%} of {asked:,} refused, {seen.timeouts} over {PATIENCE_S:g} s"
        )


async def ask_raw(port: int, path: str, content: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n"
    writer.write(f"{head}connection: close\r\n\r\n".encode() + content)
    await writer.drain()
    status = int((await reader.readline()).split()[1])
    await reader.read()
    writer.close()
    return status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=512)
    options = parser.parse_args()
    asyncio.run(compare(options))


if __name__ == "__main__":
    main()
