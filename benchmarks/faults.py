"""Kills and starves every command that keeps something, on real files, and counts what was lost.

python benchmarks/faults.py [--kills 200] [--full-disks 50] [--seed 0] [--only service batch full-store ...] [--record FILE]

A kill is SIGKILL at a random moment. A full disk is a small tmpfs (root) that is filled while the command runs and emptied
again. What was acknowledged (a 202, a line on standard output, a file that a command had finished) must be there afterwards.
With a record, each row is written down when it is done, and a later run makes the missing ones.
"""

import argparse
import contextlib
import csv
import functools
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
from dataclasses import asdict, dataclass
from datetime import date
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


def write_cases(path: Path, *, count: int, measured: bool = False) -> None:
    """A table of jobs, with the measured time of a step where something is to be learnt from it."""
    rows = []
    for n in range(count):
        name, gpus, batch = ("gpt2", "gpt2-medium", "bert-base-uncased")[n % 3], 2 ** (n % 4), 1 + n // 3
        step_s = f",{0.004 * batch * (1 + 0.02 * (n % 7)):.4f}" if measured else ""
        rows.append(f"c{n},{name},pytorch,a100-80g,{gpus},{batch},bf16,512{step_s}")
    head = "case_id,model,framework,gpu,n_gpus,micro_batch,dtype,seq_len" + (",measured_step_s" if measured else "")
    path.write_text(f"{head}\n" + "\n".join(rows) + "\n")


def kill_resumed(
    what: str, count: int, draw: random.Random, command: list[str], *, journal: Path, output: Path
) -> Tally:
    """Kill a command that keeps what it has, and resume it: nothing kept is lost, and the end is as without any kill."""
    tally = Tally(what)
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole_s, whole = time.monotonic() - began, output.read_bytes()
    output.unlink()
    kept: set[str] = set()
    while tally.injected < count:
        process = subprocess.Popen([*command, "--resume"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(0.3, 1.0) * whole_s)
        if process.poll() is None:
            process.kill()
            process.wait()
            tally.injected += 1
            now = _kept_lines(journal)
            # Where the output is there, the kill came between it and the end of the process, and the journal may be gone.
            tally.lost += 0 if output.exists() else len(kept - now)
            tally.acknowledged += len(now - kept)
            kept = now
        else:
            tally.stuck += process.returncode != 0
            kept = set()
        if output.exists():
            tally.lost += output.read_bytes() != whole
            output.unlink()
    done = subprocess.run([*command, "--resume"], check=False, capture_output=True)
    tally.stuck += done.returncode != 0
    tally.lost += done.returncode != 0 or output.read_bytes() != whole
    return tally


def _kept_lines(journal: Path) -> set[str]:
    """The whole lines of a journal; the one that a kill cut off was not promised to anybody."""
    if not journal.exists():
        return set()
    found = set()
    for line in journal.read_text(errors="replace").split("\n")[1:-1]:
        with contextlib.suppress(ValueError):
            found.add(json.dumps(json.loads(line)))
    return found


RUN = [sys.executable, "-m", "traincast"]


def kill_batch(count: int, folder: Path, draw: random.Random) -> Tally:
    cases, out = folder / "cases.csv", folder / "out.csv"
    write_cases(cases, count=90)
    command = [*RUN, "batch", str(cases), "-o", str(out), "--workers", "1"]
    journal = out.with_name("out.csv.partial")
    return kill_resumed("batch --resume: rows after SIGKILL", count, draw, command, journal=journal, output=out)


def kill_learn(count: int, folder: Path, draw: random.Random) -> Tally:
    """What was learnt before is whole and usable after any kill of learning again."""
    runs, out = folder / "runs.csv", folder / "mine.json"
    write_cases(runs, count=21, measured=True)

    def is_whole() -> bool:
        from traincast.learn._calibrations import load_calibration

        return load_calibration(out).runs is not None

    command = [*RUN, "learn", str(runs), "-o", str(out)]
    return kill_command("learn: the calibration", count, draw, command, is_whole=is_whole, longest_s=60)


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


def kill_measuring(what: str, count: int, folder: Path, draw: random.Random, command: list[str], store: Path) -> Tally:
    """Commands that measure into a store: what it held before a kill it holds after, and each start adds to it."""
    tally = Tally(f"{what}: blocks after SIGKILL")
    known: set[str] = set()
    for _ in range(count):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        until = time.monotonic() + 300
        while process.poll() is None and _digests(store) <= known and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(draw.uniform(0.0, 2.0))
        seen = _digests(store)
        tally.stuck += seen <= known
        process.kill()
        process.wait()
        tally.injected += 1
        known |= seen
        tally.lost += len(known - _digests(store))
    tally.acknowledged = len(known)
    with contextlib.closing(sqlite3.connect(store)) as db:
        tally.stuck += db.execute("PRAGMA integrity_check").fetchone()[0] != "ok"
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
            # Jobs that wait and one that runs when the disk is full.
            for _ in range(draw.randrange(1, 5)):
                status, content = service.ask("POST", "/schedule", body)
                if status == 202:
                    promised.append(content["id"])
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


def fill_command(
    what: str,
    count: int,
    draw: random.Random,
    arguments: Callable[[Path], list[str]],
    *,
    is_whole: Callable[[Path], bool],
) -> Tally:
    """A disk that is full while a command works: one line that says so, nothing half-written, and it goes on afterwards."""
    tally = Tally(what)
    with small_disk(8 * 2**20) as disk:
        command = [*RUN, *arguments(disk)]
        began = time.monotonic()
        subprocess.run(command, check=True, capture_output=True)
        whole_s = time.monotonic() - began
        for _ in range(count):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            time.sleep(draw.uniform(0.1, 0.9) * whole_s)
            fill(disk)
            _, words = process.communicate()
            (disk / "filling").unlink()
            tally.injected += 1
            tally.acknowledged += 1
            tally.lost += not is_whole(disk)
            tally.stuck += "Traceback" in words or "internal error" in words or process.returncode not in (0, 2)
        done = subprocess.run(command, check=False, capture_output=True)
        tally.stuck += done.returncode != 0
    return tally


def fill_batch(count: int, draw: random.Random) -> Tally:
    def arguments(disk: Path) -> list[str]:
        write_cases(disk / "cases.csv", count=60)
        return ["batch", str(disk / "cases.csv"), "-o", str(disk / "out.csv"), "--workers", "1"]

    def is_whole(disk: Path) -> bool:
        with (disk / "out.csv").open(newline="") as stream:
            return len(list(csv.DictReader(stream))) == 60

    return fill_command("batch: the table over full disks", count, draw, arguments, is_whole=is_whole)


def kill_profile(count: int, folder: Path, draw: random.Random) -> Tally:
    store = folder / "profile.db"
    command = [*RUN, "profile", "operators", "--store", str(store), "--rounds", "50", "--block", "0.02"]
    return kill_measuring("profile", count, folder, draw, command, store)


def kill_calibrate(count: int, folder: Path, draw: random.Random) -> Tally:
    store = folder / "calibrate.db"
    command = [*RUN, "calibrate", "--budget", "5min", "--store", str(store), "-o", str(folder / "c.json")]
    return kill_measuring("calibrate", count, folder, draw, command, store)


KILLS: dict[str, tuple[int, Callable[[int, Path, random.Random], Tally]]] = {
    "service": (70, kill_service),
    "store": (40, kill_writer),
    "import": (20, kill_import),
    "batch": (20, kill_batch),
    "learn": (15, kill_learn),
    "profile": (8, kill_profile),
    "calibrate": (7, kill_calibrate),
}
"""How many of 200 kills each command gets; the last two load PyTorch."""
FULL: dict[str, tuple[int, Callable[[int, random.Random], Tally]]] = {
    "full-service": (25, fill_service),
    "full-store": (15, fill_writer),
    "full-batch": (5, fill_batch),
}
"""How many of 50 full disks."""


HEAD = ("| what was injected | times | acknowledged | lost | did not go on |", "|---|--:|--:|--:|--:|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--full-disks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=[*KILLS, *FULL], help="some of the rows")
    parser.add_argument("--record", type=Path, help="a JSON file of finished rows; those in it are not run again")
    parser.add_argument("--again", action="store_true", help="begin the record anew instead of going on")
    parser.add_argument("--write", type=Path, help="a page about the rows")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="traincast-faults-"))
    if options.again and options.record:
        options.record.unlink(missing_ok=True)
    known = json.loads(options.record.read_text()) if options.record and options.record.is_file() else {}
    print(*HEAD, sep="\n")
    tallies = []
    try:
        for name, run in plan_rows(options, folder):
            if name in known:
                told = {key: value for key, value in known[name].items() if key != "date"}
                tallies.append(Tally(**told))
            else:
                tallies.append(run(random.Random(f"{name} {options.seed}")))
                known[name] = {**asdict(tallies[-1]), "date": f"{date.today()}"}
                if options.record:
                    options.record.write_text(json.dumps(known, indent=1) + "\n")
            print(tallies[-1].row(), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.write:
        options.write.write_text(
            format_page(tallies, sorted({told["date"] for told in known.values()})), encoding="utf-8"
        )
    bad = sum(tally.lost + tally.stuck for tally in tallies)
    print(f"\n{sum(tally.injected for tally in tallies)} faults, {bad} with a loss or a stop")
    return 1 if bad else 0


ABOUT = """# Kills and full disks

`make faults` kills and starves every command that keeps something, on real files.
Killed is SIGKILL at a random moment. A full disk is a small tmpfs that is filled while the command works, and emptied again.
Acknowledged is what a caller had been told: a job by its 202, a row in a journal, a block in a store, a file that was finished.
"""
SHORT = """
Jobs that are asked for while a disk is full are refused with 503 and a reason; those that were promised come before and after.
Results that end meanwhile are held, and written when there is space again.
`batch` is resumed after each kill, and its result must be byte for byte that of a run that nobody killed.
`benchmarks/faults.json` holds the counts.

Short forms are tests: `tests/service/test_faults.py`, `test_jobs.py`, `test_shared.py`, `tests/store/test_store.py`,
`tests/cli/test_kills.py`, `test_batch_resume.py`, `tests/profile/test_profile_command.py`.
"""


def format_page(tallies: list[Tally], dates: list[str]) -> str:
    injected = sum(tally.injected for tally in tallies)
    kills = sum(tally.injected for tally in tallies if "full disks" not in tally.what)
    lost, stuck = sum(tally.lost for tally in tallies), sum(int(tally.stuck) for tally in tallies)
    between = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    found = f"{between}: {kills} kills and {injected - kills} full disks, **{lost} lost**, {stuck} did not go on.\n"
    return "\n".join([ABOUT, found, *HEAD, *(tally.row() for tally in tallies), SHORT])


def plan_rows(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Callable[[random.Random], Tally]]]:
    for name, (count, kill) in KILLS.items():
        if not options.only or name in options.only:
            yield name, functools.partial(kill, max(1, round(count * options.kills / 200)), folder)
    for name, (count, starve) in FULL.items():
        if not options.only or name in options.only:
            yield name, functools.partial(starve, max(1, round(count * options.full_disks / 50)))


if __name__ == "__main__":
    sys.exit(main())
