"""Takes jobs from the state, runs them in worker processes and keeps their results; no fault of storage ends it."""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any

from traincast.errors import TraincastError
from traincast.service._faults import StorageFault
from traincast.service._limits import Settings
from traincast.service._pool import NICENESS, InternalError, Worker
from traincast.service._ray import RayWorker
from traincast.service._state import StoredJob
from traincast.service._storage import Storage

log = logging.getLogger("traincast.service")

LEASE_S = 15.0
"""A job of a shared database whose runner is not heard of for so long is run by another."""
BEAT_S = 1.0
"""How often a runner says that it still runs a job, and asks whether it should."""
POLL_S = 0.5
"""How often a shared database is asked for jobs that came in elsewhere."""
LONGEST_WAIT_S = 2.0
"""Between two tries after a fault of storage."""

MakeTask = Callable[[str], dict[str, Any]]


class JobRunner:
    """Some worker processes and the jobs they run."""

    def __init__(self, storage: Storage, settings: Settings, make_task: MakeTask) -> None:
        self._storage, self._settings, self._make_task = storage, settings, make_task
        self._state = storage.state
        self._lease_s = LEASE_S if self._state.database.is_shared else None
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._workers = [self._make_worker() for _ in range(settings.job_workers)]
        self._running: dict[str, asyncio.Task[None]] = {}
        self._more = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self.progress: dict[str, dict[str, Any]] = {}
        self.num_ended = 0
        self.num_crashes = 0

    def _make_worker(self) -> Worker | RayWorker:
        limits = self._settings.limits
        if self._settings.ray:
            return RayWorker(is_shared=self._state.database.is_shared)
        return Worker(memory_bytes=limits.capture_bytes, rest_bytes=limits.rest_bytes, niceness=NICENESS)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid]

    @property
    def num_alive(self) -> int:
        return sum(not each.done() for each in self._loops)

    async def start(self) -> None:
        if self._workers:
            again = await self._storage.write(self._state.recover)
            if again:
                log.warning("%d jobs were running when the service stopped; they wait again", again)
        self._loops = [asyncio.create_task(self._run_jobs(worker)) for worker in self._workers]

    async def close(self) -> None:
        for each in self._loops:
            each.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    def wake(self) -> None:
        """A job came in."""
        self._more.set()

    async def stop_job(self, job: str) -> None:
        """End the work on a job that was cancelled, where it is run here."""
        task = self._running.get(job)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run_jobs(self, worker: Worker | RayWorker) -> None:
        wait_s = 0.1
        while True:
            try:
                self._more.clear()
                job = await self._storage.write(self._state.take_job, self._owner, lease_s=self._lease_s)
                wait_s = 0.1
                if job is None:
                    await self._sleep()
                else:
                    await self._watch(worker, job)
            except StorageFault:
                # Noted and counted already; the jobs are where they were.
                await asyncio.sleep(wait_s)
                wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
            except Exception:
                self.num_crashes += 1
                log.exception("the job runner met a fault of ours and goes on")
                await asyncio.sleep(wait_s)
                wait_s = min(LONGEST_WAIT_S, 2 * wait_s)

    async def _sleep(self) -> None:
        """Until a job comes in; of a shared database nobody tells, so it is asked."""
        try:
            await asyncio.wait_for(self._more.wait(), POLL_S if self._lease_s is not None else 30.0)
        except TimeoutError:
            return

    async def _watch(self, worker: Worker | RayWorker, job: StoredJob) -> None:
        task = asyncio.create_task(self._run_job(worker, job))
        beats = asyncio.create_task(self._beat(job, task))
        self._running[job.id] = task
        try:
            await asyncio.shield(asyncio.wait([task]))
            if not task.cancelled():
                task.result()
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        finally:
            beats.cancel()
            self._running.pop(job.id, None)
            self.progress.pop(job.id, None)

    async def _beat(self, job: StoredJob, task: "asyncio.Task[None]") -> None:
        """Keep the lease and the progress; stop where somebody else cancelled or took the job."""
        while True:
            await asyncio.sleep(BEAT_S)
            found = self.progress.get(job.id, {"done": 0, "total": 0, "words": ""})
            try:
                ours = await self._storage.write(
                    self._state.note_progress, job.id, owner=self._owner, lease_s=self._lease_s, **found
                )
            except StorageFault:
                continue
            if not ours and not task.done():
                log.warning("job %s is no longer ours to run", job.id)
                task.cancel()
                return

    async def _run_job(self, worker: Worker | RayWorker, job: StoredJob) -> None:
        def report(progress: dict[str, Any]) -> None:
            self.progress[job.id] = progress

        limit_s = self._settings.limits.job_s
        try:
            # The worker reads what was asked: it may be megabytes, and the event loop has other callers.
            asking = worker.ask(self._make_task(job.kind), job.request.encode(), cpu_s=2 * limit_s, report=report)
            result = await asyncio.wait_for(asking, limit_s)
        except TimeoutError:
            await self._finish(job, "failed", error=f"this needs more than {limit_s:g} s, the most that one job gets")
        except StorageFault:
            # The worker could not read the model; the job itself is sound and waits again.
            await asyncio.sleep(LONGEST_WAIT_S)
            await self._keep(self._state.put_back, job.id, owner=self._owner)
        except TraincastError as error:
            await self._finish(job, "failed", error=str(error))
        except InternalError as error:
            log.error("job %s: %s", job.id, error)
            await self._finish(job, "failed", error=str(error))
        except Exception:
            log.exception("job %s met a fault of ours", job.id)
            await self._finish(job, "failed", error="internal error; the service's log says more")
        else:
            progress = self.progress.get(job.id, {"done": 1, "total": 1, "words": "done"})
            await self._finish(job, "done", result=result, progress=progress)
        finally:
            await worker.rest()

    async def _finish(self, job: StoredJob, state: str, **outcome: Any) -> None:
        began_s = time.monotonic()
        await self._keep(self._state.finish_job, job.id, state, owner=self._owner, **outcome)
        self.num_ended += 1
        if time.monotonic() - began_s > 1:
            log.warning("the end of job %s was kept after %.0f s", job.id, time.monotonic() - began_s)

    async def _keep(self, change: Callable[..., bool], *arguments: Any, **options: Any) -> None:
        """Write a change; while that is impossible it is held in memory and tried again."""
        wait_s = 0.1
        while True:
            try:
                await self._storage.write(change, *arguments, **options)
            except StorageFault:
                await asyncio.sleep(wait_s)
                wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
            else:
                return
