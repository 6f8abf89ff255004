"""Kills and starves every command that keeps something, on real files, and counts what was lost.

python benchmarks/faults.py [--kills 200] [--full-disks 50] [--seed 0]

A kill is SIGKILL at a random moment. A full disk is a small tmpfs (root) that is filled while the command runs and emptied
again. What was acknowledged (a 202, a line on standard output, a file that a command had finished) must be there afterwards.
"""

import argparse
import contextlib
import csv
import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEDULE = {"trace": {"synthetic": 60}, "cluster": "2x8:a100@2.5", "policies": ["fifo"]}
WRITER = """
import sys
from traincast.spec import Block, Environment, Experiment
from traincast.store import Store, digest_of
from traincast.errors import InvalidInput
with Store(sys.argv[1]) as store:
    for number in range(int(sys.argv[2]), 10**9):
        row = (Experiment(subject="operator", name="matmul", attrs={"m": number}), Environment(device="cpu"),
               Block(started_at="", wall_s=tuple(1e-3 * (number + k) for k in range(1, 40))))
        try:
            store.append(*row)
        except InvalidInput:
            continue
        print(digest_of(*row), flush=True)
"""


@dataclass(slots=True)
class Tally:
    """One row of the table."""

    what: str
    injected: int = 0
    acknowledged: int = 0
    lost: int = 0
    stuck: int = 0
    """Times the command did not go on by itself."""

    def row(self) -> str:
        return f"| {self.what} | {self.injected} | {self.acknowledged:,} | {self.lost} | {int(self.stuck)} |"


class Service:
    """A service on a state file that outlives it."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.start()

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "traincast",
            "serve",
            "--port",
            "0",
            "--workers",
            "1",
            "--json",
            "--state",
            str(self._state),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline() if self.process.stdout else ""
        self.url = json.loads(line)["url"]

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"content-type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"{}")
        except (OSError, ValueError):
            return 0, None

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def settle(self, jobs: list[str], *, patience_s: float = 120.0) -> dict[str, Any]:
        """How each job stands once none is under way, or patience ends."""
        until, found = time.monotonic() + patience_s, {}
        for job in jobs:
            while True:
                status, content = self.ask("GET", f"/jobs/{job}")
                found[job] = content if status == 200 else {"state": f"status {status}"}
                if found[job]["state"] not in ("queued", "running") or time.monotonic() > until:
                    break
                time.sleep(0.1)
        return found


def kill_service(count: int, folder: Path, draw: random.Random) -> Tally:
    """Jobs that were promised are done after any kill, and what was seen finished stays as it was."""
    tally = Tally("service: jobs after SIGKILL")
    service = Service(folder / "state.db")
    finished: dict[str, Any] = {}
    promised: list[str] = []
    for _ in range(count):
        until = time.monotonic() + draw.uniform(0.0, 0.6)
        while time.monotonic() < until:
            status, content = service.ask("POST", "/schedule", {**SCHEDULE, "seed": draw.randrange(1000)})
            if status == 202:
                promised.append(content["id"])
            time.sleep(draw.uniform(0, 0.1))
        service.kill()
        tally.injected += 1
        service.start()
        if len(promised) > 40:
            finished.update(service.settle(promised))
            promised = []
    finished.update(service.settle(promised))
    tally.acknowledged = len(finished)
    # A job that ran at three kills is given up with that reason; it is not lost.
    for job, before in finished.items():
        _, after = service.ask("GET", f"/jobs/{job}")
        ended = before["state"] == "done" or "not tried again" in str(before.get("error"))
        tally.lost += not ended or after != before
    tally.stuck = service.ask("GET", "/health")[0] != 200
    service.stop()
    return tally


def kill_writer(count: int, folder: Path, draw: random.Random) -> Tally:
    """Blocks that were acknowledged are in the store, and it is sound."""
    tally = Tally("measurement store: blocks after SIGKILL")
    path, start = folder / "m.db", 0
    known: set[str] = set()
    for _ in range(count):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(start)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        time.sleep(draw.uniform(0.3, 1.0))
        process.kill()
        out = process.communicate()[0]
        lines = [line for line in out.splitlines() if len(line) == 32]
        known.update(lines)
        start += len(lines) + 1
        tally.injected += 1
    tally.acknowledged = len(known)
    with contextlib.closing(sqlite3.connect(path)) as db:
        held = {row[0] for row in db.execute("SELECT digest FROM blocks")}
        tally.lost = len(known - held)
        tally.stuck = db.execute("PRAGMA integrity_check").fetchone()[0] != "ok"
    return tally


def kill_command(
    what: str, count: int, draw: random.Random, command: list[str], *, is_whole: Callable[[], bool], longest_s: float
) -> Tally:
    """Run a command to its end once, then kill it again and again while it works on the same output."""
    tally = Tally(what)
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole_s = min(longest_s, time.monotonic() - began)
    for _ in range(count):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.2, 1.05) * whole_s)
        process.kill()
        process.wait()
        tally.injected += 1
        tally.acknowledged += 1
        tally.lost += not is_whole()
    tally.stuck = subprocess.run(command, check=False, capture_output=True).returncode != 0 or not is_whole()
    return tally


def kill_batch(count: int, folder: Path, draw: random.Random) -> Tally:
    cases, out = folder / "cases.csv", folder / "out.csv"
    rows = [f"c{n},resnet50,a100-40g,{2 ** (n % 4)},1,{8 + n},fp32" for n in range(60)]
    cases.write_text("case_id,model,gpu,num_gpus,nodes,batch_per_gpu,precision\n" + "\n".join(rows) + "\n")

    def is_whole() -> bool:
        with out.open(newline="") as stream:
            return len(list(csv.DictReader(stream))) == 60

    command = [sys.executable, "-m", "traincast", "batch", str(cases), "-o", str(out), "--workers", "1"]
    return kill_command("batch: the table of answers", count, draw, command, is_whole=is_whole, longest_s=20)


def kill_import(count: int, folder: Path, draw: random.Random) -> Tally:
    """Importing the same table again and again into one store: never twice, never half a block."""
    from traincast.spec import Block, Environment, Experiment
    from traincast.store import Row, Store, export_table

    def make_row(number: int) -> Row:
        experiment = Experiment(subject="operator", name="matmul", attrs={"m": number})
        return experiment, Environment(device="cpu"), Block(started_at="", wall_s=(1e-3 * (number + 1),) * 20)

    rows = [make_row(number) for number in range(3000)]
    export_table(rows, folder / "t.csv")

    def is_whole() -> bool:
        with Store(folder / "i.db") as store:
            store.check()
            counts = store.counts()
        return counts["repeats"] == 20 * counts["blocks"] and counts["blocks"] in (0, 3000)

    command = [sys.executable, "-m", "traincast", "store", "import", str(folder / "i.db"), str(folder / "t.csv")]
    first = Tally("store import: all of a table or nothing")
    for _ in range(count):
        (folder / "i.db").unlink(missing_ok=True)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.3, 1.6))
        process.kill()
        process.wait()
        first.injected += 1
        first.acknowledged += 1
        first.lost += not is_whole()
    first.stuck = subprocess.run(command, check=False, capture_output=True).returncode != 0
    return first


def kill_schedule(count: int, folder: Path, draw: random.Random) -> Tally:
    out = folder / "sweep"

    def is_whole() -> bool:
        return all(
            file.stat().st_size > 0 for file in out.rglob("*") if file.is_file() and not file.name.startswith(".")
        )

    command = [sys.executable, "-m", "traincast", "schedule", "synthetic:300", "-c", "2x8:a100@2.5", "-p", "fifo,srtf",
               "--error-sweep", "-o", str(out)]  # fmt: skip
    return kill_command("schedule sweep: its folder", count, draw, command, is_whole=is_whole, longest_s=30)


def kill_measuring(what: str, count: int, folder: Path, draw: random.Random, command: list[str], store: Path) -> Tally:
    """Commands that measure into a store: what it held before a kill it holds after."""
    tally = Tally(f"{what}: blocks after SIGKILL")
    known: set[str] = set()
    for _ in range(count):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        time.sleep(draw.uniform(5.0, 12.0))
        seen = _digests(store)
        process.kill()
        process.wait()
        tally.injected += 1
        known |= seen
        tally.lost += len(known - _digests(store))
    tally.acknowledged = len(known)
    return tally


def _digests(store: Path) -> set[str]:
    if not store.exists():
        return set()
    with contextlib.closing(sqlite3.connect(store, timeout=30)) as db, contextlib.suppress(sqlite3.OperationalError):
        return {row[0] for row in db.execute("SELECT digest FROM blocks")}
    return set()


@contextlib.contextmanager
def small_disk(size: int) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="traincast-disk-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()


def fill(disk: Path) -> None:
    with (disk / "filling").open("wb", buffering=0) as stream:
        for size in (2**16, 2**12, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(b"\0" * size)


def fill_service(count: int, draw: random.Random) -> Tally:
    """A disk that is full for a moment: refusals with a reason, and everything promised is done afterwards."""
    tally = Tally("service: jobs over full disks")
    text = "job_id,submit_s,num_gpus,duration_s\n" + "".join(f"job-{n},{n},1,60\n" for n in range(400))
    body = {**SCHEDULE, "trace": {"text": text}}
    with small_disk(24 * 2**20) as disk:
        service = Service(disk / "state.db")
        promised: list[str] = []
        for _ in range(count):
            fill(disk)
            refused = 0
            until = time.monotonic() + draw.uniform(0.3, 1.2)
            while time.monotonic() < until:
                status, content = service.ask("POST", "/schedule", body)
                if status == 202:
                    promised.append(content["id"])
                elif status == 503:
                    refused += 1
                else:
                    tally.stuck += status != 429
            health = service.ask("GET", "/health")[0]
            tally.stuck += bool(refused) and health != 503
            (disk / "filling").unlink()
            tally.injected += 1
            status, content = 0, None
            for _ in range(60):
                status, content = service.ask("POST", "/schedule", {**SCHEDULE, "seed": draw.randrange(1000)})
                if status == 202:
                    promised.append(content["id"])
                    break
                time.sleep(0.1)
            tally.stuck += status not in (202, 429)
        found = service.settle(promised, patience_s=300)
        tally.acknowledged = len(found)
        tally.lost = sum(job["state"] != "done" for job in found.values())
        tally.stuck += service.ask("GET", "/health")[0] != 200
        service.stop()
    return tally


def fill_writer(count: int, draw: random.Random) -> Tally:
    tally = Tally("measurement store: blocks over full disks")
    known: set[str] = set()
    with small_disk(12 * 2**20) as disk:
        start = 0
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-c", WRITER, str(disk / "m.db"), str(start)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            time.sleep(draw.uniform(0.3, 0.8))
            fill(disk)
            time.sleep(0.3)
            (disk / "filling").unlink()
            time.sleep(0.3)
            process.kill()
            lines = [line for line in process.communicate()[0].splitlines() if len(line) == 32]
            known.update(lines)
            start += 5000
            tally.injected += 1
        with contextlib.closing(sqlite3.connect(disk / "m.db")) as db:
            held = {row[0] for row in db.execute("SELECT digest FROM blocks")}
            tally.stuck = db.execute("PRAGMA integrity_check").fetchone()[0] != "ok"
        tally.acknowledged, tally.lost = len(known), len(known - held)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--full-disks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--without-measuring", action="store_true", help="leave out profile and calibrate, which load PyTorch"
    )
    options = parser.parse_args()
    draw = random.Random(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="traincast-faults-"))
    print("| what was injected | times | acknowledged | lost | did not go on |")
    print("|---|--:|--:|--:|--:|")
    share = options.kills / 200
    tallies = []

    def add(tally: Tally) -> None:
        tallies.append(tally)
        print(tally.row(), flush=True)

    def part(count: int) -> int:
        return max(1, round(count * share))

    measuring = 0 if options.without_measuring else 10
    try:
        add(kill_service(part(80 + (10 - measuring)), folder, draw))
        add(kill_writer(part(50), folder, draw))
        add(kill_import(part(30), folder, draw))
        add(kill_batch(part(20), folder, draw))
        add(kill_schedule(part(10), folder, draw))
        if measuring:
            run = [sys.executable, "-m", "traincast"]
            store = folder / "profile.db"
            command = [*run, "profile", "operators", "--store", str(store), "--rounds", "50", "--block", "0.02"]
            add(kill_measuring("profile", part(5), folder, draw, command, store))
            kept = folder / "calibrate.db"
            command = [*run, "calibrate", "--budget", "5min", "--store", str(kept), "-o", str(folder / "c.json")]
            add(kill_measuring("calibrate", part(5), folder, draw, command, kept))
        add(fill_service(round(options.full_disks * 0.6), draw))
        add(fill_writer(round(options.full_disks * 0.4), draw))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    bad = sum(tally.lost + tally.stuck for tally in tallies)
    print(f"\n{sum(tally.injected for tally in tallies)} faults, {bad} with a loss or a stop")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
