"""Worker processes that answer one task each at a time: warm, bounded in time and memory, replaced when they die."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any

from traincast.errors import InvalidInput, TraincastError
from traincast.service.frames import ANSWER, BLOB, HEADER, PROGRESS, TASK, pack, pack_json

Report = Callable[[dict[str, Any]], None]


class Busy(TraincastError):
    """More requests wait than may wait."""


class InternalError(Exception):
    """A fault of ours inside a worker."""


class Worker:
    """One process; killed and forgotten after a timeout, a cancellation or a crash."""

    def __init__(self, *, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def ask(self, task: dict[str, Any], blob: bytes = b"", *, report: Report | None = None) -> bytes:
        process = await self._start()
        if process.stdin is None or process.stdout is None:
            raise InternalError("a worker without pipes")
        try:
            process.stdin.write(pack_json(TASK, {**task, "has_blob": bool(blob)}))
            if blob:
                process.stdin.write(pack(BLOB, blob))
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
                found = json.loads(payload)
                if found["bad_input"]:
                    raise InvalidInput(found["error"])
                raise InternalError(found["error"])
        except (asyncio.IncompleteReadError, ConnectionError, OSError) as error:
            await self.stop()
            raise InvalidInput(
                "the work on this request was ended by the system, most likely for want of memory; use a smaller one"
            ) from error
        except asyncio.CancelledError:
            await self.stop()
            raise

    async def _start(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "traincast.service.worker", str(self._memory_bytes)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        return self._process

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        # Shielded, so that a caller who gives up does not leave a dead child behind.
        await asyncio.shield(process.wait())


class Pool:
    """Workers that take turns; a request waits for the next free one."""

    def __init__(self, *, size: int, memory_bytes: int, max_waiting: int) -> None:
        self._workers = [Worker(memory_bytes=memory_bytes) for _ in range(size)]
        # Last used first: under light load one warm worker does it all.
        self._idle: asyncio.LifoQueue[Worker] = asyncio.LifoQueue()
        for worker in self._workers:
            self._idle.put_nowait(worker)
        self._max_waiting = max_waiting
        self.num_waiting = 0

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def warm(self, task: dict[str, Any]) -> None:
        """Let every worker load what all answers need."""
        await asyncio.gather(*(worker.ask(task) for worker in self._workers))

    async def ask(self, task: dict[str, Any], blob: bytes = b"", *, timeout_s: float) -> bytes:
        if self.num_waiting >= self._max_waiting:
            raise Busy(f"{self.num_waiting} requests wait already, the most that may; ask again later")
        self.num_waiting += 1
        try:
            worker = await self._idle.get()
        finally:
            self.num_waiting -= 1
        try:
            return await asyncio.wait_for(worker.ask(task, blob), timeout_s)
        except TimeoutError as error:
            raise InvalidInput(
                f"this request needs more than {timeout_s:g} s, the most that is spent on one; ask for less"
            ) from error
        finally:
            self._idle.put_nowait(worker)

    async def close(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self._workers))
