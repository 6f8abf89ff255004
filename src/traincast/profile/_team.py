"""Several ranks that stay alive on this machine and measure what they are sent."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincast.errors import TraincastError
from traincast.files import decode, encode
from traincast.profile._protocol import Protocol, Visit
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

    def visit(
        self, experiment: Experiment, *, protocol: Protocol, sample: bool = False, timeout_s: float = 300.0
    ) -> Visit:
        order = {"experiment": encode(experiment), "protocol": encode(protocol), "sample": sample}
        self.send(order)
        return read_visit(experiment, self.receive(timeout_s=timeout_s))

    def send(self, order: dict[str, Any]) -> None:
        with (self.directory / "inbox").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(order) + "\n")

    def receive(self, *, timeout_s: float) -> dict[str, Any]:
        return _receive(self._answers, self.processes, self.directory, timeout_s=timeout_s)


def read_visit(experiment: Experiment, answer: Mapping[str, Any]) -> Visit:
    if "failure" in answer:
        return Visit(experiment=experiment, block=None, failure=str(answer["failure"]))
    return Visit(experiment=experiment, block=decode(Block, answer["block"]))


@contextlib.contextmanager
def local_team(num_ranks: int, *, machine: str | None = None, backend: str = "gloo") -> Iterator[Team]:
    """Ranks side by side on this machine, started by torchrun."""
    with tempfile.TemporaryDirectory(prefix="traincast-team-") as name:
        directory = Path(name)
        (directory / "inbox").touch()
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
        port = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
        files = ["--inbox", str(directory / "inbox"), "--results", str(directory / "results")]
        worker = ["-m", "traincast.profile._worker", *files, "--backend", backend]
        command = [*launcher, *port, *worker, *(["--machine", machine] if machine else [])]
        variables = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "MALLOC_ARENA_MAX": "1"}
        with (directory / "rank0.log").open("wb") as log:
            process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            team = assemble(directory, [process])
            yield team
            dismiss(team)
        finally:
            stop_all([process])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop_all(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Each was started in its own session, so its whole family goes with it."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def assemble(directory: Path, processes: Sequence["subprocess.Popen[bytes]"]) -> Team:
    answers = _answers(directory / "results")
    greeting = _receive(answers, processes, directory, timeout_s=START_S)
    environment = decode(Environment, greeting["environment"])
    return Team(directory=directory, processes=processes, environment=environment, _answers=answers)


def dismiss(team: Team) -> None:
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
