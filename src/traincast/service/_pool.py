"""Worker processes that answer one task each at a time: warm, bounded in time and memory, replaced when they die."""

import asyncio
import contextlib
import json
import logging
import math
import signal
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from traincast.errors import InvalidInput, TraincastError
from traincast.service._faults import StorageFault
from traincast.service._frames import ANSWER, BLOB, HEADER, PROGRESS, TASK, pack_json
from traincast.service._memory import resident_bytes

log = logging.getLogger("traincast.service")

Report = Callable[[dict[str, Any]], None]


class Busy(TraincastError):
    """More requests wait than may wait."""

    def __init__(self, words: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(words)
        self.retry_after_s = max(1, math.ceil(retry_after_s))


class InternalError(Exception):
    """A fault of ours inside a worker."""


NICENESS = 5
"""Of workers that read large files or work for minutes: those who wait for an answer go first."""


class Worker:
    """One process; killed and forgotten after a timeout, a cancellation or a crash."""

    def __init__(self, *, memory_bytes: int, rest_bytes: float = math.inf, niceness: int = 0) -> None:
        self._memory_bytes, self._rest_bytes, self._niceness = memory_bytes, rest_bytes, niceness
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def ask(
        self,
        task: dict[str, Any],
        blob: bytes | bytearray = b"",
        *,
        cpu_s: float | None = None,
        report: Report | None = None,
    ) -> bytes:
        """The answer; a task that uses more CPU time than `cpu_s` ends with its process."""
        process = await self._start()
        if process.stdin is None or process.stdout is None:
            raise InternalError("a worker without pipes")
        try:
            process.stdin.write(pack_json(TASK, {**task, "has_blob": bool(blob), "cpu_s": cpu_s}))
            if blob:
                # Apart from its header, so that a large file is not copied.
                process.stdin.write(HEADER.pack(BLOB, len(blob)))
                process.stdin.write(blob)
            await process.stdin.drain()
            while True:
                kind, length = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
                payload = await process.stdout.readexactly(length)
                if kind == ANSWER:
                    return payload
                if kind == PROGRESS:
                    if report is not None:
                        report(json.loads(payload))
                    continue
                raise read_error(json.loads(payload))
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            await self.stop()
            if process.returncode == -signal.SIGXCPU and cpu_s is not None:
                raise InvalidInput(
                    f"this request needs more than {cpu_s:g} s of CPU time, the most that is spent on one; ask for less"
                ) from error
            raise InvalidInput(
                "the work on this request was ended by the system, most likely for want of memory; use a smaller one"
            ) from error
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def _start(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "traincast.service._worker", str(self._memory_bytes), str(self._niceness)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=2**20,
            )
        return self._process

    @property
    def needs_rest(self) -> bool:
        """Whether the process holds more memory between two tasks than it may."""
        return self.pid is not None and resident_bytes(self.pid) > self._rest_bytes

    async def rest(self) -> None:
        if self.needs_rest:
            await self.stop()

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        # Shielded, so that a caller who gives up does not leave a dead child behind.
        await asyncio.shield(process.wait())


def read_error(found: dict[str, Any]) -> Exception:
    if found["kind"] == "storage":
        return StorageFault(found["storage"], found["error"])
    return InvalidInput(found["error"]) if found["kind"] == "input" else InternalError(found["error"])


class Pool:
    """Workers that take turns. Clients that wait are served in turns too, so that one of them cannot keep the others out."""

    ALWAYS_WAITING = 4
    """So many may wait however long tasks take."""

    def __init__(
        self,
        *,
        size: int,
        memory_bytes: int,
        max_waiting: int,
        patience_s: float = math.inf,
        rest_bytes: float = math.inf,
        niceness: int = 0,
    ) -> None:
        """A request that would wait for more than about `patience_s` is refused at once."""
        self._workers = [
            Worker(memory_bytes=memory_bytes, rest_bytes=rest_bytes, niceness=niceness) for _ in range(size)
        ]
        self._first_task: dict[str, Any] | None = None
        self._renewing: set[asyncio.Task[None]] = set()
        self.num_renewed = 0
        self._idle = list(self._workers)
        self._waiting: OrderedDict[str, deque[asyncio.Future[Worker]]] = OrderedDict()
        self._max_waiting, self._patience_s = max_waiting, patience_s
        self._mean_s = 0.02
        self.num_waiting = 0
        self.num_refused = 0

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def warm(self, task: dict[str, Any]) -> None:
        """Let every worker load what all answers need."""
        self._first_task = task
        await asyncio.gather(*(worker.ask(task) for worker in self._workers))

    async def ask(
        self,
        task: dict[str, Any],
        blob: bytes | bytearray = b"",
        *,
        timeout_s: float,
        cpu_s: float | None = None,
        client: str = "",
    ) -> bytes:
        worker = await self._take(client)
        started_s = time.monotonic()
        try:
            return await asyncio.wait_for(worker.ask(task, blob, cpu_s=cpu_s), timeout_s)
        except TimeoutError as error:
            raise InvalidInput(
                f"this request needs more than {timeout_s:g} s, the most that is spent on one; ask for less"
            ) from error
        finally:
            self._mean_s += 0.2 * (time.monotonic() - started_s - self._mean_s)
            if worker.needs_rest:
                renewing = asyncio.create_task(self._renew(worker))
                self._renewing.add(renewing)
                renewing.add_done_callback(self._renewing.discard)
            else:
                self._give(worker)

    async def _renew(self, worker: Worker) -> None:
        """A new process in the place of one that holds too much; it gets its turn once it is warm."""
        self.num_renewed += 1
        try:
            await worker.stop()
            if self._first_task is not None:
                await worker.ask(self._first_task)
        except (TraincastError, InternalError):
            # The next request starts it, or says why it cannot.
            log.exception("a new worker did not get warm")
        finally:
            self._give(worker)

    async def _take(self, client: str) -> Worker:
        if self._idle:
            # Last used first: under light load one warm worker does it all.
            return self._idle.pop()
        self._make_room(client)
        turn: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        self.num_waiting += 1
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._give(turn.result())
            else:
                self._forget(client, turn)
            raise

    def _give(self, worker: Worker) -> None:
        while self._waiting:
            client, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            self.num_waiting -= 1
            if turns:
                self._waiting[client] = turns
            if not turn.done():
                turn.set_result(worker)
                return
        self._idle.append(worker)

    def check_room(self, client: str) -> None:
        """Refuse a request that would be refused anyhow, before anything is spent on it."""
        if not self._idle and self._is_full() and self._is_heaviest(client):
            raise self._refusal()

    def _make_room(self, client: str) -> None:
        """Refuse the request, or the latest of the client that has the most waiting."""
        if not self._is_full():
            return
        refusal = self._refusal()
        if self._is_heaviest(client):
            raise refusal
        heaviest = max(self._waiting, key=lambda name: len(self._waiting[name]))
        turn = self._waiting[heaviest][-1]
        self._forget(heaviest, turn)
        if not turn.done():
            turn.set_exception(refusal)

    @property
    def _wait_s(self) -> float:
        """About how long the next request would wait."""
        return self.num_waiting * self._mean_s / len(self._workers)

    def _is_full(self) -> bool:
        is_patient = self.num_waiting < self.ALWAYS_WAITING or self._wait_s < self._patience_s
        return self.num_waiting >= self._max_waiting or not is_patient

    def _is_heaviest(self, client: str) -> bool:
        most = max((len(turns) for turns in self._waiting.values()), default=0)
        return most <= len(self._waiting.get(client, ())) + 1

    def _refusal(self) -> Busy:
        self.num_refused += 1
        return Busy(
            f"{self.num_waiting} requests wait already, the most that may; ask again later", retry_after_s=self._wait_s
        )

    def _forget(self, client: str, turn: "asyncio.Future[Worker]") -> None:
        turns = self._waiting.get(client)
        if turns is not None and turn in turns:
            turns.remove(turn)
            self.num_waiting -= 1
            if not turns:
                del self._waiting[client]

    async def close(self) -> None:
        for each in self._renewing:
            each.cancel()
        await asyncio.gather(*(worker.stop() for worker in self._workers))
