"""Checked requests to workers and back: answers kept in memory, uploads and jobs in the state."""

import asyncio
import dataclasses
import hashlib
import json
import secrets
from collections import OrderedDict
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput, TraincastError, UnknownName
from traincast.files import load_calibration, read_json
from traincast.service._bodies import AskBody
from traincast.service._limits import Settings
from traincast.service._metrics import Meter
from traincast.service._pool import NICENESS, Busy, Pool
from traincast.service._runner import JobRunner
from traincast.service._state import State, StoredJob, open_database
from traincast.service._storage import Storage
from traincast.service._uploads import guess_kind, split_recorded, unpack

CAPTURE_OPTIONS = ("seq", "precision", "mode", "optimizer", "attention")
"""What changes the recorded step of an upload; its batch is chosen later."""
LARGE_BODY = 8 * 1024
"""A JSON body above this is parsed and checked in a worker: the event loop has other callers."""
CONTENT_KEYS = ("graph", "config")
MOST_OPENED = 64

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""Who asks, as far as the guard knows: the name of a token or an address."""


class NotFound(TraincastError):
    """Something that this service does not hold."""


def _read_calibration(path: Path) -> str:
    """The text of a calibration file, which is checked when the service starts."""
    load_calibration(path)
    return json.dumps(read_json(path), sort_keys=True)


class Cache:
    """The answers asked for last, up to a number of bytes; each also under the bodies that asked for it."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._answers: OrderedDict[Any, bytes] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: Any) -> bytes | None:
        found = self._answers.get(key)
        if found is not None:
            self._answers.move_to_end(key)
        return found

    def put(self, key: Any, answer: bytes) -> None:
        size = len(key[1]) + len(answer)
        if size > self._most_bytes // 4 or key in self._answers:
            return
        self._answers[key] = answer
        self.num_bytes += size
        while self.num_bytes > self._most_bytes:
            old, gone = self._answers.popitem(last=False)
            self.num_bytes -= len(old[1]) + len(gone)


class Dispatcher:
    """The service without HTTP."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meter = Meter()
        limits = settings.limits
        self.state = State(open_database(settings.state), kept_jobs=limits.kept_jobs, kept_models=limits.kept_models)
        self.storage = Storage(self.state)
        self.runner = JobRunner(self.storage, settings, self._stored_task)
        self._plain_limits = dataclasses.asdict(limits)
        self._calibrations = {name: _read_calibration(path) for name, path in settings.calibrations.items()}
        self._cache = Cache(limits.cache_bytes)
        self._bodies = Cache(limits.cache_bytes // 4)
        self._flying: dict[tuple[str, str], asyncio.Task[bytes]] = {}
        self._opened: OrderedDict[str, bytes] = OrderedDict()
        self._quick = Pool(
            size=settings.workers,
            memory_bytes=limits.worker_bytes,
            max_waiting=limits.waiting_requests,
            patience_s=limits.patience_s,
            rest_bytes=limits.rest_bytes,
        )
        self._parsers = Pool(
            size=2,
            memory_bytes=limits.worker_bytes,
            max_waiting=16,
            rest_bytes=limits.rest_bytes,
            niceness=NICENESS,
        )
        # PyTorch alone takes half of what others may hold.
        self._recorders = Pool(
            size=2,
            memory_bytes=limits.capture_bytes,
            max_waiting=16,
            rest_bytes=2 * limits.rest_bytes,
            niceness=NICENESS,
        )
        self.is_ready = False

    async def start(self) -> None:
        await self._quick.warm({"task": "warm"})
        await self.runner.start()
        self.is_ready = True

    async def close(self) -> None:
        self.is_ready = False
        await self.runner.close()
        await asyncio.gather(self._quick.close(), self._parsers.close(), self._recorders.close())
        await self.storage.close()

    async def check_health(self) -> dict[str, Any]:
        """What works and what does not, as it was found a few seconds ago at most."""
        await self.storage.check()
        problems = []
        if self.storage.fault is not None:
            problems.append(str(self.storage.fault))
        if self.is_ready and self.runner.num_alive < self.settings.job_workers:
            problems.append(f"{self.runner.num_alive} of {self.settings.job_workers} job runners are alive")
        queue = self.storage.queue
        return {
            "status": "failing" if problems else "ok",
            "problems": problems,
            "storage": self.storage.describe(),
            "queue": {
                **{state: queue.counts.get(state, 0) for state in ("queued", "running")},
                "oldest_s": round(queue.oldest_s, 3),
                "runners": self.settings.job_workers,
                "runners_alive": self.runner.num_alive,
            },
        }

    def format_metrics(self) -> str:
        pools = (self._quick, self._parsers, self._recorders)
        return self.meter.format(
            queue=self.storage.queue,
            faults=self.storage.faults,
            num_rescued=self.state.database.num_rescued,
            runners_alive=self.runner.num_alive,
            waiting=sum(pool.num_waiting for pool in pools),
            refused=sum(pool.num_refused for pool in pools),
            cached_bytes=self._cache.num_bytes + self._bodies.num_bytes,
            pids=[*(pid for pool in pools for pid in pool.pids), *self.runner.pids],
        )

    def recall(self, task: str, body: bytes) -> bytes | None:
        """The answer to exactly these bytes, without reading them."""
        found = self._bodies.get((task, body))
        if found is not None:
            self.meter.cache_hits += 1
        return found

    def check_room(self) -> None:
        """Refuse what no worker could take, before it is parsed."""
        self._quick.check_room(CLIENT.get())

    async def answer(self, task: str, body: AskBody, *, raw: bytes = b"") -> bytes:
        """A forecast or a fit: from memory, from the same question under way, or from a worker."""
        request, options = await self.settle(body)
        key = (task, json.dumps(request, sort_keys=True))
        found = self._cache.get(key)
        if found is not None:
            self.meter.cache_hits += 1
        else:
            self.meter.cache_misses += 1
            found = await self._compute(key, request, options)
            self._cache.put(key, found)
        if 0 < len(raw) <= LARGE_BODY:
            self._bodies.put((task, raw), found)
        return found

    async def _compute(self, key: tuple[str, str], request: dict[str, Any], options: str) -> bytes:
        flying = self._flying.get(key)
        if flying is None:
            limit_s = self.settings.limits.request_s
            asking = self._quick.ask(
                self._task(key[0], request, options=options), timeout_s=limit_s, cpu_s=limit_s, client=CLIENT.get()
            )
            flying = asyncio.create_task(asking)
            self._flying[key] = flying
            flying.add_done_callback(lambda _: self._flying.pop(key, None))
        return await asyncio.shield(flying)

    def _stored_task(self, kind: str) -> dict[str, Any]:
        """What is asked comes beside it, as it was stored."""
        return {"task": kind, "is_stored": True, "limits": self._plain_limits, "state": self.settings.state}

    def _task(self, task: str, request: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"task": task, "request": request, "limits": self._plain_limits, "state": self.settings.state, **more}

    async def open_body(self, content: bytes | bytearray, model: str) -> dict[str, Any]:
        """A large body parsed and checked by a worker; graphs, configs and traces in it stay packed, with a mark in their
        place."""
        task = {"task": "open", "model": model, "limits": self._plain_limits}
        limits = self.settings.limits
        opened = await self._parsers.ask(
            task, content, timeout_s=3 * limits.parse_s, cpu_s=limits.parse_s, client=CLIENT.get()
        )
        head, _, inner = opened.partition(b"\n")
        document: dict[str, Any] = json.loads(head)
        if inner:
            mark = secrets.token_hex(16)
            self._opened[mark] = inner
            while len(self._opened) > MOST_OPENED:
                self._opened.popitem(last=False)
            if "trace" in document:
                document["trace"]["text"] = f"opened:{mark}"
            else:
                workload = document["workload"]
                workload[next(key for key in CONTENT_KEYS if key in workload)] = {"opened": mark}
        return document

    async def settle(self, body: AskBody) -> tuple[dict[str, Any], str]:
        """The request in its plainest form, with every upload in the state, and the options it was recorded with."""
        request = body.given()
        request["cluster"] = body.cluster.table()
        if request.get("calibration") is not None:
            request["calibration"] = self._find_calibration(request["calibration"])
        workload = request["workload"]
        named = [key for key in ("name", "model", *CONTENT_KEYS) if key in workload]
        if not named and request.get("configs"):
            return request, ""
        if len(named) != 1:
            raise InvalidInput(
                f"the workload gives {' and '.join(named) or 'nothing'} to forecast; give one of name, model, graph, config"
            )
        if named[0] == "name":
            return request, ""
        asked = {key: workload[key] for key in CAPTURE_OPTIONS if key in workload}
        options = json.dumps(asked, sort_keys=True)
        if named[0] in CONTENT_KEYS:
            given = workload.pop(named[0])
            content = self._opened.pop(str(given.get("opened")), None)
            if content is None:
                content = json.dumps(given, sort_keys=True).encode()
            about = await self.upload(content, kind=named[0], options=asked)
            workload["model"] = about["model"]
        elif await self.storage.read(self.state.find_graph, workload["model"], options) is None:
            await self._record(workload["model"], asked)
        return request, options

    def _find_calibration(self, asked: str | dict[str, Any]) -> str:
        """The text of a calibration: of those that the service was started with, or of the request itself."""
        if isinstance(asked, dict):
            return json.dumps(asked, sort_keys=True)
        if asked not in self._calibrations:
            raise UnknownName("calibration", asked, self._calibrations)
        return self._calibrations[asked]

    async def upload(
        self, content: bytes | bytearray, *, kind: str | None = None, options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Keep a model and the graph recorded from it; the same bytes are the same model."""

        def examine() -> tuple[bytes | bytearray, str, str]:
            unpacked = unpack(content, most=4 * self.settings.limits.body_bytes)
            found = kind or guess_kind(unpacked)
            digest = hashlib.sha256(found.encode() + b"\0")
            digest.update(unpacked)
            return unpacked, found, digest.hexdigest()

        # In a thread: unpacking and digesting are long and let others run meanwhile.
        content, found_kind, model = await asyncio.to_thread(examine)
        key = json.dumps(options or {}, sort_keys=True)
        about = await self.storage.read(self.state.find_graph, model, key)
        if about is None:
            words, graph = await self._capture(content, found_kind, options or {})
            about = json.loads(words)
            await self.storage.write(
                self.state.add_model,
                model=model,
                name=about["name"][:200],
                kind=found_kind,
                content=content,
                options=key,
                graph=graph,
                about=words,
            )
        return {"model": model, "kind": found_kind, **about}

    async def _record(self, model: str, options: dict[str, Any]) -> None:
        found = await self.storage.read(self.state.find_model, model)
        if found is None:
            raise NotFound(f"there is no model {model[:12]}...; upload it again with POST /models")
        _, kind, content = found
        about, graph = await self._capture(content, kind, options)
        await self.storage.write(
            self.state.add_graph,
            model=model,
            options=json.dumps(options, sort_keys=True),
            content=graph,
            about=about,
        )

    async def _capture(self, content: bytes | bytearray, kind: str, options: dict[str, Any]) -> tuple[str, bytes]:
        # A graph needs only to be checked; a config or an ONNX file needs the worker that may load PyTorch.
        pool = self._parsers if kind == "graph" else self._recorders
        task = {"task": "capture", "kind": kind, "options": options, "limits": self._plain_limits}
        limits = self.settings.limits
        recorded = await pool.ask(
            task, content, timeout_s=limits.capture_s, cpu_s=limits.capture_cpu_s, client=CLIENT.get()
        )
        return split_recorded(recorded)

    async def ask_job(self, kind: str, request: dict[str, Any]) -> StoredJob:
        most = self.settings.limits.waiting_jobs
        text = json.dumps(request)
        opened = (request["request"].get("trace") or {}).get("text") or ""
        packed = self._opened.pop(opened.removeprefix("opened:"), None)
        if packed is not None:
            text = text.replace(json.dumps(opened), packed.decode())
        job = await self.storage.write(self.state.add_job, kind, text, most_waiting=most)
        if isinstance(job, int):
            raise Busy(f"{job} jobs wait already, the most that may; ask again later", retry_after_s=5)
        self.runner.wake()
        return job

    async def list_jobs(self, limit: int) -> list[StoredJob]:
        return await self.storage.read(self.state.list_jobs, limit=limit)

    async def find_job(self, job: str) -> StoredJob:
        try:
            found = await self.storage.read(self.state.find_job, job)
        except KeyError:
            raise NotFound(f"there is no job {job[:40]!r}; it was never asked for, or is too old to be kept") from None
        if found.state != "running":
            return found
        return dataclasses.replace(found, **self.runner.progress.get(job, {}))

    async def find_result(self, job: str) -> bytes | None:
        return await self.storage.read(self.state.find_result, job)

    async def cancel_job(self, job: str) -> StoredJob:
        await self.find_job(job)
        await self.storage.write(self.state.finish_job, job, "cancelled")
        await self.runner.stop_job(job)
        return await self.find_job(job)
