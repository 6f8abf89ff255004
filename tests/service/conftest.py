"""A real service in its own process, and the few words tests say to it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SMALL = {
    "workload": {"name": "gpt2", "batch": 4, "seq": 512, "precision": "bf16"},
    "cluster": {"device": "a100-80g", "nodes": 1, "devices_per_node": 8},
}


PATIENCE_S = float(os.environ.get("TRAINCAST_TEST_PATIENCE_S", "240"))
"""Nothing that a test waits for takes so long, however busy the machine is."""


def wait_until(is_true: Callable[[], object], *, patience_s: float = PATIENCE_S) -> None:
    until = time.monotonic() + patience_s
    while not is_true():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def error(self) -> str:
        return str(self.body["detail"])


@dataclass(slots=True)
class Running:
    """A service and how to talk to it."""

    url: str
    process: "subprocess.Popen[str]"

    def upload(self, content: Any) -> str:
        """The id of a graph or a config that this service has recorded."""
        reply = self.ask("POST", "/models", raw=json.dumps(content).encode())
        assert reply.status == 200, reply.error
        return str(reply.body["model"])

    def ask(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str) -> Reply:
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", **{key.replace("_", "-"): value for key, value in headers.items()}}
        request = urllib.request.Request(f"{self.url}{path}", data=data, method=method, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return Reply(response.status, _read(response), dict(response.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, _read(error), dict(error.headers))

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.ask("POST", path, body, **headers)

    def finish(self, job: str, *, patience_s: float = PATIENCE_S) -> Reply:
        """Wait for a job to end."""
        until = time.monotonic() + patience_s
        while True:
            reply = self.get(f"/jobs/{job}")
            if reply.body["state"] not in ("queued", "running") or time.monotonic() > until:
                return reply
            time.sleep(0.05)

    def wait_until_running(self, job: str) -> None:
        """Wait for a job to be taken."""
        wait_until(lambda: self.get(f"/jobs/{job}").body["state"] != "queued")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


def _read(response: Any) -> Any:
    content = response.read()
    if content and "json" in (response.headers.get("content-type") or ""):
        return json.loads(content)
    return content.decode()


HASTY = """
import json, sys
from traincast.service._limits import Limits, Settings
from traincast.service._run import run_service
limits = Limits(**json.loads(sys.argv[2]))
announce = lambda url: print(json.dumps({"url": url}), flush=True)
run_service(Settings(state=sys.argv[1], workers=1, limits=limits), port=0, announce=announce)
"""


def start_limited(state: Path, **limits: float) -> Running:
    """A service with limits that the command line does not offer, so that tests need not wait for them."""
    return run_service([sys.executable, "-c", HASTY, str(state), json.dumps(limits)], token=None)


def start(state: Path, *options: str, token: str | None = None) -> Running:
    where = [] if "--database" in options else ["--state", str(state)]
    command = [sys.executable, "-m", "traincast", "serve", "--port", "0", *where, "--json", *options]
    return run_service(command, token=token)


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def no_service_outlives_its_test() -> Iterator[None]:
    """A test that fails half way leaves nothing that computes on."""
    known = len(STARTED)
    yield
    for process in STARTED[known:]:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    del STARTED[known:]


def run_service(command: list[str], *, token: str | None) -> Running:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("TRAINCAST_TOKEN", None)
    if token is not None:
        environment["TRAINCAST_TOKEN"] = token
    # A group of its own, as a service manager starts it.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    STARTED.append(process)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the service did not start: exit code {process.wait()}"
    process.stdout.close()
    return Running(json.loads(line)["url"], process)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One service for all tests that leave it as it is."""
    running = start(tmp_path_factory.mktemp("service") / "state.db", "--workers", "1")
    STARTED.remove(running.process)  # it lives as long as the tests
    yield running
    running.stop()
