"""Whether a change of the scheduler changes schedules: every policy under every condition, and the runs of published simulators.

    python benchmarks/same_schedules.py record before.json                     some 300 small schedules, job by job
    python benchmarks/same_schedules.py record before.json --references DIR    the reference runs in DIR as well
    python benchmarks/same_schedules.py compare before.json after.json

Two recordings agree where every job starts, ends and is interrupted alike, to 1e-9 of the time. Policies that solve linear
programs may pick another of several optima; for them the change of the mean completion time is printed.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from traincast.errors import TraincastError
from traincast.schedule._estimators import FromHistory, Limits, Noisy
from traincast.schedule._generate import Mix, generate_jobs
from traincast.schedule._hazards import Overheads, WeibullFailures, helios_checkpoint_s
from traincast.schedule._jobs import JobTable
from traincast.schedule._known import REGISTRY, find_policy
from traincast.schedule._network import UniformTraffic
from traincast.schedule._placement import PLACERS
from traincast.schedule._simulator import simulate_cluster
from traincast.schedule._speeds import ScalingLaw, TypeSpeeds
from traincast.spec import Fleet, NodePool, Schedule

PROGRAMS = ("max-min", "max-min-perf", "makespan", "finish-time-fairness", "cost", "max-throughput")
"""Policies whose program may have several optima."""


def make_jobs(count: int, num_gpus: int, seed: int) -> JobTable:
    rng = np.random.default_rng(seed)
    mix = Mix(sizes={1: 4, 2: 2, 3: 1, 4: 1, 8: 1, 12: 1, 16: 1}, load=1.5, median_s=900)
    jobs = generate_jobs(count, num_gpus=num_gpus, mix=mix, seed=seed)
    return replace(
        jobs,
        priority=np.arange(count) % 3.0,
        deadline_s=np.where(np.arange(count) % 4, jobs.submit_s + jobs.duration_s * 3, np.nan),
        limit_s=np.ceil(jobs.duration_s * rng.choice([0.8, 1.0, 1.5, 4.0], count)),
        users=[f"user-{who}" for who in rng.integers(0, 9, count).tolist()],
        tenants=[f"team-{who}" for who in rng.integers(0, 3, count).tolist()],
        workloads=[f"net-{who}" for who in rng.integers(0, 4, count).tolist()],
    )


def vary(count: int, seed: int) -> Iterator[tuple[str, JobTable, dict[str, Any]]]:
    """The same jobs each time with one more option."""
    rng = np.random.default_rng(seed)
    pool = NodePool(device="a", num_nodes=6, gpus_per_node=4, usd_per_gpu_hour=2.0)
    half = replace(pool, num_nodes=4)
    fleet, pools = Fleet(pools=(pool,)), Fleet(pools=(half, replace(half, device="b", gpus_per_node=8, num_nodes=2)))
    jobs = make_jobs(count, fleet.num_gpus, seed)
    racks = replace(fleet, nodes_per_rack=2)
    law = ScalingLaw(tuple(jobs.num_gpus.tolist()))
    cost = Overheads(preempt_s=helios_checkpoint_s, restart_s=60.0, resize_s=30.0)
    failures = WeibullFailures(mean_up_s=30 * 3600.0, mean_repair_s=3600.0)
    yield "plain", jobs, {"fleet": fleet, "record": True}
    yield "costs", jobs, {"fleet": fleet, "overheads": cost}
    yield "until", jobs, {"fleet": fleet, "until_s": float(np.quantile(jobs.submit_s, 0.7)), "record": True}
    saved = replace(cost, checkpoint_every_s=600.0, checkpoint_s=20.0)
    yield "failures", jobs, {"fleet": fleet, "failures": failures, "overheads": cost}
    yield "checkpoints", jobs, {"fleet": racks, "failures": failures, "overheads": saved}
    yield "kill at limit", jobs, {"fleet": fleet, "kill_at_limit": True, "estimator": Limits()}
    yield "knows history", jobs, {"fleet": fleet, "estimator": FromHistory()}
    yield "error 0.7", jobs, {"fleet": fleet, "estimator": Noisy(sigma=0.7), "overheads": cost}
    yield "speeds", jobs, {"fleet": racks, "perf": law}
    types = [
        None if draw < 0.3 else kind
        for draw, kind in zip(rng.random(count), rng.choice(["a", "b"], count), strict=True)
    ]
    yield "two pools", jobs, {"fleet": pools}
    yield (
        "GPU types",
        replace(jobs, gpu_types=types),
        {"fleet": pools, "perf": TypeSpeeds((1.0, 2.0)), "overheads": cost},
    )
    rng.random(2 * count)  # keeps the draws of what follows
    chained = [f"afterany:{jobs.job_ids[at - 1]}" if at and at % 4 == 0 else None for at in range(count)]
    yield "dependencies", replace(jobs, dependencies=chained), {"fleet": fleet}
    linked = replace(racks, rack_uplink_bytes_per_s=20e9)
    yield (
        "shared links",
        jobs,
        {"fleet": linked, "network": UniformTraffic(bytes_per_s_per_gpu=5e9), "placer": PLACERS["spread"]},
    )


def find_cases(count: int, seed: int) -> Iterator[tuple[str, Any, JobTable, dict[str, Any]]]:
    names = list(REGISTRY)
    for condition, jobs, words in vary(count, seed):
        for name in names:
            yield f"{name} | {condition}", name, jobs, words
    condition, jobs, words = next(iter(vary(count, seed + 1)))
    for placement in PLACERS:
        for name in names:
            fleet = replace(words["fleet"], nodes_per_rack=2)
            yield f"{name} | {placement}", name, jobs, {**words, "fleet": fleet, "placer": PLACERS[placement]}


def describe(schedule: Schedule) -> dict[str, Any]:
    def numbers(column: Any) -> list[float | None]:
        return [
            None if value != value else float(f"{value:.12g}") for value in np.asarray(column, dtype=float).tolist()
        ]

    columns = ("start_s", "end_s", "preemptions", "failures", "run_s", "gpu_s", "lost_gpu_s", "pool_gpu_s")
    held = sorted((run.job, run.start_s, run.end_s, sorted(run.nodes)) for run in schedule.occupations)
    return {
        "submit_s": numbers(schedule.submit_s),
        **{name: numbers(getattr(schedule, name)) for name in columns},
        "rejected": sorted(schedule.rejected),
        "killed": sorted(schedule.killed),
        "held": json.loads(json.dumps(held)),
    }


def record(path: Path, *, num_jobs: int, seed: int, references: Path | None, only: str) -> None:
    found: dict[str, Any] = {}
    for label, name, jobs, words in find_cases(num_jobs, seed):
        if only in label:
            try:
                found[label] = describe(simulate_cluster(jobs, find_policy(name, jobs, words["fleet"]), **words))
            except (TraincastError, IndexError) as error:
                found[label] = {"error": type(error).__name__}
    if references is not None:
        from research.simulators.agreement import reference_runs

        for replay in reference_runs(references):
            words = replay.keywords  # type: ignore[attr-defined]
            label = f"{words['peer']} {words['run']} | {words['policy']}"
            if only in label:
                before = time.process_time()
                found[label] = describe(replay.args[0]())  # type: ignore[attr-defined]
                sys.stderr.write(f"{label}: {time.process_time() - before:.1f} CPU s\n")
    path.write_text(json.dumps(found))
    print(f"{len(found)} schedules in {path}")


def differ(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The columns in which two schedules differ."""
    if "error" in one or "error" in other:
        return [] if one == other else ["error"]
    found = []
    for name, values in one.items():
        if name in ("rejected", "killed", "held"):
            flat = (
                [np.asarray([run[:3] for run in side[name]], dtype=float) for side in (one, other)]
                if name == "held"
                else []
            )
            same = (
                flat[0].shape == flat[1].shape and np.allclose(*flat, rtol=1e-9, atol=1e-6)
                if flat
                else values == other[name]
            )
            same = same and (name != "held" or [run[3] for run in values] == [run[3] for run in other[name]])
        else:
            pair = [np.asarray([np.nan if value is None else value for value in side[name]]) for side in (one, other)]
            same = pair[0].shape == pair[1].shape and np.allclose(*pair, rtol=1e-9, atol=1e-6, equal_nan=True)
        if not same:
            found.append(name)
    return found


def compare(before: Path, after: Path) -> int:
    old, new = (json.loads(path.read_text()) for path in (before, after))
    shared = [label for label in old if label in new]
    worse = 0
    for label in shared:
        columns = differ(old[label], new[label])
        program = label.split(" | ")[0] in PROGRAMS or "gavel" in label
        if not columns:
            continue
        means = [np.nan if "error" in side else _mean_jct(side) for side in (old[label], new[label])]
        worse += not program
        kind = "program" if program else "DIFFERS"
        print(f"{kind:8}{label}: {', '.join(columns)}; mean completion {means[0]:,.1f} -> {means[1]:,.1f} s")
    gone = len(old) - len(shared)
    print(
        f"{len(shared)} schedules compared, {worse} differ beside programs{f'; {gone} are no longer there' if gone else ''}"
    )
    return 1 if worse else 0


def _mean_jct(side: dict[str, Any]) -> float:
    pairs = [(end, submit) for end, submit in zip(side["end_s"], side["submit_s"], strict=True) if end is not None]
    return float(np.mean([end - submit for end, submit in pairs])) if pairs else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("path", type=Path)
    recording.add_argument("--jobs", type=int, default=90)
    recording.add_argument("--seed", type=int, default=0)
    recording.add_argument("--references", type=Path)
    recording.add_argument("--only", default="", help="only what has this in its name")
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.verb == "compare":
        return compare(given.before, given.after)
    record(given.path, num_jobs=given.jobs, seed=given.seed, references=given.references, only=given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
