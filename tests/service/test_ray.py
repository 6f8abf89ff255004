"""Jobs of a service on a Ray cluster: the answers of one process, also where the process that worked on one is killed."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from service.conftest import Running, start, wait_until

pytest.importorskip("ray", reason="ray is not installed: pip install 'traincast[ray]'")
pytestmark = pytest.mark.slow

SCHEDULE = {"trace": {"synthetic": 200}, "cluster": "2x8:a100@2.5", "policies": ["fifo", "srtf"], "seed": 1}
LONG = {**SCHEDULE, "trace": {"synthetic": 20_000}, "policies": ["srtf", "las"]}


def find_actors(under: int) -> list[int]:
    """Processes of ours that Ray started below this one."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    below, grown = {under}, True
    while grown:
        more = {int(pid) for pid, parent, _ in rows if int(parent) in below}
        grown = not more <= below
        below |= more
    return [int(pid) for pid, _, words in rows if int(pid) in below and words.startswith("ray::Remote")]


def finish(running: Running, body: object) -> object:
    reply = running.post("/schedule", body)
    assert reply.status == 202
    ended = running.finish(reply.body["id"])
    assert ended.body["state"] == "done", ended.body
    return ended.body["result"]


def test_jobs_on_ray_are_answered_as_by_a_process(service: Running, tmp_path: Path) -> None:
    running = start(tmp_path / "state.db", "--workers", "1", "--ray")
    try:
        assert finish(running, SCHEDULE) == finish(service, SCHEDULE)
        refused = running.post("/schedule", {**SCHEDULE, "cluster": "many"})
        ended = running.finish(refused.body["id"])
        assert (ended.body["state"], "NODESxGPUS" in ended.body["error"]) == ("failed", True)
        job = running.post("/schedule", LONG).body["id"]
        running.wait_until_running(job)
        wait_until(lambda: find_actors(running.process.pid))
        for actor in find_actors(running.process.pid):
            # One that has ended by itself needs no kill.
            with contextlib.suppress(ProcessLookupError):
                os.kill(actor, signal.SIGKILL)
        assert running.finish(job).body["state"] == "done"
        assert running.get("/health").status == 200
    finally:
        running.stop()
