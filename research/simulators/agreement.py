"""Our schedules beside those of published simulators, job by job."""

import csv
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from research.simulators.peers import Blind, HeliosSrtf, Leveled, ListOrder, RandomTypeFifo, simulate_rounds
from traincast.errors import InvalidInput, MissingExtra
from traincast.schedule._hazards import Overheads, helios_checkpoint_s
from traincast.schedule._jobs import JobTable
from traincast.schedule._placement import COUNT, ByRule, consolidate
from traincast.schedule._policies import ByKey, Policy, by_estimate, by_remaining, by_remaining_service, by_submission
from traincast.schedule._protocols import CLEAN, Compat
from traincast.schedule._shares import SHARE_POLICIES, SharePolicy
from traincast.schedule._simulator import simulate_cluster
from traincast.spec import Fleet, NodePool, Schedule

EXACTLY = "every job"
Replay = Callable[[], "Agreement"]
"""One reference run, replayed when it is called."""


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
    "srtf": HeliosSrtf(),
}
HELIOS_SRTF = Compat(end_lag_s=1.0)
HELIOS_PLACER = ByRule("consolidated", partial(consolidate, widest_rest=True))

TIRESIAS_POLICIES: dict[str, Policy] = {
    "fifo": ByKey("tiresias-fifo", by_submission),
    "fjf": ByKey("tiresias-fjf", by_submission, fit="skip"),
    "sjf": ByKey("tiresias-sjf", by_estimate, fit="skip"),
    "shortest": ListOrder("tiresias-shortest", by_remaining),
    "shortest-gpu": ListOrder("tiresias-shortest-gpu", by_remaining_service),
    "dlas": Leveled("tiresias-dlas"),
    "dlas-gpu": Leveled("tiresias-dlas-gpu", by_gpu=True),
}

CQSIM = Compat(coalesce=False)
CQSIM_POLICIES: dict[str, Policy] = {
    "bf0": ByKey("cqsim-fcfs", by_submission),
    "bf1": ByKey("cqsim-easy", by_submission, fit="easy"),
    "bf2": ByKey("cqsim-conservative", by_submission, fit="conservative"),
}
PAI_POLICIES = {"fifo": TIRESIAS_POLICIES["fjf"], "sjf": TIRESIAS_POLICIES["sjf"]}
NO_POLICY = "we have no policy that repeats it"


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
    simulate: Callable[[], Schedule],
    ends_s: Mapping[str, float],
    *,
    peer: str,
    run: str,
    policy: str,
    wanted: str = EXACTLY,
    note: str = "",
) -> Agreement:
    """Run ours and count the jobs whose end is the same to the microsecond."""
    before = time.process_time()
    schedule = simulate()
    cpu_s = time.process_time() - before
    ours = {job_id: float(end) for job_id, end in zip(schedule.job_ids, schedule.end_s, strict=True)}
    submits = {job_id: float(at) for job_id, at in zip(schedule.job_ids, schedule.submit_s, strict=True)}
    if ours.keys() != ends_s.keys():
        raise InvalidInput(f"{peer} {run}: the reference run has other jobs than the trace")
    missing = [math.isnan(end) for end in ends_s.values()]
    dropped = f"{sum(missing)} jobs dropped by both" if any(missing) else ""
    differences = [
        0.0 if math.isnan(ours[job]) and math.isnan(end) else abs(ours[job] - end) for job, end in ends_s.items()
    ]
    first = min(submits.values())
    peer_jct = np.array([ends_s[job] - submits[job] for job in ends_s])
    our_jct = np.array([ours[job] - submits[job] for job in ends_s])
    return Agreement(
        peer=peer,
        run=run,
        policy=policy,
        num_jobs=len(ends_s),
        num_equal=sum(difference <= 1e-6 for difference in differences),
        worst_s=float(np.nanmax(differences)),
        peer_mean_s=float(np.nanmean(peer_jct)),
        our_mean_s=float(np.nanmean(our_jct)),
        peer_makespan_s=float(np.nanmax(list(ends_s.values()))) - first,
        our_makespan_s=float(np.nanmax(list(ours.values()))) - first,
        cpu_s=cpu_s,
        wanted=wanted,
        note=note or dropped,
    )


def helios_runs(folder: Path) -> Iterator[Replay]:
    paths = [*sorted((folder / "philly").glob("*.parquet")), *sorted((folder / "itp").glob("*.csv"))]
    for path in paths:
        if path.suffix == ".parquet":
            vc, nodes, policy = path.stem.rsplit("_", 2)
            columns = _parquet(path)
            run = f"philly {vc}"
        else:
            (policy, _, rest), columns = path.stem.partition("_"), _csv(path)
            trace, _, nodes = rest.rpartition("_")
            run = f"itp {trace}"
        jobs = JobTable.build(
            job_ids=[str(job) for job in columns["job_id"]],
            submit_s=[float(x) for x in columns["submit_time"]],
            num_gpus=[float(x) for x in columns["gpu_num"]],
            duration_s=[float(x) for x in columns["duration"]],
        )
        fleet = Fleet(pools=(NodePool(num_nodes=int(nodes[1:]), gpus_per_node=8),))
        preempts = policy == "srtf"
        if policy not in HELIOS_POLICIES:
            continue  # said by `not_replayed`
        ends = {str(job): float(end) for job, end in zip(columns["job_id"], columns["end_time"], strict=True)}
        simulate = partial(
            simulate_cluster,
            jobs,
            HELIOS_POLICIES[policy],
            fleet=fleet,
            placer=HELIOS_PLACER,
            overheads=Overheads(preempt_s=helios_checkpoint_s) if preempts else None,
            compat=HELIOS_SRTF if preempts else CLEAN,
        )
        yield partial(compare, simulate, ends, peer="helios", run=f"{run} {nodes[1:]}x8", policy=policy)


def _tiresias_jobs(path: Path) -> JobTable:
    columns = _csv(path)
    return JobTable.build(
        job_ids=columns["job_id"],
        submit_s=[float(x) for x in columns["submit_time"]],
        num_gpus=[float(x) for x in columns["num_gpu"]],
        duration_s=[float(x) for x in columns["duration"]],
    )


def tiresias_runs(folder: Path) -> Iterator[Replay]:
    traces = {path.stem.replace("_", ""): path for path in sorted((folder / "traces").glob("*.csv"))}
    for home in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "traces"):
        run = home.name
        name, _, shape = run.rpartition("_")
        size = re.fullmatch(r"n(\d+)g(\d+)", shape)
        trace = next((path for stem, path in traces.items() if stem.endswith(name.replace("_", ""))), None)
        if size is None or trace is None:
            raise InvalidInput(f"{home}: its name must be <trace>_n<nodes>g<GPUs> of a trace in {folder / 'traces'}")
        fleet = Fleet(pools=(NodePool(num_nodes=int(size[1]), gpus_per_node=int(size[2])),))
        jobs = _tiresias_jobs(trace)
        for path in sorted((folder / run).glob("*/job.csv")):
            policy = path.parent.name
            if policy not in TIRESIAS_POLICIES:
                continue  # said by `not_replayed`
            columns = _csv(path)
            ends = {job: float(end) for job, end in zip(columns["job_id"], columns["end_time"], strict=True)}
            simulate = partial(simulate_cluster, jobs, TIRESIAS_POLICIES[policy], fleet=fleet, placer=COUNT)
            yield partial(compare, simulate, ends, peer="tiresias", run=run, policy=policy)


def pai_runs(folder: Path) -> Iterator[Replay]:
    traces = folder.parent / "tiresias" / "traces"
    for path in sorted(folder.glob("*_*_*.csv")):
        week, gpus, policy = path.stem.rsplit("_", 2)
        if policy not in PAI_POLICIES:
            continue  # said by `not_replayed`
        trace = next((file for file in sorted(traces.glob("*.csv")) if file.stem.endswith(f"_{week}")), None)
        if trace is None:
            raise InvalidInput(f"{path}: no trace ..._{week}.csv in {traces}")
        jobs = _tiresias_jobs(trace)
        fleet = Fleet(pools=(NodePool(num_nodes=1, gpus_per_node=int(gpus)),))
        columns = _csv(path)
        ends = {
            job: float(submit) + float(jct)
            for job, submit, jct in zip(columns["job_id"], columns["submit_time"], columns["jct"], strict=True)
        }
        simulate = partial(simulate_cluster, jobs, PAI_POLICIES[policy], fleet=fleet, placer=COUNT)
        exact = policy == "fifo"
        yield partial(
            compare,
            simulate,
            ends,
            peer="pai",
            run=f"{week} {gpus} GPUs",
            policy=policy,
            wanted=EXACTLY if exact else "1%/1%",
            note="" if exact else "ties may swap",
        )


def _cqsim_jobs(path: Path) -> JobTable:
    """What CQSim's filter lets through: a job ends when the time it asked for is over, and one without a time, a size or a
    submission is left out."""
    rows = [
        line.split() for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith(";")
    ]
    kept = [
        row
        for row in rows
        if float(row[1]) >= 0 and min(float(row[3]), float(row[8])) > 0 and float(row[7]) > 0 and int(row[0]) > 0
    ]
    return JobTable.build(
        job_ids=[row[0] for row in kept],
        submit_s=[float(row[1]) for row in kept],
        duration_s=[min(float(row[3]), float(row[8])) for row in kept],
        num_gpus=[float(row[7]) for row in kept],
    )


def cqsim_runs(folder: Path) -> Iterator[Replay]:
    for path in sorted(folder.glob("*.rst")):
        trace, gpus, backfill = path.stem.rsplit("_", 2)
        if backfill not in CQSIM_POLICIES:
            continue  # said by `not_replayed`
        jobs = _cqsim_jobs(folder / "traces" / f"{trace}.swf")
        rule = CQSIM_POLICIES[backfill]
        policy = rule.name.removeprefix("cqsim-")
        fleet = Fleet(pools=(NodePool(num_nodes=1, gpus_per_node=int(gpus[1:])),))
        ends = {}
        for line in path.read_text().splitlines():
            fields = line.split(";")
            ends[fields[0]] = float(fields[8])
        simulate = partial(
            simulate_cluster,
            jobs,
            rule,
            fleet=fleet,
            placer=COUNT,
            compat=CQSIM,
        )
        yield partial(compare, simulate, ends, peer="cqsim", run=f"{trace} {gpus[1:]} GPUs", policy=policy)


GAVEL_TYPES = ("v100", "p100", "k80")
GAVEL_POLICIES: dict[str, tuple[SharePolicy, str]] = {
    "fifo": (RandomTypeFifo(), EXACTLY),
    "fifo_perf": (SHARE_POLICIES["gavel-fifo"], EXACTLY),
    "max_min_fairness": (SHARE_POLICIES["max-min"], "5%/5%"),
    "max_min_fairness_perf": (SHARE_POLICIES["max-min-perf"], "3%/2%"),
    "min_total_duration_perf": (SHARE_POLICIES["makespan"], "3%/2%"),
    "finish_time_fairness_perf": (SHARE_POLICIES["finish-time-fairness"], "3%/2%"),
    "min_total_duration": (Blind(SHARE_POLICIES["makespan"]), "5%/5%"),
    "finish_time_fairness": (Blind(SHARE_POLICIES["finish-time-fairness"]), "5%/5%"),
    "max_sum_throughput_perf": (SHARE_POLICIES["max-throughput"], "3%/2%"),
    "isolated": (SHARE_POLICIES["isolated"], "3%/2%"),
}


def gavel_rates(path: Path) -> dict[tuple[str, int], dict[str, float]]:
    """Steps per second of (job type, GPUs) on each GPU type, alone and on one node."""
    columns = _parquet(path)
    rates: dict[tuple[str, int], dict[str, float]] = {}
    for job_type, gpus, gpu_type, other, together, rate in zip(
        *(
            columns[name]
            for name in ("job_type", "n_gpus", "gpu_type", "other_job_type", "consolidated", "steps_per_s")
        ),
        strict=True,
    ):
        if other is None and together:
            rates.setdefault((job_type, int(gpus)), {})[gpu_type] = float(rate)
    return rates


def _gavel_run(path: Path) -> tuple[str, str, tuple[int, ...]]:
    """The trace's name, the policy and the GPUs of each type, from the name of the file."""
    if path.stem.startswith("phys_"):
        return "max_min_fairness", path.stem.removeprefix("phys_"), (8, 16, 24)
    name, _, spec = path.stem.rpartition("_")
    seed = "_".join(name.split("_")[:2])
    return seed, name.removeprefix(seed + "_"), tuple(int(part) for part in spec.split("-"))


def _gavel_gap(policy: str, counts: tuple[int, ...]) -> str:
    """Why a run of Gavel cannot be replayed; empty if it can."""
    if policy not in GAVEL_POLICIES:
        return NO_POLICY
    if policy == "fifo" and sum(count > 0 for count in counts) > 1:
        return "draws the type of every job at random"
    return ""


ADAPTIVE_GAP = (
    "needs the peer's profile of each application (step times by placement and batch size, and gradient statistics by epoch: "
    "Pollux's placements.csv, scalability.csv and validation-*.csv), which the data do not hold"
)


def not_replayed(folder: Path) -> list[str]:
    """Reference runs that the table leaves out, and why."""
    gaps = [
        (path, _gavel_gap(policy, counts))
        for path in sorted((folder / "gavel").glob("*.csv"))
        for _, policy, counts in (_gavel_run(path),)
    ]
    named: dict[str, tuple[Mapping[str, Any], Callable[[Path], str]]] = {
        "helios/philly/*.parquet": (HELIOS_POLICIES, lambda path: path.stem.split("_")[-1]),
        "helios/itp/*.csv": (HELIOS_POLICIES, lambda path: path.stem.split("_")[0]),
        "tiresias/*/*/job.csv": (TIRESIAS_POLICIES, lambda path: path.parent.name),
        "pai/*_*_*.csv": (PAI_POLICIES, lambda path: path.stem.rsplit("_", 1)[1]),
        "cqsim/*.rst": (CQSIM_POLICIES, lambda path: path.stem.split("_")[-1]),
    }
    for pattern, (policies, name_of) in named.items():
        gaps += [(path, "" if name_of(path) in policies else NO_POLICY) for path in sorted(folder.glob(pattern))]
    gaps += [(path, ADAPTIVE_GAP) for peer in ("pollux", "sia") for path in sorted((folder / peer).glob("*.csv"))]
    return [f"{path.relative_to(folder)}: {gap}" for path, gap in gaps if gap]


def gavel_runs(folder: Path) -> Iterator[Replay]:
    table = gavel_rates(folder.parents[1] / "job_traces" / "gavel_throughputs.parquet")
    traces = {path.stem: path for path in sorted((folder / "traces").glob("*.trace"))}
    for path in sorted(folder.glob("*.csv")):
        name, policy, counts = _gavel_run(path)
        if _gavel_gap(policy, counts):
            continue  # said by `not_replayed`
        trace = next((file for stem, file in traces.items() if stem == name or stem.startswith(f"{name}_")), None)
        if trace is None:
            raise InvalidInput(f"{path}: no trace {name}.trace or {name}_... in {folder / 'traces'}")
        share_policy, wanted = GAVEL_POLICIES[policy]
        rows = [line.split("\t") for line in trace.read_text().splitlines() if line.strip()]
        jobs = JobTable.build(
            submit_s=[float(row[9]) for row in rows],
            num_gpus=[float(row[6]) for row in rows],
            steps=[float(row[5]) for row in rows],
            priority=[float(row[7]) for row in rows],
            workloads=[row[0] for row in rows],
        )
        unknown = sorted({f"{row[0]} on {row[6]}" for row in rows if (row[0], int(row[6])) not in table})
        if unknown:
            raise InvalidInput(f"{trace}: no measured rate of {', '.join(unknown)} GPUs")
        rates = np.array([[table[row[0], int(row[6])].get(kind, 0.0) for kind in GAVEL_TYPES] for row in rows])
        fleet = Fleet(
            pools=tuple(
                NodePool(device=kind, num_nodes=count, gpus_per_node=1)
                for kind, count in zip(GAVEL_TYPES, counts, strict=True)
            )
        )
        columns = _csv(path)
        ends = {
            job: float(arrival) + (float(jct) if jct not in ("", "None", "nan") else math.nan)
            for job, arrival, jct in zip(columns["job_id"], columns["arrival_s"], columns["jct_s"], strict=True)
        }
        run = f"{trace.stem} {':'.join(map(str, counts))}"
        # For policies blind to speeds Gavel shuffles the types with the run's seed (0) plus 5.
        seed = None if policy.endswith("_perf") else 5
        simulate = partial(simulate_rounds, jobs, share_policy, fleet=fleet, rates=rates, shuffle_types=seed)
        note = "" if wanted == EXACTLY else "many optima; one from their middle is taken"
        yield partial(compare, simulate, ends, peer="gavel", run=run, policy=policy, wanted=wanted, note=note)


PEERS: dict[str, Callable[[Path], Iterator[Replay]]] = {
    "cqsim": cqsim_runs,
    "gavel": gavel_runs,
    "helios": helios_runs,
    "pai": pai_runs,
    "tiresias": tiresias_runs,
}


def reference_runs(folder: Path, peers: tuple[str, ...] = ()) -> list[Replay]:
    """Every reference run below `folder`, ready to be replayed."""
    if not folder.is_dir():
        raise InvalidInput(f"no reference runs at {folder}; pass the folder that holds helios/, tiresias/, cqsim/, ...")
    return [
        run
        for peer, find in PEERS.items()
        if (not peers or peer in peers) and (folder / peer).is_dir()
        for run in find(folder / peer)
    ]
