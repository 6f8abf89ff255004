"""The eight complaints of an operator about the scheduler, run again: what each gives now.

python benchmarks/schedule_points.py            all that can be shown by numbers, a minute of CPU time
python benchmarks/schedule_points.py 1 8        some of them
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from traincast.schedule import (
    POLICIES,
    ByScore,
    JobTable,
    Mix,
    Ordered,
    WeibullFailures,
    generate_jobs,
    read_trace,
    simulate_cluster,
)
from traincast.spec import Fleet, NodePool

MONTH = Path(__file__).parent.parent / "docs/how-to/month.sacct"


def ask(*words: str) -> list[str]:
    """The lines of the command, its error included."""
    found = subprocess.run([sys.executable, "-m", "traincast", "schedule", *words], capture_output=True, text=True)
    return (found.stdout + found.stderr).strip().splitlines()


def spend(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def show_wide_jobs() -> None:
    rows = [(float(at), 5.0, 190.0 + 13 * (at % 7)) for at in range(0, 20000, 20)]
    wide = sum(row[0] <= 1010 for row in rows)
    rows.insert(wide, (1010.0, 16.0, 300.0))
    submit, gpus, lasts = (list(column) for column in zip(*rows, strict=True))
    jobs = JobTable.build(submit_s=submit, num_gpus=gpus, duration_s=lasts)
    fleet = Fleet(pools=(NodePool(num_nodes=10, gpus_per_node=8),))
    for name in ("fifo", "easy", "conservative"):
        found = simulate_cluster(jobs, POLICIES[name], fleet=fleet)
        print(
            f"   {name:13s} a job of 16 GPUs, submitted at 1,010 s behind 5-GPU jobs, starts at {found.start_s[wide]:,.0f} s"
        )
    month = generate_jobs(1500, num_gpus=128, mix=Mix(load=0.9, sizes={1: 6, 4: 3, 8: 2, 64: 0.3}), seed=3)
    for name in ("fifo", "easy", "conservative"):
        found = simulate_cluster(month, POLICIES[name], fleet=Fleet(pools=(NodePool(num_nodes=16, gpus_per_node=8),)))
        waits = (found.start_s - found.submit_s)[month.num_gpus == 64]
        print(f"   {name:13s} 64-GPU jobs of a generated month wait {waits.mean() / 3600:.1f} h on average")


def show_flags() -> None:
    for flags in (
        ["--mtbf-hours", "50"],
        ["--preempt-cost", "60"],
        ["--until", "3d"],
        ["--placement", "spread"],
        ["--sigma", "1"],
    ):
        lines = ask("synthetic:300", "-c", "4x8", "-p", "max-min", "--json", *flags)
        plain = ask("synthetic:300", "-c", "4x8", "-p", "max-min", "--json")
        changed = (
            "refused: " + lines[-1][:140]
            if "{" not in lines[0]
            else "changes the answer"
            if lines != plain
            else "IGNORED"
        )
        print(f"   max-min {' '.join(flags):22s} {changed}")


def show_baseline() -> None:
    print(
        "\n".join(
            "   " + line
            for line in ask(str(MONTH), "-c", "16x8:a100-80g@2", "-p", "easy,qssf", "--knows", "limit,truth")[3:9]
        )
    )


def show_clusters() -> None:
    lines = ask(str(MONTH), "-c", "16x8:a100-80g@2", "-c", "26x8:a100-80g@2", "-p", "easy")
    print("\n".join("   " + line for line in lines[3:7]))


def show_states() -> None:
    ran = [{"status": "Running", "lastTransitionTime": "2026-01-01T00:30:00Z"}]
    phases = ("Completed", "Failed", "Aborted", "Terminated", "Pending")
    pod = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 8}}}]}}
    items = [
        {
            "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
            "metadata": {"name": phase.lower(), "namespace": "a", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"tasks": [{"replicas": 1, "template": pod}]},
            "status": {"state": {"phase": phase, "lastTransitionTime": "2026-01-01T02:00:00Z"}, "conditions": ran},
        }
        for phase in phases
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.json"
        path.write_text(json.dumps({"items": items}))
        read = read_trace(path)
    print(f"   of {', '.join(phases)}: {len(read.jobs)} replayed; {'; '.join(read.notes)}")
    for row in read.bad_rows:
        print(f"   left out: {row.reason}")


def show_options() -> None:
    fleet = Fleet(pools=(NodePool(num_nodes=64, gpus_per_node=8),))
    jobs = generate_jobs(12_000, num_gpus=512, mix=Mix(load=1.05), seed=1)
    failures = WeibullFailures(mean_up_s=2000 * 3600.0, mean_repair_s=3600.0)
    for name in ("fifo", "easy", "srtf", "las"):
        simulate_cluster(jobs, POLICIES[name], fleet=fleet)  # compile before the clock runs
        plain, record, until, failing = (
            min(spend(partial(simulate_cluster, jobs, POLICIES[name], fleet=fleet, **words)) for _ in range(3))
            for words in ({}, {"record": True}, {"until_s": float(jobs.submit_s[-1200])}, {"failures": failures})
        )
        print(
            f"   {name:5s} 12,000 jobs {plain:.3f} CPU s; record {record:.3f}, until {until:.3f}, failures {failing:.3f}"
        )


def show_own_policy() -> None:
    def score(jobs: JobTable, estimate_s: np.ndarray) -> np.ndarray:
        return jobs.num_gpus * np.sqrt(estimate_s)

    big = generate_jobs(100_000, num_gpus=10_000, mix=Mix(load=0.95), seed=1)
    fleet = Fleet(pools=(NodePool(num_nodes=1250, gpus_per_node=8),))
    for fit in ("skip", "easy"):
        policy = ByScore("small-first", score, fit=fit)
        simulate_cluster(big.select(range(3000)), policy, fleet=fleet)
        taken_s = spend(partial(simulate_cluster, big, policy, fleet=fleet))
        print(f"   ByScore, {fit}: 100,000 jobs take {taken_s:.2f} CPU s")
    small = generate_jobs(4000, num_gpus=128, mix=Mix(load=0.9), seed=1)
    listed = Ordered(lambda seen: sorted(seen.waiting, key=lambda request: request.num_gpus))
    node = Fleet(pools=(NodePool(num_nodes=16, gpus_per_node=8),))
    print(f"   Ordered: 4,000 jobs take {spend(lambda: simulate_cluster(small, listed, fleet=node)):.2f} CPU s")


POINTS: dict[int, tuple[str, Callable[[], None]]] = {
    1: ("EASY and conservative starved wide jobs", show_wide_jobs),
    2: ("share policies ignored flags", show_flags),
    3: ("no honest baseline", show_baseline),
    4: ("ten more nodes cost nothing", show_clusters),
    5: ("jobs that ended otherwise vanished", show_states),
    6: ("options left the fast loop", show_options),
    8: ("own policies were slow", show_own_policy),
}
"""7, the pictures, is `tests/schedule/test_page.py` in a browser."""


def main() -> None:
    wanted = [int(word) for word in sys.argv[1:]] or list(POINTS)
    for number in wanted:
        title, show = POINTS[number]
        print(f"{number}. {title}", flush=True)
        show()


if __name__ == "__main__":
    main()
