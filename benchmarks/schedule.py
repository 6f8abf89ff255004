"""Speed of the scheduling simulator: jobs per CPU second by policy, growth with size, memory, and peers beside it.

    python benchmarks/schedule.py                 the table of docs/theory/scheduling.md
    python benchmarks/schedule.py --growth        10k, 100k and 1M jobs on one fleet: the growth table
    python benchmarks/schedule.py --running       100k jobs on fleets of 1k, 10k and 100k GPUs: ever more running jobs
    python benchmarks/schedule.py --options       12,000 jobs: what every option costs, times the run without it
    python benchmarks/schedule.py --peers DIR     published runs in DIR beside ours: same trace, fleet and policy
    python benchmarks/schedule.py --json out.json

Every row states its speed relative to a calibration loop (a heap queue of 200,000 jobs in plain Python), so that numbers
from different machines can be compared.
"""

import argparse
import heapq
import json
import math
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from traincast.schedule import (
    PLACERS,
    POLICIES,
    FromHistory,
    JobTable,
    Limits,
    Mix,
    Noisy,
    Overheads,
    UniformTraffic,
    WeibullFailures,
    generate_jobs,
    simulate_cluster,
)
from traincast.schedule._speeds import ScalingLaw
from traincast.spec import Fleet, NodePool, Schedule

CASES = (
    ("fifo", "consolidated", 100_000),
    ("sjf", "consolidated", 100_000),
    ("fifo", "count", 100_000),
    ("first-fit", "consolidated", 100_000),
    ("srtf", "consolidated", 25_000),
    ("srtf", "count", 25_000),
    ("easy", "consolidated", 25_000),
    ("easy", "count", 25_000),
    ("las", "consolidated", 15_000),
    ("las-2d", "consolidated", 15_000),
)


def calibrate(num_jobs: int = 200_000) -> float:
    """CPU seconds of an M/G/100 queue on heapq and tuples; the unit of all relative speeds."""
    rng = random.Random(0)
    before = time.process_time()
    servers = [0.0] * 100
    now = 0.0
    for _ in range(num_jobs):
        now += rng.expovariate(1.0)
        free = heapq.heappop(servers)
        heapq.heappush(servers, max(free, now) + rng.expovariate(0.011))
    return time.process_time() - before


def measure(
    policy: str, placer: str, num_jobs: int, num_nodes: int, load: float, engine: str = "auto"
) -> dict[str, object]:
    fleet = Fleet(pools=(NodePool(num_nodes=num_nodes, gpus_per_node=8),))
    jobs = generate_jobs(num_jobs, num_gpus=fleet.num_gpus, mix=Mix(load=load), seed=1)
    best = math.inf
    for _ in range(3 if num_jobs < 1_000_000 else 1):
        before = time.process_time()
        schedule = simulate_cluster(jobs, POLICIES[policy], fleet=fleet, placer=PLACERS[placer], engine=engine)
        best = min(best, time.process_time() - before)
    waits = schedule.start_s - schedule.submit_s
    span_s = float(schedule.end_s.max() - schedule.submit_s[0])
    return {
        "policy": policy,
        "placement": placer,
        "jobs": num_jobs,
        "gpus": fleet.num_gpus,
        "load": load,
        "engine": engine,
        "cpu_s": round(best, 4),
        "jobs_per_s": round(num_jobs / best),
        "us_per_job": round(1e6 * best / num_jobs, 3),
        "mean_running": round(float(schedule.run_s.sum()) / span_s),
        "preemptions": int(schedule.preemptions.sum()),
        "mean_wait_s": round(float(waits.mean()), 1),
    }


def vary(num_jobs: int, num_nodes: int) -> Iterator[tuple[str, JobTable, dict[str, Any]]]:
    """The same jobs on as many GPUs, each time with one more option."""
    rng = np.random.default_rng(0)
    mix = Mix(load=1.05, sizes={1: 0.5, 2: 0.15, 4: 0.15, 8: 0.15, 16: 0.05})
    jobs = generate_jobs(num_jobs, num_gpus=8 * num_nodes, mix=mix, seed=1)
    limits = np.ceil(jobs.duration_s * rng.choice([1.0, 1.5, 4.0], num_jobs))
    jobs = replace(jobs, limit_s=limits, users=[f"user-{who}" for who in rng.integers(0, 40, num_jobs).tolist()])
    pool = NodePool(device="a", num_nodes=num_nodes, gpus_per_node=8)
    half = replace(pool, num_nodes=num_nodes // 2)
    fleet, pools = Fleet(pools=(pool,)), Fleet(pools=(half, replace(half, device="b")))
    law = ScalingLaw(tuple(jobs.num_gpus.tolist()))
    racks = replace(fleet, nodes_per_rack=8)
    yield "plain", jobs, {"fleet": fleet}
    yield "record", jobs, {"fleet": fleet, "record": True}
    yield "until", jobs, {"fleet": fleet, "until_s": float(jobs.submit_s[-num_jobs // 10])}
    failures = WeibullFailures(mean_up_s=2000 * 3600.0, mean_repair_s=3600.0)
    yield "failures", jobs, {"fleet": fleet, "failures": failures, "overheads": Overheads(restart_s=60.0)}
    yield "kill at limit", jobs, {"fleet": fleet, "kill_at_limit": True}
    yield "knows limit", jobs, {"fleet": fleet, "estimator": Limits()}
    yield "knows history", jobs, {"fleet": fleet, "estimator": FromHistory()}
    yield "error 0.5", jobs, {"fleet": fleet, "estimator": Noisy(sigma=0.5)}
    yield "speeds", jobs, {"fleet": fleet, "perf": law}
    yield "two pools", jobs, {"fleet": pools}
    typed = replace(
        jobs, gpu_types=np.where(rng.random(num_jobs) < 0.3, None, rng.choice(["a", "b"], num_jobs)).tolist()
    )
    yield "GPU types", typed, {"fleet": pools}
    yield "spread", jobs, {"fleet": fleet, "placer": PLACERS["spread"]}
    yield "topology", jobs, {"fleet": racks, "placer": PLACERS["topology"]}
    yield "racks, speeds", jobs, {"fleet": racks, "perf": law}
    chained = [f"afterany:{at - 1}" if at and at % 4 == 0 else None for at in range(num_jobs)]
    yield "dependencies", replace(jobs, dependencies=chained), {"fleet": fleet}
    linked = replace(racks, rack_uplink_bytes_per_s=100e9)
    yield "shared links", jobs, {"fleet": linked, "network": UniformTraffic(bytes_per_s_per_gpu=5e9)}


def clock(jobs: JobTable, policy: str, engine: str, words: dict[str, Any], repeats: int = 3) -> tuple[float, Schedule]:
    """CPU seconds, the best of some runs."""
    best = math.inf
    for _ in range(repeats):
        before = time.process_time()
        schedule = simulate_cluster(jobs, POLICIES[policy], engine=engine, **words)
        best = min(best, time.process_time() - before)
        if best > 2:
            break
    return best, schedule


def mean_queue(schedule: Schedule) -> float:
    """Jobs that wait, averaged over the run."""
    waited = np.nan_to_num(schedule.end_s - schedule.submit_s - schedule.run_s)
    return float(waited.sum() / (np.nanmax(schedule.end_s) - schedule.submit_s[0]))


def clock_like(jobs: JobTable, policy: str, engine: str, words: dict[str, Any], queue: float) -> float:
    """CPU seconds of a plain run whose jobs arrive so much closer together that as many of them wait."""
    low, high = 0.5, 8.0
    for _ in range(10):
        middle = math.sqrt(low * high)
        closer = replace(jobs, submit_s=np.floor(jobs.submit_s / middle))
        if mean_queue(simulate_cluster(closer, POLICIES[policy], engine=engine, **words)) < queue:
            low = middle
        else:
            high = middle
    return clock(replace(jobs, submit_s=np.floor(jobs.submit_s / high)), policy, engine, words)[0]


def price_options(policies: list[str], num_jobs: int, num_nodes: int, engine: str) -> None:
    """CPU seconds of every option over those of the plain run, in one process. Where that is above 1.5, in brackets over those of
    a plain run with an equally long queue: what an option costs besides the schedule that it brings about."""
    print("| option | " + " | ".join(policies) + " |\n|---|" + "--:|" * len(policies))
    base: dict[str, float] = {}
    plain: tuple[JobTable, dict[str, Any]] | None = None
    for option, jobs, words in vary(num_jobs, num_nodes):
        plain = plain or (jobs, words)
        cells = []
        for policy in policies:
            best, schedule = clock(jobs, policy, engine, words)
            ratio = best / base.setdefault(policy, best)
            cell = f"{best:.3f} s" if option == "plain" else f"{ratio:.2f}"
            if ratio > 1.5:
                like = clock_like(plain[0], policy, engine, plain[1], mean_queue(schedule))
                cell += f" ({best / like:.2f})"
            cells.append(cell)
        print(f"| {option} | " + " | ".join(cells) + " |", flush=True)


PEER_POLICIES = {
    "helios": {"fifo": "fifo", "sjf": "sjf", "srtf": "srtf"},
    "tiresias": {
        "fifo": "fifo",
        "fjf": "first-fit",
        "shortest": "srtf",
        "shortest-gpu": "srsf",
        "dlas": "las",
        "dlas-gpu": "las-2d",
    },
    "pai": {"fifo": "first-fit", "sjf": "sjf"},
    "cqsim": {"easy": "easy", "conservative": "conservative"},
    "gavel": {},
}


def published_cpu_s(folder: Path) -> dict[tuple[str, str, int], list[tuple[float, float]]]:
    """(mean JCT, CPU seconds) of the runs of (peer, policy, finished jobs); the mean tells runs apart."""
    names = {"fcfs+easy": "easy", "fcfs+conservative": "conservative"}
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for peer in PEER_POLICIES:
        for path in sorted((folder / peer).glob("summary*.jsonl")):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                if "jobs_per_cpu_s" in row:
                    key = (peer, names.get(row["policy"], row["policy"]), row["jobs"])
                    found.setdefault(key, []).append((row["avg_jct"], row["jobs"] / row["jobs_per_cpu_s"]))
    return found


def beside_peers(folder: Path, unit: float) -> None:
    """Ours on the very input of each published run, both in CPU seconds of one core: our clean policy of the same meaning,
    and for Gavel, whose shares have no other meaning, its own rules."""
    from research.simulators.agreement import reference_runs

    published = published_cpu_s(folder)
    for run in reference_runs(folder, tuple(PEER_POLICIES)):
        simulate, ends = run.args
        peer, policy = run.keywords["peer"], run.keywords["policy"]
        jobs, fleet = simulate.args[0], simulate.keywords["fleet"]
        taken = [
            ends[job] - at for job, at in zip(jobs.job_ids, jobs.submit_s, strict=True) if not math.isnan(ends[job])
        ]
        mean = sum(taken) / len(taken)
        near = [cpu_s for jct, cpu_s in published.get((peer, policy, len(taken)), []) if abs(jct / mean - 1) < 1e-3]
        ours = PEER_POLICIES[peer].get(policy)
        if not near or (ours is None and peer != "gavel"):
            continue
        placer = PLACERS["consolidated" if peer == "helios" else "count"]
        best = math.inf
        if ours is None:  # compile before the clock runs
            simulate()
        for _ in range(3):
            before = time.process_time()
            if ours is None:
                simulate()
            else:
                simulate_cluster(jobs, POLICIES[ours], fleet=fleet, placer=placer)
            best = min(best, time.process_time() - before)
            if best > 2:
                break
        print(
            f"| {peer} | {run.keywords['run']} | {policy} | {len(jobs):,d} | {near[0]:.2f} | {best:.4f} | "
            f"{near[0] / best:,.0f} | {len(jobs) / best * unit:.3f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--loads", default="0.9,1.2")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--running", action="store_true")
    parser.add_argument("--options", action="store_true")
    parser.add_argument("--policies", default="fifo,sjf,first-fit,easy,srtf,las")
    parser.add_argument("--engine", default="auto", help="of --options: auto, compiled, interpreted or called")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    unit = min(calibrate() for _ in range(3)) / 200_000
    print(f"calibration: {1 / unit:,.0f} jobs/s of a heapq queue")
    if args.options:
        measure("fifo", "consolidated", 3000, 50, 1.0, args.engine)
        price_options(args.policies.split(","), min(args.jobs, 12_000), 64, args.engine)
        return
    for policy in sorted({case[0] for case in CASES}):  # compile before the clock runs
        measure(policy, "consolidated", 3000, 50, 1.0)
        measure(policy, "count", 3000, 50, 1.0)
    measure("conservative", "count", 3000, 50, 1.0)
    if args.peers:
        beside_peers(args.peers, unit)
        return
    rows = []
    for load in (float(part) for part in args.loads.split(",")):
        sizes = [(args.jobs, args.nodes)]
        if args.growth:
            sizes = [(num_jobs, args.nodes) for num_jobs in (10_000, 100_000, 1_000_000)]
        if args.running:
            sizes = [(args.jobs, num_nodes) for num_nodes in (125, 1250, 12500)]
        for policy, placer, target in CASES:
            if len(sizes) > 1 and (policy not in ("fifo", "sjf", "easy", "srtf", "las") or placer == "count"):
                continue
            for num_jobs, num_nodes in sizes:
                row = measure(policy, placer, num_jobs, num_nodes, load)
                row["of_calibration"] = round(row["jobs_per_s"] * unit, 3)
                row["target_jobs_per_s"] = target
                rows.append(row)
                print(
                    f"{policy:10s} {placer:13s} load {load:3.1f} {num_jobs:9,d} jobs {row['cpu_s']:8.3f} s "
                    f"{row['jobs_per_s']:10,d} jobs/s (wanted {target:,d}) {row['preemptions']:8,d} preemptions "
                    f"wait {row['mean_wait_s']:,.0f} s {row['mean_running']:,d} running {row['us_per_job']:.2f} us/job",
                    flush=True,
                )
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak_mb:.0f} MB")
    if args.json:
        args.json.write_text(json.dumps({"unit_s": unit, "peak_mb": peak_mb, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
