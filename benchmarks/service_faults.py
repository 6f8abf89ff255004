"""Kills the service at random moments, on a SQLite file and on PostgreSQL, and counts what was promised and lost.

python benchmarks/service_faults.py [--kills 100] [--write research/results/service-faults.md]

Each round starts the service on the state that the rounds before left, asks for jobs, uploads a model and sends a signal to its
whole group of processes after a random time: mostly SIGKILL, else SIGTERM, SIGINT or SIGHUP. Every job that was answered with 202
must end as done, once, with the same result for the same request; every model that was answered with 200 must be found again
under its id; a forecast with the calibration that the service was started with must be the same in every round.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from builders import make_mlp  # noqa: E402
from service.conftest import Running, start  # noqa: E402
from service.test_shared import serving  # noqa: E402
from traincast.__main__ import main as main_command  # noqa: E402
from traincast.files import GRAPH_FORMAT, GRAPH_VERSION, encode  # noqa: E402

SIGNALS = ["SIGKILL"] * 7 + ["SIGTERM", "SIGINT", "SIGHUP"]
ASKED = {"model": "gpt2", "gpus": "8xa100-80g", "batch": 4, "seq": 512, "calibration": "ours"}


def make_model(number: int) -> bytes:
    graph = encode(make_mlp(layers=1, batch=number + 1))
    return json.dumps({"format": GRAPH_FORMAT, "version": GRAPH_VERSION, "graph": graph}).encode()


def learn(into: Path) -> None:
    """What three runs taught that took half as long again as forecast."""
    lines = ["case_id,gpu,model,seq_len,dtype,mode,attention,act_ckpt,n_gpus,micro_batch,measured_step_s"]
    lines += [f"b{n},a100-sxm4-80g,gpt2,512,bf16,training_step,flash,none,1,{n},{0.02 * n}" for n in (2, 4, 8)]
    runs = into.with_name("runs.csv")
    runs.write_text("\n".join(lines) + "\n")
    if main_command(["learn", str(runs), "-o", str(into)]):
        raise SystemExit("the runs could not be learnt from")


def schedule(number: int) -> dict[str, Any]:
    return {
        "trace": {"synthetic": 40 + number % 5},
        "cluster": "2x8:a100@2.5",
        "policies": ["fifo"],
        "seed": number % 5,
    }


def campaign(backend: str, options: tuple[str, ...], state: Path, kills: int, draw: random.Random) -> dict[str, Any]:
    jobs: dict[str, int] = {}
    models: dict[str, int] = {}
    forecast: Any = None
    counts: dict[str, int] = {}
    wrong = 0
    began_s = time.monotonic()
    for number in range(kills):
        running = start(state, *options)
        with contextlib.suppress(OSError):
            reply = running.post("/forecast", ASKED)
            forecast = forecast or reply.body
            wrong += reply.body["step"] != forecast["step"]
            for _ in range(3):
                reply = running.post("/schedule", schedule(number))
                if reply.status == 202:
                    jobs[reply.body["id"]] = number
            reply = running.ask("POST", "/models", raw=make_model(number))
            if reply.status == 200:
                models[reply.body["model"]] = number
            time.sleep(draw.uniform(0.0, 1.5))
        name = draw.choice(SIGNALS)
        counts[name] = counts.get(name, 0) + 1
        os.killpg(running.process.pid, signal.Signals[name])
        running.process.wait()
        print(f"{backend}: {number + 1} of {kills}, {name}, {len(jobs)} jobs, {len(models)} models", flush=True)
    running = start(state, *options)
    try:
        lost, twice, other = check_jobs(running, jobs)
        gone = sum(
            running.post("/forecast", {"workload": {"model": model}, "cluster": {"device": "h100"}}).status != 200
            for model in models
        )
    finally:
        running.stop()
    return {
        "state": backend, "signals": ", ".join(f"{count} {name}" for name, count in sorted(counts.items())), "jobs": len(jobs),
        "jobs lost": lost, "failed": twice, "other results": other, "models": len(models), "models lost": gone,
        "forecasts changed": wrong, "minutes": round((time.monotonic() - began_s) / 60, 1),
    }  # fmt: skip


def check_jobs(running: Running, jobs: dict[str, int]) -> tuple[int, int, int]:
    results: dict[int, Any] = {}
    lost = failed = other = 0
    for job, number in jobs.items():
        reply = running.finish(job, patience_s=600)
        if reply.status != 200:
            lost += 1
        elif reply.body["state"] != "done":
            failed += 1
        else:
            other += results.setdefault(number % 5, reply.body["result"]) != reply.body["result"]
    return lost, failed, other


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of each kind of state")
    parser.add_argument("--only", choices=("sqlite", "postgresql"), help="one kind of state")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        calibration = Path(folder) / "ours.json"
        learn(calibration)
        common = ("--workers", "1", "--job-workers", "1", "--calibration", f"ours={calibration}")
        if options.only != "postgresql":
            rows.append(campaign("SQLite", common, Path(folder) / "state.db", options.kills, random.Random(1)))
        if options.only != "sqlite":
            with serving() as server:
                where = (*common, "--database", server.url)
                rows.append(campaign("PostgreSQL", where, Path(), options.kills, random.Random(2)))
    names = list(rows[0])
    lines = [
        f"| {' | '.join(names)} |",
        f"|{'---|' * len(names)}",
        *(f"| {' | '.join(map(str, row.values()))} |" for row in rows),
    ]
    table = "\n".join(lines) + "\n"
    print(table)
    if options.write:
        options.write.write_text(
            f"# The service under signals\n\n`python benchmarks/service_faults.py`\n\n{table}", encoding="utf-8"
        )
    return int(any(row[name] for row in rows for name in ("jobs lost", "failed", "other results", "models lost")))


if __name__ == "__main__":
    sys.exit(main())
