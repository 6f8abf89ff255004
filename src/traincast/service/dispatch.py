"""Checked requests to workers and back: answers kept in memory, uploads and jobs in the state file."""

import asyncio
import dataclasses
import hashlib
import json
import logging
import time
from collections import OrderedDict
from typing import Any

from traincast.errors import InvalidInput, TraincastError
from traincast.service.bodies import AskBody
from traincast.service.limits import Settings
from traincast.service.metrics import Meter
from traincast.service.pool import Busy, InternalError, Pool, Worker
from traincast.service.state import State, StoredJob
from traincast.service.uploads import guess_kind, unpack

log = logging.getLogger("traincast.service")

CAPTURE_OPTIONS = ("seq", "precision", "mode", "optimizer", "attention")
"""What changes the recorded step of an upload; its batch is chosen later."""
PROGRESS_EVERY_S = 0.5


class NotFound(TraincastError):
    """Something that this service does not hold."""


class Cache:
    """The answers asked for last, up to a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._answers: OrderedDict[str, bytes] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: str) -> bytes | None:
        found = self._answers.get(key)
        if found is not None:
            self._answers.move_to_end(key)
        return found

    def put(self, key: str, answer: bytes) -> None:
        size = len(key) + len(answer)
        if size > self._most_bytes // 4 or key in self._answers:
            return
        self._answers[key] = answer
        self.num_bytes += size
        while self.num_bytes > self._most_bytes:
            old, gone = self._answers.popitem(last=False)
            self.num_bytes -= len(old) + len(gone)


class Dispatcher:
    """The service without HTTP."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meter = Meter()
        limits = settings.limits
        self.state = State(settings.state, kept_jobs=limits.kept_jobs, kept_models=limits.kept_models)
        self._plain_limits = dataclasses.asdict(limits)
        self._cache = Cache(limits.cache_bytes)
        self._flying: dict[str, asyncio.Task[bytes]] = {}
        self._quick = Pool(size=settings.workers, memory_bytes=limits.worker_bytes, max_waiting=limits.waiting_requests)
        self._recorder = Pool(size=1, memory_bytes=limits.capture_bytes, max_waiting=16)
        self._job_workers = [Worker(memory_bytes=limits.capture_bytes) for _ in range(settings.job_workers)]
        self._running: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, dict[str, Any]] = {}
        self._more_jobs = asyncio.Event()
        self._runners: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        again = self.state.recover()
        if again:
            log.warning("%d jobs were running when the service stopped; they wait again", again)
        await self._quick.warm({"task": "warm"})
        self._runners = [asyncio.create_task(self._run_jobs(worker)) for worker in self._job_workers]

    async def close(self) -> None:
        for runner in self._runners:
            runner.cancel()
        await asyncio.gather(*self._runners, return_exceptions=True)
        await asyncio.gather(self._quick.close(), self._recorder.close(), *(each.stop() for each in self._job_workers))
        self.state.close()

    def format_metrics(self) -> str:
        pids = [*self._quick.pids, *self._recorder.pids, *(each.pid for each in self._job_workers if each.pid)]
        return self.meter.format(
            jobs=self.state.count_jobs(),
            waiting=self._quick.num_waiting + self._recorder.num_waiting,
            cached_bytes=self._cache.num_bytes,
            pids=pids,
        )

    async def answer(self, task: str, body: AskBody) -> bytes:
        """A forecast or a fit: from memory, from the same question under way, or from a worker."""
        request, options = await self.settle(body)
        key = f"{task} {json.dumps(request, sort_keys=True)}"
        found = self._cache.get(key)
        if found is not None:
            self.meter.cache_hits += 1
            return found
        self.meter.cache_misses += 1
        flying = self._flying.get(key)
        if flying is None:
            flying = asyncio.create_task(self._compute(task, request, options))
            self._flying[key] = flying
            flying.add_done_callback(lambda _: self._flying.pop(key, None))
        found = await asyncio.shield(flying)
        self._cache.put(key, found)
        return found

    async def _compute(self, task: str, request: dict[str, Any], options: str) -> bytes:
        return await self._quick.ask(
            self._task(task, request, options=options), timeout_s=self.settings.limits.request_s
        )

    def _task(self, task: str, request: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "task": task,
            "request": request,
            "limits": self._plain_limits,
            "state": str(self.settings.state),
            **more,
        }

    async def settle(self, body: AskBody) -> tuple[dict[str, Any], str]:
        """The request in its plainest form, with every upload in the state file, and the options it was recorded with."""
        request = body.given()
        request["cluster"] = body.cluster.table()
        workload = request["workload"]
        named = [key for key in ("name", "model", "graph", "config") if key in workload]
        if len(named) != 1:
            raise InvalidInput(
                f"the workload gives {' and '.join(named) or 'nothing'} to forecast; give one of name, model, graph, config"
            )
        if named[0] == "name":
            return request, ""
        asked = {key: workload[key] for key in CAPTURE_OPTIONS if key in workload}
        if named[0] in ("graph", "config"):
            content = json.dumps(workload.pop(named[0]), sort_keys=True).encode()
            about = await self.upload(content, kind=named[0], options=asked)
            workload["model"] = about["model"]
        elif self.state.model_kind(workload["model"]) is None:
            raise NotFound(f"there is no model {workload['model'][:12]}...; upload it again with POST /models")
        options = json.dumps(asked, sort_keys=True)
        if not self.state.has_graph(workload["model"], options):
            await self._record(workload["model"], asked)
        return request, options

    async def upload(
        self, content: bytes, *, kind: str | None = None, options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Keep a model and the graph recorded from it; the same bytes are the same model."""
        # In a thread: unpacking is long and lets others run meanwhile.
        content = await asyncio.to_thread(unpack, content, most=4 * self.settings.limits.body_bytes)
        kind = kind or guess_kind(content)
        model = hashlib.sha256(kind.encode() + b"\0" + content).hexdigest()
        key = json.dumps(options or {}, sort_keys=True)
        if not self.state.has_graph(model, key):
            recorded = await self._capture(content, kind, options or {})
            name = json.loads(recorded)["about"]["name"]
            self.state.add_model(model=model, name=name[:200], kind=kind, content=content)
            self.state.add_graph(model=model, options=key, content=recorded)
        else:
            recorded = self.state.read_graph(model, key)
        return {"model": model, "kind": kind, **json.loads(recorded)["about"]}

    async def _record(self, model: str, options: dict[str, Any]) -> None:
        found = self.state.find_model(model)
        if found is None:
            raise NotFound(f"there is no model {model[:12]}...; upload it again with POST /models")
        _, kind, content = found
        recorded = await self._capture(content, kind, options)
        self.state.add_graph(model=model, options=json.dumps(options, sort_keys=True), content=recorded)

    async def _capture(self, content: bytes, kind: str, options: dict[str, Any]) -> bytes:
        # A graph needs only to be checked; a config or an ONNX file needs the worker that may load PyTorch.
        pool = self._quick if kind == "graph" else self._recorder
        task = {"task": "capture", "kind": kind, "options": options, "limits": self._plain_limits}
        return await pool.ask(task, content, timeout_s=self.settings.limits.capture_s)

    def ask_job(self, kind: str, request: dict[str, Any]) -> StoredJob:
        waiting = self.state.count_jobs()["queued"]
        if waiting >= self.settings.limits.waiting_jobs:
            raise Busy(f"{waiting} jobs wait already, the most that may; ask again later")
        job = self.state.add_job(kind, request)
        self._more_jobs.set()
        return job

    def find_job(self, job: str) -> StoredJob:
        try:
            found = self.state.find_job(job)
        except KeyError:
            raise NotFound(f"there is no job {job[:40]!r}; it was never asked for, or is too old to be kept") from None
        return dataclasses.replace(found, **self._progress.get(job, {}))

    async def cancel_job(self, job: str) -> StoredJob:
        self.find_job(job)
        self.state.finish_job(job, "cancelled")
        task = self._running.get(job)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return self.find_job(job)

    async def _run_jobs(self, worker: Worker) -> None:
        while True:
            self._more_jobs.clear()
            job = self.state.take_job()
            if job is None:
                await self._more_jobs.wait()
                continue
            task = asyncio.create_task(self._run_job(worker, job))
            self._running[job.id] = task
            try:
                await asyncio.shield(asyncio.wait([task]))
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise
            finally:
                self._running.pop(job.id, None)
                self._progress.pop(job.id, None)

    async def _run_job(self, worker: Worker, job: StoredJob) -> None:
        noted_s = time.monotonic()

        def report(progress: dict[str, Any]) -> None:
            nonlocal noted_s
            self._progress[job.id] = progress
            if time.monotonic() - noted_s > PROGRESS_EVERY_S:
                noted_s = time.monotonic()
                self.state.note_progress(job.id, **progress)

        limit_s = self.settings.limits.job_s
        try:
            task = self._task(job.kind, job.request["request"], options=job.request.get("options", ""))
            result = await asyncio.wait_for(worker.ask(task, report=report), limit_s)
        except TimeoutError:
            self.state.finish_job(
                job.id, "failed", error=f"this needs more than {limit_s:g} s, the most that one job gets"
            )
        except TraincastError as error:
            self.state.finish_job(job.id, "failed", error=str(error))
        except InternalError as error:
            log.error("job %s: %s", job.id, error)
            self.state.finish_job(job.id, "failed", error=str(error))
        else:
            self.state.note_progress(job.id, **self._progress.get(job.id, {"done": 1, "total": 1, "words": "done"}))
            self.state.finish_job(job.id, "done", result=result)
