"""Several ranks that stay alive and measure what they are sent, on this machine or on the nodes of a test-bed."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from traincast.errors import TraincastError
from traincast.files import decode, encode
from traincast.profile._machine import CpuGroup, busy_cpu_s, wait_until_quiet
from traincast.profile._protocol import Protocol, Visit
from traincast.profile._resources import watching
from traincast.profile._testbed import EmulatedCluster, group_of, start_in_node, stop_all
from traincast.spec import Block, Environment, Experiment

START_S = 180.0
POLL_S = 0.02


class TeamFailed(TraincastError):
    """The ranks did not start, died, or did not answer in time."""


@dataclass(slots=True)
class Team:
    """Running ranks. `visit` sends them one experiment and waits for its block."""

    directory: Path
    processes: Sequence["subprocess.Popen[bytes]"]
    environment: Environment
    _answers: Iterator[dict[str, Any]] = field(repr=False)
    shares: Mapping[CpuGroup, float] = field(default_factory=dict)
    """CPU group of each rank and what it may use while it is timed; building and warming up get more."""

    def visit(
        self, experiment: Experiment, *, protocol: Protocol, sample: bool = False, timeout_s: float = 300.0
    ) -> Visit:
        order = {"experiment": encode(experiment), "protocol": encode(protocol), "sample": sample}
        self.send(order)
        return _read_visit(experiment, self.receive(timeout_s=timeout_s))

    def visit_watched(
        self, experiment: Experiment, *, protocol: Protocol, quiet_s: float = 0.0, timeout_s: float = 300.0
    ) -> Visit:
        """Build and warm up with CPU time to spare, wait up to `quiet_s` until the neighbours are, then hold each rank to
        its share and watch it from outside. `disturbance` is the CPU time, in cores, that neighbours took meanwhile."""
        for group in self.shares:
            group.set_share(1.0)
        self.send({"experiment": encode(experiment), "protocol": encode(protocol), "rehearse": True})
        answer = self.receive(timeout_s=timeout_s)
        if "rehearsed" not in answer:
            return _read_visit(experiment, answer)
        for group, share in self.shares.items():
            group.set_share(share)
        if quiet_s > 0:
            wait_until_quiet(patience_s=quiet_s)
        with watching([process.pid for process in self.processes]) as samples:
            busy_s, own_s, started_s = busy_cpu_s(), time.process_time(), time.perf_counter()
            self.send({"go": True})
            answer = self.receive(timeout_s=timeout_s)
            busy_s, own_s = busy_cpu_s() - busy_s, time.process_time() - own_s
            lasted_s = time.perf_counter() - started_s
        ranks_s = sum(each.values[-1].cpu_s - each.values[0].cpu_s for each in samples if each.values)
        span = (float(answer["began_s"]), float(answer["ended_s"]))
        return replace(
            _read_visit(experiment, answer),
            samples=[each.between(*span) for each in samples],
            disturbance=max(0.0, busy_s - own_s - ranks_s) / lasted_s,
        )

    def send(self, order: dict[str, Any]) -> None:
        with (self.directory / "inbox").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(order) + "\n")

    def receive(self, *, timeout_s: float) -> dict[str, Any]:
        return _receive(self._answers, self.processes, self.directory, timeout_s=timeout_s)


def _read_visit(experiment: Experiment, answer: Mapping[str, Any]) -> Visit:
    if "failure" in answer:
        return Visit(experiment=experiment, block=None, failure=str(answer["failure"]))
    return Visit(experiment=experiment, block=decode(Block, answer["block"]))


@contextlib.contextmanager
def team_in(cluster: EmulatedCluster, *, num_ranks: int | None = None, machine: str | None = None) -> Iterator[Team]:
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
                    variables = _rendezvous(rank, ranks, cluster.address(0), 29_400)
                    command = _worker_command(directory, machine)
                    processes.append(
                        start_in_node(
                            cluster, rank, command, environment=variables, stdout=log.fileno(), stderr=log.fileno()
                        )
                    )
            team = _assemble(directory, processes)
            team.shares = {group: node.cpu_share for group, node in zip(groups, cluster.nodes[:ranks], strict=True)}
            for group, share in team.shares.items():
                group.set_share(share)
            yield team
            _dismiss(team)
        finally:
            stop_all(processes)


@contextlib.contextmanager
def local_team(num_ranks: int, *, machine: str | None = None, backend: str = "gloo") -> Iterator[Team]:
    """Ranks side by side on this machine, started by torchrun."""
    with tempfile.TemporaryDirectory(prefix="traincast-team-") as name:
        directory = Path(name)
        (directory / "inbox").touch()
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
        port = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        command = [*launcher, *port, *_worker_command(directory, machine)[1:], "--backend", backend]
        variables = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "MALLOC_ARENA_MAX": "1"}
        with (directory / "rank0.log").open("wb") as log:
            process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            team = _assemble(directory, [process])
            yield team
            _dismiss(team)
        finally:
            stop_all([process])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _worker_command(directory: Path, machine: str | None) -> list[str]:
    files = ["--inbox", str(directory / "inbox"), "--results", str(directory / "results")]
    return [sys.executable, "-m", "traincast.profile._worker", *files, *(["--machine", machine] if machine else [])]


def _rendezvous(rank: int, ranks: int, address: str, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def _assemble(directory: Path, processes: Sequence["subprocess.Popen[bytes]"]) -> Team:
    answers = _answers(directory / "results")
    greeting = _receive(answers, processes, directory, timeout_s=START_S)
    environment = decode(Environment, greeting["environment"])
    return Team(directory=directory, processes=processes, environment=environment, _answers=answers)


def _dismiss(team: Team) -> None:
    team.send({"stop": True})
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(process.poll() is None for process in team.processes):
        time.sleep(POLL_S)


def _answers(results: Path) -> Iterator[dict[str, Any]]:
    """Complete lines as they appear; an empty answer where there is none yet."""
    pending = ""
    while not results.exists():
        yield {}
    with results.open(encoding="utf-8") as stream:
        while True:
            pending += stream.readline()
            if pending.endswith("\n"):
                yield json.loads(pending)
                pending = ""
            else:
                yield {}


def _receive(
    answers: Iterator[dict[str, Any]],
    processes: Sequence["subprocess.Popen[bytes]"],
    directory: Path,
    *,
    timeout_s: float,
) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        answer = next(answers)
        if answer:
            return answer
        if any(process.poll() is not None for process in processes):
            raise TeamFailed(f"a rank ended without an answer: {_last_words(directory)}")
        time.sleep(POLL_S)
    raise TeamFailed(f"the ranks gave no answer within {timeout_s:g} s: {_last_words(directory)}")


def _last_words(directory: Path) -> str:
    lines = []
    for log in sorted(directory.glob("rank*.log")):
        text = [
            line for line in log.read_text(errors="replace").splitlines() if line.strip() and not line.startswith("[W")
        ]
        lines += [line.strip() for line in text if "Error" in line][-1:] or text[-1:]
    return "; ".join(lines)[:500] or "nothing was logged"
