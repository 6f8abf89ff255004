"""Writes the worked month of docs/how-to/schedule.md: a sacct log of 16 nodes of 8 GPUs that no site has ever had.

    python benchmarks/schedule_month.py docs/how-to/month.sacct

Sizes and durations are those of `synthetic:N`. Users ask for whole hours, between the true run time and ten times of it. The
starts are those of EASY backfill that knows these limits, with an administrator's maintenance of six hours in the second
week, so that a replay of EASY comes near and is not equal.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from traincast.schedule import POLICIES, JobTable, Limits, Mix, generate_jobs, simulate_cluster
from traincast.spec import Fleet, NodePool

NUM_JOBS = 1600
ORIGIN = datetime(2026, 9, 1, tzinfo=UTC)


def main() -> None:
    fleet = Fleet(pools=(NodePool(num_nodes=16, gpus_per_node=8),))
    mix = Mix(load=0.85, median_s=5400.0, sigma=1.7, max_s=5 * 86400.0, arrivals="daily", tenants=4)
    jobs = generate_jobs(NUM_JOBS, num_gpus=fleet.num_gpus, mix=mix, seed=20)
    rng = np.random.default_rng(20)
    asked = np.ceil(jobs.duration_s * rng.choice([1.1, 2.0, 4.0, 10.0], NUM_JOBS) / 3600) * 3600
    users = rng.integers(0, 6, NUM_JOBS)
    # Maintenance: a job over the whole cluster that everybody has to wait for.
    pause = {"submit_s": 9 * 86400.0, "num_gpus": 128.0, "duration_s": 6 * 3600.0, "limit_s": 6 * 3600.0}
    whole = JobTable.build(
        submit_s=[*jobs.submit_s, pause["submit_s"]],
        num_gpus=[*jobs.num_gpus, pause["num_gpus"]],
        duration_s=[*jobs.duration_s, pause["duration_s"]],
        limit_s=[*asked, pause["limit_s"]],
        job_ids=[*jobs.job_ids, "pause"],
    )
    ran = simulate_cluster(whole, POLICIES["easy"], fleet=fleet, estimator=Limits())
    start_of = dict(zip(ran.job_ids, np.asarray(ran.start_s).tolist(), strict=True))
    lines = ["JobID|User|Account|Partition|QOS|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|State"]
    for job in range(NUM_JOBS):
        begin = start_of[jobs.job_ids[job]]
        moments = (jobs.submit_s[job], begin, begin + jobs.duration_s[job])
        submit, start, end = ((ORIGIN + timedelta(seconds=float(at))).strftime("%Y-%m-%dT%H:%M:%S") for at in moments)
        tenant = (jobs.tenants[job] or "").replace("tenant", "team")
        state = "COMPLETED" if rng.random() > 0.12 else "FAILED"
        lines.append(
            f"{1000 + job}|{tenant}-u{users[job]}|{tenant}|gpu|normal|{submit}|{start}|{end}|{jobs.duration_s[job]:.0f}|"
            f"{asked[job] / 60:.0f}|gres/gpu={jobs.num_gpus[job]:.0f}|{state}"
        )
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
