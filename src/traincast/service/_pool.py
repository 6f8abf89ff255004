"""Worker processes that answer one task each at a time: warm, bounded in time and memory, replaced when they die."""

import asyncio
import contextlib
import json
import math
import resource
import signal
import sys
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from traincast.errors import InvalidInput
from traincast.service._faults import Busy, InternalError, Interrupted, Malformed, NotFound, NotRecorded, WorkerDied
from traincast.service._worker import ANSWER, HEADER, PROGRESS, TASK, pack_json

Report = Callable[[dict[str, Any]], None]

NICENESS, NICENESS_BESIDE = 10, 15
"""Of workers, and of those that read large files or work for minutes: the process that answers everybody goes first, then those
who wait for an answer. In a group of their own, as services and logins are, nobody else's share changes."""
CHUNK = 256 * 1024
MOST_ANSWER = 128 * 2**20
OUTSIDE = tuple(-each for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
"""Ends by signals that are sent to whole groups of processes when a service or a machine is stopped."""


def resident_bytes(pid: int | None = None) -> float:
    """Memory of a process; where /proc is absent the peak of this one, and nan for others."""
    try:
        return float(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0 if pid is None else float("nan")


class Worker:
    """One process; killed and forgotten after a timeout, a cancellation or a crash."""

    def __init__(self, *, memory_bytes: int, rest_bytes: float = math.inf, niceness: int = NICENESS) -> None:
        self._memory_bytes, self._rest_bytes, self._niceness = memory_bytes, rest_bytes, niceness
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def ask(
        self, task: dict[str, Any], blob: bytes | bytearray = b"", *, cpu_s: float | None = None,
        report: Report | None = None,
    ) -> bytes:  # fmt: skip
        """The answer; a task that uses more CPU time than `cpu_s` ends with its process."""
        process = await self._start()
        if process.stdin is None or process.stdout is None:
            raise InternalError("a worker without pipes")
        try:
            process.stdin.write(pack_json(TASK, {**task, "cpu_s": cpu_s}) + HEADER.pack(TASK, len(blob)))
            # In pieces, so that a large file is not held twice.
            for at in range(0, len(blob) or 1, CHUNK):
                process.stdin.write(memoryview(blob)[at : at + CHUNK])
                await process.stdin.drain()
            while True:
                kind, length = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
                if length > MOST_ANSWER:
                    await self.stop()
                    raise InvalidInput("the answer is larger than any that is sent; ask for less")
                payload = await process.stdout.readexactly(length)
                if kind == ANSWER:
                    return payload
                if kind != PROGRESS:
                    raise read_error(json.loads(payload))
                if report is not None:
                    report(json.loads(payload))
        except (asyncio.IncompleteReadError, OSError, RuntimeError) as error:
            # uvloop raises RuntimeError where the process is gone before it is written to.
            await self.stop()
            raise _explain_end(process.returncode, cpu_s) from error
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

    async def rest(self) -> None:
        """A process that holds more memory between two tasks than it may ends; the next task has a new one."""
        if self.pid is not None and resident_bytes(self.pid) > self._rest_bytes:
            await self.stop()

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        # Shielded, so that a caller who gives up does not leave a dead child behind.
        await asyncio.shield(process.wait())


def _explain_end(code: int | None, cpu_s: float | None) -> Exception:
    if code == -signal.SIGXCPU and cpu_s is not None:
        return InvalidInput(
            f"this request needs more than {cpu_s:g} s of CPU time, the most that is spent on one; ask for less"
        )
    if code in OUTSIDE:
        return Interrupted("the service is being stopped; ask again later")
    words = "the work on this request was ended by the system, most likely for want of memory; use a smaller one"
    return WorkerDied(words)


def read_error(found: dict[str, Any]) -> Exception:
    """What a worker raised."""
    kind, words = found["kind"], found["error"]
    if kind == "record":
        return NotRecorded(**found["needs"])
    kinds: dict[str, type[Exception]] = {"syntax": Malformed, "missing": NotFound, "input": InvalidInput}
    return kinds.get(kind, InternalError)(words)


class Pool:
    """Workers that take turns. Clients that wait are served in turns too, and each has its part of the places."""

    ALWAYS_WAITING = 4
    """So many may wait however long tasks take."""

    def __init__(
        self, *, size: int, memory_bytes: int, max_waiting: int, patience_s: float = math.inf,
        rest_bytes: float = math.inf, niceness: int = NICENESS, most_of_client: int = 2**31,
    ) -> None:  # fmt: skip
        """A request that would wait for more than about `patience_s` is refused at once. `most_of_client`: workers that one
        client may hold."""
        self._workers = [
            Worker(memory_bytes=memory_bytes, rest_bytes=rest_bytes, niceness=niceness) for _ in range(size)
        ]
        self._idle = list(self._workers)
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[Worker]]] = OrderedDict()
        self._max_waiting, self._patience_s, self._most_of_client = max_waiting, patience_s, most_of_client
        self._mean_s = 0.02
        self.num_refused = 0

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid is not None]

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def warm(self, task: dict[str, Any]) -> None:
        """Let every worker load what all answers need."""
        await asyncio.gather(*(worker.ask(task) for worker in self._workers))

    async def ask(
        self, task: dict[str, Any], blob: bytes | bytearray = b"", *, timeout_s: float, cpu_s: float | None = None,
        client: str = "",
    ) -> bytes:  # fmt: skip
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
            await worker.rest()
            self._give(worker, client)

    async def _take(self, client: str) -> Worker:
        if self.check_room(client):
            # Last used first: under light load one warm worker does it all.
            self._held[client] += 1
            return self._idle.pop()
        turn: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(turn.result(), client)
            elif turn in self._waiting.get(client, ()):
                self._waiting[client].remove(turn)
            raise

    def _give(self, worker: Worker, client: str) -> None:
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]
        self._idle.append(worker)
        for name in list(self._waiting):
            turns = self._waiting[name]
            while turns and turns[0].done():
                turns.popleft()
            if turns and self._idle and self._held[name] < self._most_of_client:
                self._held[name] += 1
                turns.popleft().set_result(self._idle.pop())
                # At the end of the line: the others come first now.
                self._waiting.move_to_end(name)
            if not turns:
                del self._waiting[name]

    def check_room(self, client: str) -> bool:
        """Whether a worker is free for this client. A request that could not even wait is refused, before anything is spent on
        it; while others wait a client has its part."""
        if self._idle and self._held[client] < self._most_of_client:
            return True
        clients = len(self._waiting.keys() | {client})
        mine = len(self._waiting.get(client, ()))
        wait_s = mine * clients * self._mean_s / len(self._workers)
        is_patient = mine * clients < self.ALWAYS_WAITING or wait_s < self._patience_s
        if mine * clients >= self._max_waiting or not is_patient:
            self.num_refused += 1
            words = f"{mine} requests of this client wait already, the most that may; ask again later"
            raise Busy(words, retry_after_s=wait_s)
        return False

    async def close(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))
