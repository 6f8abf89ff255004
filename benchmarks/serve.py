"""Load on a real service: rates and latencies, kills under load, requests drawn from its description, pictures of its page.

python benchmarks/serve.py load --seconds 10
python benchmarks/serve.py soak --minutes 10
python benchmarks/serve.py schema --examples 300
python benchmarks/serve.py page
python benchmarks/serve.py screenshots docs/screenshots
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKLOADS = ("gpt2", "gpt2-xl", "resnet50", "bert-large-uncased", "llama-2-7b", "t5-base", "vgg16", "opt-1.3b")
DEVICES = ("a100-80g", "h100", "v100-32g", "l4", "a10g", "t4")
SCHEDULE = {"trace": {"synthetic": 80}, "cluster": "2x8:a100@2.5", "policies": ["fifo", "srtf"]}
PLAN = {
    "workload": {"name": "gpt2", "seq": 256, "precision": "bf16"},
    "cluster": {"device": "a100-80g", "devices_per_node": 4},
    "job": {"steps": 1000},
    "global_batch": 16,
    "max_gpus": 4,
    "top": 10,
    "space": {"orders": ["1f1b"], "recompute": ["none"], "zero": [0, 1], "pipeline": [1]},
}


def make_request(number: int) -> dict[str, Any]:
    """The number-th of a long list of different catalogue forecasts."""
    draw = random.Random(number)
    return {
        "workload": {"name": draw.choice(WORKLOADS), "batch": 1 + number % 64},
        "cluster": {"device": draw.choice(DEVICES), "nodes": draw.choice((1, 2, 4)), "devices_per_node": 8},
        "parallelism": {"zero": draw.choice((0, 1, 2, 3))},
        "job": {"steps": 1000 + number},
    }


class Service:
    """A service in its own process, on its own port and state file."""

    def __init__(self, state: Path, *options: str) -> None:
        self._command = [sys.executable, "-m", "traincast", "serve", "--state", str(state), "--json", *options]
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [*self._command, "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]
        self.process.stdout.close()
        self.port = int(self.url.rsplit(":", 1)[1])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "state.db", *options)
        try:
            yield service
        finally:
            service.stop()


def read_cpu_s(pid: int) -> float:
    """CPU seconds of a process and of its children that live."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(stat.parent.name) == pid or int(fields[1]) == pid:
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Connection:
    """One kept-alive HTTP connection, as small as a load generator can be."""

    def __init__(self, port: int, *, source: str | None = None) -> None:
        """`source`: the address that the service sees."""
        self._port, self._source = port, source
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        if self._streams is None:
            own = None if self._source is None else (self._source, 0)
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, local_addr=own)
        reader, writer = self._streams
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\ncontent-type: application/json\r\n"
        writer.write(head.encode() + f"content-length: {len(content)}\r\n\r\n".encode() + content)
        try:
            status = int((await reader.readline()).split()[1])
            length = 0
            while (line := (await reader.readline()).strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            return status, await reader.readexactly(length)
        except (IndexError, OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


@dataclass(slots=True)
class Tally:
    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    """Of the service and its workers."""

    def row(self, name: str) -> str:
        ordered = sorted(self.seconds)
        at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3 for share in (0.5, 0.95, 0.99)]
        rate, each_ms = len(ordered) / self.elapsed_s, 1e3 * self.cpu_s / len(ordered)
        faults = sum(count for status, count in self.statuses.items() if status != 200)
        return f"| {name} | {rate:,.0f} | {at[0]:.1f} | {at[1]:.1f} | {at[2]:.1f} | {each_ms:.1f} | {len(ordered):,} | {faults} |"


async def press(
    service: Service, *, seconds: float, connections: int, numbers: Iterator[int], rate: float | None = None
) -> Tally:
    """Ask as fast as the connections can, or at a fixed rate with latencies counted from when a request was due."""
    tally = Tally()
    cpu_s = read_cpu_s(service.process.pid)
    begin = time.perf_counter()
    due = (begin + place / rate for place in range(10**9)) if rate else None

    async def run() -> None:
        connection = Connection(service.port)
        while time.perf_counter() - begin < seconds:
            started = time.perf_counter()
            if due is not None:
                started = next(due)
                await asyncio.sleep(max(0.0, started - time.perf_counter()))
            status, _ = await connection.ask("POST", "/forecast", make_request(next(numbers)))
            tally.seconds.append(time.perf_counter() - started)
            tally.statuses[status] += 1
        connection.close()

    await asyncio.gather(*(run() for _ in range(connections)))
    tally.elapsed_s = time.perf_counter() - begin
    tally.cpu_s = read_cpu_s(service.process.pid) - cpu_s
    return tally


def cycle(count: int) -> Iterator[int]:
    while True:
        yield from range(count)


async def load(arguments: argparse.Namespace) -> None:
    print(f"2 workers on {os.cpu_count()} cores, load average before {os.getloadavg()[0]:.1f}")
    print("| requests | per s | p50 ms | p95 ms | p99 ms | CPU ms each | asked | not 200 |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    with serving("--workers", "2") as service:
        known = 200
        warm = Connection(service.port)
        for number in range(known):
            await warm.ask("POST", "/forecast", make_request(number))
        warm.close()
        options: dict[str, Any] = {"seconds": arguments.seconds, "connections": arguments.connections}
        print((await press(service, numbers=cycle(known), **options)).row(f"{known} known ones, as fast as possible"))
        print((await press(service, numbers=cycle(known), rate=200.0, **options)).row("known ones at 200/s"))
        fresh = iter(range(10_000, 10**9))
        print((await press(service, numbers=fresh, **options)).row("each one new, as fast as possible"))
        rate = arguments.fresh_rate
        print((await press(service, numbers=fresh, rate=rate, **options)).row(f"each one new at {rate:g}/s"))
        wrk = shutil.which("wrk")
        if wrk is not None:
            body = json.dumps(make_request(0))
            script = f'wrk.method="POST"; wrk.headers["content-type"]="application/json"; wrk.body=[[{body}]]'
            with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
                file.write(script)
                file.flush()
                command = [wrk, "-t1", f"-c{arguments.connections}", f"-d{int(arguments.seconds)}s", "--latency", "-s",
                           file.name, f"{service.url}/forecast"]  # fmt: skip
                print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


async def soak(arguments: argparse.Namespace) -> None:
    """Mixed load while the service is killed again and again: what was seen finished must stay finished."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "state.db", "--workers", "2")
        finished: dict[str, bytes] = {}
        pending: set[str] = set()
        statuses: Counter[int] = Counter()
        resident: list[float] = []
        dropped = kills = 0
        up = asyncio.Event()
        up.set()
        end = time.monotonic() + 60 * arguments.minutes
        numbers = iter(range(10**9))

        async def client(kind: str) -> None:
            nonlocal dropped
            connection = Connection(service.port)
            while time.monotonic() < end:
                await up.wait()
                number = next(numbers)
                try:
                    if kind == "forecast":
                        asked = number % 400 if number % 3 else number
                        status, _ = await connection.ask("POST", "/forecast", make_request(asked))
                    elif kind == "bad":
                        body = {"workload": {"name": "gtp2"}, "cluster": {"device": "h100"}}
                        status, _ = await connection.ask("POST", "/forecast", body)
                    elif kind == "read":
                        status, _ = await connection.ask("GET", ("/catalog/devices", "/metrics", "/health")[number % 3])
                    else:
                        path, body = (
                            ("/plan", PLAN) if number % 5 == 0 else ("/schedule", {**SCHEDULE, "seed": number % 50})
                        )
                        status, content = await connection.ask("POST", path, body)
                        if status == 202:
                            pending.add(json.loads(content)["id"])
                        await asyncio.sleep(0.5)
                    statuses[status] += 1
                except (ConnectionError, OSError):
                    dropped += 1
                    connection.close()
                    await asyncio.sleep(0.1)
                await asyncio.sleep(0.01)
            connection.close()

        async def watch() -> None:
            connection = Connection(service.port)
            while time.monotonic() < end:
                await up.wait()
                for job in list(pending):
                    try:
                        status, content = await connection.ask("GET", f"/jobs/{job}")
                    except (ConnectionError, OSError):
                        connection.close()
                        break
                    if status == 200 and json.loads(content)["state"] in ("done", "failed", "cancelled"):
                        finished[job] = content
                        pending.discard(job)
                await asyncio.sleep(0.2)

        async def execute() -> None:
            nonlocal kills
            while time.monotonic() + arguments.every < end:
                await asyncio.sleep(arguments.every)
                resident.append(read_resident(service.process.pid))
                up.clear()
                service.kill()
                kills += 1
                await asyncio.to_thread(service.start)
                up.set()

        kinds = ["forecast"] * 4 + ["job", "bad", "read"]
        await asyncio.gather(*(client(kind) for kind in kinds), watch(), execute())
        connection = Connection(service.port)
        lost = 0
        for job, before in finished.items():
            status, content = await connection.ask("GET", f"/jobs/{job}")
            lost += status != 200 or content != before
        steady = read_resident(service.process.pid)
        growth = [steady]
        begin, asked = time.monotonic(), 0
        while time.monotonic() - begin < arguments.steady:
            status, _ = await connection.ask("POST", "/forecast", make_request(next(numbers)))
            statuses[status] += 1
            asked += 1
            if asked % 50 == 0:
                growth.append(read_resident(service.process.pid))
        connection.close()
        service.stop()
        faults = sum(count for status, count in statuses.items() if status >= 500)
        print(f"{arguments.minutes:g} minutes, {kills} kills (SIGKILL every {arguments.every:g} s), "
              f"load average {os.getloadavg()[0]:.1f}")  # fmt: skip
        print(f"answers by status: {dict(sorted(statuses.items()))}; connections cut by a kill: {dropped}")
        print(f"jobs seen finished: {len(finished)}; of these lost or changed after kills: {lost}; 5xx: {faults}")
        shown = ", ".join(f"{each / 2**20:.0f}" for each in resident)
        print(f"resident MiB of the service before each kill: {shown}")
        print(
            f"resident MiB over {asked} new forecasts without a kill: {growth[0] / 2**20:.0f} to {growth[-1] / 2**20:.0f}"
        )
        sys.exit(1 if lost or faults else 0)


def read_resident(pid: int) -> float:
    return float(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def schema(arguments: argparse.Namespace) -> None:
    with serving("--workers", "2") as service:
        command = [shutil.which("schemathesis") or str(Path(sys.executable).parent / "schemathesis"), "run",
                   f"{service.url}/openapi.json", "--checks", "not_a_server_error", "--phases", "examples,fuzzing",
                   "--max-examples", str(arguments.examples), "--request-timeout", "60"]  # fmt: skip
        sys.exit(subprocess.run(command, check=False).returncode)


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        )
        yield browser
        browser.close()


def page(arguments: argparse.Namespace) -> None:
    """Time from the start of the navigation until the first forecast can be read."""
    with serving("--workers", "2") as service, browsing() as browser:
        times: dict[str, list[float]] = {"first paint": [], "first forecast": []}
        for _ in range(arguments.visits):
            opened = browser.new_page(viewport={"width": 1280, "height": 900})
            opened.goto(service.url)
            opened.wait_for_selector("#panel-forecast .cards", timeout=60_000)
            times["first forecast"].append(opened.evaluate("performance.now()"))
            paint = opened.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN")
            times["first paint"].append(paint)
            opened.close()
        print(f"load average {os.getloadavg()[0]:.1f}")
        for name, found in times.items():
            print(f"{name}: median {statistics.median(found):.0f} ms, worst {max(found):.0f} ms of {len(found)} visits")


def screenshots(arguments: argparse.Namespace) -> None:
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    wide, phone = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
    small = "#name=gpt2-xl&global_batch=64&max_gpus=16&deadline=24"
    shots = [
        ("forecast", wide, "light", "", None, "#panel-forecast .cards"),
        ("scaling", wide, "light", "#tab=scaling", None, "#panel-scaling tbody tr"),
        ("plan", wide, "light", f"{small}&tab=plan&top=100", "#plan-ask", "#plans tbody tr"),
        ("schedule", wide, "dark", "#tab=schedule&trace_jobs=200", "#schedule-ask", "#gantt svg"),
        ("forecast-phone", phone, "dark", "", None, "#panel-forecast .cards"),
        ("error", wide, "light", "#device=b20", None, "#panel-forecast [role=alert]"),
    ]
    with serving("--workers", "2") as service, browsing() as browser:
        for name, viewport, scheme, address, click, ready in shots:
            if arguments.only and name not in arguments.only:
                continue
            context = browser.new_context(viewport=viewport, color_scheme=scheme)
            opened = context.new_page()
            opened.goto(f"{service.url}/{address}")
            if click is not None:
                opened.click(click)
            opened.wait_for_selector(ready, timeout=600_000)
            opened.wait_for_selector("#ask:not([disabled])", state="attached", timeout=600_000)
            if name == "forecast-phone":
                opened.locator("#answers").scroll_into_view_if_needed()
                opened.evaluate("document.getElementById('answers').scrollIntoView()")
            elif click is not None:
                opened.evaluate("document.querySelector('#plan-answer svg, #measures')?.scrollIntoView()")
            opened.screenshot(path=str(folder / f"{name}.png"))
            print(f"{folder / name}.png")
            context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("load")
    one.add_argument("--seconds", type=float, default=10.0)
    one.add_argument("--connections", type=int, default=8)
    one.add_argument("--fresh-rate", type=float, default=40.0)
    two = commands.add_parser("soak")
    two.add_argument("--minutes", type=float, default=10.0)
    two.add_argument("--every", type=float, default=30.0, help="seconds between kills")
    two.add_argument("--steady", type=float, default=30.0, help="seconds of load without a kill at the end")
    three = commands.add_parser("schema")
    three.add_argument("--examples", type=int, default=300)
    four = commands.add_parser("page")
    four.add_argument("--visits", type=int, default=5)
    five = commands.add_parser("screenshots")
    five.add_argument("folder", nargs="?", default="docs/screenshots")
    five.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    run = {"load": load, "soak": soak, "schema": schema, "page": page, "screenshots": screenshots}[arguments.command]
    outcome = run(arguments)
    if asyncio.iscoroutine(outcome):
        asyncio.run(outcome)


if __name__ == "__main__":
    main()
