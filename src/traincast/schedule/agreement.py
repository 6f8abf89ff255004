"""Our schedules beside those of published simulators, job by job: the table of `traincast accuracy --schedulers`."""

import csv
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from traincast.errors import InvalidInput, MissingExtra
from traincast.schedule.hazards import Overheads, helios_checkpoint_s
from traincast.schedule.jobs import JobTable
from traincast.schedule.placement import AnyGpus, Consolidated
from traincast.schedule.policies import ByKey, LeastAttained, Policy, by_estimate, by_remaining, by_remaining_service
from traincast.schedule.policies import by_submission
from traincast.schedule.simulator import CLEAN, Compat, simulate_cluster
from traincast.spec.fleet import Fleet, NodePool, Schedule

EXACTLY = "every job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One reference run against ours."""

    peer: str
    run: str
    policy: str
    num_jobs: int
    num_equal: int
    worst_s: float
    peer_mean_s: float
    our_mean_s: float
    peer_makespan_s: float
    our_makespan_s: float
    cpu_s: float
    wanted: str = EXACTLY
    note: str = ""

    @property
    def mean_error(self) -> float:
        return self.our_mean_s / self.peer_mean_s - 1

    @property
    def makespan_error(self) -> float:
        return self.our_makespan_s / self.peer_makespan_s - 1

    @property
    def reached(self) -> bool:
        if self.wanted == EXACTLY:
            return self.num_equal == self.num_jobs
        mean, makespan = (float(part.rstrip("%")) / 100 for part in self.wanted.split("/"))
        return abs(self.mean_error) <= mean and abs(self.makespan_error) <= makespan


HELIOS_POLICIES: dict[str, Policy] = {
    "fifo": ByKey("helios-fifo", by_submission),
    "sjf": ByKey("helios-sjf", by_estimate),
    "srtf": ByKey("helios-srtf", by_remaining, preemptive=True, fit="skip", ties="queue-first"),
}
HELIOS_SRTF = Compat(keep_quota=True, end_lag_s=1.0, recheck_s=1.0)
HELIOS_PLACER = Consolidated(rest="widest")

TIRESIAS_POLICIES: dict[str, Policy] = {
    "fifo": ByKey("tiresias-fifo", by_submission),
    "fjf": ByKey("tiresias-fjf", by_submission, fit="skip"),
    "sjf": ByKey("tiresias-sjf", by_estimate, fit="skip"),
    "shortest": ByKey("tiresias-shortest", by_remaining, preemptive=True, fit="skip", ties="history"),
    "shortest-gpu": ByKey("tiresias-shortest-gpu", by_remaining_service, preemptive=True, fit="skip", ties="history"),
    "dlas": LeastAttained("tiresias-dlas", lists="tiresias"),
    "dlas-gpu": LeastAttained("tiresias-dlas-gpu", by_gpu=True, lists="tiresias"),
}

CQSIM = Compat(coalesce=False)


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "tables", "reading parquet reference runs") from error
    table: dict[str, list[Any]] = pyarrow.parquet.read_table(path).to_pydict()
    return table


def _csv(path: Path) -> dict[str, list[str]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}


def compare(
    schedule: Schedule, ends_s: Mapping[str, float], *, peer: str, run: str, policy: str, cpu_s: float, note: str = ""
) -> Agreement:
    """Count the jobs whose end is the same to the microsecond."""
    ours = {job_id: float(end) for job_id, end in zip(schedule.job_ids, schedule.end_s, strict=True)}
    submits = {job_id: float(at) for job_id, at in zip(schedule.job_ids, schedule.submit_s, strict=True)}
    if ours.keys() != ends_s.keys():
        raise InvalidInput(f"{peer} {run}: the reference run has other jobs than the trace")
    differences = [abs(ours[job] - end) for job, end in ends_s.items()]
    first = min(submits.values())
    return Agreement(
        peer=peer,
        run=run,
        policy=policy,
        num_jobs=len(ends_s),
        num_equal=sum(difference <= 1e-6 for difference in differences),
        worst_s=max(differences),
        peer_mean_s=float(np.mean([ends_s[job] - submits[job] for job in ends_s])),
        our_mean_s=float(np.mean([ours[job] - submits[job] for job in ends_s])),
        peer_makespan_s=max(ends_s.values()) - first,
        our_makespan_s=max(ours.values()) - first,
        cpu_s=cpu_s,
        note=note,
    )


def _timed(run: Callable[[], Schedule]) -> tuple[Schedule, float]:
    before = time.process_time()
    schedule = run()
    return schedule, time.process_time() - before


def helios_runs(folder: Path) -> Iterator[Agreement]:
    paths = [*sorted((folder / "philly").glob("*.parquet")), *sorted((folder / "itp").glob("*.csv"))]
    for path in paths:
        if path.suffix == ".parquet":
            vc, nodes, policy = path.stem.split("_")
            columns = _parquet(path)
            run = f"philly {vc}"
        else:
            policy, trace, nodes = path.stem.split("_")
            columns = _csv(path)
            run = f"itp {trace}"
        jobs = JobTable.build(
            job_ids=[str(job) for job in columns["job_id"]],
            submit_s=[float(x) for x in columns["submit_time"]],
            num_gpus=[float(x) for x in columns["gpu_num"]],
            duration_s=[float(x) for x in columns["duration"]],
        )
        fleet = Fleet(pools=(NodePool(num_nodes=int(nodes[1:]), gpus_per_node=8),))
        preempts = policy == "srtf"
        schedule, cpu_s = _timed(
            lambda jobs=jobs, fleet=fleet, policy=policy, preempts=preempts: simulate_cluster(  # type: ignore[misc]
                jobs,
                HELIOS_POLICIES[policy],
                fleet=fleet,
                placer=HELIOS_PLACER,
                overheads=Overheads(preempt_s=helios_checkpoint_s) if preempts else None,
                compat=HELIOS_SRTF if preempts else CLEAN,
            )
        )
        ends = {str(job): float(end) for job, end in zip(columns["job_id"], columns["end_time"], strict=True)}
        yield compare(schedule, ends, peer="helios", run=f"{run} {nodes[1:]}x8", policy=policy, cpu_s=cpu_s)


def _tiresias_jobs(path: Path) -> JobTable:
    columns = _csv(path)
    return JobTable.build(
        job_ids=columns["job_id"],
        submit_s=[float(x) for x in columns["submit_time"]],
        num_gpus=[float(x) for x in columns["num_gpu"]],
        duration_s=[float(x) for x in columns["duration"]],
    )


def tiresias_runs(folder: Path) -> Iterator[Agreement]:
    for run, trace, fleet in (
        ("60job_n16g4", "60_job.csv", Fleet(pools=(NodePool(num_nodes=16, gpus_per_node=4),))),
        ("w41_n32g8", "philly_w41.csv", Fleet(pools=(NodePool(num_nodes=32, gpus_per_node=8),))),
    ):
        jobs = _tiresias_jobs(folder / "traces" / trace)
        for path in sorted((folder / run).glob("*/job.csv")):
            policy = path.parent.name
            columns = _csv(path)
            schedule, cpu_s = _timed(
                lambda jobs=jobs, fleet=fleet, policy=policy: simulate_cluster(  # type: ignore[misc]
                    jobs, TIRESIAS_POLICIES[policy], fleet=fleet, placer=AnyGpus()
                )
            )
            ends = {job: float(end) for job, end in zip(columns["job_id"], columns["end_time"], strict=True)}
            yield compare(schedule, ends, peer="tiresias", run=run, policy=policy, cpu_s=cpu_s)


def pai_runs(folder: Path) -> Iterator[Agreement]:
    jobs = _tiresias_jobs(folder.parent / "tiresias" / "traces" / "philly_w41.csv")
    fleet = Fleet(pools=(NodePool(num_nodes=32, gpus_per_node=8),))
    for path in sorted(folder.glob("w41_256_*.csv")):
        policy = path.stem.rsplit("_", 1)[1]
        columns = _csv(path)
        ends = {
            job: float(submit) + float(jct)
            for job, submit, jct in zip(columns["job_id"], columns["submit_time"], columns["jct"], strict=True)
        }
        rule = TIRESIAS_POLICIES["fjf" if policy == "fifo" else "sjf"]
        schedule, cpu_s = _timed(
            lambda rule=rule: simulate_cluster(jobs, rule, fleet=fleet, placer=AnyGpus())  # type: ignore[misc]
        )
        note = "" if policy == "fifo" else "ties may swap"
        row = compare(schedule, ends, peer="pai", run="w41 256 GPUs", policy=policy, cpu_s=cpu_s, note=note)
        yield row if policy == "fifo" else replace(row, wanted="1%/1%")


def cqsim_runs(folder: Path) -> Iterator[Agreement]:
    for path in sorted(folder.glob("*.rst")):
        trace, gpus, backfill = path.stem.split("_")
        rows = [line.split() for line in (folder / "traces" / f"{trace}.swf").read_text().splitlines() if line[0] != ";"]
        jobs = JobTable.build(
            job_ids=[row[0] for row in rows],
            submit_s=[float(row[1]) for row in rows],
            duration_s=[float(row[3]) for row in rows],
            num_gpus=[float(row[7]) for row in rows],
        )
        policy = "easy" if backfill == "bf1" else "conservative"
        fleet = Fleet(pools=(NodePool(num_nodes=1, gpus_per_node=int(gpus[1:])),))
        schedule, cpu_s = _timed(
            lambda jobs=jobs, fleet=fleet, policy=policy: simulate_cluster(  # type: ignore[misc]
                jobs,
                ByKey(f"cqsim-{policy}", by_submission, fit=policy),
                fleet=fleet,
                placer=AnyGpus(),
                compat=CQSIM,
            )
        )
        ends = {}
        for line in path.read_text().splitlines():
            fields = line.split(";")
            ends[fields[0]] = float(fields[8])
        yield compare(schedule, ends, peer="cqsim", run=f"{trace} {gpus[1:]} GPUs", policy=policy, cpu_s=cpu_s)


PEERS: dict[str, Callable[[Path], Iterator[Agreement]]] = {
    "cqsim": cqsim_runs,
    "helios": helios_runs,
    "pai": pai_runs,
    "tiresias": tiresias_runs,
}


def agree_with_peers(folder: Path, peers: tuple[str, ...] = ()) -> Iterator[Agreement]:
    """Replay every reference run below `folder`, one row each."""
    if not folder.is_dir():
        raise InvalidInput(f"no reference runs at {folder}; pass the folder that holds helios/, tiresias/, cqsim/, ...")
    for peer, replay in PEERS.items():
        if (not peers or peer in peers) and (folder / peer).is_dir():
            yield from replay(folder / peer)
