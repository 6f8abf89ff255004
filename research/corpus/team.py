"""Ranks on the nodes of a test-bed, watched from outside while they measure: their CPU time, memory and traffic, and how much
their neighbours disturbed them."""

import bisect
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from research.corpus.testbed import EmulatedCluster, group_of, start_in_node
from traincast.files import encode
from traincast.profile._machine import CpuGroup
from traincast.profile._protocol import Protocol, Visit
from traincast.profile._resources import PAGE_BYTES, Sample, Samples, network_bytes
from traincast.profile._team import Team, assemble, dismiss, read_visit, stop_all
from traincast.spec import Experiment

ROOT = Path(__file__).parents[2]
PORT = 29_400


@dataclass(slots=True)
class WatchedTeam:
    """Running ranks, each in a control group of its own."""

    team: Team
    shares: Mapping[CpuGroup, float] = field(default_factory=dict)
    """CPU group of each rank and what it may use while it is timed; building and warming up get more."""

    def visit(
        self, experiment: Experiment, *, protocol: Protocol, quiet_s: float = 0.0, timeout_s: float = 300.0
    ) -> Visit:
        """Build and warm up with CPU time to spare, wait up to `quiet_s` until the neighbours are, then hold each rank to
        its share and watch it from outside. `disturbance` is the CPU time, in cores, that neighbours took meanwhile."""
        for group in self.shares:
            group.set_share(1.0)
        self.team.send({"experiment": encode(experiment), "protocol": encode(protocol), "rehearse": True})
        answer = self.team.receive(timeout_s=timeout_s)
        if "rehearsed" not in answer:
            return read_visit(experiment, answer)
        for group, share in self.shares.items():
            group.set_share(share)
        if quiet_s > 0:
            wait_until_quiet(patience_s=quiet_s)
        with watching([process.pid for process in self.team.processes]) as samples:
            busy_s, own_s, started_s = busy_cpu_s(), time.process_time(), time.perf_counter()
            self.team.send({"go": True})
            answer = self.team.receive(timeout_s=timeout_s)
            busy_s, own_s = busy_cpu_s() - busy_s, time.process_time() - own_s
            lasted_s = time.perf_counter() - started_s
        ranks_s = sum(each.values[-1].cpu_s - each.values[0].cpu_s for each in samples if each.values)
        span = (float(answer["began_s"]), float(answer["ended_s"]))
        return replace(
            read_visit(experiment, answer),
            samples=[cut_samples(each, *span) for each in samples],
            disturbance=max(0.0, busy_s - own_s - ranks_s) / lasted_s,
        )


@contextlib.contextmanager
def team_in(
    cluster: EmulatedCluster, *, num_ranks: int | None = None, machine: str | None = None
) -> Iterator[WatchedTeam]:
    """One rank per node of a test-bed that is up; on the first nodes only where fewer ranks are asked for."""
    ranks = num_ranks if num_ranks is not None else len(cluster.nodes)
    with tempfile.TemporaryDirectory(prefix="traincast-team-") as name:
        directory = Path(name)
        (directory / "inbox").touch()
        groups = [group_of(cluster, node) for node in range(ranks)]
        for group in groups:
            # Importing torch at a quarter of a core would take most of the time; the quota comes when all are ready.
            group.set_share(1.0)
        processes = []
        try:
            for rank in range(ranks):
                with (directory / f"rank{rank}.log").open("wb") as log:
                    variables = {
                        "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks), "MASTER_ADDR": cluster.address(0),
                        "MASTER_PORT": str(PORT), "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
                    }  # fmt: skip
                    files = ["--inbox", str(directory / "inbox"), "--results", str(directory / "results")]
                    named = ["--machine", machine] if machine else []
                    command = [sys.executable, "-m", "research.corpus.worker", *files, *named]
                    processes.append(
                        start_in_node(
                            cluster, rank, command, environment=variables, stdout=log.fileno(), stderr=log.fileno()
                        )
                    )
            team = assemble(directory, processes)
            shares = {group: node.cpu_share for group, node in zip(groups, cluster.nodes[:ranks], strict=True)}
            for group, share in shares.items():
                group.set_share(share)
            yield WatchedTeam(team, shares)
            dismiss(team)
        finally:
            stop_all(processes)


def cut_samples(found: Samples, began_s: float, ended_s: float, *, interval_s: float = 0.02) -> Samples:
    """The readings that a perfectly regular sampler would have made in a stretch of the clock; between two readings
    counters grow evenly, and what fell (a thread that ended took its count along) stays where it was."""
    if len(found.values) < 2:
        return Samples()
    times = [sample.at_s for sample in found.values]
    num_windows = max(1, round((ended_s - began_s) / interval_s))
    wanted = [began_s + (ended_s - began_s) * index / num_windows for index in range(num_windows + 1)]
    columns = {}
    for name in ("rss_bytes", "cpu_s", "sent_bytes", "received_bytes"):
        read = [getattr(sample, name) for sample in found.values]
        columns[name] = _interpolate(wanted, times, read if name == "rss_bytes" else list(accumulate(read, max)))
    return Samples(
        [
            Sample(at_s=at_s, **{name: values[index] for name, values in columns.items()})
            for index, at_s in enumerate(wanted)
        ]
    )


def _interpolate(wanted: Sequence[float], times: Sequence[float], values: Sequence[float]) -> list[float]:
    found = []
    for at_s in wanted:
        after = min(max(bisect.bisect_left(times, at_s), 1), len(times) - 1)
        before = after - 1
        part = (at_s - times[before]) / max(times[after] - times[before], 1e-9)
        found.append(values[before] + min(1.0, max(0.0, part)) * (values[after] - values[before]))
    return found


@contextlib.contextmanager
def watching(pids: Sequence[int], *, interval_s: float = 0.02) -> Iterator[list[Samples]]:
    """Sample other processes from outside: their own CPU time is not touched, so this is for timed blocks too."""
    found = [Samples() for _ in pids]
    stop = threading.Event()

    def watch() -> None:
        due_s = time.perf_counter()
        while not stop.is_set():
            for pid, samples in zip(pids, found, strict=True):
                with contextlib.suppress(OSError, IndexError, ValueError):
                    samples.values.append(_sample_process(pid))
            # After a delay the missed readings are not made up for: two at once would show a rate that never was.
            due_s = max(due_s + interval_s, time.perf_counter() + interval_s / 2)
            stop.wait(due_s - time.perf_counter())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _sample_process(pid: int) -> Sample:
    home = Path("/proc", str(pid))
    at_s = time.perf_counter()
    cpu_ns = 0
    for task in (home / "task").iterdir():
        # A thread may end between the listing and the reading; what it used is then missing from one sample.
        with contextlib.suppress(OSError):
            cpu_ns += int((task / "schedstat").read_text().split()[0])
    sent, received = network_bytes(table=home / "net" / "dev")
    return Sample(
        at_s=at_s,
        rss_bytes=float(int((home / "statm").read_text().split()[1]) * PAGE_BYTES),
        cpu_s=cpu_ns * 1e-9,
        sent_bytes=sent,
        received_bytes=received,
    )


def total_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def busy_cpu_s() -> float:
    """CPU seconds that all processes of this machine together have used since it started."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, soft, *_ = (int(word) for word in words)
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(*, patience_s: float, limit: float = 0.15, look_s: float = 0.2) -> bool:
    """Wait until nobody uses more than `limit` of a core; False where patience ends first. The caller must be idle too."""
    deadline_s = time.monotonic() + patience_s
    while True:
        before = busy_cpu_s()
        time.sleep(look_s)
        if busy_cpu_s() - before <= limit * look_s:
            return True
        if time.monotonic() > deadline_s:
            return False
