"""Takes jobs from the state, runs them in worker processes and keeps their results; no fault of storage ends it."""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from traincast.errors import TraincastError
from traincast.service._faults import InternalError, Interrupted, NotRecorded, StorageFault, Unstorable, WorkerDied
from traincast.service._limits import Settings
from traincast.service._pool import NICENESS_BESIDE, Worker
from traincast.service._state import StoredJob
from traincast.service._storage import Storage, T

log = logging.getLogger("traincast.service")

LONGEST_WAIT_S = 2.0
"""Between two tries after a fault of storage."""

MakeTask = Callable[[str], dict[str, Any]]
Provide = Callable[[NotRecorded], Awaitable[None]]


class JobRunner:
    """Some worker processes and the jobs they run. With more than one, no client holds all of them."""

    def __init__(self, storage: Storage, settings: Settings, make_task: MakeTask, provide: Provide) -> None:
        self._storage, self._settings, self._make_task, self._provide = storage, settings, make_task, provide
        self._state = storage.state
        self._owner = secrets.token_hex(8)
        limits = settings.limits
        self._workers = [
            Worker(memory_bytes=limits.capture_bytes, rest_bytes=limits.rest_bytes, niceness=NICENESS_BESIDE)
            for _ in range(settings.job_workers)
        ]
        self._running: dict[str, tuple[StoredJob, asyncio.Task[None]]] = {}
        self._more = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self.progress: dict[str, dict[str, Any]] = {}

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid]

    @property
    def num_alive(self) -> int:
        return sum(not each.done() for each in self._loops)

    async def start(self) -> None:
        again = await self._storage.write(self._state.recover)
        if again:
            log.warning("%d jobs were running when the service stopped; they wait again", again)
        self._loops = [asyncio.create_task(self._run_jobs(worker)) for worker in self._workers]

    async def close(self) -> None:
        """What runs waits for the next start; where that cannot be written now, the next start does it."""
        left = list(self._running)
        for each in self._loops:
            each.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        for job in left:
            with contextlib.suppress(StorageFault):
                await self._storage.write(self._state.put_back, job, owner=self._owner)

    def wake(self) -> None:
        """A job came in."""
        self._more.set()

    async def stop_job(self, job: str) -> None:
        """End the work on a job that was cancelled."""
        if job in self._running:
            _, task = self._running[job]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run_jobs(self, worker: Worker) -> None:
        while True:
            try:
                self._more.clear()
                job = await self._keep(self._state.take_job, self._owner, not_of=self._full_clients())
                if job is None:
                    # Whoever ends a job may have kept the next one of its client from this worker.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._more.wait(), 30.0)
                else:
                    await self._watch(worker, job)
                    self._more.set()
            except Exception:
                log.exception("the job runner met a fault of ours and goes on")
                await asyncio.sleep(LONGEST_WAIT_S)

    def _full_clients(self) -> list[str]:
        counts = Counter(job.client or "" for job, _ in self._running.values())
        return [client for client, count in counts.items() if count >= max(1, len(self._workers) - 1)]

    async def _watch(self, worker: Worker, job: StoredJob) -> None:
        task = asyncio.create_task(self._run_job(worker, job))
        self._running[job.id] = job, task
        try:
            await asyncio.shield(asyncio.wait([task]))
            if not task.cancelled():
                task.result()
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        finally:
            self._running.pop(job.id, None)
            self.progress.pop(job.id, None)

    async def _run_job(self, worker: Worker, job: StoredJob) -> None:
        def report(progress: dict[str, Any]) -> None:
            self.progress[job.id] = progress

        limit_s = self._settings.limits.job_s
        try:
            # The worker reads what was asked: it may be megabytes, and the event loop has other callers.
            asked = self._make_task(job.kind), job.request.encode()
            async with asyncio.timeout(limit_s):
                try:
                    result = await worker.ask(*asked, cpu_s=2 * limit_s, report=report)
                except NotRecorded as need:
                    await self._provide(need)
                    result = await worker.ask(*asked, cpu_s=2 * limit_s, report=report)
        except TimeoutError:
            await self._finish(job, "failed", error=f"this needs more than {limit_s:g} s, the most that one job gets")
        except (StorageFault, Interrupted):
            # The worker could not read the model, or the service is being stopped: the job itself is sound and waits again.
            await asyncio.sleep(LONGEST_WAIT_S)
            await self._keep(self._state.put_back, job.id, owner=self._owner)
        except WorkerDied as error:
            log.error("job %s: its worker died", job.id)
            # Where the whole service is being killed its workers may go first: then this is never written.
            await asyncio.sleep(0.5)
            await self._keep(self._state.put_back, job.id, owner=self._owner, died=str(error))
        except (TraincastError, InternalError) as error:
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
        try:
            await self._keep(self._state.finish_job, job.id, state, owner=self._owner, **outcome)
        except Unstorable as error:
            log.error("the end of job %s: %s", job.id, error)
            await self._keep(self._state.finish_job, job.id, "failed", owner=self._owner, error=f"its result: {error}")

    async def _keep(self, change: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Write a change; while that is impossible it is held in memory and tried again. The storage counts its faults."""
        wait_s = 0.1
        while True:
            try:
                return await self._storage.write(change, *arguments, **options)
            except StorageFault:
                await asyncio.sleep(wait_s)
                wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
