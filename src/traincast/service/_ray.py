"""A worker on a node of a Ray cluster, in the place of a process of this machine: the same tasks, the same answers."""

import asyncio
import contextlib
import json
from typing import Any

from traincast.errors import InvalidInput, MissingExtra
from traincast.service._frames import ANSWER, HEADER
from traincast.service._pool import InternalError, Report, read_error
from traincast.service._worker import limit_cpu, run_task
from traincast.workers import ATTEMPTS, join_ray

ASK_S = 1.0
"""How often a node is asked how far it is."""


class Remote:
    """What runs on the node: one task at a time, with its progress for whoever asks meanwhile."""

    def __init__(self) -> None:
        self._progress = b""

    def run(self, task: dict[str, Any], blob: bytes) -> bytes:
        self._progress = b""
        limit_cpu(task.get("cpu_s"))
        return run_task(task, blob, self)

    def write(self, frame: bytes) -> None:
        """Where a task reports to."""
        self._progress = frame[HEADER.size :]

    def progress(self) -> bytes:
        return self._progress


class RayWorker:
    """One actor; killed and forgotten after a time-out or a cancellation. A task whose node is lost begins again elsewhere."""

    pid = None
    """Its process is another machine's."""

    def __init__(self, *, is_shared: bool) -> None:
        """`is_shared`: whether nodes other than this one can read the state."""
        self._is_shared = is_shared
        self._actor: Any = None

    async def ask(
        self,
        task: dict[str, Any],
        blob: bytes | bytearray = b"",
        *,
        cpu_s: float | None = None,
        report: Report | None = None,
    ) -> bytes:
        from ray.exceptions import RayError

        for attempt in range(1, ATTEMPTS + 1):
            actor = await asyncio.to_thread(self._start)
            listening = asyncio.create_task(_listen(actor, report))
            try:
                frame: bytes = await asyncio.wrap_future(
                    actor.run.remote({**task, "cpu_s": cpu_s}, bytes(blob)).future()
                )
            except RayError as error:
                await self.stop()
                if attempt == ATTEMPTS:
                    raise InvalidInput(
                        f"Ray lost the worker of this job {ATTEMPTS} times, for want of memory or of CPU time; ask for less"
                    ) from error
                continue
            except asyncio.CancelledError:
                await self.stop()
                raise
            finally:
                listening.cancel()
            kind, _ = HEADER.unpack(frame[: HEADER.size])
            if kind == ANSWER:
                return frame[HEADER.size :]
            raise read_error(json.loads(frame[HEADER.size :]))
        raise InternalError("a call that was neither answered nor lost")

    def _start(self) -> Any:
        if self._actor is None:
            ray = connect()
            if not self._is_shared and sum(each["Alive"] for each in ray.nodes()) > 1:
                raise InvalidInput(
                    "the nodes of a Ray cluster cannot read a file of this machine; keep the state in PostgreSQL (--database)"
                )
            self._actor = ray.remote(num_cpus=1, max_concurrency=2, max_restarts=0)(Remote).remote()
        return self._actor

    async def rest(self) -> None:
        """Ray watches the memory of its nodes itself."""

    async def stop(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            import ray

            with contextlib.suppress(Exception):
                await asyncio.to_thread(ray.kill, actor)


def connect() -> Any:
    """Ray, joined to the cluster that RAY_ADDRESS or a running `ray start` names, else to one of this machine alone."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray", "running jobs on a cluster") from error
    if not ray.is_initialized():
        join_ray(ray, 0)
    return ray


async def _listen(actor: Any, report: Report | None) -> None:
    while report is not None:
        await asyncio.sleep(ASK_S)
        found: bytes = await asyncio.wrap_future(actor.progress.remote().future())
        if found:
            report(json.loads(found))
