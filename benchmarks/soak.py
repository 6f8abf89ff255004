"""Mixed requests for an hour without a kill: the memory of every process of the service must stay flat.

python benchmarks/soak.py [--minutes 60] [--per-s 2] [--write docs/soak.csv]

Every request is one of forecasts (half of them new), fits, advice, plans, schedules, uploads, readings and mistakes.
Once a minute the resident memory of each process is noted. The first third is for caches to fill; a process that is larger in
the last third than in the second by more than a tenth is not flat.
"""

import argparse
import asyncio
import csv
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from serve import PLAN, SCHEDULE, Connection, Service, make_request, read_cpu_s

GROWTH = 0.10
READS = ("/catalog/devices", "/metrics", "/health", "/jobs", "/catalog/workloads?brief=true", "/")
CONFIG = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64,
          "vocab_size": 500, "n_positions": 128}  # fmt: skip


def draw_request(number: int) -> tuple[str, str, Any]:
    """The number-th request of the soak: method, path, body."""
    kind = number % 20
    if kind == 19:
        return "POST", "/plan", {**PLAN, "global_batch": 16 * (1 + number // 20 % 4)}
    if kind in (9, 18):
        return "POST", "/schedule", {**SCHEDULE, "seed": number}
    if kind == 8:
        return "POST", "/forecast", {"workload": {"name": f"gpt{number}"}, "cluster": {"device": "h100"}}
    if kind in (7, 17):
        return "GET", READS[number // 10 % len(READS)], None
    if kind == 6:
        return (
            "POST",
            "/advise",
            {"workload": {"name": "resnet50", "batch": 1 + number % 500}, "cluster": {"device": "a100-80g"}},
        )
    if kind == 5:
        return "POST", "/fit", {**make_request(number), "job": {}}
    if kind == 4 and number % 400 == 4:
        return "POST", "/models", {**CONFIG, "n_embd": 64 * (1 + number // 400 % 5)}
    if kind == 14:
        body = {
            **make_request(number),
            "configs": [{"name": "ds.json", "text": json.dumps({"zero_optimization": {"stage": 2}})}],
        }
        return "POST", "/forecast", body
    return "POST", "/forecast", make_request(number if number % 2 else number % 300)


def resident_mib(pid: int) -> dict[int, float]:
    """MiB of the service and of each of its children."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            own = int(stat.parent.name)
            if pid in (own, parent):
                found[own] = int((stat.parent / "statm").read_text().split()[1]) * 4096 / 2**20
        except OSError:
            continue
    return found


async def soak(
    service: Service, *, minutes: float, per_s: float
) -> tuple[list[tuple[float, dict[int, float]]], Counter[int]]:
    begin = time.monotonic()
    end = begin + 60 * minutes
    samples: list[tuple[float, dict[int, float]]] = []
    statuses: Counter[int] = Counter()

    async def ask() -> None:
        connection, number = Connection(service.port), 0
        while time.monotonic() < end:
            method, path, body = draw_request(number)
            status, _ = await connection.ask(method, path, body)
            statuses[status] += 1
            number += 1
            await asyncio.sleep(max(0.0, begin + number / per_s - time.monotonic()))
        connection.close()

    async def watch() -> None:
        while time.monotonic() < end:
            samples.append(((time.monotonic() - begin) / 60, resident_mib(service.process.pid)))
            await asyncio.sleep(minutes)

    await asyncio.gather(ask(), watch())
    return samples, statuses


def judge(samples: list[tuple[float, dict[int, float]]], service: int) -> bool:
    """Print one row for each process that lived through the last two thirds, and for all together; whether all are flat."""
    third = len(samples) // 3
    middle, last = samples[third : 2 * third], samples[2 * third :]
    lasting = [pid for pid in samples[-1][1] if all(pid in found for _, found in [*middle, *last])]
    rows = {("service" if pid == service else f"worker {place}"): [pid] for place, pid in enumerate(sorted(lasting))}
    rows["all together"] = []
    flat = True
    print("| process | first MiB | second third | last third | most |\n|---|--:|--:|--:|--:|")
    for name, pids in rows.items():

        def sizes(part: list[tuple[float, dict[int, float]]], pids: list[int] = pids) -> list[float]:
            return [sum(size for pid, size in found.items() if not pids or pid in pids) for _, found in part]

        before, after = statistics.median(sizes(middle)), statistics.median(sizes(last))
        flat &= after <= before * (1 + GROWTH)
        print(f"| {name} | {sizes(samples[:1])[0]:.0f} | {before:.0f} | {after:.0f} | {max(sizes(samples)):.0f} |")
    return flat


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--per-s", type=float, default=2.0, help="requests a second")
    parser.add_argument("--write", type=Path, help="a CSV file: minute, process, MiB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "state.db")
        pid = service.process.pid
        try:
            samples, statuses = asyncio.run(soak(service, minutes=options.minutes, per_s=options.per_s))
            cpu_s = read_cpu_s(pid)
        finally:
            service.stop()
    print(f"{options.minutes:g} minutes, answers {dict(sorted(statuses.items()))}, {cpu_s:,.0f} CPU s")
    flat = judge(samples, pid)
    if options.write:
        with options.write.open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(("minute", "process", "resident_mib"))
            rows.writerows((f"{at:.1f}", own, f"{size:.0f}") for at, found in samples for own, size in found.items())
    bad = sum(count for status, count in statuses.items() if status >= 500)
    print("flat" if flat else "NOT FLAT", f"{bad} answers of 5xx")
    return 0 if flat and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
