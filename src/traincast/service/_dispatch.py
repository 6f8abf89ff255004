"""Requests to workers and back: answers kept in memory, uploads and jobs in the state. Bodies pass as bytes and are read by
workers, never here."""

import asyncio
import dataclasses
import hashlib
import json
import secrets
import shutil
import tempfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from traincast.errors import InvalidInput
from traincast.files import load_calibration
from traincast.service._faults import KINDS, NotFound, NotRecorded
from traincast.service._limits import Budget, Settings
from traincast.service._pool import NICENESS_BESIDE, Pool, resident_bytes
from traincast.service._requests import graph_file
from traincast.service._runner import JobRunner
from traincast.service._state import State, StoredJob, open_database
from traincast.service._storage import Storage
from traincast.service._uploads import guess_kind, peek

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
Seen = tuple[str, str, Iterable[tuple[dict[str, str], float]]]
"""A name (one that ends in _total is a counter), what it says, and its samples with their labels."""
SMALL_BODY = 64 * 1024
"""Larger ones are worked on beside the others and are not kept in memory."""
ANSWERED = ("forecast", "fit", "advise", "compare")
"""What is answered at once, each under a path of its name; the answers depend on the bodies alone."""
MOST_RECORDINGS = 3

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""Who asks, as far as the guard knows: the name of a token or an address."""


class Meter:
    """What happened since the service began, and what `look` sees when it is asked."""

    def __init__(self, look: Callable[[], Iterable[Seen]]) -> None:
        self._look = look
        self._registry = CollectorRegistry()
        self._registry.register(self)
        where: Any = {"registry": self._registry, "namespace": "traincast"}
        self._requests = Counter("requests", "HTTP requests answered.", ("method", "route", "status"), **where)
        self._seconds = Histogram("request_seconds", "Time to answer.", ("route",), buckets=BUCKETS_S, **where)
        self.cache_hits = Counter("cache_hits", "Answers given from memory.", **where)
        self.cache_misses = Counter("cache_misses", "Answers that were computed.", **where)

    def count(self, *, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        """What the registry asks for at each reading."""
        for name, words, samples in self._look():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            found = family(f"traincast_{name}", words)
            for labels, value in samples:
                found.add_sample(f"traincast_{name}", labels, value)
            yield found

    def format(self) -> bytes:
        return generate_latest(self._registry)


class Cache:
    """The answers asked for last by the bytes that asked for them, up to a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._answers: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: tuple[str, bytes]) -> bytes | None:
        found = self._answers.get(key)
        if found is not None:
            self._answers.move_to_end(key)
        return found

    def put(self, key: tuple[str, bytes], answer: bytes) -> None:
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
        self.meter = Meter(self._look)
        limits = settings.limits
        for path in settings.calibrations.values():
            load_calibration(path)
        self.state = State(open_database(settings.state), kept_jobs=limits.kept_jobs, kept_models=limits.kept_models)
        self.storage = Storage(self.state)
        self.runner = JobRunner(self.storage, settings, lambda kind: {**self._common, "task": kind}, self._provide)
        self.budget = Budget(limits.inflight_bytes, limits.client_bytes)
        self._common: dict[str, Any] = {
            "limits": dataclasses.asdict(limits),
            "folder": tempfile.mkdtemp(prefix="traincast-"),
            "calibrations": {name: str(path.resolve()) for name, path in settings.calibrations.items()},
        }
        self._cache = Cache(limits.cache_bytes)
        self._flying: dict[tuple[str, bytes], asyncio.Task[bytes]] = {}
        self._quick = Pool(
            size=settings.workers, memory_bytes=limits.worker_bytes, max_waiting=limits.waiting_requests,
            patience_s=limits.patience_s, rest_bytes=limits.rest_bytes,
        )  # fmt: skip
        beside: dict[str, Any] = {"size": 2, "max_waiting": 16, "niceness": NICENESS_BESIDE, "most_of_client": 1}
        self._large = Pool(memory_bytes=limits.worker_bytes, rest_bytes=limits.rest_bytes, **beside)
        # PyTorch alone takes half of what others may hold.
        self._recorders = Pool(memory_bytes=limits.capture_bytes, rest_bytes=2 * limits.rest_bytes, **beside)
        self._pools = (self._quick, self._large, self._recorders)
        self.is_ready = False

    async def start(self) -> None:
        await self._quick.warm({**self._common, "task": "warm"})
        await self.runner.start()
        self.is_ready = True

    async def close(self) -> None:
        self.is_ready = False
        await self.runner.close()
        await asyncio.gather(*(pool.close() for pool in self._pools))
        await self.storage.close()
        shutil.rmtree(self._common["folder"], ignore_errors=True)

    async def check_health(self) -> dict[str, Any]:
        """What works and what does not, as it was found a few seconds ago at most."""
        await self.storage.check()
        fault, queue = self.storage.fault, self.storage.queue
        most, alive = self.settings.job_workers, self.runner.num_alive
        problems = [] if fault is None else [str(fault)]
        if self.is_ready and alive < most:
            problems.append(f"{alive} of {most} job runners are alive")
        kind = None if fault is None else fault.kind
        counts = {key: queue.counts.get(key, 0) for key in ("queued", "running")}
        return {
            "problems": problems,
            "storage": {"backend": self.state.database.name, "writable": fault is None, "fault": kind},
            "queue": {**counts, "oldest_s": round(queue.oldest_s, 3), "runners": most, "runners_alive": alive},
        }

    def _look(self) -> Iterable[Seen]:
        """What the metrics say of now."""
        storage, queue, pids = self.storage, self.storage.queue, self.runner.pids
        pids = [*(pid for pool in self._pools for pid in pool.pids), *pids]
        yield "cache_bytes", "Size of the answers in memory.", [({}, self._cache.num_bytes)]
        yield "inflight_bytes", "Bodies and large answers in memory.", [({}, self.budget.num_bytes)]
        waiting = sum(pool.num_waiting for pool in self._pools)
        yield "waiting_requests", "Requests that wait for a worker.", [({}, waiting)]
        refused = sum(pool.num_refused for pool in self._pools)
        yield "refused_requests_total", "Requests refused because too many wait.", [({}, refused)]
        yield "jobs", "Jobs by state.", [({"state": state}, count) for state, count in queue.counts.items()]
        yield "queue_age_seconds", "How long the first job that waits has waited.", [({}, queue.oldest_s)]
        yield "job_runners", "Job runners that are alive.", [({}, self.runner.num_alive)]
        faults = [({"kind": kind}, float(storage.faults[kind])) for kind in KINDS]
        yield "storage_faults_total", "Faults of the state's storage by kind.", faults
        rescued = self.state.database.num_rescued
        yield "storage_rescued_rows_total", "Rows saved from a damaged or replaced file.", [({}, rescued)]
        workers = [({"process": "worker", "pid": str(pid)}, resident_bytes(pid)) for pid in pids]
        held = [({"process": "service"}, resident_bytes()), *workers]
        yield "resident_bytes", "Memory of the service and of its workers.", held

    def recall(self, task: str, body: bytes) -> bytes | None:
        """The answer to exactly these bytes, without reading them."""
        found = self._cache.get((task, body)) if len(body) <= SMALL_BODY else None
        if found is not None:
            self.meter.cache_hits.inc()
        return found

    async def answer(self, task: str, body: bytes) -> bytes:
        """A forecast or a fit that is not in memory: from the same question under way, or from a worker."""
        if len(body) > SMALL_BODY:
            return await self._compute({"task": task}, body)
        flying = self._flying.get((task, body))
        if flying is None:
            self._quick.check_room(CLIENT.get())
            flying = asyncio.create_task(self._compute({"task": task}, body))
            self._flying[task, body] = flying
            flying.add_done_callback(lambda done: self._land((task, body), done))
        return await asyncio.shield(flying)

    def _land(self, key: tuple[str, bytes], done: "asyncio.Task[bytes]") -> None:
        self._flying.pop(key, None)
        self.meter.cache_misses.inc()
        if not done.cancelled() and done.exception() is None:
            self._cache.put(key, done.result())

    async def _compute(self, task: dict[str, Any], body: bytes) -> bytes:
        limit_s = self.settings.limits.request_s
        pool = self._quick if len(body) <= SMALL_BODY else self._large
        for _ in range(MOST_RECORDINGS):
            try:
                return await pool.ask(
                    {**self._common, **task}, body, timeout_s=limit_s, cpu_s=limit_s, client=CLIENT.get()
                )
            except NotRecorded as need:
                await self._provide(need)
        raise InvalidInput("the model was removed while it was asked for; upload it again")

    async def _provide(self, need: NotRecorded) -> None:
        """Put the graph of a model where workers read it; record it where it was recorded only with other options."""
        known = await self.storage.read(self.state.find_graph, need.model, need.options)
        if known is not None:
            await asyncio.to_thread(self._put, need.model, need.options, known[1])
        else:
            found = await self.storage.read(self.state.find_model, need.model)
            if found is None:
                raise NotFound(f"there is no model {need.model[:12]}...; upload it again with POST /models")
            await self._record(need.model, found[1], kind=found[0], options=need.options, is_kept=True)

    def _put(self, model: str, options: str, packed: bytes) -> None:
        path = graph_file(self._common["folder"], model, options)
        new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        new.write_bytes(zlib.decompress(packed))
        new.replace(path)

    async def upload(self, content: bytes) -> dict[str, Any]:
        """Keep a model and the graph recorded from it; the same bytes are the same model."""
        model = (await asyncio.to_thread(hashlib.sha256, content)).hexdigest()
        found = await self.storage.read(self.state.find_model, model)
        about = None if found is None else await self.storage.read(self.state.find_graph, model, "{}")
        if found is not None and about is not None:
            return {"model": model, "kind": found[0], **json.loads(about[0])}
        return await self._record(model, content, kind=guess_kind(peek(content)), options="{}")

    async def _record(
        self, model: str, content: bytes, *, kind: str, options: str, is_kept: bool = False
    ) -> dict[str, Any]:
        # A graph needs only to be checked; a config or an ONNX file needs the worker that may load PyTorch.
        pool = self._large if kind == "graph" else self._recorders
        limits = self.settings.limits
        task = {**self._common, "task": "record", "kind": kind, "options": options, "is_kept": is_kept}
        recorded = await pool.ask(
            task, content, timeout_s=limits.capture_s, cpu_s=limits.capture_cpu_s, client=CLIENT.get()
        )
        line, _, rest = recorded.partition(b"\n")
        head = json.loads(line)
        size, about = head["content_bytes"], head["about"]
        await self.storage.write(
            self.state.add_model, model=model, name=about["name"], kind=head["kind"], content=rest[:size],
            options=options, graph=rest[size:], about=json.dumps(about),
        )  # fmt: skip
        await asyncio.to_thread(self._put, model, options, rest[size:])
        return {"model": model, "kind": head["kind"], **about}

    async def ask_job(self, kind: str, body: bytes) -> StoredJob:
        """A plan or a schedule that was found sound, once it is sure to be run."""
        request = await self._compute({"task": "check", "kind": kind}, body)
        limits = self.settings.limits
        job = await self.storage.write(
            self.state.add_job, kind, request.decode(), client=CLIENT.get(), most_waiting=limits.waiting_jobs,
            most_of_client=limits.client_jobs,
        )  # fmt: skip
        self.runner.wake()
        return job

    async def find_job(self, job: str) -> StoredJob:
        found = await self.storage.read(self.state.find_job, job)
        if found.state != "running":
            return found
        return dataclasses.replace(found, **self.runner.progress.get(job, {}))

    async def cancel_job(self, job: str) -> StoredJob:
        await self.find_job(job)
        await self.storage.write(self.state.finish_job, job, "cancelled")
        await self.runner.stop_job(job)
        return await self.find_job(job)
